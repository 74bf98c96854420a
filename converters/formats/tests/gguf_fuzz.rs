//! Fuzz test with damaged GGUF files: never a panic, and memory within a small multiple of the file.
//!
//! `FUZZ_CASES=20000000 cargo test -p onboard-formats --test gguf_fuzz` runs longer.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement; this one only counts")]

use std::alloc::{GlobalAlloc, Layout as Piece, System};
use std::cell::Cell;
use std::path::Path;

use onboard_formats::codec::BlockType;
use onboard_formats::gguf::{
    DimsStyle, GgufFile, GgufHeader, GgufLayout, GgufTensorSpec, Metadata, split,
};
use proptest::prelude::*;

/// Allocator that counts the memory of a thread, and its peak.
struct Counting;

thread_local! {
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(by: isize) {
    // A thread that is ending is not counted.
    let _ = HELD.try_with(|held| {
        let (now, highest) = held.get();
        held.set((now + by, highest.max(now + by)));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, piece: Piece) -> *mut u8 {
        count(piece.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(piece) }
    }

    unsafe fn dealloc(&self, at: *mut u8, piece: Piece) {
        count(-(piece.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, piece) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the result of `work`, and the peak of additional memory meanwhile.
fn peak<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get().0;
    HELD.set((before, before));
    let result = work();
    (result, HELD.get().1 - before)
}

fn whole(layout: &GgufLayout) -> Vec<u8> {
    let mut bytes = layout.header.clone();
    bytes.resize(layout.file_len as usize, 7);
    bytes
}

/// Returns valid files, for damaging.
fn samples() -> Vec<Vec<u8>> {
    let tensors = [
        declared("token_embd.weight", &[3, 32], BlockType::Q80),
        declared("blk.0.ffn_up.weight", &[2, 1, 256], BlockType::Q4K),
        declared("none", &[], BlockType::F32),
        declared("empty", &[0, 5], BlockType::Bf16),
    ];
    let mut keys = Metadata::new();
    keys.set("general.architecture", "tiny");
    keys.set("a", 1_u8);
    keys.set("b", -1_i16);
    keys.set("c", 0.5_f32);
    keys.set("d", 1_u64 << 40);
    keys.set("e", true);
    keys.set("list", vec![1_u32, 2, 3]);
    keys.set("bools", vec![true, false]);
    keys.set("tokens", vec!["a".to_owned(), String::new(), "ü".to_owned()]);
    let mut samples =
        vec![laid_out(&keys, &tensors), laid_out(&keys, &[]), laid_out(&Metadata::new(), &tensors)];
    keys.set("general.alignment", 8_u32);
    samples.push(laid_out(&keys, &tensors));
    let set =
        split::layouts(Path::new("x"), &keys, &tensors, 100, DimsStyle::Trimmed).expect("allowed");
    samples.extend(set.iter().map(|(_, layout)| whole(layout)));
    samples
}

fn laid_out(keys: &Metadata, tensors: &[GgufTensorSpec]) -> Vec<u8> {
    whole(&GgufLayout::new(Path::new("x"), keys, tensors, DimsStyle::AsGiven).expect("allowed"))
}

fn declared(name: &str, shape: &[usize], ty: BlockType) -> GgufTensorSpec {
    GgufTensorSpec { name: name.into(), shape: shape.into(), ty }
}

/// Judges a file. Rejecting is fine, and so is accepting a valid file; everything else is a failure.
fn judge(bytes: &[u8]) {
    let file = Path::new("x");
    let (read, highest) = peak(|| GgufHeader::parse(file, bytes));
    assert!(highest as usize <= 32 * bytes.len() + 16_384, "{highest} for {} bytes", bytes.len());
    let header = match read {
        Ok(header) => header,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.chars().any(char::is_control) && message.len() < 1500, "{message:?}");
            return;
        }
    };
    for info in &header.tensors {
        assert!(info.offset >= header.data_start);
        assert!(info.offset + info.bytes <= bytes.len() as u64);
        assert_eq!(
            info.elements() / info.ty.elements() as u64 * info.ty.bytes() as u64,
            info.bytes
        );
    }
    // Any parsed header can be laid out again with the same contents.
    let again = layout(&header);
    let header = GgufHeader::parse(file, &whole(&again)).expect("our own");
    assert_eq!(layout(&header), again);
}

fn layout(header: &GgufHeader) -> GgufLayout {
    let tensors: Vec<GgufTensorSpec> = header.tensors.iter().map(GgufTensorSpec::from).collect();
    GgufLayout::new(Path::new("x"), &header.metadata, &tensors, DimsStyle::AsGiven)
        .expect("was read")
}

/// Piece of damage.
#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    Put(usize, Vec<u8>),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn damage(bytes: &mut Vec<u8>, by: &Damage) {
    let len = bytes.len().max(1);
    match by {
        _ if bytes.is_empty() => {}
        Damage::Flip(n, bit) => {
            let at = *n % len;
            bytes[at] ^= 1 << (bit % 8);
        }
        Damage::Put(n, new) => {
            let at = *n % len;
            for (old, new) in bytes[at..].iter_mut().zip(new) {
                *old = *new;
            }
        }
        Damage::Cut(n) => bytes.truncate(*n % len),
        Damage::Insert(n, new) => {
            let at = *n % len;
            bytes.splice(at..at, new.iter().copied());
        }
        Damage::Remove(n, count) => {
            let at = *n % len;
            let end = (at + count % 40).min(bytes.len());
            bytes.drain(at..end);
        }
        Damage::Repeat(n, count) => {
            let at = *n % len;
            let end = (at + count % 40).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            bytes.splice(end..end, copy);
        }
    }
}

/// Integers at which lengths, counts, kinds and offsets commonly fail.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    13,
    31,
    32,
    33,
    63,
    64,
    256,
    1 << 16,
    (1 << 30) - 1,
    1 << 30,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 60,
    (1 << 61) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX - 7,
    u64::MAX,
];

