//! Tests of importance matrices: both formats, and errors for damaged ones.

use std::collections::BTreeMap;
use std::path::Path;

use onboard_formats::codec::BlockType;
use onboard_formats::gguf::{DimsStyle, GgufFile, GgufLayout, GgufTensorSpec, Metadata};
use onboard_formats::imatrix::{Imatrix, ImportanceEntry};

fn sample() -> Imatrix {
    let mut entries = BTreeMap::new();
    let up: Vec<f32> = (0_u16..6).map(|n| f32::from(n) * 0.3).collect();
    entries.insert(
        "blk.0.ffn_up.weight".into(),
        ImportanceEntry::from_sums(up, vec![7]).expect("one matrix"),
    );
    let experts: Vec<f32> = (0_u16..12).map(|n| f32::from(n) * 1.7).collect();
    let entry = ImportanceEntry::from_sums(experts, vec![3, 0, 512]).expect("three matrices");
    entries.insert("blk.0.ffn_down_exps.weight".into(), entry);
    Imatrix { entries, chunks: 9, chunk_size: 512, datasets: vec!["a.txt".into(), "b.txt".into()] }
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("imatrix.gguf");
    sample().write(&path).unwrap();
    assert_eq!(Imatrix::read(&path).unwrap(), sample());
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1);
    let file = GgufFile::open(&path).unwrap();
    let form: Vec<_> = file.tensors().iter().map(|info| (&*info.name, &*info.shape)).collect();
    let want: [(&str, &[usize]); 4] = [
        ("blk.0.ffn_down_exps.weight.in_sum2", &[3, 4]),
        ("blk.0.ffn_down_exps.weight.counts", &[3, 1]),
        ("blk.0.ffn_up.weight.in_sum2", &[6]),
        ("blk.0.ffn_up.weight.counts", &[1]),
    ];
    assert_eq!(form, want);
    let keys: Vec<&str> = file.metadata().iter().map(|(key, _)| key).collect();
    let datasets = "imatrix.datasets";
    let counts = ["imatrix.chunk_count", "imatrix.chunk_size"];
    let want = [&["general.type", datasets][..], &counts, &["onboard.checksum"]].concat();
    assert_eq!(keys, want);
    // Written again, the bytes are the same.
    let again = dir.path().join("again.gguf");
    Imatrix::read(&path).unwrap().write(&again).unwrap();
    assert_eq!(fs_err::read(&again).unwrap(), fs_err::read(&path).unwrap());
}

#[test]
fn every_flipped_bit_is_refused_or_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("imatrix.gguf");
    sample().write(&path).unwrap();
    let sound = fs_err::read(&path).unwrap();
    for at in 0..sound.len() * 8 {
        let mut bytes = sound.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        fs_err::write(&path, bytes).unwrap();
        let read = Imatrix::read(&path);
        assert!(read.is_err() || read.is_ok_and(|read| read == sample()), "bit {at}");
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as i32).to_le_bytes(), text.as_bytes()].concat()
}

fn weight(name: &str, chunks: i32, numbers: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let count = numbers.len() as i32;
    [text(name), chunks.to_le_bytes().into(), count.to_le_bytes().into(), bytes].concat()
}

fn dat(weights: &[Vec<u8>], trailer: &[u8]) -> Vec<u8> {
    [&(weights.len() as i32).to_le_bytes(), &*weights.concat(), trailer].concat()
}

fn read(bytes: &[u8]) -> Result<Imatrix, String> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("imatrix.dat");
    fs_err::write(&path, bytes).expect("the folder is there");
    Imatrix::read(&path).map_err(|error| error.to_string())
}

#[test]
fn the_older_form_is_read() {
    let weights = [weight("b", 4, &[2.0, 6.0]), weight("a", 0, &[3.0])];
    let trailer = [9_i32.to_le_bytes().to_vec(), text("wiki.txt")].concat();
    let imatrix = read(&dat(&weights, &trailer)).unwrap();
    assert_eq!(imatrix.weights_for("b", 2, 1).unwrap(), Some(&[0.5, 1.5][..]));
    assert_eq!(imatrix.weights_for("b", 1, 2).unwrap(), Some(&[0.5, 1.5][..]));
    assert_eq!(imatrix.weights_for("a", 1, 1).unwrap(), Some(&[3.0][..]));
    assert_eq!((imatrix.chunks, imatrix.chunk_size), (9, 0));
    assert_eq!(imatrix.datasets, ["wiki.txt"]);
    // The oldest files end before the number of chunks, or after it.
    assert_eq!(read(&dat(&weights, b"")).unwrap().chunks, 0);
    let chunks = read(&dat(&weights, &trailer[..4])).unwrap();
    assert_eq!((chunks.chunks, chunks.datasets.len()), (9, 0));
}

