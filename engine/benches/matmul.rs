//! Times the linear op over the shapes of a 742M-parameter model, beside the machine's limits.
//!
//! `cargo bench -p onboard-engine --bench matmul [-- THREADS]`. Weights cycle through more memory than any
//! cache holds, as they do in a model. Compare ratios within one run: machines drift.
#![expect(clippy::print_stdout, reason = "a program that a person runs and reads")]

use lanes::Isa;
use onboard_engine::kernels::matmul::{Linear, MatrixView, matmul_many, matmul_many_on};
use rayon::prelude::*;
use registry::dtype::Dtype;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of weights of one shape, read once per round.
const BYTES: usize = 420 << 20;
const HIDDEN: usize = 1536;
const FFN: usize = 4608;

fn main() {
    let threads = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    pool.expect("threads can be started").install(run);
}

fn run() {
    let pool = Pool::new();
    println!("{} threads, {:?}", rayon::current_num_threads(), Isa::best());
    let read = pool.read();
    println!("reading memory: {read:.1} GB/s");
    for isa in Isa::available() {
        let gflops = Dtype::ALL.map(|dtype| 2.0 * pool.time(isa, dtype, 24, 512, 96) / 1e9);
        println!(
            "{isa:?} from cache, 24 rows: f32 {:.0}, bf16 {:.0}, f16 {:.0} GFLOP/s",
            gflops[0], gflops[1], gflops[2]
        );
    }
    println!(
        "\n{:>18} {:>7} {:>4} {:>8} {:>7} {:>6}",
        "shape", "weight", "rows", "GFLOP/s", "GB/s", "read"
    );
    for (outputs, inputs) in [(FFN, HIDDEN), (HIDDEN, FFN), (65536, HIDDEN)] {
        for dtype in Dtype::ALL {
            for rows in [1, 2, 4, 16, 128, 512] {
                if outputs == 65536 && rows > 4 {
                    continue;
                }
                let macs = pool.time(Isa::best(), dtype, rows, inputs, outputs);
                let bytes = macs / rows as f64 * dtype.size() as f64 / 1e9;
                println!(
                    "{:>18} {dtype:>7} {rows:>4} {:>8.0} {bytes:>7.1} {:>5.0}%",
                    format!("{outputs} x {inputs}"),
                    2.0 * macs / 1e9,
                    100.0 * bytes / read
                );
            }
        }
    }
    println!("\nf32 values, 16-bit weights ({FFN} x {HIDDEN})");
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for rows in [1, 128] {
            let macs = pool.time(Isa::best(), dtype, rows, HIDDEN, FFN);
            let bytes = macs / rows as f64 * dtype.size() as f64 / 1e9;
            println!("{dtype:>7} {rows:>4} {:>8.0} GFLOP/s {bytes:>7.1} GB/s", 2.0 * macs / 1e9);
        }
    }
    pool.model(read);
}

struct Pool {
    bytes: Vec<u8>,
    x: Vec<f32>,
}

impl Pool {
    fn new() -> Self {
        // Every 16 bits are a small number in bf16 and f16, and every 32 in f32.
        let bytes = (0..BYTES).map(|i| if i % 2 == 0 { (i / 2 % 251) as u8 } else { 0x2c });
        let x = (0..512 * FFN).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
        Self { bytes: bytes.collect(), x }
    }

    /// GB/s of a loop that only adds up what it reads.
    fn read(&self) -> f64 {
        let seconds = best(|| {
            black_box(self.bytes.par_chunks(1 << 20).map(sum_of).reduce(|| 0, u64::wrapping_add));
        });
        self.bytes.len() as f64 / seconds / 1e9
    }

    /// Multiply-adds per second, the weights cycling through memory where they are big.
    fn time(&self, isa: Isa, dtype: Dtype, rows: usize, inputs: usize, outputs: usize) -> f64 {
        let size = outputs * inputs * dtype.size();
        let cached = size < 1 << 20;
        let distinct = if cached { 1 } else { self.bytes.len() / size };
        let count = if cached { 64 } else { (512 / rows).clamp(4, 36) };
        let mut y = vec![0.0; rows * outputs];
        let x = &self.x[..rows * inputs];
        let seconds = best(|| {
            for i in 0..count {
                // Weights of a file lie at any offset.
                let at = (i % distinct * size + 8).min(self.bytes.len() - size);
                let bytes = &self.bytes[at..at + size];
                let weight = MatrixView::plain(dtype, bytes, outputs, inputs);
                let mut linear = [Linear { weight, bias: None, round: dtype, y: &mut y }];
                matmul_many_on(isa, x, rows, &mut linear);
            }
        });
        (count * rows * inputs * outputs) as f64 / seconds
    }

    /// One token through the linears of ten gated-convolution and six attention layers.
    fn model(&self, read: f64) {
        println!("\none token through every linear of the model");
        for dtype in Dtype::ALL {
            let mut total = 0;
            let seconds = best(|| {
                total = 0;
                let mut at = 8;
                let mut y = vec![0.0; 65536];
                let mut many = |inputs: usize, outputs: &[usize]| {
                    let mut linears = Vec::new();
                    let mut remaining = &mut y[..];
                    for &outputs in outputs {
                        let size = inputs * outputs * dtype.size();
                        if at + size > self.bytes.len() {
                            at = 8;
                        }
                        let bytes = &self.bytes[at..at + size];
                        at += size;
                        total += size;
                        let (y, after) = remaining.split_at_mut(outputs);
                        remaining = after;
                        let weight = MatrixView::plain(dtype, bytes, outputs, inputs);
                        linears.push(Linear { weight, bias: None, round: dtype, y });
                    }
                    matmul_many(&self.x[..inputs], 1, &mut linears);
                };
                for layer in 0..16 {
                    if layer % 8 % 3 == 2 {
                        many(HIDDEN, &[HIDDEN, 512, 512]);
                    } else {
                        many(HIDDEN, &[3 * HIDDEN]);
                    }
                    many(HIDDEN, &[HIDDEN]);
                    many(HIDDEN, &[FFN, FFN]);
                    many(FFN, &[HIDDEN]);
                }
                many(HIDDEN, &[65536]);
            });
            let rate = total as f64 / seconds / 1e9;
            println!(
                "{dtype:>7} {:.0}M weights: {:.1} tokens/s, {rate:.1} GB/s, {:.0}% of reading",
                total as f64 / dtype.size() as f64 / 1e6,
                1.0 / seconds,
                100.0 * rate / read
            );
        }
    }
}

/// Returns the sum of the numbers in 64 bits that bytes hold.
fn sum_of(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; 32];
    for line in bytes.as_chunks::<256>().0 {
        for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
            *lane = lane.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    lanes.iter().fold(0, |a: u64, b| a.wrapping_add(*b))
}

/// The best of a few runs, after one to warm up.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let times = (0..5).map(|_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}
