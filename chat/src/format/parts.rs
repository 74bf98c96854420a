//! Parts of calls, as payloads produce them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Part of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallPart {
    /// Start of a call: its name.
    Name(String),
    /// Piece of the arguments.
    Arguments(String),
}

/// Parts of calls in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct CallParts {
    /// The parts; neighbouring pieces of arguments are one.
    pub(super) parts: Vec<CallPart>,
}

impl CallParts {
    /// Returns the calls whose arguments are a whole object, up to the first that are not.
    pub(super) fn whole(&self) -> Self {
        let mut complete_calls = Self::default();
        for call in self.parts.chunk_by(|_, next| matches!(next, CallPart::Arguments(_))) {
            let arguments = call.iter().filter_map(|part| match part {
                CallPart::Arguments(piece) => Some(piece.as_str()),
                CallPart::Name(_) => None,
            });
            let object = serde_json::from_str::<Map<String, Value>>(&arguments.collect::<String>());
            if object.is_err() || !matches!(call.first(), Some(CallPart::Name(_))) {
                break;
            }
            complete_calls.parts.extend_from_slice(call);
        }
        complete_calls
    }

    /// Begins a call.
    pub(super) fn name(&mut self, name: String) {
        self.parts.push(CallPart::Name(name));
    }

    /// Adds text to the arguments of the last call.
    pub(super) fn text(&mut self, text: &str) {
        self.piece().push_str(text);
    }

    /// Returns the last piece of arguments, to append to.
    pub(super) fn piece(&mut self) -> &mut String {
        if !matches!(self.parts.last(), Some(CallPart::Arguments(_))) {
            self.parts.push(CallPart::Arguments(String::new()));
        }
        match self.parts.last_mut() {
            Some(CallPart::Arguments(piece)) => piece,
            _ => unreachable!("a piece was pushed above"),
        }
    }
}

/// Keys of JSON objects that hold calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallKeys {
    /// Keys of the name.
    pub(crate) name: Vec<String>,
    /// Keys of the arguments.
    pub(crate) arguments: Vec<String>,
    /// True if the only key is the tool's name, and its value the arguments.
    pub(crate) by_name: bool,
}

/// Facts that payloads need besides the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallContext<'a> {
    /// Keys of JSON objects.
    pub(super) keys: &'a CallKeys,
    /// Schemas of tools by name.
    pub(super) tools: &'a BTreeMap<String, Value>,
    /// True where no marker opens the call: then only a known tool with arguments is one.
    pub(super) strict: bool,
}

impl CallContext<'_> {
    /// True if a call of this name can be one.
    pub(super) fn accepts(&self, name: &str) -> bool {
        !name.is_empty() && (!self.strict || self.tools.is_empty() || self.tools.contains_key(name))
    }
}
