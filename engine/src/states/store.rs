//! Numbers as a slot stores them: in their declared dtype for real.

use formats::numbers::{f8_e4m3_scale, f8_e4m3_to_f32, f32_to_f8_e4m3};
use half::f16;
use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use registry::dtype::Dtype;

pub mod device;

use crate::device::DeviceQueue;
use crate::kernels::attention::{CodedNumbers, StoredNumbers};
use crate::kernels::round::{round1, to_bits};
use device::DeviceRows;

/// Numbers stored in a dtype for real: 16-bit ones take 16 bits, 8-bit ones 8.
#[derive(Debug, Clone, PartialEq)]
pub enum RowStore {
    /// f32.
    F32(Vec<f32>),
    /// bf16 or f16.
    Half(Dtype, Vec<u16>),
    /// f8 e4m3: bytes, and a scale for each group.
    GroupedFp8 {
        /// One byte per number.
        bytes: Vec<u8>,
        /// The factors that the numbers of each group are multiplied by when they are read.
        scales: Vec<f32>,
        /// Numbers that share a scale.
        group: usize,
    },
    /// f8 e4m3: bytes, and one scale that is known before.
    FixedFp8 {
        /// One byte per number.
        bytes: Vec<u8>,
        /// The factor that numbers are multiplied by when they are read.
        scale: f32,
        /// The grid of quotients and products.
        dtype: Dtype,
    },
    /// Any of these in the memory of a device.
    Device(DeviceRows),
}

