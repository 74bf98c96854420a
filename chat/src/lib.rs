//! Conversations as text: messages become a prompt, and the output of a model becomes messages.
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

pub mod event;
pub mod format;

pub use event::OutputEvent;
pub use format::{Format, OutputParser, ParserOptions, ReasoningMode};
