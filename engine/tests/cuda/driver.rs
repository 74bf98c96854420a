//! The calls of the driver, with a driver and a compiler of kernels that need no GPU (`driver.cpp`).
//!
//! They are libraries that the system's loader has to find, so each trial is a process of its own.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use libtest_mimic::Trial;
use onboard_engine::device::DeviceQueue;
use onboard_engine::device::cuda::CudaDevice;
use onboard_engine::{
    Chunk, Engine, ModelSource, NativeEngine, NoProbe, OutputRows, Session, SessionOptions,
};
use registry::dtype::Dtype;

use crate::{emulation, library, sessions, trials};

/// The variable that has what a process of a trial does.
pub(crate) const CHILD: &str = "ONBOARD_TEST_CHILD";

pub(crate) fn trials() -> Vec<Trial> {
    let names = ["lfm2", "gemma3_text", "qwen3_moe", "falcon_h1", "deepseek_v3"];
    let mut trials = trials::each("driver::sessions", names.map(str::to_owned), sessions_agree);
    let names = ["lfm2", "qwen2", "gpt_oss", "deepseek_v3"];
    trials.extend(trials::each("driver::library", names.map(str::to_owned), products_agree));
    trials.push(trials::one("driver::copies", copies_arrive_in_order));
    trials.push(trials::one("driver::refusals", machines_that_lack_something_are_refused));
    trials.push(trials::one("driver::memory", memory_that_runs_out_is_an_error));
    trials.push(trials::one("driver::lost", a_lost_device_is_an_error_of_the_step));
    trials
}

/// Returns a folder with the libraries.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/driver.cpp");
        let driver = folder.path().join("libcuda.so");
        emulation::compile(&text, &[], &driver);
        fs_err::copy(&driver, folder.path().join("libnvrtc.so")).unwrap();
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/library.cpp");
        emulation::compile(&text, &[], &folder.path().join("libcublasLt.so"));
        folder
    });
    folder.path()
}

/// Runs a process with a driver of these settings, and returns what it printed.
fn run(what: &str, settings: &str) -> String {
    let done = Command::new(std::env::current_exe().unwrap())
        .env(CHILD, what)
        .env("LD_LIBRARY_PATH", libraries())
        .env("ONBOARD_TEST_DRIVER", settings)
        .env("ONBOARD_TEST_KERNELS", emulation::kernels())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{what} with `{settings}`: {printed}{errors}");
    printed
}

/// Does what a trial asks for, in a process of its own.
pub(crate) fn child(what: &str) {
    let (verb, name) = what.split_once(' ').unwrap_or((what, ""));
    let device = CudaDevice::open().map(|device| DeviceQueue::new(Box::new(device)));
    let queue = match device {
        Ok(queue) => queue,
        Err(error) => return print(&error.to_string()),
    };
    match verb {
        "sessions" => {
            let model = Arc::new(sessions::model(name));
            let dir = sessions::fixture(name);
            let source = ModelSource { model, dir: &dir };
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let (mut host, mut device) = (
                    open(&NativeEngine::new(), &source, dtype).unwrap(),
                    open(&NativeEngine::on(queue.clone()), &source, dtype).unwrap(),
                );
                sessions::compare_opened(dtype.name(), &mut *host, &mut *device);
            }
            print("equal");
        }
        "library" => {
            let model = Arc::new(sessions::model(name));
            let dir = sessions::fixture(name);
            let source = ModelSource { model, dir: &dir };
            let open = |engine: NativeEngine, options: &SessionOptions| {
                engine.open(&source, options).unwrap()
            };
            // Noise of another order of additions: three times the largest that was measured.
            for (dtype, share) in [(Dtype::F32, 1e-5), (Dtype::F16, 1e-2), (Dtype::Bf16, 5e-2)] {
                let options = library::plain(dtype);
                let device = library::of_library(&options, &open, queue.clone());
                sessions::near(&library::of_cpu(&options, &open), &device, share);
            }
            print("near");
        }
        "copies" => copy_much(&queue),
        "steps" => {
            let dir = sessions::fixture("lfm2");
            let model = Arc::new(sessions::model("lfm2"));
            let source = ModelSource { model, dir: &dir };
            match open(&NativeEngine::on(queue), &source, Dtype::F32) {
                Ok(mut session) => steps(&mut *session),
                Err(error) => print(&error.to_string()),
            }
        }
        _ => unreachable!("no trial asks for `{what}`"),
    }
}

