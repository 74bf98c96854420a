//! Starts to write the pages of an output file to the disk, before the file is synced.
//!
//! The sync then waits for less ([decision 85](../../../../docs/decisions/0085-sources-copied-and-written-early.md)).
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "a system call that no crate wraps"))]

use std::fs::File;

/// Size of a page. Pages that another range shares are left to the sync.
const PAGE: u64 = 4096;

/// Asks the system to write a range of a file to the disk, and does not wait for the end.
///
/// The sync at the end then waits for the last pages alone, and the disk works while values are encoded. An
/// error is no error of the output: the sync reports what was not written.
pub fn start_writeback(file: &File, from: u64, len: u64) {
    let end = from.saturating_add(len) / PAGE * PAGE;
    let Some(begin) = from.checked_next_multiple_of(PAGE).filter(|begin| *begin < end) else {
        return;
    };
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd as _;
        let (Ok(begin), Ok(len)) = (i64::try_from(begin), i64::try_from(end - begin)) else {
            return;
        };
        // SAFETY: the file is open during the call, which reads and writes no memory of the process.
        unsafe {
            libc::sync_file_range(file.as_raw_fd(), begin, len, libc::SYNC_FILE_RANGE_WRITE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, begin);
}

/// Reserves the space of a file, so that a full disk is found before hours of work, and so that later
/// writes need not find places for their pages.
///
/// File systems that cannot reserve space are no error. One in memory would clear every page here, on one thread, and
/// take the memory at once; its pages come with the writes.
pub fn reserve(file: &File, len: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if !rustix::fs::fstatfs(file).is_ok_and(|stats| stats.f_type == libc::TMPFS_MAGIC)
        && let Err(error) = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len)
        && matches!(error, rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)
    {
        return Err(error.into());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, len);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_any_place_and_length_change_no_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = crate::output::create(&path).unwrap();
        reserve(file.file(), 10_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10_000);
        std::io::Write::write_all(&mut file, &[7; 10_000]).unwrap();
        for (from, len) in
            [(0, 10_000), (1, 1), (4095, 2), (9_999, 1), (u64::MAX - 5, 9), (0, u64::MAX)]
        {
            start_writeback(file.file(), from, len);
        }
        assert_eq!(fs_err::read(&path).unwrap(), [7; 10_000]);
        reserve(file.file(), 10_000).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), [7; 10_000]);
    }
}
