//! Which checkpoint tensors a weight is made of, by the names in a rule.

use std::collections::BTreeSet;

use registry::weight_map::{Holes, Pattern};

/// A piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// `{i}`: one or more characters that are not dots. Named.
    Word(String),
    /// `{q|k|v}`: one of these. Named by its whole text.
    Choice(String, Vec<String>),
    /// `*`: any text. Named `*`, `*2`, ... by its place.
    Any(String),
}

impl Piece {
    fn hole(&self) -> Option<&str> {
        match self {
            Self::Text(_) => None,
            Self::Word(name) | Self::Choice(name, _) | Self::Any(name) => Some(name),
        }
    }
}

fn pieces(pattern: &Pattern) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut rest, mut stars) = (pattern.text.as_str(), 0);
    while !rest.is_empty() {
        let end = rest.find(['{', '*']).unwrap_or(rest.len());
        if end > 0 {
            pieces.push(Piece::Text(rest[..end].to_owned()));
        }
        rest = &rest[end..];
        if let Some(after) = rest.strip_prefix('*') {
            stars += 1;
            let name = if stars == 1 { "*".to_owned() } else { format!("*{stars}") };
            pieces.push(Piece::Any(name));
            rest = after;
        } else if let Some((hole, after)) = rest.strip_prefix('{').and_then(|r| r.split_once('}')) {
            pieces.push(if hole.contains('|') {
                Piece::Choice(hole.to_owned(), hole.split('|').map(str::to_owned).collect())
            } else {
                Piece::Word(hole.to_owned())
            });
            rest = after;
        } else {
            // An open brace that is never closed stands for itself.
            pieces.push(Piece::Text(rest.to_owned()));
            rest = "";
        }
    }
    pieces
}

/// What fills the holes if the name fits; a hole that stands twice has one filling.
fn fit(pieces: &[Piece], name: &str, holes: &Holes) -> Option<Holes> {
    let Some((first, rest)) = pieces.split_first() else {
        return name.is_empty().then(|| holes.clone());
    };
    let fill = |hole: &str, length: usize| {
        let mut holes = holes.clone();
        let text = &name[..length];
        match holes.insert(hole.to_owned(), text.to_owned()) {
            Some(before) if before != text => None,
            _ => fit(rest, &name[length..], &holes),
        }
    };
    // Longest first, as people expect of a hole.
    let ends = |limit: usize| {
        let mut ends: Vec<usize> = name[..limit].char_indices().map(|(at, _)| at).collect();
        ends.push(limit);
        ends.into_iter().rev()
    };
    match first {
        Piece::Text(text) => fit(rest, name.strip_prefix(text.as_str())?, holes),
        Piece::Choice(hole, words) => words
            .iter()
            .filter(|word| name.starts_with(word.as_str()))
            .find_map(|word| fill(hole, word.len())),
        Piece::Word(hole) => {
            let limit = name.find('.').unwrap_or(name.len());
            ends(limit).filter(|&end| end > 0).find_map(|end| fill(hole, end))
        }
        Piece::Any(hole) => ends(name.len()).find_map(|end| fill(hole, end)),
    }
}

/// The tensors that a rule gathers for a weight.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gathered {
    /// Names on disk, in the order in which steps take them.
    pub(super) names: Vec<String>,
    /// Which of the tensors that the steps give is the weight.
    pub(super) output: usize,
}

