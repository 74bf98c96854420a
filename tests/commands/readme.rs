//! Tests of the README's commands, and of the program without a source tree.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::tool::{convert, copy, fixture, json, onboard, parity, root, run};

fn readme() -> String {
    fs_err::read_to_string(root().join("README.md")).unwrap()
}

/// Runs a command of a page in a folder.
fn typed(line: &str, folder: &Path) -> crate::tool::Ran {
    let mut words = line.split_whitespace();
    let mut command = match words.next().unwrap() {
        "onboard" => onboard(),
        "parity" => parity(),
        "convert" => convert(),
        other => panic!("`{other}` is no command of ours: {line}"),
    };
    run(command.args(words).current_dir(folder))
}

#[test]
fn the_readme_is_short_and_its_links_lead_somewhere() {
    let text = readme();
    assert!(text.lines().count() <= 120, "{} lines", text.lines().count());
    for link in text.split("](").skip(1).filter_map(|after| after.split(')').next()) {
        assert!(link.starts_with("http") || root().join(link).exists(), "README.md: `{link}`");
    }
}

/// True if lines of a page are those that are printed, where a line `...` matches any lines.
fn shows(shown: &[&str], printed: &[&str]) -> bool {
    let Some(gap) = shown.iter().position(|line| *line == "...") else { return shown == printed };
    let Some(behind) = printed.strip_prefix(&shown[..gap]) else { return false };
    (0..=behind.len()).any(|left_out| shows(&shown[gap + 1..], &behind[left_out..]))
}

#[test]
fn the_sessions_of_the_readme_are_what_is_printed() {
    let mut sessions = 0;
    for block in readme().split("```").skip(1).step_by(2) {
        let mut lines = block.trim_start_matches('\n').lines();
        let Some(command) = lines.next().and_then(|line| line.strip_prefix("$ ")) else { continue };
        let shown: Vec<&str> = lines.collect();
        let ran = typed(command, root());
        let printed: Vec<&str> = ran.out.lines().collect();
        assert!(shows(&shown, &printed), "shown:\n{}\nprinted:\n{}", shown.join("\n"), ran.out);
        sessions += 1;
    }
    assert!(sessions > 0, "the README shows no session");
}

#[test]
fn the_workflow_of_the_ci_page_runs_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = folder.path().join("models/tiny");
    copy("llama", &tiny);
    fs_err::create_dir(tiny.join("reference")).unwrap();
    for entry in fs_err::read_dir(fixture("llama").join("reference")).unwrap() {
        let path = entry.unwrap().path();
        fs_err::copy(&path, tiny.join("reference").join(path.file_name().unwrap())).unwrap();
    }
    typed("onboard new mine --like llama -o specs/mine.yaml", folder.path()).code(0);
    let page = fs_err::read_to_string(root().join("docs/ci.md")).unwrap();
    let workflow = page.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
    let steps: Vec<&str> =
        workflow.lines().filter_map(|line| line.trim().strip_prefix("- run: ")).collect();
    assert_eq!(steps.len(), 2, "{workflow}");
    for step in steps {
        let command = step.split(" | ").next().unwrap();
        assert!(command.starts_with("onboard") || command.contains(" --diagnose "), "{step}");
        typed(command, folder.path()).code(0);
    }
    assert!(workflow.contains("GITHUB_STEP_SUMMARY"), "{workflow}");
    let plan = page.split("```yaml").nth(2).unwrap().split("```").next().unwrap();
    assert!(plan.contains("spec: specs/mine.yaml"), "{plan}");
    assert!(
        folder.path().join("parity.xml").is_file() && folder.path().join("parity.html").is_file()
    );
}

/// Returns a line of a spec without the `#` of a key that is commented out.
fn uncommented(line: &str) -> String {
    let code =
        line.strip_prefix('#').filter(|code| !code.starts_with(' ') || code.starts_with("  "));
    code.unwrap_or(line).to_owned()
}

