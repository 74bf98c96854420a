//! Renders a question with the chat template of a checkpoint.
//!
//! ```text
//! cargo run -p onboard-chat --example render -- checkpoints/mine "What is the capital of France?"
//! ```

#![expect(clippy::print_stdout, reason = "a program prints")]

use std::path::Path;

use onboard_chat::{ChatRequest, OrderedJson, Template};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, model, question] = words.as_slice() else {
        return Err("give the folder of a checkpoint and a question".into());
    };
    let message = [("role", "user"), ("content", question.as_str())];
    let message = message.map(|(key, text)| (key.to_owned(), OrderedJson::from(text)));
    let request = ChatRequest {
        messages: vec![OrderedJson::Map(message.into_iter().collect())],
        add_generation_prompt: true,
        ..ChatRequest::default()
    };
    println!("{}", Template::open(Path::new(model))?.render(&request)?);
    Ok(())
}
