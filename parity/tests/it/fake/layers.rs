//! Layers of the tiny engine: linear maps, norms, the convolution and attention, with their faults.

use registry::dtype::Dtype;

use super::{D, FakeSession, Fault, H, HEADS, Slot, WIDTH, WINDOW, round, weight};

impl FakeSession {
    pub(super) fn sum(&self, terms: impl DoubleEndedIterator<Item = f32>) -> f32 {
        if self.fake.reversed { terms.rev().sum() } else { terms.sum() }
    }

    pub(super) fn round(&self, x: f32) -> f32 {
        round(self.dtype, x)
    }

    pub(super) fn linear(&self, seed: usize, x: &[[f32; H]]) -> Vec<[f32; H]> {
        let scale = 1.0 / (H as f32).sqrt();
        x.iter()
            .map(|row| {
                std::array::from_fn(|o| {
                    let terms = (0..H).map(|i| row[i] * 2.0 * scale * weight(seed, o * H + i));
                    self.round(self.sum(terms))
                })
            })
            .collect()
    }

    pub(super) fn norm(&self, seed: usize, x: &[[f32; H]]) -> Vec<[f32; H]> {
        let broken = seed == 11;
        let eps = if self.fake.fault == Fault::Epsilon && broken { 1e-5 } else { 1e-6 };
        let one = if self.fake.fault == Fault::PlusOne && broken { 1.0 } else { 0.0 };
        x.iter()
            .map(|row| {
                if self.fake.fault == Fault::MissingNorm && broken {
                    return *row;
                }
                let mean = self.sum(row.iter().map(|v| v * v)) / H as f32;
                let r = 1.0 / (mean + eps).sqrt();
                std::array::from_fn(|i| {
                    self.round((1.0 + one + 0.5 * weight(seed, i)) * self.round(row[i] * r))
                })
            })
            .collect()
    }

    pub(super) fn add(&self, a: &[[f32; H]], b: &[[f32; H]]) -> Vec<[f32; H]> {
        a.iter().zip(b).map(|(a, b)| std::array::from_fn(|i| self.round(a[i] + b[i]))).collect()
    }

    pub(super) fn conv(&self, slot: &mut Slot, x: &[[f32; H]]) -> Vec<[f32; H]> {
        // Within a forward pass the engine uses its own values; only the past is read back.
        let past = slot.columns.len();
        let mut seen = slot.columns.clone();
        if self.fake.fault == Fault::ShortChunk && x.len() == 2 {
            seen.fill([0.0; H]);
        }
        seen.extend_from_slice(x);
        let out = (0..x.len())
            .map(|t| {
                std::array::from_fn(|c| {
                    let taps = (0..WIDTH)
                        .map(|k| seen[past + t + k + 1 - WIDTH][c] * weight(7, c * WIDTH + k));
                    self.round(self.sum(taps))
                })
            })
            .collect();
        slot.columns.extend(x.iter().map(|row| {
            row.map(
                |v: f32| {
                    if self.fake.fault == Fault::NarrowState { round(Dtype::Bf16, v) } else { v }
                },
            )
        }));
        out
    }

    pub(super) fn attend(
        &self,
        slot: &mut Slot,
        q: &[[f32; H]],
        k: &[[f32; H]],
        v: &[[f32; H]],
    ) -> Vec<[f32; H]> {
        let window = if self.fake.fault == Fault::Window { WINDOW + 1 } else { WINDOW };
        let scale = if self.fake.fault == Fault::Scale { 1.003 } else { 1.0 } / (D as f32).sqrt();
        let mut out = Vec::new();
        for t in 0..q.len() {
            slot.keys.push(k[t]);
            slot.values.push(v[t]);
            let from = slot.keys.len().saturating_sub(window);
            let mut row = [0.0; H];
            for h in 0..HEADS {
                let at = h * D..(h + 1) * D;
                let scores: Vec<f32> = slot.keys[from..]
                    .iter()
                    .map(|key| self.round(scale * self.sum(at.clone().map(|i| q[t][i] * key[i]))))
                    .collect();
                let top = scores.iter().copied().fold(f32::MIN, f32::max);
                let total: f32 = self.sum(scores.iter().map(|s| (s - top).exp()));
                for i in at {
                    let terms = scores
                        .iter()
                        .zip(&slot.values[from..])
                        .map(|(s, v)| self.round((s - top).exp() / total) * v[i]);
                    row[i] = self.round(self.sum(terms.collect::<Vec<_>>().into_iter()));
                }
            }
            out.push(row);
        }
        out
    }
}
