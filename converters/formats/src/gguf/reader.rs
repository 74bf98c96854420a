//! Reads values and strings from bytes whose lengths are untrusted.

use std::fmt::Arguments;
use std::path::Path;

use super::{Error, MAX_LENGTH, MetadataArray, MetadataKind, MetadataValue};
use crate::shown;

/// Position in a file's bytes.
#[derive(Debug)]
pub(super) struct ByteReader<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    /// Returns the number of bytes before the position.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Returns the number of bytes after the position.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, count: u64, part: Arguments<'_>) -> Result<&'a [u8], Error> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| Error::CutShort {
            file: self.file.into(),
            part: part.to_string(),
            at: self.at(),
            needed: count,
            left: self.left(),
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, part: Arguments<'_>) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64, part)?;
        Ok(bytes.try_into().expect("`take` gives as many as it is asked for"))
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], Error> {
        self.array(format_args!("its first bytes"))
    }

    pub(super) fn u32(&mut self, part: Arguments<'_>) -> Result<u32, Error> {
        self.array(part).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, part: Arguments<'_>) -> Result<i32, Error> {
        self.array(part).map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, part: Arguments<'_>) -> Result<u64, Error> {
        self.array(part).map(u64::from_le_bytes)
    }

    /// Reads a count, and checks that at least `size` bytes follow for each element.
    fn length(&mut self, size: u64, part: Arguments<'_>) -> Result<u64, Error> {
        let count = self.u64(part)?;
        let limit = (self.left() / size).min(MAX_LENGTH);
        if count > limit {
            return Err(Error::Length {
                file: self.file.into(),
                part: part.to_string(),
                found: count,
                most: limit,
            });
        }
        Ok(count)
    }

    /// Checks a count of elements that take at least `size` bytes each.
    pub(super) fn count(&self, count: u64, what: &'static str, size: u64) -> Result<u64, Error> {
        let limit = self.left() / size;
        if count > limit {
            let file = self.file.into();
            let left = self.left();
            return Err(Error::Count { file, what, found: count, most: limit, left });
        }
        Ok(count)
    }

    pub(super) fn text(&mut self, part: Arguments<'_>) -> Result<&'a str, Error> {
        let length = self.length(1, part)?;
        let bytes = self.take(length, part)?;
        std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            file: self.file.into(),
            part: part.to_string(),
            at: error.valid_up_to(),
        })
    }

    /// Reads the value of a key: its kind, then its contents.
    pub(super) fn value(&mut self, key: &str) -> Result<MetadataValue, Error> {
        let key = shown(key);
        let part = format_args!("the value of key `{key}`");
        let kind = self.kind(&key)?;
        Ok(match kind {
            MetadataKind::U8 => MetadataValue::U8(u8::from_le_bytes(self.array(part)?)),
            MetadataKind::I8 => MetadataValue::I8(i8::from_le_bytes(self.array(part)?)),
            MetadataKind::U16 => MetadataValue::U16(u16::from_le_bytes(self.array(part)?)),
            MetadataKind::I16 => MetadataValue::I16(i16::from_le_bytes(self.array(part)?)),
            MetadataKind::U32 => MetadataValue::U32(u32::from_le_bytes(self.array(part)?)),
            MetadataKind::I32 => MetadataValue::I32(i32::from_le_bytes(self.array(part)?)),
            MetadataKind::U64 => MetadataValue::U64(u64::from_le_bytes(self.array(part)?)),
            MetadataKind::I64 => MetadataValue::I64(i64::from_le_bytes(self.array(part)?)),
            MetadataKind::F32 => MetadataValue::F32(f32::from_le_bytes(self.array(part)?)),
            MetadataKind::F64 => MetadataValue::F64(f64::from_le_bytes(self.array(part)?)),
            MetadataKind::Bool => MetadataValue::Bool(self.array::<1>(part)?[0] != 0),
            MetadataKind::String => MetadataValue::String(self.text(part)?.into()),
            MetadataKind::Array => MetadataValue::Array(self.elements(&key, part)?),
        })
    }

    fn kind(&mut self, key: &str) -> Result<MetadataKind, Error> {
        let id = self.i32(format_args!("the kind of key `{key}`"))?;
        let kind = u32::try_from(id).ok().and_then(MetadataKind::from_id);
        kind.ok_or_else(|| Error::UnknownKind {
            file: self.file.into(),
            key: key.into(),
            found: id,
        })
    }

    fn elements(&mut self, key: &str, part: Arguments<'_>) -> Result<MetadataArray, Error> {
        Ok(match self.kind(key)? {
            MetadataKind::U8 => MetadataArray::U8(self.numbers(part, u8::from_le_bytes)?),
            MetadataKind::I8 => MetadataArray::I8(self.numbers(part, i8::from_le_bytes)?),
            MetadataKind::U16 => MetadataArray::U16(self.numbers(part, u16::from_le_bytes)?),
            MetadataKind::I16 => MetadataArray::I16(self.numbers(part, i16::from_le_bytes)?),
            MetadataKind::U32 => MetadataArray::U32(self.numbers(part, u32::from_le_bytes)?),
            MetadataKind::I32 => MetadataArray::I32(self.numbers(part, i32::from_le_bytes)?),
            MetadataKind::U64 => MetadataArray::U64(self.numbers(part, u64::from_le_bytes)?),
            MetadataKind::I64 => MetadataArray::I64(self.numbers(part, i64::from_le_bytes)?),
            MetadataKind::F32 => MetadataArray::F32(self.numbers(part, f32::from_le_bytes)?),
            MetadataKind::F64 => MetadataArray::F64(self.numbers(part, f64::from_le_bytes)?),
            MetadataKind::Bool => MetadataArray::Bool(self.numbers(part, |[x]: [u8; 1]| x != 0)?),
            MetadataKind::String => {
                // Every string takes at least the bytes of its length.
                let count = self.length(8, part)?;
                let mut texts = Vec::with_capacity(count as usize);
                for n in 0..count {
                    texts.push(self.text(format_args!("element {n} of key `{key}`"))?.into());
                }
                MetadataArray::String(texts)
            }
            MetadataKind::Array => {
                return Err(Error::NestedArray { file: self.file.into(), key: key.into() });
            }
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        part: Arguments<'_>,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        let count = self.length(N as u64, part)?;
        let bytes = self.take(count * N as u64, part)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| read(bytes)).collect())
    }
}
