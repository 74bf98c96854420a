//! Rotary angles of the rows of a step.

use std::collections::BTreeMap;

use registry::dtype::Dtype;
use registry::graph::{Graph, RopeId, WeightId};
use registry::rope::RopeTable;

use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue};
use crate::kernels::round::round;
use crate::weights::SessionWeights;

/// Cosines and sines of one table, `[rows, dim / 2]`, in f32 and rounded to the activation dtype.
#[derive(Debug, Clone, Default)]
pub struct Angles {
    /// Pairs rotated per row.
    pub pairs: usize,
    /// f32.
    pub cos: Vec<f32>,
    /// f32.
    pub sin: Vec<f32>,
    /// On the grid of the activation dtype.
    pub cos_rounded: Vec<f32>,
    /// On the grid of the activation dtype.
    pub sin_rounded: Vec<f32>,
}

impl Angles {
    /// Angles for spans of positions, one span per chunk. Which frequencies hold is decided per
    /// chunk by the length that its sequence reaches, as a forward of that chunk alone would.
    pub fn new(table: &RopeTable, spans: &[std::ops::Range<usize>], activation: Dtype) -> Self {
        Self::placed(table, spans, &[], activation)
    }

    /// Angles like those of [`Angles::new`], with positions of their own for some rows. `placed` has ranges of rows,
    /// and for each axis the positions of the rows of a range.
    pub fn placed(
        table: &RopeTable,
        spans: &[std::ops::Range<usize>],
        placed: &[(std::ops::Range<usize>, &[&[u32]])],
        activation: Dtype,
    ) -> Self {
        let mut angles = Self { pairs: table.inv_freq.len(), ..Self::default() };
        for span in spans {
            let frequencies = table.frequencies(span.end);
            let factor = table.factor(span.end) as f32;
            for position in span.clone().map(|row| row.saturating_sub(table.behind)) {
                for &frequency in frequencies.iter() {
                    let angle = position as f32 * frequency;
                    angles.cos.push(angle.cos() * factor);
                    angles.sin.push(angle.sin() * factor);
                }
            }
        }
        for (rows, axes) in placed {
            angles.turn(table, rows, axes);
        }
        if let Some(dtype) = table.rounded {
            round(dtype, &mut angles.cos);
            round(dtype, &mut angles.sin);
        }
        angles.cos_rounded.clone_from(&angles.cos);
        angles.sin_rounded.clone_from(&angles.sin);
        round(activation, &mut angles.cos_rounded);
        round(activation, &mut angles.sin_rounded);
        angles
    }

    /// Replaces the angles of a range of rows by those of given positions. Positions of one axis are those of all axes.
    fn turn(&mut self, table: &RopeTable, rows: &std::ops::Range<usize>, axes: &[&[u32]]) {
        let factor = table.attention_factor as f32;
        for (n, row) in rows.clone().enumerate() {
            for (pair, frequency) in table.inv_freq.iter().enumerate() {
                let axis = table.axes.get(pair).copied().unwrap_or(0).min(axes.len() - 1);
                let position = (axes[axis][n] as usize).saturating_sub(table.behind);
                let angle = position as f32 * frequency;
                let place = row * self.pairs + pair;
                self.cos[place] = angle.cos() * factor;
                self.sin[place] = angle.sin() * factor;
            }
        }
    }
}

/// [`Angles`] in the memory of a device.
#[derive(Debug)]
pub struct DeviceAngles {
    /// Pairs rotated per row.
    pub pairs: usize,
    /// The number of rows.
    pub rows: usize,
    /// Cosines and sines in f32.
    pub plain: [DeviceBuffer; 2],
    /// Cosines and sines on the grid of the activation dtype.
    pub rounded: [DeviceBuffer; 2],
}

impl Angles {
    /// Copies the angles to a device.
    pub fn upload(&self, queue: &DeviceQueue) -> Result<DeviceAngles, Error> {
        Ok(DeviceAngles {
            pairs: self.pairs,
            rows: self.cos.len().checked_div(self.pairs).unwrap_or(0),
            plain: [
                queue.upload(bytemuck::cast_slice(&self.cos))?,
                queue.upload(bytemuck::cast_slice(&self.sin))?,
            ],
            rounded: [
                queue.upload(bytemuck::cast_slice(&self.cos_rounded))?,
                queue.upload(bytemuck::cast_slice(&self.sin_rounded))?,
            ],
        })
    }
}

