//! Checks of chat templates and tokenizers by `parity check --chat`.

use std::path::{Path, PathBuf};

use crate::tool::{convert, copy, copy_folder, fixture, json, onboard, parity, root, run};

/// Template of the record, which `parity/reference/chat.py` wrote for the same folder.
const TEMPLATE: &str = "chat/tests/templates/im_blocks_tools.jinja";

/// Makes a checkpoint with a template and its record.
fn model(dir: &Path) -> PathBuf {
    let model = dir.join("model");
    copy("llama3", &model);
    fs_err::copy(root().join(TEMPLATE), model.join("chat_template.jinja")).unwrap();
    fs_err::create_dir_all(model.join("reference")).unwrap();
    let record = root().join("tests/commands/chat_record.json");
    fs_err::copy(record, model.join("reference/chat.json")).unwrap();
    model
}

#[test]
fn a_checkpoint_and_its_file_equal_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    run(parity().arg("check").arg(&model).arg("--chat"))
        .code(0)
        .prints("conversations with equal text: 12 of 12")
        .prints("conversations with equal tokens: 12 of 12");
    let file = dir.path().join("m.gguf");
    run(convert().arg(&model).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    let reference = model.join("reference");
    let ran = run(parity()
        .arg("check")
        .arg(&file)
        .args(["--chat", "--json", "--reference"])
        .arg(reference));
    let report = json(&ran.code(0).out);
    assert_eq!(report["renderings"], json(r#"{"equal": 12, "of": 12}"#), "{report:#}");
    assert_eq!(report["tokens"], json(r#"{"equal": 12, "of": 12}"#), "{report:#}");
    // Special tokens inside of texts are recognized, as in transformers.
    assert_eq!(report["corpus"], json(r#"{"equal": 70, "of": 70}"#), "{report:#}");
}

#[test]
fn an_altered_template_differs() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let path = model.join("chat_template.jinja");
    let text = fs_err::read_to_string(&path).unwrap().replace("<|im_end|>", "<|end|>");
    fs_err::write(&path, text).unwrap();
    run(parity().arg("check").arg(&model).arg("--chat"))
        .code(1)
        .prints("is not the recorded one")
        .prints("conversation `user`: after");
    fs_err::remove_file(path).unwrap();
    fs_err::remove_file(model.join("tokenizer_config.json")).unwrap();
    run(parity().arg("check").arg(&model).arg("--chat")).code(1).prints("has no chat template");
    fs_err::remove_dir_all(model.join("reference")).unwrap();
    run(parity().arg("check").arg(&model).arg("--chat")).code(2).says("has no record of chats");
}

/// Returns the card of a model as a page and as JSON.
fn card(model: &Path, out: &Path) -> (String, serde_json::Value) {
    run(onboard().arg("add-model").arg(model).arg("--out").arg(out)).code(0);
    let text = fs_err::read_to_string(out.join("card.md")).unwrap();
    (text, json(&fs_err::read_to_string(out.join("card.json")).unwrap()))
}

#[test]
fn a_card_shows_the_check_of_the_chat_template() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let reference = model.join("reference");
    copy_folder(&fixture("llama3").join("reference"), &reference);
    fs_err::copy(root().join("tests/commands/chat_record.json"), reference.join("chat.json"))
        .unwrap();
    let (text, sound) = card(&model, &dir.path().join("sound"));
    assert_eq!(sound["chat"]["format"], "hermes");
    assert_eq!(sound["chat"]["check"]["renderings"], json(r#"{"equal": 12, "of": 12}"#));
    assert_eq!(sound["chat"]["check"]["corpus"], json(r#"{"equal": 70, "of": 70}"#));
    assert!(text.contains("conversations with equal text") && text.contains("hermes"), "{text}");
    // A template that writes the BOS token, which the tokenizer adds too.
    let mut record = json(&fs_err::read_to_string(reference.join("chat.json")).unwrap());
    for rendering in record["renderings"].as_array_mut().unwrap() {
        if let Some(text) =
            rendering["text"].as_str().map(|text| "<|begin_of_text|>".to_owned() + text)
        {
            rendering["text"] = text.into();
            rendering["ids"].as_array_mut().unwrap().insert(0, 304.into());
        }
    }
    fs_err::write(reference.join("chat.json"), record.to_string()).unwrap();
    let path = model.join("chat_template.jinja");
    let other = "{{ bos_token }}".to_owned() + &fs_err::read_to_string(&path).unwrap();
    fs_err::write(path, other).unwrap();
    let (text, changed) = card(&model, &dir.path().join("changed"));
    let findings = changed["chat"]["check"]["findings"].as_array().unwrap();
    assert_eq!(changed["chat"]["check"]["tokens"], json(r#"{"equal": 12, "of": 12}"#));
    assert!(findings.iter().any(|finding| finding["kind"] == "double-bos"), "{changed:#}");
    assert!(text.contains("Differs [template]") && text.contains("Warning [double-bos]"), "{text}");
    assert!(!text.contains(dir.path().to_str().unwrap()), "no local path: {text}");
    fs_err::remove_file(reference.join("chat.json")).unwrap();
    let (text, none) = card(&model, &dir.path().join("none"));
    assert!(none["chat"]["check"].is_null() && text.contains("no record of chats"), "{text}");
}
