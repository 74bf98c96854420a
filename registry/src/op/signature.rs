//! Signature of an op: parameters, their kinds and defaults.

use crate::scalar::Scalar;

/// The kind of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// The token ids.
    Tokens,
    /// A value.
    Value,
    /// Two or more values; takes all positional arguments.
    Values,
    /// A module path: its tensors are `path.weight` and so on.
    Module,
    /// The path of a tensor itself, or of what its tensors have in common.
    Tensor,
    /// A size: a positive integer.
    Dim,
    /// An integer that may be zero or negative.
    Int,
    /// A number of equal parts, or a list of sizes.
    Sizes,
    /// A list of sizes.
    Shape,
    /// A number.
    Float,
    /// A list of numbers.
    Numbers,
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A state of the spec.
    State,
    /// A rotary table of the spec.
    Rope,
}

impl ParamKind {
    /// Describes the kind in words, as messages state the expected value.
    pub fn describe(self) -> String {
        match self {
            Self::Tokens => "the token ids".into(),
            Self::Value => "a value".into(),
            Self::Values => "values".into(),
            Self::Module => "a module path".into(),
            Self::Tensor => "a tensor path".into(),
            Self::Dim => "an integer above 0".into(),
            Self::Int => "an integer".into(),
            Self::Sizes => "an integer above 0, or a list of them".into(),
            Self::Shape => "a list of integers".into(),
            Self::Float => "a number".into(),
            Self::Numbers => "a list of numbers".into(),
            Self::Flag => "true or false".into(),
            Self::Word(words) => format!("one of '{}'", words.join("', '")),
            Self::State => "a state".into(),
            Self::Rope => "a rotary table".into(),
        }
    }
}

/// One parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// The name, also the attribute's.
    pub name: &'static str,
    /// The kind of argument.
    pub kind: ParamKind,
    /// The value if a call leaves the parameter out. With a default of null, null can also be given.
    pub default: Option<Scalar>,
    /// True if its value changes nothing in exact arithmetic: where and how results are rounded.
    pub neutral: bool,
}

/// All parameters, in the order of positional arguments.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Signature {
    /// The parameters.
    pub params: Vec<Param>,
    /// Values of parameters with which the op gives back its input, but for rounding.
    pub identity: Option<&'static [(&'static str, f64)]>,
}

impl Signature {
    /// Takes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one more, which a call must give.
    #[must_use]
    pub fn needs(mut self, name: &'static str, kind: ParamKind) -> Self {
        self.params.push(Param { name, kind, default: None, neutral: false });
        self
    }

    /// Takes one more, which a call may leave out.
    #[must_use]
    pub fn takes(mut self, name: &'static str, kind: ParamKind, default: Scalar) -> Self {
        self.params.push(Param { name, kind, default: Some(default), neutral: false });
        self
    }

    /// Takes one more flag.
    #[must_use]
    pub fn flag(self, name: &'static str, default: bool) -> Self {
        self.takes(name, ParamKind::Flag, Scalar::Bool(default))
    }

    /// Takes one of several words, the first if left out.
    #[must_use]
    pub fn word(self, name: &'static str, words: &'static [&'static str]) -> Self {
        let default = words.first().map_or(Scalar::Null, |word| Scalar::Str((*word).to_owned()));
        self.takes(name, ParamKind::Word(words), default)
    }

    /// Marks the last parameter as one that only says where and how results are rounded.
    #[must_use]
    pub fn neutral(mut self) -> Self {
        if let Some(param) = self.params.last_mut() {
            param.neutral = true;
        }
        self
    }

    /// Gives back its input where the parameters have these values.
    #[must_use]
    pub fn identity(mut self, values: &'static [(&'static str, f64)]) -> Self {
        self.identity = Some(values);
        self
    }

    /// Takes something that may be null, which it is if left out.
    #[must_use]
    pub fn may(self, name: &'static str, kind: ParamKind) -> Self {
        self.takes(name, kind, Scalar::Null)
    }
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(")?;
        for (n, param) in self.params.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            let dots = if param.kind == ParamKind::Values { "..." } else { "" };
            write!(f, "{comma}{}{dots}", param.name)?;
            if let Some(default) = &param.default {
                write!(f, "={default}")?;
            }
        }
        f.write_str(")")
    }
}
