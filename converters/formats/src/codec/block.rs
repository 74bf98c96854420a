//! Block formats with their names, ids and sizes.

use std::fmt;

/// Format of a tensor in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BlockType {
    /// `F32`.
    F32,
    /// `F16`.
    F16,
    /// `Q4_0`.
    Q40,
    /// `Q4_1`.
    Q41,
    /// `Q5_0`.
    Q50,
    /// `Q5_1`.
    Q51,
    /// `Q8_0`.
    Q80,
    /// `Q8_1`.
    Q81,
    /// `Q2_K`.
    Q2K,
    /// `Q3_K`.
    Q3K,
    /// `Q4_K`.
    Q4K,
    /// `Q5_K`.
    Q5K,
    /// `Q6_K`.
    Q6K,
    /// `Q8_K`.
    Q8K,
    /// `IQ2_XXS`.
    Iq2Xxs,
    /// `IQ2_XS`.
    Iq2Xs,
    /// `IQ3_XXS`.
    Iq3Xxs,
    /// `IQ1_S`.
    Iq1S,
    /// `IQ4_NL`.
    Iq4Nl,
    /// `IQ3_S`.
    Iq3S,
    /// `IQ2_S`.
    Iq2S,
    /// `IQ4_XS`.
    Iq4Xs,
    /// `I8`.
    I8,
    /// `I16`.
    I16,
    /// `I32`.
    I32,
    /// `I64`.
    I64,
    /// `F64`.
    F64,
    /// `IQ1_M`.
    Iq1M,
    /// `BF16`.
    Bf16,
    /// `TQ1_0`.
    Tq10,
    /// `TQ2_0`.
    Tq20,
    /// `MXFP4`.
    Mxfp4,
    /// `NVFP4`.
    Nvfp4,
    /// `Q1_0`.
    Q10,
    /// `Q2_0`.
    Q20,
}

/// Type, id in files, values per block, bytes per block, name.
const TABLE: &[(BlockType, u32, usize, usize, &str)] = &[
    (BlockType::F32, 0, 1, 4, "F32"),
    (BlockType::F16, 1, 1, 2, "F16"),
    (BlockType::Q40, 2, 32, 18, "Q4_0"),
    (BlockType::Q41, 3, 32, 20, "Q4_1"),
    (BlockType::Q50, 6, 32, 22, "Q5_0"),
    (BlockType::Q51, 7, 32, 24, "Q5_1"),
    (BlockType::Q80, 8, 32, 34, "Q8_0"),
    (BlockType::Q81, 9, 32, 36, "Q8_1"),
    (BlockType::Q2K, 10, 256, 84, "Q2_K"),
    (BlockType::Q3K, 11, 256, 110, "Q3_K"),
    (BlockType::Q4K, 12, 256, 144, "Q4_K"),
    (BlockType::Q5K, 13, 256, 176, "Q5_K"),
    (BlockType::Q6K, 14, 256, 210, "Q6_K"),
    (BlockType::Q8K, 15, 256, 292, "Q8_K"),
    (BlockType::Iq2Xxs, 16, 256, 66, "IQ2_XXS"),
    (BlockType::Iq2Xs, 17, 256, 74, "IQ2_XS"),
    (BlockType::Iq3Xxs, 18, 256, 98, "IQ3_XXS"),
    (BlockType::Iq1S, 19, 256, 50, "IQ1_S"),
    (BlockType::Iq4Nl, 20, 32, 18, "IQ4_NL"),
    (BlockType::Iq3S, 21, 256, 110, "IQ3_S"),
    (BlockType::Iq2S, 22, 256, 82, "IQ2_S"),
    (BlockType::Iq4Xs, 23, 256, 136, "IQ4_XS"),
    (BlockType::I8, 24, 1, 1, "I8"),
    (BlockType::I16, 25, 1, 2, "I16"),
    (BlockType::I32, 26, 1, 4, "I32"),
    (BlockType::I64, 27, 1, 8, "I64"),
    (BlockType::F64, 28, 1, 8, "F64"),
    (BlockType::Iq1M, 29, 256, 56, "IQ1_M"),
    (BlockType::Bf16, 30, 1, 2, "BF16"),
    (BlockType::Tq10, 34, 256, 54, "TQ1_0"),
    (BlockType::Tq20, 35, 256, 66, "TQ2_0"),
    (BlockType::Mxfp4, 39, 32, 17, "MXFP4"),
    (BlockType::Nvfp4, 40, 64, 36, "NVFP4"),
    (BlockType::Q10, 41, 128, 18, "Q1_0"),
    (BlockType::Q20, 42, 64, 18, "Q2_0"),
];

impl BlockType {
    /// Returns every format.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the format with this id in files.
    pub fn from_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == id).map(|row| row.0)
    }

    /// Returns the format of this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.4.eq_ignore_ascii_case(name)).map(|row| row.0)
    }

    fn row(self) -> &'static (Self, u32, usize, usize, &'static str) {
        // The table has the order of the variants, which a test checks.
        &TABLE[self as usize]
    }

    /// Returns the id in files.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// Returns the number of values in a block.
    pub fn elements(self) -> usize {
        self.row().2
    }

    /// Returns the number of bytes in a block.
    pub fn bytes(self) -> usize {
        self.row().3
    }

    /// Returns the name, as in `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().4
    }

    /// True if a block holds more than one value.
    pub fn is_quantized(self) -> bool {
        self.elements() > 1
    }

    /// True if encoding requires an importance matrix.
    pub fn needs_importance(self) -> bool {
        matches!(self, Self::Iq2Xxs | Self::Iq2Xs | Self::Iq1S)
    }

    /// Returns the bytes of a row of this many values; none if it does not divide into blocks.
    pub fn row_bytes(self, numbers: usize) -> Option<usize> {
        let blocks = numbers.is_multiple_of(self.elements()).then(|| numbers / self.elements())?;
        blocks.checked_mul(self.bytes())
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_order() {
        for (n, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, n, "{}", row.4);
            assert_eq!(BlockType::from_id(row.1), Some(row.0));
            assert_eq!(BlockType::parse(row.4), Some(row.0));
        }
    }
}
