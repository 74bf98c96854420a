//! Tests of whole checks, with an engine that has known faults.

use std::path::Path;
use std::sync::Arc;

use onboard_parity::cause::{Cause, Diagnosis, EditSummary};
use onboard_parity::dump::Phase;
use onboard_parity::edit::Change;
use onboard_parity::gate::{Mode, Subject};
use onboard_parity::report::RunReport;
use onboard_parity::{CheckOptions, Dump, Report, Verdict, check_engine};
use registry::dtype::Dtype;

use crate::fake::{Fake, Fault, model, write_dump};

fn report_of(fault: Fault, options: &CheckOptions) -> Report {
    let dir = tempfile::tempdir().unwrap();
    write_dump(dir.path(), |_| {});
    let dump = Dump::open(dir.path()).unwrap();
    let source = engine::ModelSource { model: Arc::new(model()), dir: dir.path() };
    check_engine(&Fake { fault, reversed: false, blind: false }, &source, &dump, options).unwrap()
}

fn only(dtype: Dtype) -> CheckOptions {
    CheckOptions { dtypes: vec![dtype], schedules: false, ..CheckOptions::default() }
}

#[test]
fn a_changed_checkpoint_names_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let key = error_after_change(dir.path(), |_| {}, "{\"rope_theta\": 5}", true);
    assert!(key.contains("`rope_theta` is `5` here and absent in the dump"), "{key}");
    let tensor = error_after_change(dir.path(), |_| {}, "{}", true);
    assert!(tensor.contains(" has other values, another shape or another dtype"), "{tensor}");
    assert!(tensor.contains("tensor `"), "{tensor}");
    // A dump that records neither.
    let hash = error_after_change(
        dir.path(),
        |manifest| manifest["checkpoint"] = serde_json::json!({}),
        "{ }",
        false,
    );
    assert!(hash.contains("the SHA-256 of `config.json` is "), "{hash}");
    // The script that makes dumps computes the same.
    let llama = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/llama");
    let hashes = checkpoints::Checkpoint::open(&llama).unwrap().tensor_hashes().unwrap();
    assert_eq!(hashes["lm_head.weight"], "4b9c8a36a231c0e0");
}

fn error_after_change(
    dir: &Path,
    edit: fn(&mut serde_json::Value),
    config: &str,
    flipped: bool,
) -> String {
    write_dump(dir, edit);
    let dump = Dump::open(dir).unwrap();
    fs_err::write(dir.join("config.json"), config).unwrap();
    if flipped {
        let path = dir.join("model.safetensors");
        let mut bytes = fs_err::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs_err::write(&path, bytes).unwrap();
    }
    let source = engine::ModelSource { model: Arc::new(model()), dir };
    let fake = Fake { fault: Fault::None, reversed: false, blind: false };
    check_engine(&fake, &source, &dump, &CheckOptions::default()).unwrap_err().to_string()
}

/// Returns the first finding of a run: subject, phase, step, and mode.
fn headline(report: &Report) -> (String, Phase, usize, Mode) {
    let first = report.runs[0].headline().expect("the run fails");
    (first.subject.to_string(), first.phase, first.step, first.mode)
}

#[test]
fn a_whole_engine_passes() {
    let report = report_of(Fault::None, &CheckOptions::default());
    let text = onboard_parity::report::text(&report);
    assert_eq!(report.verdict(), Verdict::Pass, "{text}");
    assert_eq!(report.exit_code(), 0);
    assert_eq!(report.runs.len(), 3);
    assert!(report.runs.iter().all(|r| r.gates.iter().all(|g| g.verdict == Verdict::Pass)));
    assert!(report.schedules.iter().all(|s| s.verdict == Verdict::Pass), "{text}");
}

#[test]
fn a_narrow_state_is_named_in_decode_while_prefill_passes() {
    let report = report_of(Fault::NarrowState, &only(Dtype::F16));
    let text = onboard_parity::report::text(&report);
    assert_eq!(
        headline(&report),
        ("state conv of layers.0".into(), Phase::Decode, 0, Mode::Local),
        "{text}"
    );
    let run = &report.runs[0];
    assert_eq!(run.first.as_ref().unwrap().subject, run.first_local.as_ref().unwrap().subject);
    assert_eq!(run.phases[0].verdict, Verdict::Pass, "{text}");
    assert_eq!(run.phases[1].verdict, Verdict::Fail);
    let first = run.headline().unwrap();
    assert!(first.message.starts_with("kept in bf16"), "{}", first.message);
    assert!(first.hints[0].contains("fake.yaml:3"), "{:?}", first.hints);
    // In a bf16 run the same engine is correct.
    assert_eq!(report_of(Fault::NarrowState, &only(Dtype::Bf16)).verdict(), Verdict::Pass);
}

