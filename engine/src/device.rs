//! Devices with memory of their own, and the order in which work is given to them.
//!
//! A [`ComputeDevice`] is the thin part that differs between devices: memory, copies, and the start of a kernel.
//! [`DeviceQueue`] and [`DeviceBuffer`] are what the engine uses. They check the arguments of every kernel
//! against its declaration in the source, and every copy against the size of the memory.
//!
//! A kernel adds in the order of its twin on the CPU ([decision 88](../../docs/decisions/0088-same-order-on-devices.md)).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use registry::dtype::Dtype;

use crate::{DeviceError, Error};

pub mod blocks;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod product;
pub mod source;

use product::DeviceProduct;
use source::{KernelSources, ParameterKind};

/// A device that runs the kernels of [`source`].
///
/// Work is done in the order in which it is given. An address is a number of the device's own; 0 is none.
///
/// # Safety
/// An implementation runs kernels as their source says, and touches no other memory.
#[expect(unsafe_code, reason = "kernels read and write the addresses that they are given")]
pub unsafe trait ComputeDevice: Send + Sync {
    /// Returns the name of the device, for people.
    fn name(&self) -> String;
    /// Returns the bytes of free memory.
    fn free_bytes(&self) -> Result<u64, DeviceError>;
    /// Allocates memory of arbitrary contents, aligned to 16 bytes.
    fn allocate(&self, bytes: usize) -> Result<u64, DeviceError>;
    /// Gives memory back.
    ///
    /// # Safety
    /// `at` is of [`ComputeDevice::allocate`] and was not given back before.
    unsafe fn release(&self, at: u64);
    /// Copies to the device.
    ///
    /// # Safety
    /// The addresses `to..to + from.len()` are allocated.
    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), DeviceError>;
    /// Copies from the device, after all work before it.
    ///
    /// # Safety
    /// The addresses `from..from + into.len()` are allocated.
    unsafe fn download(&self, from: u64, into: &mut [u8]) -> Result<(), DeviceError>;
    /// Copies within the device; the two do not overlap.
    ///
    /// # Safety
    /// All addresses are allocated.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DeviceError>;
    /// Fills memory with a byte.
    ///
    /// # Safety
    /// All addresses are allocated.
    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), DeviceError>;
    /// Starts a kernel in blocks of [`source::THREADS`] threads. Each word holds an argument in its lowest bytes.
    ///
    /// # Safety
    /// The words are arguments of the kernel, and the kernel touches allocated memory only with them.
    unsafe fn launch(&self, kernel: &str, blocks: u32, words: &[u64]) -> Result<(), DeviceError>;
    /// Opens the library of matrix products; an error says how to get it.
    fn open_products(&self) -> Result<(), DeviceError>;
    /// Multiplies matrices by the library, with sums in f32 and one rounding.
    ///
    /// # Safety
    /// All numbers of the matrices are allocated, and those of `y` are apart from the others.
    unsafe fn multiply(&self, product: &DeviceProduct) -> Result<(), DeviceError>;
}

struct QueueParts {
    device: Box<dyn ComputeDevice>,
    sources: KernelSources,
    /// The first failure of a call that cannot return one.
    failure: Mutex<Option<DeviceError>>,
}

/// A device, shared by all that is on it.
#[derive(Clone)]
pub struct DeviceQueue(Arc<QueueParts>);

impl fmt::Debug for DeviceQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceQueue").field(&self.0.device.name()).finish()
    }
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KernelArgument {
    /// The address of memory; 0 for none.
    Address(u64),
    /// `u64`.
    Count(u64),
    /// `u32`.
    Index(u32),
    /// `float`.
    Number(f32),
}

impl KernelArgument {
    fn kind(self) -> ParameterKind {
        match self {
            Self::Address(_) => ParameterKind::Address,
            Self::Count(_) => ParameterKind::Count,
            Self::Index(_) => ParameterKind::Index,
            Self::Number(_) => ParameterKind::Number,
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Address(word) | Self::Count(word) => word,
            Self::Index(word) => word.into(),
            Self::Number(x) => x.to_bits().into(),
        }
    }
}

impl From<&DeviceBuffer> for KernelArgument {
    fn from(buffer: &DeviceBuffer) -> Self {
        Self::Address(buffer.at)
    }
}

impl From<Option<&DeviceBuffer>> for KernelArgument {
    fn from(buffer: Option<&DeviceBuffer>) -> Self {
        Self::Address(buffer.map_or(0, |buffer| buffer.at))
    }
}

impl From<u32> for KernelArgument {
    fn from(index: u32) -> Self {
        Self::Index(index)
    }
}

