//! Tokenizers that tests write or change.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod around;
mod fuzz;
mod token_bytes;
mod tokenizer;
#[path = "../support/tokenizers.rs"]
mod tokenizers;
#[path = "../support/vocabulary.rs"]
mod vocabulary;
