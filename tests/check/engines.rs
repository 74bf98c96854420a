//! Tests of engines in child processes: found by name, tested, compared, and rejected if they violate the
//! protocol.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool::{Ran, copy, fixture, json, onboard, parity, root, run};

fn engine(file: &str) -> PathBuf {
    root().join("tests/engines").join(file)
}

/// Runs `parity check` of a fixture in f32 with an engine and its options.
fn check(engine: &Path, options: &[&str]) -> Command {
    let mut command = parity();
    command.arg("check").arg(fixture("llama")).args(["--dtype", "f32", "--engine"]).arg(engine);
    for option in options {
        command.args(["--engine-option", option]);
    }
    command
}

#[test]
fn an_engine_of_a_few_lines_passes_its_test_and_a_check() {
    let mut test = onboard();
    test.args(["engine", "test"]).arg(engine("plain.py"));
    let ran = run(&mut test).code(0).prints("the protocol is kept in");
    for verb in ["hello", "open", "score", "step", "generate", "fork", "truncate", "release"] {
        assert!(ran.out.contains(&format!("ok  {verb}")), "{verb}:\n{}", ran.out);
    }
    // All slots are alike, so few schedules suffice.
    run(check(&engine("plain.py"), &[]).arg("--no-schedules"))
        .code(0)
        .prints("shows neither taps nor states")
        .prints("engine plain 1 on cpu, in force: theta=")
        .prints("AGREE in 1 run");
}

#[test]
fn a_wrong_engine_differs() {
    run(check(&engine("plain.py"), &["theta=5000"]).arg("--no-schedules"))
        .code(1)
        .prints("f32  prefill")
        .prints("FAIL");
}

#[test]
fn an_engine_without_a_sheet_may_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let mut convert = crate::tool::convert();
    run(convert.arg(fixture("llama")).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    let weights = format!("weights={}", fixture("llama").display());
    let check_file = |name: &str, theta: &str| {
        let mut command = parity();
        command.arg("check").arg(&file).arg("--reference").arg(fixture("llama/reference"));
        command.args(["--no-schedules", "--engine"]).arg(name);
        command.args(["--engine-option", &weights, "--engine-option", theta]);
        run(&mut command)
    };
    let plain = engine("plain.py").display().to_string();
    check_file(&plain, "theta=")
        .code(0)
        .prints("engine plain 1 on cpu, in force: theta=")
        .prints("AGREE in 1 run");
    check_file(&plain, "theta=5000").code(1).prints("FAIL");
    check_file("mlx", "theta=").code(2).says("engine `mlx` opens the folder of a checkpoint");
}

#[test]
fn an_engine_that_breaks_the_protocol_is_an_error_with_its_last_words() {
    for (fault, words) in [
        ("crash", "verb `hello`: the engine ended before it answered (exit status: 1)"),
        ("print", "standard output has `Loading checkpoint shards: 100%`, which is no answer"),
        ("id", "the answer has id 8; expected 1"),
        ("nothing", "the answer has neither `ok` nor `error`"),
        ("version", "it speaks protocol 2; expected 1"),
        ("cannot", "expected `open` and at least one of `score` and `step`"),
        ("refuses", "engine `"),
        ("vocab", "`vocab` is 12; the model has 369 tokens"),
        ("dtype", "it runs in `bf16`; `f32` was asked for"),
        ("dies", "verb `score`: the engine ended before it answered"),
        ("rows", "`rows` has shape [2, 369]; expected [1, 369]"),
        ("bytes", "expected 4 bytes per number"),
        ("huge", "has shape [1099511627776, 1099511627776]"),
        ("no frame", "the first frame is not `rows`"),
        ("nan", "frame `rows` has NaN at row 0, column 5"),
        ("infinity", "frame `rows` has inf at row 0, column 5"),
    ] {
        let ran = run(&mut check(&engine("bad.py"), &[&format!("fault={fault}")])).code(2);
        assert!(ran.err.contains(words), "{fault}: no `{words}` in\n{}", ran.err);
        let has_last_words = fault == "refuses" || ran.err.contains("loading weights");
        assert!(has_last_words, "{fault}: no last words in\n{}", ran.err);
    }
    run(&mut check(&engine("bad.py"), &["fault=refuses"])).code(2).says("no room for this model");
    // The reason follows a message that only points to it.
    run(&mut check(&engine("bad.py"), &["fault=hides"]))
        .code(2)
        .says("refuses `open`: RuntimeError: a worker failed")
        .says("standard error has: KeyError: the config has no conv_dim");
}

