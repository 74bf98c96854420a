//! Memory of a device: kept when it is released, and given back to the driver when it runs out.

use cudarc::driver::{DriverError, result};

use super::driver;
use super::memory::{MemoryPool, rounded};
use super::work::CudaWork;
use crate::DeviceError;

/// Largest range that is cut from a shared region.
const SMALL: u64 = 1 << 20;

/// Bytes of large ranges that are kept when a larger one is asked for: requests that grow would keep every size.
const KEPT: u64 = 256 << 20;

/// Bytes of a shared region.
const REGION: u64 = 16 << 20;

impl CudaWork {
    /// Returns the bytes of free memory, kept memory included.
    pub(super) fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        self.wait()?; // what was given back is free from then on
        let (free, _) = result::mem_get_info().map_err(driver)?;
        Ok(free as u64 + self.pools.iter().map(MemoryPool::free_bytes).sum::<u64>())
    }

    /// Takes kept memory that is large enough, or new memory. Work is in one stream, so earlier work has done with what
    /// was released when later work begins.
    pub(super) fn allocate(&mut self, bytes: usize) -> Result<u64, DeviceError> {
        let size = rounded(bytes);
        let (pool, region) = if size <= SMALL { (0, REGION) } else { (1, size) };
        if let Some(at) = self.pools[pool].take(size) {
            return Ok(at);
        }
        self.enter()?;
        if pool == 1 && self.pools[1].free_bytes() > KEPT {
            self.give_back()?; // all that is kept is too small
        }
        if let Ok(at) = self.take_new(pool, region, size) {
            return Ok(at);
        }
        self.give_back()?;
        self.wait()?;
        // A region of one range needs the least memory; then there are rests of the other pool's regions.
        let range = self.take_new(pool, region, size);
        let range = range.or_else(|_| self.take_new(pool, size, size));
        range.or_else(|error| self.pools[1 - pool].take(size).ok_or(error)).map_err(|error| {
            DeviceError(format!("{} for {} MiB", driver(error).0, bytes.div_ceil(1 << 20)))
        })
    }

    /// Takes a range of a new region.
    fn take_new(&mut self, pool: usize, region: u64, size: u64) -> Result<u64, DriverError> {
        let bytes = usize::try_from(region).unwrap_or(usize::MAX);
        // SAFETY: the stream is open, and all uses are on it.
        let at = unsafe { result::malloc_async(self.stream, bytes) }?;
        self.pools[pool].add(at, region);
        Ok(self.pools[pool].take(size).expect("a region has room for its first range"))
    }

    /// Keeps memory for the next request. When none is in use, all goes back to the driver.
    pub(super) fn release(&mut self, at: u64) {
        let released = self.pools.iter_mut().any(|pool| pool.release(at));
        debug_assert!(released, "{at:#x} is not allocated");
        if self.pools.iter().all(MemoryPool::is_unused) {
            // A failure of the driver is reported by the next call.
            self.give_back().unwrap_or_default();
        }
    }

    /// Gives regions back to the driver of which nothing is in use.
    pub(super) fn give_back(&mut self) -> Result<(), DeviceError> {
        self.flush()?; // recorded work may use what was released after it
        let stream = self.stream;
        let mut all = Ok(());
        for at in self.pools.iter_mut().flat_map(MemoryPool::remove_free_regions) {
            // SAFETY: the region is of `take_new` and was removed. Work that uses it is on the stream.
            all = all.and(unsafe { result::free_async(at, stream) });
        }
        all.map_err(driver)
    }
}
