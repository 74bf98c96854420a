//! Server of a model over HTTP, in the form of the OpenAI API.
//!
//! One thread owns the session and computes batches of sequences (`scheduler`); tasks of tokio read
//! requests and write answers. A row has the same bits in any batch, so a request has the same answer
//! alone and beside others. Everything that a client can send, hold or leave unread has a limit.
//!
//! ```no_run
//! use onboard_serve::{ModelServer, ServeOptions, ServedModel};
//!
//! # fn serve(session: Box<dyn engine::Session>) -> Result<(), onboard_serve::ServeError> {
//! let model = ServedModel {
//!     name: "mine".to_owned(),
//!     session,
//!     codec: None,
//!     chat: None,
//!     ends: vec![2],
//!     arithmetic: "exact",
//!     memory: None,
//! };
//! let server = ModelServer::bind(model, ServeOptions::default())?;
//! println!("listening on {}", server.address());
//! let outcome = server.run()?;
//! println!("{} connections were cut", outcome.cut);
//! # Ok(())
//! # }
//! ```

mod answer;
mod body;
mod chat_answer;
mod chat_completions;
mod codec;
mod completions;
mod connection;
mod error;
mod fields;
mod http;
mod logprobs;
mod memory;
mod metrics;
mod model;
mod object;
mod options;
mod origin;
mod page;
mod penalties;
mod prefixes;
mod queue;
mod reports;
mod response_answer;
mod responses;
mod routes;
mod rules;
mod scheduler;
mod sequence;
mod server;
mod sse;
mod state;
mod text_stream;
mod tokens;

pub use codec::{CodecError, ServedTokenizer};
pub use error::ServeError;
pub use model::{ChatFormat, ServedModel};
pub use options::ServeOptions;
pub use server::{ModelServer, ServeOutcome, StopHandle, run};
pub use text_stream::TextStream;
