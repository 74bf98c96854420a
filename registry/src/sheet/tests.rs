use std::collections::BTreeMap;

use super::apply::{LaunchPlan, LaunchRequest, ValueOrigin, apply};
use super::facts::{FactInputs, facts};
use super::gpus::Gpu;
use super::versions::Version;
use super::*;
use crate::config::Config;
use crate::dtype::Dtype;
use crate::graph::Graph;
use crate::model::Model;
use crate::quant::QuantRules;

/// Builds a model that has only a graph.
pub(crate) fn model(graph: Graph) -> Model {
    Model {
        name: "tiny".to_owned(),
        architecture: "Tiny".to_owned(),
        dims: BTreeMap::new(),
        graph,
        ropes: Vec::new(),
        vocab: 16,
        input_vocab: 16,
        context: Some(64),
        ignore: Vec::new(),
        wrapped: None,
        rules: Vec::new(),
        nextn: None,
        gguf: None,
        quant: QuantRules::default(),
        own_steps: false,
        layers: None,
    }
}

fn sheet(text: &str) -> Result<Sheet, Vec<String>> {
    let source = SourceText { path: "mine.yaml".to_owned(), text: text.to_owned() };
    Sheet::read(&Arc::new(source))
        .map_err(|findings| findings.into_iter().map(|finding| finding.message).collect())
}

fn launch(settings: &[(&str, Scalar)]) -> LaunchRequest {
    let gpu = Gpu { name: "x".to_owned(), memory: 1024, sm: Some(90), source: String::new() };
    LaunchRequest {
        dtype: (Dtype::F16, false),
        tp: 1,
        mtp: false,
        context: None,
        sequences: None,
        gpu,
        version: Version::parse("1.5"),
        asked: settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
    }
}

