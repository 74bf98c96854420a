//! Judges of tokenizers and texts: an accepted tokenizer encodes and decodes, and growth is bounded.

use std::sync::Arc;

use tokenizer::TokenizerOptions;
use tokenizer::check::LlamaTokenizer;

use chat::{ChatRequest, OrderedJson, Template};
use parity::matrix::{self, Board, CellOutcome};
use registry::diag::SourceText;

use super::{Judged, Trial, refused};

/// Short texts at which tokenizers commonly fail.
const TEXTS: [&str; 5] =
    ["a b, it is", "  x\n\n1234 \u{e9}\u{4e2d}\u{1f600}", "<s><|im_start|>", "\0\u{1b}", ""];

/// Judges the files of a tokenizer beside weights.
pub(crate) fn tokenizer(trial: &Trial<'_>) -> Judged {
    let mut judged = keys(trial)?;
    let dir = trial.dir.display().to_string();
    if trial.sometimes(3) {
        let text = TEXTS[(trial.number % 3) as usize];
        let words = ["run", &dir, "--prompt", text, "-n", "3", "--threads", "1"];
        // Kinds that a GGUF file does not support are used from the folder.
        judged |= trial.program.command(&words)?.code == 0;
    }
    if trial.sometimes(8) {
        let out = trial.beside("out.gguf");
        let to = out.display().to_string();
        let words = ["convert", &dir, "--to", "gguf:f16", "-o", &to, "--force", "--threads", "1"];
        let ran = trial.program.command(&words)?;
        if ran.code == 0 {
            opens(trial, &to)?;
        }
    }
    Ok(judged)
}

/// Checks that a written file opens, and uses its own tokenizer.
fn opens(trial: &Trial<'_>, file: &str) -> Result<(), String> {
    let words = ["run", file, "--tokens", "1,2", "-n", "1", "--threads", "1"];
    let ran = trial.program.command(&words)?;
    if ran.code != 0 {
        return Err(format!("converted, and the file does not run: {}", ran.printed));
    }
    trial.program.command(&["run", file, "--prompt", "a b", "-n", "1", "--threads", "1"])?;
    Ok(())
}

/// Judges the keys of a GGUF file, and the tokens that llama.cpp would produce with them.
fn keys(trial: &Trial<'_>) -> Judged {
    let config = serde_json::from_str(&trial.case.text("config.json"));
    let config: serde_json::Value = config.unwrap_or_default();
    let vocab = config["vocab_size"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(400);
    let converted = match tokenizer::read(trial.dir, vocab, &TokenizerOptions::default()) {
        Ok(converted) => converted,
        Err(error) => return refused(&error.to_string()),
    };
    if let Err(mismatch) = tokenizer::self_check(&converted, trial.dir) {
        refused(&mismatch.to_string())?;
    }
    let loaded = match LlamaTokenizer::new(&converted.keys) {
        Ok(loaded) => loaded,
        Err(error) => return refused(&error.to_string()),
    };
    for text in TEXTS {
        let tokens = match loaded.prompt(text) {
            Ok(tokens) => tokens,
            Err(error) => return refused(&error.to_string()),
        };
        if tokens.len() > 16 * (text.len() + 16) {
            return Err(format!("{text:?} is {} tokens", tokens.len()));
        }
        drop(loaded.decode(&tokens));
    }
    Ok(true)
}

/// Judges a text as a prompt and as a calibration text.
pub(crate) fn text(trial: &Trial<'_>) -> Judged {
    let family = trial.case.words.first().ok_or("a case names its family")?;
    let home = trial.program.root.join("fixtures").join(family).display().to_string();
    let text = trial.path("text.txt");
    let out = trial.beside("im.gguf");
    let prompt = trial.case.text("text.txt").replace('\0', " ");
    let mut accepted = false;
    if !prompt.is_empty() {
        let prompt: String = prompt.chars().take(300).collect();
        let word = format!("--prompt={prompt}");
        let ran = trial.program.command(&["run", &home, &word, "-n", "1", "--threads", "1"])?;
        accepted = ran.code == 0;
    }
    if trial.sometimes(2) {
        let out = out.display().to_string();
        let words = ["imatrix", &home, "--text", &text, "--chunk", "8", "--chunks", "2"];
        let more = ["--force", "--threads", "1", "-o", &out];
        trial.program.command(&[&words[..], &more].concat())?;
    }
    Ok(accepted)
}

/// Judges a chat template and a request: a text of bounded length, or a refusal.
pub(crate) fn template(trial: &Trial<'_>) -> Judged {
    let json = match OrderedJson::parse(&trial.case.text("request.json")) {
        Ok(json) => json,
        Err(error) => return refused(&error.to_string()),
    };
    let request = match ChatRequest::from_json(&json) {
        Ok(request) => request,
        Err(error) => return refused(&error.to_string()),
    };
    let template = match Template::open(trial.dir) {
        Ok(template) => template,
        Err(error) => return refused(&error.to_string()),
    };
    match template.render(&request) {
        Ok(text) if text.len() > 64 << 20 => Err(format!("a text of {} bytes", text.len())),
        Ok(_) => Ok(true),
        Err(error) => refused(&error.to_string()),
    }
}

/// Judges a result file of an evaluation, compared with a valid one and read as items.
pub(crate) fn results(trial: &Trial<'_>) -> Judged {
    let damaged = trial.path("damaged.jsonl");
    let sound = trial.program.root.join("fixtures/evals/samples_tiny_mc_2026-11-23.jsonl");
    let ran =
        trial.program.command(&["parity", "eval-diff", &damaged, &sound.display().to_string()])?;
    if trial.sometimes(8) {
        let home = trial.program.root.join("fixtures/llama").display().to_string();
        let words = ["parity", "eval", &home, &damaged, "--limit", "2", "--max-tokens", "2"];
        trial.program.command(&[&words[..], &["--threads", "1"]].concat())?;
    }
    Ok(ran.code != 2)
}

/// Judges a plan of a matrix, and a scoreboard for it.
pub(crate) fn plan(trial: &Trial<'_>) -> Judged {
    let text = trial.case.text("parity.yaml");
    let source = Arc::new(SourceText { path: "parity.yaml".to_owned(), text });
    let plan = match matrix::plan::read(&source) {
        Ok(plan) => plan,
        Err(findings) => {
            return refused(&findings.iter().map(|f| f.message.as_str()).collect::<String>());
        }
    };
    let board = match Board::read(trial.case.text("board.json").as_bytes()) {
        Ok(board) => board,
        Err(why) => return refused(&why.to_string()),
    };
    for (model, engine) in plan.pairs() {
        drop(plan.dtypes(model, engine));
        plan.known(&model.name, &engine.name, "f32");
    }
    let changes = board.changes(Some(&board));
    // A board compared with itself has no failure.
    if board.worst(&changes) != CellOutcome::Pass {
        return Err("a scoreboard fails against itself".to_owned());
    }
    for shown in [
        matrix::text(&board, &changes, &[]),
        matrix::junit(&board, &changes),
        matrix::html(&board, &changes),
    ] {
        if shown.is_empty() {
            return Err("a matrix has no text".to_owned());
        }
    }
    Ok(true)
}
