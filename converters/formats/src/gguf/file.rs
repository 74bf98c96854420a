//! GGUF file, or files of a split set, with their bytes.

use std::path::{Path, PathBuf};

use super::{Error, GgufHeader, GgufTensor, Metadata, split};
use crate::mmap::FileMap;
use crate::shown;

/// Open file or split set. The bytes of tensors are read when they are accessed.
#[derive(Debug)]
pub struct GgufFile {
    paths: Vec<PathBuf>,
    maps: Vec<FileMap>,
    /// Length of the header of each file, without padding.
    headers: Vec<u64>,
    version: u32,
    alignment: u64,
    /// Keys of each file.
    metadata: Vec<Metadata>,
    tensors: Vec<GgufTensor>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<usize>,
}

impl GgufFile {
    /// Opens a file. For the first file of a split set, the others in its folder are opened too.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let map = FileMap::open(path)?;
        let GgufHeader { version, metadata, tensors, alignment, unpadded, data_start: _ } =
            GgufHeader::parse(path, &map)?;
        let paths = vec![path.to_owned()];
        let maps = vec![map];
        let headers = vec![unpadded];
        let metadata = vec![metadata];
        let by_name = Vec::new();
        let mut file =
            Self { paths, maps, headers, version, alignment, metadata, tensors, by_name };
        if let Some(set) = split::SplitSet::of(path, file.metadata())? {
            for no in 1..set.count {
                file.append(&set, no)?;
            }
            set.check_tensors(path, file.tensors.len() as u64)?;
        }
        file.index()?;
        Ok(file)
    }

    fn append(&mut self, set: &split::SplitSet, no: u32) -> Result<(), Error> {
        let path = set.path(no);
        if !path.exists() {
            let first = self.paths[0].clone();
            let count = set.count;
            return Err(Error::SplitMissing { file: path, first, count });
        }
        let map = FileMap::open(&path)?;
        let header = GgufHeader::parse(&path, &map)?;
        set.check(&path, &header.metadata, no)?;
        let file = self.paths.len();
        self.tensors.extend(header.tensors.into_iter().map(|info| GgufTensor { file, ..info }));
        self.paths.push(path);
        self.maps.push(map);
        self.headers.push(header.unpadded);
        self.metadata.push(header.metadata);
        Ok(())
    }

    fn index(&mut self) -> Result<(), Error> {
        let tensors = &self.tensors;
        self.by_name = (0..tensors.len()).collect();
        self.by_name.sort_by_key(|&n| &tensors[n].name);
        let twice =
            self.by_name.windows(2).find(|two| tensors[two[0]].name == tensors[two[1]].name);
        let Some(&[_, second]) = twice else { return Ok(()) };
        let info = &tensors[second];
        let file = self.paths[info.file].clone();
        Err(Error::DuplicateTensor { file, tensor: shown(&info.name) })
    }

    /// Returns the keys of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata[0]
    }

    /// Returns the keys of each file of a set.
    pub fn metadata_of_files(&self) -> &[Metadata] {
        &self.metadata
    }

    /// Returns the tensors in file order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// Returns a tensor by its name.
    pub fn info(&self, name: &str) -> Option<&GgufTensor> {
        let position = self.by_name.binary_search_by(|&n| self.tensors[n].name.as_str().cmp(name));
        position.ok().map(|at| &self.tensors[self.by_name[at]])
    }

    /// Returns the bytes of a tensor, without padding.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let info = self.info(name)?;
        // Within the map: the header was checked against its length.
        let begin = info.offset as usize;
        self.maps[info.file].get(begin..begin + info.bytes as usize)
    }

    /// Returns a sentence for each place behind the header and the tensors that is no padding. Padding is zero and reaches to
    /// the alignment; a file may end without it.
    pub fn stray_bytes(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for (n, (path, map)) in self.paths.iter().zip(&self.maps).enumerate() {
            let of_file = self.tensors.iter().filter(|info| info.file == n);
            let mut ranges: Vec<(usize, usize)> = of_file
                .map(|info| (info.offset as usize, (info.offset + info.bytes) as usize))
                .collect();
            ranges.sort_unstable();
            let Some(&(_, last)) = ranges.last() else { continue };
            ranges.insert(0, (0, self.headers[n] as usize));
            let gaps = ranges.windows(2).map(|pair| (pair[0].1, pair[1].0));
            let padded = last.next_multiple_of(self.alignment as usize).min(map.len());
            for (from, to) in gaps.chain([(last, padded)]) {
                let gap = map.get(from..to).unwrap_or_default();
                if let Some(at) = gap.iter().position(|&byte| byte != 0) {
                    let at = from + at;
                    sentences.push(format!(
                        "`{}`: byte {at} is in no tensor and not zero",
                        path.display()
                    ));
                } else if gap.len() as u64 >= self.alignment {
                    sentences.push(outside(path, from, to));
                }
            }
            if ![last, last.next_multiple_of(self.alignment as usize)].contains(&map.len()) {
                sentences.push(outside(path, padded, map.len()));
            }
        }
        sentences
    }

    /// Returns the paths of the files; the first of a set comes first.
    pub fn files(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the alignment of the tensors in the first file.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }
}

/// Describes bytes of a file that belong to nothing.
fn outside(path: &Path, from: usize, to: usize) -> String {
    format!("`{}`: bytes {from} to {to} are in no tensor", path.display())
}
