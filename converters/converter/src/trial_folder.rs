//! Temporary folder beside an output, for files that are written only to be measured.

use std::any::Any;
use std::path::{Path, PathBuf};

use crate::error::{Context as _, Result, ensure};
use crate::observer::ConversionObserver;

/// Temporary folder; removed when dropped, and named to the observer, which may remove it at a stop.
pub(crate) struct TrialFolder {
    pub(crate) path: PathBuf,
    _watched: Box<dyn Any>,
}

impl TrialFolder {
    /// Creates the folder. Each shard has its own, because shards may be written at the same time.
    pub(crate) fn begin(
        observer: &dyn ConversionObserver,
        output: &Path,
        shard: Option<(usize, usize)>,
    ) -> Result<Self> {
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        if let Some((no, count)) = shard {
            name.push(format!(".{}-of-{count}", no + 1));
        }
        name.push(".trial");
        let path = output.with_file_name(name);
        ensure!(!path.exists(), "`{}` is in the way; remove it", path.display());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.map_or(Ok(()), fs_err::create_dir_all)?;
        let watched = observer.unfinished(&path, true);
        fs_err::create_dir(&path).context("there is no place to try the conversion")?;
        Ok(Self { path, _watched: watched })
    }
}

impl Drop for TrialFolder {
    fn drop(&mut self) {
        fs_err::remove_dir_all(&self.path).ok();
    }
}
