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
    let part = |name: &str| {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (stem, end) = rest.split_once('.')?;
        let place = stems.iter().position(|known| *known == stem)?;
        Some((format!("blk.{layer}.{fused}.{end}"), place, layer.to_owned(), end.to_owned()))
    };
    let mut made: Vec<(GgufTensorSpec, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let bytes = |name: &str| file.bytes(name).unwrap().to_vec();
        let declared = |name: &str, shape: Vec<usize>| GgufTensorSpec {
            name: name.to_owned(),
            shape,
            ty: info.ty,
        };
        match part(&info.name) {
            None => made.push((declared(&info.name, info.shape.clone()), bytes(&info.name))),
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
                        let bytes = bytes(&part.name);
                        let size = bytes.len() / matrices;
                        all.extend_from_slice(&bytes[matrix * size..(matrix + 1) * size]);
                    }
                }
                made.push((declared(&name, shape), all));
            }
            Some(_) => {}
        }
    }
    write(file.metadata(), &made, path);
}

/// Writes a file of these keys and tensors.
pub(crate) fn write(keys: &Metadata, made: &[(GgufTensorSpec, Vec<u8>)], path: &Path) {
    let declared: Vec<GgufTensorSpec> = made.iter().map(|(declared, _)| declared.clone()).collect();
    let layout = GgufLayout::new(path, keys, &declared, DimsStyle::Trimmed).unwrap();
    let mut bytes = layout.header.clone();
    bytes.resize(usize::try_from(layout.file_len).unwrap(), 0);
    for (info, (_, data)) in layout.tensors.iter().zip(made) {
        let at = usize::try_from(info.offset).unwrap();
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    fs_err::write(path, bytes).unwrap();
}
