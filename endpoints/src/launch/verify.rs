//! Compares the settings of a running server with the requested ones.

use std::time::Duration;

use registry::scalar::Scalar;
use registry::sheet::SettingsReport;
use registry::sheet::versions::Version;
use registry::table::TextTable;
use serde_json::{Value, json};

use super::error::LaunchError;
use super::plan::PlannedLaunch;
use crate::connect;
use crate::json::find;
use crate::options::EndpointOptions;

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
#[derive(Debug)]
struct SettingComparison {
    name: String,
    asked: String,
    in_force: String,
    verdict: SettingStatus,
}

/// Comparison of a running server with a planned launch.
#[derive(Debug)]
pub struct SettingComparisons {
    engine: String,
    url: String,
    lines: Vec<SettingComparison>,
}

/// Asks a server at `url` what is in force, and compares that with the launch. The key of the server is sent if there is one.
/// `note` takes the reason why an optional report is missing.
pub fn verify(
    launched: &PlannedLaunch,
    url: &str,
    key: Option<String>,
    note: &dyn Fn(&str),
) -> Result<SettingComparisons, LaunchError> {
    let engine = launched.sheet.engine.clone();
    if launched.sheet.reports.is_empty() {
        return Err(LaunchError::Reports { engine });
    }
    let options = EndpointOptions {
        key,
        answer: ANSWER,
        most_bytes: MOST_BYTES,
        ..EndpointOptions::default()
    };
    let mut lines = Vec::new();
    for report in &launched.sheet.reports {
        match connect::report(url, &report.path, &options) {
            Ok(answer) => compare(launched, report, &answer, &mut lines),
            Err(error) if report.optional => {
                note(&format!("`{}` tells nothing: {error}", report.path));
                compare(launched, report, &Value::Null, &mut lines);
            }
            Err(error) => return Err(error.into()),
        }
    }
    add_unreported(launched, &mut lines);
    Ok(SettingComparisons { engine, url: url.trim_end_matches('/').to_owned(), lines })
}

impl SettingComparisons {
    /// True if a value in force is another one than the launch has.
    pub fn differs(&self) -> bool {
        self.lines.iter().any(|line| line.verdict == SettingStatus::Differs)
    }

    /// Returns the comparison as JSON.
    pub fn json(&self) -> Value {
        let rows = self.lines.iter().map(|line| {
            json!({ "name": line.name, "asked": line.asked, "in_force": line.in_force, "verdict": line.verdict.word().to_lowercase() })
        });
        json!({
            "schema": "onboard-launch-verify/1",
            "engine": self.engine,
            "url": self.url,
            "agrees": !self.differs(),
            "settings": rows.collect::<Vec<_>>(),
        })
    }

    /// Returns the comparison as a table.
    pub fn text(&self) -> String {
        let mut table = TextTable::new(&[]);
        table.row(["setting", "asked", "in force", ""]);
        for line in &self.lines {
            table.row(
                [&line.name, &line.asked, &line.in_force, line.verdict.word()]
                    .map(ToString::to_string),
            );
        }
        table.plain("")
    }
}

/// Compares the fields of one answer.
fn compare(
    launched: &PlannedLaunch,
    report: &SettingsReport,
    answer: &Value,
    lines: &mut Vec<SettingComparison>,
) {
    for (name, path) in &report.fields {
        let value = find(answer, path).unwrap_or(&Value::Null);
        let in_force = shown(value);
        let Some((expected, verdict)) = compare_setting(launched, name, value) else { continue };
        // A later answer replaces an earlier one that does not report the value.
        if let Some(line) = lines.iter_mut().find(|line| line.name == *name) {
            if line.verdict == SettingStatus::Unreported {
                *line =
                    SettingComparison { name: name.clone(), asked: expected, in_force, verdict };
            }
            continue;
        }
        lines.push(SettingComparison { name: name.clone(), asked: expected, in_force, verdict });
    }
}

/// Compares an actual value with the requested one, and returns both; none for a setting that was not
/// chosen.
fn compare_setting(
    launched: &PlannedLaunch,
    name: &str,
    value: &Value,
) -> Option<(String, SettingStatus)> {
    let text = value.as_str().unwrap_or_default();
    match name {
        "version" => {
            let version = Version::parse(text);
            let known = launched.sheet.versions.as_ref().zip(version.as_ref());
            let expected = launched.sheet.versions.as_ref().map(ToString::to_string);
            let same = known.is_none_or(|(range, version)| range.contains(version));
            Some((expected.unwrap_or_else(|| "any".to_owned()), status(value, same)))
        }
        "class" => {
            Some((launched.architecture.clone(), status(value, text == launched.architecture)))
        }
        "model" => {
            let same = last_part(text) == last_part(&launched.model);
            Some((launched.model.clone(), status(value, same)))
        }
        _ => {
            let chosen = launched.outcome.settings.iter().find(|chosen| chosen.name == name)?;
            let setting = launched.sheet.settings.get(name)?;
            let expected = setting.spell(&chosen.value);
            let same = match (&chosen.value, value) {
                (Scalar::Int(_) | Scalar::Float(_), Value::Number(n)) => {
                    n.as_f64().zip(chosen.value.as_f64()).is_some_and(|(a, b)| (a - b).abs() < 1e-9)
                }
                (Scalar::Bool(flag), Value::Bool(other)) => flag == other,
                _ => shown(value).trim_start_matches("torch.") == expected,
            };
            Some((expected, status(value, same)))
        }
    }
}

/// Returns the status of a value in force.
fn status(value: &Value, agrees: bool) -> SettingStatus {
    match (value, agrees) {
        (Value::Null, _) => SettingStatus::Unreported,
        (_, true) => SettingStatus::Agrees,
        (_, false) => SettingStatus::Differs,
    }
}

/// Returns the last part of a path.
fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or("")
}

/// Adds settings that no answer reports: those that were chosen, and the class in use.
fn add_unreported(launched: &PlannedLaunch, lines: &mut Vec<SettingComparison>) {
    for chosen in &launched.outcome.settings {
        if let Some(setting) = launched.sheet.settings.get(&chosen.name).filter(|s| s.passes()) {
            add_line(lines, &chosen.name, setting.spell(&chosen.value));
        }
    }
    add_line(lines, "class", launched.architecture.clone());
}

/// Adds a line for a value that no answer reports, unless there is one.
fn add_line(lines: &mut Vec<SettingComparison>, name: &str, expected: String) {
    if !lines.iter().any(|line| line.name == name) {
        lines.push(SettingComparison {
            name: name.to_owned(),
            asked: expected,
            in_force: "-".to_owned(),
            verdict: SettingStatus::Unreported,
        });
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}
