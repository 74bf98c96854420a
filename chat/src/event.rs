//! Parts of a model's output, in the order of generation.

/// Part of a model's output. Parsers return events as soon as the text allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text for the user.
    Content(String),
    /// Text of the reasoning.
    Reasoning(String),
    /// Start of a tool call: its index in the output, and the name of the tool.
    Call {
        /// Index of the call in the output, from 0.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// Next piece of a call's arguments. All pieces of a call together are a JSON object.
    Arguments {
        /// Index of the call.
        index: usize,
        /// Piece of JSON.
        piece: String,
    },
}
