//! The arguments and sizes of a node, as a kernel takes them when a session opens.

use registry::graph::{Graph, Node, State, ValueId};
use registry::scalar::Scalar;

use crate::Error;

/// The arguments of one node, those that it leaves out by the defaults of its op's declaration, and the shapes of what it
/// reads and makes.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    graph: &'a Graph,
    node: &'a Node,
    index: usize,
}

impl<'a> Args<'a> {
    /// The ids of the node have to exist in the graph.
    pub(crate) fn new(graph: &'a Graph, index: usize) -> Self {
        Self { graph, node: &graph.nodes[index], index }
    }

    /// Returns the node.
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Returns an error that names the node.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Op { op: self.node.op.to_string(), node: self.index, message: message.into() }
    }

    fn shape(&self, kind: &str, n: usize, ids: &[ValueId]) -> Result<&'a [usize], Error> {
        let id = ids.get(n).ok_or_else(|| self.error(format!("{kind} {n} is missing")))?;
        Ok(&self.graph.values[id.0].shape)
    }

    /// Returns the shape of a row of an input.
    pub fn input(&self, n: usize) -> Result<&'a [usize], Error> {
        self.shape("input", n, &self.node.inputs)
    }

    /// Returns the shape of a row of an output.
    pub fn output(&self, n: usize) -> Result<&'a [usize], Error> {
        self.shape("output", n, &self.node.outputs)
    }

    /// Returns the shape of a weight by its role; none if the node does not have it.
    pub fn weight(&self, role: &str) -> Option<&'a [usize]> {
        let id = self.node.weights.get(role)?;
        Some(&self.graph.weights[id.0].shape)
    }

    /// Returns the numbers in a row of an input.
    pub fn width(&self, n: usize) -> Result<usize, Error> {
        Ok(self.input(n)?.iter().product())
    }

    /// Checks the numbers in a row of the output. A kernel of a device writes as many.
    pub fn expect_output(&self, numbers: usize) -> Result<(), Error> {
        let shape = self.output(0)?;
        if shape.iter().product::<usize>() == numbers {
            return Ok(());
        }
        Err(self.error(format!("its output is {shape:?}; expected {numbers} numbers")))
    }

    /// Returns the numbers of a weight by its role; 0 if the node does not have it.
    pub fn numbers(&self, role: &str) -> usize {
        self.weight(role).map_or(0, |shape| shape.iter().product())
    }

    /// True if a weight has so many numbers, or the node does not have it.
    pub fn may_have(&self, role: &str, numbers: usize) -> bool {
        self.weight(role).is_none_or(|shape| shape.iter().product::<usize>() == numbers)
    }

    /// Returns the numbers of a state, or those of a position.
    pub fn state_width(&self) -> Result<usize, Error> {
        let parts = self.state()?.parts.iter();
        Ok(parts.map(|part| part.shape.iter().product::<usize>()).sum())
    }

    /// Returns the state that the node reads or writes.
    pub fn state(&self) -> Result<&'a State, Error> {
        let id = self.node.state.ok_or_else(|| self.error("it has no state"))?;
        Ok(&self.graph.states[id.0])
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
