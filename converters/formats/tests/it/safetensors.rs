//! Compares our reader and writer with the format's reference crate, and tests random bytes.

use std::collections::BTreeMap;
use std::path::Path;

use onboard_formats::safetensors::{
    Error, FileDtype, SafetensorsFile, SafetensorsHeader, TensorSpec, Writer,
};
use proptest::prelude::*;
use safetensors::tensor::{Dtype as Theirs, SafeTensors, TensorView};

fn theirs(dtype: FileDtype) -> Theirs {
    match dtype {
        FileDtype::F64 => Theirs::F64,
        FileDtype::F32 => Theirs::F32,
        FileDtype::F16 => Theirs::F16,
        FileDtype::Bf16 => Theirs::BF16,
        FileDtype::F8E4m3 => Theirs::F8_E4M3,
        FileDtype::F8E5m2 => Theirs::F8_E5M2,
        FileDtype::F8E8m0 => Theirs::F8_E8M0,
        FileDtype::I64 => Theirs::I64,
        FileDtype::I32 => Theirs::I32,
        FileDtype::I16 => Theirs::I16,
        FileDtype::I8 => Theirs::I8,
        FileDtype::U64 => Theirs::U64,
        FileDtype::U32 => Theirs::U32,
        FileDtype::U16 => Theirs::U16,
        FileDtype::U8 => Theirs::U8,
        FileDtype::Bool => Theirs::BOOL,
    }
}

