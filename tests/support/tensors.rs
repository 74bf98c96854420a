//! Checkpoints with changed tensors.

use std::collections::BTreeMap;
use std::path::Path;

use formats::safetensors::{SafetensorsFile, TensorEntry, TensorSpec, Writer};

/// Tensors of a file by name.
pub(crate) type Tensors = BTreeMap<String, (TensorEntry, Vec<u8>)>;

/// Rewrites a small safetensors file with its tensors changed by `edit`.
pub(crate) fn rewrite(from: &Path, to: &Path, edit: impl FnOnce(&mut Tensors)) {
    let file = SafetensorsFile::open(from).unwrap();
    let mut tensors: Tensors = file
        .header()
        .tensors
        .keys()
        .map(|name: &String| {
            let (entry, bytes) = file.tensor(name).unwrap().unwrap();
            (name.clone(), (entry.clone(), bytes.to_vec()))
        })
        .collect();
    edit(&mut tensors);
    let declared = tensors.iter().map(|(name, (entry, _))| TensorSpec {
        name: name.clone(),
        dtype: entry.dtype,
        shape: entry.shape.clone(),
    });
    let declared: Vec<_> = declared.collect();
    let mut writer = Writer::create(to, &file.header().metadata, &declared).unwrap();
    for (name, (_, bytes)) in &tensors {
        writer.write(name, bytes).unwrap();
    }
    writer.finish().unwrap();
}
