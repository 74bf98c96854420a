//! Tests of commands as typed by a user: exit codes, output streams, remaining files.

use serde_json::Value;

use crate::tool::{convert, copy, fixture, onboard, parity, root, run};

#[test]
fn a_model_with_a_reference_is_proven_and_gets_a_card() {
    let out = tempfile::tempdir().unwrap();
    let ran = run(onboard().arg("add-model").arg(fixture("lfm2")).arg("--out").arg(out.path()));
    let ran = ran.code(0).prints("each once").prints("proven").prints("card.md");
    assert!(!ran.out.contains('\x1b'), "no colour in a pipe");
    let card: Value =
        serde_json::from_slice(&fs_err::read(out.path().join("card.json")).unwrap()).unwrap();
    assert_eq!(card["verdict"], "proven");
    assert_eq!(card["coverage"]["used"], card["coverage"]["tensors"]);
    for key in ["config_sha256", "weights_sha256"] {
        assert_eq!(card["model"][key].as_str().unwrap().len(), 64, "{key}");
    }
    let text = fs_err::read_to_string(out.path().join("card.md")).unwrap();
    assert!(text.contains("**proven**") && text.contains("decode"), "{text}");
}

#[test]
fn the_same_inputs_give_the_same_card() {
    let cards: Vec<Vec<u8>> = ["1", "2"]
        .iter()
        .map(|threads| {
            let out = tempfile::tempdir().unwrap();
            run(onboard()
                .arg("add-model")
                .arg(fixture("llama"))
                .arg("--out")
                .arg(out.path())
                .args(["--threads", threads]))
            .code(0);
            fs_err::read(out.path().join("card.json")).unwrap()
        })
        .collect();
    assert!(cards[0] == cards[1], "thread counts do not show");
}

#[test]
fn a_model_without_a_reference_is_not_proven() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("bare");
    copy_model("lfm2", &model);
    run(onboard().arg("add-model").arg(&model).arg("--out").arg(out.path().join("card")))
        .code(2)
        .says("nothing was proven")
        .says("parity dump");
}

#[test]
fn an_unknown_class_of_a_known_design_is_drafted_and_proven() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("cousin");
    copy_model("qwen3", &model);
    edit_config(&model, |config| {
        config["architectures"] = serde_json::json!(["CousinForCausalLM"]);
        config["model_type"] = "cousin".into();
    });
    let ran = run(onboard().arg("add-model").arg(&model).arg("--out").arg(out.path().join("card")));
    let ran = ran.code(2).says("drafted").says("nothing was proven");
    assert!(ran.out.contains("extends qwen3"), "{}", ran.out);
    let draft = fs_err::read_to_string(out.path().join("card/cousin.yaml")).unwrap();
    assert!(
        draft.contains("extends: qwen3") && draft.contains("matches: [CousinForCausalLM]"),
        "{draft}"
    );
}

#[test]
fn a_draft_lists_what_it_cannot_explain() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("stranger");
    copy_model("gpt_neox", &model);
    edit_config(&model, |config| {
        config["architectures"] = serde_json::json!(["StrangerForCausalLM"]);
    });
    run(onboard()
        .arg("add-model")
        .arg(&model)
        .args(["--like", "llama"])
        .arg("--out")
        .arg(out.path().join("card")))
    .code(2)
    .says("StrangerForCausalLM")
    .says("onboard show llama --source");
    let list = out.path().join("card/gpt_neox_draft.findings.txt");
    let list = fs_err::read_to_string(list).unwrap();
    assert!(list.contains("gpt_neox.layers.{0..2}.attention.query_key_value.weight"), "{list}");
}

#[test]
fn a_draft_fits_on_a_screen_and_a_folder_hides_no_spec() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("stranger");
    copy_model("nemotron_h_moe", &model);
    edit_config(&model, |config| {
        config["architectures"] = serde_json::json!(["StrangerForCausalLM"]);
        for n in 0..60 {
            config[format!("strange_setting_{n}")] = n.into();
        }
    });
    // Folders and files of these names are no specs.
    fs_err::create_dir(dir.path().join("llama")).unwrap();
    fs_err::write(dir.path().join("qwen3"), "no spec").unwrap();
    for (like, code) in [("llama", 2), ("qwen3", 2), ("nemotron_h", 2)] {
        let out = format!("out-{like}");
        let mut command = onboard();
        command.args(["add-model", "stranger", "--like", like, "--out", &out]);
        let ran = run(command.current_dir(dir.path())).code(code);
        let lines = ran.out.lines().count() + ran.err.lines().count();
        assert!(lines <= 24, "{lines} lines\n{}{}", ran.out, ran.err);
        let list = dir.path().join(out).join("nemotron_h_draft.findings.txt");
        let list = fs_err::read_to_string(list).unwrap();
        assert!(list.contains("strange_setting_59"), "{list}");
    }
    for name in ["llama", "qwen3"] {
        let mut command = onboard();
        command.args(["show", name, "--source"]).current_dir(dir.path());
        run(&mut command).code(0).prints(&format!("name: {name}"));
        let mut command = onboard();
        command.args(["check", name]).current_dir(dir.path());
        run(&mut command).code(0).prints("reads as a spec");
    }
}

