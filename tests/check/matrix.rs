//! Tests of `parity matrix`: one exit code for many checks, and a scoreboard of accepted failures.

use std::path::Path;

use crate::tool::{Ran, fixture, json, parity, root, run};

/// Writes a plan over two fixtures; the second model's dump is that of another model.
fn plan(home: &Path, known: &str) -> String {
    let [llama, lfm2] = ["llama", "lfm2"].map(|name| fixture(name).display().to_string());
    let wrong = root().join("fixtures/qwen3/reference").display().to_string();
    let path = home.join("parity.yaml");
    let text = format!(
        "models:\n  - {llama}\n  - {{name: other, path: {lfm2}, reference: {wrong}, dtypes: [f32]}}\n\
         engines:\n  - native\n  - {{name: plain, engine: native, flags: [--plain-graph], dtypes: [f32]}}\n\
         dtypes: [f32, bf16]\nflags: [--no-schedules]\n{known}"
    );
    fs_err::write(&path, text).unwrap();
    path.display().to_string()
}

fn matrix(plan: &str, more: &[&str]) -> Ran {
    run(parity().args(["matrix", plan]).args(more))
}

#[test]
fn cells_have_one_exit_code_and_a_scoreboard() {
    let home = tempfile::tempdir().unwrap();
    let [board, xml, page] =
        ["board.json", "j.xml", "p.html"].map(|name| home.path().join(name).display().to_string());
    let text = plan(home.path(), "");
    let more = ["--write", &board, "--junit", &xml, "--html", &page, "--jobs", "2"];
    matrix(&text, &more)
        .code(2)
        .prints("other  f32    ERROR")
        .prints("other on native in f32: ERROR: ")
        .prints("5 cells: 3 pass, 0 known, 2 fail");
    let xml = fs_err::read_to_string(xml).unwrap();
    assert!(xml.contains("tests=\"5\" failures=\"0\" errors=\"2\" skipped=\"0\""), "{xml}");
    assert!(fs_err::read_to_string(page).unwrap().contains("<td>llama</td><td>bf16</td>"));
    // An earlier failure is accepted, and so is one named in the plan.
    matrix(&text, &["--against", &board]).code(0).prints("as in the scoreboard");
    // A cell that passed before and fails now is a failure, although the scoreboard contains it.
    let mut worse = json(&fs_err::read_to_string(&board).unwrap());
    for cell in worse["cells"].as_array_mut().unwrap() {
        cell["outcome"] = "pass".into();
    }
    fs_err::write(&board, worse.to_string()).unwrap();
    matrix(&text, &["--against", &board]).code(2).prints("2 fail");
    let known = plan(home.path(), "known:\n  - {model: other, because: its dump is missing}\n");
    matrix(&known, &[]).code(0).prints("ERROR (its dump is missing)");
    matrix(&text, &["--model", "llama", "--engine", "plain"]).code(0).prints("1 cell: 1 pass");
}

#[test]
fn a_difference_is_exit_code_1() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("parity.yaml");
    let model = fixture("lfm2").display().to_string();
    let flags = "[--set, dims.eps=1e-3, --no-schedules]";
    let text = format!("models: [{model}]\nengines:\n  - {{engine: native, flags: {flags}}}\n");
    fs_err::write(&path, text).unwrap();
    let path = path.display().to_string();
    matrix(&path, &[]).code(1).prints("lfm2 on native in f32: DIFFER: prefill: ");
    matrix(&path, &["--timeout", "0.05"]).code(2).prints("no outcome within");
}

#[test]
fn a_plan_is_checked_before_anything_runs() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("parity.yaml");
    fs_err::write(&path, "models: [a]\nengine: [native]\nengines: [native]\ndtypes: [f8]\n")
        .unwrap();
    let path = path.display().to_string();
    matrix(&path, &[])
        .code(2)
        .says("a plan has no key `engine`")
        .says("this is no dtype that a model runs in")
        .says("has 2 findings");
    fs_err::write(&path, "models: [a]\nengines: [native]\n").unwrap();
    matrix(&path, &["--model", "b"]).code(2).says("nothing of the plan");
    fs_err::write(&path, "models: [a]\nengines: [nativ]\n").unwrap();
    matrix(&path, &[]).code(2).says("did you mean `native`?");
    fs_err::write(&path, "models: [a]\nengines: [native]\nflags: [--dtype, f16]\n").unwrap();
    matrix(&path, &[])
        .code(2)
        .says("--dtype is none of the flags of a plan")
        .says("write `dtypes`");
    fs_err::write(&path, "models: [a]\nengines: [native]\n").unwrap();
    let board = home.path().join("board.json");
    fs_err::write(&board, "{}").unwrap();
    matrix(&path, &["--against", &board.display().to_string()]).code(2).says("it is no scoreboard");
}
