//! Rows of a state in the memory of a device, encoded as [`RowStore`] encodes them.

use std::fmt;

use registry::dtype::Dtype;

use super::RowStore;
use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue, KernelArgument, KernelParts, count, source};
use crate::value::DeviceValue;

/// Numbers that fill memory until they are written: NaN in every encoding.
const NAN: u8 = 0xff;

/// A store of rows in the memory of a device.
///
/// Calls that return nothing leave their failure with the device, and the session looks there.
pub struct DeviceRows {
    /// An empty store of the same encoding.
    form: Box<RowStore>,
    queue: DeviceQueue,
    numbers: DeviceBuffer,
    /// Scales of groups, or the one scale; empty for other encodings.
    scales: DeviceBuffer,
    /// Room, in numbers.
    len: usize,
}

impl fmt::Debug for DeviceRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceRows").field("form", &self.form).finish_non_exhaustive()
    }
}

impl PartialEq for DeviceRows {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form && self.all_bytes() == other.all_bytes()
    }
}

impl Clone for DeviceRows {
    fn clone(&self) -> Self {
        let numbers = self.queue.note(self.numbers.duplicate());
        let scales = self.queue.note(self.scales.duplicate());
        let form = self.form.clone();
        let queue = self.queue.clone();
        match (numbers, scales) {
            (Some(numbers), Some(scales)) => Self { form, queue, numbers, scales, len: self.len },
            _ => Self::empty(form, queue),
        }
    }
}

/// A store as a kernel reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheArguments {
    /// The numbers, the encoding, the scales and the group.
    pub(crate) list: [KernelArgument; 4],
}

/// Rows that a step writes for all of its slots, one launch for each encoding.
#[derive(Debug, Default)]
pub(crate) struct RowWrites(Vec<KernelParts>);

impl RowWrites {
    fn launch_of(&mut self, kernel: &'static str) -> &mut KernelParts {
        let known = self.0.iter().position(|launch| launch.kernel() == kernel);
        let place = known.unwrap_or(self.0.len());
        if known.is_none() {
            self.0.push(KernelParts::new(kernel));
        }
        &mut self.0[place]
    }

    /// Returns the launches.
    pub(crate) fn into_launches(self) -> Vec<KernelParts> {
        self.0
    }
}

impl DeviceRows {
    /// Creates an empty store of the encoding of an empty store.
    pub fn new(form: RowStore, queue: &DeviceQueue) -> Self {
        let mut rows = Self::empty(Box::new(form), queue.clone());
        if let RowStore::FixedFp8 { scale, .. } = *rows.form
            && let Some(scales) = queue.note(queue.upload(&scale.to_le_bytes()))
        {
            rows.scales = scales;
        }
        rows
    }

    fn empty(form: Box<RowStore>, queue: DeviceQueue) -> Self {
        let numbers = DeviceBuffer::none(&queue);
        let scales = DeviceBuffer::none(&queue);
        Self { form, numbers, scales, len: 0, queue }
    }

    /// Returns the room in numbers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no room.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device.
    pub(crate) fn queue(&self) -> &DeviceQueue {
        &self.queue
    }

    /// Returns the encoding, without numbers.
    pub fn form(&self) -> &RowStore {
        &self.form
    }

    /// Bytes of so many numbers, without their scales.
    fn number_bytes(&self, numbers: usize) -> usize {
        match &*self.form {
            RowStore::GroupedFp8 { .. } => numbers,
            other => other.bytes(numbers),
        }
    }

    /// Bytes of the scales of so many numbers.
    fn scale_bytes(&self, numbers: usize) -> usize {
        self.form.bytes(numbers) - self.number_bytes(numbers)
    }

    fn group(&self) -> usize {
        if let RowStore::GroupedFp8 { group, .. } = &*self.form { *group } else { 1 }
    }

