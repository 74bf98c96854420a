//! A slot as bytes.
//!
//! ```text
//! "onboard-slot" u32 version=3   u64 fingerprint   u64 position
//! u64 prefix     u64 documents   ...u64 starts   u64 spans   ...u64 start, u64 end   u64 placed   u32 pasts
//! per past:      u64 floor   u64 bytes   ...bytes
//! u64 checksum of everything before
//! ```
//!
//! All little endian. The fingerprint covers the model's name and dims, the run's dtype, and
//! the shape, window and dtype of every state, so that bytes of another model are refused
//! before they are read.

use registry::dtype::Dtype;
use registry::graph::State;
use registry::model::Model;

use super::{Slot, past};
use crate::masks::SequenceMask;

/// Reason that bytes are not a slot of the session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("{found} bytes are too few")]
    Few { found: usize },
    #[error("they do not begin as version 3 of the format does")]
    Version,
    #[error("the checksum does not agree; they were cut short or damaged")]
    Checksum,
    #[error("they are of another model, dims, dtype or rollback")]
    Fingerprint,
    #[error("{found} positions are more than any sequence has")]
    Positions { found: usize },
    #[error("they hold {found} pasts; the model has {expected}")]
    Pasts { found: usize, expected: usize },
    #[error(transparent)]
    Past(#[from] past::Error),
    #[error("a size is too large")]
    Size,
    #[error("its prefix and its documents are not those of one sequence")]
    Mask,
    #[error("they end too soon")]
    Short,
    #[error("{found} bytes are left over")]
    LeftOver { found: usize },
}

const MAGIC: &[u8] = b"onboard-slot\x03\0\0\0";

/// FNV-1a: enough to tell models apart and to notice a damaged file; not a signature.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Hashes the settings that two sessions must share to exchange saved bytes.
pub fn fingerprint(model: &Model, states: &[State], activation: Dtype, rollback: usize) -> u64 {
    let mut fnv = Fnv::new();
    fnv.add(format!("{}|{}|{activation}|{rollback}", model.name, model.architecture).as_bytes());
    for (name, value) in &model.dims {
        fnv.add(format!("|{name}={value}").as_bytes());
    }
    for state in states {
        let dtype = state.dtype.resolve(activation);
        fnv.add(
            format!("|{}|{}|{dtype}|{:?}|{:?}", state.name, state.layer, state.window, state.kind)
                .as_bytes(),
        );
        if let Some(block) = state.block {
            fnv.add(format!("|{block}").as_bytes());
        }
        fnv.add(state.eight.map_or("", registry::graph::ScaleGranularity::name).as_bytes());
        for scale in state.fixed.iter().flatten() {
            fnv.add(&scale.to_bits().to_le_bytes());
        }
        for part in &state.parts {
            fnv.add(format!("|{}{:?}", part.name, part.shape).as_bytes());
        }
    }
    fnv.0
}

/// Writes a slot.
pub fn save(slot: &Slot, fingerprint: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(fingerprint.to_le_bytes());
    out.extend((slot.position as u64).to_le_bytes());
    out.extend((slot.mask.prefix() as u64).to_le_bytes());
    out.extend((slot.mask.documents().len() as u64).to_le_bytes());
    for start in slot.mask.documents() {
        out.extend((*start as u64).to_le_bytes());
    }
    out.extend((slot.mask.spans().len() as u64).to_le_bytes());
    for (start, end) in slot.mask.spans() {
        out.extend((*start as u64).to_le_bytes());
        out.extend((*end as u64).to_le_bytes());
    }
    out.extend(u64::from(slot.mask.is_placed()).to_le_bytes());
    let pasts: Vec<_> = slot.memories.iter().flat_map(super::Memory::pasts).collect();
    out.extend((pasts.len() as u32).to_le_bytes());
    for past in pasts {
        out.extend((past.floor() as u64).to_le_bytes());
        let at = out.len();
        out.extend([0; 8]);
        past.to_bytes(&mut out);
        let len = (out.len() - at - 8) as u64;
        out[at..at + 8].copy_from_slice(&len.to_le_bytes());
    }
    let mut sum = Fnv::new();
    sum.add(&out);
    out.extend(sum.0.to_le_bytes());
    out
}

/// Reads a count, and `each` times as many sizes.
fn sizes(left: &mut &[u8], each: usize) -> Result<Vec<usize>, Error> {
    let count = size(left)?.checked_mul(each).ok_or(Error::Short)?;
    let bytes = count.checked_mul(8).and_then(|bytes| left.get(..bytes)).ok_or(Error::Short)?;
    *left = &left[bytes.len()..];
    let mut listed = bytes;
    (0..count).map(|_| size(&mut listed)).collect()
}

/// Reads into an empty slot of the session's model. Only as much is allocated as the bytes hold.
pub fn restore(mut slot: Slot, fingerprint: u64, bytes: &[u8]) -> Result<Slot, Error> {
    let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
        return Err(Error::Few { found: bytes.len() });
    };
    let mut left = body;
    if !left.starts_with(MAGIC) {
        return Err(Error::Version);
    }
    left = &left[MAGIC.len()..];
    let mut expected = Fnv::new();
    expected.add(body);
    if expected.0 != u64::from_le_bytes(*sum) {
        return Err(Error::Checksum);
    }
    if number(&mut left)? != fingerprint {
        return Err(Error::Fingerprint);
    }
    let position = size(&mut left)?;
    if position > u32::MAX as usize {
        return Err(Error::Positions { found: position });
    }
    let prefix = size(&mut left)?;
    let documents = sizes(&mut left, 1)?;
    let ends = sizes(&mut left, 2)?;
    let spans = ends.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let placed = size(&mut left)? != 0;
    let mask = SequenceMask::restored(prefix, documents, spans, placed, position);
    slot.mask = mask.ok_or(Error::Mask)?;
    let Some((count, remaining)) = left.split_first_chunk::<4>() else { return Err(Error::Short) };
    left = remaining;
    let mut pasts: Vec<_> = slot.memories.iter_mut().flat_map(super::Memory::pasts_mut).collect();
    let count = u32::from_le_bytes(*count) as usize;
    let expected = pasts.len();
    if count != expected {
        return Err(Error::Pasts { found: count, expected });
    }
    for past in &mut pasts {
        let floor = size(&mut left)?;
        let len = size(&mut left)?;
        let Some((part, remaining)) = left.split_at_checked(len) else { return Err(Error::Short) };
        past.set_bytes(floor, position, part)?;
        left = remaining;
    }
    if !left.is_empty() {
        return Err(Error::LeftOver { found: left.len() });
    }
    slot.position = position;
    Ok(slot)
}

fn number(left: &mut &[u8]) -> Result<u64, Error> {
    let (head, remaining) = left.split_first_chunk::<8>().ok_or(Error::Short)?;
    *left = remaining;
    Ok(u64::from_le_bytes(*head))
}

fn size(left: &mut &[u8]) -> Result<usize, Error> {
    usize::try_from(number(left)?).map_err(|_| Error::Size)
}