/// Applies a rule's two patterns to a weight's name; `None` if the rule is not about it.
pub(super) fn gather<'n>(
    disk: &Pattern,
    weight: &Pattern,
    name: &str,
    tensors: impl Iterator<Item = &'n str>,
) -> Option<Gathered> {
    let (disk, weight) = (pieces(disk), pieces(weight));
    let holes = fit(&weight, name, &Holes::new())?;
    let on_disk: BTreeSet<&str> = disk.iter().filter_map(Piece::hole).collect();
    let mut output = 0_usize;
    for piece in weight.iter().filter(|p| p.hole().is_some_and(|hole| !on_disk.contains(hole))) {
        let (many, at) = match piece {
            Piece::Choice(hole, words) => {
                (words.len(), words.iter().position(|word| *word == holes[hole])?)
            }
            // A counter is not bounded here, so it can only be the slowest.
            Piece::Word(hole) => (1, holes[hole].parse().ok()?),
            _ => return None,
        };
        output = output.checked_mul(many)?.checked_add(at)?;
    }
    let mut names = vec![String::new()];
    let open = |piece: &Piece| match piece {
        Piece::Word(hole) | Piece::Any(hole) => !holes.contains_key(hole),
        _ => false,
    };
    if disk.iter().any(open) {
        // Open counters: whatever the checkpoint has, counted as numbers are.
        let fits = tensors.filter(|tensor| fit(&disk, tensor, &holes).is_some());
        names = fits.map(str::to_owned).collect();
        names.sort_by_key(|name| natural(name));
    } else {
        for piece in &disk {
            let fillings = match piece {
                Piece::Text(text) => vec![text],
                Piece::Choice(hole, words) if !holes.contains_key(hole) => words.iter().collect(),
                Piece::Word(hole) | Piece::Any(hole) | Piece::Choice(hole, _) => vec![&holes[hole]],
            };
            names = names
                .iter()
                .flat_map(|name| fillings.iter().map(move |filling| format!("{name}{filling}")))
                .collect();
        }
    }
    Some(Gathered { names, output })
}

/// A key that sorts `x.9` before `x.10`: a run of digits by its length, then as text.
fn natural(name: &str) -> Vec<(usize, String)> {
    let mut key: Vec<(usize, String)> = Vec::new();
    let mut digits = false;
    for char in name.chars() {
        match key.last_mut() {
            Some((length, run)) if digits == char.is_ascii_digit() => {
                run.push(char);
                *length += usize::from(digits);
            }
            _ => key.push((usize::from(char.is_ascii_digit()), char.to_string())),
        }
        digits = char.is_ascii_digit();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(disk: &str, weight: &str, name: &str, tensors: &[&str]) -> Option<Gathered> {
        let pattern = |text: &str| Pattern { text: text.into() };
        gather(&pattern(disk), &pattern(weight), name, tensors.iter().copied())
    }

    fn some(names: &[&str], output: usize) -> Gathered {
        Gathered { names: names.iter().map(|&name| name.to_owned()).collect(), output }
    }

    #[test]
    fn names_are_found_through_patterns() {
        let one = |disk, weight, name| gathered(disk, weight, name, &[]);
        assert_eq!(one("a.*", "model.a.*", "model.a.b.c"), Some(some(&["a.b.c"], 0)));
        assert_eq!(one("a.*", "model.a.*", "x.a.b"), None);
        assert_eq!(one("h.{i}.n", "layers.{i}.norm", "layers.12.norm"), Some(some(&["h.12.n"], 0)));
        assert_eq!(one("h.{i}.n", "layers.{i}.norm", "layers.1.2.norm"), None);
        // Gathering: both words, in order. Spreading: the second of three.
        let (gate_up, name) = ("x.{gate|up}.weight", "x.gate_up.weight");
        assert_eq!(one(gate_up, name, name), Some(some(&["x.gate.weight", "x.up.weight"], 0)));
        assert_eq!(one("x.qkv", "x.{q|k|v}", "x.k"), Some(some(&["x.qkv"], 1)));
        // A hole on both sides is neither.
        assert_eq!(one("y.{q|k}", "x.{q|k}", "x.k"), Some(some(&["y.k"], 0)));
        // Experts: unstacked ones have a number, stacked ones are counted by the checkpoint.
        assert_eq!(one("e.{q|k}", "e.{n}.{a|b}", "e.3.b"), Some(some(&["e.q", "e.k"], 7)));
        let tensors = ["e.10.w", "e.2.w", "e.2.v", "e.1.w", "f.1.w"];
        let stacked = gathered("e.{n}.w", "e.w", "e.w", &tensors);
        assert_eq!(stacked, Some(some(&["e.1.w", "e.2.w", "e.10.w"], 0)));
        assert_eq!(one("{", "{", "{"), Some(some(&["{"], 0)));
        assert_eq!(one("a.{i}.{i}", "b.{i}.{i}", "b.1.2"), None);
        assert_eq!(one("a.{i}.{i}", "b.{i}.{i}", "b.2.2"), Some(some(&["a.2.2"], 0)));
    }
}