#[test]
fn an_engine_that_is_silent_is_killed() {
    // Engines that send a response first get enough time on a busy machine.
    for (fault, seconds, words) in [
        ("silent", "0.5", "no answer within 0.5 s; it sent nothing"),
        ("no end of line", "5", "it sent `{xxx"),
        ("short", "5", "too few bytes of frame `rows`"),
    ] {
        let mut command = check(&engine("bad.py"), &[&format!("fault={fault}")]);
        let ran = run(command.args(["--engine-timeout", seconds]));
        let ran = ran.code(2).says("give --engine-timeout SECONDS");
        assert!(ran.err.contains(words), "{fault}: no `{words}` in\n{}", ran.err);
    }
}

#[test]
fn the_conformance_test_names_the_verb_that_is_wrong() {
    for (fault, verb, words) in [
        ("order", "step", "carry cache and positions on"),
        ("flat", "step", "the same probability"),
        ("position", "step", "`at` is how many tokens"),
        ("batch", "step", "must not see padding"),
        ("stale", "score", "no cache may be left"),
        ("sampling", "generate", "choose greedily"),
        ("fork", "fork", "copy every state"),
        ("truncate", "truncate", "forget every state"),
        ("release", "release", "no state of the sequence before"),
        ("room", "score", "answer with `error`"),
        ("unknown", "(unknown)", "answer a verb that you do not know"),
    ] {
        let mut command = onboard();
        command.args(["engine", "test"]).arg(engine("faulty.py"));
        command.args(["--engine-option", &format!("fault={fault}")]);
        let ran = run(&mut command).code(1);
        let line = ran.out.lines().find(|line| line.starts_with("FAIL") && line.contains(words));
        let line = line.unwrap_or_else(|| panic!("{fault}: no `{words}` in\n{}", ran.out));
        assert!(line["FAIL".len()..].trim_start().starts_with(verb), "{fault}: {line}");
    }
}

#[test]
#[cfg(unix)]
fn engines_are_found_by_sheet_and_on_the_path() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let sheets = dir.path().join("sheets");
    let bin = dir.path().join("bin");
    fs_err::create_dir_all(&sheets).unwrap();
    fs_err::create_dir_all(&bin).unwrap();
    fs_err::copy(engine("plain.py"), sheets.join("mine.py")).unwrap();
    let sheet = "engine: mine\nkind: child\nran_with: 1 to 2\nprogram: [./mine.py]\nshows: [rows]\ndtypes: [f32]\n";
    fs_err::write(sheets.join("mine.yaml"), sheet).unwrap();
    let program = bin.join("onboard-engine-other");
    fs_err::write(&program, format!("#!/bin/sh\nexec python3 {}\n", engine("plain.py").display()))
        .unwrap();
    fs_err::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let here = |command: &mut Command| -> Ran {
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        run(command.env("PATH", path).env("ONBOARD_ENGINES", &sheets))
    };
    let list = here(onboard().args(["engine", "list"])).code(0);
    for line in [
        "native        in_process",
        "mine          child       1 to 2",
        "other         child       unknown",
    ] {
        assert!(list.out.contains(line), "no `{line}` in\n{}", list.out);
    }
    let rows = json(&here(onboard().args(["engine", "list", "--json"])).code(0).out);
    assert!(rows.as_array().unwrap().iter().any(|row| row["engine"] == "transformers"));
    for name in ["mine", "other"] {
        here(onboard().args(["engine", "test", name])).code(0);
    }
    here(onboard().args(["engine", "test", "nobody"]))
        .code(2)
        .says("there is no engine `nobody`; there are: native");
    here(&mut check(Path::new("mine"), &["colour=red"]))
        .code(2)
        .says("no option colour; there are: theta");
    fs_err::write(sheets.join("mine.yaml"), "engine: mine\nkind: child\ndtypes: [f32]\n").unwrap();
    here(onboard().args(["engine", "list"]))
        .code(2)
        .says("mine.yaml`: line 1: a sheet needs one of `plugin` and `program`");
}

