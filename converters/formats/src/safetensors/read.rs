//! Safetensors file, with its header read and its bytes mapped on first use.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Error, SafetensorsHeader, TensorEntry};
use crate::mmap::{FileMap, MappedRange};

/// Open file. Only its header is read until a tensor's bytes are requested.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    header: SafetensorsHeader,
    map: OnceLock<FileMap>,
}

impl SafetensorsFile {
    /// Reads and checks the header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let header = SafetensorsHeader::read(path)?;
        Ok(Self { path: path.into(), header, map: OnceLock::new() })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the header.
    pub fn header(&self) -> &SafetensorsHeader {
        &self.header
    }

    /// Returns a tensor's entry and its bytes, or `None` if the file has no such tensor.
    pub fn tensor(&self, name: &str) -> Result<Option<(&TensorEntry, &[u8])>, Error> {
        let Some(entry) = self.header.tensors.get(name) else { return Ok(None) };
        Ok(Some((entry, self.slice(entry.range)?)))
    }

    /// Returns the bytes of a range that the header gave.
    pub fn slice(&self, range: (u64, u64)) -> Result<&[u8], Error> {
        Ok(self.range(range)?.bytes())
    }

    /// Returns a range that the header gave; its bytes can be copied piece by piece.
    pub fn range(&self, (begin, end): (u64, u64)) -> Result<MappedRange<'_>, Error> {
        let map = self.map()?;
        // The header's ranges lie in `file_len`, which `map` has compared with the map's length.
        Ok(map.range(begin as usize..end as usize).unwrap_or_default())
    }

    fn map(&self) -> Result<&FileMap, Error> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map = FileMap::open(&self.path)?;
        let expected = self.header.file_len;
        let length = map.len() as u64;
        if expected != length {
            return Err(Error::Changed { file: self.path.clone(), expected, found: length });
        }
        Ok(self.map.get_or_init(|| map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_shrinks_after_its_header_was_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let json = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json);
        bytes.extend_from_slice(&[1, 2]);
        fs_err::write(&path, &bytes).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        fs_err::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(file.tensor("a"), Err(Error::Changed { .. })));
        fs_err::write(&path, &bytes).unwrap();
        let (entry, data) = file.tensor("a").unwrap().unwrap();
        assert_eq!((entry.shape.as_slice(), data), (&[2][..], &[1, 2][..]));
        assert!(file.tensor("b").unwrap().is_none());
        assert_eq!(file.path(), path);
        assert_eq!(file.header().tensors.len(), 1);
    }
}