fn run(text: &str, launch: &LaunchRequest) -> LaunchPlan {
    let model = model(Graph::default());
    let facts = facts(&model, &FactInputs { tp: launch.tp, ..FactInputs::default() });
    let config = Config::parse("config.json", r#"{"hidden_size": 8}"#).unwrap();
    apply(&sheet(text).unwrap(), &facts, &config, launch).unwrap()
}

#[test]
fn every_sheet_is_sound() {
    let mut launchable = 0;
    for (name, source) in builtin() {
        let sheet = Sheet::read(&source).unwrap_or_else(|findings| {
            panic!(
                "{name}:\n{}",
                crate::render::render(&findings, crate::render::RenderStyle::Plain)
            )
        });
        launchable += usize::from(!sheet.command.is_empty());
        for rule in &sheet.rules {
            assert!(!rule.source.place.is_empty(), "{name}: {}", rule.id.name);
        }
        let checked = sheet.checked.as_deref().and_then(Version::parse);
        if let (Some(versions), Some(checked)) = (&sheet.versions, checked) {
            assert!(versions.contains(&checked), "{name}: {checked:?} is outside {versions}");
        }
    }
    assert!(launchable >= 4, "{launchable}");
}

#[test]
fn unknown_words_are_findings_all_at_once() {
    let messages = sheet(
        "engine: mine
setings: {}
tables: { t: { names: [a], sauce: x } }
settings:
  page: { kind: whole, choices: q, source: a.py:1 }
rules:
  - { id: one, when: lunch.tp > 1, warn: no, source: a.py:1 }
  - { id: one, when: launch.pages > 1, warn: x, refuse: y, source: a.py:1 }
  - { id: two, when: 'has_state.conf', fact: 'n {state.conv.number}', source: a.py:1 }
  - { id: three, when: launch.gpu.ram > 1, set: { pag: 1 }, source: a.py:1 }
  - { id: four, warn: 'x {plan.later}' }
  - { id: five, when: frob(1) > 0, warn: x, source: a.py:1 }
plan:
  - { name: now, value: plan.later, source: a.py:1 }
  - { name: later, value: 1 +, source: a.py:1 }
reports:
  - { path: /x, fields: { nothing: a } }
",
    )
    .unwrap_err();
    for message in [
        "a sheet has no key `setings`",
        "a table has no key `sauce`",
        "there is no such kind of value",
        "there is no table `q`",
        "there is no word `lunch`",
        "rule `one` ends in 2 ways",
        "there is no member of `has_state` `conf`",
        "there is no fact of a state `number`",
        "there is no fact of a GPU `ram`",
        "sheet `mine` has no setting `pag`",
        "a rule needs `source`",
        "there is no planned value before this `later`",
        "syntax error",
        "there is no function `frob`",
        "sheet `mine`: `reports` names the setting `nothing`, which it lacks",
    ] {
        assert!(messages.iter().any(|f| f == message), "{message}: {messages:#?}");
    }
    assert_eq!(sheet("[]").unwrap_err()[0], "expected a sheet: a map of keys");
    assert!(sheet("package: x").unwrap_err().contains(&"a sheet needs `engine`".to_owned()));
}

const RULES: &str = "
engine: mine
settings:
  dtype: { flag: --dtype, values: { f16: half } }
  page: { flag: --page, kind: int, default: 4, source: a.py:1 }
  conv: { env: CONV, default: bf16, choices: [bf16, f16] }
  backend: { flag: --backend, choices: [fast, slow] }
rules:
  - { id: conv, when: launch.conv != launch.dtype, set: { conv: launch.dtype }, why: 'as {launch.dtype}', source: a.py:1 }
  - { id: pages, when: launch.page > 1, set: { page: 1 }, why: pages of one, source: a.py:2 }
  - { id: old, when: true, versions: <1, warn: old, source: a.py:3 }
  - { id: backend, default: { backend: \"fast\" }, why: faster, source: a.py:4 }
  - { id: room, when: plan.room < 1024, refuse: 'no room: {plan.room}', source: a.py:5 }
  - { id: says, fact: '{plan.room} of {launch.gpu.memory}', source: a.py:6 }
plan:
  - { name: room, value: launch.gpu.memory * launch.page, unit: MiB, source: a.py:7 }
";

#[test]
fn rules_choose_settings_and_say_why() {
    let out = run(RULES, &launch(&[]));
    let chosen: Vec<_> = out.settings.iter().map(|c| (c.name.as_str(), &c.value, &c.by)).collect();
    let f16 = Scalar::Str("f16".to_owned());
    let one = Scalar::Int(1);
    let fast = Scalar::Str("fast".to_owned());
    assert_eq!(
        chosen,
        [
            ("dtype", &f16, &ValueOrigin::Model),
            ("page", &one, &by_rule("pages")),
            ("conv", &f16, &by_rule("conv")),
            ("backend", &fast, &by_rule("backend")),
        ]
    );
    assert_eq!(out.settings[2].why, "as f16");
    assert_eq!(out.facts[0].text, "1,024 of 1,024");
    assert!(out.warnings.is_empty() && out.refusals.is_empty());
}

fn by_rule(name: &str) -> ValueOrigin {
    ValueOrigin::Rule(name.to_owned())
}

#[test]
fn what_was_asked_for_is_done_or_refused() {
    let out = run(
        RULES,
        &launch(&[("page", Scalar::Int(16)), ("backend", Scalar::Str("slow".to_owned()))]),
    );
    let refusals: Vec<&str> = out.refusals.iter().map(|refusal| refusal.text.as_str()).collect();
    assert_eq!(refusals, ["`page` is asked to be `16`, and has to be `1`: pages of one"]);
    assert!(out.plan.is_empty() && out.facts.is_empty());
    let out = run(
        RULES,
        &launch(&[("nothing", Scalar::Int(1)), ("backend", Scalar::Str("quick".to_owned()))]),
    );
    assert!(out.refusals[0].text.contains("no setting `nothing`"), "{:?}", out.refusals);
    assert!(out.refusals[1].text.contains("no value `quick`"), "{:?}", out.refusals);
    let out = run(RULES, &LaunchRequest { tp: 2, ..launch(&[]) });
    assert!(out.refusals[0].text.contains("no setting `tp`"), "{:?}", out.refusals);
}

#[test]
fn refusals_may_go_by_the_plan() {
    let mut small = launch(&[]);
    small.gpu.memory = 512;
    let out = run(RULES, &small);
    assert_eq!(out.refusals[0].text, "no room: 512");
    assert_eq!(out.refusals[0].source.as_ref().unwrap().place, "a.py:5");
}

#[test]
fn settings_are_read_and_spelled() {
    let sheet = sheet(RULES).unwrap();
    let page = &sheet.settings["page"];
    assert_eq!(page.read("8"), Ok(Scalar::Int(8)));
    let error = page.read("x").unwrap_err().to_string();
    assert_eq!(error, "setting `page` is given `x`; expected an integer");
    assert_eq!(page.words(&Scalar::Int(8)), ["--page", "8"]);
    let dtype = &sheet.settings["dtype"];
    assert_eq!(dtype.words(&Scalar::Str("f16".to_owned())), ["--dtype", "half"]);
    assert!(dtype.read("f8").unwrap_err().to_string().contains("no value `f8`"));
    assert!(sheet.settings["conv"].words(&Scalar::Str("f16".to_owned())).is_empty());
}

#[test]
fn config_keys_are_added_and_never_changed() {
    let text = "engine: mine
config_keys:
  - { key: dim, when: has('hidden_size'), value: config('hidden_size'), source: a.py:1 }
  - { key: theta, when: has('rope.theta'), value: config('rope.theta'), source: a.py:2 }
";
    let facts = facts(&model(Graph::default()), &FactInputs::default());
    assert_eq!(
        lacking_keys(&facts, text, r#"{"hidden_size": 8}"#),
        [("dim".to_owned(), Scalar::Int(8))]
    );
    assert_eq!(lacking_keys(&facts, text, r#"{"hidden_size": 8, "dim": null}"#), []);
    assert_eq!(
        lacking_keys(&facts, text, r#"{"rope": {"theta": 2.0}}"#),
        [("theta".to_owned(), Scalar::Float(2.0))]
    );
}

fn lacking_keys(
    facts: &super::facts::ModelFacts,
    text: &str,
    config: &str,
) -> Vec<(String, Scalar)> {
    let config = Config::parse("config.json", config).unwrap();
    let added = config_keys::lacking(&[sheet(text).unwrap()], facts, &config).unwrap();
    added.into_iter().map(|key| (key.key, key.value)).collect()
}