#[test]
fn a_new_spec_can_be_checked_at_once_and_uncommented() {
    let folder = tempfile::tempdir().unwrap();
    typed("onboard new mine", folder.path()).code(0).says("onboard check mine.yaml");
    typed("onboard new mine --like llama", folder.path()).code(2).says("is there already");
    let model = fixture("llama").display().to_string();
    let check = format!("onboard check mine.yaml --model {model}");
    typed(&check, folder.path()).code(0).prints("30 of 30 tensors used");
    let path = folder.path().join("mine.yaml");
    let text = fs_err::read_to_string(&path).unwrap();
    let lines: Vec<String> = text.lines().map(uncommented).collect();
    assert!(lines.iter().any(|line| line == "dims:"), "{text}");
    fs_err::write(&path, lines.join("\n") + "\n").unwrap();
    typed(&check, folder.path()).code(0).prints("30 of 30 tensors used");
}

#[test]
fn specs_are_found_beside_the_file_and_where_the_environment_says() {
    let folder = tempfile::tempdir().unwrap();
    let specs = folder.path().join("specs");
    fs_err::create_dir_all(specs.join("lib")).unwrap();
    fs_err::write(
        specs.join("base.yaml"),
        "spec: 1\nname: base\nextends: llama\nuse: [own]\nmatches: [BaseForCausalLM]\n",
    )
    .unwrap();
    fs_err::write(
        specs.join("kid.yaml"),
        "spec: 1\nname: kid\nextends: base\nmatches: [KidForCausalLM]\nfunctions:\n  mlp(x): |\n    return twice(x)\n",
    )
    .unwrap();
    let functions = "spec: 1\nfunctions:\n  twice(x): |\n    return x + x\n";
    fs_err::write(specs.join("lib/own.yaml"), functions).unwrap();
    typed("onboard check specs/kid.yaml", folder.path()).code(0);
    let mut list = onboard();
    list.arg("list").current_dir(folder.path());
    run(list.env("ONBOARD_SPECS", "specs")).code(0).prints("KidForCausalLM");
    run(list.env("ONBOARD_SPECS", "")).code(0).prints("LlamaForCausalLM");
    run(list.env("ONBOARD_SPECS", "nowhere")).code(2).says("ONBOARD_SPECS");
    let shown = run(onboard()
        .args(["show", "kid", "--source"])
        .env("ONBOARD_SPECS", "specs")
        .current_dir(folder.path()));
    shown.code(0).prints("twice(x)").says("`onboard show lib/own --source`");
}

/// Files and pages that only exist in the source tree.
const OF_THE_TREE: [&str; 5] = ["docs/", "registry/lib", "CONTRIBUTING", "fixtures/", "`registry/"];

#[test]
fn hints_name_commands_and_no_files_of_the_source_tree() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy("llama", &model);
    let path = model.join("config.json");
    let mut config: Value = json(&fs_err::read_to_string(&path).unwrap());
    config["strange_setting"] = 2.into();
    fs_err::write(&path, config.to_string()).unwrap();
    let ran = typed("onboard show model --states", folder.path()).code(0);
    let ran =
        ran.says("a spec of yours that extends `llama` (`onboard new NAME` with --like llama)");
    let mut all = vec![ran.err];
    config["architectures"] = serde_json::json!(["StrangeForCausalLM"]);
    config["model_type"] = "strange".into();
    config["num_hidden_layers"] = 4.into();
    fs_err::write(&path, config.to_string()).unwrap();
    let drafted = typed("onboard add-model model --out out", folder.path()).code(2);
    // The draft's file is named if the user has to act.
    let drafted = drafted
        .says("in `dims:` of `out/strange.yaml`")
        .says("onboard add-model model --spec out/strange.yaml")
        .says("onboard help spec");
    all.push(drafted.err);
    all.push(fs_err::read_to_string(folder.path().join("out/strange.yaml")).unwrap());
    fs_err::write(
        folder.path().join("no.yaml"),
        "spec: 1\nname: no\nextends: llama\nmodel: |\n  return zzz(tokens)\n",
    )
    .unwrap();
    all.push(typed("onboard check no.yaml", folder.path()).code(2).says("onboard help ops").err);
    for command in ["add-model", "check", "synth", "new", "show", "convert", "parity check"] {
        all.push(typed(&format!("onboard help {command}"), folder.path()).code(0).out);
    }
    for (text, words) in all.iter().flat_map(|text| OF_THE_TREE.map(|words| (text, words))) {
        assert!(!text.contains(words), "`{words}` in:\n{text}");
    }
}

