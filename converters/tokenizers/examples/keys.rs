//! Prints the GGUF keys of a checkpoint's tokenizer, and compares it with llama.cpp's reading of them.
//!
//! `cargo run -p onboard-tokenizers --example keys -- fixtures/llama 320`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use onboard_tokenizers::{TokenizerOptions, read, self_check};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let dir: PathBuf = words.next().ok_or("give the folder of a checkpoint")?.into();
    let rows = words.next().and_then(|rows| rows.to_str()?.parse().ok());
    let tokenizer =
        read(&dir, rows.ok_or("give the rows of its embeddings")?, &TokenizerOptions::default())?;
    for (key, value) in tokenizer.keys.iter() {
        println!("{key}: {}", value.kind_name());
    }
    println!("{:#?}", self_check(&tokenizer, &dir)?);
    Ok(())
}
