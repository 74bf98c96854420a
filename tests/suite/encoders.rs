//! Runs `parity check` on encoders of images, which are models of their own. Faults in what a spec says of them are found.

use std::path::PathBuf;

use libtest_mimic::Trial;

use crate::tool::{fixture, json, onboard, parity, run};
use crate::trials;

/// Changes of an encoder, and its fixture; a check ends with a difference.
const FAULTS: &[(&str, &str)] = &[
    // Rows and columns of patches take each other's place.
    ("qwen2_vl", "rope={main: {axes: '[1 - i // (head_dim // 4) for i in range(head_dim // 2)]'}}"),
    ("mistral3", "rope={main: {axes: '[1 - i // (head_dim // 4) for i in range(head_dim // 2)]'}}"),
    // Frequencies one after another, where every second one belongs to an axis.
    ("mistral3", "rope={main: {order: '[i for i in range(head_dim // 2)]'}}"),
    ("qwen2_vl", "rope={main: {theta: ['= 100000.0']}}"),
    ("llava", "dims.behind=-1"),
    ("llava", "dims.act='gelu'"),
    ("gemma3", "dims.eps=1e-3"),
    ("paligemma", "dims.act='gelu'"),
    ("internvl", "dims.eps=1e-2"),
    ("glm4v", "dims.act='gelu'"),
    ("qwen2_5_vl", "dims.act='gelu'"),
    // Another layer sees the whole image.
    ("qwen2_5_vl", "dims.whole=[1]"),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = trials::each("encoders", names(), agrees_with_its_reference);
    let faults: Vec<String> =
        FAULTS.iter().map(|(name, change)| format!("{name} with {change}")).collect();
    all.extend(trials::each("encoders::faults", faults, a_fault_is_found));
    let answering: Vec<String> =
        names().into_iter().filter(|name| answers_of(name).is_file()).collect();
    all.extend(trials::each("encoders::answers", answering, pictures_are_answered));
    all.push(trials::one("encoders::kinds", encoders_and_texts_are_not_mixed_up));
    all
}

/// Returns the fixtures of encoders.
fn names() -> Vec<String> {
    let entries = fs_err::read_dir(fixture("encoders")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn agrees_with_its_reference(name: &str) {
    let report = json(&run(parity().args(["check", &place(name), "--json"])).code(0).out);
    assert_eq!(report["verdict"], "pass", "{name}");
    assert_eq!(report["limits"].as_array().unwrap().len(), 0, "{name}: {}", report["limits"]);
    let runs = report["runs"].as_array().unwrap().iter();
    let dtypes: Vec<&str> = runs.map(|run| run["dtype"].as_str().unwrap()).collect();
    assert_eq!(dtypes, ["f32", "bf16", "f16"]);
}

fn a_fault_is_found(fault: &str) {
    let known = FAULTS.iter().find(|(name, change)| fault == format!("{name} with {change}"));
    let (name, change) = known.unwrap();
    let ran = run(parity().args(["check", &place(name), "--set", change])).code(1);
    assert!(ran.out.contains("first divergence: "), "{}", ran.out);
}

/// The dump chooses the encoder or the text model; another choice is refused.
fn encoders_and_texts_are_not_mixed_up() {
    let ran = run(parity().args(["check", "fixtures/gemma3", "--encoder"])).code(2);
    assert!(
        ran.err.contains(
            "is the dump of a text model, and `gemma3_encoder` describes an encoder of images"
        ),
        "{}",
        ran.err
    );
    let ran = run(parity().args(["check", "fixtures/lfm2", "--encoder"])).code(2);
    assert!(
        ran.err.contains("no spec describes the encoder of images of `Lfm2ForCausalLM`"),
        "{}",
        ran.err
    );
}

fn answers_of(name: &str) -> PathBuf {
    fixture("encoders").join(name).join("answers.json")
}

/// A prompt about pictures has the tokens that the reference's processor makes of it, and the answer that its class gives.
fn pictures_are_answered(name: &str) {
    let answers = fs_err::read(answers_of(name)).unwrap();
    let answers: serde_json::Value = serde_json::from_slice(&answers).unwrap();
    for answer in answers.as_array().unwrap() {
        let text = answer["text"].as_str().unwrap();
        let mut command = onboard();
        command.args(["run", &place(name), text, "--raw", "--json", "--dtype", "f32", "-n", "8"]);
        for picture in answer["pictures"].as_array().unwrap() {
            let file = format!("fixtures/pictures/{}.png", picture.as_str().unwrap());
            command.args(["--image", &file]);
        }
        let written = json(&run(&mut command).code(0).out);
        assert_eq!(written["prompt_tokens"], answer["prompt"], "{name}: {text}");
        assert_eq!(written["tokens"], answer["tokens"], "{name}: {text}");
    }
}

fn place(name: &str) -> String {
    format!("fixtures/encoders/{name}")
}
