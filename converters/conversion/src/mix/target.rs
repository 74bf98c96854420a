//! Conversion targets: one type, or a mix of types around one.

use std::fmt;

use super::Error;
use formats::codec::{BlockType, FileType};

/// Conversion target, such as `q4_k_m`: a file type, and the type of most tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MixTarget(&'static FileType, BlockType);

const ALIASES: &[(&str, &str)] = &[("Q5_K", "Q5_K_M"), ("Q4_K", "Q4_K_M"), ("Q3_K", "Q3_K_M")];

impl MixTarget {
    /// Returns every target, from the largest type to the smallest.
    pub fn all() -> impl Iterator<Item = Self> {
        BlockType::declared().flat_map(|ty| {
            let targets = ty.file_types().iter().filter(|file| file.target);
            targets.map(move |file| Self(file, ty))
        })
    }

    /// Parses the name of a target, in any case.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let alias = ALIASES.iter().find(|alias| alias.0.eq_ignore_ascii_case(name));
        let full = alias.map_or(name, |alias| alias.1);
        let target = Self::all().find(|target| target.name().eq_ignore_ascii_case(full));
        target.ok_or_else(|| Error::UnknownTarget { found: formats::shown(name) })
    }

    /// Returns the target's name, such as `Q4_K_M`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the `general.file_type` of such a file.
    pub fn file_type(self) -> u32 {
        self.0.id
    }

    /// Returns the type of tensors that no rule changes.
    pub fn default_type(self) -> BlockType {
        self.1
    }
}

impl fmt::Display for MixTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for MixTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        for target in MixTarget::all() {
            assert_eq!(MixTarget::parse(&target.name().to_lowercase()).unwrap(), target);
        }
        assert_eq!(MixTarget::parse("q4_k").unwrap().name(), "Q4_K_M");
        assert_eq!(MixTarget::parse("bf16").unwrap().file_type(), 32);
        let message = MixTarget::parse("q4_k_xl").unwrap_err().to_string();
        assert!(message.contains("`q4_k_xl`") && message.contains("q4_k_m, "), "{message}");
    }
}
