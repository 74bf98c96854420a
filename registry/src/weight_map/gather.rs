//! Disk tensors that a weight is made of.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::WeightRule;
use super::pattern::{Holes, PatternPart};

/// The tensors that a rule takes from the disk for one weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatheredTensors {
    /// Names on disk, in the order in which the steps take them.
    pub names: Vec<String>,
    /// The index of the weight among the tensors that the steps give.
    pub output: usize,
}

/// Applies a rule to a weight's name; `None` if the rule is not about it. `tensors` gives the
/// names that the checkpoint has which begin with some text: they count the matches of a hole of the
/// disk side alone. A checkpoint of experts has too many to look at all for each weight.
pub fn gather<'n, I: Iterator<Item = &'n str>>(
    rule: &WeightRule,
    weight: &str,
    tensors: impl FnOnce(&str) -> I,
) -> Option<GatheredTensors> {
    let holes = rule.weight.fit(weight)?;
    let on_disk = rule.disk.holes();
    let mut output = 0_usize;
    let mut spread = rule.weight.pieces();
    // A counter is the slowest wherever it stands.
    spread.sort_by_key(|piece| matches!(piece, PatternPart::Choice(_)));
    for piece in spread {
        let Some(hole) = piece.hole().filter(|hole| !on_disk.contains(hole)) else { continue };
        let (many, at) = match piece {
            PatternPart::Choice(_) => {
                let words = piece.words();
                (words.len(), words.iter().position(|word| *word == holes[&hole])?)
            }
            // Not bounded here.
            PatternPart::Word(_) => (1, holes[&hole].parse().ok()?),
            _ => return None,
        };
        output = output.checked_mul(many)?.checked_add(at)?;
    }
    let pieces = rule.disk.pieces();
    if pieces.iter().any(|piece| is_open(*piece, &holes)) {
        let closed = pieces.iter().take_while(|piece| !is_open(**piece, &holes));
        let known = closed.map_while(|piece| piece.filled(&holes));
        let mut names: Vec<String> = tensors(&known.collect::<String>())
            .filter(|name| rule.disk.fit_with(name, &holes).is_some())
            .map(str::to_owned)
            .collect();
        names.sort_by_key(|name| natural_order_key(name));
        return Some(GatheredTensors { names, output });
    }
    let mut names = vec![String::new()];
    for piece in pieces {
        let fillings: Vec<Cow<'_, str>> = match piece {
            PatternPart::Choice(_) if !is_filled(piece, &holes) => {
                piece.words().into_iter().map(Cow::Borrowed).collect()
            }
            _ => vec![piece.filled(&holes)?],
        };
        names = names
            .iter()
            .flat_map(|name: &String| {
                fillings.iter().map(|filling| format!("{name}{filling}")).collect::<Vec<_>>()
            })
            .collect();
    }
    Some(GatheredTensors { names, output })
}

/// True if a hole has its text.
fn is_filled(piece: PatternPart<'_>, holes: &Holes) -> bool {
    piece.hole().is_some_and(|hole| holes.contains_key(&hole))
}

/// True if a piece is a hole that any text may fill.
fn is_open(piece: PatternPart<'_>, holes: &Holes) -> bool {
    let any = matches!(piece, PatternPart::Word(_) | PatternPart::Number(_) | PatternPart::Any(_));
    any && !is_filled(piece, holes)
}

/// Returns a key that sorts `x.9` before `x.10`: a run of digits by its length, then as text.
pub fn natural_order_key(name: &str) -> Vec<(usize, String)> {
    let mut runs: Vec<(usize, String)> = Vec::new();
    let mut digits = false;
    for char in name.chars() {
        match runs.last_mut() {
            Some((length, run)) if digits == char.is_ascii_digit() => {
                run.push(char);
                *length += usize::from(digits);
            }
            _ => runs.push((usize::from(char.is_ascii_digit()), char.to_string())),
        }
        digits = char.is_ascii_digit();
    }
    runs
}

/// Returns the names of a sorted map that begin with some text.
pub fn names_with_prefix<'n, T>(
    map: &'n BTreeMap<String, T>,
    text: &str,
) -> impl Iterator<Item = &'n str> + use<'n, T> {
    let text = text.to_owned();
    let from = (Bound::Included(text.as_str()), Bound::Unbounded);
    let names = map.range::<str, _>(from).map(|(name, _)| name.as_str());
    names.take_while(move |name| name.starts_with(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::MappedText;
    use crate::weight_map::Pattern;

    fn gathered(
        disk: &str,
        weight: &str,
        name: &str,
        tensors: &[&str],
    ) -> Option<(Vec<String>, usize)> {
        let rule = WeightRule {
            disk: Pattern::parse(disk).unwrap(),
            weight: Pattern::parse(weight).unwrap(),
            steps: vec![],
            at: MappedText::whole("t", "").span(),
        };
        gather(&rule, name, |text| {
            let text = text.to_owned();
            tensors.iter().copied().filter(move |name| name.starts_with(&text))
        })
        .map(|gathered| (gathered.names, gathered.output))
    }

    #[test]
    fn weights_are_found_through_patterns() {
        let tensors = ["e.10.w", "e.2.w", "e.2.v", "e.1.w"];
        for (disk, weight, name, expected) in [
            ("h.{i}.n", "layers.{i}.norm", "layers.12.norm", Some((&["h.12.n"][..], 0))),
            ("x.{gate|up}.w", "x.both.w", "x.both.w", Some((&["x.gate.w", "x.up.w"], 0))),
            ("x.qkv", "x.{q|k|v}", "x.k", Some((&["x.qkv"], 1))),
            ("y.{q|k}", "x.{q|k}", "x.k", Some((&["y.k"], 0))),
            ("e.{q|k}", "e.{n}.{a|b}", "e.3.b", Some((&["e.q", "e.k"], 7))),
            ("e.{n}.w", "e.w", "e.w", Some((&["e.1.w", "e.2.w", "e.10.w"], 0))),
            ("e.{q|k}", "e.{a|b}.{n}", "e.b.3", Some((&["e.q", "e.k"], 7))),
            ("h.{2 * i + 1}.n", "layers.{i}.norm", "layers.12.norm", Some((&["h.25.n"], 0))),
            ("h.{2 * i}.{q|k}", "x.{i}", "x.2", Some((&["h.4.q", "h.4.k"], 0))),
            ("h.{2 * i}.n", "layers.{i}.norm", "layers.x.norm", None),
            ("h", "layers.{i}.norm", "other", None),
        ] {
            let expected = expected
                .map(|(names, output)| (names.iter().map(|n| (*n).to_owned()).collect(), output));
            assert_eq!(gathered(disk, weight, name, &tensors), expected, "{disk} -> {weight}");
        }
    }
}
