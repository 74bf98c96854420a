//! Writes a file with fused matrices.

use std::path::Path;

use formats::gguf::{DimsStyle, GgufFile, GgufLayout, GgufTensorSpec, Metadata};

/// Fixtures, with matrices that another program may fuse.
pub(crate) const CASES: [(&str, &[&str], &str); 3] = [
    ("llama", &["attn_q", "attn_k", "attn_v"], "attn_qkv"),
    ("qwen2", &["attn_q", "attn_k", "attn_v"], "attn_qkv"),
    ("qwen3_moe", &["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps"),
];

/// Writes the same file with matrices concatenated along the axis of their rows.
pub(crate) fn fuse(file: &GgufFile, stems: &[&str], fused: &str, path: &Path) {
    let mut tensors: Vec<(GgufTensorSpec, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        match fused_part(&info.name, stems, fused) {
            None => {
                let bytes = file.bytes(&info.name).unwrap().to_vec();
                let shape = info.shape.clone();
                tensors
                    .push((GgufTensorSpec { name: info.name.clone(), shape, ty: info.ty }, bytes));
            }
            Some((name, 0, layer, end)) => {
                let parts: Vec<_> = stems
                    .iter()
                    .map(|stem| file.info(&format!("blk.{layer}.{stem}.{end}")).unwrap())
                    .collect();
                // One matrix after another, with the parts of each together.
                let matrices: usize = if info.shape.len() == 3 { info.shape[0] } else { 1 };
                let axis = usize::from(info.shape.len() == 3);
                let mut shape = info.shape.clone();
                shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
                let mut all = Vec::new();
                for matrix in 0..matrices {
                    for part in &parts {
                        let bytes = file.bytes(&part.name).unwrap();
                        let size = bytes.len() / matrices;
                        all.extend_from_slice(&bytes[matrix * size..(matrix + 1) * size]);
                    }
                }
                tensors.push((GgufTensorSpec { name, shape, ty: info.ty }, all));
            }
            Some(_) => {}
        }
    }
    write(file.metadata(), &tensors, path);
}

fn fused_part(name: &str, stems: &[&str], fused: &str) -> Option<(String, usize, String, String)> {
    let (layer, suffix) = name.strip_prefix("blk.")?.split_once('.')?;
    let (stem, end) = suffix.split_once('.')?;
    let place = stems.iter().position(|known| *known == stem)?;
    Some((format!("blk.{layer}.{fused}.{end}"), place, layer.to_owned(), end.to_owned()))
}

/// Writes a file of these keys and tensors.
pub(crate) fn write(keys: &Metadata, tensors: &[(GgufTensorSpec, Vec<u8>)], path: &Path) {
    let declared: Vec<GgufTensorSpec> =
        tensors.iter().map(|(declared, _)| declared.clone()).collect();
    let layout = GgufLayout::new(path, keys, &declared, DimsStyle::Trimmed).unwrap();
    let mut bytes = layout.header.clone();
    bytes.resize(usize::try_from(layout.file_len).unwrap(), 0);
    for (info, (_, data)) in layout.tensors.iter().zip(tensors) {
        let at = usize::try_from(info.offset).unwrap();
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    fs_err::write(path, bytes).unwrap();
}
