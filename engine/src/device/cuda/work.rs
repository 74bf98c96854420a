//! Work that is recorded, and given to the driver in segments.

use std::ffi::CString;

use cudarc::driver::{DriverError, result, sys};

use super::cublas::Cublas;
use super::driver;
use super::graph::KnownSegments;
use super::memory::MemoryPool;
use super::pinned::PinnedHalves;
use super::segment::{LoadedKernel, Segment};
use crate::DeviceError;
use crate::device::product::{DeviceProduct, WORKSPACE};
use crate::device::source::{KernelSources, PREFIX};

/// Length of the first segment after a wait. The next ones are twice as long each: the device begins soon, and has work
/// while the next segment is recorded.
const FIRST: usize = 16;

/// Segments after a wait that are twice as long as the one before: the last is of 256 launches.
const DOUBLINGS: usize = 4;

/// The stream of a device, with the work and the memory on it.
#[derive(Debug)]
pub(super) struct CudaWork {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    module: sys::CUmodule,
    /// Sorted by name.
    kernels: Vec<LoadedKernel>,
    /// None before it is allocated.
    pub(super) pinned: Option<PinnedHalves>,
    /// Small ranges in shared regions, and large ones.
    pub(super) pools: [MemoryPool; 2],
    segment: Segment,
    known: KnownSegments,
    /// True if the driver has the calls of graphs.
    has_graphs: bool,
    /// Segments since the last wait.
    place: usize,
    /// The library of matrix products; none before it is opened.
    products: Option<Cublas>,
}

// SAFETY: handles of the driver can be used by any thread that has made the context current, which every call does.
unsafe impl Send for CudaWork {}

impl CudaWork {
    /// Opens a stream of a device, and loads the kernels, which are text that ends with a zero.
    pub(super) fn open(
        device: sys::CUdevice,
        code: &[u8],
        has_graphs: bool,
    ) -> Result<Self, DeviceError> {
        // SAFETY: the device is one of the driver.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|error| {
            let remedy = if error.0 == sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE {
                "; another process has the GPU to itself: `nvidia-smi` shows it"
            } else {
                ""
            };
            DeviceError(format!("{}{remedy}", driver(error).0))
        })?;
        let mut opened = Self {
            device,
            context,
            stream: std::ptr::null_mut(),
            module: std::ptr::null_mut(),
            kernels: Vec::new(),
            pinned: None,
            pools: Default::default(),
            segment: Segment::default(),
            known: KnownSegments::default(),
            has_graphs,
            place: 0,
            products: None,
        };
        opened.enter()?;
        opened.pinned = Some(PinnedHalves::new().map_err(driver)?);
        opened.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(driver)?;
        // SAFETY: the caller's image.
        opened.module =
            unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(driver)?;
        for name in KernelSources::builtin().names() {
            let symbol = CString::new(format!("{PREFIX}{name}"))
                .map_err(|_| DeviceError(format!("`{name}` is no name")))?;
            // SAFETY: the module is loaded, and unloaded when this is dropped.
            let function =
                unsafe { result::module::get_function(opened.module, symbol) }.map_err(driver)?;
            opened.kernels.push(LoadedKernel { name: name.to_owned(), function });
        }
        opened.kernels.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(opened)
    }

    /// Makes the context that of this thread.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until this is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(driver)
    }

    /// Records the launch of a kernel.
    ///
    /// # Safety
    /// The words are arguments of the kernel, and the kernel touches allocated memory only with them.
    pub(super) unsafe fn record(
        &mut self,
        kernel: &str,
        blocks: u32,
        words: &[u64],
    ) -> Result<(), DeviceError> {
        let position = self.kernels.binary_search_by(|loaded| loaded.name.as_str().cmp(kernel));
        let number = position.map_err(|_| DeviceError(format!("no kernel `{kernel}`")))?;
        self.segment.push(number as u16, blocks, words);
        if self.segment.len() < FIRST << self.place.min(DOUBLINGS) {
            return Ok(());
        }
        self.flush()
    }

    /// Gives all recorded work to the driver, and makes the context that of this thread.
    pub(super) fn flush(&mut self) -> Result<(), DeviceError> {
        self.enter()?;
        if self.segment.len() == 0 {
            return Ok(());
        }
        let mut segment = std::mem::take(&mut self.segment);
        let place = self.place;
        let kernels = &self.kernels;
        let stream = self.stream;
        self.place += 1;
        // SAFETY: the promise of `record`. Ranges that were released since are still in their regions.
        let launched =
            self.has_graphs && unsafe { self.known.launch(place, &mut segment, kernels, stream) };
        let count = if launched { 0 } else { segment.len() };
        let outcome = (0..count).try_for_each(|n| {
            // SAFETY: as above.
            unsafe { segment.launch(kernels, n, stream) }.map_err(|error| {
                let name = &segment.kernel(kernels, n).name;
                DeviceError(format!("kernel `{name}`: {}", driver(error).0))
            })
        });
        segment.clear();
        self.segment = segment;
        outcome
    }

    /// Multiplies matrices by the library, after all recorded work.
    ///
    /// # Safety
    /// All numbers of the matrices are allocated, and those of `y` are apart from the others.
    pub(super) unsafe fn multiply(&mut self, product: &DeviceProduct) -> Result<(), DeviceError> {
        self.flush()?;
        let mut products = match self.products.take() {
            Some(products) => products,
            None => self.open_products()?,
        };
        // SAFETY: the caller's promise; `flush` made the context that of this thread.
        let outcome = unsafe { products.multiply(product, self.stream.cast()) };
        self.products = Some(products);
        outcome
    }

    fn open_products(&mut self) -> Result<Cublas, DeviceError> {
        let workspace = self.allocate(WORKSPACE)?;
        let opened = Cublas::open(workspace);
        if opened.is_err() {
            self.release(workspace);
        }
        opened
    }

    /// Waits until all work is done.
    pub(super) fn wait(&mut self) -> Result<(), DeviceError> {
        self.flush()?;
        // SAFETY: the stream is open.
        unsafe { result::stream::synchronize(self.stream) }.map_err(driver)?;
        self.place = 0;
        if let Some(pinned) = &mut self.pinned {
            // SAFETY: nothing reads it since the wait.
            unsafe { pinned.rewind() };
        }
        Ok(())
    }
}

impl Drop for CudaWork {
    fn drop(&mut self) {
        // All buffers hold the device, so all other memory is free by now.
        if let Some(products) = self.products.take() {
            let workspace = products.workspace();
            // A device that is lost has nothing to wait for.
            self.wait().unwrap_or_default();
            drop(products);
            self.release(workspace);
        }
        if self.give_back().is_err() && self.enter().is_err() {
            return;
        }
        // SAFETY: the handles are of this device, are used by nobody else, and are given back once.
        unsafe {
            if !self.stream.is_null() {
                let _: Result<(), DriverError> = result::stream::synchronize(self.stream);
                let _: Result<(), DriverError> = result::stream::destroy(self.stream);
            }
            if let Some(pinned) = self.pinned.take() {
                pinned.release();
            }
            self.known.clear();
            if !self.module.is_null() {
                let _: Result<(), DriverError> = result::module::unload(self.module);
            }
            let _: Result<(), DriverError> = result::primary_ctx::release(self.device);
        }
    }
}
