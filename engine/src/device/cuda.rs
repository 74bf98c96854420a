//! CUDA by the driver API. The driver and NVRTC are loaded when an engine is opened, so a program starts without
//! them.
#![expect(unsafe_code, reason = "calls of the driver")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::{DriverError, result, sys};
use cudarc::nvrtc;
use registry::file;

use super::ComputeDevice;
use super::cublas::{self, Cublas};
use super::product::DeviceProduct;
use super::source::{self, KernelSources};
use crate::DeviceError;

/// The least compute capability: 16-bit numbers and grids as the kernels use them are older, but only these are
/// compiled in tests.
const LEAST: (i32, i32) = (8, 0);

/// Bytes of a half of the pinned memory.
const HALF: usize = 4 << 20;

/// Largest size of a compiled file.
const COMPILED: u64 = 64 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Keeps compiled kernels in a folder, from the first call on. Without it they are compiled at each start.
pub fn keep_compiled_in(folder: &Path) {
    FOLDER.get_or_init(|| folder.to_owned());
}

/// A GPU with the kernels of this program.
#[derive(Debug)]
pub struct CudaDevice {
    name: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    module: sys::CUmodule,
    functions: BTreeMap<String, sys::CUfunction>,
    /// None before it is allocated.
    pinned: Mutex<Option<PinnedHalves>>,
    /// The library of matrix products; none before it is opened.
    products: Mutex<Option<Cublas>>,
}

/// Pinned memory through which bytes go to the device, in two halves: the device reads one while the other is filled.
#[derive(Debug)]
struct PinnedHalves {
    memory: *mut u8,
    /// The half that is filled, and how far.
    half: usize,
    filled: usize,
    /// For each half, the moment when the device has read it.
    read: [sys::CUevent; 2],
}

impl PinnedHalves {
    /// Allocates the memory; the context is that of this thread.
    fn new() -> Result<Self, DriverError> {
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let read = [event()?, event()?];
        // SAFETY: the memory is given back in `release`.
        let memory = unsafe { result::malloc_host(2 * HALF, 0) }?.cast();
        Ok(Self { memory, half: 0, filled: 0, read })
    }

    /// Copies bytes to the device; they can be overwritten when it returns.
    ///
    /// # Safety
    /// The addresses `to..to + from.len()` are allocated, and the context is that of this thread.
    unsafe fn copy(
        &mut self,
        mut to: u64,
        mut from: &[u8],
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        while !from.is_empty() {
            if self.filled == HALF {
                // SAFETY: the events are of `new`. One that was never recorded is not waited for.
                unsafe {
                    result::event::record(self.read[self.half], stream)?;
                    (self.half, self.filled) = (1 - self.half, 0);
                    result::event::synchronize(self.read[self.half])?;
                }
            }
            let (piece, rest) = from.split_at(from.len().min(HALF - self.filled));
            // SAFETY: the place is in the memory of `new`, and the device has read what was there before: all of this
            // half was waited for. The device reads the piece before this half is filled again.
            unsafe {
                let place = self.memory.add(self.half * HALF + self.filled);
                std::ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len());
                let piece = std::slice::from_raw_parts(place, piece.len());
                result::memcpy_htod_async(to, piece, stream)?;
            }
            self.filled += piece.len();
            to += piece.len() as u64;
            from = rest;
        }
        Ok(())
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// The device reads the memory no more, and the context is that of this thread.
    unsafe fn release(self) {
        // SAFETY: the memory and the events are of `new`, and are given back once.
        unsafe {
            let _: Result<(), DriverError> = result::free_host(self.memory.cast());
            for event in self.read {
                let _: Result<(), DriverError> = result::event::destroy(event);
            }
        }
    }
}

// SAFETY: handles of the driver can be used by any thread that has made the context current, which every call does.
unsafe impl Send for CudaDevice {}
// SAFETY: as above; the driver orders concurrent calls.
unsafe impl Sync for CudaDevice {}

fn driver(error: DriverError) -> DeviceError {
    let text = |found: Result<&CStr, DriverError>| {
        found.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    };
    DeviceError(format!("CUDA: {} ({})", text(error.error_string()), text(error.error_name())))
}

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

