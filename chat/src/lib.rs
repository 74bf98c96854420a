//! Conversations as text: messages become a prompt, and the output of a model becomes messages.
//!
//! * [`Template`] renders the messages of a [`ChatRequest`] as transformers renders them;
//! * [`check`] compares a model with a record of transformers;
//! * [`ConstraintCompiler`] masks the tokens that a schema, a grammar or forced calls do not allow;
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
//!
//! ```no_run
//! use onboard_chat::{Format, OutputEvent, ParserOptions};
//!
//! let template = "<tool_call>{{ call | tojson }}</tool_call>";
//! let format = Format::find(template).expect("a known format");
//! let mut parser = format.parser(&ParserOptions::default());
//! let mut events = parser.push("Let me look. <tool_call>{\"name\": \"now\", ");
//! events.extend(parser.push("\"arguments\": {}}</tool_call>"));
//! events.extend(parser.finish());
//! assert_eq!(events[0], OutputEvent::Content("Let me look.".to_owned()));
//! ```

pub mod check;
pub mod constraint;
mod content;
pub mod event;
pub mod format;
mod json;
mod request;
pub mod template;

pub use constraint::{
    CallableTool, ConstraintCompiler, ConstraintError, ForcedCalls, JsonLayout, OutputConstraint,
    OutputRule, ReasoningPrefix,
};
pub use content::ContentForm;
pub use event::OutputEvent;
pub use format::{Format, OutputParser, ParserOptions, ReasoningMode};
pub use json::OrderedJson;
pub use request::{ChatRequest, RequestError};
pub use template::{RenderControl, Template, TemplateError, TemplateVariant};
pub use tokenizer::TokenBytes;
