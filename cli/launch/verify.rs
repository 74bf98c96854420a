//! Settings that a running server has in force, beside those that were asked for.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use registry::scalar::Scalar;
use registry::sheet::Report;
use registry::sheet::versions::Version;
use serde_json::{Value, json};

use super::Launched;
use crate::text::Table;
use crate::{Ended, term};

/// The longest answer that is read.
const MOST_BYTES: u64 = 16 << 20;
/// Times that a server may take to accept, and to answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);
/// Characters of a server's own words in a message.
const SHOWN: usize = 300;

/// Result of comparing a value in force with the one asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Agrees,
    Differs,
    /// The server does not say.
    Unsaid,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "DIFFERS",
            Self::Unsaid => "not said",
        }
    }
}

/// One line of the comparison.
struct Line {
    name: String,
    asked: String,
    in_force: String,
    verdict: Verdict,
}

/// Asks a server, prints the comparison, and ends with 1 where something differs.
pub(super) fn run(launched: &Launched, url: &str, as_json: bool) -> Result<Ended> {
    ensure!(
        !launched.sheet.reports.is_empty(),
        "the sheet of `{}` has no `reports`: nothing says where a server tells what is in force",
        launched.sheet.engine
    );
    let base = address(url)?;
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT))
        .timeout_global(Some(ANSWER))
        .build()
        .new_agent();
    let mut lines = Vec::new();
    for report in &launched.sheet.reports {
        match get(&agent, &format!("{base}{}", report.path)) {
            Ok(answer) => compare(launched, report, &answer, &mut lines),
            Err(error) if report.optional => {
                term::note(&format!("warning: `{}` tells nothing: {error:#}", report.path));
                compare(launched, report, &Value::Null, &mut lines);
            }
            Err(error) => return Err(error),
        }
    }
    unsaid(launched, &mut lines);
    let differs = lines.iter().any(|line| line.verdict == Verdict::Differs);
    if as_json {
        let rows = lines.iter().map(|line| {
            json!({ "name": line.name, "asked": line.asked, "in_force": line.in_force, "verdict": line.verdict.word().to_lowercase() })
        });
        let whole = json!({
            "schema": "onboard-launch-verify/1",
            "engine": launched.sheet.engine,
            "url": base,
            "agrees": !differs,
            "settings": rows.collect::<Vec<_>>(),
        });
        term::print(&serde_json::to_string_pretty(&whole)?)?;
    } else {
        let mut table = Table::new(&[]);
        table.row(["setting", "asked", "in force", ""]);
        for line in &lines {
            table.row(
                [&line.name, &line.asked, &line.in_force, line.verdict.word()]
                    .map(ToString::to_string),
            );
        }
        term::print(table.plain("").trim_end())?;
    }
    Ok(if differs { Ended::Differs } else { Ended::Well })
}

/// The address without a slash at its end.
fn address(url: &str) -> Result<String> {
    let plain = url.starts_with("http://") || url.starts_with("https://");
    ensure!(
        plain && !url.contains(['?', '#', ' ']),
        "`{url}` is no address of a server; expected http://HOST:PORT"
    );
    Ok(url.trim_end_matches('/').to_owned())
}

/// The JSON that an address answers with.
fn get(agent: &ureq::Agent, url: &str) -> Result<Value> {
    let mut answer = agent.get(url).call().with_context(|| format!("`{url}` does not answer"))?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(MOST_BYTES).read_to_vec();
    let body = body.with_context(|| {
        format!("the answer of `{url}` breaks off, or has more than {MOST_BYTES} bytes")
    })?;
    if status.is_redirection() {
        let to =
            answer.headers().get("location").and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
        bail!("`{url}` redirects to `{to}`; give the address of the server itself");
    }
    let words: String = String::from_utf8_lossy(&body)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(SHOWN)
        .collect();
    ensure!(status.is_success(), "`{url}` answers {status}: {}", words.trim());
    serde_json::from_slice(&body).with_context(|| {
        format!(
            "`{url}` answers no JSON, so it may be another server; it begins with `{}`",
            words.trim()
        )
    })
}

/// Compares the fields of one answer.
fn compare(launched: &Launched, report: &Report, answer: &Value, lines: &mut Vec<Line>) {
    for (name, path) in &report.fields {
        let found = find(answer, path).unwrap_or(&Value::Null);
        let in_force = shown(found);
        let Some((asked, verdict)) = judged(launched, name, found) else { continue };
        // An answer that says more than one before it counts instead.
        if let Some(line) = lines.iter_mut().find(|line| line.name == *name) {
            if line.verdict == Verdict::Unsaid {
                *line = Line { name: name.clone(), asked, in_force, verdict };
            }
            continue;
        }
        lines.push(Line { name: name.clone(), asked, in_force, verdict });
    }
}

/// Compares a value in force with the one asked for, and gives both; none for a setting that nobody chose.
fn judged(launched: &Launched, name: &str, found: &Value) -> Option<(String, Verdict)> {
    let agree = |agrees: bool| match (found, agrees) {
        (Value::Null, _) => Verdict::Unsaid,
        (_, true) => Verdict::Agrees,
        (_, false) => Verdict::Differs,
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

/// Adds what no answer is about: settings that were chosen, and the class in use.
fn unsaid(launched: &Launched, lines: &mut Vec<Line>) {
    let mut add = |name: &str, asked: String| {
        if !lines.iter().any(|line| line.name == name) {
            let (name, in_force) = (name.to_owned(), "-".to_owned());
            lines.push(Line { name, asked, in_force, verdict: Verdict::Unsaid });
        }
    };
    for chosen in &launched.outcome.settings {
        if let Some(setting) = launched.sheet.settings.get(&chosen.name).filter(|s| s.passes()) {
            add(&chosen.name, setting.spell(&chosen.value));
        }
    }
    add("class", launched.architecture.clone());
}

/// A value inside an answer, by a path with dots; numbers are places in lists.
fn find<'v>(answer: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(answer, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    })
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_paths() {
        let answer = json!({ "data": [{ "root": "m" }], "a.b": 1 });
        assert_eq!(find(&answer, "data.0.root"), Some(&json!("m")));
        assert_eq!(find(&answer, "data.1.root"), None);
        assert_eq!(find(&answer, "data.x"), None);
    }

    #[test]
    fn addresses_are_those_of_servers() {
        assert_eq!(address("http://h:1/").unwrap(), "http://h:1");
        for bad in ["h:1", "ftp://h", "http://h?x=1", ""] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
