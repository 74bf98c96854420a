//! Rows in the place of embeddings of all chunks of a step.

use std::ops::Range;

use crate::given::ChunkGiven;
use crate::ops::ChunkRows;

/// Rows with their numbers in a step.
pub(crate) type NumberedRows<'a> = &'a [(usize, &'a [f32])];

/// Rows and positions that the chunks of a step are given, by the rows of the step.
#[derive(Debug, Default)]
pub(crate) struct StepGiven<'a> {
    /// Rows in the place of embeddings.
    pub(crate) rows: Vec<(usize, &'a [f32])>,
    /// Rows that are added behind layers.
    pub(crate) beside: Vec<Vec<(usize, &'a [f32])>>,
    /// Positions by axis.
    pub(crate) placed: Vec<(Range<usize>, &'a [&'a [u32]])>,
}

impl<'a> StepGiven<'a> {
    /// Joins what chunks are given, which has been checked.
    pub(crate) fn of(chunks: &[ChunkRows], given: &[ChunkGiven<'a>], width: usize) -> Self {
        let mut step = Self::default();
        for (chunk, given) in chunks.iter().zip(given) {
            let first = chunk.rows.start;
            let listed = |rows: &'a [f32]| {
                let rows = rows.chunks_exact(width.max(1));
                given.at.iter().map(|at| first + at).zip(rows).collect::<Vec<_>>()
            };
            step.rows.extend(listed(given.rows));
            if step.beside.len() < given.beside.len() {
                step.beside.resize(given.beside.len(), Vec::new());
            }
            for (all, rows) in step.beside.iter_mut().zip(given.beside) {
                all.extend(listed(rows));
            }
            if !given.positions.is_empty() {
                step.placed.push((chunk.rows.clone(), given.positions));
            }
        }
        step
    }
}
