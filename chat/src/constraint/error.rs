//! Errors of constraints.

/// Reason that an output cannot be constrained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum ConstraintError {
    #[error("outputs cannot be constrained with this vocabulary: {why}")]
    Vocabulary { why: String },

    #[error("{what} has {found} bytes; expected at most {most}")]
    Size { what: &'static str, found: usize, most: usize },

    #[error("the schema has {found} {what}; expected at most {most}")]
    Schema { what: &'static str, found: usize, most: usize },

    #[error("the schema is {found}; expected an object or a boolean")]
    Form { found: &'static str },

    #[error(
        "`$ref` is `{reference}`; expected a place in the same schema, such as `#/$defs/Name`: nothing else is read"
    )]
    Reference { reference: String },

    #[error(
        "`oneOf` at `{place}` has alternatives {first} and {second}, which one answer may fit together; expected \
         alternatives that exclude each other, such as objects with another `const` of a required property: use \
         `anyOf` if an answer may fit several"
    )]
    Overlap { place: String, first: usize, second: usize },

    #[error("`oneOf` at `{place}` has too many alternatives to compare; use `anyOf`")]
    Alternatives { place: String },

    #[error(
        "`{keyword}` has the integer {found}, which is read as another one: expected an integer that a 64-bit float can \
         hold, such as any up to 2^53; use a text, or `minimum` and `maximum`"
    )]
    Integer { keyword: String, found: i128 },

    #[error(
        "`{keyword}` is {found}, and no number beyond 2^63 can be written; expected a bound within -2^63 and 2^63"
    )]
    Bound { keyword: String, found: String },

    #[error("the list of choices is empty, or has an empty text; expected texts")]
    Choices,

    #[error("{why}")]
    Rejected { why: String },

    #[error("the rule takes more than {seconds} seconds to compile; make it simpler")]
    Slow { seconds: u64 },

    #[error("too many rules are compiled at a time; try again later")]
    Busy,

    #[error(
        "no token of the vocabulary can go on here: the rule contradicts itself, or the vocabulary lacks a character"
    )]
    NoToken,

    #[error(
        "the rule took {milliseconds} ms for {tokens} tokens, more than a rule may; make it simpler: a grammar that \
         reads a text in several ways takes long"
    )]
    Costly { milliseconds: u128, tokens: u32 },

    #[error("the rule is too complex; make it simpler, or limit its repetitions")]
    Complex,

    #[error("the tool `{tool}` cannot be called in the form of this model: {why}")]
    Tool { tool: String, why: String },
}

/// Messages of llguidance about its limits, which name its own settings.
const LIMITS: [&str; 9] = [
    "Current row has",
    "fuel",
    "grammar size",
    "initial lexer configuration",
    "maximum relevance check",
    "schema too large",
    "stack level exceeded",
    "too complex",
    "too many items",
];

/// Returns the error of a message of llguidance.
pub(super) fn refused(why: &str) -> ConstraintError {
    // Messages may quote the rule, behind their first words.
    let first = why.lines().next().unwrap_or_default();
    if LIMITS.iter().any(|words| first.contains(words)) {
        return ConstraintError::Complex;
    }
    ConstraintError::Rejected { why: plain(why) }
}

/// Reason that a payload cannot write arguments of a schema.
#[derive(Debug)]
pub(super) struct Inexpressible(pub(super) String);

impl Inexpressible {
    pub(super) fn of(what: &str) -> Self {
        Self(format!("its format cannot express {what}"))
    }

    pub(super) fn name(name: &str) -> Self {
        Self(format!("its format cannot write the name `{}`", formats::shown(name)))
    }

    pub(super) fn key(key: &str) -> Self {
        Self::of(&format!("`{}` of a schema", formats::shown(key)))
    }
}

/// Reason that a pattern gives no grammar.
pub(super) enum GrammarFault {
    /// Another pattern may do.
    Form(Inexpressible),
    /// No pattern will do.
    Rule(ConstraintError),
}

impl From<Inexpressible> for GrammarFault {
    fn from(why: Inexpressible) -> Self {
        Self::Form(why)
    }
}

impl From<ConstraintError> for GrammarFault {
    fn from(error: ConstraintError) -> Self {
        Self::Rule(error)
    }
}

/// Shortens a message of llguidance: the first lines without the trace of a panic, or marks of its own.
fn plain(why: &str) -> String {
    const MOST: usize = 500;
    let why = why.split("\n<backtrace>").next().unwrap_or_default();
    let why = why.split("<non-verbose/>").next().unwrap_or_default().trim();
    let mut text: String = why.chars().take(MOST).collect();
    if text.len() < why.len() {
        text.push('…');
    }
    text
}
