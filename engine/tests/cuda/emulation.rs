//! A device whose kernels run on the CPU: the same source text, compiled by the C++ compiler.
#![expect(unsafe_code, reason = "calls compiled kernels")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use half::{bf16, f16};
use libloading::Library;
use onboard_engine::DeviceError;
use onboard_engine::device::product::{DeviceProduct, MatrixPlace, ProductSizes};
use onboard_engine::device::{ComputeDevice, DeviceQueue, source};
use registry::dtype::Dtype;

/// A kernel: arguments, blocks, and the order of threads and blocks.
type Entry = unsafe extern "C" fn(*mut *mut c_void, u32, u32);

/// Device memory in the memory of this process.
pub(crate) struct Emulation {
    library: Arc<Library>,
    /// True to run blocks and threads from the last to the first.
    reversed: bool,
    /// Free bytes that the device reports.
    free: u64,
    memory: Mutex<BTreeMap<u64, Vec<u128>>>,
    /// True if the library of matrix products is open.
    opened: AtomicBool,
    calls: Calls,
}

/// Number of calls of each kind since they were taken last: launches by kernel, copies and allocations.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<BTreeMap<String, usize>>>);

impl Calls {
    fn add(&self, call: &str) {
        *self.0.lock().unwrap().entry(call.to_owned()).or_default() += 1;
    }

    pub(crate) fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Returns a device.
pub(crate) fn device(reversed: bool) -> DeviceQueue {
    with_memory(reversed, 1 << 40)
}

/// Returns a device that reports so much free memory.
pub(crate) fn with_memory(reversed: bool, free: u64) -> DeviceQueue {
    opened(reversed, free, Calls::default())
}

/// Returns a device, and the calls that it gets.
pub(crate) fn counted(reversed: bool) -> (DeviceQueue, Calls) {
    let calls = Calls::default();
    (opened(reversed, 1 << 40, calls.clone()), calls)
}

fn opened(reversed: bool, free: u64, calls: Calls) -> DeviceQueue {
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: the library was built from our source text, and has no code that runs when it is loaded.
        Arc::new(unsafe { Library::new(kernels()) }.unwrap())
    });
    let library = Arc::clone(library);
    let memory = Mutex::default();
    let opened = AtomicBool::new(false);
    DeviceQueue::new(Box::new(Emulation { library, reversed, free, memory, opened, calls }))
}

/// Returns the library of the kernels, compiled once.
pub(crate) fn kernels() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, file) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("kernels.cpp");
        fs_err::write(&text, source::text()).unwrap();
        let file = folder.path().join("kernels.so");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/kernels");
        compile(&text, &["-ffp-contract=off".as_ref(), "-I".as_ref(), include.as_ref()], &file);
        (folder, file)
    });
    file
}

/// Compiles a file to a shared library.
pub(crate) fn compile(text: &Path, options: &[&OsStr], file: &Path) {
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    command.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Werror"]).args(options);
    let done = command.arg(text).arg("-o").arg(file).arg("-ldl").output().unwrap_or_else(|error| {
        panic!("tests of devices need a C++17 compiler, `c++` or CXX: {error}; install g++ (apt-get install g++)")
    });
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Reads a number of an array.
///
/// # Safety
/// The number is allocated.
unsafe fn load(array: u64, dtype: Dtype, n: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::F32 => *(array as *const f32).add(n),
            Dtype::Bf16 => (*(array as *const bf16).add(n)).to_f32(),
            Dtype::F16 => (*(array as *const f16).add(n)).to_f32(),
        }
    }
}

/// Rounds a number and writes it into an array.
///
/// # Safety
/// The number is allocated.
unsafe fn store(array: u64, dtype: Dtype, n: usize, x: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::F32 => *(array as *mut f32).add(n) = x,
            Dtype::Bf16 => *(array as *mut bf16).add(n) = bf16::from_f32(x),
            Dtype::F16 => *(array as *mut f16).add(n) = f16::from_f32(x),
        }
    }
}

