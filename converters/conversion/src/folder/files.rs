//! Lays out the files of a folder: the file and offset of each tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FolderItem, OutTensor};
use crate::{OutFile, Task, TaskTarget, Work};
use checkpoints::checkpoint::{INDEX, SINGLE};
use formats::gguf::split::SET_KEY;
use formats::safetensors::{self, TensorSpec};

/// File of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Range of its items: `begin..end`.
    pub items: (usize, usize),
    /// Offsets of the tensors of each item.
    offsets: Vec<Vec<u64>>,
    /// First bytes of the file.
    pub header: Vec<u8>,
    /// Length of the file.
    pub len: u64,
}

/// Lays out the files of a folder, each limited to a number of tensor bytes if possible. If there are
/// several files, each describes the whole set ([`SET_KEY`]).
pub fn lay_out(
    folder: &Path,
    items: &[FolderItem<'_>],
    limit: u64,
    made_of: &str,
) -> Result<Vec<FolderFile>, safetensors::Error> {
    let cuts = cut(items, limit);
    let mut metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    if cuts.len() > 1 {
        metadata.insert(SET_KEY.to_owned(), made_of.to_owned());
    }
    let files = cuts.iter().enumerate().map(|(n, &cut)| {
        let path = folder.join(match cuts.len() {
            1 => SINGLE.to_owned(),
            of => format!("model-{:05}-of-{of:05}.safetensors", n + 1),
        });
        plan_file(path, items, cut, &metadata)
    });
    files.collect()
}

/// Plans the file of the items from `begin` to `end`.
fn plan_file(
    path: PathBuf,
    items: &[FolderItem<'_>],
    (begin, end): (usize, usize),
    metadata: &BTreeMap<String, String>,
) -> Result<FolderFile, safetensors::Error> {
    let mine = &items[begin..end];
    let places = mine.iter().enumerate();
    let places = places.flat_map(|(n, item)| (0..item.outs.len()).map(move |out| (n, out)));
    let mut places: Vec<(usize, usize)> = places.collect();
    // The widest dtypes come first, so that every tensor is aligned to its dtype, as readers expect.
    places.sort_by_key(|&(n, out)| std::cmp::Reverse(mine[n].outs[out].declared.dtype.size()));
    let declared: Vec<TensorSpec> =
        places.iter().map(|&(n, out)| mine[n].outs[out].declared.clone()).collect();
    let (text, plan) = safetensors::write::header(&path, metadata, &declared)?;
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    let mut offsets: Vec<Vec<u64>> = mine.iter().map(|item| vec![0; item.outs.len()]).collect();
    let mut len = header.len() as u64;
    for ((n, out), (_, bytes)) in places.into_iter().zip(plan) {
        offsets[n][out] = len;
        len += bytes;
    }
    Ok(FolderFile { path, items: (begin, end), offsets, header, len })
}

/// Returns the smallest limit that gives at most `count` files.
pub fn even_limit(items: &[FolderItem<'_>], count: usize) -> u64 {
    let mut low = 1;
    let mut high = items.iter().map(bytes).sum::<u64>().max(1);
    while low < high {
        let middle = low + (high - low) / 2;
        if cut(items, middle).len() <= count { high = middle } else { low = middle + 1 }
    }
    low
}

/// Returns a limit that divides the items as the files of a folder do. `file_of` returns the place of a tensor's file.
pub fn limit_of(items: &[FolderItem<'_>], file_of: impl Fn(&str) -> Option<usize>) -> u64 {
    let mut sums: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
    for item in items {
        if let Some(file) = item.outs.first().and_then(|out| file_of(&out.declared.name)) {
            let (count, sum) = sums.entry(file).or_default();
            *count += 1;
            *sum += bytes(item);
        }
    }
    // A file of one item may be larger than the limit was.
    let shared = sums.into_values().filter(|(count, _)| *count > 1);
    shared.map(|(_, sum)| sum).max().unwrap_or(1)
}

/// Returns the bytes of an item's tensors; shapes come from headers that were checked.
fn bytes(item: &FolderItem<'_>) -> u64 {
    item.outs
        .iter()
        .map(|out: &OutTensor| {
            let count: usize = out.declared.shape.iter().product();
            (count * out.declared.dtype.size()) as u64
        })
        .sum()
}

fn cut(items: &[FolderItem<'_>], limit: u64) -> Vec<(usize, usize)> {
    let mut cuts = Vec::new();
    let mut begin = 0;
    let mut size = 0_u64;
    for (n, item) in items.iter().enumerate() {
        let more = bytes(item);
        if n > begin && size.saturating_add(more) > limit {
            cuts.push((begin, n));
            (begin, size) = (n, 0);
        }
        size = size.saturating_add(more);
    }
    cuts.push((begin, items.len()));
    cuts
}

/// Returns the work of one folder, or of one file of it.
pub fn work<'a>(
    items: &[FolderItem<'a>],
    planned: &[FolderFile],
    shard: Option<usize>,
    fingerprint: String,
) -> Work<'a> {
    let mut files = Vec::new();
    let mut tasks = Vec::new();
    let chosen = planned.iter().enumerate().filter(|(n, _)| shard.is_none_or(|shard| shard == *n));
    for (_, plan) in chosen {
        for (item, offsets) in items[plan.items.0..plan.items.1].iter().zip(&plan.offsets) {
            let outs = item.outs.iter().zip(offsets);
            let targets = outs.map(|(out, &offset): (&OutTensor, &u64)| TaskTarget {
                file: files.len(),
                name: out.declared.name.clone(),
                offset,
                encode: Arc::clone(&out.encode),
            });
            let targets = targets.collect();
            tasks.push(Task { flow: item.flow.clone(), targets, place: item.place });
        }
        let path = plan.path.clone();
        let header = plan.header.clone();
        files.push(OutFile { path, header, len: plan.len });
    }
    Work { files, tasks, fingerprint, ..Work::default() }
}

/// Returns the path and text of `model.safetensors.index.json`; none for a single file.
pub fn index(
    folder: &Path,
    items: &[FolderItem<'_>],
    planned: &[FolderFile],
) -> Option<(PathBuf, String)> {
    if planned.len() == 1 {
        return None;
    }
    let mut map = BTreeMap::new();
    for plan in planned {
        let file = plan.path.file_name().unwrap_or_default().to_string_lossy();
        for out in items[plan.items.0..plan.items.1].iter().flat_map(|item| &item.outs) {
            map.insert(out.declared.name.as_str(), file.clone());
        }
    }
    let total: u64 = items.iter().map(bytes).sum();
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    Some((folder.join(INDEX), format!("{index:#}\n")))
}
