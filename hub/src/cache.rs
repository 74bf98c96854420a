//! Cache of Python's `huggingface_hub`: blobs by etag, snapshots of links, refs.
//!
//! ```text
//! models--owner--name/blobs/ETAG              the bytes; ETAG.incomplete while they arrive
//! models--owner--name/.onboard-checked         blobs that were compared with their hashes
//! models--owner--name/refs/main               the commit that a revision means
//! models--owner--name/snapshots/COMMIT/FILE   a relative link to ../../blobs/ETAG
//! .locks/models--owner--name/ETAG.lock        held while ETAG arrives
//! ```
//!
//! Both programs find each other's downloads ([decision 44](../../docs/decisions/0044-shared-hub-cache.md)).

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::names::{check_id, is_commit, is_plain};
use crate::{Error, check_revision};

/// Tag of folders that backups may omit, <https://bford.info/cachedir/>.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n";

/// Folder of one model in the cache.
#[derive(Debug, Clone)]
pub struct ModelCache {
    root: PathBuf,
    folder: String,
}

impl ModelCache {
    /// Returns the part of the cache at `root` that belongs to the model `id`.
    pub fn new(root: &Path, id: &str) -> Result<Self, Error> {
        check_id(id)?;
        Ok(Self { root: root.to_owned(), folder: format!("models--{}", id.replace('/', "--")) })
    }

    /// Returns the commit of a revision at its last fetch.
    pub fn commit(&self, revision: &str) -> Option<String> {
        check_revision(revision).ok()?;
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let file = fs_err::File::open(self.model_folder().join("refs").join(revision)).ok()?;
        let mut text = String::new();
        file.take(256).read_to_string(&mut text).ok()?;
        let commit = text.trim();
        is_plain(commit).then(|| commit.to_owned())
    }

    /// Returns the folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.model_folder().join("snapshots").join(commit)
    }

    /// Records the commit of a revision atomically.
    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<(), Error> {
        check_revision(revision)?;
        if self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.model_folder().join("refs").join(revision);
        // Revisions such as `refs/pr/1` have folders of their own.
        fs_err::create_dir_all(path.parent().unwrap_or(&path))?;
        let draft = path.with_file_name(format!(
            "{}.{}.tmp",
            path.file_name().unwrap_or_default().display(),
            std::process::id()
        ));
        fs_err::write(&draft, commit)?;
        Ok(fs_err::rename(&draft, &path)?)
    }

    /// Returns the path of the bytes with this etag.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.model_folder().join("blobs").join(etag)
    }

    /// Returns the path of the lock for this etag.
    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.root.join(".locks").join(&self.folder).join(format!("{etag}.lock"))
    }

    /// Returns the number of bytes that have arrived for this etag, in any process.
    pub(crate) fn partial_bytes(&self, etag: &str) -> u64 {
        let entries = fs_err::read_dir(self.model_folder().join("blobs")).into_iter().flatten();
        let ours = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(etag)));
        ours.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    /// Creates the folders that a download needs.
    pub(crate) fn prepare(&self, etag: &str) -> io::Result<()> {
        fs_err::create_dir_all(self.model_folder().join("blobs"))?;
        fs_err::create_dir_all(self.lock(etag).parent().expect("a lock lies in `.locks`"))?;
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // Optional: a cache without the tag works as well.
            fs_err::write(tag, TAG).ok();
        }
        Ok(())
    }

    /// Links the bytes to their name in a snapshot.
    pub(crate) fn link(&self, etag: &str, commit: &str, name: &str) -> io::Result<PathBuf> {
        let place = self.snapshot(commit).join(name);
        if place.exists() {
            return Ok(place);
        }
        fs_err::create_dir_all(place.parent().expect("a file has a folder"))?;
        if place.symlink_metadata().is_ok() {
            fs_err::remove_file(&place)?;
        }
        #[cfg(unix)]
        {
            // `snapshots/COMMIT/a/b` links to `blobs/ETAG`: one step up for each folder.
            let mut target: PathBuf =
                std::iter::repeat_n("..", 2 + name.matches('/').count()).collect();
            target.push("blobs");
            target.push(etag);
            match fs_err::os::unix::fs::symlink(&target, &place) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && place.exists() => {}
                done => done?,
            }
        }
        #[cfg(not(unix))]
        fs_err::copy(self.blob(etag), &place)?;
        Ok(place)
    }

    /// Returns the folder of the model.
    pub(crate) fn model_folder(&self) -> PathBuf {
        self.root.join(&self.folder)
    }
}
