//! The calls of the driver, with a driver and a compiler of kernels that need no GPU (`driver.cpp`).
//!
//! They are libraries that the system's loader has to find, so each trial is a process of its own.
#![expect(unsafe_code, reason = "asks the driver of tests for its counts")]

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use libloading::Library;
use libtest_mimic::Trial;
use onboard_engine::device::cuda::CudaDevice;
use onboard_engine::device::{self, DeviceQueue, KernelArgument};
use onboard_engine::{
    Chunk, Engine, ModelSource, NativeEngine, NoProbe, OutputRows, Session, SessionOptions, SlotId,
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
    trials.push(trials::one("driver::graphs", decode_steps_are_graphs));
    trials.push(trials::one("driver::no_graphs", drivers_that_refuse_graphs_give_equal_bits));
    trials.push(trials::one("driver::layers", layers_have_graphs_of_their_own));
    trials.push(trials::one("driver::many", graphs_that_are_not_used_are_forgotten));
    trials.push(trials::one("driver::kept", kept_memory_goes_back_when_memory_runs_out));
    trials.push(trials::one("driver::grows", requests_that_grow_keep_few_sizes));
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
                let mut host = open(&NativeEngine::new(), &source, dtype).unwrap();
                let mut device = open(&NativeEngine::on(queue.clone()), &source, dtype).unwrap();
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
        "kept" => use_kept_memory(queue),
        "grows" => {
            // Each is too small for the next one. Without a buffer in use, all memory would go back.
            let _used = queue.allocate(512).unwrap();
            (1..=48).for_each(|mib| drop(queue.allocate(mib << 20).unwrap()));
            print(&counts());
        }
        "many" => repeat_many(&queue),
        "layers" => repeat_layers(&queue),
        "decode" | "steps" | "full" | "taps" => {
            let dir = sessions::fixture("lfm2");
            let model = Arc::new(sessions::model("lfm2"));
            let source = ModelSource { model, dir: &dir };
            match open(&NativeEngine::on(queue.clone()), &source, Dtype::F32) {
                Ok(mut device) if verb == "decode" => {
                    let mut host = open(&NativeEngine::new(), &source, Dtype::F32).unwrap();
                    decode(&mut *host, &mut *device);
                }
                Ok(mut session) if verb == "taps" => {
                    let chunk =
                        Chunk { slot: session.open_slot(), tokens: &[3, 5], rows: OutputRows::All };
                    let taps = &mut sessions::Taps::default();
                    let failed = (0..20).find_map(|_| session.step(&[chunk], taps).err());
                    print(&failed.map_or_else(String::new, |error| format!("failed: {error}")));
                }
                Ok(mut session) => steps(&mut *session, &queue, verb == "full"),
                Err(error) => print(&error.to_string()),
            }
            drop(queue);
            print(&format!("at the end: {}", counts()));
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

/// Returns what the driver has counted.
fn counts() -> String {
    // SAFETY: the library is loaded already, and writes seven numbers.
    let counts = unsafe {
        let library = Library::new("libcuda.so").unwrap();
        let read = library.get::<unsafe extern "C" fn(*mut i64)>(b"driver_counts").unwrap();
        let mut counts = [0; 7];
        read(counts.as_mut_ptr());
        counts
    };
    let names = ["kernels", "launches", "graphs", "params", "used", "kept", "left"];
    let words = names.iter().zip(counts).map(|(name, count)| format!("{name} {count}"));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a number of a line of counts.
fn count(line: &str, of: &str) -> i64 {
    let mut words = line.split_whitespace().skip_while(|word| *word != of);
    words.nth(1).unwrap_or_else(|| panic!("no `{of}` in {line}")).parse().unwrap()
}

/// Decodes tokens on the CPU and on the device.
fn decode(host: &mut dyn Session, device: &mut dyn Session) {
    let slots = [host.open_slot(), device.open_slot()];
    for token in 0..60 {
        assert!(
            step_bits(host, slots[0], token) == step_bits(device, slots[1], token),
            "token {token}"
        );
        if token % 10 == 9 {
            print(&counts());
        }
    }
}

fn step_bits(session: &mut dyn Session, slot: SlotId, token: u32) -> Vec<u32> {
    let chunk = Chunk { slot, tokens: &[token % 50], rows: OutputRows::Last };
    let logits = session.step(&[chunk], &mut NoProbe).unwrap();
    logits[0].data.iter().map(|x| x.to_bits()).collect()
}

/// Steps until one fails, and once more after that. Takes all memory after the first step if it is to be full.
fn steps(session: &mut dyn Session, queue: &DeviceQueue, full: bool) {
    let slot = session.open_slot();
    let mut failed = 0;
    let mut taken = Vec::new();
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
        if full && taken.is_empty() {
            while let Ok(buffer) = queue.allocate(512) {
                taken.push(buffer);
            }
            print(&counts());
        }
    }
}

/// Repeats more sequences of kernels than are kept, the first one between the others.
fn repeat_many(queue: &DeviceQueue) {
    let x = queue.upload(&[1; 40]).unwrap();
    let y = queue.upload(&[2; 40]).unwrap();
    let mut want = [1, 2];
    for n in 0..300_u32 {
        for sequence in [n, 0, n, 0, n] {
            for step in 0..10 {
                let byte = (n * 7 + step) as u8;
                if sequence >> step & 1 == 1 {
                    x.fill(0, byte).unwrap();
                    want[0] = byte;
                } else {
                    y.copy_from(&x, 0, 40).unwrap();
                    want[1] = want[0];
                }
            }
            assert_eq!(y.read(0, 40).unwrap(), [want[1]; 40], "{sequence}");
        }
    }
    print(&counts());
}

/// Launches equal kernels for each of several layers, with arguments of its own, one argument of the step, and one grid of
/// the step.
fn repeat_layers(queue: &DeviceQueue) {
    let layers: Vec<_> = (0..12).map(|_| queue.allocate(4096).unwrap()).collect();
    let ones = [KernelArgument::Index(1), device::count(4096)];
    for step in 0..8_u8 {
        for layer in &layers {
            for byte in 0..128 {
                layer.fill(0, byte).unwrap();
            }
            layer.fill(4000, step).unwrap();
            // A block has 2048 bytes.
            let blocks = usize::from(1 + step % 2);
            queue.launch("fill_bytes", blocks, &[&[layer.into()], &ones[..]].concat()).unwrap();
        }
        for layer in &layers {
            let bytes = layer.read(0, 4096).unwrap();
            let (middle, end) = if step % 2 == 0 { (127, step) } else { (1, 1) };
            assert_eq!([0, 2047, 2048, 3999].map(|at| bytes[at]), [1, 1, middle, middle]);
            assert_eq!(bytes[4000..], [end; 96]);
        }
    }
    print(&counts());
}

/// Releases memory before the work that uses it is given to the driver, and takes memory that needs it back.
fn use_kept_memory(queue: DeviceQueue) {
    let bytes: Vec<u8> = (0..mib(3)).map(|n| (n % 251) as u8).collect();
    let small_buffer = queue.upload(&bytes[..mib(2)]).unwrap();
    let free = queue.free_bytes().unwrap();
    drop(queue.allocate(mib(40)).unwrap());
    // Nothing was given back: another request of the same size needs no call of the driver.
    let used = count(&counts(), "used");
    assert!(used >= 42 << 20, "{used}");
    assert_eq!(queue.free_bytes().unwrap(), free, "kept memory is free");
    let large = queue.allocate(mib(40)).unwrap();
    assert_eq!(count(&counts(), "used"), used);
    large.fill(0, 7).unwrap();
    small_buffer.copy_from(&large, mib(39), 1000).unwrap();
    drop(large);
    let larger = queue.allocate(mib(50)).unwrap();
    assert!(queue.allocate(mib(20)).is_err(), "64 MiB have no room for 72");
    larger.fill(0, 3).unwrap();
    larger.write(mib(47), &bytes).unwrap();
    assert!(larger.read(mib(47) - 1, mib(3) + 1).unwrap() == [&[3], &bytes[..]].concat());
    let bytes_read = small_buffer.read(0, mib(2)).unwrap();
    assert!(bytes_read[..1000] == [7; 1000] && bytes_read[1000..] == bytes[1000..mib(2)]);
    drop((small_buffer, larger));
    assert_eq!(count(&counts(), "used"), 0, "no buffer is left");
    drop(queue);
    print(&counts());
}

fn mib(n: usize) -> usize {
    n << 20
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
        ("version=11010,compiler=11", ["the driver runs CUDA 11.1", "at least 11.2"]),
        ("busy=1", ["CUDA_ERROR", "another process has the GPU"]),
        ("version=12040", ["NVRTC is of CUDA 13.0", "CUDA 12.4 at most"]),
        ("memory=1000", ["0 MiB free", "run on the CPU"]),
    ] {
        let output = run("steps", settings);
        assert!(parts.iter().all(|part| output.contains(part)), "{settings}: {output}");
        assert!(!output.contains("step\n"), "{settings}: {output}");
    }
}

/// Decode steps repeat, except for the arguments that follow from the position.
fn decode_steps_are_graphs() {
    let output = run("decode", "");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 7, "{output}");
    // Caches grow behind 32 tokens, and so all addresses change.
    let kernels = growth(&lines, "kernels");
    let launches = growth(&lines, "launches");
    assert!(launches == 0 && kernels > 20 * 100, "{output}");
    assert!(growth(&lines, "graphs") <= 20 * 4, "{output}");
    assert!(growth(&lines, "params") * 6 < kernels, "{output}");
}

