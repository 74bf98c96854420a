//! Attention of many rows by the library of the device: products for scores and for values, between them the kernels of
//! short chunks.

use std::ops::Range;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::product::{MatrixPlace, PlacedMatrix, ProductSizes};
use crate::device::{DeviceBuffer, KernelArgument, count};
use crate::kernels::attention::ScoreRounding;
use crate::ops::Ctx;
use crate::ops::device::index;
use crate::ops::device::seen::{SeenPositions, rounding_argument};

/// Rows of a chunk from which the library computes attention.
const ROWS: usize = 32;

/// Numbers to a multiple of which rows of scores are apart, so that the library finds them aligned.
const APART: usize = 8;

/// True if the library computes attention over values of these dtypes, which have to be one.
pub(super) fn takes(ctx: &Ctx<'_>, rows: usize, dtypes: &[Dtype]) -> bool {
    ctx.library && rows >= ROWS && dtypes.windows(2).all(|pair| pair[0] == pair[1])
}

/// Vectors of rows and heads: where the first is, and how far apart they are.
#[derive(Clone, Copy)]
pub(super) struct HeadVectors<'a> {
    pub(super) buffer: &'a DeviceBuffer,
    pub(super) at: usize,
    /// Numbers from a row to the next.
    pub(super) row: usize,
    /// Numbers from a head to the next; 0 if all heads have one.
    pub(super) head: usize,
    /// Numbers of a vector.
    pub(super) size: usize,
}

impl<'a> HeadVectors<'a> {
    /// Places rows of heads that lie one behind the other, from a row on.
    pub(super) fn of_rows(
        buffer: &'a DeviceBuffer,
        first: usize,
        heads: usize,
        size: usize,
    ) -> Self {
        let row = heads * size;
        Self { buffer, at: first * row, row, head: size, size }
    }

    /// Places the matrices of every `group`th head, from head `member` on.
    fn matrices(self, member: usize, group: usize) -> PlacedMatrix<'a> {
        let at = self.at + member * self.head;
        (self.buffer, MatrixPlace { at, row: self.row, matrix: group * self.head })
    }
}

/// The scores of many rows.
pub(super) struct LongRows<'a> {
    ctx: &'a Ctx<'a>,
    rows: usize,
    heads: usize,
    kv_heads: usize,
    dtype: Dtype,
    /// Positions that the rows see; the span is the distance of rows of scores.
    pub(super) seen: SeenPositions,
    /// Positions that any row sees.
    positions: usize,
    pub(super) scores: DeviceBuffer,
    _ranges: DeviceBuffer,
}

impl<'a> LongRows<'a> {
    pub(super) fn new(
        ctx: &'a Ctx<'a>,
        seen: &[Range<usize>],
        (heads, kv_heads): (usize, usize),
        dtype: Dtype,
    ) -> Result<Self, Error> {
        let queue = ctx.queue()?;
        let (ranges, placed) = SeenPositions::of_parts(queue, &[seen])?;
        let mut seen_positions = placed[0];
        let positions = seen_positions.span;
        seen_positions.span = positions.next_multiple_of(APART);
        let scores = queue.allocate(4 * seen.len() * heads * seen_positions.span)?;
        let rows = seen.len();
        let seen = seen_positions;
        Ok(Self { ctx, rows, heads, kv_heads, dtype, seen, positions, scores, _ranges: ranges })
    }

    fn total(&self) -> usize {
        self.rows * self.heads * self.seen.span
    }

    /// Multiplies vectors of queries with a row of all positions. Heads that share keys go in turn, so that
    /// matrices of a batch are the same distance apart.
    fn products(
        &self,
        sizes: ProductSizes,
        x: HeadVectors<'_>,
        w: HeadVectors<'_>,
        y: HeadVectors<'_>,
    ) -> Result<(), Error> {
        let group = self.heads / self.kv_heads;
        let queue = self.ctx.queue()?;
        (0..group).try_for_each(|member| {
            queue.multiply(
                sizes,
                x.matrices(member, group),
                w.matrices(0, 1),
                y.matrices(member, group),
            )
        })
    }

    fn sizes(&self, inputs: usize, outputs: usize) -> ProductSizes {
        ProductSizes {
            batch: self.kv_heads,
            rows: self.rows,
            inputs,
            outputs,
            by_outputs: true,
            dtype: self.dtype,
            made: self.dtype,
            adds: false,
        }
    }

    /// Returns a row of numbers for each query, one for each position.
    fn by_position<'b>(&self, buffer: &'b DeviceBuffer) -> HeadVectors<'b> {
        let head = self.seen.span;
        let size = self.positions;
        HeadVectors { buffer, at: 0, row: self.heads * head, head, size }
    }

    /// Sets the scores to products of queries and keys, or adds these. Keys begin at the first position that is seen.
    pub(super) fn score(
        &self,
        queries: HeadVectors<'_>,
        keys: HeadVectors<'_>,
        adds: bool,
    ) -> Result<(), Error> {
        let sizes = self.sizes(keys.size, self.positions);
        let sizes = ProductSizes { made: Dtype::F32, adds, ..sizes };
        self.products(sizes, queries, keys, self.by_position(&self.scores))
    }

    /// Scales and rounds the scores.
    pub(super) fn finish(
        &self,
        slopes: Option<&DeviceBuffer>,
        relative: [KernelArgument; 3],
        scale: f32,
        rounding: ScoreRounding,
    ) -> Result<(), Error> {
        let mut arguments: Vec<KernelArgument> =
            vec![(&self.scores).into(), index(self.ctx, self.heads)?.into()];
        arguments.extend(self.seen.arguments());
        arguments.push(slopes.into());
        arguments.extend(relative);
        arguments.extend::<[KernelArgument; 4]>([
            scale.into(),
            rounding_argument(rounding),
            self.dtype.into(),
            count(self.total()),
        ]);
        self.ctx.queue()?.launch_each("attend_finish", self.total(), &arguments)
    }

    /// Sums values by the weights that the scores have become. Values begin at the first position that is seen.
    pub(super) fn sum(&self, values: HeadVectors<'_>, y: HeadVectors<'_>) -> Result<(), Error> {
        let queue = self.ctx.queue()?;
        let weights = queue.allocate(self.total() * self.dtype.size())?;
        let mut arguments: Vec<KernelArgument> =
            vec![(&self.scores).into(), index(self.ctx, self.heads)?.into()];
        arguments.extend(self.seen.arguments());
        arguments.extend::<[KernelArgument; 3]>([
            (&weights).into(),
            self.dtype.into(),
            count(self.total()),
        ]);
        queue.launch_each("attend_seen", self.total(), &arguments)?;
        let sizes = ProductSizes { by_outputs: false, ..self.sizes(self.positions, values.size) };
        self.products(sizes, self.by_position(&weights), values, y)
    }
}
