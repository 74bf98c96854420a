//! Measures the speed of encoding and decoding blocks on one thread: `cargo bench -p onboard-formats
//! --bench codecs [-- <part of a name>...]`. Results are million values per second, the best of several
//! runs.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::hint::black_box;
use std::time::Instant;

use lanes::Isa;
use onboard_formats::codec::{self, BlockReader, BlockType, LaneSums};

#[path = "../tests/support/normal.rs"]
mod normal;

use normal::normal;

const ROW: usize = 4096;
const ROWS: usize = 64;
/// Values that a product decodes at once.
const STRIP: usize = 512;

fn main() {
    let asked: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |ty: &BlockType| {
        let name = ty.name().to_lowercase();
        asked.is_empty() || asked.iter().any(|part| name.contains(&part.to_lowercase()))
    };
    let numbers = normal(ROW * ROWS, 0.02);
    let importance: Vec<f32> = normal(ROW, 0.02).iter().map(|x| x * x).collect();
    println!(
        "{:8} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "type", "vectors", "plain", "weighted", "decode", "product"
    );
    for ty in BlockType::all().filter(wanted) {
        if codec::encode(
            ty,
            &[0.0; 256],
            256,
            Some(&[1.0; 256]),
            &mut vec![0; 256 / ty.elements() * ty.bytes()],
        )
        .is_err()
        {
            continue;
        }
        let mut bytes = vec![0; numbers.len() / ty.elements() * ty.bytes()];
        let mut back = vec![0.0; STRIP];
        for isa in Isa::available() {
            let mut speed = |weights: Option<&[f32]>| {
                if codec::encode_in(
                    isa,
                    ty,
                    &numbers[..ROW],
                    ROW,
                    weights,
                    &mut bytes[..ROW / ty.elements() * ty.bytes()],
                )
                .is_err()
                {
                    return "-".to_owned();
                }
                best(|| {
                    codec::encode_in(isa, ty, black_box(&numbers), ROW, weights, &mut bytes)
                        .expect("it was just done");
                    black_box(&bytes);
                })
            };
            let plain = speed(None);
            let weighted = speed(Some(&importance));
            if plain == "-" && weighted == "-" {
                continue;
            }
            println!("{:8} {:>10} {plain:>9} {weighted:>9}", ty.name(), format!("{isa:?}"));
        }
        let reader = BlockReader::new(ty).expect("every format that is written can be read");
        let row = ROW / ty.elements() * ty.bytes();
        let decode = best(|| {
            for strip in black_box(&bytes).chunks_exact(row / (ROW / STRIP)) {
                reader.read(STRIP / ty.elements(), strip, &mut back);
                black_box(&back);
            }
        });
        let product = || {
            for rows in black_box(&bytes).chunks_exact(8 * row) {
                let rows: Vec<&[u8]> = rows.chunks_exact(row).collect();
                let mut sums = [LaneSums::default(); 8];
                reader.add_products(&rows, 8 * row, &numbers[..ROW], &mut sums);
                black_box(&sums);
            }
        };
        let product = if reader.multiplies() { best(product) } else { "-".to_owned() };
        println!("{:8} {:>36} {product:>9}", ty.name(), decode);
    }
}

fn best(mut run: impl FnMut()) -> String {
    let begin = Instant::now();
    let mut least = f64::INFINITY;
    for runs in 0.. {
        let begin_one = Instant::now();
        run();
        least = least.min(begin_one.elapsed().as_secs_f64());
        if runs >= 2 && begin.elapsed().as_secs_f64() > 0.25 {
            break;
        }
    }
    format!("{:.1}", (ROW * ROWS) as f64 / least / 1e6)
}
