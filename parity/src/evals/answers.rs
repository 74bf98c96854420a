//! Answers that differ although the model's results agree: filters, stop strings, reasoning blocks,
//! sampling.

use super::comparison::{EXAMPLES, EvalFinding, EvalVerdict, Example, PairedScores, items, short};
use super::pair::SamplePair;
use super::sample::{Results, Sample, best};

/// Relation of two generated texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextRelation {
    /// Equal, except for leading and trailing spaces.
    Equal,
    /// One continues where the other stops.
    Stops,
    /// One lacks the beginning of the other.
    Cut,
    /// The texts differ.
    Other,
}

fn relation(a: &str, b: &str) -> TextRelation {
    let a = a.trim();
    let b = b.trim();
    if a == b {
        TextRelation::Equal
    } else if a.starts_with(b) || b.starts_with(a) {
        TextRelation::Stops
    } else if a.ends_with(b) || b.ends_with(a) {
        TextRelation::Cut
    } else {
        TextRelation::Other
    }
}

/// Settings of generation that change texts and answers.
const SETTINGS: [&str; 8] =
    ["temperature", "do_sample", "until", "max_gen_toks", "max_tokens", "regex", "filter", "top_p"];
/// Minimum number of items for a meaningful share of texts.
const FEWEST: usize = 10;
/// Number of characters within which texts of two entirely different implementations diverge.
const EARLY: usize = 16;

/// The pairs, and the metric of each side.
pub(super) struct AnswerComparison<'a, 'b> {
    pub pairs: &'b [SamplePair<'a>],
    pub metrics: Option<(&'b str, &'b str)>,
    pub paired: Option<&'b PairedScores>,
    /// True if log-likelihoods were compared and noise explains them.
    pub scored: bool,
    pub a: &'b Results,
    pub b: &'b Results,
}

/// Verdict and remarks that follow from the answers.
#[derive(Debug, Default)]
pub(super) struct AnswerFindings {
    pub found: Option<EvalFinding>,
    /// Number of items whose answers or scores differ.
    pub disagree: usize,
    /// Remarks, if nothing was found.
    pub notes: Vec<String>,
}

