//! Shows which mistakes a check catches, as text.

use std::fmt::Write as _;

use registry::dtype::Dtype;
use registry::quantity::plural;
use registry::table::TextTable;

use super::counts::counts;
use super::diagnosis::MutantDiagnosis;
use super::outcomes::{Fate, MistakeClass, MutantOutcome, MutationReport};

/// Formats a report for people: counts of each class, then the mutants that need a look.
pub fn text(book: &MutationReport) -> String {
    let mut table = TextTable::new(&[2, 3, 4, 5, 6]);
    table.row(["class", "dtype", "caught", "refused", "missed", "unreached", "right"]);
    for row in counts(book) {
        table.row([
            row.class.name().to_owned(),
            row.dtype.to_string(),
            row.caught.to_string(),
            row.refused.to_string(),
            row.missed.to_string(),
            row.unreached.to_string(),
            right_share(book, row.class, row.dtype),
        ]);
    }
    let mut text = table.plain("");
    for (title, table) in [
        ("missed: the gate that came closest", missed(outcomes_of(book, Fate::Missed))),
        ("caught, but another place was named first", displaced(book.outcomes.iter())),
        ("unreached", unreached(outcomes_of(book, Fate::Unreached))),
    ] {
        if !table.is_empty() {
            let _ = write!(text, "\n{title}:\n{table}");
        }
    }
    text.push_str(&blames(&book.outcomes));
    let (known, right) = book.places();
    let share = if known == 0 {
        String::new()
    } else {
        format!("; {right} of {known} known places named first")
    };
    let _ = write!(
        text,
        "\n{}: {} caught, {} refused, {} missed, {} unreached{share}\n",
        plural(book.outcomes.len(), "run"),
        outcomes_of(book, Fate::Caught).count(),
        outcomes_of(book, Fate::Refused).count(),
        outcomes_of(book, Fate::Missed).count(),
        outcomes_of(book, Fate::Unreached).count(),
    );
    text
}

/// Returns the outcomes of one kind.
fn outcomes_of(book: &MutationReport, fate: Fate) -> impl Iterator<Item = &MutantOutcome> {
    book.outcomes.iter().filter(move |outcome| outcome.fate == fate)
}

/// Says how many mutants of a class are named first at the right place, of those whose place is known.
fn right_share(book: &MutationReport, class: MistakeClass, dtype: Dtype) -> String {
    let outcomes = book.outcomes.iter().filter(|o| o.class == class && o.dtype == dtype);
    let known: Vec<bool> = outcomes.filter_map(|o| o.right).collect();
    if known.is_empty() {
        return String::new();
    }
    format!("{}/{}", known.iter().filter(|right| **right).count(), known.len())
}

fn missed<'a>(outcomes: impl Iterator<Item = &'a MutantOutcome>) -> String {
    let mut table = TextTable::new(&[2, 3]);
    for outcome in outcomes {
        let head = [outcome.dtype.to_string(), outcome.mutant.clone()];
        let tail = outcome.closest.as_ref().map_or_else(
            || [String::new(), String::new(), "no bound has other numbers".to_owned()],
            |c| {
                let subject = format!("{} {}, {}", c.measure, c.subject, c.place);
                [
                    format!("{:.2e}/{:.2e}", c.value, c.limit),
                    format!("was {:.2e}", c.before),
                    subject,
                ]
            },
        );
        table.row(head.into_iter().chain(tail));
    }
    table.plain("  ")
}

fn displaced<'a>(outcomes: impl Iterator<Item = &'a MutantOutcome>) -> String {
    let mut table = TextTable::new(&[]);
    for outcome in outcomes.filter(|outcome| outcome.right == Some(false)) {
        let expected = outcome.expected.iter().next().cloned().unwrap_or_default();
        let more = match outcome.expected.len() {
            0 | 1 => String::new(),
            n => format!(" or {} more", n - 1),
        };
        table.row([
            outcome.dtype.to_string(),
            outcome.mutant.clone(),
            outcome.first.clone().unwrap_or_default(),
            format!("expected {expected}{more}"),
        ]);
    }
    table.plain("  ")
}

/// Lists mutants by name, each once.
fn unreached<'a>(outcomes: impl Iterator<Item = &'a MutantOutcome>) -> String {
    let mut rows: Vec<(String, String, &'static str)> = Vec::new();
    for outcome in outcomes {
        let dtype = outcome.dtype.to_string();
        match rows.iter_mut().find(|(name, ..)| *name == outcome.mutant) {
            Some((_, dtypes, _)) => {
                dtypes.push(',');
                dtypes.push_str(&dtype);
            }
            None => rows.push((outcome.mutant.clone(), dtype, outcome.reach.unwrap_or_default())),
        }
    }
    let mut table = TextTable::new(&[]);
    for (name, dtypes, reach) in rows {
        table.row([dtypes, name, reach.to_owned()]);
    }
    table.plain("  ")
}

/// Lists wrong diagnoses, and counts the right ones.
fn blames(outcomes: &[MutantOutcome]) -> String {
    let all: Vec<(&MutantOutcome, &MutantDiagnosis)> =
        outcomes.iter().filter_map(|outcome| Some((outcome, outcome.blame.as_ref()?))).collect();
    if all.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new(&[]);
    for (outcome, blame) in all.iter().filter(|(_, blame)| !blame.is_right()) {
        let rank = match (blame.curable, blame.rank) {
            (true, Some(rank)) => format!("undone by the cause in place {rank}"),
            (true, None) => "not found".to_owned(),
            (false, _) => "explained by an edit".to_owned(),
        };
        let first = blame.first.as_ref().map_or_else(
            || "no cause".to_owned(),
            |first| format!("first: {first}, {:.1} % restored", 100.0 * blame.restored),
        );
        table.row([outcome.dtype.to_string(), outcome.mutant.clone(), rank, first]);
    }
    let wrong = table.plain("  ");
    let mut text = String::new();
    if !wrong.is_empty() {
        let _ = write!(text, "\nwrong diagnoses:\n{wrong}");
    }
    let (curable, incurable): (Vec<&MutantDiagnosis>, Vec<&MutantDiagnosis>) =
        all.iter().map(|(_, blame)| *blame).partition(|blame| blame.curable);
    let first = curable.iter().filter(|blame| blame.is_right()).count();
    let curable = curable.len();
    let unexplained = incurable.iter().filter(|blame| blame.is_right()).count();
    let incurable = incurable.len();
    let tried: usize = all.iter().map(|(_, blame)| blame.tried).sum();
    let _ = write!(
        text,
        "\ndiagnosed: the undoing edit is first in {first} of {curable}; unexplained in {unexplained} of {incurable} other faults; \
         {} edits tried for each\n",
        tried / all.len()
    );
    text
}
