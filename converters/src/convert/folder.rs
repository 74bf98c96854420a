//! Plans folders of safetensors: checkpoints of plain numbers, or of 8 or 4 bits with scales.
//!
//! A tensor of the old checkpoint is copied, cast, or becomes codes and scales. Every shape and so
//! every offset is known from headers; only where matrices share a scale are they read once more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::work::{Blocks, Encode};
use super::{OutFile, Target, Task, Work};
use crate::checkpoint::{INDEX, SINGLE};
use crate::codec::BlockType;
use crate::flow::{Flow, Numbers};
use crate::safetensors::{self, Declared, FileDtype};

pub mod config;
pub mod format;
pub mod peaks;
pub mod scaled;
mod tensors;

pub use format::Format;
pub use tensors::tensors;

use scaled::{Part, Scaled, Scheme};

/// A tensor, before it has a format.
#[derive(Clone)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: String,
    /// Its numbers, or its bytes where they are no floating-point numbers.
    pub flow: Flow<'a>,
    /// Where the first of its sources lies.
    pub place: (usize, u64),
    /// What it is kept in where nothing changes it.
    pub dtype: FileDtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The model's name for it, where it is one weight of the model; its own where not.
    pub weight: String,
    /// The mixture that it is a matrix of: all of those are quantized, or none.
    pub mixture: Option<usize>,
    /// Whether it may be quantized; or why not.
    pub matrix: Result<(), String>,
}

/// What becomes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What it is kept in; none if it is quantized.
    pub kept: Option<FileDtype>,
    /// Why it is not quantized.
    pub why: String,
}

/// One tensor of the new checkpoint.
#[derive(Clone)]
pub struct Out {
    /// Name, dtype, shape.
    pub declared: Declared,
    encode: Arc<dyn Encode>,
}

/// Tensors that are made of one source and lie in one file.
#[derive(Clone)]
pub struct Item<'a> {
    /// What they are made of.
    pub flow: Flow<'a>,
    /// Where that lies.
    pub place: (usize, u64),
    /// What they are.
    pub outs: Vec<Out>,
}

/// One file of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Where it will be.
    pub path: PathBuf,
    /// Its items: `begin..end`.
    pub items: (usize, usize),
    /// Where the tensors of each item begin.
    offsets: Vec<Vec<u64>>,
    /// Its first bytes.
    pub header: Vec<u8>,
    /// Its length.
    pub len: u64,
}

/// What the tensors become; `peaks` are the largest numbers of those that share scales, if known.
pub fn items<'a>(
    format: Format,
    tensors: &[Tensor<'a>],
    choices: &[Choice],
    peaks: Option<&[f32]>,
) -> Vec<Item<'a>> {
    let mut items = Vec::with_capacity(tensors.len());
    for (n, (tensor, choice)) in tensors.iter().zip(choices).enumerate() {
        let item = |outs| Item { flow: tensor.flow.clone(), place: tensor.place, outs };
        if let Some(dtype) = choice.kept {
            items.push(item(vec![kept(tensor, dtype)]));
            continue;
        }
        let peak = peaks.and_then(|peaks| peaks.get(n)).copied().unwrap_or(1.0);
        let shared = match format {
            Format::Nvfp4 => scaled::global_scale(peak),
            _ => scaled::whole_scale(peak, FileDtype::Bf16),
        };
        let (Some(scheme), &[rows, row]) = (format.scheme(shared), &tensor.shape[..]) else {
            continue;
        };
        let names = config::names(format);
        let module = tensor.name.strip_suffix("weight").unwrap_or(&tensor.name);
        let out = |end: &str, dtype, shape, part| Out {
            declared: Declared { name: format!("{module}{end}"), dtype, shape },
            encode: Arc::new(Scaled { scheme, part }),
        };
        let codes = match scheme {
            Scheme::Sixteens(_) | Scheme::ThirtyTwos => FileDtype::U8,
            _ => FileDtype::F8E4m3,
        };
        let mut outs = vec![out(names.codes, codes, scheme.codes(rows, row), Part::Codes)];
        if let Some((dtype, shape)) = scheme.scales(rows, row) {
            outs.push(out(names.scales, dtype, shape, Part::Scales));
        }
        items.push(item(outs));
        if format.shares() {
            let (end, dtype) = match format {
                Format::Nvfp4 => (names.global, FileDtype::F32),
                _ => (names.scales, FileDtype::Bf16),
            };
            items.push(known(format!("{module}{end}"), dtype, shared));
        }
    }
    items
}

/// A tensor that is copied or cast.
fn kept(tensor: &Tensor<'_>, dtype: FileDtype) -> Out {
    let declared = Declared { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() };
    let ty = match dtype {
        FileDtype::F32 => Some(BlockType::F32),
        FileDtype::F16 => Some(BlockType::F16),
        FileDtype::Bf16 => Some(BlockType::Bf16),
        _ => None,
    };
    let encode: Arc<dyn Encode> = match ty {
        Some(ty) => Arc::new(Blocks { ty, importance: None, matrix: 1, via: None }),
        None => Arc::new(Verbatim(tensor.flow.dtype().unwrap_or(FileDtype::U8))),
    };
    Out { declared, encode }
}

