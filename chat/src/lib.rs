//! Conversations as text: messages become a prompt, and the output of a model becomes messages.

pub mod event;

pub use event::OutputEvent;
