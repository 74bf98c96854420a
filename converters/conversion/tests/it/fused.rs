//! Tests of files in which other programs have fused matrices: the same weights are read.

use std::path::Path;

use checkpoints::GgufWeights;
use checkpoints::checkpoint::Checkpoint;
use formats::codec::BlockType;
use formats::gguf::GgufFile;
use registry::graph::WeightId;

use crate::fuse::{CASES, fuse};
use crate::whole::{gguf_of, open, write};

#[test]
fn parts_of_a_matrix_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain.gguf");
    let fused = dir.path().join("fused.gguf");
    for (name, stems, fused_stem) in CASES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
        let model = open(&folder);
        let checkpoint = Checkpoint::open(&folder).unwrap();
        write(&model, &checkpoint, |_| BlockType::F16, &plain);
        let file = GgufFile::open(&plain).unwrap();
        fuse(&file, stems, fused_stem, &fused);
        let gguf = &gguf_of(&model);
        let weights = &model.graph.weights;
        let expected = GgufWeights::new(file, gguf, weights).unwrap();
        let file = GgufFile::open(&fused).unwrap();
        assert!(file.tensors().len() < expected.file().tensors().len(), "{name}");
        let arch = gguf.arch.as_str();
        let told = formats::gguf::evidence(&file, arch);
        assert_eq!(
            registry::gguf::differences(gguf, weights, &told),
            Vec::<String>::new(),
            "{name}"
        );
        let reread = GgufWeights::new(file, gguf, weights).unwrap();
        for (n, weight) in weights.iter().enumerate() {
            let a = expected.view(WeightId(n));
            let b = reread.view(WeightId(n));
            assert_eq!((a.ty, a.shape), (b.ty, b.shape), "{name}: {}", weight.name);
            assert!(a.bytes == b.bytes, "{name}: {}", weight.name);
        }
        for path in [&plain, &fused] {
            fs_err::remove_file(path).unwrap();
        }
    }
}
