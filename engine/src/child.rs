//! Engines in processes of their own, over standard input and output: `docs/engine-protocol.md`.
//!
//! A child is untrusted. Every line it sends is held to what was asked for before memory is
//! allocated, every wait has a time limit, and a child that breaks the protocol is killed. What it
//! wrote to standard error last stands in the error.
//!
//! The reasons are in [decision 2](../../docs/decisions/0002-untrusted-child-process.md).

mod conformance;
mod launch;
mod process;
mod session;
mod wire;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Engine, Error, ModelSource, Session, SessionOptions};

pub use conformance::{ConformanceResult, conformance};
pub use launch::{CommandSettings, EngineCommandError, write_modules};
pub use process::end_all;

use session::ChildSession;
use wire::{ExpectedFrames, Wire};

/// The version of the protocol.
pub const PROTOCOL: u64 = 1;

/// Rows are wider in no model.
const WIDEST: usize = 1 << 24;

/// The command that starts an engine, and its settings.
#[derive(Debug, Clone)]
pub struct EngineLaunch {
    /// The name for messages.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to its environment.
    pub variables: Vec<(String, OsString)>,
    /// Settings of the engine, by name.
    pub options: BTreeMap<String, String>,
    /// Time that one verb may take.
    pub patience: Duration,
    /// Advice for a program that does not start or lacks a module.
    pub advice: Option<String>,
}

/// Answer to `hello`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol that the engine speaks.
    pub protocol: u64,
    /// The engine's name.
    pub engine: String,
    /// The version.
    pub version: String,
    /// The device it runs on.
    #[serde(default)]
    pub device: String,
    /// Settings in force, by name.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// Verbs and capabilities.
    pub can: Vec<String>,
}

impl Hello {
    /// True if the engine has a verb or a capability.
    pub fn can(&self, verb: &str) -> bool {
        self.can.iter().any(|word| word == verb)
    }
}

/// Answer to `open`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenModel {
    /// Width of a row.
    pub vocab: usize,
    /// The dtype of activations.
    pub dtype: String,
    /// Most tokens that a slot or a prompt may have.
    #[serde(default)]
    pub tokens: Option<usize>,
    /// The device, where it is known only now.
    #[serde(default)]
    pub device: Option<String>,
    /// Settings in force, where they are known only now.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// Names of taps that `step` can show.
    #[serde(default)]
    pub taps: Vec<String>,
    /// Parts of states that `states` can show.
    #[serde(default)]
    pub states: Vec<String>,
}

/// An engine that runs in a child process. Each session has a process of its own.
#[derive(Debug)]
pub struct ChildEngine {
    launch: EngineLaunch,
    /// Positions that a slot has to have room for.
    tokens: usize,
    facts: Mutex<Option<String>>,
}

impl ChildEngine {
    /// Makes an engine whose slots have room for `tokens` positions. No process is started yet.
    pub fn new(launch: EngineLaunch, tokens: usize) -> Self {
        Self { launch, tokens, facts: Mutex::new(None) }
    }
}

/// Starts an engine and asks who it is.
pub fn hello(launch: &EngineLaunch) -> Result<Hello, Error> {
    Ok(greet(launch)?.1)
}

/// Starts a process and reads its `hello`.
fn greet(launch: &EngineLaunch) -> Result<(Wire, Hello), Error> {
    let mut wire = Wire::start(launch)?;
    let ask = json!({ "protocol": PROTOCOL, "options": launch.options });
    let answer = wire.call("hello", ask, &ExpectedFrames::Nothing)?;
    let hello: Hello = wire.read("hello", answer.body)?;
    if hello.protocol != PROTOCOL {
        let protocol = hello.protocol;
        return Err(wire.lost(
            "hello",
            &format!(
                "it speaks protocol {protocol}; expected {PROTOCOL}: take the version of the engine's plugin that \
                 belongs to this program"
            ),
        ));
    }
    if !hello.can("open") || !(hello.can("score") || hello.can("step")) {
        return Err(wire.lost(
            "hello",
            &format!(
                "`can` is `{}`; expected `open` and at least one of `score` and `step`",
                hello.can.join("`, `")
            ),
        ));
    }
    if hello.can("step") && !hello.can("release") {
        return Err(wire.lost("hello", "`can` has `step` without `release`; expected both"));
    }
    Ok((wire, hello))
}

/// Opens a model folder in a process that was greeted.
fn open_model(
    wire: &mut Wire,
    model: &std::path::Path,
    dtype: &str,
    tokens: usize,
) -> Result<OpenModel, Error> {
    let full = fs_err::canonicalize(model)
        .map_err(|e| Error::Other(format!("cannot find the model: {e}")))?;
    let ask = json!({ "model": full.to_string_lossy(), "dtype": dtype, "tokens": tokens });
    let answer = wire.call("open", ask, &ExpectedFrames::Nothing)?;
    let opened: OpenModel = wire.read("open", answer.body)?;
    if opened.dtype != dtype {
        let actual = &opened.dtype;
        return Err(wire.lost("open", &format!("it runs in `{actual}`; `{dtype}` was asked for")));
    }
    if !(1..=WIDEST).contains(&opened.vocab) {
        let vocab = opened.vocab;
        return Err(wire.lost("open", &format!("`vocab` is {vocab}; expected 1 to {WIDEST}")));
    }
    Ok(opened)
}

/// Writes name, version, device and settings in one line.
fn facts(hello: &Hello, opened: &OpenModel) -> String {
    let mut settings = hello.settings.clone();
    settings.extend(opened.settings.clone());
    let settings: Vec<String> =
        settings.iter().map(|(key, value)| format!("{key}={}", plain_value(value))).collect();
    let device = opened.device.as_deref().unwrap_or(&hello.device);
    let mut text = format!("engine {} {}", hello.engine, hello.version);
    if !device.is_empty() {
        text = format!("{text} on {device}");
    }
    if !settings.is_empty() {
        text = format!("{text}, in force: {}", settings.join(", "));
    }
    process::plain(&text)
}

/// Formats a value, a text without quotes.
fn plain_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Engine for ChildEngine {
    fn name(&self) -> &str {
        &self.launch.name
    }

    fn runs_specs(&self) -> bool {
        false
    }

    /// As the last opened session reported them.
    fn facts(&self) -> Option<String> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        let name = &self.launch.name;
        if source.model.graph.fed.is_some() || options.drafts {
            return Err(Error::Other(format!("engine `{name}` feeds no drafting head by itself")));
        }
        if options.ranks > 1 {
            return Err(Error::Other(format!(
                "engine `{name}` shares matrices out by its own settings (the option `engine-option`), not by ranks"
            )));
        }
        for (requested, what) in
            [(options.prefix, "a bidirectional prefix"), (options.documents, "packed documents")]
        {
            if requested {
                return Err(Error::Other(format!(
                    "engine `{name}` runs causal sequences of one document: its protocol has no {what}"
                )));
            }
        }
        let (mut wire, hello) = greet(&self.launch)?;
        let dtype = options.dtype.name();
        let tokens = source.model.context.map_or(self.tokens, |limit| limit.min(self.tokens));
        let opened = open_model(&mut wire, source.dir, dtype, tokens)?;
        if opened.vocab < source.model.vocab {
            let vocab = opened.vocab;
            let expected = source.model.vocab;
            return Err(
                wire.lost("open", &format!("`vocab` is {vocab}; the model has {expected} tokens"))
            );
        }
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts(&hello, &opened));
        Ok(Box::new(ChildSession::new(wire, &hello, opened, source, options.dtype)))
    }
}
