//! Dtypes that a safetensors header can name.

use std::fmt;

use registry::dtype::Dtype;

/// Dtype of a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub enum FileDtype {
    F64,
    F32,
    F16,
    Bf16,
    /// Four exponent bits, three of mantissa, no infinity (`fn`).
    F8E4m3,
    F8E5m2,
    /// A power of two, used for block scales.
    F8E8m0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl FileDtype {
    /// All dtypes that are read and written.
    pub const ALL: [Self; 16] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::F8E8m0,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
    ];

    /// Returns the header's spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4m3 => "F8_E4M3",
            Self::F8E5m2 => "F8_E5M2",
            Self::F8E8m0 => "F8_E8M0",
            Self::I64 => "I64",
            Self::I32 => "I32",
            Self::I16 => "I16",
            Self::I8 => "I8",
            Self::U64 => "U64",
            Self::U32 => "U32",
            Self::U16 => "U16",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
        }
    }

    /// Parses the header's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text)
    }

    /// Returns the bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::F8E8m0 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// True for floating-point dtypes, which can be widened to f32.
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Self::F64
                | Self::F32
                | Self::F16
                | Self::Bf16
                | Self::F8E4m3
                | Self::F8E5m2
                | Self::F8E8m0
        )
    }

    /// Returns the same dtype among those that a run can compute in.
    pub fn run(self) -> Option<Dtype> {
        match self {
            Self::F32 => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::Bf16),
            _ => None,
        }
    }
}

impl From<Dtype> for FileDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

impl fmt::Display for FileDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for dtype in FileDtype::ALL {
            assert_eq!(FileDtype::parse(dtype.name()), Some(dtype));
        }
        assert_eq!(FileDtype::parse("bf16"), None);
        for dtype in Dtype::ALL {
            assert_eq!(FileDtype::from(dtype).run(), Some(dtype));
            assert_eq!(FileDtype::from(dtype).size(), dtype.size());
        }
    }
}