fn growth(lines: &[&str], of: &str) -> i64 {
    count(lines[5], of) - count(lines[3], of)
}

fn layers_have_graphs_of_their_own() {
    let output = run("layers", "");
    // Two launches of each layer differ from those of the step before, which was a graph from the third step on.
    assert_eq!(count(&output, "params"), 5 * 12 * 2, "{output}");
}

/// Each call that makes or starts a graph may fail, and a driver may lack them all. A segment that failed is not tried again.
fn drivers_that_refuse_graphs_give_equal_bits() {
    let (plain, used, _) = final_counts("");
    for (settings, all) in [
        ("refuses=1", true),
        ("refuses=2", true),
        ("refuses=3", true),
        ("refuses=4", false),
        ("refuses=5", false),
        ("version=11080,compiler=11", true),
    ] {
        let (launches, graphs, kernels) = final_counts(settings);
        let sound = if all {
            (launches, graphs) == (kernels, 0)
        } else {
            launches > plain && graphs < used
        };
        assert!(
            sound,
            "{settings}: {launches} launches, {graphs} graphs, {kernels} kernels; {plain}, {used}"
        );
    }
}

fn final_counts(settings: &str) -> (i64, i64, i64) {
    let output = run("decode", settings);
    let end = output.lines().last().unwrap();
    assert!(end.starts_with("at the end"), "{settings}: {output}");
    (count(end, "launches"), count(end, "graphs"), count(end, "kernels"))
}