impl From<bool> for KernelArgument {
    fn from(flag: bool) -> Self {
        Self::Index(flag.into())
    }
}

impl From<f32> for KernelArgument {
    fn from(x: f32) -> Self {
        Self::Number(x)
    }
}

impl From<Dtype> for KernelArgument {
    fn from(dtype: Dtype) -> Self {
        Self::Index(source::dtype(dtype))
    }
}

/// Makes an argument of a length: `u64` in kernels.
pub fn count(length: usize) -> KernelArgument {
    KernelArgument::Count(length as u64)
}

#[expect(unsafe_code, reason = "hands checked addresses to the device")]
impl DeviceQueue {
    /// Takes a device over.
    pub fn new(device: Box<dyn ComputeDevice>) -> Self {
        let sources = KernelSources::builtin();
        Self(Arc::new(QueueParts { device, sources, failure: Mutex::default() }))
    }

    /// Returns the name of the device.
    pub fn name(&self) -> String {
        self.0.device.name()
    }

    /// Returns the bytes of free memory.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        Ok(self.0.device.free_bytes()?)
    }

    /// Allocates memory of arbitrary contents.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer, Error> {
        let at = if bytes == 0 { 0 } else { self.0.device.allocate(bytes)? };
        Ok(DeviceBuffer { queue: self.clone(), at, bytes })
    }

    /// Allocates memory with these contents.
    pub fn upload(&self, from: &[u8]) -> Result<DeviceBuffer, Error> {
        let buffer = self.allocate(from.len())?;
        buffer.write(0, from)?;
        Ok(buffer)
    }

    /// Starts a kernel. Refuses arguments that are not of the kinds that its source declares.
    pub fn launch(
        &self,
        kernel: &str,
        blocks: usize,
        arguments: &[KernelArgument],
    ) -> Result<(), Error> {
        check_kinds(kernel, self.0.sources.parameters(kernel), arguments)?;
        self.start(kernel, blocks, arguments)
    }

    /// Starts kernels of parts one after another, each once for all of its parts. Their arguments go to the device
    /// together. Refuses arguments that are not of the kinds that the source of the kernel declares.
    pub fn launch_parts(&self, launches: &[KernelParts]) -> Result<(), Error> {
        let mut words = Vec::new();
        let mut starts = Vec::with_capacity(launches.len());
        for KernelParts { kernel, parts } in launches {
            let declared = self.0.sources.part_parameters(kernel);
            let start = words.len();
            let mut blocks = 0_usize;
            for (part_blocks, arguments) in parts {
                check_kinds(kernel, declared, arguments)?;
                blocks = blocks.saturating_add(*part_blocks);
                words.push(blocks as u64);
            }
            let arguments = parts.iter().flat_map(|(_, arguments)| arguments);
            words.extend(arguments.map(|argument| argument.word()));
            starts.push((*kernel, blocks, 8 * start, parts.len() as u32));
        }
        let table = self.upload(bytemuck::cast_slice(&words))?;
        starts.into_iter().try_for_each(|(kernel, blocks, start, parts)| {
            self.start(kernel, blocks, &[table.argument(start)?, parts.into()])
        })
    }

    /// Starts a kernel with checked arguments.
    fn start(
        &self,
        kernel: &str,
        blocks: usize,
        arguments: &[KernelArgument],
    ) -> Result<(), Error> {
        // The largest grid of CUDA.
        let Some(blocks) = i32::try_from(blocks).ok().map(i32::unsigned_abs) else {
            let message = format!("`{kernel}` has {blocks} blocks; feed fewer tokens at once");
            return Err(DeviceError(message).into());
        };
        if blocks == 0 {
            return Ok(());
        }
        let words: Vec<u64> = arguments.iter().map(|argument| argument.word()).collect();
        // SAFETY: the arguments are of the kinds that the kernel declares. Ops check shapes before they launch.
        Ok(unsafe { self.0.device.launch(kernel, blocks, &words) }?)
    }

    /// Opens the library of matrix products; an error says how to get it.
    pub fn open_products(&self) -> Result<(), Error> {
        Ok(self.0.device.open_products()?)
    }

    /// Multiplies matrices whose places were checked.
    fn multiply_placed(&self, product: &DeviceProduct) -> Result<(), Error> {
        // SAFETY: the places are inside buffers, and a result has a buffer of its own.
        Ok(unsafe { self.0.device.multiply(product) }?)
    }

    /// Starts a kernel with a thread for each of `count` numbers.
    pub fn launch_each(
        &self,
        kernel: &str,
        count: usize,
        arguments: &[KernelArgument],
    ) -> Result<(), Error> {
        self.launch(kernel, count.div_ceil(source::THREADS), arguments)
    }

    /// Keeps the first failure of calls that return nothing.
    pub(crate) fn note<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let mut failure = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert_with(|| DeviceError(error.to_string()));
                None
            }
        }
    }

    /// Returns the failure that was noted last, once.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut failure = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

