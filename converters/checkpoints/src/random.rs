//! Writes checkpoints of random weights, of any size, for measurements and trials.
//!
//! The bytes depend on the seed, the tensors and the shard size, never on the number of threads or the
//! machine. Value `i` of a tensor is a function of the seed, the tensor's name and `i`, computed with
//! integer arithmetic and exact float operations only.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use crate::checkpoint::{INDEX, SINGLE};
use formats::numbers;
use formats::output::{DirectDisk, Disk as _, DraftFile};
use formats::safetensors::{self, FileDtype, TensorSpec, Writer};

/// Reason why no random checkpoint was written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    File(#[from] safetensors::Error),
    #[error(transparent)]
    Numbers(#[from] numbers::Error),
}

/// Number of values per slab: 1 MiB of f32.
const SLAB: usize = 1 << 18;
/// Number of slabs generated at once, while the previous batch is written.
const BATCH: usize = 16;

/// Writes a checkpoint of random weights into a folder, and returns its files.
///
/// Values are approximately normal with standard deviation `1 / sqrt(last axis)`, clamped to 0.02..=0.05.
/// Vectors whose name contains `norm` are 1 plus a tenth of a standard normal value, unless they are
/// biases. Tensors keep their order; a shard ends before the tensor that would take it over `shard_bytes`.
/// Every shard is complete before the index is written.
pub fn write_random_checkpoint(
    dir: &Path,
    weights: &[(String, Vec<usize>)],
    dtype: FileDtype,
    seed: u64,
    shard_bytes: u64,
) -> Result<Vec<PathBuf>, Error> {
    numbers::from_f32(dtype, &[], &mut [])?;
    fs_err::create_dir_all(dir)?;
    let declared: Vec<TensorSpec> = weights
        .iter()
        .map(|(name, shape)| TensorSpec { name: name.clone(), dtype, shape: shape.clone() })
        .collect();
    let shards = shards(&declared, shard_bytes);
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut files = Vec::new();
    let mut weight_map = BTreeMap::new();
    let mut total = 0;
    for (index, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE.to_owned(),
            of => format!("model-{:05}-of-{of:05}.safetensors", index + 1),
        };
        let path = dir.join(&name);
        let mut writer = Writer::create(&path, &metadata, shard)?;
        total += fill(&mut writer, shard, seed)?;
        writer.finish()?;
        files.push(path);
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.as_str(), name.clone())));
    }
    // The entry file of a previous checkpoint of the other kind (single or sharded) must not remain.
    let stale = if shards.len() > 1 { SINGLE } else { INDEX };
    DirectDisk.remove(&dir.join(stale))?;
    if shards.len() > 1 {
        let index = serde_json::json!({
            "metadata": { "total_size": total },
            "weight_map": weight_map,
        });
        let mut draft = DraftFile::create(&dir.join(INDEX))?;
        draft.write_all(format!("{index:#}\n").as_bytes())?;
        draft.publish(&DirectDisk)?;
    }
    Ok(files)
}

/// Cuts the list of tensors into shards.
fn shards(tensors: &[TensorSpec], shard_bytes: u64) -> Vec<&[TensorSpec]> {
    let mut shards = Vec::new();
    let mut begin = 0;
    let mut size = 0_u64;
    for (index, tensor) in tensors.iter().enumerate() {
        let count = tensor.shape.iter().fold(1_u64, |n, &dim| n.saturating_mul(dim as u64));
        let more = count.saturating_mul(tensor.dtype.size() as u64);
        if index > begin && size.saturating_add(more) > shard_bytes {
            shards.push(&tensors[begin..index]);
            (begin, size) = (index, 0);
        }
        size = size.saturating_add(more);
    }
    shards.push(&tensors[begin..]);
    shards
}

/// Random distribution of one tensor.
struct Distribution {
    key: u64,
    mean: f32,
    std: f32,
}