fn graphs_that_are_not_used_are_forgotten() {
    let output = run("many", "");
    // The first sequence comes 602 times after the first, which has two uploads before it, and the others three times.
    let graphs = 602 - 2 + 299;
    assert_eq!((count(&output, "kept"), count(&output, "graphs")), (256, graphs), "{output}");
}

fn kept_memory_goes_back_when_memory_runs_out() {
    let output = run("kept", "memory=67108864");
    assert_eq!((count(&output, "used"), count(&output, "left")), (0, 1), "{output}");
}

/// 48 requests that grow have 1176 MiB in all.
fn requests_that_grow_keep_few_sizes() {
    let used = count(&run("grows", ""), "used") >> 20;
    assert!((48..48 + 256 + 48).contains(&used), "{used} MiB");
}

/// Another process takes memory between the check and the first steps.
fn memory_that_runs_out_is_an_error() {
    let output = run("full", "memory=20000000");
    assert!(output.starts_with("step\n") && output.contains("out of memory"), "{output}");
    let full = output.lines().nth(1).unwrap();
    let end = output.lines().last().unwrap();
    assert!(count(full, "used") > 20_000_000 - 512, "{output}");
    assert_eq!((count(end, "used"), count(end, "left")), (0, 1), "{output}");
}

fn a_lost_device_is_an_error_of_the_step() {
    let shown = run("taps", "lost=300");
    assert!(shown.starts_with("failed") && shown.contains("illegal memory access"), "{shown}");
    let output = run("steps", "lost=3000");
    let failed: Vec<&str> = output.lines().filter(|line| line.starts_with("failed")).collect();
    assert!(output.starts_with("step\n"), "{output}");
    assert_eq!(failed.len(), 2, "{output}");
    assert!(failed.iter().all(|line| line.contains("illegal memory access")), "{output}");
    assert!(count(output.lines().last().unwrap(), "graphs") > 10, "{output}");
}