impl Emulation {
    /// Fails unless the addresses are of one allocation.
    fn check(&self, at: u64, bytes: usize) {
        let memory = self.memory.lock().unwrap();
        let (start, allocation) = memory.range(..=at).next_back().expect("an allocation");
        assert!(
            at - start + bytes as u64 <= allocation.len() as u64 * 16,
            "outside the allocation"
        );
    }
}

// SAFETY: memory is that of the map, which outlives its addresses, and copies are checked.
unsafe impl ComputeDevice for Emulation {
    fn name(&self) -> String {
        "emulated device".to_owned()
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.free)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.calls.add("allocate");
        // NaN, so that a read before a write is noticed.
        let mut memory = vec![u128::MAX; bytes.div_ceil(16)];
        let at = memory.as_mut_ptr() as u64;
        self.memory.lock().unwrap().insert(at, memory);
        Ok(at)
    }

    unsafe fn release(&self, at: u64) {
        assert!(self.memory.lock().unwrap().remove(&at).is_some(), "released twice");
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.calls.add("upload");
        self.check(to, from.len());
        // SAFETY: the range is inside an allocation.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.calls.add("download");
        self.check(from, into.len());
        // SAFETY: the range is inside an allocation.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DeviceError> {
        self.calls.add("copy");
        self.check(to, bytes);
        self.check(from, bytes);
        // SAFETY: the ranges are inside two allocations.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), DeviceError> {
        self.calls.add("fill");
        self.check(to, bytes);
        // SAFETY: the range is inside an allocation.
        unsafe { std::ptr::write_bytes(to as *mut u8, byte, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, kernel: &str, blocks: u32, words: &[u64]) -> Result<(), DeviceError> {
        self.calls.add(kernel);
        let name = format!("{}{kernel}", source::PREFIX);
        // SAFETY: `KERNEL` of `host_device.h` declares every kernel so.
        let entry = unsafe { self.library.get::<Entry>(name.as_bytes()) }.unwrap();
        let mut words = words.to_vec();
        let mut places: Vec<*mut c_void> =
            words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        // SAFETY: the queue has checked that there is an argument for each parameter, of its kind.
        unsafe { entry(places.as_mut_ptr(), blocks, self.reversed.into()) };
        Ok(())
    }

    fn open_products(&self) -> Result<(), DeviceError> {
        self.opened.store(true, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn multiply(&self, product: &DeviceProduct) -> Result<(), DeviceError> {
        assert!(self.opened.load(Ordering::Relaxed), "the library is open");
        self.calls.add("multiply");
        let ProductSizes { batch, rows, inputs, outputs, by_outputs, dtype, made, adds } =
            product.sizes;
        for (place, dtype, [rows, width]) in [
            (product.x, dtype, [rows, inputs]),
            (product.w, dtype, if by_outputs { [outputs, inputs] } else { [inputs, outputs] }),
            (product.y, made, [rows, outputs]),
        ] {
            let last = (batch - 1) * place.matrix + (rows - 1) * place.row + width;
            self.check(place.at, last * dtype.size());
        }
        // Two orders of additions, neither that of the exact kernels.
        for (b, r, o) in (0..batch)
            .flat_map(|b| (0..rows).flat_map(move |r| (0..outputs).map(move |o| (b, r, o))))
        {
            let y = number_at(product.y, b, r, o);
            // SAFETY: the places were checked above.
            unsafe {
                let mut sum = if adds { load(product.y.at, made, y) } else { 0.0 };
                for n in 0..inputs {
                    let k = if self.reversed { inputs - 1 - n } else { n };
                    let w = if by_outputs {
                        number_at(product.w, b, o, k)
                    } else {
                        number_at(product.w, b, k, o)
                    };
                    sum += load(product.x.at, dtype, number_at(product.x, b, r, k))
                        * load(product.w.at, dtype, w);
                }
                store(product.y.at, made, y, sum);
            }
        }
        Ok(())
    }
}

/// Index of a number of a batch of matrices.
fn number_at(place: MatrixPlace<u64>, matrix: usize, row: usize, column: usize) -> usize {
    matrix * place.matrix + row * place.row + column
}