#[test]
fn a_changed_state_dtype_is_refused_and_can_be_studied() {
    let mut check = parity();
    check.arg("check").arg(fixture("lfm2"));
    check.args(["--dtype", "f16", "--set", "states.conv.dtype=bf16"]);
    run(&mut check).code(2).says("conv");
    run(check.arg("--allow-dtype-mismatch")).code(1).prints("conv");
}

#[test]
fn reports_go_where_they_are_sent() {
    let out = tempfile::tempdir().unwrap();
    let [json, html, junit] = ["r.json", "r.html", "r.xml"].map(|name| out.path().join(name));
    let mut command = parity();
    command.arg("check").arg(fixture("llama")).args(["--dtype", "f32"]);
    command.arg("--json").arg(&json).arg("--html").arg(&html).arg("--junit").arg(&junit);
    run(&mut command).code(0).prints("AGREE");
    let report: Value = serde_json::from_slice(&fs_err::read(json).unwrap()).unwrap();
    assert_eq!(report["verdict"], "pass");
    assert!(fs_err::read_to_string(html).unwrap().starts_with("<!"));
    assert!(fs_err::read_to_string(junit).unwrap().contains("<testsuite"));
    let left = fs_err::read_dir(out.path()).unwrap().count();
    assert_eq!(left, 3, "no temporary file stays");
}

#[test]
fn tokens_are_continued_the_same_way_each_time() {
    let greedy = continued(&[]);
    assert_eq!(greedy.trim().split(',').count(), 6, "{greedy}");
    assert_eq!(greedy, continued(&["--threads", "1"]));
    let sampled = ["--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--seed", "3"];
    assert_eq!(continued(&sampled), continued(&sampled));
}

/// Returns the six tokens that a model generates after a prompt.
fn continued(more: &[&str]) -> String {
    let mut command = onboard();
    command.arg("run").arg(fixture("lfm2")).args(["--tokens", "1,5,9", "-n", "6"]).args(more);
    run(&mut command).code(0).out
}

#[test]
fn text_needs_a_tokenizer() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("model");
    copy_model("lfm2", &model);
    run(onboard().arg("run").arg(&model).args(["--prompt", "Hello"]))
        .code(2)
        .says("tokenizer.json")
        .says("--tokens");
    write_words(&model, "");
    let ran =
        run(onboard().arg("run").arg(&model).args(["--prompt", "w1 w5 w9", "-n", "4"])).code(0);
    assert!(ran.out.split_whitespace().all(|word| word.starts_with('w')), "{}", ran.out);
}

/// Writes a tokenizer of the words `w0`, `w1`, ..., each with the same suffix.
fn write_words(model: &std::path::Path, end: &str) {
    let vocab: serde_json::Map<String, Value> =
        (0..312).map(|n| (format!("w{n}{end}"), n.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": format!("w0{end}") },
    });
    fs_err::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

#[test]
fn tokens_that_spell_control_characters_do_not_move_the_terminal() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("model");
    copy_model("lfm2", &model);
    write_words(&model, "\u{1b}[2J");
    let ran = run(onboard().arg("run").arg(&model).args(["--prompt", "w1", "-n", "2"])).code(0);
    let ran = ran.prints("\\u001b[2J w");
    assert!(!ran.out.contains('\u{1b}'), "{:?}", ran.out);
}

#[test]
fn a_random_checkpoint_can_be_shown_and_measured() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("random");
    let config = fixture("lfm2").join("config.json");
    let mut synth = onboard();
    synth.args(["synth", "lfm2", "--dtype", "bf16", "--config"]).arg(&config);
    synth.arg("-o").arg(&model);
    run(&mut synth).code(0).prints("model.safetensors");
    run(&mut synth).code(2).says("has a checkpoint already");
    run(onboard().arg("bench").arg(&model).args(["-p", "8", "-n", "4", "-r", "2"]))
        .code(0)
        .prints("| model")
        .prints("pp8")
        .prints("tg4")
        .prints("±");
}

#[test]
fn the_config_of_the_measured_model_has_its_size() {
    let config = root().join("fixtures/configs/lfm2_700m.json");
    let ran = run(onboard().args(["show", "lfm2", "--weights", "--config"]).arg(config)).code(0);
    assert!(ran.out.contains("742") && ran.out.contains("[65536, 1536]"), "{}", ran.out);
}

