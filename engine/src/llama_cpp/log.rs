//! llama.cpp gives reasons in its log alone; this keeps them for our errors.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Runs `work` and gives what llama.cpp complained of on this thread meanwhile, as the end of a
/// sentence: empty, or `: reason; reason`.
pub(super) fn listen<T>(work: impl FnOnce() -> T) -> (T, String) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let result = tracing::subscriber::with_default(Listener(Arc::clone(&heard)), work);
    let mut complaints = String::new();
    for (n, line) in heard.lock().unwrap_or_else(PoisonError::into_inner).iter().enumerate() {
        complaints.push_str(if n == 0 { ": " } else { "; " });
        complaints.push_str(line);
    }
    (result, complaints)
}

/// Keeps errors, and nothing else.
struct Listener(Arc<Mutex<Vec<String>>>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let line = message.0.trim();
        if !line.is_empty() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.0.push_str(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            write!(self.0, "{value:?}").ok();
        }
    }
}
