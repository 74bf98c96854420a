//! Compares files of the cache with the hashes in their names, once.
//!
//! Downloads of this client are compared when they arrive. Other programs, copies and disks put bytes into the cache too.
//! `models--owner--name/.onboard-checked` lists the blobs that were compared, each with the length, the times and the
//! inode that it had, in a line. A blob that has others is compared again.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cache::ModelCache;
use crate::verify::BlobHash;

/// Name of the list in the folder of a model.
const LIST: &str = ".onboard-checked";

/// Upper limit on the size of the list.
const MOST: u64 = 16 << 20;

/// File of a snapshot whose blob was not compared.
struct UncheckedBlob {
    path: PathBuf,
    etag: String,
    hash: BlobHash,
    bytes: u64,
    /// Line of the list.
    line: String,
}

impl ModelCache {
    /// Compares files of a commit with their hashes, except those that were compared before. `begin` gets the number of
    /// bytes to read. Files whose name states no hash are not compared.
    pub fn check(
        &self,
        commit: &str,
        names: &[String],
        begin: impl FnOnce(u64),
    ) -> Result<(), Error> {
        let list = self.model_folder().join(LIST);
        let mut checked = lines(&list);
        let snapshot = self.snapshot(commit);
        let mut unchecked = Vec::new();
        for name in names {
            let blob = blob(&snapshot.join(name))?;
            unchecked.extend(blob.filter(|blob| !checked.contains(&blob.line)));
        }
        if unchecked.is_empty() {
            return Ok(());
        }
        begin(unchecked.iter().map(|blob| blob.bytes).sum());
        for UncheckedBlob { path, etag, hash, line, .. } in unchecked {
            let digest = hash.file(&path)?;
            if digest != etag {
                return Err(Error::Altered {
                    file: path,
                    kind: hash.name(),
                    found: digest,
                    stated: etag,
                });
            }
            let begin = format!("{etag} ");
            checked.retain(|line| !line.starts_with(&begin));
            checked.insert(line);
        }
        // A cache that cannot be written is compared each time.
        keep(&list, &checked).ok();
        Ok(())
    }
}

/// Returns the blob of a file; none if its name is no hash.
fn blob(file: &Path) -> io::Result<Option<UncheckedBlob>> {
    let path = fs_err::canonicalize(file)?;
    let etag = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(hash) = BlobHash::of(&etag) else { return Ok(None) };
    let metadata = fs_err::metadata(&path)?;
    let line = format!("{etag} {}", state(&metadata));
    Ok(Some(UncheckedBlob { path, etag, hash, bytes: metadata.len(), line }))
}

/// Describes the state of a file. The time of the last change of the inode cannot be set back.
fn state(metadata: &std::fs::Metadata) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        format!("{} {} {modified:?} {changed:?}", metadata.len(), metadata.ino())
    }
    #[cfg(not(unix))]
    format!("{} {:?}", metadata.len(), metadata.modified().ok())
}

fn lines(list: &Path) -> BTreeSet<String> {
    let mut text = String::new();
    let read = fs_err::File::open(list).and_then(|file| file.take(MOST).read_to_string(&mut text));
    if read.is_err() {
        return BTreeSet::new();
    }
    text.lines().map(str::to_owned).collect()
}

fn keep(list: &Path, checked: &BTreeSet<String>) -> io::Result<()> {
    let draft = list.with_extension(format!("{}.tmp", std::process::id()));
    let lines: String = checked.iter().flat_map(|line| [line, "\n"]).collect();
    fs_err::write(&draft, lines)?;
    fs_err::rename(&draft, list)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn a_file_is_compared_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(dir.path(), "a/b").unwrap();
        let etag = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        cache.prepare(etag).unwrap();
        fs_err::write(cache.blob(etag), "hello\n").unwrap();
        cache.prepare("other").unwrap();
        fs_err::write(cache.blob("other"), "no hash\n").unwrap();
        cache.link(etag, COMMIT, "w").unwrap();
        cache.link("other", COMMIT, "o").unwrap();
        let names = ["w".to_owned(), "o".to_owned()];
        let check = || {
            let mut read = 0;
            cache.check(COMMIT, &names, |bytes| read = bytes).map(|()| read)
        };
        assert_eq!(check().unwrap(), 6);
        assert_eq!(check().unwrap(), 0, "once");
        let blob = cache.blob(etag);
        let modified = fs_err::metadata(&blob).unwrap().modified().unwrap();
        fs_err::write(&blob, "jello\n").unwrap();
        let file = std::fs::File::options().write(true).open(&blob).unwrap();
        file.set_modified(modified).unwrap();
        let error = check().unwrap_err().to_string();
        assert!(error.contains(etag) && error.contains("remove it"), "{error}");
        fs_err::write(&blob, "hello\n").unwrap();
        assert_eq!(check().unwrap(), 6);
    }
}
