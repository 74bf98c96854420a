//! Versions and ranges of them: `>=0.5.20, <0.6`.

use std::fmt;

/// A release number: its groups of digits, in order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl Version {
    /// Reads a version: `0.5.23`, `v0.33.0`, `b7240`. What follows the release (`rc1`, `.post2`,
    /// `+cu130`) is left out.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches(['v', 'b']);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let groups = text[..end].trim_end_matches('.').split('.');
        let mut numbers = groups.map(|group| group.parse().ok()).collect::<Option<Vec<u64>>>()?;
        // `1.0` and `1.0.0` are the same release.
        while numbers.len() > 1 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        (numbers.len() <= 6).then_some(Self(numbers))
    }
}

/// A comparison with a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VersionOperator {
    AtLeast,
    Above,
    AtMost,
    Below,
    Equal,
}

/// Longest first.
const OPERATORS: [(&str, VersionOperator); 5] = [
    (">=", VersionOperator::AtLeast),
    ("<=", VersionOperator::AtMost),
    ("==", VersionOperator::Equal),
    (">", VersionOperator::Above),
    ("<", VersionOperator::Below),
];

/// A range of versions: all of its comparisons hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRange {
    text: String,
    all: Vec<(VersionOperator, Version)>,
}

impl VersionRange {
    /// Reads comparisons with commas between them.
    pub fn parse(text: &str) -> Option<Self> {
        let all = text.split(',').map(comparison).collect::<Option<Vec<_>>>()?;
        Some(Self { text: text.trim().to_owned(), all })
    }

    /// True if the range has the version.
    pub fn contains(&self, version: &Version) -> bool {
        self.all.iter().all(|(compare, bound)| match compare {
            VersionOperator::AtLeast => version >= bound,
            VersionOperator::Above => version > bound,
            VersionOperator::AtMost => version <= bound,
            VersionOperator::Below => version < bound,
            VersionOperator::Equal => version == bound,
        })
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads one comparison of a range.
fn comparison(text: &str) -> Option<(VersionOperator, Version)> {
    let text = text.trim();
    let (word, operator) = OPERATORS.iter().find(|(word, _)| text.starts_with(word))?;
    Some((*operator, Version::parse(&text[word.len()..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_their_versions() {
        for (range, version, expected) in [
            (">=0.5.20, <0.6", "0.5.23", true),
            (">=0.5.20, <0.6", "0.6.0", false),
            (">=0.5.20, <0.6", "0.5.9", false),
            ("==0.33", "0.33.0", true),
            (">=0.33", "0.33.0rc1", true),
            ("<=1.0", "v1.0.0+cu130", true),
            (">7000", "b7240", true),
        ] {
            let range = VersionRange::parse(range).unwrap();
            assert_eq!(range.contains(&Version::parse(version).unwrap()), expected, "{version}");
        }
    }

    #[test]
    fn other_texts_are_no_versions() {
        for text in ["", "nightly", "1..2", "1.2.3.4.5.6.7", "99999999999999999999"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        for text in ["", "0.5", ">=x", ">=1,", "~=1.0"] {
            assert_eq!(VersionRange::parse(text), None, "{text}");
        }
    }
}
