//! Conversations as text: messages become a prompt, and the output of a model becomes messages.

pub mod event;
pub mod format;

pub use event::OutputEvent;
pub use format::{Format, OutputParser, ParserOptions, ReasoningMode};