#[test]
fn damage_is_told_apart() {
    let good = dat(&[weight("a.weight", 2, &[1.0, 2.0])], &[]);
    let cases: &[(Vec<u8>, &[&str])] = &[
        (vec![], &["cut short in the number of weights", "4 bytes are needed, 0 are left"]),
        (number(0), &["the number of weights", "is 0; expected a number above zero"]),
        (number(-1), &["the number of weights", "is -1"]),
        (
            [number(i32::MAX), weight("w", 1, &[1.0])].concat(),
            &["the length of the name of weight 1"],
        ),
        ([number(1), number(-5)].concat(), &["the length of the name of weight 0", "is -5"]),
        (
            [number(1), number(i32::MAX)].concat(),
            &["the name of weight 0", "2147483647 bytes are needed"],
        ),
        ([number(1), number(1), vec![0xff]].concat(), &["the name of weight 0", "not UTF-8"]),
        (
            good[..good.len() - 1].into(),
            &["the number of numbers of `a.weight`", "8 bytes are needed, 7"],
        ),
        (good[..20].into(), &["the number of numbers of `a.weight`", "0 are left"]),
        (
            [number(1), text("w"), number(1), number(i32::MAX)].concat(),
            &["the number of numbers of `w`", "8589934588 bytes are needed"],
        ),
        ([number(1), text("w"), number(1), number(0)].concat(), &["the number of numbers", "is 0"]),
        (one_weight(1, &[1.0, f32::NAN]), &["number 1 of `w`", "is NaN"]),
        (one_weight(1, &[f32::INFINITY]), &["number 0 of `w`", "is inf"]),
        (one_weight(1, &[-1.0]), &["number 0 of `w`", "is -1", "not below zero"]),
        (dat(&[weight("w", 1, &[1.0]), weight("w", 1, &[1.0])], b""), &["names `w` twice"]),
        ([&good[..], &[1, 0]].concat(), &["the number of chunks", "2 are left"]),
        ([&good[..], &number(1), &number(-1)].concat(), &["the name of the text", "is -1"]),
        (
            [&good[..], &number(1), &number(9), b"short"].concat(),
            &["the name of the text", "9 bytes"],
        ),
        (b"GGUF\x09\0\0\0".into(), &["GGUF version 9"]),
    ];
    for (bytes, expected) in cases {
        let message = read(bytes).unwrap_err();
        let lacking: Vec<_> = expected.iter().filter(|part| !message.contains(**part)).collect();
        assert!(lacking.is_empty(), "{message}\n  lacks {lacking:?}");
    }
    for cut in 0..good.len() {
        assert!(read(&good[..cut]).is_err());
    }
}

fn number(n: i32) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

fn one_weight(chunks: i32, numbers: &[f32]) -> Vec<u8> {
    dat(&[weight("w", chunks, numbers)], &[])
}

type Tensors<'a> = &'a [(&'a str, &'a [usize], BlockType)];

#[test]
fn a_damaged_gguf_form_is_told_apart() {
    let f32 = BlockType::F32;
    let f16 = BlockType::F16;
    let sums = "w.in_sum2";
    let counts = "w.counts";
    let good =
        read_tensors(&[(sums, &[2], f32), (counts, &[1], f32), ("other", &[1], f16)], 0).unwrap();
    // Counts of zero: nothing was measured, and all weights are equal.
    assert_eq!(good.weights_for("w", 2, 1).unwrap(), Some(&[1.0, 1.0][..]));
    let cases: &[(Tensors<'_>, u8, &[&str])] = &[
        (&[], 0, &["has no importance of any weight"]),
        (
            &[("in_sum2", &[2], f32), ("wcounts", &[2], f32)],
            0,
            &["has no importance of any weight"],
        ),
        (&[(sums, &[2], f32)], 0, &["has `w.in_sum2` but no `w.counts`"]),
        (&[(counts, &[2], f32)], 0, &["has `w.counts` but no `w.in_sum2`"]),
        (&[(sums, &[2], f16), (counts, &[1], f32)], 0, &["`w.in_sum2`", "kept in F16"]),
        (&[(sums, &[2], f32), (counts, &[1], f16)], 0, &["`w.counts`", "kept in F16"]),
        (&[(sums, &[3], f32), (counts, &[2], f32)], 0, &["`w`", "3 sums for 2 counts"]),
        (&[(sums, &[2], f32), (counts, &[0], f32)], 0, &["`w`", "2 sums for 0 counts"]),
        (&[(sums, &[0], f32), (counts, &[1], f32)], 0, &["`w`", "0 sums for 1 counts"]),
        (&[(sums, &[2], f32), (counts, &[1], f32)], 0xff, &["number 0 of `w.in_sum2`", "is NaN"]),
    ];
    for (tensors, byte, expected) in cases {
        let message = read_tensors(tensors, *byte).unwrap_err();
        let lacking: Vec<_> = expected.iter().filter(|part| !message.contains(**part)).collect();
        assert!(lacking.is_empty(), "{message}\n  lacks {lacking:?}");
    }
}

fn read_tensors(tensors: Tensors<'_>, byte: u8) -> Result<Imatrix, String> {
    let declared: Vec<GgufTensorSpec> = tensors
        .iter()
        .map(|(name, shape, ty)| GgufTensorSpec {
            name: (*name).into(),
            shape: (*shape).into(),
            ty: *ty,
        })
        .collect();
    let layout = GgufLayout::new(Path::new("x"), &Metadata::new(), &declared, DimsStyle::Trimmed);
    let layout = layout.expect("allowed");
    let mut bytes = layout.header;
    bytes.resize(layout.file_len as usize, byte);
    read(&bytes)
}
