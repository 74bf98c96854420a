//! GGUF file of two layers, written from scratch.

use std::path::Path;

use formats::codec::{BlockType, encode};
use formats::gguf::{DimsStyle, GgufLayout, GgufTensorSpec, Metadata};
use tempfile::TempPath;

pub(crate) const VOCAB: usize = 50;
pub(crate) const CONTEXT: usize = 512;
const WIDTH: usize = 32;
const FFN: usize = 48;
const KV: usize = 16;

/// Temporary file, removed when dropped.
pub(crate) struct File(TempPath);

impl File {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Writes the file after `edit` has changed keys and tensors.
pub(crate) fn write(edit: impl FnOnce(&mut Metadata, &mut Vec<GgufTensorSpec>)) -> File {
    let mut keys = Metadata::new();
    keys.set("general.architecture", "llama");
    for (key, value) in [
        ("context_length", CONTEXT),
        ("embedding_length", WIDTH),
        ("block_count", 2),
        ("feed_forward_length", FFN),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 8),
        ("vocab_size", VOCAB),
    ] {
        keys.set(format!("llama.{key}"), value as u32);
    }
    keys.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    keys.set("tokenizer.ggml.model", "none");
    let mut tensors = vec![
        tensor("output_norm", &[WIDTH]),
        tensor("token_embd", &[VOCAB, WIDTH]),
        tensor("output", &[VOCAB, WIDTH]),
    ];
    for layer in 0..2 {
        for (name, shape) in [
            ("attn_norm", &[WIDTH][..]),
            ("attn_q", &[WIDTH, WIDTH]),
            ("attn_k", &[KV, WIDTH]),
            ("attn_v", &[KV, WIDTH]),
            ("attn_output", &[WIDTH, WIDTH]),
            ("ffn_norm", &[WIDTH]),
            ("ffn_gate", &[FFN, WIDTH]),
            ("ffn_up", &[FFN, WIDTH]),
            ("ffn_down", &[WIDTH, FFN]),
        ] {
            tensors.push(tensor(&format!("blk.{layer}.{name}"), shape));
        }
    }
    edit(&mut keys, &mut tensors);
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    let layout = GgufLayout::new(file.path(), &keys, &tensors, DimsStyle::Trimmed).unwrap();
    let mut bytes = layout.header.clone();
    for (n, tensor) in layout.tensors.iter().enumerate() {
        let count = tensor.shape.iter().product();
        // Norms around 1, matrices that preserve the size of activations.
        let (middle, spread) = if tensor.shape.len() == 1 { (1.0, 0.2) } else { (0.0, 0.6) };
        let numbers: Vec<f32> =
            (0..count).map(|i| middle + spread * noise((n * 10_000 + i) as u64)).collect();
        bytes.resize(tensor.offset as usize + tensor.bytes as usize, 0);
        let row = *tensor.shape.last().unwrap();
        encode(tensor.ty, &numbers, row, None, &mut bytes[tensor.offset as usize..]).unwrap();
    }
    bytes.resize(layout.file_len as usize, 0);
    fs_err::write(file.path(), bytes).unwrap();
    File(file.into_temp_path())
}

fn tensor(name: &str, shape: &[usize]) -> GgufTensorSpec {
    let name = format!("{name}.weight");
    GgufTensorSpec { name, shape: shape.to_vec(), ty: BlockType::F32 }
}

/// Returns a pseudo-random value from -1 to 1 for `seed`.
fn noise(seed: u64) -> f32 {
    let mut z = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}
