//! Number formats that values, weights and states are kept in.

use std::fmt;

/// A concrete number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Dtype {
    /// Every dtype, in the order in which reports list them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Returns the short name, as specs, flags and dumps spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Reads a short name or the name that config files use.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "f32" | "float32" | "float" => Some(Self::F32),
            "bf16" | "bfloat16" => Some(Self::Bf16),
            "f16" | "float16" | "half" => Some(Self::F16),
            _ => None,
        }
    }

    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dtype that a spec declares: the run's activation dtype, or a fixed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DtypeRule {
    /// Whatever the run computes in (`--dtype`).
    Activation,
    /// Always this.
    Fixed(Dtype),
    /// F32 in an f16 run, and the activation dtype in any other run. Some weights need this rule because
    /// their numbers exceed the range of f16.
    WideInF16,
}

impl DtypeRule {
    /// Returns the concrete dtype in a run of activation dtype `activation`.
    pub fn resolve(self, activation: Dtype) -> Dtype {
        match self {
            Self::Fixed(dtype) => dtype,
            Self::WideInF16 if activation == Dtype::F16 => Dtype::F32,
            Self::Activation | Self::WideInF16 => activation,
        }
    }
}

impl fmt::Display for DtypeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activation => f.write_str("activation"),
            Self::Fixed(dtype) => dtype.fmt(f),
            Self::WideInF16 => f.write_str("f32_in_f16"),
        }
    }
}
