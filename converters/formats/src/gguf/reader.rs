//! Reads values and strings from bytes whose lengths are untrusted.

use std::fmt::Arguments;
use std::path::Path;

use super::{Array, Error, Kind, MAX_LENGTH, Value};
use crate::shown;

/// Position in a file's bytes.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
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
        let found = self.u64(part)?;
        let most = (self.left() / size).min(MAX_LENGTH);
        if found > most {
            return Err(Error::Length {
                file: self.file.into(),
                part: part.to_string(),
                found,
                most,
            });
        }
        Ok(found)
    }

    /// Checks a count of elements that take at least `size` bytes each.
    pub(super) fn count(&self, found: u64, what: &'static str, size: u64) -> Result<u64, Error> {
        let most = self.left() / size;
        if found > most {
            let (file, left) = (self.file.into(), self.left());
            return Err(Error::Count { file, what, found, most, left });
        }
        Ok(found)
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
    pub(super) fn value(&mut self, key: &str) -> Result<Value, Error> {
        let key = shown(key);
        let part = format_args!("the value of key `{key}`");
        let kind = self.kind(&key)?;
        Ok(match kind {
            Kind::U8 => Value::U8(u8::from_le_bytes(self.array(part)?)),
            Kind::I8 => Value::I8(i8::from_le_bytes(self.array(part)?)),
            Kind::U16 => Value::U16(u16::from_le_bytes(self.array(part)?)),
            Kind::I16 => Value::I16(i16::from_le_bytes(self.array(part)?)),
            Kind::U32 => Value::U32(u32::from_le_bytes(self.array(part)?)),
            Kind::I32 => Value::I32(i32::from_le_bytes(self.array(part)?)),
            Kind::U64 => Value::U64(u64::from_le_bytes(self.array(part)?)),
            Kind::I64 => Value::I64(i64::from_le_bytes(self.array(part)?)),
            Kind::F32 => Value::F32(f32::from_le_bytes(self.array(part)?)),
            Kind::F64 => Value::F64(f64::from_le_bytes(self.array(part)?)),
            Kind::Bool => Value::Bool(self.array::<1>(part)?[0] != 0),
            Kind::String => Value::String(self.text(part)?.into()),
            Kind::Array => Value::Array(self.elements(&key, part)?),
        })
    }

    fn kind(&mut self, key: &str) -> Result<Kind, Error> {
        let found = self.i32(format_args!("the kind of key `{key}`"))?;
        let kind = u32::try_from(found).ok().and_then(Kind::from_id);
        let unknown = || Error::UnknownKind { file: self.file.into(), key: key.into(), found };
        kind.ok_or_else(unknown)
    }

    fn elements(&mut self, key: &str, part: Arguments<'_>) -> Result<Array, Error> {
        Ok(match self.kind(key)? {
            Kind::U8 => Array::U8(self.numbers(part, u8::from_le_bytes)?),
            Kind::I8 => Array::I8(self.numbers(part, i8::from_le_bytes)?),
            Kind::U16 => Array::U16(self.numbers(part, u16::from_le_bytes)?),
            Kind::I16 => Array::I16(self.numbers(part, i16::from_le_bytes)?),
            Kind::U32 => Array::U32(self.numbers(part, u32::from_le_bytes)?),
            Kind::I32 => Array::I32(self.numbers(part, i32::from_le_bytes)?),
            Kind::U64 => Array::U64(self.numbers(part, u64::from_le_bytes)?),
            Kind::I64 => Array::I64(self.numbers(part, i64::from_le_bytes)?),
            Kind::F32 => Array::F32(self.numbers(part, f32::from_le_bytes)?),
            Kind::F64 => Array::F64(self.numbers(part, f64::from_le_bytes)?),
            Kind::Bool => Array::Bool(self.numbers(part, |[x]: [u8; 1]| x != 0)?),
            Kind::String => {
                // Every string takes at least the bytes of its length.
                let count = self.length(8, part)?;
                let mut texts = Vec::with_capacity(count as usize);
                for n in 0..count {
                    texts.push(self.text(format_args!("element {n} of key `{key}`"))?.into());
                }
                Array::String(texts)
            }
            Kind::Array => {
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