#[test]
fn every_topic_of_help_is_explained_from_its_declaration() {
    for (topic, words) in [
        ("ops", "rope(x, table)"),
        ("rope", "one of 'half', 'interleaved', 'interleaved_to_half'"),
        ("spec", "From `tokens` to logits."),
        ("states.dtype", "needed"),
        ("gguf.weights.when", "an expression"),
        ("expressions", "Functions: `min max abs"),
        ("unstack", "one tensor becomes several"),
        ("report", "#"),
    ] {
        typed(&format!("onboard help {topic}"), root()).code(0).prints(words);
    }
    typed("onboard help ropee", root()).code(2).says("did you mean `rope`?");
    let alone = typed("parity check --help", root()).code(0).out;
    let under = typed("onboard help parity check", root()).code(0).out;
    let (_, alone) = alone.split_once("Arguments:").unwrap();
    let (_, under) = under.split_once("Arguments:").unwrap();
    assert_eq!(alone.trim_end(), under.trim_end());
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        typed(&format!("onboard completions {shell}"), root()).code(0).prints("add-model");
        typed(&format!("onboard completions {shell} parity"), root()).code(0).prints("schedules");
    }
}

#[cfg(unix)]
#[test]
fn one_program_is_all_commands_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("parity");
    fs_err::os::unix::fs::symlink(env!("CARGO_BIN_EXE_onboard"), &link).unwrap();
    run(Command::new(&link).arg("--help")).code(0).prints("Usage: parity");
    // The small programs need the large one beside them, and report its absence.
    let alone = folder.path().join("convert");
    fs_err::copy(env!("CARGO_BIN_EXE_convert"), &alone).unwrap();
    run(Command::new(&alone).arg("--help")).code(2).says("is a part of `onboard`");
    assert!(fs_err::metadata(&alone).unwrap().len() < 16 << 20, "it holds what `onboard` holds");
}