    fn grow(&mut self, len: usize) -> Result<(), Error> {
        let len = len.next_multiple_of(self.group());
        let numbers = self.grown(&self.numbers, self.number_bytes(len))?;
        if self.scale_bytes(len) > 0 {
            self.scales = self.grown(&self.scales, self.scale_bytes(len))?;
        }
        (self.numbers, self.len) = (numbers, len);
        Ok(())
    }

    /// Returns a larger buffer that begins with the bytes of another.
    fn grown(&self, old: &DeviceBuffer, bytes: usize) -> Result<DeviceBuffer, Error> {
        let new = self.queue.allocate(bytes)?;
        new.copy_from(old, 0, old.bytes())?;
        new.fill(old.bytes(), NAN)?;
        Ok(new)
    }

    /// Makes room for numbers.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(), Error> {
        if self.len < len { self.grow(len.max(self.len * 2)) } else { Ok(()) }
    }

    /// Writes whole rows at `at`.
    pub fn write(&mut self, at: usize, from: &[f32]) {
        let mut encoded = (*self.form).clone();
        encoded.write(0, from);
        let mut bytes = Vec::new();
        encoded.to_bytes(0, from.len(), &mut bytes);
        let result = self.reserve(at + from.len()).and_then(|()| self.put(at, from.len(), &bytes));
        self.queue.note(result);
    }

    /// Writes encoded numbers.
    fn put(&self, at: usize, numbers: usize, bytes: &[u8]) -> Result<(), Error> {
        let (codes, scales) = bytes.split_at(self.number_bytes(numbers));
        self.numbers.write(self.number_bytes(at), codes)?;
        if scales.is_empty() { Ok(()) } else { self.scales.write(self.scale_bytes(at), scales) }
    }

    /// Makes room at `at` for `numbers` numbers of a value of the device, from number `from` on, and adds them to what
    /// is written.
    pub(crate) fn write_value(
        &mut self,
        at: usize,
        value: &DeviceValue,
        (from, numbers): (usize, usize),
        writes: &mut RowWrites,
    ) -> Result<(), Error> {
        self.reserve(at + numbers)?;
        let rows = &self.numbers;
        let scales = &self.scales;
        let (kernel, output, threads): (_, Vec<KernelArgument>, _) = match &*self.form {
            RowStore::F32(_) | RowStore::Half(..) => {
                let output = vec![rows.into(), self.plain_dtype()?.into()];
                ("keep_rows", output, numbers)
            }
            RowStore::GroupedFp8 { group, .. } => {
                let output = vec![rows.into(), scales.into(), (*group as u32).into()];
                ("keep_groups", output, numbers / group)
            }
            RowStore::FixedFp8 { dtype, .. } => {
                ("keep_fixed", vec![rows.into(), scales.into(), (*dtype).into()], numbers)
            }
            RowStore::Device(_) => {
                return Err(Error::Other("a store of a device has a form".to_owned()));
            }
        };
        let mut arguments = vec![(&*value.buffer).into(), value.dtype.into(), count(from)];
        arguments.extend(output);
        arguments.extend([count(at), count(threads)]);
        writes.launch_of(kernel).push_each(threads, arguments);
        Ok(())
    }

    /// Returns plain numbers with their dtype; none in 8 bits.
    pub(crate) fn plain(&self) -> Option<(&DeviceBuffer, Dtype)> {
        Some((&self.numbers, self.plain_dtype().ok()?))
    }

    /// Returns the dtype of plain rows.
    pub(crate) fn plain_dtype(&self) -> Result<Dtype, Error> {
        match &*self.form {
            RowStore::F32(_) => Ok(Dtype::F32),
            RowStore::Half(dtype, _) => Ok(*dtype),
            _ => Err(Error::Other("rows in 8 bits are no values".to_owned())),
        }
    }

    /// Adds a copy of `numbers` plain numbers from `from` on to what is written: to number `at` of a value.
    pub(crate) fn copy_to(
        &self,
        (from, numbers): (usize, usize),
        value: &DeviceValue,
        at: usize,
        writes: &mut RowWrites,
    ) -> Result<(), Error> {
        let arguments = vec![
            (&self.numbers).into(),
            self.plain_dtype()?.into(),
            count(from),
            (&*value.buffer).into(),
            value.dtype.into(),
            count(at),
            count(numbers),
        ];
        writes.launch_of("keep_rows").push_each(numbers, arguments);
        Ok(())
    }

    /// Returns the store as kernels read it.
    pub(crate) fn arguments(&self) -> CacheArguments {
        let (form, group) = match &*self.form {
            RowStore::Half(dtype, _) => (source::dtype(*dtype), 0),
            RowStore::GroupedFp8 { group, .. } => (source::FP8_GROUPS, *group as u32),
            RowStore::FixedFp8 { dtype, .. } => (source::FP8_FIXED, source::dtype(*dtype)),
            RowStore::F32(_) | RowStore::Device(_) => (source::dtype(Dtype::F32), 0),
        };
        let list = [(&self.numbers).into(), form.into(), (&self.scales).into(), group.into()];
        CacheArguments { list }
    }

    /// Reads numbers from `at` on.
    pub fn read(&self, at: usize, into: &mut [f32]) {
        let group = self.group();
        let from = at / group * group;
        let to = (at + into.len()).next_multiple_of(group);
        let mut bytes = Vec::new();
        self.to_bytes(from, to, &mut bytes);
        let mut decoded = (*self.form).clone();
        decoded.set_bytes(&bytes);
        if decoded.len() == to - from {
            decoded.read(at - from, into);
        } else {
            into.fill(f32::NAN); // the failure has been noted
        }
    }

    /// Moves whole rows to the front.
    pub fn shift(&mut self, from: usize, len: usize) {
        let numbers = self.moved(&self.numbers, self.number_bytes(from), self.number_bytes(len));
        let scaled = self.scale_bytes(self.len) > 0;
        let scales =
            scaled.then(|| self.moved(&self.scales, self.scale_bytes(from), self.scale_bytes(len)));
        if let Some(numbers) = self.queue.note(numbers) {
            self.numbers = numbers;
        }
        if let Some(scales) = scales.and_then(|scales| self.queue.note(scales)) {
            self.scales = scales;
        }
    }

    /// Returns a buffer of the same size that begins with some bytes of another.
    fn moved(&self, old: &DeviceBuffer, at: usize, bytes: usize) -> Result<DeviceBuffer, Error> {
        let new = self.queue.allocate(old.bytes())?;
        new.fill(0, NAN)?;
        new.copy_from(old, at, bytes)?;
        Ok(new)
    }

    /// Fills it with NaN.
    pub fn poison(&mut self) {
        self.queue.note(self.numbers.fill(0, NAN));
        if self.scale_bytes(self.len) > 0 {
            self.queue.note(self.scales.fill(0, NAN));
        }
    }

    /// Numbers `from..to` of whole rows as bytes, as [`RowStore::to_bytes`] writes them.
    pub fn to_bytes(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        let numbers = to - from;
        let codes = self.numbers.read(self.number_bytes(from), self.number_bytes(numbers));
        out.extend(self.queue.note(codes).unwrap_or_default());
        if self.scale_bytes(numbers) > 0 {
            let scales = self.scales.read(self.scale_bytes(from), self.scale_bytes(numbers));
            out.extend(self.queue.note(scales).unwrap_or_default());
        }
    }

    /// Returns all numbers as bytes.
    fn all_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.to_bytes(0, self.len, &mut bytes);
        bytes
    }

    /// Takes over what [`DeviceRows::to_bytes`] gave; the caller has checked the length.
    pub fn set_bytes(&mut self, from: &[u8]) {
        let group = self.group();
        let numbers = from.len() / self.form.bytes(group).max(1) * group;
        let result = self.reserve(numbers).and_then(|()| self.put(0, numbers, from));
        self.queue.note(result);
    }
}
