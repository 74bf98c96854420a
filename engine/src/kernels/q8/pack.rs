//! Weights with sixteen rows side by side.
//!
//! A tile is sixteen rows of a weight. Its levels lie in steps of 32 values: line `v` of 64 bytes has values
//! `4 v` to `4 v + 3` of each row, two lines folded into one for levels of 4 bits, with fifth bits and upper
//! pairs of bits in lines after them. Scales lie apart, in the order of steps.
#![expect(unsafe_code, reason = "lines of bytes are read as bytes")]

use formats::codec::{self, BlockType, Levels};
use rayon::prelude::*;

use super::form::{self, LevelBits, LevelFormat, ROWS, STEP, SUPER, ScaleFormat};

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct AlignedBytes([u8; 64]);

impl AlignedBytes {
    const ZERO: Self = Self([0; 64]);
}

// SAFETY: 64 bytes at a multiple of 64 have no padding, and zeros are a value.
unsafe impl bytemuck::Zeroable for AlignedBytes {}
// SAFETY: as above, and every pattern of bits is a value.
unsafe impl bytemuck::Pod for AlignedBytes {}

/// A weight in the layout of the kernels.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    ty: BlockType,
    form: LevelFormat,
    outputs: usize,
    inputs: usize,
    factor: f32,
    /// Bytes of levels of a tile.
    level_bytes: usize,
    /// Bytes of scales of a tile.
    scale_bytes: usize,
    levels: Vec<AlignedBytes>,
    scales: Vec<AlignedBytes>,
}

impl PackedMatrix {
    /// True if weights of this type and width have kernels in integers.
    pub fn takes(ty: BlockType, inputs: usize) -> bool {
        form::of(ty).is_some() && inputs.is_multiple_of(STEP.max(ty.elements())) && inputs > 0
    }

    /// Describes a weight whose blocks stay where they are and are packed at every use; none if its type has
    /// no kernel in integers.
    pub fn in_place(ty: BlockType, outputs: usize, inputs: usize, factor: f32) -> Option<Self> {
        let form = form::of(ty).filter(|_| Self::takes(ty, inputs))?;
        let steps = inputs / STEP;
        let scale_bytes = steps * form.scale_bytes() + steps.div_ceil(SUPER) * form.factor_bytes();
        Some(Self {
            ty,
            form,
            outputs,
            inputs,
            factor,
            level_bytes: steps * form.level_bytes(),
            scale_bytes: scale_bytes.next_multiple_of(64),
            levels: Vec::new(),
            scales: Vec::new(),
        })
    }

    /// Packs the blocks of a weight.
    ///
    /// # Panics
    /// If the bytes are not as many as the shape says.
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        assert!(self.fits(bytes), "the weight has as many bytes as its shape says");
        let lines = |bytes: usize| vec![AlignedBytes::ZERO; self.tiles() * bytes / 64];
        let (mut levels, mut scales) = (lines(self.level_bytes), lines(self.scale_bytes));
        let each = levels.par_chunks_mut(self.level_bytes / 64);
        let each = each.zip(scales.par_chunks_mut(self.scale_bytes / 64));
        each.zip(bytes.par_chunks(ROWS * self.row_bytes())).for_each(|((levels, scales), rows)| {
            self.pack(rows, bytemuck::cast_slice_mut(levels), bytemuck::cast_slice_mut(scales));
        });
        (self.levels, self.scales) = (levels, scales);
        self
    }

    /// Packs the rows of a tile into zeros.
    fn pack(&self, rows: &[u8], levels: &mut [u8], scales: &mut [u8]) {
        for (lane, bytes) in rows.chunks_exact(self.row_bytes()).enumerate() {
            pack_row(self.ty, &self.form, bytes, lane, levels, scales);
        }
    }

    fn row_bytes(&self) -> usize {
        self.inputs / self.ty.elements() * self.ty.bytes()
    }

    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        self.row_bytes().checked_mul(self.outputs) == Some(bytes.len())
    }

    pub(super) fn ty(&self) -> BlockType {
        self.ty
    }

    pub(super) fn form(&self) -> LevelFormat {
        self.form
    }

    /// Returns the number of rows.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the length of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub(super) fn factor(&self) -> f32 {
        self.factor
    }

    pub(super) fn tiles(&self) -> usize {
        self.outputs.div_ceil(ROWS)
    }

    pub(super) fn tile_bytes(&self) -> usize {
        self.level_bytes + self.scale_bytes
    }

    /// Returns the levels and the scales of a tile, packed into `room` if the weight keeps none.
    pub(super) fn tile<'a>(
        &'a self,
        tile: usize,
        bytes: &[u8],
        room: &'a mut TileBuffer,
    ) -> (&'a [u8], &'a [u8]) {
        if self.levels.is_empty() {
            let rows = bytes.chunks(ROWS * self.row_bytes()).nth(tile).unwrap_or_default();
            for (lines, bytes) in
                [(&mut room.levels, self.level_bytes), (&mut room.scales, self.scale_bytes)]
            {
                lines.clear();
                lines.resize(bytes / 64, AlignedBytes::ZERO);
            }
            let (levels, scales) = (&mut room.levels[..], &mut room.scales[..]);
            self.pack(rows, bytemuck::cast_slice_mut(levels), bytemuck::cast_slice_mut(scales));
            return (bytemuck::cast_slice(&room.levels), bytemuck::cast_slice(&room.scales));
        }
        let levels = &self.levels[tile * self.level_bytes / 64..][..self.level_bytes / 64];
        let scales = &self.scales[tile * self.scale_bytes / 64..][..self.scale_bytes / 64];
        (bytemuck::cast_slice(levels), bytemuck::cast_slice(scales))
    }
}

