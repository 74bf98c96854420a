//! Checks that files are opened, and the tokenizers library is called, in one place each.

use std::path::{Path, PathBuf};

#[cfg(unix)]
use crate::tool::Ran;
use crate::tool::{SOURCES, convert, copy, onboard, root, run};

/// Calls that open or read a file, and where each is allowed.
const READS: [&str; 7] = [
    "fs_err::read(",
    "fs_err::read_to_string(",
    "fs_err::File::open(",
    "std::fs::read(",
    "std::fs::read_to_string(",
    "std::fs::File::open(",
    "read_to_end(",
];

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// Returns the source lines, without tests, that contain any of these texts.
fn lines(texts: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    for folder in SOURCES {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "the sources were found");
    let mut places = Vec::new();
    for path in files {
        let text = fs_err::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        // Test modules come last in a file.
        let program = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
        for line in program.lines() {
            if texts.iter().any(|text| line.contains(text)) {
                places.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    places.sort();
    places
}

#[test]
fn files_are_read_through_limits() {
    let mut reads = lines(&READS);
    // A folder is opened to be synced, and tests of the schema read it.
    reads.retain(|line| {
        !line.contains(".sync_all()") && !line.starts_with("registry/src/schema.rs")
    });
    // Answers of servers and hubs and the environments of processes are no files; their readers or the system limit
    // them.
    let clients = [
        "registry/src/file.rs",
        "endpoints/src/http.rs",
        "hub/src/",
        "engine/src/child/process.rs",
    ];
    reads.retain(|line| !clients.iter().any(|client| line.starts_with(client)));
    assert!(
        reads.is_empty(),
        "use registry::file, which refuses pipes, devices and files beyond a limit:\n{}",
        reads.join("\n")
    );
}

#[test]
fn one_module_calls_the_library_of_tokenizers() {
    let mut calls = lines(&["tokenizers::", "use tokenizers"]);
    calls.retain(|line| {
        !line.starts_with("converters/tokenizers/src/reference")
            && !line.contains("onboard_tokenizers")
    });
    assert!(calls.is_empty(), "use tokenizer::Reference:\n{}", calls.join("\n"));
}

/// Measures a model on a text that cannot be read.
#[cfg(unix)]
fn refused_text(model: &Path, text: &str) -> Ran {
    let mut command = onboard();
    command.arg("imatrix").arg(model).args(["--chunk", "16", "--text", text, "-o"]);
    run(command.arg(model.with_file_name("im.gguf"))).code(2)
}

/// A special file, or a file that claims to be huge, is rejected by name at once.
#[test]
#[cfg(unix)]
fn pipes_devices_and_sparse_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("llama_256", &model);
    refused_text(&model, "/dev/zero").says("is a device, not a regular file");
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let ran = refused_text(&model, pipe.to_str().unwrap());
    ran.says("is a named pipe, not a regular file");
    for name in ["generation_config.json", "tokenizer_config.json"] {
        fs_err::File::create(model.join(name)).unwrap().set_len(200_000_000_000).unwrap();
    }
    let output = dir.path().join("m.gguf");
    run(convert().arg(&model).args(["--to", "gguf:f16", "-o"]).arg(&output))
        .code(2)
        .says("a tokenizer file has at most");
    let folder = dir.path().join("copied");
    run(convert().arg(&model).args(["--to", "bf16", "-o"]).arg(&folder))
        .code(2)
        .says("has 186 GiB");
    fs_err::remove_file(model.join("config.json")).unwrap();
    fs_err::rename(&pipe, model.join("config.json")).unwrap();
    run(onboard().arg("show").arg(&model)).code(2).says("is a named pipe, not a regular file");
}

/// Named chat templates are in a folder of their own, which is copied.
#[test]
fn named_chat_templates_are_carried() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    let bf16 = dir.path().join("made");
    copy("llama_256", &model);
    fs_err::write(model.join("chat_template.jinja"), "plain").unwrap();
    let templates = model.join("additional_chat_templates");
    fs_err::create_dir(&templates).unwrap();
    fs_err::write(templates.join("tool_use.jinja"), "{{ tools }}").unwrap();
    fs_err::write(templates.join("other.bin"), "x").unwrap();
    run(convert().arg(&model).args(["--to", "bf16", "-o"]).arg(&bf16)).code(0);
    let carried = bf16.join("additional_chat_templates");
    assert_eq!(fs_err::read_to_string(carried.join("tool_use.jinja")).unwrap(), "{{ tools }}");
    assert!(!carried.join("other.bin").exists());
    let file = dir.path().join("m.gguf");
    run(convert().arg(&model).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    let file = formats::gguf::GgufFile::open(&file).unwrap();
    let named = file.metadata().str("tokenizer.chat_template.tool_use").unwrap();
    assert_eq!(named, Some("{{ tools }}"));
}

/// A prompt is read whole, although tokenizer.json truncates, and a note is shown once.
#[test]
fn truncation_in_a_file_does_not_shorten_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("llama_256", &model);
    let mut generate = onboard();
    generate.arg("run").arg(&model).args(["-n", "4", "--prompt", "a b c d e f g h i j"]);
    let plain = run(&mut generate).code(0);
    let path = model.join("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 32}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    fs_err::write(&path, json.to_string()).unwrap();
    let shortened = run(&mut generate).code(0);
    assert_eq!(shortened.out, plain.out);
    assert_eq!(
        shortened.err.matches("sets truncation and padding").count(),
        1,
        "{}",
        shortened.err
    );
}