#[expect(clippy::print_stdout, reason = "the answer of a process")]
fn print(line: &str) {
    println!("{line}");
}

fn open(
    engine: &NativeEngine,
    source: &ModelSource<'_>,
    dtype: Dtype,
) -> Result<Box<dyn Session>, onboard_engine::Error> {
    let options = SessionOptions {
        dtype,
        poison: true,
        finite: false,
        threads: Some(1),
        ..Default::default()
    };
    engine.open(source, &options)
}

/// Steps until one fails, and once more after that.
fn steps(session: &mut dyn Session) {
    let slot = session.open_slot();
    let mut failed = 0;
    for token in 0..60 {
        let chunk = Chunk { slot, tokens: &[token % 50], rows: OutputRows::Last };
        match session.step(&[chunk], &mut NoProbe) {
            Ok(_) => print("step"),
            Err(error) => {
                print(&format!("failed: {error}"));
                failed += 1;
            }
        }
        if failed == 2 {
            return;
        }
    }
}

/// Copies more than the memory that copies go through, in large and small pieces.
fn copy_much(queue: &DeviceQueue) {
    let large: Vec<u8> =
        (0..40_000_003_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let all = queue.upload(&large).unwrap();
    let pieces: Vec<_> = large.chunks(30_011).map(|piece| queue.upload(piece).unwrap()).collect();
    for (piece, want) in pieces.iter().zip(large.chunks(30_011)) {
        assert!(piece.read(0, piece.bytes()).unwrap() == want);
    }
    assert!(all.read(0, large.len()).unwrap() == large);
    let copy = all.duplicate().unwrap();
    drop(all);
    copy.write(7, &[1, 2, 3]).unwrap();
    assert_eq!(copy.read(6, 5).unwrap(), [large[6], 1, 2, 3, large[10]]);
    print("equal");
}

fn sessions_agree(name: &str) {
    assert_eq!(run(&format!("sessions {name}"), ""), "equal\n");
}

/// The calls of cuBLASLt.
fn products_agree(name: &str) {
    assert_eq!(run(&format!("library {name}"), ""), "near\n");
}

fn copies_arrive_in_order() {
    assert_eq!(run("copies", ""), "equal\n");
}

fn machines_that_lack_something_are_refused() {
    for (settings, parts) in [
        ("devices=0", ["0 CUDA devices", "nvidia-smi"]),
        ("devices=2", ["2 CUDA devices", "CUDA_VISIBLE_DEVICES=0"]),
        ("major=7,minor=5", ["compute capability 7.5", "at least 8.0"]),
        ("pools=0", ["no memory pools", "newer driver"]),
        ("version=12040", ["NVRTC is of CUDA 13.0", "CUDA 12.4 at most"]),
        ("memory=1000", ["0 MiB free", "run on the CPU"]),
    ] {
        let found = run("steps", settings);
        assert!(parts.iter().all(|part| found.contains(part)), "{settings}: {found}");
        assert!(!found.contains("step\n"), "{settings}: {found}");
    }
}

/// Another process takes memory between the check and the first steps.
fn memory_that_runs_out_is_an_error() {
    let found = run("steps", "fails=400");
    assert!(found.starts_with("step\n") && found.contains("out of memory"), "{found}");
}

fn a_lost_device_is_an_error_of_the_step() {
    let found = run("steps", "lost=300");
    let failed: Vec<&str> = found.lines().filter(|line| line.starts_with("failed")).collect();
    assert!(found.starts_with("step\n"), "{found}");
    assert_eq!(failed.len(), 2, "{found}");
    assert!(failed.iter().all(|line| line.contains("illegal memory access")), "{found}");
}