/// Returns the tables of a session: those of the model, and behind them one for each tensor that stretches a table, which its
/// nodes then have.
pub(crate) fn stretched(
    graph: &mut Graph,
    weights: &SessionWeights,
    tables: &[RopeTable],
) -> Result<Vec<RopeTable>, Error> {
    let mut all = tables.to_vec();
    let mut known: BTreeMap<(RopeId, WeightId), RopeId> = BTreeMap::new();
    for node in &mut graph.nodes {
        let (Some(table), Some(&weight)) = (node.rope, node.weights.get("stretch")) else {
            continue;
        };
        if let Some(place) = known.get(&(table, weight)) {
            node.rope = Some(*place);
            continue;
        }
        let logs = weights.vector(weight).ok_or_else(misfit)?;
        let mut scaled = tables.get(table.0).ok_or_else(misfit)?.clone();
        if logs.len() != scaled.inv_freq.len() {
            return Err(misfit());
        }
        scaled.inv_freq.iter_mut().zip(logs).for_each(|(frequency, log)| *frequency *= log.exp());
        let place = RopeId(all.len());
        all.push(scaled);
        known.insert((table, weight), place);
        node.rope = Some(place);
    }
    Ok(all)
}

fn misfit() -> Error {
    Error::Other("a tensor does not fit the rotary table that it stretches".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::rope::LongRope;

    fn table() -> RopeTable {
        RopeTable {
            name: "main".into(),
            dim: 4,
            inv_freq: vec![1.0, 0.5],
            attention_factor: 2.0,
            long: Some(LongRope {
                original_context: 3,
                inv_freq: vec![0.1, 0.05],
                attention_factor: 1.5,
            }),
            dynamic: None,
            rounded: None,
            behind: 0,
            axes: Vec::new(),
            kind: "longrope".into(),
        }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one chunk is one span")]
    fn the_length_a_chunk_reaches_chooses_the_frequencies_of_all_its_rows() {
        let angles = Angles::new(&table(), &[0..3, 2..4], Dtype::F32);
        assert_eq!(angles.cos[2], 2.0 * 1.0f32.cos());
        assert_eq!(angles.cos[6], 1.5 * 0.2f32.cos(), "row 3 is position 2 of the longer sequence");
        let alone = Angles::new(&table(), &[2..4], Dtype::Bf16);
        assert_eq!(alone.cos, angles.cos[6..]);
        assert_eq!(alone.cos_rounded[0], half::bf16::from_f32(alone.cos[0]).to_f32());
    }

    /// The cosine of a position, of tables with two pairs.
    fn cosine(angles: &Angles, position: usize, pair: usize) -> f32 {
        angles.cos[2 * position + pair]
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one chunk is one span")]
    fn each_frequency_counts_its_axis() {
        let table = RopeTable { axes: vec![1, 0], long: None, ..table() };
        let plain = Angles::new(&table, &[0..9], Dtype::F32);
        let rows = Angles::placed(&table, &[0..3], &[(1..3, &[&[4, 5], &[7, 8]])], Dtype::F32);
        let turned = [(0, 0), (0, 1), (7, 0), (4, 1), (8, 0), (5, 1)];
        assert_eq!(rows.cos, turned.map(|(position, pair)| cosine(&plain, position, pair)));
        let one = Angles::placed(&table, &[0..3], &[(0..3, &[&[2, 4, 4]])], Dtype::F32);
        let turned = [(2, 0), (2, 1), (4, 0), (4, 1), (4, 0), (4, 1)];
        assert_eq!(one.cos, turned.map(|(position, pair)| cosine(&plain, position, pair)));
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one chunk is one span")]
    fn rows_have_the_angles_of_a_position_behind() {
        let plain = Angles::new(&table(), &[0..3], Dtype::F32);
        let behind = Angles::new(&RopeTable { behind: 2, ..table() }, &[1..3], Dtype::F32);
        assert_eq!(behind.cos, [&plain.cos[..2], &plain.cos[..2]].concat());
        let moved = Angles::new(&RopeTable { behind: 1, ..table() }, &[1..3], Dtype::F32);
        assert_eq!(moved.sin, plain.sin[..4]);
    }
}
