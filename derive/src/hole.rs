//! Steps of a class that no op explains.

use std::fmt;

/// A step that could not be lifted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hole {
    /// File and line of the class.
    pub place: String,
    /// Module whose forward has the step.
    pub module: String,
    /// Reason in words.
    pub reason: String,
    /// Terms that the step reads, as a tree.
    pub tree: String,
}

impl Hole {
    /// Notes that a module as a whole could not be lifted.
    pub fn of_module(module: &str, reason: &str) -> Self {
        Self {
            place: String::new(),
            module: module.to_owned(),
            reason: reason.to_owned(),
            tree: String::new(),
        }
    }
}

impl fmt::Display for Hole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place.is_empty() { "the forward" } else { &self.place };
        write!(formatter, "{place}: {}", self.reason)
    }
}
