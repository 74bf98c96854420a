//! CUDA by the driver API. The driver and NVRTC are loaded when an engine is opened, so a program starts without
//! them.
//!
//! Work is recorded, and given to the driver in segments; segments that repeat are graphs of the driver.
#![expect(unsafe_code, reason = "calls of the driver")]

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::{DriverError, result, sys};

use super::ComputeDevice;
use super::product::DeviceProduct;
use crate::DeviceError;

mod allocation;
mod compiler;
mod copies;
mod cublas;
mod graph;
mod memory;
mod pinned;
mod segment;
mod work;

pub use compiler::keep_compiled_in;
use cublas::Cublas;
use work::CudaWork;

/// The least compute capability: 16-bit numbers and grids as the kernels use them are older, but only these are
/// compiled in tests.
const LEAST: (i32, i32) = (8, 0);

/// The first version of the driver with pools of memory.
const OLDEST: i32 = 11_020;

/// The first version of the driver with the calls of graphs that are used.
const GRAPHS: i32 = 12_000;

/// A GPU with the kernels of this program.
#[derive(Debug)]
pub struct CudaDevice {
    name: String,
    work: Mutex<CudaWork>,
}

fn driver(error: DriverError) -> DeviceError {
    let message = text_of(error.error_string());
    DeviceError(format!("CUDA: {message} ({})", text_of(error.error_name())))
}

/// Returns a text of the driver; empty if it has none.
fn text_of(text: Result<&CStr, DriverError>) -> String {
    text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
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
        let mut newest = 0;
        // SAFETY: writes one number; the call needs no initialization.
        unsafe { sys::cuDriverGetVersion(&raw mut newest) }.result().map_err(driver)?;
        if newest < OLDEST {
            return Err(DeviceError(format!(
                "the driver runs CUDA {}, expected at least {}; install a newer driver, or run on the CPU",
                compiler::version(newest),
                compiler::version(OLDEST)
            )));
        }
        let count = match result::init() {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
            started => started.and_then(|()| result::device::get_count()).map_err(driver)?,
        };
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
        let code = compiler::compiled(capability, newest)?;
        let work = CudaWork::open(device, &code, newest >= GRAPHS)?;
        Ok(Self { name, work: Mutex::new(work) })
    }

    fn work(&self) -> MutexGuard<'_, CudaWork> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: kernels are those of `source`, and all work goes to one stream, in the order in which it is recorded.
unsafe impl ComputeDevice for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        self.work().free_bytes()
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError> {
        self.work().allocate(bytes)
    }

    unsafe fn release(&self, at: u64) {
        self.work().release(at);
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.work().upload(to, from) }
    }

    unsafe fn download(&self, from: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.work().download(from, into) }
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.work().copy(to, from, bytes) }
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.work().fill(to, byte, bytes) }
    }

    unsafe fn launch(&self, kernel: &str, blocks: u32, words: &[u64]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.work().record(kernel, blocks, words) }
    }

    fn open_products(&self) -> Result<(), DeviceError> {
        Cublas::check()
    }

    unsafe fn multiply(&self, product: &DeviceProduct) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.work().multiply(product) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
