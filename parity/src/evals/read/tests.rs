use super::*;

fn results(name: &str, text: &str) -> Result<Results, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs_err::write(&path, text).unwrap();
    read(&path, &ReadOptions::default())
}

const SCORED: &str = r#"{"doc_id": 0, "doc": {"x": [1]}, "target": "1", "arguments": {"gen_args_0": {"arg_0": "Q", "arg_1": " a"}, "gen_args_1": {"arg_0": "Q", "arg_1": " b"}}, "resps": [[["-1.5", "False"]], [["-0.5", "True"]]], "filtered_resps": [["-1.5", "False"], ["-0.5", "True"]], "filter": "none", "metrics": ["acc", "acc_norm"], "doc_hash": "h", "prompt_hash": "p", "target_hash": "t", "acc": 1.0, "acc_norm": 1.0}"#;

#[test]
fn samples_of_lm_eval_are_read() {
    let read = results("samples_t_2026.jsonl", SCORED).unwrap();
    assert_eq!(read.format, ResultFormat::LmEval);
    let sample = &read.samples[0];
    assert_eq!(sample.logprobs, [-1.5, -0.5]);
    assert_eq!((sample.prompts.as_slice(), sample.choices.len()), (&["Q".to_owned()][..], 2));
    assert_eq!(sample.answer.as_deref(), Some("1"));
    assert_eq!(sample.scores["acc_norm"], 1.0);
    assert_eq!(read.facts["task"], "t");
    let generated = SCORED
        .replace("\" a\"", "{\"until\": [\"\\n\"], \"do_sample\": false, \"temperature\": 0.0}")
        .replace("[[[\"-1.5\", \"False\"]], [[\"-0.5\", \"True\"]]]", "[[\"so 7\"]]")
        .replace("[[\"-1.5\", \"False\"], [\"-0.5\", \"True\"]]", "[\"7\"]");
    let read = results("samples_t_2026.jsonl", &generated).unwrap();
    let sample = &read.samples[0];
    assert_eq!((sample.text.as_deref(), sample.answer.as_deref()), (Some("so 7"), Some("7")));
    assert_eq!(read.facts["temperature"], "0");
    assert_eq!(read.sampled(), Some(false));
}

#[test]
fn facts_are_taken_from_the_results_beside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples_a_b_2026-01.jsonl");
    fs_err::write(&path, SCORED).unwrap();
    let facts = r#"{"config": {"model_args": "pretrained=x,dtype=bfloat16"}, "n-shot": {"a_b": 5}, "model_name": "x"}"#;
    fs_err::write(folder.path().join("results_2026-01.json"), facts).unwrap();
    let read = read(&path, &ReadOptions::default()).unwrap();
    assert_eq!((&*read.facts["dtype"], &*read.facts["few-shot examples"]), ("bfloat16", "5"));
}

#[test]
fn bench_files_and_predictions_are_read() {
    let sglang = r#"{"tag": null, "backend": "sglang", "server_info": {"model_path": "m", "dtype": "bfloat16"}, "input_lens": [4, 5], "ttfts": [0.1, 0.2], "itls": [[0.1], []], "generated_texts": ["x", ""], "errors": ["", "refused"]}"#;
    let read = results("a.jsonl", sglang).unwrap();
    assert_eq!((read.format, read.samples.len()), (ResultFormat::SglangBench, 2));
    assert_eq!(read.samples[0].prompt_tokens, Some(4));
    assert_eq!(read.samples[1].text, None);
    assert_eq!(read.facts["model"], "m");
    let vllm = r#"{"date": "d", "endpoint_type": "openai", "model_id": "m", "tokenizer_id": "m", "std_itl_ms": NaN, "input_lens": [4], "generated_texts": ["x"], "errors": [""]}"#;
    assert_eq!(results("a.json", vllm).unwrap().format, ResultFormat::VllmBench);
    let sgl = r#"{"generation": "so 7", "id": 3, "expected_answer": "7", "problem": "Q", "predicted_answer": "7", "symbolic_correct": true, "finish_reason": "stop"}"#;
    let read = results("output-rs0.jsonl", sgl).unwrap();
    assert_eq!((read.format, read.samples[0].scores["correct"]), (ResultFormat::SglEval, 1.0));
}

#[test]
fn damage_is_told_and_left_out() {
    let text = "\u{feff}{\"id\": 1, \"answer\": \"a\", \"target\": \"a\"}\n\n{\"id\": 1, \"answer\": \"b\"}\n{\"id\": 2, \"answer\": \"b\", \"logprobs\": [NaN, -1]}\n{\"id\": 3, \"answ";
    let read = results("a.jsonl", text).unwrap();
    assert_eq!(read.samples.len(), 2);
    assert_eq!(read.samples[0].scores["correct"], 1.0);
    assert!(read.samples[1].logprobs[0].is_nan());
    assert_eq!(read.notes.len(), 2, "{:?}", read.notes);
    assert!(read.notes[0].contains("1 unreadable lines left out (line 5: EOF"), "{:?}", read.notes);
}

#[test]
fn what_is_not_known_is_named() {
    for (text, words) in [
        ("", "it has no samples"),
        ("not json", "line 1: expected ident"),
        ("[1]", "no object"),
        ("{\"a\": 1, \"b\": 2}", "with `a`, `b` is of no form that is known"),
        ("{\"results\": {}, \"versions\": {}}", "no samples; give the samples file"),
        ("{\n  \"results\": {},\n  \"versions\": {}\n}", "--log_samples"),
        ("{\"request_throughput\": 1, \"model_id\": \"m\"}", "--save-detailed"),
        ("{\"request_throughput\": 1, \"backend\": \"m\"}", "--output-details"),
    ] {
        let error = results("a.jsonl", text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let options = ReadOptions { filter: Some("strict".to_owned()) };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples_t_1.jsonl");
    fs_err::write(&path, SCORED).unwrap();
    let error = read(&path, &options).unwrap_err().to_string();
    assert!(error.contains("no filter `strict`; there are: none"), "{error}");
    let error = read(folder.path(), &options).unwrap_err().to_string();
    assert!(error.contains("(there are `samples_t_1.jsonl`)"), "{error}");
}
