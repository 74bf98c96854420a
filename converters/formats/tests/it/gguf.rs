//! Compares layouts with the reader, and with bytes written by hand.

use std::path::{Path, PathBuf};

use onboard_formats::codec::BlockType;
use onboard_formats::gguf::{
    DimsStyle, Error, GgufFile, GgufHeader, GgufLayout, GgufTensorSpec, Metadata, MetadataArray,
    MetadataValue, split,
};
use proptest::prelude::*;

fn declared(name: &str, shape: &[usize], ty: BlockType) -> GgufTensorSpec {
    GgufTensorSpec { name: name.into(), shape: shape.into(), ty }
}

/// Returns keys with every kind once, alone and in an array.
fn keys() -> Metadata {
    let mut keys = Metadata::new();
    keys.set("general.architecture", "tiny");
    keys.set("u8", 200_u8);
    keys.set("i8", -100_i8);
    keys.set("u16", 60_000_u16);
    keys.set("i16", -30_000_i16);
    keys.set("u32", 4_000_000_000_u32);
    keys.set("i32", -2_000_000_000_i32);
    keys.set("u64", u64::MAX);
    keys.set("i64", i64::MIN);
    keys.set("f32", 0.1_f32);
    keys.set("f64", 0.1_f64);
    keys.set("bool", true);
    keys.set("string", "é\n");
    keys.set("empty", "");
    keys.set("u8s", vec![1_u8, 2]);
    keys.set("i8s", vec![-1_i8]);
    keys.set("u16s", vec![1_u16]);
    keys.set("i16s", vec![-1_i16]);
    keys.set("u32s", vec![1_u32, 2, 3]);
    keys.set("i32s", Vec::<i32>::new());
    keys.set("u64s", vec![1_u64]);
    keys.set("i64s", vec![-1_i64]);
    keys.set("f32s", vec![0.5_f32, f32::INFINITY]);
    keys.set("f64s", vec![0.5_f64]);
    keys.set("bools", vec![true, false]);
    keys.set("strings", vec!["a".to_owned(), String::new(), "ü".to_owned()]);
    keys
}

/// Returns the whole file: tensor `n` has bytes that count up from `n`.
fn bytes_of(layout: &GgufLayout) -> Vec<u8> {
    let mut bytes = layout.header.clone();
    for (n, info) in layout.tensors.iter().enumerate() {
        assert_eq!(info.offset, bytes.len() as u64);
        bytes.extend((0..info.bytes as usize).map(|i| (i + n) as u8));
        bytes.resize(bytes.len() + layout.padding(info) as usize, 0);
    }
    assert_eq!(bytes.len() as u64, layout.file_len);
    bytes
}

fn write(path: &Path, layout: &GgufLayout) {
    fs_err::write(path, bytes_of(layout)).expect("the folder is there");
}

#[test]
fn the_bytes_are_those_of_the_format() {
    let mut keys = Metadata::new();
    keys.set("general.architecture", "x");
    keys.set("n", 7_u32);
    keys.set("list", vec!["ab".to_owned()]);
    let tensors = [declared("a", &[1, 2, 3], BlockType::F32), declared("b", &[1], BlockType::F16)];
    let layout = GgufLayout::new(Path::new("x"), &keys, &tensors, DimsStyle::Trimmed).unwrap();
    let mut want = b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0".to_vec();
    want.extend(b"\x14\0\0\0\0\0\0\0general.architecture\x08\0\0\0\x01\0\0\0\0\0\0\0x");
    want.extend(b"\x01\0\0\0\0\0\0\0n\x04\0\0\0\x07\0\0\0");
    want.extend(b"\x04\0\0\0\0\0\0\0list\x09\0\0\0\x08\0\0\0\x01\0\0\0\0\0\0\0");
    want.extend(b"\x02\0\0\0\0\0\0\0ab");
    // The outer dimension of one is dropped, the rest is innermost first.
    want.extend(b"\x01\0\0\0\0\0\0\0a\x02\0\0\0\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    want.extend(b"\0\0\0\0\0\0\0\0\0\0\0\0");
    want.extend(b"\x01\0\0\0\0\0\0\0b\x01\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x20\0\0\0\0\0\0\0");
    want.resize(want.len().next_multiple_of(32), 0);
    assert_eq!(layout.header, want);
    assert_eq!(layout.file_len, layout.data_start() + 64);
    assert_eq!((layout.padding(&layout.tensors[0]), layout.padding(&layout.tensors[1])), (8, 30));
    let as_given = GgufLayout::new(Path::new("x"), &keys, &tensors, DimsStyle::AsGiven).unwrap();
    let read = GgufHeader::parse(Path::new("x"), &bytes_of(&as_given)).unwrap();
    assert_eq!(read.tensors[0].shape, [1, 2, 3]);
}

#[test]
fn what_is_laid_out_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let tensors = [
        declared("blk.0.weight", &[3, 2, 256], BlockType::Q4K),
        declared("one", &[], BlockType::F32),
        declared("none", &[0, 4], BlockType::F32),
        declared("half", &[5], BlockType::Bf16),
    ];
    for alignment in [None, Some(1_u32), Some(8), Some(4096)] {
        let mut keys = keys();
        if let Some(alignment) = alignment {
            keys.set("general.alignment", alignment);
        }
        let layout = GgufLayout::new(&path, &keys, &tensors, DimsStyle::AsGiven).unwrap();
        write(&path, &layout);
        let file = GgufFile::open(&path).unwrap();
        assert_eq!((file.metadata(), file.tensors()), (&keys, &layout.tensors[..]));
        assert_eq!(file.alignment(), alignment.map_or(32, u64::from));
        assert_eq!((file.version(), file.files()), (3, std::slice::from_ref(&path)));
        for (n, info) in file.tensors().iter().enumerate() {
            assert_eq!(info.offset % file.alignment(), 0);
            let bytes = file.bytes(&info.name).unwrap();
            assert_eq!(bytes.len() as u64, info.bytes);
            assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == (i + n) as u8));
        }
        assert_eq!(file.info("blk.0.weight").unwrap().bytes, 6 * 144);
        assert_eq!(file.info("none").unwrap().elements(), 0);
        assert!(file.info("absent").is_none() && file.bytes("absent").is_none());
    }
}

