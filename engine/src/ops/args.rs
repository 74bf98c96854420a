//! The arguments of a node, as a kernel takes them when a session opens.

use registry::graph::Node;
use registry::scalar::Scalar;

use crate::Error;

/// The arguments of one node, those that it leaves out by the defaults of its op's declaration.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    node: &'a Node,
    index: usize,
}

impl<'a> Args<'a> {
    pub(crate) fn new(node: &'a Node, index: usize) -> Self {
        Self { node, index }
    }

    /// Returns the node.
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Returns an error that names the node.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Op { op: self.node.op.to_string(), node: self.index, message: message.into() }
    }

    fn wrong(&self, name: &str, expected: &str) -> Error {
        match self.node.argument(name) {
            None => self.error(format!("attribute `{name}` is missing; expected {expected}")),
            Some(value) => {
                self.error(format!("attribute `{name}` is {value}; expected {expected}"))
            }
        }
    }

    fn optional<T>(
        &self,
        name: &str,
        read: impl Fn(&'a Scalar) -> Option<T>,
        expected: &str,
    ) -> Result<Option<T>, Error> {
        self.node
            .argument(name)
            .map(|value| read(value).ok_or_else(|| self.wrong(name, expected)))
            .transpose()
    }

    /// Reads a number.
    pub fn number(&self, name: &str) -> Result<f32, Error> {
        self.number_or_null(name)?.ok_or_else(|| self.wrong(name, "a number"))
    }

    /// Reads a number that may be null.
    pub fn number_or_null(&self, name: &str) -> Result<Option<f32>, Error> {
        self.optional(name, |value| value.as_f64().map(|x| x as f32), "a number")
    }

    /// Reads a number in double precision.
    pub fn double(&self, name: &str) -> Result<f64, Error> {
        self.optional(name, Scalar::as_f64, "a number")?.ok_or_else(|| self.wrong(name, "a number"))
    }

    /// Reads a list of numbers that may be null.
    pub fn numbers_or_null(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        self.optional(name, numbers_of, "a list of numbers")
    }

    /// Reads an integer that is 0 or above.
    pub fn count(&self, name: &str) -> Result<usize, Error> {
        self.count_or_null(name)?.ok_or_else(|| self.wrong(name, "a count"))
    }

    /// Reads an integer.
    pub fn int(&self, name: &str) -> Result<i64, Error> {
        let int = self.optional(name, int_of, "an integer")?;
        int.ok_or_else(|| self.wrong(name, "an integer"))
    }

    /// Reads a list of integers that are 0 or above.
    pub fn counts(&self, name: &str) -> Result<Vec<usize>, Error> {
        let counts = self.optional(name, counts_of, "a list of counts")?;
        counts.ok_or_else(|| self.wrong(name, "a list of counts"))
    }

    /// Reads an integer that is 0 or above, or null.
    pub fn count_or_null(&self, name: &str) -> Result<Option<usize>, Error> {
        self.optional(name, Scalar::as_usize, "a count")
    }

    /// Reads a flag.
    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.node.argument(name) {
            Some(Scalar::Bool(flag)) => Ok(*flag),
            _ => Err(self.wrong(name, "true or false")),
        }
    }

    /// Reads a word that may be null.
    pub fn word_or_null(&self, name: &str) -> Result<Option<&'a str>, Error> {
        self.optional(name, word_of, "a word")
    }

    /// Reads a word, as the value that stands beside it in the list.
    pub fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, Error> {
        let word = self.word_or_null(name)?;
        let entry = words.iter().find(|(known, _)| word == Some(*known));
        entry.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
            self.wrong(name, &format!("one of `{}`", known.join("`, `")))
        })
    }
}

/// Returns an integer; none if the value is of another kind.
fn int_of(value: &Scalar) -> Option<i64> {
    match value {
        Scalar::Int(n) => Some(*n),
        _ => None,
    }
}

/// Returns the integers of a list; none if the value is no list of integers that are 0 or above.
fn counts_of(value: &Scalar) -> Option<Vec<usize>> {
    match value {
        Scalar::List(items) => items.iter().map(Scalar::as_usize).collect(),
        _ => None,
    }
}

/// Returns the numbers of a list; none if the value is no list of numbers.
fn numbers_of(value: &Scalar) -> Option<Vec<f32>> {
    match value {
        Scalar::List(items) => {
            items.iter().map(|item: &Scalar| item.as_f64().map(|x| x as f32)).collect()
        }
        _ => None,
    }
}

/// Returns the text of a value; none if the value is no text.
fn word_of(value: &Scalar) -> Option<&str> {
    match value {
        Scalar::Str(word) => Some(word.as_str()),
        _ => None,
    }
}