#[test]
fn tensors_with_foreign_names_are_paired_by_shape_and_role() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy("llama", &model);
    let names = [
        ("model.embed_tokens", "transformer.tok_embeddings"),
        ("model.layers", "transformer.blocks"),
        ("model.norm", "transformer.ln_f"),
        ("lm_head", "output"),
        ("self_attn.q_proj", "attention.wq"),
        ("self_attn.k_proj", "attention.wk"),
        ("self_attn.v_proj", "attention.wv"),
        ("self_attn.o_proj", "attention.wo"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    rename(&model.join("model.safetensors"), &names);
    let path = model.join("config.json");
    let mut config: Value = json(&fs_err::read_to_string(&path).unwrap());
    config["architectures"] = serde_json::json!(["StrangeForCausalLM"]);
    config["model_type"] = "strange".into();
    fs_err::write(&path, config.to_string()).unwrap();
    let ran = typed("onboard add-model model --out out", folder.path()).code(2);
    ran.prints("30 of 30 tensors used").says("nothing was proven");
    // An edited draft is not overwritten.
    typed("onboard add-model model --out out", folder.path()).code(2).says("nothing was proven");
    let path = folder.path().join("out/strange.yaml");
    let edited = fs_err::read_to_string(&path).unwrap() + "ignore:\n  config: [pretraining_tp]\n";
    fs_err::write(&path, &edited).unwrap();
    typed("onboard add-model model --out out", folder.path())
        .code(2)
        .says("--spec out/strange.yaml");
    assert_eq!(fs_err::read_to_string(&path).unwrap(), edited);
    // The same tokens as with the weights under their original names.
    let line = "onboard run model --tokens 1,5,9 -n 6 --spec out/strange.yaml";
    let mut command = onboard();
    command.arg("run").arg(fixture("llama")).args(["--tokens", "1,5,9", "-n", "6"]);
    let expected = run(&mut command).code(0).out;
    assert_eq!(typed(line, folder.path()).code(0).out, expected);
}

/// Renames the tensors of a file.
fn rename(path: &Path, names: &[(&str, &str)]) {
    let bytes = fs_err::read(path).unwrap();
    let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let header: BTreeMap<String, Value> = header
        .into_iter()
        .map(|(name, info): (String, Value)| {
            let name = names.iter().fold(name, |name, (from, to)| name.replace(from, to));
            (name, info)
        })
        .collect();
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(&bytes[8 + len..]);
    fs_err::write(path, out).unwrap();
}

#[test]
fn a_gguf_file_is_taken_or_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("lfm2").display().to_string();
    let reference = format!("--reference {model}/reference");
    for ty in ["f32", "q8_0"] {
        typed(&format!("convert {model} --to gguf:{ty} -o {ty}.gguf"), folder.path()).code(0);
    }
    let line = format!("onboard add-model f32.gguf {reference} --out out");
    let ran = typed(&line, folder.path()).code(0);
    ran.prints("proven").prints("56 tensors of the file");
    let card: Value = json(&fs_err::read_to_string(folder.path().join("out/card.json")).unwrap());
    assert_eq!(card["model"]["weights_sha256"].as_str().unwrap().len(), 64);
    assert!(card["coverage"].is_null());
    let line = format!("onboard parity check f32.gguf {reference}");
    typed(&line, folder.path()).code(0).prints("AGREE");
    let line = format!("onboard add-model q8_0.gguf {reference}");
    let ran = typed(&line, folder.path()).code(0);
    ran.prints("bits per weight").says("not proven but measured");
    typed("onboard check lfm2 --model f32.gguf", folder.path()).code(0).prints("6 layers");
    typed("convert f32.gguf --to gguf:q8_0 -o x.gguf", folder.path()).code(0);
    let ran = typed("onboard add-model f32.gguf --out out", folder.path()).code(2);
    ran.says("parity dump CHECKPOINT");
}

#[test]
fn a_safetensors_file_stands_for_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    copy("llama", &folder.path().join("model"));
    typed("onboard show model/model.safetensors --states", folder.path()).code(0).prints("kv");
    typed("onboard check llama --model model/model.safetensors", folder.path()).code(0);
    fs_err::rename(
        folder.path().join("model/model.safetensors"),
        folder.path().join("model/w.safetensors"),
    )
    .unwrap();
    typed("onboard show model/w.safetensors", folder.path())
        .code(2)
        .says("call it model.safetensors");
    fs_err::remove_file(folder.path().join("model/config.json")).unwrap();
    typed("onboard show model/w.safetensors", folder.path()).code(2).says("config.json beside it");
    typed("onboard show gone.safetensors", folder.path()).code(2).says("there is no file");
}

