//! Files in which other programs have put several matrices into one: the same weights come out.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

#[path = "support/whole.rs"]
mod whole;

use std::path::Path;

use converters::checkpoint::Checkpoint;
use converters::codec::BlockType;
use converters::gguf::{Declared, Dims, File, GgufWeights, Layout};
use registry::graph::WeightId;

use whole::{gguf_of, open, write};

/// The same file with matrices put together along the axis of their rows.
fn fuse(file: &File, stems: &[&str], fused: &str, path: &Path) {
    let part = |name: &str| {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (stem, end) = rest.split_once('.')?;
        let place = stems.iter().position(|known| *known == stem)?;
        Some((format!("blk.{layer}.{fused}.{end}"), place, layer.to_owned(), end.to_owned()))
    };
    let mut made: Vec<(Declared, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let bytes = |name: &str| file.bytes(name).unwrap().to_vec();
        let declared =
            |name: &str, shape: Vec<usize>| Declared { name: name.to_owned(), shape, ty: info.ty };
        match part(&info.name) {
            None => made.push((declared(&info.name, info.shape.clone()), bytes(&info.name))),
            Some((name, 0, layer, end)) => {
                let parts: Vec<_> = stems
                    .iter()
                    .map(|stem| file.info(&format!("blk.{layer}.{stem}.{end}")).unwrap())
                    .collect();
                // One matrix after another, the parts of each together.
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
    let declared: Vec<Declared> = made.iter().map(|(declared, _)| declared.clone()).collect();
    let layout = Layout::new(path, file.metadata(), &declared, Dims::Trimmed).unwrap();
    let mut bytes = layout.header.clone();
    bytes.resize(usize::try_from(layout.file_len).unwrap(), 0);
    for (info, (_, data)) in layout.tensors.iter().zip(&made) {
        let at = usize::try_from(info.offset).unwrap();
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    fs_err::write(path, bytes).unwrap();
}

#[test]
fn parts_of_a_matrix_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, fused) = (dir.path().join("plain.gguf"), dir.path().join("fused.gguf"));
    for (name, stems, whole) in [
        ("llama", &["attn_q", "attn_k", "attn_v"][..], "attn_qkv"),
        ("qwen2", &["attn_q", "attn_k", "attn_v"], "attn_qkv"),
        ("qwen3_moe", &["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps"),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
        let (model, checkpoint) = (open(&folder), Checkpoint::open(&folder).unwrap());
        write(&model, &checkpoint, BlockType::F16, &plain);
        let file = File::open(&plain).unwrap();
        fuse(&file, stems, whole, &fused);
        let (gguf, wanted) = (&gguf_of(&model), &model.graph.weights);
        let expected = GgufWeights::new(file, gguf, wanted).unwrap();
        let file = File::open(&fused).unwrap();
        assert!(file.tensors().len() < expected.file().tensors().len(), "{name}");
        let arch = gguf.arch.as_str();
        let told = converters::gguf::evidence(&file, arch);
        assert_eq!(
            registry::gguf::differences(gguf, wanted, &told),
            Vec::<String>::new(),
            "{name}"
        );
        let found = GgufWeights::new(file, gguf, wanted).unwrap();
        for (n, weight) in wanted.iter().enumerate() {
            let (a, b) = (expected.view(WeightId(n)), found.view(WeightId(n)));
            assert_eq!((a.ty, a.shape), (b.ty, b.shape), "{name}: {}", weight.name);
            assert!(a.bytes == b.bytes, "{name}: {}", weight.name);
        }
        for path in [&plain, &fused] {
            fs_err::remove_file(path).unwrap();
        }
    }
}