impl CudaDevice {
    /// Opens the one visible GPU, and compiles the kernels for it.
    pub fn open() -> Result<Self, DeviceError> {
        // SAFETY: looks for the library alone.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError(
                "no CUDA driver (libcuda.so.1) was found; install the NVIDIA driver, or run on the CPU".to_owned(),
            ));
        }
        result::init().map_err(driver)?;
        let count = result::device::get_count().map_err(driver)?;
        if count != 1 {
            let remedy = if count == 0 {
                "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or run on the CPU"
            } else {
                "choose one: CUDA_VISIBLE_DEVICES=0"
            };
            return Err(DeviceError(format!(
                "{count} CUDA devices are visible, expected 1; {remedy}"
            )));
        }
        let device = result::device::get(0).map_err(driver)?;
        let name = result::device::get_name(device).map_err(driver)?;
        let attribute = |of| {
            // SAFETY: the device is of `get`.
            unsafe { result::device::get_attribute(device, of) }.map_err(driver)
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < LEAST {
            return Err(DeviceError(format!(
                "{name} has compute capability {}.{}, expected at least {}.{}; run on the CPU",
                capability.0, capability.1, LEAST.0, LEAST.1
            )));
        }
        if attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
            return Err(DeviceError(format!(
                "{name} has no memory pools with this driver; install a newer driver, or run on the CPU"
            )));
        }
        let mut newest = 0;
        // SAFETY: writes one number.
        unsafe { sys::cuDriverGetVersion(&raw mut newest) }.result().map_err(driver)?;
        let code = compiled(capability, newest)?;
        // SAFETY: the device is of `get`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(driver)?;
        let mut opened = Self {
            name,
            device,
            context,
            stream: std::ptr::null_mut(),
            module: std::ptr::null_mut(),
            functions: BTreeMap::new(),
            pinned: Mutex::default(),
            products: Mutex::default(),
        };
        opened.enter()?;
        opened.pinned = Mutex::new(Some(PinnedHalves::new().map_err(driver)?));
        opened.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(driver)?;
        // SAFETY: the image is text that ends with a zero.
        opened.module =
            unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(driver)?;
        for kernel in KernelSources::builtin().names() {
            let symbol = CString::new(format!("{}{kernel}", source::PREFIX))
                .map_err(|_| DeviceError(format!("`{kernel}` is no name")))?;
            // SAFETY: the module is loaded, and unloaded when the device is dropped.
            let function =
                unsafe { result::module::get_function(opened.module, symbol) }.map_err(driver)?;
            opened.functions.insert(kernel.to_owned(), function);
        }
        Ok(opened)
    }

    /// Makes the context that of this thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until the device is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(driver)
    }
}

// SAFETY: kernels are those of `source`, and all work goes to one stream.
unsafe impl ComputeDevice for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        self.enter()?;
        result::mem_get_info().map(|(free, _)| free as u64).map_err(driver)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.enter()?;
        // SAFETY: the stream is open, and all uses are on it.
        unsafe { result::malloc_async(self.stream, bytes) }.map_err(|error| {
            DeviceError(format!("{} for {} MiB", driver(error).0, bytes.div_ceil(1 << 20)))
        })
    }

    unsafe fn release(&self, at: u64) {
        if self.enter().is_ok() {
            // SAFETY: the caller's promise. A failure of the driver is reported by the next call.
            let _: Result<(), DriverError> = unsafe { result::free_async(at, self.stream) };
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.enter()?;
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pinned) = pinned.as_mut() else {
            return Err(DeviceError("the device is not open".to_owned()));
        };
        // SAFETY: the caller's promise, and the context was set above.
        unsafe { pinned.copy(to, from, self.stream) }.map_err(driver)
    }

    unsafe fn download(&self, from: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the caller's promise; `into` lives until the stream has written it.
        unsafe {
            result::memcpy_dtoh_async(into, from, self.stream).map_err(driver)?;
            result::stream::synchronize(self.stream).map_err(driver)
        }
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }.map_err(driver)
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(to, byte, bytes, self.stream) }.map_err(driver)
    }

    unsafe fn launch(&self, kernel: &str, blocks: u32, words: &[u64]) -> Result<(), DeviceError> {
        self.enter()?;
        let function = self.functions.get(kernel);
        let function = function.ok_or_else(|| DeviceError(format!("no kernel `{kernel}`")))?;
        let mut words = words.to_vec();
        let mut places: Vec<*mut c_void> =
            words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let threads = source::THREADS as u32;
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        unsafe {
            result::launch_kernel(
                *function,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                self.stream,
                &mut places,
            )
        }
        .map_err(|error| DeviceError(format!("kernel `{kernel}`: {}", driver(error).0)))
    }

    fn open_products(&self) -> Result<(), DeviceError> {
        Cublas::check()?;
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        if products.is_none() {
            let workspace = self.allocate(cublas::WORKSPACE)?;
            let opened = Cublas::open(workspace);
            if opened.is_err() {
                // SAFETY: the memory was allocated above, and is used by nobody.
                unsafe { self.release(workspace) };
            }
            *products = Some(opened?);
        }
        Ok(())
    }

    unsafe fn multiply(&self, product: &DeviceProduct) -> Result<(), DeviceError> {
        self.enter()?;
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(products) = products.as_mut() else {
            return Err(DeviceError("the library of matrix products is not open".to_owned()));
        };
        // SAFETY: the caller's promise, and the context was set above.
        unsafe { products.multiply(product, self.stream.cast()) }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        // SAFETY: the handles are of this device, are used by nobody else, and are given back once.
        unsafe {
            if !self.stream.is_null() {
                let _: Result<(), DriverError> = result::stream::synchronize(self.stream);
                let products =
                    self.products.get_mut().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(workspace) = products.map(|products| products.workspace()) {
                    self.release(workspace);
                }
                let _: Result<(), DriverError> = result::stream::destroy(self.stream);
            }
            let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(pinned) = pinned {
                pinned.release();
            }
            if !self.module.is_null() {
                let _: Result<(), DriverError> = result::module::unload(self.module);
            }
            let _: Result<(), DriverError> = result::primary_ctx::release(self.device);
        }
    }
}

