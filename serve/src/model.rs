//! The model that a server runs.

use std::sync::Arc;

use chat::{Format, Template};
use engine::Session;

use crate::ServedTokenizer;

/// The way in which a model writes conversations.
#[derive(Debug)]
pub struct ChatFormat {
    /// Template of prompts.
    pub template: Template,
    /// Format of tool calls and reasoning; without one, all output is text.
    pub format: Option<&'static Format>,
}

/// The model that a server runs, opened, with its tokenizer.
pub struct ServedModel {
    /// Name in requests and answers.
    pub name: String,
    /// Session of an engine; the server's own thread uses it.
    pub session: Box<dyn Session>,
    /// Tokenizer; without one, prompts are token ids.
    pub codec: Option<Arc<dyn ServedTokenizer>>,
    /// Template and format of conversations, if the model has them.
    pub chat: Option<ChatFormat>,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// Arithmetic of weights in blocks, in words.
    pub arithmetic: &'static str,
    /// Memory that this machine can give to the slots, in bytes, if known.
    pub memory: Option<u64>,
}

impl ServedModel {
    /// Returns a model whose prompts are token ids, and which no token ends.
    pub fn new(name: &str, session: Box<dyn Session>) -> Self {
        Self {
            name: name.to_owned(),
            session,
            codec: None,
            chat: None,
            ends: Vec::new(),
            arithmetic: "exact",
            memory: None,
        }
    }
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedModel").field("name", &self.name).finish_non_exhaustive()
    }
}
