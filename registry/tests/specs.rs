//! Every built-in spec against the checkpoints of `fixtures`: it resolves, without a warning,
//! to exactly the tensors that the reference library saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use registry::config::Config;
use registry::diag::Finding;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::resolve::resolve;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn told(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let place = finding.at.as_ref().map_or(String::new(), |at| {
            let line = 1 + at.source.text[..at.start].matches('\n').count();
            format!("{}:{line}: ", at.source.path)
        });
        format!(
            "{:?}: {place}{} ({}) {:?}",
            finding.severity, finding.message, finding.label, finding.help
        )
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn open(config: &Path) -> Result<(Model, Vec<Finding>), Vec<Finding>> {
    let config = Config::read(config).map_err(|finding| vec![finding])?;
    let library = Library::builtin();
    let architecture = config.architecture().expect("fixtures name their architecture").to_owned();
    let names = library.find_architecture(&architecture);
    let spec = library.load(names.first().expect("a spec for every fixture"), &[])?;
    resolve(&spec, &config, &OpSet::builtin())
}

/// Names and shapes from the header of a safetensors file.
fn tensors(path: &Path) -> BTreeMap<String, Vec<usize>> {
    let bytes = fs_err::read(path).expect("the fixture has weights");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value =
        serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let entries =
        header.as_object().expect("an object").iter().filter(|(name, _)| *name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let shape = entry["shape"].as_array().expect("a shape").iter();
            (name.clone(), shape.map(|n| n.as_u64().expect("a size") as usize).collect())
        })
        .collect()
}

#[test]
fn every_fixture_resolves_to_its_own_tensors() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for entry in fs_err::read_dir(fixtures()).expect("fixtures") {
        let dir = entry.expect("an entry").path();
        let (config, weights) = (dir.join("config.json"), dir.join("model.safetensors"));
        if !config.exists() || !weights.exists() {
            continue;
        }
        seen += 1;
        match open(&config) {
            Ok((model, warnings)) => {
                if !warnings.is_empty() {
                    wrong.push(format!("{}\n{}", dir.display(), told(&warnings)));
                }
                let expected = tensors(&weights);
                let found: BTreeMap<String, Vec<usize>> = model
                    .graph
                    .weights
                    .iter()
                    .map(|weight| (weight.name.clone(), weight.shape.clone()))
                    .collect();
                if expected != found {
                    let missing: Vec<_> =
                        expected.iter().filter(|(k, v)| found.get(*k) != Some(v)).take(3).collect();
                    let extra: Vec<_> =
                        found.iter().filter(|(k, v)| expected.get(*k) != Some(v)).take(3).collect();
                    wrong
                        .push(format!("{}: stored {missing:?}, declared {extra:?}", dir.display()));
                }
            }
            Err(findings) => wrong.push(format!("{}\n{}", dir.display(), told(&findings))),
        }
    }
    assert!(seen > 20, "only {seen} fixtures");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn real_configs_resolve() {
    let mut wrong = Vec::new();
    for entry in fs_err::read_dir(fixtures().join("configs")).expect("configs") {
        let path = entry.expect("an entry").path();
        let config = if path.is_dir() { path.join("config.json") } else { path.clone() };
        if config.extension().is_none_or(|ext| ext != "json") {
            continue;
        }
        match open(&config) {
            Ok((_, warnings)) if warnings.is_empty() => {}
            Ok((_, findings)) | Err(findings) => {
                wrong.push(format!("{}\n{}", path.display(), told(&findings)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