#[test]
fn what_an_engine_cannot_be_asked_is_refused() {
    let plain = engine("plain.py");
    for (more, words) in [
        (vec!["--set", "dims.eps=1"], "--set has no effect on it"),
        (vec!["--threads", "2"], "--threads has no effect on it"),
        (vec!["--engine-option", "theta"], "expected KEY=VALUE"),
        (vec!["--engine-timeout", "never"], "expected seconds"),
    ] {
        run(check(&plain, &[]).args(more)).code(2).says(words);
    }
    for (engine, words) in [
        ("./no/such.py", "there is no file `./no/such.py`"),
        ("./README.md", "neither a Python file (.py) nor a program"),
        ("http://localhost:1", "no connection"),
    ] {
        run(&mut check(Path::new(engine), &[])).code(2).says(words);
    }
    run(&mut check(Path::new("native"), &["a=b"])).code(2).says("takes no --engine-option");
    let mut missing = onboard();
    missing.args(["engine", "test", "vllm"]).env("ONBOARD_PYTHON", "/nonexistent/python");
    run(&mut missing).code(2).says("`/nonexistent/python`").says("-m pip install 'vllm'");
}

#[test]
fn a_model_without_a_spec_is_compared_by_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama", dir.path());
    let config = fs_err::read_to_string(dir.path().join("config.json")).unwrap();
    let config =
        config.replace("LlamaForCausalLM", "NobodyForCausalLM").replace("\"llama\"", "\"nobody\"");
    fs_err::write(dir.path().join("config.json"), config).unwrap();
    let mut command = parity();
    command.arg("check").arg(dir.path()).arg("--reference").arg(fixture("llama").join("reference"));
    // The dump is of the folder that was copied.
    command.arg("--source").arg(fixture("llama")).args([
        "--dtype",
        "f32",
        "--no-schedules",
        "--engine",
    ]);
    run(command.arg(engine("plain.py")))
        .code(0)
        .says("no spec matches the architecture `NobodyForCausalLM`")
        .prints("AGREE in 1 run");
}

/// Returns the state and the parent of a process.
#[cfg(target_os = "linux")]
fn process_state(id: &str) -> Option<(String, String)> {
    let text = fs_err::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

#[test]
#[cfg(target_os = "linux")]
fn a_stopped_command_leaves_no_engine_behind() {
    use std::io::Read as _;
    let mut command = check(&engine("bad.py"), &["fault=silent"]);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let parent = child.id().to_string();
    let engine = loop {
        let ids = fs_err::read_dir("/proc").unwrap().flatten();
        let mut ids = ids.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let engine = ids.find(|id| process_state(id).is_some_and(|(_, of)| of == parent));
        if let Some(engine) = engine {
            break engine;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let kill = format!("kill -INT {parent}");
    Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(errors.contains("stopped"), "{errors}");
    // A killed process stays a zombie until its parent waits for it. On a busy machine this takes a moment.
    let ended = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        process_state(&engine).is_none_or(|(state, _)| state == "Z")
    });
    assert!(ended, "the engine {engine} still runs");
}

/// True if a process has a word in its command line.
#[cfg(target_os = "linux")]
fn is_in_a_command_line(word: &str) -> bool {
    let ids = fs_err::read_dir("/proc").unwrap().flatten();
    let mut lines = ids.filter_map(|entry| fs_err::read(entry.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|part| part == word.as_bytes()))
}

#[test]
#[cfg(target_os = "linux")]
fn processes_in_other_sessions_end_with_the_engine() {
    // A number of seconds that no other process has in its command line.
    let seconds = format!("9{:07}.25", std::process::id());
    let option = format!("seconds={seconds}");
    let mut command = check(&engine("bad.py"), &["fault=own session", &option]);
    run(&mut command).code(1);
    // A killed process stays a zombie, without words, until it is waited for.
    let ended = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        !is_in_a_command_line(&seconds)
    });
    assert!(ended, "a process of the engine still runs");
}