#[cfg(target_os = "linux")]
#[test]
fn paths_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(std::ffi::OsStr::from_bytes(b"mod\xe8le"));
    copy("lfm2", &model);
    let file = model.join("a.gguf");
    let spec = model.join("mine.yaml");
    fs_err::write(&spec, "spec: 1\nname: mine\nextends: lfm2\n").unwrap();
    run(onboard().arg("run").arg(&model).args(["--tokens", "1,2", "-n", "2"])).code(0);
    run(onboard().arg("check").arg(&spec).arg("--model").arg(&model)).code(0);
    run(convert().arg(&model).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    run(onboard().arg("show").arg(&file)).code(0).prints("GGUF version");
    run(parity()
        .arg("check")
        .arg(&model)
        .arg("--reference")
        .arg(fixture("lfm2").join("reference"))
        .args(["--dtype", "f32"]))
    .code(0);
    run(onboard()
        .arg("new")
        .arg("kid")
        .arg("--like")
        .arg(&spec)
        .arg("-o")
        .arg(model.join("kid.yaml")))
    .code(0);
    let out = folder.path().join("card");
    run(onboard().arg("add-model").arg(&model).arg("--out").arg(out))
        .code(2)
        .says("nothing was proven");
}

/// Runs a model with a prompt and bytes on standard input, and returns the exit code and both outputs.
fn prompted(model: &Path, prompt: &str, bytes: &[u8]) -> (Option<i32>, String, String) {
    let mut command = onboard();
    command.arg("run").arg(model).args(["--json", "-n", "3", "--prompt", prompt]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes).unwrap();
    let out = child.wait_with_output().unwrap();
    (
        out.status.code(),
        String::from_utf8(out.stdout).unwrap(),
        String::from_utf8(out.stderr).unwrap(),
    )
}

#[test]
fn a_prompt_comes_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy("lfm2", &model);
    let vocab: serde_json::Map<String, Value> =
        (0..312).map(|n| (format!("w{n}"), n.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w0" },
    });
    fs_err::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let (code, piped, _) = prompted(&model, "-", b"w1 w5 w9\n");
    assert_eq!(code, Some(0));
    let piped = json(&piped);
    assert_eq!(piped, json(&prompted(&model, "w1 w5 w9", b"").1));
    assert_eq!(piped["prompt_tokens"], serde_json::json!([1, 5, 9]));
    assert_eq!(piped["tokens"].as_array().unwrap().len(), 3);
    assert!(piped["text"].as_str().unwrap().starts_with('w') && piped["ended"] == "length");
    let (code, _, errors) = prompted(&model, "-", b"\xff\xfe");
    assert_eq!(code, Some(2));
    assert!(errors.contains("standard input is not UTF-8"), "{errors}");
}

#[test]
fn programs_read_what_people_read() {
    let model = fixture("lfm2").display().to_string();
    let shown = json(&typed(&format!("onboard show {model} --json"), root()).code(0).out);
    assert_eq!(shown["layers"].as_array().unwrap().len(), 6);
    assert_eq!(shown["dims"]["hidden"], 32);
    assert!(shown["states"].as_array().unwrap().iter().any(|state| state["kind"] == "conv"));
    assert!(shown["graph"].as_array().unwrap().iter().any(|node| node["op"] == "causal_conv"));
    let states = json(&typed(&format!("onboard show {model} --states --json"), root()).code(0).out);
    assert!(states.get("graph").is_none() && states.get("states").is_some());
    let bench = typed(&format!("onboard bench {model} -p 4 -n 2 -r 2 --json"), root()).code(0);
    let bench = json(&bench.out);
    assert_eq!(bench["tests"][1]["samples_ts"].as_array().unwrap().len(), 2);
    let checked =
        json(&typed(&format!("onboard check lfm2 --model {model} --json"), root()).code(0).out);
    assert_eq!((&checked["verdict"], &checked["coverage"]["used"]), (&"ok".into(), &56.into()));
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(
        folder.path().join("bad.yaml"),
        "spec: 1\nname: bad\nextends: llama\ndims:\n  eps: = 1 +\n",
    )
    .unwrap();
    let refused = json(&typed("onboard check bad.yaml --json", folder.path()).code(2).out);
    assert_eq!(refused["findings"][0]["place"]["line"], 5);
}