impl RowStore {
    /// Creates an empty store.
    pub fn new(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(Vec::new()),
            Dtype::Bf16 | Dtype::F16 => Self::Half(dtype, Vec::new()),
        }
    }

    /// Creates an empty 8-bit store, with a scale for each `group` numbers.
    pub fn fp8(group: usize) -> Self {
        Self::GroupedFp8 { bytes: Vec::new(), scales: Vec::new(), group: group.max(1) }
    }

    /// Creates an empty 8-bit store with one scale; larger numbers saturate at the largest. Every step is on
    /// the dtype's grid, as `_quantize_dequantize` of compressed-tensors computes them.
    pub fn fixed(scale: f32, dtype: Dtype) -> Self {
        Self::FixedFp8 { bytes: Vec::new(), scale: round1(dtype, scale), dtype }
    }

    /// Moves an empty store to a device.
    #[must_use]
    pub fn on(self, queue: &DeviceQueue) -> Self {
        Self::Device(DeviceRows::new(self, queue))
    }

    /// Returns the capacity in numbers.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::Half(_, data) => data.len(),
            Self::GroupedFp8 { bytes, .. } | Self::FixedFp8 { bytes, .. } => bytes.len(),
            Self::Device(rows) => rows.len(),
        }
    }

    /// True if the capacity is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that so many numbers take.
    pub fn bytes(&self, numbers: usize) -> usize {
        match self {
            Self::F32(_) => numbers * 4,
            Self::Half(..) => numbers * 2,
            Self::GroupedFp8 { group, .. } => numbers + numbers / group * 4,
            Self::FixedFp8 { .. } => numbers,
            Self::Device(rows) => rows.form().bytes(numbers),
        }
    }

    fn grow(&mut self, len: usize) {
        match self {
            Self::F32(data) => data.resize(len, f32::NAN),
            Self::Half(dtype, data) => data.resize(len, to_bits(*dtype, f32::NAN)),
            Self::GroupedFp8 { bytes, scales, group } => {
                bytes.resize(len, f32_to_f8_e4m3(f32::NAN));
                scales.resize(len.div_ceil(*group), f32::NAN);
            }
            Self::FixedFp8 { bytes, .. } => bytes.resize(len, f32_to_f8_e4m3(f32::NAN)),
            Self::Device(_) => {} // which grows when it is written
        }
    }

    /// Writes whole rows at `at`, growing as needed.
    pub fn write(&mut self, at: usize, from: &[f32]) {
        if self.len() < at + from.len() {
            // Doubling, so that appending row by row stays cheap.
            self.grow((at + from.len()).max(self.len() * 2));
        }
        match self {
            Self::F32(data) => data[at..at + from.len()].copy_from_slice(from),
            Self::Half(dtype, data) => {
                for (x, &from) in data[at..].iter_mut().zip(from) {
                    *x = to_bits(*dtype, from);
                }
            }
            Self::GroupedFp8 { bytes, scales, group } => {
                let places = bytes[at..].chunks_mut(*group).zip(&mut scales[at / *group..]);
                for ((bytes, scale), from) in places.zip(from.chunks(*group)) {
                    let peak = from.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
                    *scale = f8_e4m3_scale(peak);
                    for (byte, x) in bytes.iter_mut().zip(from) {
                        *byte = f32_to_f8_e4m3(x / *scale);
                    }
                }
            }
            Self::FixedFp8 { bytes, scale, dtype } => {
                for (byte, x) in bytes[at..].iter_mut().zip(from) {
                    *byte = f32_to_f8_e4m3(round1(*dtype, x / *scale));
                }
            }
            Self::Device(rows) => rows.write(at, from),
        }
    }

    /// Reads numbers from `at` on.
    pub fn read(&self, at: usize, into: &mut [f32]) {
        match self {
            Self::F32(data) => into.copy_from_slice(&data[at..at + into.len()]),
            Self::Half(Dtype::F16, data) => {
                let data: &[f16] = data[at..at + into.len()].reinterpret_cast();
                data.convert_to_f32_slice(into);
            }
            Self::Half(_, data) => {
                for (x, &from) in into.iter_mut().zip(&data[at..]) {
                    *x = f32::from_bits(u32::from(from) << 16);
                }
            }
            Self::GroupedFp8 { bytes, scales, group } => {
                for (n, x) in into.iter_mut().enumerate() {
                    *x = f8_e4m3_to_f32(bytes[at + n]) * scales[(at + n) / group];
                }
            }
            Self::FixedFp8 { bytes, scale, dtype } => {
                for (x, &byte) in into.iter_mut().zip(&bytes[at..]) {
                    *x = round1(*dtype, f8_e4m3_to_f32(byte) * scale);
                }
            }
            Self::Device(rows) => rows.read(at, into),
        }
    }

    /// Returns the numbers as they are stored.
    pub fn numbers(&self) -> StoredNumbers<'_> {
        match self {
            Self::F32(data) => StoredNumbers::Wide(data),
            Self::Half(dtype, data) => StoredNumbers::Half(*dtype, data),
            Self::GroupedFp8 { .. } | Self::FixedFp8 { .. } | Self::Device(_) => {
                StoredNumbers::Coded(self)
            }
        }
    }

    /// Moves whole rows to the front.
    pub fn shift(&mut self, from: usize, len: usize) {
        match self {
            Self::F32(data) => data.copy_within(from..from + len, 0),
            Self::Half(_, data) => data.copy_within(from..from + len, 0),
            Self::GroupedFp8 { bytes, scales, group } => {
                bytes.copy_within(from..from + len, 0);
                scales.copy_within(from / *group..(from + len) / *group, 0);
            }
            Self::FixedFp8 { bytes, .. } => bytes.copy_within(from..from + len, 0),
            Self::Device(rows) => rows.shift(from, len),
        }
    }

    /// Fills it with NaN.
    pub fn poison(&mut self) {
        match self {
            Self::F32(data) => data.fill(f32::NAN),
            Self::Half(dtype, data) => data.fill(to_bits(*dtype, f32::NAN)),
            Self::GroupedFp8 { bytes, scales, .. } => {
                bytes.fill(f32_to_f8_e4m3(f32::NAN));
                scales.fill(f32::NAN);
            }
            Self::FixedFp8 { bytes, .. } => bytes.fill(f32_to_f8_e4m3(f32::NAN)),
            Self::Device(rows) => rows.poison(),
        }
    }

    /// Numbers `from..to` of whole rows as bytes; those of 8 bits, then their scales.
    pub fn to_bytes(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        match self {
            Self::F32(data) => data[from..to].iter().for_each(|x| out.extend(x.to_le_bytes())),
            Self::Half(_, data) => {
                data[from..to].iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            Self::GroupedFp8 { bytes, scales, group } => {
                out.extend(&bytes[from..to]);
                for scale in &scales[from / group..to / group] {
                    out.extend(scale.to_le_bytes());
                }
            }
            Self::FixedFp8 { bytes, .. } => out.extend(&bytes[from..to]),
            Self::Device(rows) => rows.to_bytes(from, to, out),
        }
    }

    /// Takes over what [`RowStore::to_bytes`] gave; the caller has checked the length.
    pub fn set_bytes(&mut self, from: &[u8]) {
        match self {
            Self::F32(data) => *data = f32_numbers(from),
            Self::Half(_, data) => {
                *data = from.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            }
            Self::GroupedFp8 { bytes, scales, group } => {
                let (codes, factors) = from.split_at(from.len() / (*group + 4) * *group);
                *bytes = codes.to_vec();
                *scales = f32_numbers(factors);
            }
            Self::FixedFp8 { bytes, .. } => *bytes = from.to_vec(),
            Self::Device(rows) => rows.set_bytes(from),
        }
    }
}

/// Reads little-endian numbers.
fn f32_numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

impl CodedNumbers for RowStore {
    fn decode(&self, at: usize, into: &mut [f32]) {
        self.read(at, into);
    }
}