#[test]
fn padding_at_the_end_may_be_missing_and_bytes_may_follow() {
    let layout = GgufLayout::new(
        Path::new("x"),
        &keys(),
        &[declared("a", &[3], BlockType::F32)],
        DimsStyle::Trimmed,
    )
    .unwrap();
    let mut bytes = bytes_of(&layout);
    bytes.truncate(bytes.len() - 20);
    GgufHeader::parse(Path::new("x"), &bytes).unwrap();
    bytes.truncate(bytes.len() - 1);
    assert!(matches!(GgufHeader::parse(Path::new("x"), &bytes), Err(Error::Truncated { .. })));
    bytes.extend([0; 500]);
    GgufHeader::parse(Path::new("x"), &bytes).unwrap();
    // Version 2 is the same except for its number.
    bytes[4] = 2;
    assert_eq!(GgufHeader::parse(Path::new("x"), &bytes).unwrap().version, 2);
}

#[test]
fn a_layout_breaks_no_rule() {
    let none = Metadata::new();
    let twice = [declared("a", &[1], BlockType::F32), declared("a", &[2], BlockType::F32)];
    assert!(matches!(refusal(&none, &twice), Error::DuplicateTensor { .. }));
    assert!(matches!(refusal_of_tensor("", &[1], BlockType::F32), Error::EmptyName { n: 0, .. }));
    let name = "n".repeat(64);
    assert!(matches!(
        refusal_of_tensor(&name, &[1], BlockType::F32),
        Error::NameTooLong { found: 64, .. }
    ));
    assert!(matches!(
        refusal_of_tensor("a", &[1; 5], BlockType::F32),
        Error::TooManyDims { found: 5, .. }
    ));
    let large = [1 << 40, 1 << 40];
    assert!(matches!(refusal_of_tensor("a", &large, BlockType::F32), Error::ShapeOverflow { .. }));
    assert!(matches!(
        refusal_of_tensor("a", &[1 << 62], BlockType::F32),
        Error::ShapeOverflow { .. }
    ));
    assert!(matches!(refusal_of_tensor("a", &[4, 48], BlockType::Q40), Error::Row { row: 48, .. }));
    let halves =
        [declared("a", &[1 << 62], BlockType::I8), declared("b", &[1 << 62], BlockType::I8)];
    assert!(matches!(refusal(&none, &halves), Error::TooLarge { .. }));
    for wrong in [
        MetadataValue::from(0_u32),
        MetadataValue::from(48_u32),
        MetadataValue::from(32_u64),
        MetadataValue::from("32"),
    ] {
        let mut keys = Metadata::new();
        keys.set("general.alignment", wrong);
        assert!(matches!(refusal(&keys, &[]), Error::Alignment { .. }));
    }
    let mut keys = Metadata::new();
    keys.set("", 1_u8);
    assert!(matches!(refusal(&keys, &[]), Error::EmptyKey { n: 0, .. }));
}

fn refusal(keys: &Metadata, tensors: &[GgufTensorSpec]) -> Error {
    GgufLayout::new(Path::new("out.gguf"), keys, tensors, DimsStyle::Trimmed)
        .expect_err("the keys or tensors are refused")
}

fn refusal_of_tensor(name: &str, shape: &[usize], ty: BlockType) -> Error {
    refusal(&Metadata::new(), &[declared(name, shape, ty)])
}

fn names(set: &[(PathBuf, GgufLayout)]) -> Vec<Vec<&str>> {
    set.iter()
        .map(|(_, layout)| layout.tensors.iter().map(|info| info.name.as_str()).collect())
        .collect()
}