#[test]
fn the_script_is_printed() {
    let folder = root().join("parity/reference");
    let mut left = run(parity().args(["dump", "--script"])).code(0).out;
    // Every module is there as it is written.
    for entry in fs_err::read_dir(folder.join("onboard_dump")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "py") {
            let name = path.file_name().unwrap().to_str().unwrap();
            let text = fs_err::read_to_string(&path).unwrap();
            let text = format!("    \"onboard_dump/{name}\": r'''{text}''',\n");
            assert_eq!(left.matches(&text).count(), 1, "{name}");
            left = left.replacen(&text, "", 1);
        }
    }
    let script = fs_err::read_to_string(folder.join("dump.py")).unwrap();
    assert_eq!(left.replacen("= {\n}\n", "= {}\n", 1), script);
    let chat = run(parity().args(["dump", "--script", "chat"])).code(0);
    assert_eq!(chat.out, fs_err::read_to_string(folder.join("chat.py")).unwrap());
}

#[test]
fn a_python_without_transformers_is_named() {
    let mut command = parity();
    command.arg("dump").arg(fixture("lfm2")).args([
        "-o",
        "/nonexistent/dump",
        "--python",
        "/nonexistent/python",
    ]);
    run(&mut command).code(2).says("/nonexistent/python").says("--python");
}

/// Writes a program that imitates python: it has torch and transformers or not, and records its arguments.
#[cfg(unix)]
fn python(path: &std::path::Path, has_torch: bool) {
    use std::os::unix::fs::PermissionsExt as _;
    let has = i32::from(!has_torch);
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = -c ]; then exit {has}; fi\necho \"$0 $@\" > \"$(dirname \"$0\")/called\"\n"
    );
    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
    fs_err::write(path, text).unwrap();
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
#[cfg(unix)]
fn the_reference_gets_what_the_command_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let interpreter = dir.path().join("python");
    let file = dir.path().join("mine.py");
    python(&interpreter, true);
    fs_err::write(&file, "").unwrap();
    let mut command = parity();
    command.arg("dump").arg(fixture("lfm2")).args([
        "-o",
        "OUT",
        "--trust-remote-code",
        "--dtypes",
        "f32",
    ]);
    command.arg("--import").arg(&file).arg("--python").arg(&interpreter).args(["--", "--no-taps"]);
    run(&mut command).code(0);
    let called = fs_err::read_to_string(dir.path().join("called")).unwrap();
    let expected =
        format!("-o OUT --dtypes f32 --trust-remote-code --import {} --no-taps", file.display());
    assert!(called.contains(&expected), "{called}");
    let mut command = parity();
    command.arg("dump").arg(fixture("lfm2")).args(["-o", "OUT", "--import", "/nonexistent.py"]);
    run(&mut command).code(2).says("--import /nonexistent.py").says("expected a Python file");
}

/// Runs `parity dump --judge` with an interpreter and further arguments.
#[cfg(unix)]
fn judged(interpreter: &std::path::Path, more: &[&str]) -> crate::tool::Ran {
    let mut command = parity();
    command.arg("dump").arg(fixture("lfm2")).args(["-o", "OUT", "--judge", "--python"]);
    run(command.arg(interpreter).args(more))
}

#[test]
#[cfg(unix)]
fn the_reference_is_judged_whole_and_by_the_script_alone() {
    let dir = tempfile::tempdir().unwrap();
    let interpreter = dir.path().join("python");
    python(&interpreter, true);
    judged(&interpreter, &[]).code(0);
    let called = fs_err::read_to_string(dir.path().join("called")).unwrap();
    assert!(called.trim_end().ends_with("-o OUT --judge"), "{called}");
    for (flag, value) in [("--layers", "0"), ("--pieces", "P")] {
        judged(&interpreter, &[flag, value]).code(2).says("--judge").says(flag);
    }
    judged(&interpreter, &["--layerwise"]).code(2).says("--judge").says("--layerwise");
    let mut command = parity();
    command.arg("dump").arg(fixture("lfm2")).args(["-o", "OUT", "--engine", "native", "--judge"]);
    run(&mut command).code(2).says("--judge: only the reference script has a use for it");
}