#[test]
fn one_wrong_op_is_one_local_finding() {
    for (fault, subject) in [
        (Fault::Epsilon, "layers.1.norm"),
        (Fault::PlusOne, "layers.1.norm"),
        (Fault::MissingNorm, "layers.1.norm"),
        (Fault::Window, "layers.1.o_proj"),
        (Fault::Scale, "layers.1.o_proj"),
    ] {
        let report = report_of(fault, &only(Dtype::F32));
        let text = onboard_parity::report::text(&report);
        assert_eq!(report.exit_code(), 1, "{fault:?} passes:\n{text}");
        assert_eq!(headline(&report).0, subject, "{fault:?} is misplaced:\n{text}");
        assert_eq!(headline(&report).1, Phase::Prefill);
        let local: std::collections::BTreeSet<String> = report.runs[0]
            .gates
            .iter()
            .filter(|g| g.mode == Mode::Local && g.fails())
            .map(|g| g.subject.to_string())
            .collect();
        assert_eq!(local.len(), 1, "{fault:?}: {local:?}");
    }
}

#[test]
fn what_moves_a_16_bit_run_more_than_its_noise_fails() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for fault in [Fault::PlusOne, Fault::MissingNorm, Fault::Window] {
            let report = report_of(fault, &only(dtype));
            assert_eq!(report.exit_code(), 1, "{fault:?} passes in {dtype}");
            let cumulative = report.runs[0].first.as_ref().unwrap();
            assert_eq!(cumulative.phase, Phase::Prefill, "{fault:?} in {dtype}");
        }
    }
}

#[test]
fn what_is_not_a_number_fails() {
    let report = report_of(Fault::NotANumber, &only(Dtype::F32));
    assert_eq!(headline(&report).0, "logits");
    assert_eq!(report.runs[0].first.as_ref().unwrap().step, 1);
    // JSON cannot express the value, and stays valid.
    let json: serde_json::Value =
        serde_json::from_str(&onboard_parity::json::json(&report)).unwrap();
    assert_eq!(json["schema"], "onboard-parity/1");
    assert_eq!(json["verdict"], "fail");
}

#[test]
fn schedules_show_state_bugs_that_single_prompts_hide() {
    for (fault, schedule) in [
        (Fault::StaleSlot, "prefill again"),
        (Fault::StaleSlot, "slot reuse"),
        (Fault::ShortChunk, "chunks of 2"),
        (Fault::ForkLeaks, "fork"),
        (Fault::HalfTruncate, "truncate and retry"),
        (Fault::BatchOrder, "permuted batch"),
    ] {
        let options = CheckOptions { dtypes: vec![Dtype::F32], ..CheckOptions::default() };
        let report = report_of(fault, &options);
        let failed: Vec<&str> = report
            .schedules
            .iter()
            .filter(|s| s.verdict == Verdict::Fail)
            .map(|s| s.name.as_str())
            .collect();
        assert!(failed.contains(&schedule), "{fault:?} is not caught by `{schedule}`: {failed:?}");
        assert_eq!(report.exit_code(), 1);
    }
}

#[test]
fn a_run_that_fails_does_not_widen_the_limit_of_schedules() {
    let options = CheckOptions { dtypes: vec![Dtype::F32], ..CheckOptions::default() };
    let sound = largest_limit(Fault::None, &options);
    let faulty = largest_limit(Fault::ShortChunk, &options);
    assert!(sound > 0.0 && faulty <= 2.0 * sound, "{sound:e} {faulty:e}");
}

fn largest_limit(fault: Fault, options: &CheckOptions) -> f64 {
    let report = report_of(fault, options);
    let judged = report.schedules.into_iter().filter(|s| !s.distance.is_nan());
    let rows: Vec<_> = judged.map(|s| (s.limit, s.distance, s.max)).collect();
    assert!(rows.iter().all(|(_, distance, max)| distance <= max), "{rows:?}");
    rows.iter().map(|row| row.0).fold(0.0, f64::max)
}

