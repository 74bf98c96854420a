//! Number of groups that are encoded at once.

/// Number of groups that an encoder processes at once. The bytes are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneCount {
    /// One after the other: the reference code.
    One,
    /// Eight, with AVX2.
    Eight,
    /// Sixteen, with AVX-512.
    Sixteen,
}

impl LaneCount {
    /// Returns the lanes that this CPU supports, the widest last.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        [Self::One, Self::Eight, Self::Sixteen].into_iter().filter(|lanes| lanes.is_supported())
    }

    /// True if this CPU has the instructions.
    fn is_supported(self) -> bool {
        match self {
            Self::One => true,
            #[cfg(target_arch = "x86_64")]
            Self::Eight => crate::features::avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Sixteen => crate::features::avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Eight | Self::Sixteen => false,
        }
    }

    /// Returns the widest lanes that this CPU supports.
    pub fn widest() -> Self {
        Self::available().next_back().unwrap_or(Self::One)
    }

    /// Returns the number of lanes.
    pub fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }
}
