//! Conversations as text: messages become a prompt, and the output of a model becomes messages.
//!
//! * [`Template`] renders the messages of a [`ChatRequest`] as transformers renders them;
//! * [`check`] compares a model with a record of transformers;
//! * [`Format`] reads the output of a model: [`OutputEvent`]s of text, reasoning and tool calls.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_chat::{ChatRequest, OrderedJson, Template};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let template = Template::open(Path::new("checkpoints/mine"))?;
//! let json = r#"{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}"#;
//! let request = ChatRequest::from_json(&OrderedJson::parse(json)?)?;
//! println!("{}", template.render(&request)?);
//! # Ok(())
//! # }
//! ```

pub mod check;
pub mod event;
pub mod format;
mod json;
mod request;
pub mod template;

pub use event::OutputEvent;
pub use format::{Format, OutputParser, ParserOptions, ReasoningMode};
pub use json::OrderedJson;
pub use request::{ChatRequest, RequestError};
pub use template::{Template, TemplateError, TemplateVariant};