fn some_damage() -> impl Strategy<Value = Damage> {
    let number = prop_oneof![any::<u64>(), prop::sample::select(NUMBERS)];
    let bytes = (number, 1_usize..9).prop_map(|(x, size)| x.to_le_bytes()[..size].to_vec());
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(n, bit)| Damage::Flip(n, bit)),
        (any::<usize>(), bytes.clone()).prop_map(|(n, new)| Damage::Put(n, new)),
        any::<usize>().prop_map(Damage::Cut),
        (any::<usize>(), bytes).prop_map(|(n, new)| Damage::Insert(n, new)),
        (any::<usize>(), any::<usize>()).prop_map(|(n, count)| Damage::Remove(n, count)),
        (any::<usize>(), any::<usize>()).prop_map(|(n, count)| Damage::Repeat(n, count)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damage_is_survived(n in 0_usize..100, all in prop::collection::vec(some_damage(), 1..5)) {
        let samples = samples();
        let mut bytes = samples[n % samples.len()].clone();
        for one in &all {
            damage(&mut bytes, one);
        }
        judge(&bytes);
    }
}

#[test]
fn every_prefix_and_every_changed_byte_is_survived() {
    for sample in samples() {
        judge(&sample);
        for cut in 0..sample.len() {
            judge(&sample[..cut]);
        }
        for at in 0..sample.len() {
            for byte in [0, 1, 8, 9, 0x7f, 0x80, 0xff] {
                let mut bytes = sample.clone();
                bytes[at] = byte;
                judge(&bytes);
            }
        }
    }
}

/// Returns the next output of splitmix64 (Steele, Lea and Flood).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn next_damage(state: &mut u64) -> Damage {
    let at = next(state) as usize;
    let which = next(state);
    let number = next(state);
    let x = if which & 64 == 0 { number } else { NUMBERS[number as usize % NUMBERS.len()] };
    let bytes = x.to_le_bytes()[..1 << (which >> 8 & 3)].to_vec();
    match which & 7 {
        0 | 1 => Damage::Flip(at, number as u8),
        2..=4 => Damage::Put(at, bytes),
        5 if number.is_multiple_of(8) => Damage::Cut(at),
        5 => Damage::Insert(at, bytes),
        6 => Damage::Remove(at, number as usize),
        _ => Damage::Repeat(at, number as usize),
    }
}

#[test]
fn many_damaged_files_are_survived() {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let cases: u64 = cases.unwrap_or(5000);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("x-00001-of-00003.gguf");
    let samples = samples();
    for (no, other) in (2..).zip(&samples[5..]) {
        let path = dir.path().join(format!("x-{no:05}-of-00003.gguf"));
        fs_err::write(path, other).expect("the folder is there");
    }
    // A damaged file that is still valid is damaged further.
    let mut pool = samples.clone();
    let mut state = 1;
    let mut accepted = 0_u64;
    for case in 0..cases {
        let from = if case % 2 == 0 { &samples } else { &pool };
        let mut bytes = from[next(&mut state) as usize % from.len()].clone();
        for _ in 0..=next(&mut state) % 4 {
            damage(&mut bytes, &next_damage(&mut state));
        }
        judge(&bytes);
        if case % 256 == 0 {
            fs_err::write(&path, &bytes).expect("the folder is there");
            drop(GgufFile::open(&path));
        }
        let Ok(header) = GgufHeader::parse(Path::new("x"), &bytes) else { continue };
        accepted += 1;
        // Files with little left to damage would displace the others.
        if bytes.len() < 4000 && header.tensors.len() > 1 && header.metadata.len() > 3 {
            if pool.len() < 4000 {
                pool.push(bytes);
            } else {
                let at = samples.len() + next(&mut state) as usize % (pool.len() - samples.len());
                pool[at] = bytes;
            }
        }
    }
    println!("{cases} cases, {accepted} of them still files");
}
