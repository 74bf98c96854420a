//! Writes the GGUF format.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use super::checksum::Checksum;
use super::{Error, Imatrix, ImportanceEntry};
use crate::codec::BlockType;
use crate::gguf::{DimsStyle, GgufLayout, GgufTensorSpec, Metadata};
use crate::output::{DirectDisk, DraftFile};

/// Key of the checksum of everything else in a file.
pub(super) const CHECKSUM: &str = "onboard.checksum";

impl Imatrix {
    /// Writes a GGUF file, in the order of llama.cpp's `imatrix`. The file appears whole or not at all.
    /// Reading it gives the same weights; its sums may differ in their last bit from the original sums.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let layout = self.layout(path)?;
        let mut draft = DraftFile::create(path)?;
        self.write_to(&mut draft, &layout)?;
        Ok(draft.publish(&DirectDisk)?)
    }

    fn layout(&self, path: &Path) -> Result<GgufLayout, Error> {
        let mut keys = Metadata::new();
        keys.set("general.type", "imatrix");
        keys.set("imatrix.datasets", self.datasets.clone());
        keys.set("imatrix.chunk_count", self.chunks);
        keys.set("imatrix.chunk_size", self.chunk_size);
        keys.set(CHECKSUM, self.checksum());
        let mut tensors = Vec::with_capacity(self.entries.len() * 2);
        for (name, entry) in &self.entries {
            let matrices = entry.counts.len();
            let pieces = [("in_sum2", entry.means.len() / matrices), ("counts", 1)];
            tensors.extend(pieces.map(|(end, row)| GgufTensorSpec {
                name: format!("{name}.{end}"),
                shape: vec![matrices, row],
                ty: BlockType::F32,
            }));
        }
        Ok(GgufLayout::new(path, &keys, &tensors, DimsStyle::Trimmed)?)
    }

    fn checksum(&self) -> String {
        let mut checksum = self.checksum_of_keys();
        for (name, entry) in &self.entries {
            let counts: Vec<f32> = entry.counts.iter().map(|&count| count as f32).collect();
            checksum.add(&[name]);
            checksum.add(&[bytes(&entry.sums()), bytes(&counts)]);
        }
        checksum.text()
    }

    /// Returns the checksum of everything but the values.
    pub(super) fn checksum_of_keys(&self) -> Checksum {
        let mut checksum = Checksum::default();
        checksum.add(&self.datasets);
        checksum.add(&[self.chunks, self.chunk_size].map(u32::to_le_bytes));
        checksum
    }

    fn write_to(&self, draft: &mut DraftFile, layout: &GgufLayout) -> Result<(), Error> {
        let mut out = BufWriter::new(draft);
        out.write_all(&layout.header)?;
        let mut infos = layout.tensors.iter();
        for entry in self.entries.values() {
            let counts = entry.counts.iter().map(|&count| count as f32).collect();
            for (numbers, info) in [entry.sums(), counts].iter().zip(&mut infos) {
                for x in numbers {
                    out.write_all(&x.to_le_bytes())?;
                }
                out.write_all(&vec![0; layout.padding(info) as usize])?;
            }
        }
        Ok(out.flush()?)
    }
}

impl ImportanceEntry {
    /// Returns sums that give the means when they are divided by the counts.
    fn sums(&self) -> Vec<f32> {
        let row = self.means.len() / self.counts.len();
        let matrices = self.means.chunks(row).zip(&self.counts);
        let sums = matrices.flat_map(|(means, &count)| {
            means.iter().map(move |&mean| if count == 0 { 0.0 } else { sum(mean, count as f32) })
        });
        sums.collect()
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Returns a value that is `mean` when divided by `count`. The product is off by at most one rounding step,
/// so one of its neighbours is the sum that the mean was computed from.
fn sum(mean: f32, count: f32) -> f32 {
    let product = mean * count;
    let near = [product, product.next_up(), product.next_down()];
    near.into_iter().find(|sum| sum / count == mean).unwrap_or(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_survives_being_written_as_a_sum() {
        let mut x = 0.37_f32;
        for count in (1..2000).map(|n| (n * n) as f32) {
            x = (x * 1.37).fract() + 0.001;
            for scale in [1e-6, 1.0, 1e6] {
                let mean = x * scale / count;
                assert_eq!(sum(mean, count) / count, mean, "{mean} {count}");
            }
        }
    }
}