#[test]
fn without_runs_of_single_ops_the_ops_behind_the_last_agreement_are_named() {
    let options = CheckOptions { local: false, ..only(Dtype::F32) };
    let report = report_of(Fault::PlusOne, &options);
    let first = report.runs[0].headline().unwrap();
    let hint = first.hints.iter().find(|hint| hint.starts_with("values before it agree"));
    assert!(hint.is_some_and(|hint| hint.contains("`rms_norm` (fake.yaml:")), "{first:#?}");
    let report = report_of(Fault::PlusOne, &only(Dtype::F32));
    let first = report.runs[0].headline().unwrap();
    assert!(!first.hints.iter().any(|hint| hint.starts_with("values before")), "{first:#?}");
}

#[test]
fn chunks_stand_around_every_width_and_window() {
    let (length, all) = onboard_parity::schedules::derive(&model(), 12);
    let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(length, 12);
    insta::assert_snapshot!(names.join("\n"), @r"
    prefill again
    token by token
    chunks of 2
    chunks of 3
    chunks of 4
    chunks of 5
    warm continuation
    ragged batch
    permuted batch
    slot reuse
    fork
    truncate and retry
    save and restore
    ");
}

#[test]
fn a_module_with_weights_that_the_spec_never_computes_is_a_finding() {
    let dir = tempfile::tempdir().unwrap();
    write_dump(dir.path(), |_| {});
    let mut model = model();
    // The spec forgets a norm: neither its weight nor its tap is in the graph.
    model.graph.weights.retain(|w| w.name != "layers.1.norm.weight");
    for value in &mut model.graph.values {
        if value.tap.as_deref() == Some("layers.1.norm") {
            value.tap = None;
        }
    }
    model.graph.states.pop();
    let dump = Dump::open(dir.path()).unwrap();
    let source = engine::ModelSource { model: Arc::new(model), dir: dir.path() };
    let fake = Fake { fault: Fault::None, reversed: false, blind: false };
    let report = check_engine(&fake, &source, &dump, &only(Dtype::F32)).unwrap();
    let failed: Vec<String> =
        report.runs[0].gates.iter().filter(|g| g.fails()).map(|g| g.subject.to_string()).collect();
    assert_eq!(failed, ["layers.1.norm", "state k of layer 1", "state v of layer 1"]);
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn where_decode_of_the_reference_is_wrong_its_prefill_is_the_truth() {
    let dir = tempfile::tempdir().unwrap();
    write_dump(dir.path(), |manifest| manifest["audit"]["truth"] = "prefill".into());
    let dump = Dump::open(dir.path()).unwrap();
    let source = engine::ModelSource { model: Arc::new(model()), dir: dir.path() };
    let fake = Fake { fault: Fault::None, reversed: false, blind: false };
    let report = check_engine(&fake, &source, &dump, &CheckOptions::default()).unwrap();
    assert_eq!(report.exit_code(), 0, "{}", onboard_parity::report::text(&report));
    assert!(
        report.runs[0]
            .gates
            .iter()
            .filter(|g: &&onboard_parity::gate::Gate| {
                g.phase == Phase::Decode && matches!(g.subject, Subject::Tap { .. })
            })
            .count()
            >= 10
    );
}

#[test]
fn an_engine_that_shows_nothing_is_judged_by_what_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    write_dump(dir.path(), |_| {});
    let dump = Dump::open(dir.path()).unwrap();
    let source = engine::ModelSource { model: Arc::new(model()), dir: dir.path() };
    let report = blind_report(&source, &dump, Fault::None, &CheckOptions::default());
    let text = onboard_parity::report::text(&report);
    assert_eq!(report.verdict(), Verdict::Pass, "{text}");
    assert!(text.contains("`fake` shows neither taps nor states: only log-prob"), "{text}");
    assert_eq!(report.notes.iter().filter(|n| n.contains("shows neither")).count(), 1);
    let gates: Vec<_> = report.runs.iter().flat_map(|r| &r.gates).collect();
    assert!(!gates.is_empty() && gates.iter().all(|g| g.subject == Subject::Logprobs));

    // A wrong scale shows in the log-probabilities; a bound wide enough for it is applied and reported.
    let report = blind_report(&source, &dump, Fault::Scale, &only(Dtype::F32));
    assert_eq!(headline(&report).0, "logprobs");
    let wide = CheckOptions { logprob: Some(0.5), ..only(Dtype::F32) };
    let report = blind_report(&source, &dump, Fault::Scale, &wide);
    assert_eq!(report.verdict(), Verdict::Pass);
    assert!(report.runs[0].phases.iter().all(|p| p.limit == 0.5 && p.max > 1e-4));
}

fn blind_report(
    source: &engine::ModelSource<'_>,
    dump: &Dump,
    fault: Fault,
    options: &CheckOptions,
) -> Report {
    check_engine(&Fake { fault, reversed: true, blind: true }, source, dump, options).unwrap()
}

#[test]
fn another_model_is_refused_by_the_key_that_changed() {
    let dir = tempfile::tempdir().unwrap();
    write_dump(dir.path(), |_| {});
    let dump = Dump::open(dir.path()).unwrap();
    let source = engine::ModelSource { model: Arc::new(model()), dir: dir.path() };
    let fake = Fake { fault: Fault::None, reversed: false, blind: false };
    // The same config in another spacing.
    fs_err::write(dir.path().join("config.json"), "{ }").unwrap();
    assert!(check_engine(&fake, &source, &dump, &CheckOptions::default()).is_ok());
    fs_err::write(dir.path().join("config.json"), r#"{"a": 1}"#).unwrap();
    let error =
        check_engine(&fake, &source, &dump, &CheckOptions::default()).unwrap_err().to_string();
    assert!(error.contains("was made from another model") && error.contains("`a`"), "{error}");
    let options = CheckOptions { same_model: false, ..CheckOptions::default() };
    assert!(check_engine(&fake, &source, &dump, &options).is_ok());
}

#[test]
fn manifests_that_cannot_be_are_refused() {
    type Edit = fn(&mut serde_json::Value);
    let edits: [(Edit, &str); 16] = [
        (|m| m["version"] = 1.into(), "`version` is 1"),
        (|m| m["format"] = "x".into(), "expected `onboard-dump`"),
        (|m| m["vocab"] = 99.into(), "is F32 [12, 23]; `manifest.json` makes it F32 [12, 99]"),
        (|m| m["prompts"][0]["split"] = 12.into(), "expected 1 to 11"),
        (|m| m["prompts"][0]["tokens"][3] = 500.into(), "token 500"),
        (|m| m["prompts"][0]["name"] = "a/b".into(), "has a `/`"),
        (|m| m["prompts"][0]["name"] = "other".into(), "is not in"),
        (|m| m["prompts"][0]["name"] = "\u{1b}[2J".into(), r"`\u{1b}[2J` has control characters"),
        (|m| m["runs"][0] = "\u{7}".into(), "has control characters"),
        (|m| m["audit"]["truth"] = "\u{1b}]0;x".into(), r"`\u{1b}]0;x`"),
        (|m| m["logprobs"] = serde_json::json!({"kind": "topk", "k": 0}), "expected 1 to 23"),
        (|m| drop(m.as_object_mut().unwrap().remove("patches")), "missing field `patches`"),
        (|m| m["patches"][0]["version"] = 2.into(), "`topk_first_of_equals` in version 2"),
        (|m| m["patches"][0]["name"] = "foo".into(), "`foo` in version 1"),
        (|m| m["members"]["f16"]["ran"] = serde_json::json!(["own"]), "`members.f16` lists 1 runs"),
        (|m| m["taps"]["nowhere"] = serde_json::json!({"phases": ["prefill"]}), "[11, 12]"),
    ];
    for (edit, want) in edits {
        let dir = tempfile::tempdir().unwrap();
        write_dump(dir.path(), edit);
        let error = Dump::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    write_dump(dir.path(), |m| {
        m["runs"].as_array_mut().unwrap().push("f8".into());
        m["taps"]["embed"]["phases"].as_array_mut().unwrap().push("training".into());
        m["later"] = "a field of a later script".into();
    });
    let dump = Dump::open(dir.path()).unwrap();
    assert_eq!(dump.notes.len(), 2, "{:?}", dump.notes);
}

#[test]
fn reports_of_a_failure() {
    let mut report = report_of(Fault::NarrowState, &only(Dtype::F16));
    report.subject.model = "model".into();
    report.subject.reference = "dump".into();
    let text = onboard_parity::report::text(&report);
    insta::assert_snapshot!(text, @r"
    fake (FakeForCausalLM) on fake
      model      model
      reference  dump by fake, patched: topk_first_of_equals 1

    run  phase    |dlogp|  bound   mean    KL      top-1   worst tap                verdict
    f16  prefill  4.2e-3   1.4e-2  2.3e-3  1.2e-6  100.0%  layers.1.o_proj  4.0e-3  pass
    f16  decode   1.4e-2   1.5e-2  7.0e-3  8.7e-6  100.0%  layers.1.o_proj  8.3e-3  FAIL

    states
      f16  conv of layers.0  decode, position 0 (what the prefill left)  FAIL  kept in bf16, as its numbers show; the reference keeps f16
      f16  conv of layers.0  decode, position 0 (what the prefix left)   FAIL  kept in bf16, as its numbers show; the reference keeps f16

    ops on the reference's own inputs
      f16  prefill to position 11  decode to position 11  weakest sees 1.0e-3 of the rms: layers.0.out_proj

    greedy tokens
      f16  main  4 of 4    pass

    f16: first divergence: state conv of layers.0
      decode, position 0 (what the prefix left), prompt `main`, on the reference's own inputs
      kept in bf16, as its numbers show; the reference keeps f16
      hint: the spec keeps state `conv` in the activation dtype (fake.yaml:3): the engine narrows it
      hint: no comparison of prefill fails, and only decode reads this snapshot
      5 of 56 gates fail, 3 of them on the reference's own inputs

    DIFFER in 1 of 1 run
    ");
    // Hostile names stay text in every format.
    let name = "</pre><script>alert(\"1\")</script>\u{1b}[2J";
    report.runs[0].gates[1].subject = Subject::Tap { name: name.into() };
    report.subject.model = name.into();
    let xml = onboard_parity::junit::junit(&report);
    let html = onboard_parity::html::html(&report);
    for page in [&xml, &html] {
        assert!(!page.contains("<script>alert") && !page.contains('\u{1b}'), "{page}");
    }
    assert!(!xml.contains("<error") && xml.matches("<testcase").count() == 1, "{xml}");
    assert!(xml.contains("hint: "), "{xml}");
    assert!(!html.contains("http://") || html.contains("xmlns"), "no resource from outside");
}

#[test]
fn junit_has_one_failure_however_many_gates_fail() {
    let options = CheckOptions::default();
    let mut report = report_of(Fault::ForkLeaks, &options);
    let xml = onboard_parity::junit::junit(&report);
    assert_eq!((count_of(&xml, "<testcase"), count_of(&xml, "<failure")), (4, 1), "{xml}");
    assert!(xml.contains("name=\"schedules\"") && xml.contains("fork"), "{xml}");
    // A run that fails is the cause, and all else follows.
    report
        .runs
        .extend(report_of(Fault::PlusOne, &CheckOptions { schedules: false, ..options }).runs);
    let failing = report.runs.iter().flat_map(|run| &run.gates).filter(|gate| gate.fails());
    assert!(failing.count() > 10);
    let xml = onboard_parity::junit::junit(&report);
    assert_eq!((count_of(&xml, "<failure"), count_of(&xml, "<skipped")), (4, 0), "{xml}");
    assert!(xml.contains("tests=\"7\" failures=\"4\" errors=\"0\" skipped=\"0\""), "{xml}");
    assert_eq!(count_of(&xml, "first divergence: "), 3, "{xml}");
    assert!(!xml.contains("cause: "), "{xml}");
    report.diagnosis = Some(diagnosis());
    let xml = onboard_parity::junit::junit(&report);
    let cause =
        "<failure message=\"cause: `eps` of `rms_norm` = 1e-5 (in 7 nodes); first divergence: ";
    assert_eq!((count_of(&xml, cause), count_of(&xml, "restores 44.0 % of")), (1, 1), "{xml}");
}

fn count_of(xml: &str, what: &str) -> usize {
    xml.matches(what).count()
}

/// Returns a diagnosis of the f32 run with one cause, which leaves noise alone.
fn diagnosis() -> Diagnosis {
    let edit = EditSummary {
        edit: "`eps` of `rms_norm` = 1e-5".into(),
        place: "in 7 nodes".into(),
        change: Change::Inputs(Vec::new()),
    };
    let cause = Cause {
        edits: vec![edit],
        with: Vec::new(),
        restored: 0.44,
        left: 1e-7,
        exact: true,
        verified: Some(true),
    };
    Diagnosis {
        dtype: Dtype::F32,
        observed: "log-probabilities".into(),
        before: 2e-7,
        noise: 2e-7,
        tried: 70,
        explained: true,
        cut: false,
        ignored: Vec::new(),
        causes: vec![cause],
    }
}

#[test]
fn the_page_begins_with_the_cause_and_folds_what_passes() {
    let options = CheckOptions { schedules: false, ..CheckOptions::default() };
    let mut report = report_of(Fault::NarrowState, &options);
    report.diagnosis = Some(diagnosis());
    let html = onboard_parity::html::html(&report);
    assert!(
        place_of(&html, "<code>eps</code>") < place_of(&html, "First divergence")
            && place_of(&html, "First divergence") < place_of(&html, "<table")
    );
    assert!(place_of(&html, "restores 44.0 %") < place_of(&html, "<table"));
    // A run that agrees is one line, and so are the comparisons that pass in a run that differs.
    let runs: Vec<_> = report.runs.iter().map(|run| run.verdict() == Verdict::Pass).collect();
    assert!(runs.contains(&true) && runs.contains(&false), "{runs:?}");
    let visible = visible(&html);
    let summary: usize = report
        .runs
        .iter()
        .map(|run: &RunReport| run.phases.len() + run.greedy.len() + run.routers.len())
        .sum();
    assert!(badges(&visible, "pass") <= summary && badges(&html, "pass") > 4 * summary);
    assert!(badges(&visible, "fail") > 2, "{visible}");
    assert!(visible.matches("<figure>").count() < html.matches("<figure>").count());
}

fn badges(page: &str, word: &str) -> usize {
    page.matches(&format!("badge {word}\">{word}")).count()
}

fn place_of(html: &str, text: &str) -> usize {
    html.find(text).unwrap_or_else(|| panic!("no `{text}` in {html}"))
}

/// Returns a page without what its folded parts hold.
fn visible(html: &str) -> String {
    let mut parts = html.split("<details>");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // A folded part holds no other that is open.
        shown.push_str(part.split_once("</details>").map_or("", |(_, after)| after));
    }
    shown
}

#[test]
fn the_page_names_every_colour_and_every_column() {
    let mut report = report_of(Fault::NarrowState, &CheckOptions::default());
    report.notes.push("a note with `code` and a stray ` in it".into());
    // A second prompt has a line of its own.
    for run in &mut report.runs {
        let mut other: Vec<_> =
            run.gates.iter().filter(|g| g.subject == Subject::Logprobs).cloned().collect();
        for gate in &mut other {
            "other".clone_into(&mut gate.prompt);
        }
        run.gates.extend(other);
    }
    let html = onboard_parity::html::html(&report);
    let figures: Vec<&str> = html.split("<figure>").skip(1).collect();
    assert!(figures.len() >= 10, "{} figures", figures.len());
    for figure in &figures {
        let figure = figure.split("</figure>").next().unwrap();
        let (legend, plot) = figure.split_once("</ul>").expect("a figure has a legend");
        let drawn =
            plot.split("<g class=\"").skip(1).map(|drawing| drawing.split('"').next().unwrap());
        let beyond = plot.contains("class=\"beyond\"").then_some("beyond");
        let limit = plot.contains("class=\"limit\"").then_some("limit");
        for class in drawn.chain(beyond).chain(limit) {
            assert!(
                legend.contains(&format!("class=\"key {class}\"")),
                "{class} has no name: {legend}"
            );
        }
        let tips = plot.matches("</title></circle>").count();
        assert_eq!(plot.matches("<circle").count(), tips, "every point has a tooltip");
    }
    assert!(figures.iter().any(|figure| figure.contains("key c0") && figure.contains("key c1")));
    for cell in html.split("<th").skip(1).filter(|cell| cell.starts_with(' ')) {
        let (head, title) = cell.split_once('>').unwrap();
        assert!(head.contains("title=\"") && !head.contains("title=\"\""), "{head}");
        assert!(!title.starts_with("</th>"), "a column without a name");
    }
    assert!(!html.contains('`') && html.contains("<code>code</code>"), "backticks are no HTML");
    assert!(!html.contains(", step ") && !html.contains("step 0"), "a place is a position");
    assert!(!html.contains("NaN"), "what was not compared is a dash");
}
