//! Constructed pairs of result files, each with its expected verdict.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use super::super::{EvalComparison, EvalVerdict, Noise, ReadOptions, Results, read};
use super::diff;
use registry::dtype::Dtype;

/// Compares two texts as result files.
fn compare(a: &str, b: &str, dtype: Option<Dtype>) -> Result<EvalComparison, String> {
    let folder = tempfile::tempdir().unwrap();
    let a = result_file(folder.path(), "a.jsonl", a)?;
    let b = result_file(folder.path(), "b.jsonl", b)?;
    diff(&a, &b, &Noise::new(dtype, &a, &b), None).map_err(|error| error.to_string())
}

fn result_file(folder: &Path, name: &str, text: &str) -> Result<Results, String> {
    let path = folder.join(name);
    fs_err::write(&path, text).unwrap();
    read(&path, &ReadOptions::default()).map_err(|error| error.to_string())
}

#[track_caller]
fn holds(
    a: &str,
    b: &str,
    dtype: Option<Dtype>,
    verdict: EvalVerdict,
    words: &str,
) -> EvalComparison {
    let outcome = compare(a, b, dtype).unwrap();
    let shown = super::super::text(&outcome);
    assert_eq!(outcome.verdict, verdict, "{shown}");
    assert!(shown.contains(words), "no `{words}` in:\n{shown}");
    outcome
}

