//! Rotary tables of configs that leave them to the class, or rotate an odd number of dims, against
//! those that the reference computes (`fixtures/class_tables.py`).

use std::path::Path;

use onboard_spec::config::Config;
use onboard_spec::library::Library;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;
use serde_json::Value;

#[test]
fn tables_are_those_of_the_class() {
    let library = Library::builtin();
    let mut seen = 0;
    for line in include_str!("../data/class_tables.jsonl").lines() {
        let case: Value = serde_json::from_str(line).expect("a case");
        let fixture = case["fixture"].as_str().expect("a fixture");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
        let text = fs_err::read_to_string(path.join("config.json")).expect("a config");
        let mut config: Value = serde_json::from_str(&text).expect("a config is JSON");
        let entries = config.as_object_mut().expect("an object");
        for (key, value) in case["settings"].as_object().expect("settings") {
            entries.remove(key);
            if !value.is_null() {
                entries.insert(key.clone(), value.clone());
            }
        }
        let config = Config::parse("config.json", &config.to_string()).expect("a config");
        let spec = library.load(library.find(&config)[0], &[]).expect("a spec");
        let (model, _) = resolve(&spec, &config, &OpSet::builtin())
            .unwrap_or_else(|findings| panic!("{fixture}: {findings:?}"));
        for (name, expected) in case["tables"].as_object().expect("tables") {
            let what = format!("{name} of {fixture} with {}", case["settings"]);
            let table = model.ropes.iter().find(|table| table.name == *name).expect("a table");
            let frequencies = expected["inv"].as_array().expect("frequencies");
            assert_eq!(table.dim, 2 * frequencies.len(), "{what}");
            for (ours, frequency) in table.inv_freq.iter().zip(frequencies) {
                let bits = frequency.as_i64().expect("bits");
                let apart = (i64::from(ours.to_bits()) - bits).abs();
                assert!(apart <= 1, "{what}: {ours} and bits {bits}");
            }
            let factor = expected["factor"].as_f64().expect("a factor");
            assert!((table.attention_factor - factor).abs() < 1e-12, "{what}");
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen} tables");
}
