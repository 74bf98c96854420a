//! Formats a launch as text: a command for a shell, with the reasons as comments.

use std::fmt::Write as _;

use registry::quantity::bytes;
use registry::scalar::Scalar;
use registry::sheet::apply::{PlannedValue, RuleMessage, ValueOrigin};
use registry::sheet::{SourceReference, shown};
use registry::shell::{shell_line, shell_word};
use registry::table::TextTable;

use super::command;
use super::plan::PlannedLaunch;

/// Returns the whole text.
pub fn text(launched: &PlannedLaunch) -> String {
    let mut text = header(launched);
    text.push_str(&shell(launched));
    text.push_str(&reasons(launched));
    text.push_str(&memory(launched));
    let outcome = &launched.outcome;
    for (title, all) in [("facts", &outcome.facts), ("warnings", &outcome.warnings)] {
        if !all.is_empty() {
            let _ = writeln!(text, "\n# {title}");
            for message in all {
                let _ = writeln!(text, "#   {}", message_text(message));
            }
        }
    }
    text
}

fn header(launched: &PlannedLaunch) -> String {
    let gpu = &launched.asked.gpu;
    let sm = gpu.sm.map(|sm| format!(", SM {sm}")).unwrap_or_default();
    let mib = shown(&Scalar::Int(gpu.memory));
    let ranks = registry::quantity::plural(launched.asked.tp as usize, "rank");
    let mut text = format!(
        "# {} {}, {ranks} of {} ({mib} MiB{sm})\n",
        launched.sheet.engine, launched.version.name, gpu.name
    );
    if !launched.version.verified {
        let _ = writeln!(text, "# {}", launched.unverified());
    }
    text
}

/// Formats the command over several lines.
fn shell(launched: &PlannedLaunch) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut first: Vec<String> = command::environment(launched)
        .into_iter()
        .map(|(name, value)| format!("{name}={}", shell_word(&value)))
        .collect();
    first.extend(launched.sheet.command.iter().map(|word| shell_word(word)));
    lines.push(first.join(" "));
    let model = command::model_words(launched, &launched.model);
    let flags = launched.outcome.settings.iter().map(|chosen| command::flag(launched, chosen));
    for words in std::iter::once(model).chain(flags).filter(|words| !words.is_empty()) {
        lines.push(shell_line(&words));
    }
    lines.join(" \\\n  ") + "\n"
}

fn reasons(launched: &PlannedLaunch) -> String {
    let mut table = TextTable::new(&[]);
    for chosen in &launched.outcome.settings {
        let Some(setting) = launched.sheet.settings.get(&chosen.name) else { continue };
        let shown = match (&setting.env, setting.words(&chosen.value)) {
            (Some(env), _) => format!("{env}={}", setting.spell(&chosen.value)),
            (None, words) if words.is_empty() => continue,
            (None, words) => words.join(" "),
        };
        let by = match &chosen.by {
            ValueOrigin::User => "you".to_owned(),
            ValueOrigin::Model => "model".to_owned(),
            ValueOrigin::Rule(rule) => rule.clone(),
        };
        let place = chosen.source.as_ref().map(place).unwrap_or_default();
        table.row([shown, by, format!("{}{place}", chosen.why)]);
    }
    let rows = table.plain("#   ");
    if rows.is_empty() { rows } else { format!("\n# flags\n{rows}") }
}

fn memory(launched: &PlannedLaunch) -> String {
    if launched.outcome.plan.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new(&[1]);
    for value in &launched.outcome.plan {
        if value.value == Scalar::Null {
            continue;
        }
        let assumed = if value.assumed { " (assumed)" } else { "" };
        table.row([
            value.name.clone(),
            amount(value),
            format!("{}{assumed}{}", value.why, place(&value.source)),
        ]);
    }
    format!("\n# memory of a rank\n{}", table.plain("#   "))
}

/// Formats a planned value with its unit.
fn amount(value: &PlannedValue) -> String {
    match (value.unit.as_str(), &value.value) {
        ("bytes", number) => match number.as_f64() {
            Some(n) if n >= 0.0 => bytes(n as u64),
            _ => shown(number),
        },
        ("share" | "", number) => shown(number),
        (unit, number) => format!("{} {unit}", shown(number)),
    }
}

/// Formats a text with its rule's name and source.
pub fn message_text(message: &RuleMessage) -> String {
    format!("{}{}", message.text, message.source.as_ref().map(place).unwrap_or_default())
}

/// Formats a refusal.
pub fn refusal(message: &RuleMessage) -> String {
    let source = message.source.as_ref().map(|source| format!("\n  source: {}", source.place));
    format!("refused: {}\n  rule: {}{}", message.text, message.rule, source.unwrap_or_default())
}

fn place(origin: &SourceReference) -> String {
    format!(" [{}]", origin.place)
}
