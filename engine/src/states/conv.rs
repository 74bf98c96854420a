//! The last inputs of a causal convolution.

use registry::dtype::Dtype;
use registry::graph::State;

use super::history::History;

/// The memory of one convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// `[position, channels]`; inputs before the first position are zero.
    pub inputs: History,
    /// Inputs before the current one that an output reads: the kernel's width - 1.
    pub needed: usize,
}

impl Conv {
    /// Creates an empty memory. The state's part is `[channels, width - 1]`, as `Slot::new` has checked.
    pub fn new(state: &State, dtype: Dtype, rollback: usize) -> Self {
        let channels = state.parts[0].shape[0];
        let needed = state.parts[0].shape[1];
        Self { inputs: History::new(dtype, channels, Some(needed), rollback), needed }
    }

    /// Adds the inputs of a step. Returns the `needed` inputs before them and the inputs themselves: the earlier ones in the
    /// dtype of the state, zeros before the first position. None if the step does not continue the sequence.
    pub fn extend(&mut self, start: usize, rows: &[f32]) -> Option<Vec<f32>> {
        if self.inputs.end() != start {
            return None;
        }
        let earlier = self.inputs.tail(start.saturating_sub(self.needed));
        let mut all = vec![0.0; self.needed * self.inputs.width() - earlier.len()];
        all.extend_from_slice(&earlier);
        all.extend_from_slice(rows);
        self.inputs.append(rows);
        Some(all)
    }

    /// Takes what [`Conv::columns`] gave after `end` positions.
    pub fn seed(&mut self, end: usize, columns: &[f32]) {
        let channels = self.inputs.width();
        let held = self.needed.min(end);
        if held == 0 {
            return self.inputs.seed(end, &[]);
        }
        let rows: Vec<f32> = (0..held)
            .flat_map(|n| (0..channels).map(move |c| (n, c)))
            .map(|(n, c)| columns[c * self.needed + (self.needed - held) + n])
            .collect();
        self.inputs.seed(end, &rows);
    }

    /// Returns the last `needed` inputs as `[channels, needed]`, oldest first, zeros before the start of the
    /// sequence.
    pub fn columns(&self) -> Vec<f32> {
        let channels = self.inputs.width();
        let end = self.inputs.end();
        let rows = self.inputs.tail(end.saturating_sub(self.needed));
        let held = rows.len() / channels.max(1);
        let mut columns = vec![0.0; channels * self.needed];
        for (n, row) in rows.chunks_exact(channels.max(1)).enumerate() {
            for (c, &x) in row.iter().enumerate() {
                columns[c * self.needed + (self.needed - held) + n] = x;
            }
        }
        columns
    }
}
