//! Tests of engine dumps: recorded, compared with each other and with the reference's.

use std::path::Path;

use crate::tool::{Ran, copy, fixture, parity, run};

fn dump(name: &str, to: &Path, more: &[&str]) -> Ran {
    let mut command = parity();
    command.arg("dump").arg(fixture(name)).args(["--engine", "native", "-o"]).arg(to);
    run(command.args(more))
}

fn diff(a: &Path, b: &Path) -> Ran {
    run(parity().arg("diff").arg(a).arg(b))
}

#[test]
fn a_dump_of_the_engine_agrees_with_the_reference() {
    let home = tempfile::tempdir().unwrap();
    for (name, parts) in [("lfm2", "134 taps and states"), ("gemma3_text", " taps and states")] {
        let native = home.path().join(name);
        dump(name, &native, &["--dtypes", "f32,bf16"]).code(0);
        diff(&fixture(name).join("reference"), &native).code(0).prints(parts).prints("AGREE");
    }
    // The dump has the format of a reference, so a check reads it too.
    let native = home.path().join("lfm2");
    run(parity().arg("check").arg(fixture("lfm2")).arg("--reference").arg(&native).args([
        "--dtype",
        "f32",
        "--no-schedules",
    ]))
    .code(0)
    .prints("AGREE in 1 run");
}

#[test]
fn another_setting_is_found_at_its_first_tap() {
    let home = tempfile::tempdir().unwrap();
    let a = home.path().join("a");
    let b = home.path().join("b");
    let c = home.path().join("c");
    dump("lfm2", &a, &[]).code(0);
    dump("lfm2", &b, &["--set", "dims.eps=1e-3"]).code(0);
    diff(&a, &b)
        .code(1)
        .prints("DIFFERS from position 0 on")
        .prints("first tap: prefill, position 0, `model.layers.0.operator_norm`");
    // A conv state stored in bf16: prefill is exact, and the state is named with its grid.
    dump("lfm2", &c, &["--set", "states.conv.dtype=bf16", "--allow-dtype-mismatch"]).code(0);
    diff(&a, &c)
        .code(1)
        .prints("Prefill agrees and decode does not")
        .prints("first state: prefill, `conv of layer 0`")
        .prints("in bf16 or less")
        .prints("B's decode is");
}

#[test]
fn prompts_come_from_a_file_or_are_derived() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("prompts.json");
    let native = home.path().join("own");
    fs_err::write(&file, r#"[{"tokens": [1, 2, 3, 4], "taps": true}]"#).unwrap();
    dump("llama", &native, &["--prompts", file.to_str().unwrap()]).code(0);
    diff(&fixture("llama").join("reference"), &native).code(2).says("no prompt in common");
    for (text, words) in [
        (r#"[{"tokens": [1, 9000]}]"#, "has token 9000; `vocab` is 369"),
        (r#"[{"tokens": []}]"#, "has 0 tokens"),
        (r#"{"a": 1}"#, "expected a list of objects with `name` and `tokens`"),
        ("[", "is not JSON"),
    ] {
        fs_err::write(&file, text).unwrap();
        dump("llama", &native, &["--prompts", file.to_str().unwrap()]).code(2).says(words);
    }
    // Without a dump beside the model, prompts are derived, the same for every engine.
    let bare = home.path().join("bare");
    copy("llama", &bare);
    let a = home.path().join("a");
    let b = home.path().join("b");
    for to in [&a, &b] {
        run(parity().arg("dump").arg(&bare).args(["--engine", "native", "-o"]).arg(to)).code(0);
    }
    diff(&a, &b).code(0).prints("134 rows").prints("AGREE");
}

#[test]
fn flags_of_engines_need_one() {
    run(parity().arg("dump").arg(fixture("llama")).args(["-o", "x", "--like", "y"]))
        .code(2)
        .says("give --engine NAME");
}
