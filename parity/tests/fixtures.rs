//! Checks that the native engine agrees with the reference on every fixture checkpoint. A model with a
//! single fault must not agree.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onboard_parity::dump::Phase;
use onboard_parity::{CheckOptions, Dump, Report, Verdict, check};
use registry::config::Config;
use registry::dtype::Dtype;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::scalar::Scalar;

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut dirs: Vec<PathBuf> = fs_err::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|dir| dir.join("reference/manifest.json").exists())
        .collect();
    dirs.sort();
    dirs
}

fn name(dir: &Path) -> String {
    dir.file_name().unwrap().to_string_lossy().into_owned()
}

fn model(dir: &Path, sets: &[&str]) -> Result<Model, String> {
    let text = fs_err::read_to_string(dir.join("config.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let architecture = json["architectures"][0].as_str().unwrap_or_default();
    let config = Config::parse("config.json", &text).map_err(|e| e.message)?;
    let library = Library::builtin();
    let specs = library.find(&config);
    let spec = specs.first().ok_or_else(|| format!("no spec for {architecture}"))?;
    let say = |findings: Vec<registry::diag::Finding>| {
        findings.into_iter().map(|f| f.message).collect::<Vec<_>>().join("; ")
    };
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let spec = library.load(spec, &sets).map_err(say)?;
    Ok(registry::resolve::resolve(&spec, &config, &OpSet::builtin()).map_err(say)?.0)
}

fn report(dir: &Path, model: Model, options: &CheckOptions) -> Result<Report, String> {
    let source = engine::ModelSource { model: Arc::new(model), dir };
    let dump = Dump::open(&dir.join("reference")).map_err(|e| e.to_string())?;
    check(&engine::NativeEngine::new(), &source, &dump, options).map_err(|e| e.to_string())
}

#[test]
fn every_fixture_agrees() {
    let mut differ = Vec::new();
    for dir in fixtures() {
        let result = model(&dir, &[]).and_then(|m| report(&dir, m, &CheckOptions::default()));
        match result {
            Ok(report) if report.verdict() == Verdict::Pass => {
                // The engine's bits do not depend on the schedule, in any dtype.
                let exact = report.schedules.iter().all(|row| row.limit == 0.0 && row.max == 0.0);
                assert!(exact, "{}: {:#?}", name(&dir), report.schedules);
            }
            Ok(report) => differ.push(onboard_parity::report::text(&report)),
            Err(error) => differ.push(format!("{}: {error}", name(&dir))),
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

type Fault = fn(&mut Model) -> bool;

/// Faults of a resolved model; each returns true if it changed anything.
const FAULTS: [(&str, Fault); 6] = [
    ("epsilon", |m| {
        edit(m, "eps", |eps| {
            let x = eps.as_f64()?;
            Some(Scalar::Float(if x == 1e-6 { 1e-5 } else { 1e-6 }))
        })
    }),
    ("a norm's + 1", |m| edit(m, "plus_one", |v| Some(Scalar::Bool(*v != Scalar::Bool(true))))),
    ("rotary layout", |m| {
        edit(m, "layout", |v| {
            let other = match v {
                Scalar::Str(text) if text == "half" => "interleaved",
                Scalar::Str(text) if text.starts_with("interleaved") => "half",
                _ => return None,
            };
            Some(Scalar::Str(other.into()))
        })
    }),
    ("window", |m| {
        let window = |v: &Scalar| Some(Scalar::Int(i64::try_from(v.as_usize()?).ok()? - 1));
        for state in &mut m.graph.states {
            state.window = state.window.map(|w| w - 1);
        }
        edit(m, "window", window)
    }),
    ("scale of the scores", |m| edit(m, "scale", |v| Some(Scalar::Float(v.as_f64()? * 1.001)))),
    ("soft cap", |m| edit(m, "softcap", |v| Some(Scalar::Float(v.as_f64()? * 2.0)))),
];

fn edit(model: &mut Model, key: &str, change: impl Fn(&Scalar) -> Option<Scalar>) -> bool {
    let mut changed = false;
    // Adding 1 to the weight of a norm without one is no fault.
    let bare = |node: &registry::graph::Node| key == "plus_one" && node.weights.is_empty();
    for node in model.graph.nodes.iter_mut().filter(|node| !bare(node)) {
        if let Some(value) = node.attrs.get_mut(key)
            && let Some(new) = change(value)
        {
            *value = new;
            changed = true;
        }
    }
    changed
}

#[test]
fn a_model_that_is_wrong_in_one_place_differs() {
    let options =
        CheckOptions { dtypes: vec![Dtype::F32], schedules: false, ..CheckOptions::default() };
    let (mut caught, mut missed) = (0, Vec::new());
    for dir in fixtures() {
        for (fault, apply) in FAULTS {
            let mut wrong = model(&dir, &[]).unwrap();
            if !apply(&mut wrong) {
                continue;
            }
            match report(&dir, wrong, &options) {
                Ok(report) if report.verdict() == Verdict::Pass => {
                    missed.push(format!("{}: {fault}", name(&dir)));
                }
                Ok(report) => {
                    assert!(report.runs[0].headline().is_some());
                    caught += 1;
                }
                Err(error) => missed.push(format!("{}: {fault}: {error}", name(&dir))),
            }
        }
    }
    assert!(missed.is_empty(), "{caught} caught, missed:\n{}", missed.join("\n"));
}

#[test]
fn a_conv_state_kept_too_narrow_is_the_first_divergence_and_prefill_passes() {
    let dir = fixtures().into_iter().find(|d| name(d) == "lfm2").unwrap();
    let narrow = model(&dir, &["states.conv.dtype=bf16"]).unwrap();
    let options = CheckOptions {
        dtypes: vec![Dtype::F16],
        allow_dtype_mismatch: true,
        ..CheckOptions::default()
    };
    let report = report(&dir, narrow, &options).unwrap();
    let text = onboard_parity::report::text(&report);
    let run = &report.runs[0];
    assert_eq!(run.phases[0].verdict, Verdict::Pass, "{text}");
    assert_eq!(run.phases[1].verdict, Verdict::Fail, "{text}");
    for first in [run.first.as_ref().unwrap(), run.first_local.as_ref().unwrap()] {
        assert_eq!(first.subject.to_string(), "state conv of model.layers.0", "{text}");
        assert_eq!((first.phase, first.step), (Phase::Decode, 0), "{text}");
        assert!(first.message.starts_with("kept in bf16"), "{text}");
    }
}

#[test]
fn keys_in_eight_bits_cost_something_and_are_no_mistake() {
    let options = CheckOptions {
        dtypes: vec![Dtype::F32],
        local: false,
        schedules: false,
        ..CheckOptions::default()
    };
    let dir = fixtures().into_iter().find(|dir| name(dir) == "llama").unwrap();
    let cost = |word: &str| -> f64 {
        let model = model(&dir, &[&format!("states.kv.dtype={word}")]).unwrap();
        let report = report(&dir, model, &options).unwrap();
        assert_eq!(report.verdict(), Verdict::Pass);
        let [plain, eight] = report.runs.as_slice() else { panic!("two rows") };
        assert_eq!(
            (plain.part, eight.part),
            (None, Some(if word == "f8_e4m3" { "f8_e4m3" } else { "f8_e4m3_heads" }))
        );
        assert!(plain.phases.iter().all(|phase| phase.max < 1e-4));
        let moved: Vec<f64> = eight.phases.iter().map(|phase| phase.max).collect();
        assert!(moved.iter().all(|max| (1e-3..2.0).contains(max)), "{moved:?}");
        eight.phases.iter().map(|phase| phase.mean).sum()
    };
    let (tensor, heads) = (cost("f8_e4m3"), cost("f8_e4m3_heads"));
    assert!((tensor - heads).abs() > 0.0, "scales of heads are others");
    let refused = model(
        &fixtures().into_iter().find(|d| name(d) == "lfm2").unwrap(),
        &["states.conv.dtype=f8_e4m3"],
    );
    assert!(refused.unwrap_err().contains("is not kept in 8 bits"));
}

/// Returns the fixtures with a multi-token prediction head.
fn heads() -> Vec<PathBuf> {
    fixtures().into_iter().filter(|dir| dir.join("reference/nextn").is_dir()).collect()
}

#[test]
fn heads_that_predict_one_token_more_agree() {
    assert!(heads().len() >= 4);
    for dir in heads() {
        let report = report(&dir, model(&dir, &[]).unwrap(), &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict(), Verdict::Pass, "{}", onboard_parity::report::text(&report));
        let own: Vec<_> = report.runs.iter().filter(|run| run.part == Some("nextn")).collect();
        assert_eq!(own.len(), 3, "{}: three dtypes", name(&dir));
        assert!(own.iter().all(|run| run.gates.len() > 50 && run.phases.len() == 2));
        assert!(report.schedules.iter().any(|row| row.name.starts_with("nextn: ")));
    }
}

#[test]
fn a_head_that_joins_in_the_other_order_differs_where_it_does() {
    let options =
        CheckOptions { dtypes: vec![Dtype::F32], schedules: false, ..CheckOptions::default() };
    for dir in heads() {
        let mut model = model(&dir, &[]).unwrap();
        let layer = Arc::make_mut(&mut model.nextn.as_mut().unwrap().layers[0]);
        let graph = &mut layer.graph;
        let at = graph.nodes.iter().position(|node| node.op == "concat").unwrap();
        graph.nodes[at].inputs.reverse();
        let proj = graph.values[graph.nodes[at + 1].outputs[0].0].tap.clone().unwrap();
        let report = report(&dir, model, &options).unwrap();
        let [own, head] = report.runs.as_slice() else { panic!("two rows") };
        assert_eq!((own.verdict(), head.verdict()), (Verdict::Pass, Verdict::Fail));
        for first in [&head.first, &head.first_local] {
            assert_eq!(first.as_ref().unwrap().subject.to_string(), proj, "{}", name(&dir));
        }
    }
}