fn check_kinds(
    kernel: &str,
    declared: Option<&[ParameterKind]>,
    arguments: &[KernelArgument],
) -> Result<(), Error> {
    let kinds = arguments.iter().map(|argument| argument.kind());
    if declared.is_some_and(|declared| kinds.eq(declared.iter().copied())) {
        return Ok(());
    }
    let message = format!("no kernel `{kernel}` takes {arguments:?}; it takes {declared:?}");
    Err(DeviceError(message).into())
}

/// A launch of a kernel of parts: `PARTS_KERNEL` of the source.
///
/// Parts run at the same time, so none reads what another one writes. The memory that they name has to live until the
/// launch.
#[derive(Debug, Clone)]
pub struct KernelParts {
    kernel: &'static str,
    /// The blocks and the arguments of each part.
    parts: Vec<(usize, Vec<KernelArgument>)>,
}

impl KernelParts {
    /// Creates a launch without parts.
    pub fn new(kernel: &'static str) -> Self {
        Self { kernel, parts: Vec::new() }
    }

    /// Returns the name of the kernel.
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// Adds a part.
    pub fn push(&mut self, blocks: usize, arguments: Vec<KernelArgument>) {
        self.parts.push((blocks, arguments));
    }

    /// Adds a part with a thread for each of `count` numbers.
    pub fn push_each(&mut self, count: usize, arguments: Vec<KernelArgument>) {
        self.push(count.div_ceil(source::THREADS), arguments);
    }
}

/// Memory of a device.
pub struct DeviceBuffer {
    queue: DeviceQueue,
    at: u64,
    bytes: usize,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[expect(unsafe_code, reason = "hands checked addresses to the device")]
impl DeviceBuffer {
    /// Returns a buffer without memory.
    pub fn none(queue: &DeviceQueue) -> Self {
        Self { queue: queue.clone(), at: 0, bytes: 0 }
    }

    /// Returns the device.
    pub fn queue(&self) -> &DeviceQueue {
        &self.queue
    }

    /// Returns the address, for tables that kernels read.
    pub(crate) fn address(&self) -> u64 {
        self.at
    }

    /// Returns the address of a byte as an argument of kernels.
    pub(crate) fn argument(&self, byte: usize) -> Result<KernelArgument, Error> {
        self.place(byte, 0).map(KernelArgument::Address)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self, from: usize, bytes: usize) -> Result<u64, Error> {
        match from.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.at + from as u64),
            _ => {
                Err(DeviceError(format!("{bytes} bytes at {from} of {} bytes", self.bytes)).into())
            }
        }
    }

    /// Writes bytes at a place.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.place(at, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is inside this allocation.
        Ok(unsafe { self.queue.0.device.upload(to, from) }?)
    }

    /// Reads bytes from a place.
    pub fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        let from = self.place(at, bytes)?;
        let mut into = vec![0; bytes];
        if bytes > 0 {
            // SAFETY: the range is inside this allocation.
            unsafe { self.queue.0.device.download(from, &mut into) }?;
        }
        Ok(into)
    }

    /// Copies bytes from another buffer to the start of this one.
    pub fn copy_from(&self, other: &Self, from: usize, bytes: usize) -> Result<(), Error> {
        let to = self.place(0, bytes)?;
        let from = other.place(from, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside their allocations, which are two.
        Ok(unsafe { self.queue.0.device.copy(to, from, bytes) }?)
    }

    /// Fills everything from a place on with a byte.
    pub fn fill(&self, from: usize, byte: u8) -> Result<(), Error> {
        let bytes = self.bytes.saturating_sub(from);
        let to = self.place(from, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside this allocation.
        Ok(unsafe { self.queue.0.device.fill(to, byte, bytes) }?)
    }

    /// Returns a copy.
    pub fn duplicate(&self) -> Result<Self, Error> {
        let copy = self.queue.allocate(self.bytes)?;
        copy.copy_from(self, 0, self.bytes)?;
        Ok(copy)
    }
}

#[expect(unsafe_code, reason = "gives the address back")]
impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.at != 0 {
            // SAFETY: the address is of `allocate`, and this is its only owner.
            unsafe { self.queue.0.device.release(self.at) };
        }
    }
}
