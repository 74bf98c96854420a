//! Tests of what a new block type takes: a row of the list, and a file with a declaration and a codec.

use std::path::{Path, PathBuf};

use super::{
    BadBlock, BlockType, Error, ImportanceNeed, encode_factored, expected_error, validate,
};
use super::{decode, encode, made_up};
use crate::gguf::{DimsStyle, GgufFile, GgufLayout, GgufTensorSpec, Metadata};

/// Returns the type by its name, as callers find it.
fn new_type() -> BlockType {
    BlockType::parse(&made_up::MADE_UP.name.to_lowercase()).unwrap()
}

#[test]
fn the_declaration_answers_every_question() {
    let ty = new_type();
    assert_eq!(BlockType::from_id(900), Some(ty));
    assert_eq!((ty.row_bytes(8), ty.row_bytes(6)), (Some(6), None));
    assert!(BlockType::all().any(|one| one == ty) && ty.is_quantized() && ty.is_written());
    assert_eq!(expected_error(ty), Some(0.7));
    assert_eq!((ty.importance(), ty.needs_importance()), (ImportanceNeed::Advised, false));
    assert_eq!((ty.fallback(), ty.plain(), ty.has_factor()), (Some(BlockType::F16), None, false));
    assert_eq!((ty.file_types()[0].name, ty.file_types()[0].target), ("MU1_0_M", true));
}

#[test]
fn the_codec_is_called_and_checked_like_any_other() {
    let ty = new_type();
    let numbers = [1.0, -2.0, 2.0, -0.5, 0.25, 0.25, -0.25, 0.25];
    let mut bytes = [0; 6];
    encode(ty, &numbers, 8, None, &mut bytes).unwrap();
    let mut back = [0.0; 8];
    decode(ty, &bytes, &mut back).unwrap();
    assert_eq!(back, [2.0, -2.0, 2.0, -2.0, 0.25, 0.25, -0.25, 0.25]);
    assert_eq!(validate(ty, &bytes), Ok(()));
    bytes[4] = 0x7c;
    let value = "inf".to_owned();
    bytes[3] = 0;
    assert_eq!(validate(ty, &bytes), Err(BadBlock::Scale { ty, block: 1, value }));
    let error = encode(ty, &numbers[..6], 6, None, &mut bytes).unwrap_err();
    assert_eq!(error, Error::Row { ty, row: 6 });
    let error = encode(ty, &[f32::NAN; 4], 4, None, &mut bytes[..3]).unwrap_err();
    assert!(matches!(error, Error::NotFinite { at: 0, .. }));
    let error = encode_factored(ty, &numbers, 1.0, &mut bytes).unwrap_err();
    assert_eq!(error, Error::NoFactor { ty });
}

#[test]
fn a_file_can_hold_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let declared = GgufTensorSpec { name: "a.weight".into(), shape: vec![2, 4], ty: new_type() };
    let layout = GgufLayout::new(&path, &Metadata::new(), &[declared], DimsStyle::Trimmed).unwrap();
    let mut bytes = layout.header.clone();
    bytes.resize(layout.file_len as usize, 0);
    fs_err::write(&path, bytes).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let info = file.info("a.weight").unwrap();
    assert_eq!((info.ty, info.bytes), (new_type(), 6));
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn two_files_know_it() {
    let mut files = Vec::new();
    rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    // Its name, and the name of its variant.
    let variant = format!("{:?}", new_type());
    let words = [format!("\"{}\"", made_up::MADE_UP.name), format!("{variant}:")];
    let mut matches: Vec<_> = files
        .into_iter()
        .filter(|path: &PathBuf| {
            let text = fs_err::read_to_string(path).unwrap();
            words.iter().any(|word| text.contains(word))
        })
        .collect();
    matches.sort();
    let names: Vec<_> = matches.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["made_up.rs", "codec.rs"]);
}