/// Room for one tile.
#[derive(Debug, Default)]
pub(super) struct TileBuffer {
    levels: Vec<AlignedBytes>,
    scales: Vec<AlignedBytes>,
}

/// Packs one row into its lane of a tile.
fn pack_row(
    ty: BlockType,
    form: &LevelFormat,
    bytes: &[u8],
    lane: usize,
    levels: &mut [u8],
    scales: &mut [u8],
) {
    let mut block = Levels::default();
    let per_block = ty.elements();
    for (at, bytes) in bytes.chunks_exact(ty.bytes()).enumerate() {
        codec::levels(ty, bytes, &mut block);
        for (n, values) in block.levels[..per_block].as_chunks::<STEP>().0.iter().enumerate() {
            let step = at * per_block / STEP + n;
            let to = &mut levels[step * form.level_bytes()..][..form.level_bytes()];
            pack_levels(form, values, lane, to);
            pack_scales(form, &block, n, step, lane, scales);
        }
    }
}

/// Folds the levels of one row and step into its lane, four at a time.
fn pack_levels(form: &LevelFormat, values: &[i8; STEP], lane: usize, to: &mut [u8]) {
    let codes = match form.bits {
        LevelBits::Eight => values.map(i8::cast_unsigned),
        LevelBits::Table => values.map(|value| form.index(value)),
        _ => values.map(|value| value.wrapping_add_unsigned(form.offset).cast_unsigned()),
    };
    let words = to.as_chunks_mut::<4>().0;
    let mut add = |line: usize, bits: u32| {
        let word = &mut words[ROWS * line + lane];
        *word = (u32::from_le_bytes(*word) | bits).to_le_bytes();
    };
    for (v, four) in codes.as_chunks::<4>().0.iter().enumerate() {
        let four = u32::from_le_bytes(*four);
        if form.bits == LevelBits::Eight {
            add(v, four);
            continue;
        }
        add(v % 4, (four & 0x0f0f_0f0f) << (4 * (v / 4)));
        match form.bits {
            LevelBits::Five => add(4, (four >> 4 & 0x0101_0101) << v),
            LevelBits::Six => add(4 + v / 4, (four >> 4 & 0x0303_0303) << (2 * (v % 4))),
            LevelBits::Four | LevelBits::Table | LevelBits::Eight => {}
        }
    }
}

/// Writes the scales of step `n` of a block, which is the row's step `step`.
fn pack_scales(
    form: &LevelFormat,
    block: &Levels,
    n: usize,
    step: usize,
    lane: usize,
    scales: &mut [u8],
) {
    let groups = form.groups();
    // There is a scale for each 16 values.
    let each = 2 / groups;
    let factors = (step / SUPER + 1) * form.factor_bytes();
    let at = factors + step * form.scale_bytes();
    let mut put = |at: usize, bytes: &[u8]| scales[at..at + bytes.len()].copy_from_slice(bytes);
    if form.scale == ScaleFormat::Int {
        if step.is_multiple_of(SUPER) {
            let at = at - form.factor_bytes();
            put(at + 4 * lane, &block.d.to_le_bytes());
            if form.mins {
                put(at + 4 * (ROWS + lane), &block.dmin.to_le_bytes());
            }
        }
        for group in 0..groups {
            put(at + group * ROWS + lane, &[block.scales[2 * n + each * group].cast_unsigned()]);
            if form.mins {
                put(at + (groups + group) * ROWS + lane, &[block.mins[2 * n + each * group]]);
            }
        }
        return;
    }
    let bits = |value: f32| match form.scale {
        ScaleFormat::Bf16 => half::bf16::from_f32(value).to_bits(),
        ScaleFormat::F16 | ScaleFormat::Int => half::f16::from_f32(value).to_bits(),
    };
    for group in 0..groups {
        put(at + 2 * (group * ROWS + lane), &bits(block.d).to_le_bytes());
        if form.mins {
            put(at + 2 * ((groups + group) * ROWS + lane), &bits(block.dmin).to_le_bytes());
        }
    }
}
