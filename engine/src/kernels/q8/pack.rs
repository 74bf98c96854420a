//! Weights with sixteen rows side by side.
//!
//! A tile is sixteen rows of a weight, in spans of eight steps: factors, scales in the order of steps, then
//! levels. Line `v` of 64 bytes of a step has values `4 v` to `4 v + 3` of each row, two lines folded into one
//! for levels of 4 bits, with fifth bits and upper pairs of bits in lines after them. Tiles follow each other,
//! so that a weight is read from its first byte to its last.
//!
//! Decode is as fast as memory is read ([decision 55](../../../../docs/decisions/0055-weights-read-as-one-stream.md)).

use formats::codec::{self, BlockType, Levels};
use memmap2::MmapMut;
use rayon::prelude::*;

use super::form::{self, LevelBits, LevelFormat, ROWS, SPAN, STEP, ScaleFormat};

/// A weight in the layout of the kernels.
#[derive(Debug)]
pub struct PackedMatrix {
    ty: BlockType,
    form: LevelFormat,
    outputs: usize,
    inputs: usize,
    factor: f32,
    /// The packed tiles; none if they are packed at every use.
    tiles: Option<MmapMut>,
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
        Some(Self { ty, form, outputs, inputs, factor, tiles: None })
    }

    /// Packs the blocks of a weight. They stay where they are if the system has no memory for tiles.
    ///
    /// # Panics
    /// If the bytes are not as many as the shape says.
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        assert!(self.fits(bytes), "the weight has as many bytes as its shape says");
        let Ok(mut tiles) = MmapMut::map_anon(self.tiles() * self.tile_bytes()) else {
            return self;
        };
        // Pages of 2 MB save most misses of the address cache; a system without them changes nothing.
        #[cfg(target_os = "linux")]
        tiles.advise(memmap2::Advice::HugePage).ok();
        tiles
            .par_chunks_mut(self.tile_bytes())
            .zip(bytes.par_chunks(ROWS * self.row_bytes()))
            .for_each(|(tile, rows)| self.pack(rows, tile));
        self.tiles = Some(tiles);
        self
    }

    /// Packs the rows of a tile into zeros.
    fn pack(&self, rows: &[u8], tile: &mut [u8]) {
        for (lane, bytes) in rows.chunks_exact(self.row_bytes()).enumerate() {
            pack_row(self.ty, &self.form, bytes, lane, tile);
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
        let steps = self.inputs / STEP;
        steps.div_ceil(SPAN) * self.form.head_bytes() + steps * self.form.level_bytes()
    }

    /// Returns some tiles, packed into `room` if the weight keeps none.
    pub(super) fn packed<'a>(
        &'a self,
        tiles: std::ops::Range<usize>,
        bytes: &[u8],
        room: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let size = self.tile_bytes();
        if let Some(packed_tiles) = &self.tiles {
            return &packed_tiles[tiles.start * size..tiles.end * size];
        }
        room.resize(tiles.len() * size, 0);
        let rows = bytes.chunks(ROWS * self.row_bytes()).skip(tiles.start);
        for (tile, rows) in room.chunks_exact_mut(size).zip(rows) {
            self.pack(rows, tile);
        }
        room
    }
}

/// Packs one row into its lane of a tile.
fn pack_row(ty: BlockType, form: &LevelFormat, bytes: &[u8], lane: usize, tile: &mut [u8]) {
    let mut block = Levels::default();
    let per_block = ty.elements();
    for (at, bytes) in bytes.chunks_exact(ty.bytes()).enumerate() {
        codec::levels(ty, bytes, &mut block);
        for (n, values) in block.levels[..per_block].as_chunks::<STEP>().0.iter().enumerate() {
            let step = at * per_block / STEP + n;
            let span = &mut tile[step / SPAN * form.span_bytes()..];
            let (head, levels) = span.split_at_mut(form.head_bytes());
            let to = &mut levels[step % SPAN * form.level_bytes()..][..form.level_bytes()];
            pack_levels(form, values, lane, to);
            pack_scales(form, &block, n, step % SPAN, lane, head);
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
    for (v, four) in codes.as_chunks::<4>().0.iter().enumerate() {
        let four = u32::from_le_bytes(*four);
        if form.bits == LevelBits::Eight {
            add_bits(&mut words[ROWS * v + lane], four);
            continue;
        }
        let bits = (four & 0x0f0f_0f0f) << (4 * (v / 4));
        add_bits(&mut words[ROWS * (v % 4) + lane], bits);
        match form.bits {
            LevelBits::Five => {
                let bits = (four >> 4 & 0x0101_0101) << v;
                add_bits(&mut words[ROWS * 4 + lane], bits);
            }
            LevelBits::Six => {
                let bits = (four >> 4 & 0x0303_0303) << (2 * (v % 4));
                add_bits(&mut words[ROWS * (4 + v / 4) + lane], bits);
            }
            LevelBits::Four | LevelBits::Table | LevelBits::Eight => {}
        }
    }
}

/// Sets bits of a little-endian word.
fn add_bits(word: &mut [u8; 4], bits: u32) {
    *word = (u32::from_le_bytes(*word) | bits).to_le_bytes();
}

/// Writes the scales of step `n` of a block, which is step `step` of its span.
fn pack_scales(
    form: &LevelFormat,
    block: &Levels,
    n: usize,
    step: usize,
    lane: usize,
    head: &mut [u8],
) {
    let groups = form.groups();
    // There is a scale for each 16 values.
    let each = 2 / groups;
    let at = form.factor_bytes() + step * form.scale_bytes();
    if form.scale == ScaleFormat::Int {
        if step == 0 {
            put(head, 4 * lane, &block.d.to_le_bytes());
            if form.mins {
                put(head, 4 * (ROWS + lane), &block.dmin.to_le_bytes());
            }
        }
        for group in 0..groups {
            put(
                head,
                at + group * ROWS + lane,
                &[block.scales[2 * n + each * group].cast_unsigned()],
            );
            if form.mins {
                put(head, at + (groups + group) * ROWS + lane, &[block.mins[2 * n + each * group]]);
            }
        }
        return;
    }
    for group in 0..groups {
        put(head, at + 2 * (group * ROWS + lane), &half_bits(form.scale, block.d).to_le_bytes());
        if form.mins {
            put(
                head,
                at + 2 * ((groups + group) * ROWS + lane),
                &half_bits(form.scale, block.dmin).to_le_bytes(),
            );
        }
    }
}

/// Copies bytes to a place.
fn put(head: &mut [u8], at: usize, bytes: &[u8]) {
    head[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns the bits of a scale in 16 bits.
fn half_bits(scale: ScaleFormat, value: f32) -> u16 {
    match scale {
        ScaleFormat::Bf16 => half::bf16::from_f32(value).to_bits(),
        ScaleFormat::F16 | ScaleFormat::Int => half::f16::from_f32(value).to_bits(),
    }
}
