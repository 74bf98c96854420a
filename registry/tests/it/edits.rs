//! Configs of fixtures with one value changed. A config that the specs cannot run is refused by name, and any
//! other runs as in the reference.

use std::path::Path;

use onboard_spec::config::Config;
use onboard_spec::diag::Finding;
use onboard_spec::library::Library;
use onboard_spec::model::Model;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;
use serde_json::{Value, json};

/// Change of a value.
type Edit<'a> = &'a dyn Fn(&Value) -> Value;

/// The fixture's model with the value at `pointer` replaced by what `edit` makes of it.
fn edited(
    fixture: &str,
    pointer: &str,
    edit: impl Fn(&Value) -> Value,
) -> Result<Model, Vec<Finding>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
    let mut json: Value =
        serde_json::from_slice(&fs_err::read(path.join("config.json")).unwrap()).unwrap();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = json.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    let old = parent.get(key).cloned().unwrap_or(Value::Null);
    parent.insert(key.to_owned(), edit(&old));
    let config = Config::parse("config.json", &json.to_string()).unwrap();
    let library = Library::builtin();
    let spec = library.load(library.find(&config)[0], &[]).unwrap();
    resolve(&spec, &config, &OpSet::builtin()).map(|(model, _)| model)
}

#[test]
fn what_a_spec_cannot_run_is_refused_by_name() {
    let cases: [(&str, &str, Edit<'_>, &str); 6] = [
        // What the spec takes for granted.
        ("gemma", "/use_bidirectional_attention", &|_| json!(true), "use_bidirectional_attention"),
        // One factor too many for the rotated dims.
        ("phi3", "/rope_parameters/long_factor", &longer, "long_factor"),
        ("phi3", "/rope_parameters/short_factor", &longer, "short_factor"),
        // More than all dims cannot be rotated.
        (
            "gemma4_text",
            "/rope_parameters/full_attention/partial_rotary_factor",
            &|_| json!(1.5),
            "partial_rotary_factor",
        ),
        ("hunyuan_v1_moe", "/rope_parameters/rope_type", &|_| json!("dynamicx"), "dynamicx"),
        ("hunyuan_v1_dense", "/rope_parameters/rope_type", &|_| json!("dynamicx"), "dynamicx"),
    ];
    for (fixture, pointer, edit, words) in cases {
        let findings = edited(fixture, pointer, edit).err();
        let findings = findings.unwrap_or_else(|| panic!("{fixture} runs with another {pointer}"));
        assert!(format!("{findings:?}").contains(words), "{fixture} {pointer}: {findings:?}");
    }
}

fn longer(list: &Value) -> Value {
    let mut list = list.as_array().unwrap().clone();
    list.push(json!(2.0));
    Value::Array(list)
}

/// `alpha` belongs to `dynamic` alone; another kind scales as it always does.
#[test]
fn alpha_is_passed_over_by_other_kinds_of_rope() {
    for fixture in ["hunyuan_v1_moe", "hunyuan_v1_dense"] {
        let plain =
            frequencies_with(fixture, &json!({"rope_type": "default", "rope_theta": 10000.0}));
        let linear =
            json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0, "alpha": 1000.0});
        let quarter: Vec<f32> = plain.iter().map(|f| f / 4.0).collect();
        assert_eq!(frequencies_with(fixture, &linear), quarter, "{fixture}");
    }
}

fn frequencies_with(fixture: &str, rope: &Value) -> Vec<f32> {
    let model = edited(fixture, "/rope_parameters", |_| rope.clone()).unwrap();
    model.ropes[0].inv_freq.clone()
}

#[test]
fn defaults_of_an_inner_config_belong_to_one_spec() {
    let mut library = Library::builtin();
    let parent = library.load("gemma3", &[]).unwrap();
    assert!(!parent.defaults.is_empty());
    library.add_text("child.yaml", "spec: 1\nname: child\nmatches: [Child]\nextends: gemma3\n");
    let child = library.load("child", &[]).unwrap();
    assert!(child.defaults.is_empty(), "{:?}", child.defaults);
}