/// Returns a number in `[0, 1)` that only depends on the arguments.
fn draw(item: usize, choice: usize) -> f64 {
    let mut z = ((item as u64) << 20 | choice as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns samples of lm-eval with four choices, of which the correct one is most likely in `right` of `n`.
fn scored(n: usize, right: usize, mut edit: impl FnMut(usize, &mut Scored)) -> String {
    let mut text = String::new();
    for item in 0..n {
        let target = item % 4;
        let taken =
            if item * right / n < (item + 1) * right / n { target } else { (target + 1) % 4 };
        let logprobs = (0..4).map(|choice| {
            -8.0 - 6.0 * draw(item, choice) + if choice == taken { 7.0 } else { 0.0 }
        });
        let mut sample =
            Scored { prompt: format!("Question {item}"), logprobs: logprobs.collect(), target };
        edit(item, &mut sample);
        let arguments: Vec<String> = (0..sample.logprobs.len())
            .map(|choice| {
                let prompt = serde_json::json!(sample.prompt);
                format!("\"gen_args_{choice}\": {{\"arg_0\": {prompt}, \"arg_1\": \" choice {choice}, ten tokens of text\"}}")
            })
            .collect();
        let answers: Vec<String> =
            sample.logprobs.iter().map(|x: &f64| format!("[\"{x}\", \"False\"]")).collect();
        let best = (0..sample.logprobs.len()).fold(0, |best, at| {
            if sample.logprobs[at] > sample.logprobs[best] { at } else { best }
        });
        writeln!(
            text,
            "{{\"doc_id\": {item}, \"doc\": {{}}, \"target\": \"{}\", \"arguments\": {{{}}}, \"resps\": [[{}]], \
             \"filtered_resps\": [{}], \"filter\": \"none\", \"metrics\": [\"acc\"], \"doc_hash\": \"h{item}\", \"acc\": {}}}",
            sample.target,
            arguments.join(", "),
            answers.join("], ["),
            answers.join(", "),
            f64::from(u8::from(best == sample.target)),
        )
        .unwrap();
    }
    text
}

struct Scored {
    prompt: String,
    logprobs: Vec<f64>,
    target: usize,
}

/// Returns generated answers as plain samples.
fn texts(head: &str, n: usize, mut of: impl FnMut(usize) -> (String, String)) -> String {
    let mut text = format!("{{\"schema\": \"onboard-eval/1\"{head}}}\n");
    for item in 0..n {
        let (reply, answer) = of(item);
        let target = (item % 7).to_string();
        let correct = answer == target;
        let line = serde_json::json!({
            "id": item, "prompt": format!("Question {item}"), "text": reply, "answer": answer, "target": target,
            "correct": correct,
        });
        writeln!(text, "{line}").unwrap();
    }
    text
}

const GREEDY: &str = ", \"temperature\": 0";

#[test]
fn equal_files_agree() {
    let a = scored(60, 40, |_, _| {});
    let outcome = holds(&a, &a, None, EvalVerdict::Agree, "all 60 items agree");
    assert!(!outcome.verdict.differs());
    let noisy = scored(60, 40, |item, sample| {
        for (choice, x) in sample.logprobs.iter_mut().enumerate() {
            *x += 0.1 * (draw(item, choice + 9) - 0.5);
        }
    });
    holds(&a, &noisy, Some(Dtype::Bf16), EvalVerdict::Agree, "within noise");
}

#[test]
fn a_server_that_cannot_score_is_named() {
    // HellaSwag of lm-eval against a server without `echo`: 0.0 for every choice, 0.265 instead of 0.665.
    let b =
        scored(200, 133, |item, sample| sample.target = if item < 53 { 0 } else { 1 + item % 3 });
    let b = b.replace("\"acc\": 1}", "\"acc\": 0}");
    // The correct choice of B is most likely in 133 items.
    let mut lines = String::new();
    for (item, line) in b.lines().enumerate() {
        let acc = u8::from(item % 200 < 133);
        lines.push_str(&line.replace("\"acc\": 0}", &format!("\"acc\": {acc}}}")));
        lines.push('\n');
    }
    let b = lines;
    let zeros = scored(200, 0, |item, sample| {
        sample.logprobs = vec![0.0; 4];
        sample.target = if item < 53 { 0 } else { 1 + item % 3 };
    });
    let outcome =
        holds(&zeros, &b, None, EvalVerdict::Scoring, "every log-likelihood is 0 in 200 items");
    assert!((outcome.a.score.unwrap() - 0.265).abs() < 1e-12);
    assert!((outcome.b.score.unwrap() - 0.665).abs() < 1e-12);
    let outcome = holds(&b, &zeros, None, EvalVerdict::Scoring, "B's accuracy of 0.265");
    assert!(outcome.verdict.differs());
    let constant = scored(40, 0, |_, sample| sample.logprobs = vec![-3.25; 4]);
    holds(
        &constant,
        &scored(40, 30, |_, _| {}),
        None,
        EvalVerdict::Scoring,
        "the same log-likelihood",
    );
    let missing = scored(40, 0, |_, sample| sample.logprobs = vec![f64::NAN; 4]);
    holds(
        &missing,
        &scored(40, 30, |_, _| {}),
        None,
        EvalVerdict::Scoring,
        "no log-likelihood is finite",
    );
    holds(&zeros, &zeros, None, EvalVerdict::Scoring, "neither side has usable scores");
}

#[test]
fn one_choice_always_taken_is_no_score() {
    let a: String = (0..40).map(|item| answer_line(item, 0)).collect();
    let b: String =
        (0..40).map(|item| answer_line(item, if item % 3 == 0 { 1 } else { item % 4 })).collect();
    holds(&a, &b, None, EvalVerdict::Scoring, "the answer is `0` in 40 of 40 items");
}

fn answer_line(item: usize, answer: usize) -> String {
    format!("{{\"id\": {item}, \"answer\": {answer}, \"target\": {}}}\n", item % 4)
}

#[test]
fn other_inputs_come_first() {
    let a = scored(50, 30, |_, _| {});
    let template = scored(50, 40, |_, sample| {
        sample.prompt =
            format!("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", sample.prompt);
        sample.logprobs = vec![0.0; 4];
    });
    holds(
        &a,
        &template,
        None,
        EvalVerdict::Inputs,
        "B has a chat template that A lacks (`<|im_start|>`",
    );
    holds(&a, &template, None, EvalVerdict::Inputs, "B has no usable scores");
    let doubled = scored(50, 30, |_, sample| sample.prompt = format!("<s><s>{}", sample.prompt));
    let single = scored(50, 30, |_, sample| sample.prompt = format!("<s>{}", sample.prompt));
    holds(&single, &doubled, None, EvalVerdict::Inputs, "B begins with `<s>` twice: a doubled BOS");
    let some = scored(50, 30, |item, sample| {
        if item < 5 {
            sample.prompt.push(' ');
        }
    });
    holds(
        &a,
        &some,
        None,
        EvalVerdict::Inputs,
        "on the 45 items with equal inputs: all 45 items agree",
    );
}

#[test]
fn token_ids_are_compared_where_both_have_them() {
    let a: String = (0..10).map(|item| ids_line(item, "1, ")).collect();
    let b: String = (0..10).map(|item| ids_line(item, "1, 1, ")).collect();
    holds(&a, &b, None, EvalVerdict::Inputs, "B begins with the id 1 twice: a doubled BOS");
}

fn ids_line(item: usize, ids: &str) -> String {
    format!(
        "{{\"id\": {item}, \"ids\": [{ids}{item}], \"logprobs\": [-1.5, -2.5], \"target\": 0}}\n"
    )
}

#[test]
fn log_probabilities_beyond_noise_are_the_implementation() {
    let a = scored(100, 60, |_, _| {});
    let far = scored(100, 60, |item, sample| {
        for (choice, x) in sample.logprobs.iter_mut().enumerate() {
            *x += 5.6 * (draw(item, choice + 5) - 0.5);
        }
    });
    holds(&a, &far, None, EvalVerdict::Implementation, "nats apart in the median");
    let few = scored(100, 60, |item, sample| {
        if item % 20 == 7 {
            sample.logprobs[1] -= 6.0;
        }
    });
    holds(
        &a,
        &few,
        None,
        EvalVerdict::Implementation,
        "5 of 400 log-likelihoods of equal inputs are beyond noise",
    );
    // A difference that bf16 explains, but f32 does not.
    let small = scored(100, 60, |item, sample| sample.logprobs[0] += 0.02 * draw(item, 77));
    holds(&a, &small, None, EvalVerdict::Agree, "assumed");
    holds(&a, &small, Some(Dtype::F32), EvalVerdict::Implementation, "beyond");
    let infinite = scored(100, 60, |item, sample| {
        if item % 10 == 3 {
            sample.logprobs[2] = f64::NEG_INFINITY;
        }
    });
    holds(
        &a,
        &infinite,
        None,
        EvalVerdict::Implementation,
        "10 of 400 log-likelihoods are finite on one side alone",
    );
}

#[test]
fn another_unit_is_recognised() {
    let a = scored(40, 30, |_, _| {});
    let base = scored(40, 30, |_, sample| {
        sample.logprobs.iter_mut().for_each(|x| *x *= std::f64::consts::LOG2_E);
    });
    holds(&base, &a, None, EvalVerdict::Implementation, "A's are in base 2");
    let shifted = scored(40, 30, |item, sample| {
        sample.logprobs.iter_mut().for_each(|x| *x -= 3.0 + draw(item, 3));
    });
    holds(
        &a,
        &shifted,
        None,
        EvalVerdict::Implementation,
        "all choices of an item are off by the same",
    );
}

#[test]
fn equal_texts_with_other_answers_are_extraction() {
    let a = texts(GREEDY, 60, |item| text_and_answer(item, item % 7));
    let b =
        texts(GREEDY, 60, |item| text_and_answer(item, if item % 9 == 0 { 99 } else { item % 7 }));
    holds(&a, &b, None, EvalVerdict::Extraction, "7 items: equal texts have other answers");
    let long =
        texts(GREEDY, 60, |item| (format!("{}\nQuestion: next one?", item % 7), "?".to_owned()));
    let short = texts(GREEDY, 60, |item| ((item % 7).to_string(), (item % 7).to_string()));
    holds(&long, &short, None, EvalVerdict::Extraction, "one text goes on where the other stops");
    let with_reasoning =
        texts(GREEDY, 60, |item| (format!("<think>so</think>{}", item % 7), "so".to_owned()));
    holds(
        &with_reasoning,
        &short,
        None,
        EvalVerdict::Extraction,
        "a reasoning block was taken out",
    );
    // Equal log-likelihoods, different scores.
    let c = scored(60, 40, |_, _| {});
    let other = c.replace("\"acc\": 1}", "\"acc\": 0}");
    holds(&c, &other, None, EvalVerdict::Extraction, "equal log-likelihoods have other answers");
}

fn text_and_answer(item: usize, answer: usize) -> (String, String) {
    (format!("so it is #### {}", item % 7), answer.to_string())
}

#[test]
fn sampled_texts_are_sampling() {
    let greedy =
        texts(GREEDY, 60, |item| (format!("it is surely {}", item % 7), (item % 7).to_string()));
    let sampled = texts(", \"temperature\": 0.8", 60, |item| {
        (format!("well, {item} gives {}", item % 5), (item % 5).to_string())
    });
    holds(&greedy, &sampled, None, EvalVerdict::Extraction, "B is sampled and A is greedy");
    holds(&greedy, &sampled, None, EvalVerdict::Extraction, "the setting `temperature` differs");
    let again = texts(", \"temperature\": 0.8", 60, |item| {
        (
            format!("hm, {item} gives {}", item % 5),
            ((item + usize::from(item % 31 == 0)) % 5).to_string(),
        )
    });
    holds(&sampled, &again, None, EvalVerdict::Noise, "both are sampled");
    let other = texts(GREEDY, 60, |item| (format!("no idea of {item}"), "?".to_owned()));
    holds(
        &greedy,
        &other,
        None,
        EvalVerdict::Implementation,
        "both decode greedily on equal inputs",
    );
}

#[test]
fn scores_that_chance_explains_are_noise() {
    // 0.425 against 0.430 of 200.
    let a: String = (0..200).map(|item| correct_line(item, item < 85)).collect();
    let b: String = (0..200).map(|item| correct_line(item, (10..96).contains(&item))).collect();
    let outcome = holds(
        &a,
        &b,
        None,
        EvalVerdict::Noise,
        "21 items of 200 differ, no more than chance makes: -0.005",
    );
    assert!((outcome.a.score.unwrap() - 0.425).abs() < 1e-12);
    assert!((outcome.b.score.unwrap() - 0.430).abs() < 1e-12);
    let paired = outcome.paired.unwrap();
    assert_eq!((paired.only_a, paired.only_b, paired.p), (10, 11, Some(1.0)));
    let far: String = (0..200).map(|item| correct_line(item, item < 120)).collect();
    holds(&a, &far, None, EvalVerdict::Unexplained, "the files do not hold the cause");
    // Scores between 0 and 1 have no McNemar test.
    let a: String = (0..100).map(|item| f1_line(item, draw(item, 1))).collect();
    let b: String = (0..100).map(|item| f1_line(item, draw(item, 2))).collect();
    let c: String = (0..100).map(|item| f1_line(item, 0.5 * draw(item, 1))).collect();
    holds(&a, &b, None, EvalVerdict::Noise, "95 % interval");
    holds(&a, &c, None, EvalVerdict::Unexplained, "beyond noise");
}

fn f1_line(item: usize, score: f64) -> String {
    format!("{{\"id\": {item}, \"scores\": {{\"f1\": {score}}}}}\n")
}

fn correct_line(item: usize, correct: bool) -> String {
    format!("{{\"id\": {item}, \"correct\": {correct}}}\n")
}

#[test]
fn bench_files_are_compared_by_texts_and_lengths() {
    holds(
        &bench_file(8, "a b"),
        &bench_file(8, "a b"),
        None,
        EvalVerdict::Agree,
        "all 12 items agree",
    );
    holds(
        &bench_file(9, "a b"),
        &bench_file(8, "a b"),
        None,
        EvalVerdict::Inputs,
        "the prompts of A have 1 token more, as one more BOS",
    );
    let outcome = holds(
        &bench_file(8, "a c"),
        &bench_file(8, "a b"),
        None,
        EvalVerdict::Extraction,
        "12 of 12 texts differ",
    );
    assert!(outcome.paired.is_none());
}

fn bench_file(length: usize, text: &str) -> String {
    let texts = serde_json::json!(vec![text; 12]);
    let lengths = serde_json::json!((0..12).map(|i| length + i).collect::<Vec<_>>());
    format!(
        "{{\"backend\": \"x\", \"input_lens\": {lengths}, \"generated_texts\": {texts}, \"errors\": []}}"
    )
}

#[test]
fn nothing_in_common_cannot_be_compared() {
    for (a, b, words) in [
        (answer_lines(0..9, "a"), answer_lines(20..29, "a"), "no item in common"),
        (
            answer_lines(0..9, "a"),
            answer_lines(0..9, "b"),
            "of different tasks: of 9 items with the same id, 9 have",
        ),
        (
            scored(9, 5, |_, _| {}),
            scored(9, 5, |_, _| {}).replace("\"h", "\"g"),
            "of different tasks",
        ),
    ] {
        let error = compare(&a, &b, None).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let logprobs = "{\"id\": 1, \"logprobs\": [-1]}";
    let error = compare(logprobs, "{\"id\": 1, \"text\": \"a\"}", None).unwrap_err();
    assert!(error.contains("share no scores, answers, texts or log-probabilities"), "{error}");
}

fn answer_lines(ids: Range<usize>, target: &str) -> String {
    ids.map(|id| format!("{{\"id\": {id}, \"answer\": \"a\", \"target\": \"{target}\"}}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns plain samples with only a score.
fn marked(key: &str, n: usize, right: impl Fn(usize) -> bool) -> String {
    (0..n).fold(String::new(), |mut text, item| {
        let _ = writeln!(text, "{{\"id\": {item}, \"{key}\": {}}}", u8::from(right(item)));
        text
    })
}

#[test]
fn equal_scores_of_other_items_are_no_noise() {
    for key in ["correct", "acc", "exact_match"] {
        let even = marked(key, 200, |n| n % 2 == 0);
        let odd = marked(key, 200, |n| n % 2 == 1);
        holds(
            &even,
            &odd,
            None,
            EvalVerdict::Unexplained,
            "agree on 0 of 200 items, and unrelated runs with these scores on 100",
        );
        let unrelated = marked(key, 200, |n| draw(n, 0) < 0.5);
        holds(&even, &unrelated, None, EvalVerdict::Unexplained, "the scores are alike");
        // 0.425 and 0.430 of 200.
        holds(
            &marked(key, 200, |n| (0..85).contains(&n)),
            &marked(key, 200, |n| (10..96).contains(&n)),
            None,
            EvalVerdict::Noise,
            "21 items of 200 differ, no more than chance makes",
        );
    }
}

#[test]
fn scores_that_are_none_are_named() {
    let a = marked("correct", 20, |n| n % 2 == 0);
    let b = format!("{a}{}", "{\"id\": 20, \"correct\": \"perhaps\"}\n");
    holds(
        &a,
        &b,
        None,
        EvalVerdict::Agree,
        "`correct` of `20` is neither true, false nor a number",
    );
}

#[test]
fn a_few_items_are_not_the_whole_task() {
    let some = marked("acc", 3, |_| true);
    let all = marked("acc", 200, |_| true);
    holds(&some, &all, None, EvalVerdict::Agree, "all 3 items that both files hold agree");
    holds(&some, &all, None, EvalVerdict::Agree, "not compared: 197 items");
}
