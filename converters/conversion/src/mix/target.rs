//! Conversion targets: one type, or a mix of types around one.

use std::fmt;

use super::Error;
use formats::codec::BlockType;

/// Conversion target, such as `q4_k_m`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MixTarget(&'static MixRow);

/// Name, `general.file_type`, and the type of most tensors.
type MixRow = (&'static str, u32, BlockType);

const TARGETS: &[MixRow] = &[
    ("F32", 0, BlockType::F32),
    ("F16", 1, BlockType::F16),
    ("BF16", 32, BlockType::Bf16),
    ("Q8_0", 7, BlockType::Q80),
    ("Q6_K", 18, BlockType::Q6K),
    ("Q5_K_M", 17, BlockType::Q5K),
    ("Q5_K_S", 16, BlockType::Q5K),
    ("Q5_1", 9, BlockType::Q51),
    ("Q5_0", 8, BlockType::Q50),
    ("Q4_K_M", 15, BlockType::Q4K),
    ("Q4_K_S", 14, BlockType::Q4K),
    ("Q4_1", 3, BlockType::Q41),
    ("Q4_0", 2, BlockType::Q40),
    ("IQ4_NL", 25, BlockType::Iq4Nl),
    ("IQ4_XS", 30, BlockType::Iq4Xs),
    ("MXFP4_MOE", 38, BlockType::Mxfp4),
    ("Q3_K_L", 13, BlockType::Q3K),
    ("Q3_K_M", 12, BlockType::Q3K),
    ("Q3_K_S", 11, BlockType::Q3K),
    ("IQ3_M", 27, BlockType::Iq3S),
    ("IQ3_S", 26, BlockType::Iq3S),
    ("IQ3_XS", 22, BlockType::Iq3S),
    ("IQ3_XXS", 23, BlockType::Iq3Xxs),
    ("Q2_K", 10, BlockType::Q2K),
    ("Q2_K_S", 21, BlockType::Q2K),
    ("IQ2_M", 29, BlockType::Iq2S),
    ("IQ2_S", 28, BlockType::Iq2Xs),
    ("IQ2_XS", 20, BlockType::Iq2Xs),
    ("IQ2_XXS", 19, BlockType::Iq2Xxs),
    ("IQ1_M", 31, BlockType::Iq1M),
    ("IQ1_S", 24, BlockType::Iq1S),
    ("TQ2_0", 37, BlockType::Tq20),
    ("TQ1_0", 36, BlockType::Tq10),
    ("Q2_0", 41, BlockType::Q20),
    ("Q1_0", 40, BlockType::Q10),
];

const ALIASES: &[(&str, &str)] = &[("Q5_K", "Q5_K_M"), ("Q4_K", "Q4_K_M"), ("Q3_K", "Q3_K_M")];

impl MixTarget {
    /// Returns every target, from the largest type to the smallest.
    pub fn all() -> impl Iterator<Item = Self> {
        TARGETS.iter().map(Self)
    }

    /// Parses the name of a target, in any case.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let alias = ALIASES.iter().find(|alias| alias.0.eq_ignore_ascii_case(name));
        let full = alias.map_or(name, |alias| alias.1);
        let found = TARGETS.iter().find(|row| row.0.eq_ignore_ascii_case(full));
        found.map(Self).ok_or_else(|| Error::UnknownTarget { found: formats::shown(name) })
    }

    /// Returns the target's name, such as `Q4_K_M`.
    pub fn name(self) -> &'static str {
        self.0.0
    }

    /// Returns the `general.file_type` of such a file.
    pub fn file_type(self) -> u32 {
        self.0.1
    }

    /// Returns the type of tensors that no rule changes.
    pub fn default_type(self) -> BlockType {
        self.0.2
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