fn bytes_of(tensor: &TensorSpec) -> Vec<u8> {
    let len = tensor.shape.iter().product::<usize>() * tensor.dtype.size();
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

prop_compose! {
    fn tensors()(
        map in prop::collection::btree_map(
            "[ -~é✓\"\\\\\n]{0,12}",
            (prop::sample::select(FileDtype::ALL.to_vec()), prop::collection::vec(0_usize..5, 0..4)),
            0..6,
        ),
    ) -> Vec<TensorSpec> {
        map.into_iter().map(|(name, (dtype, shape))| TensorSpec { name, dtype, shape }).collect()
    }
}

fn write(path: &Path, metadata: &BTreeMap<String, String>, tensors: &[TensorSpec], piece: usize) {
    let mut writer = Writer::create(path, metadata, tensors).expect("declared so");
    for tensor in tensors {
        for piece in bytes_of(tensor).chunks(piece) {
            writer.write(&tensor.name, piece).expect("declared so");
        }
    }
    writer.finish().expect("declared so");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_we_write_they_read(
        tensors in tensors(),
        metadata in prop::collection::btree_map("[a-z\"]{1,4}", "[ -~\n]{0,8}", 0..3),
        piece in 1_usize..40,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        write(&path, &metadata, &tensors, piece);
        let bytes = fs_err::read(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(read.len(), tensors.len());
        for tensor in &tensors {
            let view = read.tensor(&tensor.name).unwrap();
            prop_assert_eq!(view.dtype(), theirs(tensor.dtype));
            prop_assert_eq!(view.shape(), &tensor.shape[..]);
            prop_assert_eq!(view.data(), &bytes_of(tensor)[..]);
        }
        let (_, head) = SafeTensors::read_metadata(&bytes).unwrap();
        for (key, text) in &metadata {
            prop_assert_eq!(head.metadata().as_ref().unwrap().get(key), Some(text));
        }
        // The file is also read back.
        let file = SafetensorsFile::open(&path).unwrap();
        prop_assert_eq!(&file.header().metadata, &metadata);
        prop_assert_eq!(file.header().data_start % 8, 0);
        for tensor in &tensors {
            let (entry, data) = file.tensor(&tensor.name).unwrap().unwrap();
            prop_assert_eq!((entry.dtype, &entry.shape), (tensor.dtype, &tensor.shape));
            prop_assert_eq!(data, &bytes_of(tensor)[..]);
        }
    }

    #[test]
    fn what_they_write_we_read(tensors in tensors()) {
        let data: Vec<Vec<u8>> = tensors.iter().map(bytes_of).collect();
        let views = tensors.iter().zip(&data).map(|(tensor, data)| {
            let view = TensorView::new(theirs(tensor.dtype), tensor.shape.clone(), data).unwrap();
            (tensor.name.clone(), view)
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        let header = SafetensorsHeader::from_bytes(Path::new("x"), &bytes).unwrap();
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for (tensor, data) in tensors.iter().zip(&data) {
            let entry = &header.tensors[&tensor.name];
            prop_assert_eq!((entry.dtype, &entry.shape), (tensor.dtype, &tensor.shape));
            prop_assert_eq!(&bytes[entry.range.0 as usize..entry.range.1 as usize], &data[..]);
        }
    }
}

/// Returns a valid file with two tensors, for damaging.
fn sample() -> Vec<u8> {
    let json = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"I8","shape":[3],"data_offsets":[16,19]}}"#;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    bytes.extend(0..19);
    bytes
}

/// Judges a file. Accepting is fine (a changed digit of data is still a file); panics and invalid ranges
/// are not.
fn judge(bytes: &[u8]) {
    if let Ok(header) = SafetensorsHeader::from_bytes(Path::new("x"), bytes) {
        for entry in header.tensors.values() {
            let begin = entry.range.0 as usize;
            let end = entry.range.1 as usize;
            assert!(header.data_start as usize <= begin && begin <= end && end <= bytes.len());
        }
        // A file that passes our checks passes theirs.
        assert!(SafeTensors::deserialize(bytes).is_ok(), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn every_prefix_and_every_changed_byte_is_survived() {
    let bytes = sample();
    judge(&bytes);
    assert!(SafetensorsHeader::from_bytes(Path::new("x"), &bytes).is_ok());
    for end in 0..bytes.len() {
        assert!(SafetensorsHeader::from_bytes(Path::new("x"), &bytes[..end]).is_err(), "{end}");
    }
    for at in 0..bytes.len() - 19 {
        for change in [0_u8, 1, b'0', b'9', b'"', b'{', b'}', b',', b'-', 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = change;
            judge(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        judge(&bytes);
    }

    #[test]
    fn random_headers_are_survived(
        text in r#"(\{|\}|\[|\]|,|:|"a"|"b"|"dtype"|"shape"|"data_offsets"|"__metadata__"|"F32"|null|[0-9]{1,20}|-1| ){0,30}"#,
    ) {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        judge(&bytes);
    }

    #[test]
    fn random_numbers_are_survived(
        shapes in prop::collection::vec(prop::collection::vec(prop_oneof![0_u64..4, any::<u64>()], 0..4), 1..4),
        offsets in prop::collection::vec((prop_oneof![0_u64..20, any::<u64>()], prop_oneof![0_u64..20, any::<u64>()]), 4),
        data in 0_usize..24,
    ) {
        let entries: Vec<String> = shapes.iter().zip(&offsets).enumerate().map(|(i, (shape, (a, b)))| {
            format!("\"t{i}\":{{\"dtype\":\"U8\",\"shape\":{shape:?},\"data_offsets\":[{a},{b}]}}")
        }).collect();
        let text = format!("{{{}}}", entries.join(","));
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        judge(&bytes);
    }
}

#[test]
fn a_header_that_is_longer_than_its_file_is_refused() {
    let error = SafetensorsHeader::parse(Path::new("x"), b"{}", 9).unwrap_err();
    assert!(matches!(error, Error::HeaderPastEnd { found: 2, left: 1, .. }));
}

fn declared(name: &str, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype: FileDtype::F32, shape: shape.into() }
}

#[test]
fn the_writer_says_what_it_was_given_wrongly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let two = [declared("a", &[2]), declared("none", &[0, 3]), declared("b", &[1])];

    let error = create(&path, &[declared("a", &[1]), declared("a", &[2])]).unwrap_err();
    assert!(matches!(error, Error::DeclaredTwice { tensor, .. } if tensor == "a"));
    let error = create(&path, &[declared("__metadata__", &[1])]).unwrap_err();
    assert!(matches!(error, Error::DeclaredTwice { .. }));
    let error = create(&path, &[declared("a", &[usize::MAX, 2])]).unwrap_err();
    assert!(matches!(error, Error::ShapeOverflow { .. }));
    let error = create(&path, &[declared("a", &[1 << 61]), declared("b", &[1 << 61])]).unwrap_err();
    assert!(matches!(error, Error::ShapeOverflow { tensor, .. } if tensor == "b"));

    let mut writer = create(&path, &two).unwrap();
    let error = writer.write("b", &[0; 4]).unwrap_err();
    assert!(matches!(error, Error::OutOfOrder { expected, .. } if expected == "`a`"));
    writer.write("a", &[0; 3]).unwrap();
    let error = writer.write("a", &[0; 6]).unwrap_err();
    assert!(matches!(error, Error::TooManyBytes { extra: 1, expected: 8, .. }));
    writer.write("a", &[0; 5]).unwrap();
    let error = writer.write("b", &[0; 5]).unwrap_err();
    assert!(matches!(error, Error::TooManyBytes { extra: 1, expected: 4, .. }));
    writer.write("b", &[]).unwrap();
    writer.write("b", &[0; 4]).unwrap();
    let error = writer.write("b", &[0; 4]).unwrap_err();
    assert!(matches!(error, Error::TooManyBytes { extra: 4, expected: 4, .. }));
    let error = writer.write("c", &[0; 4]).unwrap_err();
    assert!(matches!(error, Error::OutOfOrder { expected, .. } if expected == "no more tensors"));
    writer.finish().unwrap();
    assert_eq!(SafetensorsFile::open(&path).unwrap().header().tensors.len(), 3);
}

fn create(path: &Path, tensors: &[TensorSpec]) -> Result<Writer, Error> {
    Writer::create(path, &BTreeMap::new(), tensors)
}

#[test]
fn an_unfinished_file_leaves_nothing_and_spoils_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let part = dir.path().join("a.safetensors.part");
    write(&path, &BTreeMap::new(), &[declared("old", &[1])], 64);
    let before = fs_err::read(&path).unwrap();

    let mut writer = Writer::create(&path, &BTreeMap::new(), &[declared("new", &[2])]).unwrap();
    writer.write("new", &[0; 4]).unwrap();
    assert!(part.exists());
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, Error::Unfinished { missing: 4, .. }));
    assert!(!part.exists());
    assert_eq!(fs_err::read(&path).unwrap(), before);

    // Remains of a killed run are replaced.
    fs_err::write(&part, b"left over, and longer than what is written now: ".repeat(9)).unwrap();
    write(&path, &BTreeMap::new(), &[declared("new", &[2])], 3);
    assert!(!part.exists());
    assert!(SafetensorsFile::open(&path).unwrap().header().tensors.contains_key("new"));
}
