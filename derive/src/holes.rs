//! Holes of a derived spec: what no op explains, by its place in the class.

use std::fmt;

/// A call or term of a class that no op explains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hole {
    /// File and line of the class; empty if the hole is no call.
    pub place: String,
    /// Path of the module, with a star for each number.
    pub module: String,
    /// The reason.
    pub reason: String,
}

impl Hole {
    /// Reads `REASON (MODULE FILE:LINE)`, as the writer of programs notes it, or `MODULE: REASON`.
    fn read(text: &str) -> Self {
        let text = text.lines().next().unwrap_or_default();
        if let Some((reason, place)) = text.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) {
            let (module, place) = place.rsplit_once(' ').unwrap_or(("", place));
            return Self { place: place.to_owned(), module: starred(module), reason: reason.to_owned() };
        }
        let path = text.split_once(": ").filter(|(module, _)| !module.contains([' ', '`']));
        match path {
            Some((module, reason)) => {
                Self { place: String::new(), module: starred(module), reason: reason.to_owned() }
            }
            None => Self { place: String::new(), module: String::new(), reason: text.to_owned() },
        }
    }

    /// Reads the holes of a derivation. A hole of several layers is listed once.
    pub fn list(holes: &[String]) -> Vec<Self> {
        let mut list: Vec<Self> = holes.iter().map(|hole| Self::read(hole)).collect();
        list.sort();
        list.dedup();
        list
    }
}

impl fmt::Display for Hole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.place.as_str(), self.module.as_str()) {
            ("", "") => f.write_str(&self.reason),
            ("", module) => write!(f, "{module}: {}", self.reason),
            (place, "") => write!(f, "{place}: {}", self.reason),
            (place, module) => write!(f, "{place}, {module}: {}", self.reason),
        }
    }
}

/// Returns a path with a star for each number.
pub fn starred(path: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_ascii_digit());
    let parts: Vec<&str> = path.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_of_all_layers_is_listed_once_with_its_place() {
        let notes = [
            "no op for `exp` (model.layers.1.self_attn modeling_x.py:297)",
            "no op for `exp` (model.layers.0.self_attn modeling_x.py:297)",
            "model.layers.2: reads `rms_norm` of model.layers.0.norm",
            "no list of layers runs in the forward",
        ];
        let list = Hole::list(&notes.map(str::to_owned));
        let shown: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "no list of layers runs in the forward",
                "model.layers.*: reads `rms_norm` of model.layers.0.norm",
                "modeling_x.py:297, model.layers.*.self_attn: no op for `exp`",
            ]
        );
    }
}