#[test]
fn findings_and_failures_are_annotated() {
    let folder = tempfile::tempdir().unwrap();
    let bad = "spec: 1\nname: bad\nextends: llama\ndims:\n  eps: = 1 +\n";
    fs_err::write(folder.path().join("bad.yaml"), bad).unwrap();
    typed("onboard check bad.yaml --format github", folder.path())
        .code(2)
        .says("::error file=bad.yaml,line=5,");
    fs_err::write(
        folder.path().join("wrong.yaml"),
        "spec: 1\nname: wrong\nextends: llama\nfunctions:\n  mlp(x): |\n    return linear(silu(linear(x, mlp.up_proj, ffn)) * linear(x, mlp.gate_proj, ffn), mlp.down_proj, hidden)\n",
    )
    .unwrap();
    let model = fixture("llama").display().to_string();
    let line = format!("parity check {model} --spec wrong.yaml --dtype f32 --no-schedules");
    let plain = typed(&line, folder.path()).code(1);
    assert!(!plain.err.contains("::error"), "{}", plain.err);
    typed(&(line + " --format github"), folder.path())
        .code(1)
        .says("::error file=wrong.yaml,line=6,")
        .says("title=parity%3A f32 differs::first divergence: model.layers.0.mlp.down_proj");
}

#[test]
fn annotations_tests_and_pages_begin_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("llama").display().to_string();
    let line = format!(
        "parity check {model} --set dims.eps=1e-2 --dtype f32,bf16 --no-schedules --diagnose --format github --junit p.xml --html p.html"
    );
    let cause = "cause: `eps` of `rms_norm` = 1e-5 instead of 0.01 (in 7 nodes)";
    // One run is diagnosed, and the other names its cause.
    let of_other = cause.replacen("cause", "cause of the f32 run", 1);
    typed(&line, folder.path())
        .code(1)
        .says("title=parity%3A f32 differs::registry/specs/llama.yaml:")
        .says(&format!(": {cause}%0Afirst divergence: "))
        .says(&format!("parity%3A bf16 differs::registry/specs/llama.yaml:55: {of_other}%0A"));
    let report = fs_err::read_to_string(folder.path().join("p.xml")).unwrap();
    for cause in [cause, &of_other] {
        assert!(report.contains(&format!("<failure message=\"{cause}; first divergence: ")));
    }
    let page = fs_err::read_to_string(folder.path().join("p.html")).unwrap();
    let text = page.split("<body>").nth(1).unwrap();
    let (before, _) = text.split_once("<table").unwrap();
    assert!(before.contains("<code>eps</code>") && before.contains("First divergence"), "{before}");
}

/// The description of a command describes its action, not its group of options.
#[test]
fn every_command_is_introduced_by_a_verb() {
    let help = run(onboard().arg("--help")).code(0).out;
    let (commands, _) = help.split_once("\nOptions:\n").unwrap();
    let mut count = 0;
    for line in commands.lines().filter(|line| line.starts_with("  ")) {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap();
        let verb = words.next().unwrap();
        assert!(verb.ends_with('s') && verb != "This", "{command}: {line}");
        count += 1;
    }
    assert!(count > 20, "{help}");
}

#[test]
fn the_counts_of_the_proof_are_what_is_printed() {
    let page = fs_err::read_to_string(root().join("docs/proof.md")).unwrap();
    let printed = typed("parity fit docs/proof.tsv", root()).out;
    assert!(page.contains(&printed), "docs/proof.md is stale:\n{printed}");
    let honest = printed.lines().filter(|line| line.starts_with("honest"));
    let mut alarms = 0;
    for line in honest {
        let words: Vec<&str> = line.split_whitespace().collect();
        let checks: usize = words[2].parse().unwrap();
        let false_alarms: usize = words[3].parse().unwrap();
        assert!(checks > 400, "{line}");
        alarms += false_alarms;
    }
    assert!(alarms <= 1, "{printed}");
}
