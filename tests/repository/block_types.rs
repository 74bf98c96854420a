//! Checks that code asks the declaration of a block type and names no type that holds blocks.

use formats::codec::BlockType;

use super::model_names::rust_files;
use crate::tool::{SOURCES, root};

/// Files that choose a type on purpose. Kernels are written for one type each.
const CHOOSES: [&str; 5] = [
    "converters/formats/src/codec",
    "engine/src/kernels",
    "engine/src/device/blocks.rs",
    // The types that a tensor is raised to, and the type that llama.cpp rounds inputs to.
    "converters/conversion/src/mix",
    "cli/parity_check/file.rs",
];

/// Returns the types of blocks that a program names, tests at its end aside.
fn named(text: &str) -> Vec<BlockType> {
    let program = text.split("#[cfg(test)]").next().unwrap_or_default();
    let words: Vec<String> = program
        .split("BlockType::")
        .skip(1)
        .map(|after: &str| -> String {
            after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
        })
        .collect();
    BlockType::declared()
        .filter(|ty| ty.is_quantized() && words.contains(&format!("{ty:?}")))
        .collect()
}

#[test]
fn only_codecs_kernels_and_choices_name_types_of_blocks() {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root().join(folder), &mut files);
    }
    let mut places = Vec::new();
    for path in files {
        let short = path.strip_prefix(root()).unwrap().display().to_string();
        if CHOOSES.iter().any(|place| short.starts_with(place)) || short.contains("tests") {
            continue;
        }
        let types = named(&fs_err::read_to_string(&path).unwrap());
        places.extend(types.into_iter().map(|ty| format!("{short}: {ty}")));
    }
    assert!(places.is_empty(), "ask the declaration of the type:\n{}", places.join("\n"));
    // The search finds names.
    assert_eq!(named("x == BlockType::Nvfp4 && BlockType::all()"), [BlockType::Nvfp4]);
    assert_eq!(named("BlockType::F32\n#[cfg(test)]\nmod tests { BlockType::Q4K }"), []);
}
