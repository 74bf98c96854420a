//! Memory that is kept for the next request: regions of the driver, cut into ranges.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes to which sizes are rounded at least, which keeps ranges aligned.
const LEAST_STEP: u64 = 512;

/// Bytes to which sizes are rounded at most.
const MOST_STEP: u64 = 64 << 10;

/// Returns the size of the range for a request: up to an eighth more, so that sizes which grow slowly stay the same for
/// many steps.
pub(super) fn rounded(bytes: usize) -> u64 {
    let bytes = bytes as u64;
    let step = (bytes / 8).next_power_of_two().clamp(LEAST_STEP, MOST_STEP);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// Regions of memory with their taken and free ranges.
///
/// Equal requests in equal order get equal addresses, if all that was taken between them was released.
#[derive(Debug, Default)]
pub(super) struct MemoryPool {
    /// Sizes of regions by address.
    regions: BTreeMap<u64, u64>,
    /// Sizes of taken ranges by address.
    taken: BTreeMap<u64, u64>,
    /// Sizes of free ranges by address. Neighbours of one region are one range.
    free: BTreeMap<u64, u64>,
    /// Free ranges as sizes and addresses.
    by_size: BTreeSet<(u64, u64)>,
}

impl MemoryPool {
    /// Adds a region, which is free.
    pub(super) fn add(&mut self, at: u64, bytes: u64) {
        self.regions.insert(at, bytes);
        self.insert_free(at, bytes);
    }

    /// Takes a range of the smallest free one that has room; of equal ones, the first.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(size, at) = self.by_size.range((bytes, 0)..).next()?;
        self.remove_free(at, size);
        if size > bytes {
            self.insert_free(at + bytes, size - bytes);
        }
        self.taken.insert(at, bytes);
        Some(at)
    }

    /// Makes a taken range free. False if the address is of no such range.
    pub(super) fn release(&mut self, mut at: u64) -> bool {
        let Some(mut bytes) = self.taken.remove(&at) else { return false };
        let before = self.free.range(..at).next_back().map(|(at, bytes)| (*at, *bytes));
        if let Some((start, size)) = before
            && start + size == at
            && !self.regions.contains_key(&at)
        {
            self.remove_free(start, size);
            (at, bytes) = (start, size + bytes);
        }
        let end = at + bytes;
        if let Some(&size) = self.free.get(&end)
            && !self.regions.contains_key(&end)
        {
            self.remove_free(end, size);
            bytes += size;
        }
        self.insert_free(at, bytes);
        true
    }

    /// Removes the regions of which nothing is taken, and returns their addresses.
    pub(super) fn remove_free_regions(&mut self) -> Vec<u64> {
        let unused: Vec<(u64, u64)> = self
            .regions
            .iter()
            .filter(|(at, bytes): &(&u64, &u64)| self.free.get(at) == Some(bytes))
            .map(|(at, bytes)| (*at, *bytes))
            .collect();
        for (at, bytes) in &unused {
            self.regions.remove(at);
            self.remove_free(*at, *bytes);
        }
        unused.into_iter().map(|(at, _)| at).collect()
    }

    /// Returns the bytes of free ranges.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// True if nothing is taken.
    pub(super) fn is_unused(&self) -> bool {
        self.taken.is_empty()
    }

    fn insert_free(&mut self, at: u64, bytes: u64) {
        self.free.insert(at, bytes);
        self.by_size.insert((bytes, at));
    }

    fn remove_free(&mut self, at: u64, bytes: u64) {
        self.free.remove(&at);
        self.by_size.remove(&(bytes, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_an_eighth_at_most() {
        for (bytes, want) in [
            (1, 512),
            (512, 512),
            (513, 1024),
            (8192, 8192),
            (8193, 9216),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, (1 << 20) + (64 << 10)),
            ((100 << 20) - 1, 100 << 20),
            (usize::MAX, u64::MAX),
        ] {
            assert_eq!(rounded(bytes), want, "{bytes}");
        }
    }

    #[test]
    fn neighbours_of_one_region_become_one_range() {
        let mut pool = MemoryPool::default();
        assert_eq!(pool.take(1), None);
        pool.add(1000, 100);
        pool.add(1100, 100); // a region of its own, though it begins where the first one ends
        let taken = [40, 60, 100].map(|bytes| pool.take(bytes).unwrap());
        assert_eq!((taken, pool.take(1)), ([1000, 1040, 1100], None));
        assert!(pool.release(1000) && !pool.release(1000) && !pool.release(1001));
        assert_eq!((pool.take(41), pool.free_bytes()), (None, 40));
        assert!(pool.release(1100) && pool.release(1040));
        assert_eq!((pool.take(101), pool.free_bytes()), (None, 200));
        assert_eq!((pool.take(100), pool.take(100)), (Some(1000), Some(1100)));
        assert!(pool.release(1100));
        assert_eq!(pool.remove_free_regions(), [1100]);
        assert!(!pool.is_unused() && pool.release(1000) && pool.is_unused());
        assert_eq!((pool.remove_free_regions(), pool.free_bytes()), (vec![1000], 0));
        assert_eq!(pool.take(1), None);
    }

    #[test]
    fn the_smallest_range_with_room_is_taken_and_equal_steps_get_equal_addresses() {
        let mut pool = MemoryPool::default();
        pool.add(0x1000, 0x1000);
        let addresses: Vec<u64> =
            [0x300, 0x100, 0x200].map(|bytes| pool.take(bytes).unwrap()).to_vec();
        assert!(pool.release(addresses[0]));
        // The hole of 0x300, not the rest of 0xa00.
        let first = step(&mut pool);
        assert_eq!(first, [0x1000, 0x1200, 0x1600, 0x1a00]);
        assert_eq!(step(&mut pool), first);
    }

    fn step(pool: &mut MemoryPool) -> [u64; 4] {
        let taken = [0x200, 0x100, 0x400, 0x100].map(|bytes| pool.take(bytes).unwrap());
        for at in taken {
            assert!(pool.release(at));
        }
        taken
    }
}