/// Searches for a cause outside the model.
pub(super) fn answers(of: &AnswerComparison<'_, '_>) -> AnswerFindings {
    let differ: Vec<&SamplePair<'_>> =
        of.pairs.iter().filter(|pair| disagree(pair, of.metrics)).collect();
    let texts: Vec<(&SamplePair<'_>, TextRelation)> = of
        .pairs
        .iter()
        .filter_map(|pair| Some((pair, relation(pair.0.text.as_ref()?, pair.1.text.as_ref()?))))
        .collect();
    let mut findings = AnswerFindings { disagree: differ.len(), ..AnswerFindings::default() };
    let settings = settings(of.a, of.b);
    findings.found = extraction(of, &differ, &settings);
    if findings.found.is_some() || texts.is_empty() {
        return findings;
    }
    findings.found = other_texts(of, &texts, &settings);
    let other = texts.iter().filter(|(_, relation)| *relation != TextRelation::Equal).count();
    if other > 0 {
        let why = match (of.a.sampled(), of.b.sampled()) {
            (Some(false), Some(false)) => {
                "both decode greedily, so near ties and rounding made them"
            }
            (Some(true), Some(true)) => "both are sampled",
            _ => "the files do not say at which temperature",
        };
        findings.notes.push(format!("{other} of {} texts differ: {why}", texts.len()));
    }
    findings.notes.extend(settings);
    findings
}

/// True if the scores differ, or the answers if there are no scores.
fn disagree((a, b): &SamplePair<'_>, metrics: Option<(&str, &str)>) -> bool {
    if let Some((one, other)) = metrics
        && let (Some(one), Some(other)) = (a.scores.get(one), b.scores.get(other))
    {
        return one != other && !(one.is_nan() && other.is_nan());
    }
    match (&a.answer, &b.answer) {
        (Some(a), Some(b)) => a.trim() != b.trim(),
        _ => false,
    }
}

/// Returns the settings that differ, one sentence each.
fn settings(a: &Results, b: &Results) -> Vec<String> {
    SETTINGS.iter().filter_map(|name| differing_setting(a, b, name)).collect()
}

/// Describes a setting that both sides state differently.
fn differing_setting(a: &Results, b: &Results, name: &str) -> Option<String> {
    let a = a.facts.get(name)?;
    let b = b.facts.get(name)?;
    let same = a == b || a.parse::<f64>().is_ok_and(|a| b.parse() == Ok(a));
    (!same).then(|| format!("the setting `{name}` differs: {} in A, {} in B", short(a), short(b)))
}

/// Finds different answers to equal texts or log-likelihoods.
fn extraction(
    of: &AnswerComparison<'_, '_>,
    differ: &[&SamplePair<'_>],
    settings: &[String],
) -> Option<EvalFinding> {
    let mut kinds = [0; 4];
    let mut examples = Vec::new();
    for (a, b) in differ {
        let kind = match (&a.text, &b.text) {
            (Some(one), Some(other)) => match relation(one, other) {
                TextRelation::Equal => 0,
                TextRelation::Stops => 1,
                TextRelation::Cut => 2,
                TextRelation::Other => continue,
            },
            _ if of.scored && !flipped(a, b) => 3,
            _ => continue,
        };
        kinds[kind] += 1;
        if examples.len() < EXAMPLES {
            let target = a
                .target
                .as_deref()
                .map_or_else(String::new, |target| format!(" (right: {})", short(target)));
            examples.push(Example {
                id: a.id.clone(),
                what: format!("answer{target}"),
                a: shown_answer(a, of.metrics.map(|(one, _)| one)),
                b: shown_answer(b, of.metrics.map(|(_, other)| other)),
            });
        }
    }
    let total: usize = kinds.iter().sum();
    // Texts that stop elsewhere are a cause only if they are most of the differences.
    if total == 0 || (kinds[0] + kinds[3] == 0 && total * 2 < differ.len()) {
        return None;
    }
    let words = [
        "equal texts have other answers: the filters or regular expressions differ",
        "one text goes on where the other stops: stop strings, max_tokens or the end token differ",
        "one text lacks the beginning of the other: a reasoning block was taken out of one",
        "equal log-likelihoods have other answers: another metric, normalisation or right answer",
    ];
    let main_kind = (0..4).max_by_key(|&kind| (kinds[kind], 3 - kind))?;
    let mut why: Vec<String> = (0..4)
        .filter(|&kind| kinds[kind] > 0)
        .map(|kind| {
            format!("{} ({} of {} that differ)", words[kind], kinds[kind], items(differ.len()))
        })
        .collect();
    why.extend_from_slice(settings);
    Some(EvalFinding {
        verdict: EvalVerdict::Extraction,
        headline: format!("{}: {}", items(total), words[main_kind]),
        why,
        examples,
        todo: vec![
            "read the answers with one program: the same task version, filter and regular expression, the same stop \
             strings, and the same treatment of reasoning blocks"
                .to_owned(),
        ],
    })
}

/// Describes the answer of a sample, with its score in a metric and its text.
fn shown_answer(sample: &Sample, metric: Option<&str>) -> String {
    let answer = sample.answer.as_deref().unwrap_or("none");
    let score = metric.and_then(|metric| sample.scores.get(metric));
    let score = score.map_or_else(String::new, |score| format!(", score {score}"));
    let text = sample.text.as_deref();
    let text = text.map_or_else(String::new, |text| format!(", of {}", short(text)));
    format!("answer {}{score}{text}", short(answer))
}

/// True if some rule for choosing by log-likelihoods gives a different choice on each side.
fn flipped(a: &Sample, b: &Sample) -> bool {
    let all = a.logprobs.len().min(b.logprobs.len());
    let choices = if a.choices.is_empty() { &b.choices } else { &a.choices };
    let tokens = if a.tokens.is_empty() { &b.tokens } else { &a.tokens };
    let lengths: [Vec<usize>; 6] = [
        vec![1; all],
        choices.iter().map(|choice| choice.chars().count()).collect(),
        choices.iter().map(|choice| without_delimiter(choice).chars().count()).collect(),
        choices.iter().map(String::len).collect(),
        choices.iter().map(|choice| without_delimiter(choice).len()).collect(),
        tokens.clone(),
    ];
    // A single choice is correct if each of its tokens is the most likely, which its sum does not show.
    all < 2
        || lengths
            .iter()
            .filter(|lengths| lengths.len() >= all)
            .any(|lengths| choice_by_length(a, lengths) != choice_by_length(b, lengths))
}

/// Returns a choice without the space before it, which may be lm-eval's delimiter: lm-eval does not count that.
fn without_delimiter(choice: &str) -> &str {
    choice.strip_prefix(' ').unwrap_or(choice)
}

/// Returns the choice with the largest log-likelihood per unit of length.
fn choice_by_length(sample: &Sample, lengths: &[usize]) -> Option<usize> {
    let pairs = sample.logprobs.iter().zip(lengths);
    best(pairs.map(|(number, length)| number / (*length).max(1) as f64))
}

/// Finds the cause of different texts: sampling, settings, or the implementation.
fn other_texts(
    of: &AnswerComparison<'_, '_>,
    texts: &[(&SamplePair<'_>, TextRelation)],
    settings: &[String],
) -> Option<EvalFinding> {
    let other: Vec<_> =
        texts.iter().filter(|(_, relation)| *relation != TextRelation::Equal).collect();
    if other.is_empty() {
        return None;
    }
    let all = texts.len();
    let n = other.len();
    let sampled = (of.a.sampled(), of.b.sampled());
    let significant = of.paired.is_some_and(|paired| paired.significant);
    let early = other.iter().filter(|(pair, _)| shared_characters(pair) < EARLY).count();
    let examples = other.iter().take(EXAMPLES).map(|(pair, _)| Example {
        id: pair.0.id.clone(),
        what: format!("text, from character {}", shared_characters(pair)),
        a: short(pair.0.text.as_deref().unwrap_or("")),
        b: short(pair.1.text.as_deref().unwrap_or("")),
    });
    let mut why =
        vec![format!("{n} of {all} texts differ, {early} of them within {EARLY} characters")];
    if let Some(paired) = of.paired.filter(|paired| paired.significant) {
        why.push(format!(
            "the scores differ beyond noise: {:+.3} over {}",
            paired.difference,
            items(paired.items)
        ));
    }
    why.extend_from_slice(settings);
    let greedy = "run both at temperature 0 with log-probabilities, or average several seeds";
    let (verdict, headline, todo) = match sampled {
        (Some(x), Some(y)) if x != y => (
            EvalVerdict::Extraction,
            format!(
                "{} is sampled and {} is greedy: {n} of {all} texts differ",
                if x { "A" } else { "B" },
                if x { "B" } else { "A" }
            ),
            greedy,
        ),
        (Some(true), Some(true)) if significant => (
            EvalVerdict::Extraction,
            format!("both are sampled, and {n} of {all} texts differ"),
            greedy,
        ),
        (Some(false), Some(false)) if significant || (all >= FEWEST && early * 2 > all) => (
            EvalVerdict::Implementation,
            format!("both decode greedily on equal inputs, and {n} of {all} texts differ"),
            "compare log-probabilities: score the same items with `parity eval MODEL TASKS.jsonl`, and `parity check MODEL`",
        ),
        // Without scores, or without a temperature, texts alone do not show a cause.
        (None, _) | (_, None) if significant || of.paired.is_none() => (
            EvalVerdict::Extraction,
            format!("{n} of {all} texts differ, and the files do not say at which temperature"),
            greedy,
        ),
        (Some(_), Some(_)) if of.paired.is_none() => (
            EvalVerdict::Extraction,
            format!(
                "{n} of {all} texts differ; there are neither scores nor log-probabilities to judge them by"
            ),
            greedy,
        ),
        _ => return None,
    };
    let todo = vec![todo.to_owned()];
    Some(EvalFinding { verdict, headline, why, examples: examples.collect(), todo })
}

/// Returns the number of characters after which two texts differ.
fn shared_characters(pair: &SamplePair<'_>) -> usize {
    let a = pair.0.text.as_deref().unwrap_or("");
    let b = pair.1.text.as_deref().unwrap_or("");
    a.trim().chars().zip(b.trim().chars()).take_while(|(x, y)| x == y).count()
}
