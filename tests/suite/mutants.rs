//! Checks that every text edit of `mutants.txt` is caught, and that the first divergence is at the expected
//! place.

use libtest_mimic::Trial;

use crate::tool::{fixture, onboard, root};
use crate::trials;

/// Expected outcome of a mutant.
enum Fate {
    /// Exit code 1, with the first local divergence at this tap or state.
    Diverges(String),
    /// Exit code 1, with the first divergence at this tap or state, errors of earlier ops included: no op before it is
    /// judged by itself.
    Accumulates(String),
    /// Exit code 2, with this text in the message.
    Refused(String),
}

struct Mutant {
    bug: String,
    fixture: String,
    /// Name of the spec.
    spec: String,
    /// Dtype of the run to compare.
    dtype: String,
    edits: Vec<(String, String)>,
    fate: Fate,
}

/// Returns the mutants of the file, by their numbers and bugs.
fn mutants() -> impl Iterator<Item = (String, Mutant)> {
    let text = include_str!("mutants.txt");
    let parts = text.split("\n\n").filter(|part| part.contains("bug: ")).map(parse);
    parts.enumerate().map(|(n, mutant)| (format!("{} {}", n + 1, mutant.bug), mutant))
}

pub(crate) fn trials() -> Vec<Trial> {
    let names: Vec<String> = mutants().map(|(name, _)| name).collect();
    assert!(names.len() >= 10);
    trials::each("mutants", names, |name| {
        let (_, mutant) = mutants().find(|(known, _)| known == name).unwrap();
        escape(&mutant).unwrap_or_else(|how| panic!("{how}"));
    })
}

/// Describes how a mutant escapes, if it does.
fn escape(mutant: &Mutant) -> Result<(), String> {
    let path = root().join("registry/specs").join(format!("{}.yaml", mutant.spec));
    let mut spec = fs_err::read_to_string(path).unwrap();
    for (find, replace) in &mutant.edits {
        assert!(spec.contains(find), "{}: the spec no longer has `{find}`", mutant.bug);
        spec = spec.replace(find, replace);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mutant.yaml");
    fs_err::write(&file, spec).unwrap();
    let mut command = onboard();
    command.args(["parity", "check", "--dtype", &mutant.dtype, "--json", "--spec"]);
    let out = command.arg(&file).arg(fixture(&mutant.fixture)).output().unwrap();
    let report = String::from_utf8_lossy(&out.stdout);
    let errors = String::from_utf8_lossy(&out.stderr);
    let field = match &mutant.fate {
        Fate::Accumulates(_) => "first",
        Fate::Diverges(_) | Fate::Refused(_) => "first_local",
    };
    let first = first_divergence(&report, field);
    let caught = match &mutant.fate {
        Fate::Diverges(place) | Fate::Accumulates(place) => {
            out.status.code() == Some(1) && first.as_ref() == Some(place)
        }
        Fate::Refused(word) => out.status.code() == Some(2) && errors.contains(word),
    };
    if caught {
        return Ok(());
    }
    let code = out.status.code();
    Err(format!("{} ({}): exit {code:?}, first at {first:?}\n{errors}", mutant.bug, mutant.fixture))
}

/// Returns the subject of the first divergence of a report.
fn first_divergence(report: &str, field: &str) -> Option<String> {
    let report: serde_json::Value = serde_json::from_str(report).ok()?;
    // Divergences of the model itself first, then those of its head.
    let mut subjects = report["runs"].as_array()?.iter().map(|run| &run[field]["subject"]);
    let subject = subjects.find(|subject| !subject.is_null())?;
    let name = subject["name"].as_str().unwrap_or_default();
    Some(match subject["kind"].as_str()? {
        "state" => format!("state {name}"),
        "tap" => name.to_owned(),
        other => other.to_owned(),
    })
}

fn parse(text: &str) -> Mutant {
    let mut bug = None;
    let mut fixture = None;
    let mut spec = None;
    let mut fate = None;
    let mut dtype = "f32".to_owned();
    let mut finds = Vec::new();
    let mut replaces = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("bug:", words) => bug = Some(words.to_owned()),
            ("fixture:", name) => fixture = Some(name.to_owned()),
            ("spec:", name) => spec = Some(name.to_owned()),
            ("dtype:", name) => name.clone_into(&mut dtype),
            ("diverges:", place) => fate = Some(Fate::Diverges(place.to_owned())),
            ("accumulates:", place) => fate = Some(Fate::Accumulates(place.to_owned())),
            ("refused:", words) => fate = Some(Fate::Refused(words.to_owned())),
            // A line may have escaped ends of lines.
            ("-", line) => finds.push(line.replace("\\n", "\n")),
            ("+", line) => replaces.push(line.replace("\\n", "\n")),
            _ => panic!("not a line of a mutant: `{line}`"),
        }
    }
    assert_eq!(finds.len(), replaces.len(), "every `-` has its `+`: {text}");
    let fixture = fixture.expect("a mutant has a `fixture:`");
    Mutant {
        bug: bug.expect("a mutant has a `bug:`"),
        spec: spec.unwrap_or_else(|| fixture.clone()),
        fixture,
        dtype,
        edits: finds.into_iter().zip(replaces).collect(),
        fate: fate.expect("a mutant has a fate"),
    }
}
