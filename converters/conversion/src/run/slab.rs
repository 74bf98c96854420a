//! Converts one slab: reads it, encodes it for each target, measures and writes the bytes.

use std::io;

use twox_hash::XxHash3_64;

use super::files::PartFile;
use super::{Error, SlabJob};
use crate::hashes;
use crate::journal::SlabRecord;
use crate::{EncodeError, Measure, Task, TaskTarget, Work};
use formats::numbers::{self, first_not_finite};
use formats::safetensors::FileDtype;
use formats::shown;

/// Buffers of a worker.
#[derive(Default)]
pub(super) struct Buffers {
    numbers: Vec<f32>,
    seen: Vec<f32>,
    /// Bytes of each target.
    pub(super) bytes: Vec<Vec<u8>>,
}

/// Number of values that are read, encoded, decoded and measured at a time: they stay in the cache of a
/// core.
const PIECE: usize = 1 << 14;

/// Returns the number of values in a slab.
pub(super) fn numbers(work: &Work<'_>, job: &SlabJob) -> u64 {
    (job.rows * work.tasks[job.task].row()) as u64
}

/// Returns the offset and length of a slab in the target's file.
pub(super) fn place(task: &Task<'_>, target: &TaskTarget, job: &SlabJob) -> (u64, usize) {
    let before = target.encode.bytes(job.first, task.row()) as u64;
    (target.offset + before, target.encode.bytes(job.rows, task.row()))
}

/// Returns the ranges of each file that no slab writes, as pairs of offset and length: padding, which is
/// zeros.
pub(super) fn padding(work: &Work<'_>) -> Vec<Vec<(u64, u64)>> {
    let mut taken: Vec<Vec<(u64, u64)>> =
        work.files.iter().map(|file| vec![(0, file.header.len() as u64)]).collect();
    for task in &work.tasks {
        for target in &task.targets {
            let bytes = target.encode.bytes(task.rows(), task.row()) as u64;
            taken[target.file].push((target.offset, bytes));
        }
    }
    let gaps = taken.into_iter().zip(&work.files).map(|(mut taken, file)| {
        taken.sort_unstable();
        taken.push((file.len, 0));
        let mut gaps = Vec::new();
        let mut end = 0;
        for (from, len) in taken {
            if from > end {
                gaps.push((end, from - end));
            }
            end = end.max(from + len);
        }
        gaps
    });
    gaps.collect()
}

/// True if the files contain the bytes that an earlier run recorded.
pub(super) fn is_there(
    work: &Work<'_>,
    job: &SlabJob,
    parts: &[PartFile],
    written: &[SlabRecord],
) -> bool {
    let task = &work.tasks[job.task];
    written.len() == task.targets.len()
        && task.targets.iter().zip(written).all(|(target, written)| {
            let (from, len) = place(task, target, job);
            let mut bytes = vec![0; len];
            parts[target.file].read(&mut bytes, from).is_ok()
                && hash(task, target, job, &bytes) == written.hash
        })
}

/// Returns the number of bytes in a piece of the target's hashes.
pub(super) fn piece(task: &Task<'_>, target: &TaskTarget, job: &SlabJob) -> usize {
    target.encode.bytes(job.piece, task.row()).max(1)
}

/// Returns the part of a slab's bytes in the hash of the target.
fn hash(task: &Task<'_>, target: &TaskTarget, job: &SlabJob, bytes: &[u8]) -> u64 {
    hashes::hash(bytes, piece(task, target, job), (job.first / job.piece) as u64)
}

/// True if the source has the values that an earlier run recorded.
pub(super) fn is_same_source(
    work: &Work<'_>,
    job: &SlabJob,
    buffers: &mut Buffers,
    written: &[SlabRecord],
) -> bool {
    let task = &work.tasks[job.task];
    let Some(recorded) = written.first().map(|record| record.source) else { return true };
    let row = task.row();
    let stored_dtype = task.flow.dtype();
    buffers.bytes.resize(task.targets.len(), Vec::new());
    let copied = task.targets.iter().zip(&mut buffers.bytes).all(|(target, bytes)| {
        bytes.resize(place(task, target, job).1, 0);
        let plain = target.encode.plain().filter(|plain| stored_dtype == Some(*plain));
        plain.is_some_and(|dtype| task.flow.copy(dtype, job.first * row, bytes))
    });
    if copied {
        return buffers.bytes.first().is_some_and(|bytes| XxHash3_64::oneshot(bytes) == recorded);
    }
    let step = task.slab_rows(PIECE);
    let mut source = 0;
    for first in (0..job.rows).step_by(step) {
        buffers.numbers.resize(step.min(job.rows - first) * row, 0.0);
        task.flow.read((job.first + first) * row, &mut buffers.numbers);
        source = with_values(source, &buffers.numbers);
    }
    source == recorded
}

/// Adds the next values of a slab to the hash of its source.
fn with_values(source: u64, numbers: &[f32]) -> u64 {
    /// Odd, so that no earlier hash is lost.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    source.wrapping_mul(FACTOR).wrapping_add(numbers::checksum(numbers))
}

/// Writes the bytes of a slab to the file of each target.
pub(super) fn write(
    work: &Work<'_>,
    job: &SlabJob,
    parts: &[PartFile],
    bytes: &[Vec<u8>],
) -> io::Result<()> {
    let task = &work.tasks[job.task];
    for (target, bytes) in task.targets.iter().zip(bytes) {
        parts[target.file].write(bytes, place(task, target, job).0)?;
    }
    Ok(())
}

