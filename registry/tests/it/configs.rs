//! Any value under any config key gives findings or a model.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use onboard_spec::config::Config;
use onboard_spec::library::Library;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;
use proptest::prelude::*;

/// The built-in specs, parsed once for all cases.
static LIBRARY: LazyLock<Library> = LazyLock::new(Library::builtin);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
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
        let names = LIBRARY.find(&config);
        let spec = LIBRARY.load(names[0], &[]).expect("built-in specs load");
        let _unused = resolve(&spec, &config, &OpSet::builtin());
    }
}
