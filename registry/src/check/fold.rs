//! Names that differ only by a layer's number, reported once.

use std::collections::BTreeMap;

/// Groups names by the text around their first number; the order of first occurrence is kept.
pub(super) fn fold<T: Ord + Clone>(
    items: impl IntoIterator<Item = (String, T)>,
) -> Vec<(FoldedNames, T)> {
    let mut groups: Vec<(FoldedNames, T)> = Vec::new();
    let mut places: BTreeMap<(String, String, T), usize> = BTreeMap::new();
    for (name, about) in items {
        let (before, number, after) = split(&name);
        let Some(number) = number else {
            groups.push((FoldedNames { first: name, before, numbers: Vec::new(), after }, about));
            continue;
        };
        let place =
            *places.entry((before.clone(), after.clone(), about.clone())).or_insert(groups.len());
        if place == groups.len() {
            groups.push((FoldedNames { first: name, before, numbers: Vec::new(), after }, about));
        }
        groups[place].0.numbers.push(number);
    }
    for (group, _) in &mut groups {
        group.numbers.sort_unstable();
    }
    groups
}

/// Names of one form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoldedNames {
    /// The first name.
    pub(super) first: String,
    before: String,
    numbers: Vec<usize>,
    after: String,
}

impl FoldedNames {
    /// Returns the number of folded names.
    pub(super) fn count(&self) -> usize {
        self.numbers.len().max(1)
    }
}

impl std::fmt::Display for FoldedNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.numbers.as_slice() {
            [] | [_] => f.write_str(&self.first),
            numbers => write!(f, "{}{{{}}}{}", self.before, ranges(numbers), self.after),
        }
    }
}

/// Formats sorted numbers as ranges with both ends included: `0..5,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => parts.push((number, number)),
        }
    }
    parts.iter().map(|&(start, end)| range_text(start, end)).collect::<Vec<_>>().join(",")
}

/// Formats the numbers from `start` to `end`: one number, a pair, or a range.
fn range_text(start: usize, end: usize) -> String {
    match end - start {
        0 => start.to_string(),
        1 => format!("{start},{end}"),
        _ => format!("{start}..{end}"),
    }
}

/// Splits a name around the first of its segments that is a number.
fn split(name: &str) -> (String, Option<usize>, String) {
    let mut start = 0;
    for segment in name.split('.') {
        let end = start + segment.len();
        if segment.len() <= 6
            && let Ok(number) = segment.parse()
        {
            return (name[..start].to_owned(), Some(number), name[end..].to_owned());
        }
        start = end + 1;
    }
    (name.to_owned(), None, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_folded() {
        let names =
            ["m.0.x", "head", "m.1.x", "m.2.x", "m.4.x", "m.0.y"].map(|name| (name.to_owned(), ()));
        let shown: Vec<String> = fold(names).iter().map(|(name, ())| name.to_string()).collect();
        assert_eq!(shown, ["m.{0..2,4}.x", "head", "m.0.y"]);
    }
}
