//! Runs `parity check` on the dumps `images` of fixtures: wrappers that were given images, of which the text model gets rows.
//! Faults in what a spec says of them are found.

use libtest_mimic::Trial;

use crate::tool::{fixture, json, parity, run};
use crate::trials;

/// Changes of a model, its fixture, and what is said of it; a check with an empty text ends with a difference.
const FAULTS: &[(&str, &str, &str)] = &[
    ("qwen2_vl", "rope={main: {axes: '[0 if i < 2 else 4 - i for i in range(4)]'}}", ""),
    ("qwen2_vl", "rope={main: {axes: '[0 if i < 3 else 1 for i in range(4)]'}}", ""),
    ("qwen3_vl", "rope={main: {axes: '[(3 - i) % 3 for i in range(4)]'}}", ""),
    ("qwen2_vl", "rope.main.axes=null", "positions have 3 axes; the rotary table `main`"),
    (
        "qwen3_vl",
        "layers.beside=0",
        "rows are given behind 1 layers; `qwen3_vl_text` adds rows behind 0",
    ),
    (
        "qwen2_vl",
        "rope={main: {axes: '[0 for i in range(2)]'}}",
        "expected 4 numbers from 0 to 7, one for each frequency",
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = trials::each("images", names(), agrees_with_its_reference);
    let faults: Vec<String> =
        FAULTS.iter().map(|(name, change, _)| format!("{name} with {change}")).collect();
    all.extend(trials::each("images::faults", faults, a_fault_is_found));
    all.push(trials::one("images::kinds", rows_of_all_kinds_are_there));
    all
}

/// Returns the fixtures with such a dump, as paths below `fixtures`.
pub(crate) fn names() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["", "wrappers"] {
        for entry in fs_err::read_dir(fixture(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.join("images/manifest.json").is_file() {
                names.push(path.strip_prefix(fixture("")).unwrap().display().to_string());
            }
        }
    }
    names.sort();
    names
}

fn agrees_with_its_reference(name: &str) {
    let dump = format!("fixtures/{name}/images");
    let arguments = ["check", &format!("fixtures/{name}"), "--reference", &dump, "--json"];
    let report = json(&run(parity().args(arguments)).code(0).out);
    assert_eq!(report["verdict"], "pass", "{name}");
    let runs = report["runs"].as_array().unwrap().iter();
    let dtypes: Vec<&str> = runs.map(|run| run["dtype"].as_str().unwrap()).collect();
    assert_eq!(dtypes, ["f32", "bf16"]);
    let schedules = report["schedules"].as_array().unwrap().iter();
    let kinds = ["rows: ", "prefix: "];
    let with_rows = schedules.filter(|row| {
        let schedule = row["name"].as_str().unwrap();
        kinds.iter().any(|kind| schedule.starts_with(kind))
    });
    assert!(with_rows.count() > 0, "{name} has no schedule with rows");
}

fn a_fault_is_found(fault: &str) {
    let found = FAULTS.iter().find(|(name, change, _)| fault == format!("{name} with {change}"));
    let (name, change, said) = found.unwrap();
    let dump = format!("fixtures/{name}/images");
    let arguments = ["check", &format!("fixtures/{name}"), "--reference", &dump, "--set", change];
    let ran = run(parity().args(arguments));
    if said.is_empty() {
        let ran = ran.code(1);
        assert!(ran.out.contains("first divergence: state kv.k of model.layers.0"), "{}", ran.out);
    } else {
        let ran = ran.code(2);
        assert!(ran.err.contains(said), "{}", ran.err);
    }
}

/// The dumps have positions in axes, spans, a prefix, and rows behind layers.
fn rows_of_all_kinds_are_there() {
    let mut kinds = [0; 4];
    for name in names() {
        let path = fixture(&name).join("images/manifest.json");
        let manifest = json(&fs_err::read_to_string(path).unwrap());
        for prompt in manifest["prompts"].as_array().unwrap() {
            assert!(prompt["given"].as_array().is_some_and(|given| !given.is_empty()), "{name}");
            let axes = prompt["positions"].as_array().map_or(0, Vec::len);
            let present = ["spans", "prefix", "beside"].map(|key| prompt.get(key).is_some());
            let all = [axes == 3, present[0], present[1], present[2]];
            kinds.iter_mut().zip(all).for_each(|(count, there)| *count += usize::from(there));
        }
    }
    assert!(kinds.iter().all(|count| *count >= 2), "{kinds:?}");
}
