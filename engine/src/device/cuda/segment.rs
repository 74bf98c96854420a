//! Recorded launches of kernels.

use std::ffi::c_void;
use std::ops::Range;

use cudarc::driver::{DriverError, result, sys};

use crate::device::source;

/// A kernel that the driver has loaded.
#[derive(Debug)]
pub(super) struct LoadedKernel {
    pub(super) name: String,
    pub(super) function: sys::CUfunction,
}

/// Launches in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Segment {
    /// Places of the kernels in the list of loaded ones.
    pub(super) kernels: Vec<u16>,
    /// The grid of each launch, and its arguments as a range of the words.
    calls: Vec<(u32, Range<usize>)>,
    words: Vec<u64>,
}

impl Segment {
    pub(super) fn push(&mut self, kernel: u16, blocks: u32, words: &[u64]) {
        let start = self.words.len();
        self.words.extend(words);
        self.kernels.push(kernel);
        self.calls.push((blocks, start..self.words.len()));
    }

    pub(super) fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Forgets the launches, and keeps the memory of the lists.
    pub(super) fn clear(&mut self) {
        self.kernels.clear();
        self.calls.clear();
        self.words.clear();
    }

    fn call(&self, n: usize) -> (u32, &[u64]) {
        let (blocks, words) = &self.calls[n];
        (*blocks, &self.words[words.clone()])
    }

    /// True if a launch has the grid and the arguments that it has in a segment of the same kernels.
    pub(super) fn has_same_call(&self, other: &Self, n: usize) -> bool {
        self.call(n) == other.call(n)
    }

    /// Returns the kernel of a launch.
    pub(super) fn kernel<'a>(&self, kernels: &'a [LoadedKernel], n: usize) -> &'a LoadedKernel {
        &kernels[usize::from(self.kernels[n])]
    }

    /// Returns the addresses of the arguments of a launch, as the driver takes them; it writes none of them.
    fn arguments(&self, n: usize) -> Vec<*mut c_void> {
        let (_, words) = self.call(n);
        words.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect()
    }

    /// Calls a function with the node of a graph for a launch.
    pub(super) fn with_node<T>(
        &self,
        kernels: &[LoadedKernel],
        n: usize,
        call: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> T,
    ) -> T {
        let mut arguments = self.arguments(n);
        call(&sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.kernel(kernels, n).function,
            gridDimX: self.call(n).0,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: source::THREADS as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        })
    }

    /// Gives a launch to the driver.
    ///
    /// # Safety
    /// The arguments are those of the kernel, which touches allocated memory only with them. The context is that of
    /// this thread.
    pub(super) unsafe fn launch(
        &self,
        kernels: &[LoadedKernel],
        n: usize,
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let grid = (self.call(n).0, 1, 1);
        let block = (source::THREADS as u32, 1, 1);
        let function = self.kernel(kernels, n).function;
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        unsafe { result::launch_kernel(function, grid, block, 0, stream, &mut self.arguments(n)) }
    }
}