/// A tensor of one number.
fn known<'a>(name: String, dtype: FileDtype, number: f32) -> Item<'a> {
    let ty = if dtype == FileDtype::F32 { BlockType::F32 } else { BlockType::Bf16 };
    let encode = Arc::new(Blocks { ty, importance: None, matrix: 1, via: None });
    let declared = Declared { name, dtype, shape: vec![1] };
    let flow = Flow::new(&[1], Arc::new(One(number)));
    Item { flow, place: (0, 0), outs: vec![Out { declared, encode }] }
}

struct One(f32);

impl Numbers for One {
    fn read(&self, _at: usize, out: &mut [f32]) {
        out.fill(self.0);
    }
}

/// Bytes as they are.
struct Verbatim(FileDtype);

impl Encode for Verbatim {
    fn elementwise(&self) -> bool {
        true
    }

    fn bytes(&self, rows: usize, row: usize) -> usize {
        rows * row * self.0.size()
    }

    fn encode(&self, _: usize, _: &[f32], _: usize, _: &mut [u8]) -> Result<(), String> {
        Err(format!("its numbers of dtype {} cannot be copied", self.0))
    }

    fn decode(&self, _: &[f32], _: &[u8], _: usize, _: &mut [f32]) -> bool {
        false
    }

    fn plain(&self) -> Option<FileDtype> {
        Some(self.0)
    }
}

/// Lays out the files of a folder, each of at most so many bytes of tensors if possible.
pub fn lay_out(
    folder: &Path,
    items: &[Item<'_>],
    most: u64,
) -> Result<Vec<Planned>, safetensors::Error> {
    let cuts = cut(items, most);
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let plan = |(n, &(begin, end)): (usize, &(usize, usize))| {
        let path = folder.join(match cuts.len() {
            1 => SINGLE.to_owned(),
            of => format!("model-{:05}-of-{of:05}.safetensors", n + 1),
        });
        let mine = &items[begin..end];
        let places = mine.iter().enumerate();
        let places = places.flat_map(|(n, item)| (0..item.outs.len()).map(move |out| (n, out)));
        let mut places: Vec<(usize, usize)> = places.collect();
        // The widest first: every tensor then begins where its numbers may, as readers expect.
        places.sort_by_key(|&(n, out)| std::cmp::Reverse(mine[n].outs[out].declared.dtype.size()));
        let declared: Vec<Declared> =
            places.iter().map(|&(n, out)| mine[n].outs[out].declared.clone()).collect();
        let (text, plan) = safetensors::write::header(&path, &metadata, &declared)?;
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        let mut offsets: Vec<Vec<u64>> = mine.iter().map(|item| vec![0; item.outs.len()]).collect();
        let mut len = header.len() as u64;
        for ((n, out), (_, bytes)) in places.into_iter().zip(plan) {
            offsets[n][out] = len;
            len += bytes;
        }
        Ok(Planned { path, items: (begin, end), offsets, header, len })
    };
    cuts.iter().enumerate().map(plan).collect()
}

/// The least limit under which there are at most `count` files.
pub fn even_limit(items: &[Item<'_>], count: usize) -> u64 {
    let (mut low, mut high) = (1, items.iter().map(bytes).sum::<u64>().max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if cut(items, middle).len() <= count { high = middle } else { low = middle + 1 }
    }
    low
}

/// Bytes of an item's tensors; shapes come from headers that were checked.
fn bytes(item: &Item<'_>) -> u64 {
    let of = |out: &Out| {
        let count: usize = out.declared.shape.iter().product();
        (count * out.declared.dtype.size()) as u64
    };
    item.outs.iter().map(of).sum()
}

fn cut(items: &[Item<'_>], most: u64) -> Vec<(usize, usize)> {
    let (mut cuts, mut begin, mut size) = (Vec::new(), 0, 0_u64);
    for (n, item) in items.iter().enumerate() {
        let more = bytes(item);
        if n > begin && size.saturating_add(more) > most {
            cuts.push((begin, n));
            (begin, size) = (n, 0);
        }
        size = size.saturating_add(more);
    }
    cuts.push((begin, items.len()));
    cuts
}

/// The work of one folder, or of one file of it.
pub fn work<'a>(
    items: &[Item<'a>],
    planned: &[Planned],
    shard: Option<usize>,
    fingerprint: String,
) -> Work<'a> {
    let (mut files, mut tasks) = (Vec::new(), Vec::new());
    let wanted = planned.iter().enumerate().filter(|(n, _)| shard.is_none_or(|shard| shard == *n));
    for (_, plan) in wanted {
        for (item, offsets) in items[plan.items.0..plan.items.1].iter().zip(&plan.offsets) {
            let target = |(out, &offset): (&Out, &u64)| Target {
                file: files.len(),
                name: out.declared.name.clone(),
                offset,
                encode: Arc::clone(&out.encode),
            };
            let targets = item.outs.iter().zip(offsets).map(target).collect();
            tasks.push(Task { flow: item.flow.clone(), targets, place: item.place });
        }
        let (path, header) = (plan.path.clone(), plan.header.clone());
        files.push(OutFile { path, header, len: plan.len });
    }
    Work { files, tasks, fingerprint }
}

/// `model.safetensors.index.json`: its path and text; none for a single file.
pub fn index(folder: &Path, items: &[Item<'_>], planned: &[Planned]) -> Option<(PathBuf, String)> {
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