#[test]
#[cfg(unix)]
fn the_python_of_the_active_environment_comes_before_uv() {
    let dir = tempfile::tempdir().unwrap();
    let env = dir.path().join("env");
    let path = dir.path().join("path");
    let mut dump = parity();
    dump.arg("dump").arg(fixture("lfm2")).args(["-o", "OUT"]);
    let system = std::env::var("PATH").unwrap_or_default();
    dump.env("PATH", format!("{}:{system}", path.display())).env("VIRTUAL_ENV", &env);
    dump.env_remove("CONDA_PREFIX");
    python(&path.join("uv"), true);
    python(&path.join("python3"), false);
    python(&path.join("python"), false);
    python(&env.join("bin/python"), false);
    run(&mut dump).code(0).says("`uv run`");
    assert!(fs_err::read_to_string(path.join("called")).unwrap().contains("uv run --script"));
    fs_err::remove_file(path.join("called")).unwrap();
    python(&path.join("python3"), true);
    run(&mut dump).code(0).says("`python3`");
    assert!(path.join("called").exists() && !env.join("bin/called").exists());
    python(&env.join("bin/python"), true);
    run(&mut dump).code(0).says("env/bin/python");
    assert!(env.join("bin/called").exists());
}

#[test]
fn code_of_a_checkpoint_is_copied_only_if_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("lfm2", &model);
    fs_err::write(model.join("modeling_x.py"), "print('code')\n").unwrap();
    let plain = dir.path().join("plain");
    run(convert().arg(&model).args(["--to", "bf16", "-o"]).arg(&plain))
        .code(0)
        .says("left out (modeling_x.py)")
        .says("--copy-code");
    assert!(!plain.join("modeling_x.py").exists());
    let with_code = dir.path().join("wanted");
    let mut command = convert();
    command.arg(&model).args(["--to", "bf16", "--copy-code", "-o"]).arg(&with_code);
    assert!(!run(&mut command).code(0).err.contains("left out"));
    assert!(with_code.join("modeling_x.py").exists());
}

#[test]
#[cfg(unix)]
fn a_checkpoint_with_code_of_its_own_says_which_flag_runs_it() {
    let dir = tempfile::tempdir().unwrap();
    let interpreter = dir.path().join("python");
    python(&interpreter, true);
    let config = r#"{"auto_map": {"AutoConfig": "configuration_x.C", "AutoModelForCausalLM": "modeling_x.M"}}"#;
    fs_err::write(dir.path().join("config.json"), config).unwrap();
    let mut dump = parity();
    dump.arg("dump").arg(dir.path()).args(["-o", "OUT", "--python"]).arg(&interpreter);
    let ran = run(&mut dump).code(0);
    ran.says("configuration_x.py, modeling_x.py").says("--trust-remote-code");
    let ran = run(dump.arg("--trust-remote-code")).code(0);
    assert!(!ran.err.contains("modeling_x.py"));
}

#[test]
fn a_format_that_nobody_knows_is_refused() {
    let lfm2 = fixture("lfm2");
    run(onboard().arg("convert").arg(lfm2).args(["--to", "fp9", "-o", "x"]))
        .code(2)
        .says("`fp9` is not known");
    run(convert().arg("--help")).code(0).prints("--to");
}

#[test]
fn both_spellings_are_one_command() {
    let alone = run(parity().args(["check", "--help"])).code(0).out;
    let under = run(onboard().args(["parity", "check", "--help"])).code(0).out;
    assert_eq!(
        alone.split_once("Arguments:").unwrap().1,
        under.split_once("Arguments:").unwrap().1
    );
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    use std::process::Stdio;
    let mut child = onboard()
        .args(["show"])
        .arg(fixture("lfm2"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("panicked") && !errors.contains("error"), "{errors}");
}

#[test]
fn a_signal_leaves_no_half_file() {
    let config = root().join("fixtures/configs/lfm2_700m.json");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let out = tempfile::tempdir().unwrap();
        let model = out.path().join("large");
        let part = model.join("model.safetensors.part");
        let mut command = onboard();
        command.args(["synth", "lfm2", "--dtype", "f32", "--config"]).arg(&config);
        command.arg("-o").arg(&model).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        while !part.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let killed =
            std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(killed.unwrap().success(), "it was still writing");
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(!part.exists() && !model.join("model.safetensors").exists());
    }
}

#[test]
fn wrong_arguments_exit_with_2_and_help_with_0() {
    run(onboard().arg("frobnicate")).code(2);
    run(&mut onboard()).code(2);
    for command in
        ["add-model", "show", "check", "list", "run", "bench", "synth", "parity", "convert"]
    {
        let ran = run(onboard().args([command, "--help"])).code(0);
        assert!(ran.err.is_empty() && ran.out.contains("Usage:"), "{command}");
    }
}

fn copy_model(name: &str, to: &std::path::Path) {
    fs_err::create_dir_all(to).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs_err::copy(fixture(name).join(file), to.join(file)).unwrap();
    }
}

fn edit_config(model: &std::path::Path, edit: impl FnOnce(&mut Value)) {
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs_err::write(path, config.to_string()).unwrap();
}