/// Returns the kernels for a compute capability as PTX that ends with a zero: kept ones, or compiled now.
fn compiled(capability: (i32, i32), newest: i32) -> Result<Vec<u8>, DeviceError> {
    // SAFETY: looks for the library alone.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(DeviceError(format!(
            "NVRTC (libnvrtc.so) was not found; the driver runs CUDA {}: install the CUDA toolkit, or `pip install \
             nvidia-cuda-nvrtc` of that version and add its folder to LD_LIBRARY_PATH",
            version(newest)
        )));
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(|error| DeviceError(format!("NVRTC: {error}")))?;
    let compiler = major * 1000 + minor * 10;
    if compiler > newest {
        return Err(DeviceError(format!(
            "NVRTC is of CUDA {}, and the driver runs code of CUDA {} at most; update the driver, or install NVRTC \
             of that version",
            version(compiler),
            version(newest)
        )));
    }
    let text = source::text();
    let target = format!("--gpu-architecture=compute_{}{}", capability.0, capability.1);
    let options = source::OPTIONS.join(" ");
    let key = hash(&format!("{text}\n{target} {options} {compiler}"));
    let path = FOLDER.get().map(|folder| folder.join(format!("{key:016x}.ptx")));
    if let Some(code) = path.as_deref().and_then(kept) {
        return Ok(ended(code));
    }
    let options = [&[target.as_str()], &source::OPTIONS[..]].concat();
    let code = compile(&text, &options)?;
    if let Some(path) = path {
        // A folder that cannot be written costs time at the next start, and nothing else.
        keep(&path, &code).unwrap_or_default();
    }
    Ok(ended(code))
}

fn ended(code: String) -> Vec<u8> {
    let mut code = code.into_bytes();
    code.push(0);
    code
}

/// Compiles source text to PTX.
fn compile(text: &str, options: &[&str]) -> Result<String, DeviceError> {
    use nvrtc::result::{
        compile_program, create_program, destroy_program, get_program_log, get_ptx,
    };
    let failed = |error: nvrtc::result::NvrtcError| DeviceError(format!("NVRTC: {error}"));
    let words = |bytes: Vec<std::ffi::c_char>| -> String {
        let bytes: Vec<u8> = bytes.into_iter().map(|c| c as u8).take_while(|c| *c != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let text = CString::new(text).map_err(|_| DeviceError("the source has a zero".to_owned()))?;
    let program = create_program(&text, Some(c"onboard.cu")).map_err(failed)?;
    // SAFETY: the program was created above, and is destroyed once at the end.
    unsafe {
        let made = match compile_program(program, options) {
            Ok(()) => get_ptx(program).map(words).map_err(failed),
            Err(error) => {
                let log = get_program_log(program).map(words).unwrap_or_default();
                Err(DeviceError(format!("NVRTC: {error}: {log}")))
            }
        };
        destroy_program(program).map_err(failed)?;
        made
    }
}

/// FNV-1a, for names of kept files and to notice damaged ones.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads kept code; none if there is none, or it is damaged.
fn kept(path: &Path) -> Option<String> {
    let limit = file::FileLimit { kind: "compiled kernels", bytes: COMPILED };
    let text = file::read_text(path, limit).ok()?;
    let (first, code) = text.split_once('\n')?;
    (first == format!("// {:016x}", hash(code))).then(|| code.to_owned())
}

/// Writes code whole or not at all.
fn keep(path: &Path, code: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs_err::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    fs_err::write(&beside, format!("// {:016x}\n{code}", hash(code)))?;
    fs_err::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_code_comes_back_and_damaged_code_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.ptx");
        assert_eq!(kept(&path), None);
        keep(&path, "one\ntwo").unwrap();
        assert_eq!(kept(&path).as_deref(), Some("one\ntwo"));
        fs_err::write(&path, fs_err::read_to_string(&path).unwrap().replace("two", "tow")).unwrap();
        assert_eq!(kept(&path), None);
    }

    #[test]
    fn a_machine_without_a_driver_is_refused_with_the_remedy() {
        // SAFETY: looks for the library alone.
        if unsafe { sys::is_culib_present() } {
            return; // `.ci/gpu` tests such a machine
        }
        let why = CudaDevice::open().unwrap_err().to_string();
        assert!(why.contains("no CUDA driver") && why.contains("run on the CPU"), "{why}");
    }
}
