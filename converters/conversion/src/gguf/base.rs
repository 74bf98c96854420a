//! Chooses the type of a tensor before quantization.
//!
//! The lists are those of llama.cpp's converter (`prepare_tensors` in `conversion/base.py`), which
//! its runtime relies on: several operators take f32 alone.

use formats::codec::BlockType;

/// Parts of names, each followed by `.weight`, of tensors that stay f32.
const ALWAYS_F32: &[&str] = &[
    "_norm",
    "ffn_gate_inp",
    "ffn_gate_inp_shexp",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "ssm_conv1d_q",
    "ssm_conv1d_k",
    "ssm_conv1d_v",
    "shortconv.conv",
    "time_mix_first",
    "time_mix_w1",
    "time_mix_w2",
    "time_mix_decay_w1",
    "time_mix_decay_w2",
    "time_mix_lerp_fused",
    "indexer.proj",
    "altup_correct_coef",
    "altup_predict_coef",
];

/// Returns the type of a tensor in a file whose matrices are `matrices` (F32, F16 or BF16).
pub fn base_type(name: &str, shape: &[usize], matrices: BlockType) -> BlockType {
    let Some(stem) = name.strip_suffix(".weight") else { return BlockType::F32 };
    let fixed = ALWAYS_F32.iter().any(|end| {
        let before = stem.strip_suffix(end);
        // The entry matches a whole last part, or only its end if the entry begins with `_`.
        before.is_some_and(|prefix| {
            prefix.is_empty() || prefix.ends_with('.') || end.starts_with('_')
        })
    });
    if shape.len() <= 1 || fixed { BlockType::F32 } else { matrices }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matrices_are_narrowed() {
        for (name, shape, narrow) in [
            ("blk.0.attn_q.weight", &[4, 4][..], true),
            ("blk.0.attn_q.bias", &[4], false),
            ("blk.0.attn_norm.weight", &[4], false),
            ("blk.0.attn_q_norm.weight", &[4, 4], false),
            ("blk.0.ffn_gate_inp.weight", &[4, 4], false),
            ("blk.0.shortconv.conv.weight", &[4, 4], false),
            ("blk.0.shortconv.in_proj.weight", &[4, 4], true),
            ("blk.0.ssm_a", &[4, 1], false),
            ("token_embd.weight", &[4, 4], true),
            ("token_embd_norm.weight", &[4], false),
        ] {
            let ty = base_type(name, shape, BlockType::Bf16);
            assert_eq!(ty == BlockType::Bf16, narrow, "{name}");
        }
    }
}
