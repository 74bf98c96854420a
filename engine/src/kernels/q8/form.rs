//! Layouts of packed weights, one per way of writing levels and scales.

use formats::codec::BlockType;

pub(super) use lanes::STEP;

/// Rows of a weight that lie side by side.
pub(super) const ROWS: usize = 16;
/// Steps that share the factors of scales of 8 bits, and lie together.
pub(super) const SPAN: usize = 8;

/// The bits of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LevelBits {
    /// Four bits, two levels in a byte.
    Four,
    /// Four bits that index a table of sixteen signed integers.
    Table,
    /// Four bits, and a plane of fifth bits.
    Five,
    /// Four bits, and two planes of upper pairs of bits.
    Six,
    /// Signed integers of eight bits.
    Eight,
}

/// The scales of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleFormat {
    /// One number of f16 per group.
    F16,
    /// One number of bf16 per group.
    Bf16,
    /// An integer of 8 bits per group, and a factor in f32 for 256 values.
    Int,
}

/// PackedLayout of a packed weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LevelFormat {
    pub(super) bits: LevelBits,
    /// Added to each level to make it unsigned; 0 for [`LevelBits::Table`] and [`LevelBits::Eight`].
    pub(super) offset: u8,
    pub(super) table: [i8; 16],
    pub(super) scale: ScaleFormat,
    /// Values with one scale: 16 or 32.
    pub(super) group: usize,
    /// True if groups have minima.
    pub(super) mins: bool,
}

impl LevelFormat {
    const fn new(
        bits: LevelBits,
        offset: u8,
        scale: ScaleFormat,
        group: usize,
        mins: bool,
    ) -> Self {
        Self { bits, offset, table: [0; 16], scale, group, mins }
    }

    const fn table(table: [i8; 16], scale: ScaleFormat) -> Self {
        Self { bits: LevelBits::Table, offset: 0, table, scale, group: 32, mins: false }
    }

    /// Returns the index of a table's entry.
    pub(super) fn index(&self, entry: i8) -> u8 {
        self.table
            .iter()
            .fold((0, 0), |(at, index), &other| (at + 1, if other == entry { at } else { index }))
            .1
    }

    /// Bytes of levels in one step of sixteen rows.
    pub(super) const fn level_bytes(&self) -> usize {
        match self.bits {
            LevelBits::Four | LevelBits::Table => 256,
            LevelBits::Five => 320,
            LevelBits::Six => 384,
            LevelBits::Eight => 512,
        }
    }

    /// Groups of one step.
    pub(super) const fn groups(&self) -> usize {
        STEP / self.group
    }

    /// Bytes of scales and minima in one step of sixteen rows, without factors.
    pub(super) const fn scale_bytes(&self) -> usize {
        let one = match self.scale {
            ScaleFormat::F16 | ScaleFormat::Bf16 => 2 * ROWS,
            ScaleFormat::Int => ROWS,
        };
        self.groups() * one * if self.mins { 2 } else { 1 }
    }

    /// Bytes of factors at the start of a span.
    pub(super) const fn factor_bytes(&self) -> usize {
        match self.scale {
            ScaleFormat::F16 | ScaleFormat::Bf16 => 0,
            ScaleFormat::Int => 4 * ROWS * if self.mins { 2 } else { 1 },
        }
    }

    /// Bytes of factors and scales of a span, which its levels follow.
    pub(super) const fn head_bytes(&self) -> usize {
        self.factor_bytes() + SPAN * self.scale_bytes()
    }

    /// Bytes of a span of [`SPAN`] steps.
    pub(super) const fn span_bytes(&self) -> usize {
        self.head_bytes() + SPAN * self.level_bytes()
    }
}

const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// E2M1 in halves.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A layout as a type, so that kernels are compiled for each.
pub(super) trait PackedLayout {
    const FORM: LevelFormat;
}

/// Declares the layouts, and the block types that each can hold.
macro_rules! layouts {
    ($($layout:ident: $form:expr, $($ty:ident)|+;)+) => {
        $(
            pub(super) enum $layout {}

            impl PackedLayout for $layout {
                const FORM: LevelFormat = $form;
            }
        )+

        /// Calls `visit` with the layout of a block type; none if it has no kernel in integers.
        pub(super) fn visit<V: LayoutVisitor>(ty: BlockType, visit: V) -> Option<V::Out> {
            match ty {
                $($(BlockType::$ty)|+ => Some(visit.visit::<$layout>()),)+
                _ => None,
            }
        }
    };
}

/// Code that is compiled for a layout.
pub(super) trait LayoutVisitor {
    type Out;

    fn visit<F: PackedLayout>(self) -> Self::Out;
}

layouts! {
    Nibbles: LevelFormat::new(LevelBits::Four, 8, ScaleFormat::F16, 32, false), Q40 | Q10 | Q20 | Tq20;
    NibblesMin: LevelFormat::new(LevelBits::Four, 0, ScaleFormat::F16, 32, true), Q41;
    Fives: LevelFormat::new(LevelBits::Five, 16, ScaleFormat::F16, 32, false), Q50;
    FivesMin: LevelFormat::new(LevelBits::Five, 0, ScaleFormat::F16, 32, true), Q51;
    Bytes: LevelFormat::new(LevelBits::Eight, 0, ScaleFormat::F16, 32, false), Q80;
    TableF16: LevelFormat::table(IQ4, ScaleFormat::F16), Iq4Nl;
    TableBf16: LevelFormat::table(E2M1, ScaleFormat::Bf16), Mxfp4;
    TableInt: LevelFormat::table(IQ4, ScaleFormat::Int), Iq4Xs;
    K2: LevelFormat::new(LevelBits::Four, 0, ScaleFormat::Int, 16, true), Q2K;
    K3: LevelFormat::new(LevelBits::Four, 4, ScaleFormat::Int, 16, false), Q3K;
    K4: LevelFormat::new(LevelBits::Four, 0, ScaleFormat::Int, 32, true), Q4K;
    K5: LevelFormat::new(LevelBits::Five, 0, ScaleFormat::Int, 32, true), Q5K;
    K6: LevelFormat::new(LevelBits::Six, 32, ScaleFormat::Int, 16, false), Q6K;
}

/// Returns the layout of a block type; none if it has no kernel in integers.
pub(super) fn of(ty: BlockType) -> Option<LevelFormat> {
    struct LayoutOf;
    impl LayoutVisitor for LayoutOf {
        type Out = LevelFormat;
        fn visit<F: PackedLayout>(self) -> LevelFormat {
            F::FORM
        }
    }
    visit(ty, LayoutOf)
}
