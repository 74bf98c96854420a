//! Changes of every text and list of every fixture's `config.json`. A misspelled text, and a list with an
//! item more or less, are refused with the place in the file.
//!
//! `words/unread.txt` names the keys for which the reference takes any text or any length.

use std::path::Path;

use onboard_spec::config::Config;
use onboard_spec::diag::Finding;
use onboard_spec::library::Library;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;
use serde_json::Value;

/// Objects of a config that the graph does not depend on: encoders and how weights are stored.
const BESIDE: [&str; 6] =
    ["vision_config", "audio_config", "vq_config", "quantization_config", "id2label", "label2id"];

/// One value of a config, with the keys and indices that lead to it.
type Path_ = Vec<Step>;

#[derive(Clone, PartialEq)]
enum Step {
    Key(String),
    Item(usize),
}

fn fixtures() -> Vec<std::path::PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut found = Vec::new();
    for folder in [root.clone(), root.join("peer"), root.join("trained"), root.join("configs")] {
        for entry in fs_err::read_dir(folder).expect("fixtures") {
            let path = entry.expect("an entry").path();
            let config = if path.is_dir() { path.join("config.json") } else { path };
            if config.extension().is_some_and(|end| end == "json") && config.exists() {
                found.push(config);
            }
        }
    }
    found.sort();
    found
}

fn open(library: &Library, path: &str, config: &Value) -> Result<Vec<Finding>, Vec<Finding>> {
    let text = serde_json::to_string_pretty(config).expect("a config is JSON");
    let config = Config::parse(path, &text).map_err(|finding| vec![finding])?;
    let names = library.find(&config);
    let Some(name) = names.first() else { return Err(Vec::new()) };
    let spec = library.load(name, &[])?;
    resolve(&spec, &config, &OpSet::builtin()).map(|(_, warnings)| warnings)
}

fn at<'v>(root: &'v mut Value, path: &[Step]) -> &'v mut Value {
    path.iter().fold(root, |value, step| match step {
        Step::Key(key) => &mut value[key.as_str()],
        Step::Item(n) => &mut value[*n],
    })
}

/// Visits every text and list below `value`.
fn visit(value: &Value, path: &mut Path_, found: &mut Vec<(Path_, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if !BESIDE.contains(&key.as_str()) {
                    path.push(Step::Key(key.clone()));
                    visit(inner, path, found);
                    path.pop();
                }
            }
        }
        Value::Array(items) => {
            found.push((path.clone(), value.clone()));
            for (n, item) in items.iter().enumerate() {
                path.push(Step::Item(n));
                visit(item, path, found);
                path.pop();
            }
        }
        Value::String(_) => found.push((path.clone(), value.clone())),
        _ => {}
    }
}

/// The dotted key of a path, without indices.
fn key(path: &[Step]) -> String {
    let keys = path.iter().filter_map(|step| match step {
        Step::Key(key) => Some(key.as_str()),
        Step::Item(_) => None,
    });
    keys.collect::<Vec<_>>().join(".")
}

/// Lines of `unread.txt`: what is changed, a key, and a family, each perhaps `*`; then the reason.
fn unread(what: &str, family: &str, key: &str) -> bool {
    include_str!("words/unread.txt").lines().filter(|line| !line.starts_with('#')).any(|line| {
        let mut words = line.split_whitespace();
        let mut next = || words.next().unwrap_or_default();
        let fits = |pattern: &str, text: &str| onboard_spec::config::matches(pattern, text);
        fits(next(), what) && fits(next(), family) && fits(next(), key)
    })
}

fn refused(findings: &[Finding], path: &str, hint: Option<&str>) -> bool {
    findings.iter().any(|finding| {
        let placed = finding.at.as_ref().is_some_and(|at| at.source.path == path);
        placed
            && hint.is_none_or(|hint| finding.help.as_ref().is_some_and(|help| help.contains(hint)))
    })
}

#[test]
fn misspelled_texts_and_lists_of_other_lengths_are_refused() {
    let library = Library::builtin();
    let mut wrong = Vec::new();
    let (mut texts, mut lists) = (0, 0);
    for config in fixtures() {
        let path = config.display().to_string();
        let family = config.parent().and_then(Path::file_name).expect("a folder").to_string_lossy();
        let text = fs_err::read_to_string(&config).expect("a config");
        // Python writes numbers that JSON does not have.
        let root = serde_json::from_str::<Value>(&text)
            .or_else(|_| serde_json::from_str(&text.replace("Infinity", "1e30")))
            .expect("a config is JSON");
        if root.get("architectures").is_none() {
            continue;
        }
        let mut found = Vec::new();
        visit(&root, &mut Vec::new(), &mut found);
        for (place, value) in found {
            let key = key(&place);
            let mut changes = Vec::new();
            match &value {
                Value::String(word) => {
                    changes.push(("text", Value::from(format!("{word}x")), Some(word.as_str())));
                }
                Value::Array(items) if !items.is_empty() => {
                    let mut longer = items.clone();
                    longer.extend(items.last().cloned());
                    changes.push(("longer", Value::from(longer), None));
                    changes.push(("shorter", Value::from(items[1..].to_vec()), None));
                }
                _ => {}
            }
            for (what, change, hint) in changes {
                if unread(what, &family, &key) {
                    continue;
                }
                if what == "text" {
                    texts += 1;
                } else {
                    lists += 1;
                }
                let mut changed = root.clone();
                *at(&mut changed, &place) = change;
                let told = match open(&library, &path, &changed) {
                    Err(findings) if refused(&findings, &path, hint) => continue,
                    Err(findings) => {
                        let told = findings.iter().map(|finding| {
                            let at = finding.at.as_ref().map_or("", |at| &at.source.path);
                            format!(
                                "\n    {at} {} ({}) {:?}",
                                finding.message, finding.label, finding.help
                            )
                        });
                        format!("refused without its place:{}", told.collect::<String>())
                    }
                    Ok(_) => "taken".to_owned(),
                };
                wrong.push(format!("{what} {family} {key}: {told}"));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    assert!(texts > 300 && lists > 150, "{texts} texts and {lists} lists");
}
