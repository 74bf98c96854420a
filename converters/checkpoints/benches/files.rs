//! Measures the speed of writing, scanning and converting files: `cargo bench -p onboard-checkpoints [--
//! <megabytes>]`.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::hint::black_box;
use std::time::Instant;

use formats::numbers;
use formats::safetensors::FileDtype;
use onboard_checkpoints::Checkpoint;
use onboard_checkpoints::random::write_random_checkpoint;

fn main() {
    let megabytes = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(256_usize);
    let rows = megabytes * 64;
    let weights: Vec<_> = (0..8).map(|i| (format!("w{i}.weight"), vec![rows, 1024])).collect();
    let dir = tempfile::tempdir_in(".").expect("the working folder can be written");
    for dtype in [FileDtype::Bf16, FileDtype::F16, FileDtype::F32, FileDtype::F8E4m3] {
        let gigabytes = (8 * rows * 1024 * dtype.size()) as f64 / 1e9;
        let report = |what: &str, begin: Instant| {
            let seconds = begin.elapsed().as_secs_f64();
            println!("{dtype:8} {what:12} {seconds:8.3} s {:8.2} GB/s", gigabytes / seconds);
        };
        let begin = Instant::now();
        write_random_checkpoint(dir.path(), &weights, dtype, 1, u64::MAX)
            .expect("it can be written");
        report("random", begin);
        let begin = Instant::now();
        let checkpoint = Checkpoint::open(dir.path()).expect("it was just written");
        black_box(checkpoint.fingerprint().expect("it can be read"));
        report("fingerprint", begin);
        for what in ["scan (cold)", "scan"] {
            let begin = Instant::now();
            for (name, _) in &weights {
                black_box(checkpoint.scan_nonfinite(name).expect("it can be read"));
            }
            report(what, begin);
        }
        let mut values = vec![0.0; rows * 1024];
        let mut back = vec![0; values.len() * dtype.size()];
        let begin = Instant::now();
        for (name, _) in &weights {
            let bytes = checkpoint.bytes(name).expect("it can be read");
            numbers::to_f32(dtype, bytes, &mut values).expect("a float");
        }
        report("to f32", begin);
        let begin = Instant::now();
        for _ in &weights {
            numbers::from_f32(dtype, &values, &mut back).expect("a float");
        }
        report("from f32", begin);
    }
}
