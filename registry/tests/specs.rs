//! Every built-in spec against the checkpoints of `fixtures`: it resolves, without a warning,
//! to exactly the tensors that the reference library saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onboard_spec::check::check_weights;
use onboard_spec::config::Config;
use onboard_spec::diag::{Finding, Severity};
use onboard_spec::library::Library;
use onboard_spec::model::Model;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;
use proptest::prelude::*;

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
    let names = library.find(&config);
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
                // Each weight is there by its rule or name, and each tensor is used or ignored.
                let findings = check_weights(&model, &tensors(&weights));
                if !findings.is_empty() {
                    wrong.push(format!("{}\n{}", dir.display(), told(&findings)));
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

/// The faulty models of `fixtures/hostile/models`: a good model, and copies with one fault each. `expect.txt`
/// is the key, name or file that a message has to name.
#[test]
fn faulty_models_are_told_what_is_wrong() {
    for name in [
        "config_huge_layers",
        "config_long_list",
        "config_missing",
        "config_missing_key",
        "config_text_for_number",
        "config_unknown_word",
        "extra_tensor",
        "good",
        "missing_tensor",
        "not_json",
        "wrong_shape",
    ] {
        let dir = fixtures().join("hostile/models").join(name);
        let expected = fs_err::read_to_string(dir.join("expect.txt")).expect("what to expect");
        let findings = match open(&dir.join("config.json")) {
            Ok((model, _)) => check_weights(&model, &tensors(&dir.join("model.safetensors"))),
            Err(findings) => findings,
        };
        let errors: Vec<Finding> =
            findings.into_iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert_eq!(errors.is_empty(), name == "good", "{name}: {}", told(&errors));
        assert!(
            errors.is_empty() || told(&errors).contains(expected.trim()),
            "{name}: {}",
            told(&errors)
        );
    }
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-3_i64..40).prop_map(Into::into),
        prop::sample::select(vec![0.0, -1.5, 0.5, 1e308, 1e-308]).prop_map(Into::into),
        "[a-z_]{0,8}".prop_map(Into::into),
        Just(serde_json::json!([])),
        Just(serde_json::json!(["full_attention", 3, null])),
        Just(serde_json::json!({"rope_type": "yarn", "factor": 4, "rope_theta": 1.0})),
        Just(serde_json::json!({"type": "dynamic", "factor": 1e300, "rope_theta": 1e-300})),
        Just(
            serde_json::json!({"rope_type": "llama3", "factor": 1, "low_freq_factor": 1, "high_freq_factor": 1})
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Checks that any value under any config key gives findings or a model. No value causes a panic or a
    /// memory allocation of the claimed size.
    #[test]
    fn no_config_panics(family in any::<prop::sample::Index>(), changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4)) {
        let mut dirs: Vec<PathBuf> = fs_err::read_dir(fixtures())
            .expect("fixtures")
            .map(|entry| entry.expect("an entry").path().join("config.json"))
            .filter(|path| path.exists())
            .collect();
        dirs.sort();
        let text = fs_err::read_to_string(family.get(&dirs)).expect("a config");
        let mut config: serde_json::Value = serde_json::from_str(&text).expect("a good config");
        let object = config.as_object_mut().expect("an object");
        let keys: Vec<String> = object.keys().filter(|key| *key != "architectures").cloned().collect();
        for (key, value) in changes {
            object.insert(key.get(&keys).clone(), value);
        }
        let config = Config::parse("config.json", &config.to_string()).expect("still an object");
        let library = Library::builtin();
        let names = library.find(&config);
        let spec = library.load(names[0], &[]).expect("built-in specs load");
        let _unused = resolve(&spec, &config, &OpSet::builtin());
    }
}