#[test]
fn a_set_is_cut_where_its_padded_tensors_exceed_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("tiny.v1");
    // 96, 32, 32, 320, and 32 bytes with their padding.
    let tensors = [
        declared("a", &[20], BlockType::F32),
        declared("b", &[1], BlockType::F32),
        declared("c", &[8], BlockType::F32),
        declared("d", &[80], BlockType::F32),
        declared("e", &[2], BlockType::F32),
    ];
    let mut keys = keys();
    assert_eq!(
        names(&laid_out(&prefix, &keys, &tensors, 160)),
        [&["a", "b", "c"][..], &["d"], &["e"]]
    );
    assert_eq!(
        names(&laid_out(&prefix, &keys, &tensors, 159)),
        [&["a", "b"][..], &["c"], &["d"], &["e"]]
    );
    assert_eq!(names(&laid_out(&prefix, &keys, &tensors, 1)).len(), 5);
    assert_eq!(names(&laid_out(&prefix, &keys, &tensors, 1 << 20)).len(), 1);
    keys.set("general.alignment", 128_u32);
    let set = laid_out(&prefix, &keys, &tensors, 256);
    assert_eq!(names(&set), [&["a", "b"][..], &["c"], &["d"], &["e"]]);
    for (path, layout) in &set {
        write(path, layout);
    }
    assert!(set[1].0.ends_with("tiny.v1-00002-of-00004.gguf"));
    let file = GgufFile::open(&set[0].0).unwrap();
    assert_eq!(file.files().len(), 4);
    let read: Vec<&str> = file.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(read, ["a", "b", "c", "d", "e"]);
    assert_eq!(file.info("d").map(|info| info.file), Some(2));
    assert_eq!(file.bytes("b").unwrap(), [1, 2, 3, 4]);
    assert_eq!(file.bytes("e").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    // The first has all keys and its number; the others have only the required ones.
    assert_eq!(file.metadata().len(), keys.len() + 3);
    let third = GgufHeader::parse(&set[2].0, &fs_err::read(&set[2].0).unwrap()).unwrap();
    let left: Vec<_> = third.metadata.iter().collect();
    let want = [
        ("general.alignment", &MetadataValue::U32(128)),
        ("split.no", &MetadataValue::U16(2)),
        ("split.tensors.count", &MetadataValue::I32(5)),
        ("split.count", &MetadataValue::U16(4)),
    ];
    assert_eq!(left, want);
    let message = GgufFile::open(&set[2].0).unwrap_err().to_string();
    assert!(message.contains("file 3 of 4") && message.contains("-00001-of-00004"), "{message}");
}

fn laid_out(
    prefix: &Path,
    keys: &Metadata,
    tensors: &[GgufTensorSpec],
    limit: u64,
) -> Vec<(PathBuf, GgufLayout)> {
    split::layouts(prefix, keys, tensors, limit, DimsStyle::Trimmed).expect("the tensors fit")
}

fn value() -> impl Strategy<Value = MetadataValue> {
    prop_oneof![
        any::<u8>().prop_map(MetadataValue::from),
        any::<i64>().prop_map(MetadataValue::from),
        any::<bool>().prop_map(MetadataValue::from),
        "[ -~é✓\n]{0,9}".prop_map(MetadataValue::from),
        prop::collection::vec(any::<u16>(), 0..5).prop_map(MetadataValue::from),
        prop::collection::vec("[a-zü]{0,5}", 0..5).prop_map(MetadataValue::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_layout_is_read_back(
        entries in prop::collection::btree_map("[a-z.é]{1,9}", value(), 0..6),
        tensors in prop::collection::btree_map(
            "[a-z.é_0-9]{1,20}",
            (prop::collection::vec(0_usize..4, 0..4), prop::sample::select(BlockType::all().collect::<Vec<_>>())),
            0..6,
        ),
        shift in 0_u32..9,
    ) {
        let mut keys = Metadata::new();
        for (key, value) in entries {
            keys.set(key, value);
        }
        keys.set("general.alignment", 1_u32 << shift);
        let tensors: Vec<GgufTensorSpec> = tensors.into_iter().map(|(name, (mut shape, ty))| {
            if let Some(row) = shape.last_mut() {
                *row *= ty.elements();
            }
            let ty = if shape.is_empty() { BlockType::F32 } else { ty };
            GgufTensorSpec { name, shape, ty }
        }).collect();
        let layout = GgufLayout::new(Path::new("x"), &keys, &tensors, DimsStyle::AsGiven).unwrap();
        let read = GgufHeader::parse(Path::new("x"), &bytes_of(&layout)).unwrap();
        prop_assert_eq!(&read.metadata, &keys);
        prop_assert_eq!(&read.tensors, &layout.tensors);
        for (info, want) in read.tensors.iter().zip(&tensors) {
            prop_assert_eq!((&info.name, &info.shape, info.ty), (&want.name, &want.shape, want.ty));
        }
    }
}

#[test]
fn arrays_are_compact() {
    // A token list has hundreds of thousands of entries.
    assert!(
        std::mem::size_of::<MetadataArray>() <= 32 && std::mem::size_of::<MetadataValue>() <= 32
    );
}
