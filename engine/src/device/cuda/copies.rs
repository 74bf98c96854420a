//! Copies to a device, from it and within it.

use cudarc::driver::result;

use super::driver;
use super::pinned::PinnedHalves;
use super::work::CudaWork;
use crate::DeviceError;
use crate::device::source::THREADS;

/// Largest upload that a kernel reads from pinned memory.
const SMALL_UPLOAD: usize = 64 << 10;

/// Bytes of larger uploads that are copied at once.
const PIECE: usize = 1 << 20;

/// Blocks of `copy_bytes` and `fill_bytes`, whose threads have 16 bytes each.
fn blocks_of(bytes: usize) -> u32 {
    bytes.div_ceil(16 * THREADS) as u32 // a grid has room for 4 TiB
}

impl CudaWork {
    fn pinned(&mut self) -> Result<&mut PinnedHalves, DeviceError> {
        self.pinned.as_mut().ok_or_else(|| DeviceError("the device is not open".to_owned()))
    }

    /// Copies bytes to pinned memory, and returns their place there.
    fn stage(&mut self, from: &[u8]) -> Result<&[u8], DeviceError> {
        if !self.pinned()?.has_room(from.len()) {
            self.flush()?;
            let stream = self.stream;
            // SAFETY: all recorded work is on the stream, and the context is that of this thread.
            unsafe { self.pinned()?.turn(stream) }.map_err(driver)?;
        }
        Ok(self.pinned()?.put(from))
    }

    /// Copies to the device.
    ///
    /// # Safety
    /// The addresses `to..to + from.len()` are allocated.
    pub(super) unsafe fn upload(&mut self, to: u64, from: &[u8]) -> Result<(), DeviceError> {
        if from.len() <= SMALL_UPLOAD {
            // The device reads pinned memory at the address that it has on the host (unified addressing).
            let place = self.stage(from)?.as_ptr() as u64;
            // SAFETY: the caller's promise, and the place is not written before it was read.
            return unsafe { self.copy(to, place, from.len()) };
        }
        self.flush()?;
        let stream = self.stream;
        for (n, piece) in from.chunks(PIECE).enumerate() {
            let piece = self.stage(piece)?;
            // SAFETY: the caller's promise, and the place is not written before it was read.
            unsafe { result::memcpy_htod_async(to + (n * PIECE) as u64, piece, stream) }
                .map_err(driver)?;
        }
        Ok(())
    }

    /// Copies from the device, after all work before it.
    ///
    /// # Safety
    /// The addresses `from..from + into.len()` are allocated.
    pub(super) unsafe fn download(
        &mut self,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.flush()?;
        // SAFETY: the caller's promise; `into` lives until the stream has written it.
        unsafe { result::memcpy_dtoh_async(into, from, self.stream) }.map_err(driver)?;
        self.wait()
    }

    /// Copies between places that the device reads and writes.
    ///
    /// # Safety
    /// All addresses are allocated, or are of pinned memory that is not written before it was read.
    pub(super) unsafe fn copy(
        &mut self,
        to: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.record("copy_bytes", blocks_of(bytes), &[to, from, bytes as u64]) }
    }

    /// Fills memory with a byte.
    ///
    /// # Safety
    /// All addresses are allocated.
    pub(super) unsafe fn fill(
        &mut self,
        to: u64,
        byte: u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.record("fill_bytes", blocks_of(bytes), &[to, byte.into(), bytes as u64]) }
    }
}