/// Encodes one slab for each of its targets; their bytes are left in the buffers.
pub(super) fn encode(
    work: &Work<'_>,
    job: &SlabJob,
    buffers: &mut Buffers,
) -> Result<Vec<SlabRecord>, Error> {
    let task = &work.tasks[job.task];
    let row = task.row();
    let at = job.first * row;
    let count = job.rows * row;
    let stored_dtype = task.flow.dtype();
    let mut measures = vec![None; task.targets.len()];
    buffers.bytes.resize(task.targets.len(), Vec::new());
    for ((target, measure), bytes) in task.targets.iter().zip(&mut measures).zip(&mut buffers.bytes)
    {
        bytes.resize(place(task, target, job).1, 0);
        let plain = target.encode.plain().filter(|plain| stored_dtype == Some(*plain));
        if let Some(dtype) = plain.filter(|dtype| task.flow.copy(*dtype, at, bytes)) {
            finite(dtype, bytes).map_err(|why| fault(work, target, why))?;
            *measure = Some(Measure::exact(count));
        }
    }
    let mut source = 0;
    if measures.contains(&None) {
        let step = task.slab_rows(PIECE);
        let mut sums = vec![Measure::default(); measures.len()];
        for first in (0..job.rows).step_by(step) {
            let piece =
                SlabJob { first: job.first + first, rows: step.min(job.rows - first), ..*job };
            let converted = measures.iter().map(Option::is_none);
            encode_piece(work, &piece, first, converted, buffers, &mut sums)?;
            source = with_values(source, &buffers.numbers);
        }
        for (measure, sum) in measures.iter_mut().zip(sums) {
            measure.get_or_insert(sum);
        }
    } else if let Some(bytes) = buffers.bytes.first() {
        source = XxHash3_64::oneshot(bytes);
    }
    let targets = task.targets.iter().zip(&buffers.bytes).zip(measures);
    Ok(targets
        .map(|((target, bytes), measure): ((&TaskTarget, &Vec<u8>), Option<Measure>)| {
            let hash = hash(task, target, job, bytes);
            SlabRecord { hash, source, measure: measure.unwrap_or_default() }
        })
        .collect())
}

/// Encodes some rows of a slab, the first of which is row `first` of the slab, for the targets that are
/// converted, and adds the errors to their sums.
fn encode_piece(
    work: &Work<'_>,
    piece: &SlabJob,
    first: usize,
    converted: impl Iterator<Item = bool>,
    buffers: &mut Buffers,
    sums: &mut [Measure],
) -> Result<(), Error> {
    let task = &work.tasks[piece.task];
    let row = task.row();
    let at = piece.first * row;
    let count = piece.rows * row;
    let Buffers { numbers, seen, bytes } = buffers;
    numbers.resize(count, 0.0);
    seen.resize(count, 0.0);
    task.flow.read(at, numbers);
    let bad = first_not_finite(numbers);
    let targets = task.targets.iter().zip(bytes).zip(sums).zip(converted);
    for (((target, bytes), sum), _) in targets.filter(|(_, converted)| *converted) {
        let mut encode = || {
            if let Some(n) = bad {
                return Err(EncodeError::NotFinite { at: at + n, found: numbers[n] });
            }
            let from = target.encode.bytes(first, row);
            let bytes = &mut bytes[from..from + target.encode.bytes(piece.rows, row)];
            target.encode.encode(piece.first, numbers, row, bytes)?;
            if target.encode.decode(piece.first, numbers, bytes, row, seen) {
                let measure = Measure::of(numbers, seen);
                check_finite(&measure, at, numbers, seen)?;
                *sum = sum.and(measure);
            }
            Ok(())
        };
        encode().map_err(|why| fault(work, target, why))?;
    }
    Ok(())
}

fn fault(work: &Work<'_>, target: &TaskTarget, why: EncodeError) -> Error {
    let file = work.files[target.file].path.clone();
    Error::Encode { file, tensor: shown(&target.name), why }
}

/// Returns an error if a finite value would decode to a non-finite one.
fn check_finite(
    measure: &Measure,
    at: usize,
    numbers: &[f32],
    seen: &[f32],
) -> Result<(), EncodeError> {
    // If the sum is finite, there is no such value; searching each slab would cost a pass.
    if measure.error.is_finite() {
        return Ok(());
    }
    let Some(n) = first_not_finite(seen) else { return Ok(()) };
    Err(EncodeError::OutOfReach { at: at + n, found: numbers[n], seen: seen[n] })
}

/// Returns an error if a copied value is not finite.
fn finite(dtype: FileDtype, bytes: &[u8]) -> Result<(), EncodeError> {
    let is_finite = match dtype {
        FileDtype::Bf16 => !has_all_bits(bytes, 0x7f80),
        FileDtype::F16 => !has_all_bits(bytes, 0x7c00),
        FileDtype::F32 => {
            let bits = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
            bits.filter(|bits| bits & 0x7f80_0000 == 0x7f80_0000).count() == 0
        }
        _ => true,
    };
    if is_finite { Ok(()) } else { Err(EncodeError::CopyNotFinite) }
}

/// True if one of the numbers of 16 bits has all bits of a mask.
fn has_all_bits(bytes: &[u8], mask: u16) -> bool {
    let bits = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    // Counting is faster than searching: the common case has none and reads everything.
    bits.filter(|bits| bits & mask == mask).count() > 0
}
