//! Compares the settings of a running server with the requested ones.

use std::time::Duration;

use anyhow::{Result, ensure};
use endpoints::{EndpointOptions, find};
use registry::scalar::Scalar;
use registry::sheet::SettingsReport;
use registry::sheet::versions::Version;
use serde_json::{Value, json};

use super::PlannedLaunch;
use crate::text::TextTable;
use crate::{CommandOutcome, engines, term};

/// Maximum size of an answer.
const MOST_BYTES: u64 = 16 << 20;
/// Time limit of an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Result of comparing an actual value with the requested one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SettingStatus {
    Agrees,
    Differs,
    /// The server does not report the value.
    Unreported,
}

impl SettingStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "DIFFERS",
            Self::Unreported => "not said",
        }
    }
}

/// Line of the comparison.
struct SettingComparison {
    name: String,
    asked: String,
    in_force: String,
    verdict: SettingStatus,
}

/// Queries a server, prints the comparison, and exits with 1 if something differs.
pub(super) fn run(launched: &PlannedLaunch, url: &str, as_json: bool) -> Result<CommandOutcome> {
    ensure!(
        !launched.sheet.reports.is_empty(),
        "the sheet of `{}` has no `reports`: nothing says where a server tells what is in force",
        launched.sheet.engine
    );
    let options = EndpointOptions {
        key: engines::api_key()?,
        answer: ANSWER,
        most_bytes: MOST_BYTES,
        ..EndpointOptions::default()
    };
    let mut lines = Vec::new();
    for report in &launched.sheet.reports {
        match endpoints::report(url, &report.path, &options) {
            Ok(answer) => compare(launched, report, &answer, &mut lines),
            Err(error) if report.optional => {
                term::note(&format!("warning: `{}` tells nothing: {error}", report.path));
                compare(launched, report, &Value::Null, &mut lines);
            }
            Err(error) => return Err(error.into()),
        }
    }
    add_unreported(launched, &mut lines);
    let differs = lines.iter().any(|line| line.verdict == SettingStatus::Differs);
    if as_json {
        let rows = lines.iter().map(|line| {
            json!({ "name": line.name, "asked": line.asked, "in_force": line.in_force, "verdict": line.verdict.word().to_lowercase() })
        });
        let whole = json!({
            "schema": "onboard-launch-verify/1",
            "engine": launched.sheet.engine,
            "url": url.trim_end_matches('/'),
            "agrees": !differs,
            "settings": rows.collect::<Vec<_>>(),
        });
        term::print(&serde_json::to_string_pretty(&whole)?)?;
    } else {
        let mut table = TextTable::new(&[]);
        table.row(["setting", "asked", "in force", ""]);
        for line in &lines {
            table.row(
                [&line.name, &line.asked, &line.in_force, line.verdict.word()]
                    .map(ToString::to_string),
            );
        }
        term::print(table.plain("").trim_end())?;
    }
    Ok(if differs { CommandOutcome::Differs } else { CommandOutcome::Ok })
}

/// Compares the fields of one answer.
fn compare(
    launched: &PlannedLaunch,
    report: &SettingsReport,
    answer: &Value,
    lines: &mut Vec<SettingComparison>,
) {
    for (name, path) in &report.fields {
        let found = find(answer, path).unwrap_or(&Value::Null);
        let in_force = shown(found);
        let Some((asked, verdict)) = compare_setting(launched, name, found) else { continue };
        // A later answer replaces an earlier one that does not report the value.
        if let Some(line) = lines.iter_mut().find(|line| line.name == *name) {
            if line.verdict == SettingStatus::Unreported {
                *line = SettingComparison { name: name.clone(), asked, in_force, verdict };
            }
            continue;
        }
        lines.push(SettingComparison { name: name.clone(), asked, in_force, verdict });
    }
}

/// Compares an actual value with the requested one, and returns both; none for a setting that was not
/// chosen.
fn compare_setting(
    launched: &PlannedLaunch,
    name: &str,
    found: &Value,
) -> Option<(String, SettingStatus)> {
    let agree = |agrees: bool| match (found, agrees) {
        (Value::Null, _) => SettingStatus::Unreported,
        (_, true) => SettingStatus::Agrees,
        (_, false) => SettingStatus::Differs,
    };
    let text = found.as_str().unwrap_or_default();
    match name {
        "version" => {
            let version = Version::parse(text);
            let known = launched.sheet.versions.as_ref().zip(version.as_ref());
            let asked = launched.sheet.versions.as_ref().map(ToString::to_string);
            let same = known.is_none_or(|(range, version)| range.contains(version));
            Some((asked.unwrap_or_else(|| "any".to_owned()), agree(same)))
        }
        "class" => Some((launched.architecture.clone(), agree(text == launched.architecture))),
        "model" => {
            let last =
                |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or("").to_owned();
            Some((launched.model.clone(), agree(last(text) == last(&launched.model))))
        }
        _ => {
            let chosen = launched.outcome.settings.iter().find(|chosen| chosen.name == name)?;
            let setting = launched.sheet.settings.get(name)?;
            let asked = setting.spell(&chosen.value);
            let same = match (&chosen.value, found) {
                (Scalar::Int(_) | Scalar::Float(_), Value::Number(n)) => {
                    n.as_f64().zip(chosen.value.as_f64()).is_some_and(|(a, b)| (a - b).abs() < 1e-9)
                }
                (Scalar::Bool(flag), Value::Bool(other)) => flag == other,
                _ => shown(found).trim_start_matches("torch.") == asked,
            };
            Some((asked, agree(same)))
        }
    }
}

/// Adds settings that no answer reports: those that were chosen, and the class in use.
fn add_unreported(launched: &PlannedLaunch, lines: &mut Vec<SettingComparison>) {
    let mut add = |name: &str, asked: String| {
        if !lines.iter().any(|line| line.name == name) {
            let name = name.to_owned();
            let in_force = "-".to_owned();
            lines.push(SettingComparison {
                name,
                asked,
                in_force,
                verdict: SettingStatus::Unreported,
            });
        }
    };
    for chosen in &launched.outcome.settings {
        if let Some(setting) = launched.sheet.settings.get(&chosen.name).filter(|s| s.passes()) {
            add(&chosen.name, setting.spell(&chosen.value));
        }
    }
    add("class", launched.architecture.clone());
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}