fn recipe(tensor: &TensorSpec, seed: u64) -> Distribution {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(tensor.name.as_bytes());
    let digest = hash.finalize();
    let key = u64::from_le_bytes(std::array::from_fn(|i| digest[i]));
    let norm = tensor.name.to_lowercase().contains("norm") && !tensor.name.ends_with("bias");
    if tensor.shape.len() == 1 && norm {
        return Distribution { key, mean: 1.0, std: 0.1 };
    }
    let last = tensor.shape.last().copied().unwrap_or(1).max(1);
    Distribution { key, mean: 0.0, std: (1.0 / (last as f32).sqrt()).clamp(0.02, 0.05) }
}

/// Writes the tensors of one file, holding two batches of slabs in memory.
fn fill(writer: &mut Writer, tensors: &[TensorSpec], seed: u64) -> Result<u64, Error> {
    // (tensor, first value, count) of every slab, in file order; a few words per MiB.
    let recipes: Vec<Distribution> = tensors.iter().map(|tensor| recipe(tensor, seed)).collect();
    let slabs: Vec<(usize, usize, usize)> = tensors
        .iter()
        .enumerate()
        .flat_map(|(index, tensor)| {
            let count: usize = tensor.shape.iter().product();
            (0..count).step_by(SLAB).map(move |at| (index, at, SLAB.min(count - at)))
        })
        .collect();
    let mut total = 0;
    let mut batches = slabs.chunks(BATCH).peekable();
    let mut ready =
        batches.peek().map_or(Ok(vec![]), |first| batch_bytes(tensors, &recipes, first))?;
    while let Some(batch) = batches.next() {
        let next = batches.peek().copied().unwrap_or(&[]);
        let (written, generated) = rayon::join(
            || -> Result<(), safetensors::Error> {
                for (&(tensor, ..), bytes) in batch.iter().zip(&ready) {
                    writer.write(&tensors[tensor].name, bytes)?;
                    total += bytes.len() as u64;
                }
                Ok(())
            },
            || batch_bytes(tensors, &recipes, next),
        );
        written?;
        ready = generated?;
    }
    Ok(total)
}

/// Generates the bytes of a batch of slabs on all threads. A slab is a tensor, its first value and its count.
fn batch_bytes(
    tensors: &[TensorSpec],
    recipes: &[Distribution],
    batch: &[(usize, usize, usize)],
) -> Result<Vec<Vec<u8>>, numbers::Error> {
    let slabs = batch
        .par_iter()
        .map(|&(tensor, at, count)| slab_bytes(tensors[tensor].dtype, &recipes[tensor], at, count));
    slabs.collect()
}

/// Generates the bytes of `count` values from value `at` on.
fn slab_bytes(
    dtype: FileDtype,
    recipe: &Distribution,
    at: usize,
    count: usize,
) -> Result<Vec<u8>, numbers::Error> {
    let mut values = vec![0.0; count];
    generate(recipe, at, &mut values);
    let mut bytes = vec![0; count * dtype.size()];
    numbers::from_f32(dtype, &values, &mut bytes)?;
    Ok(bytes)
}

/// Generates the values of a tensor from index `at` on. The sum of four uniform 16-bit integers
/// approximates a normal value. Unlike logarithm or cosine, it has the same last bit on every machine; its
/// tails end at 3.5 deviations.
fn generate(recipe: &Distribution, at: usize, out: &mut [f32]) {
    // Each of the four has variance (65536^2 - 1) / 12 around 32767.5.
    const DEVIATION: f32 = 37_837.227;
    let factor = recipe.std / DEVIATION;
    for (index, out) in (at as u64..).zip(out) {
        let bits = mix(recipe.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        *out = recipe.mean + (sum as i32 - 131_070) as f32 * factor;
    }
}

/// Returns SplitMix64's output function of `bits` (Steele, Lea, Flood 2014), which decorrelates neighbours.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
