//! Fetches a checkpoint from a model hub into its local cache.
//!
//! The transfer itself is hf-hub's, which renames what it received without
//! comparing it to what was announced. So files arrive in a side folder of the
//! cache, are compared there (size, and SHA-256 where the hub states one), and
//! only then get their name: what other programs find in the cache is whole.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo, Metadata};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use indicatif::ProgressBar;
use sha2::{Digest as _, Sha256};

use crate::{term, text};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Files beside the weights that are worth having; a repository may lack any of them.
const OPTIONAL: [&str; 9] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Where the hub is and what may be asked of it.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    /// The address, without a slash at its end.
    pub endpoint: String,
    /// Sent with every request.
    pub token: Option<String>,
    /// The folder that holds `models--*`.
    pub cache: PathBuf,
    /// Ask nobody; what is not in the cache is missing.
    pub offline: bool,
}

impl Hub {
    /// Reads the environment variables that Hugging Face's own tools read.
    pub(crate) fn from_env() -> Self {
        let set = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        let home = Cache::from_env();
        let cache = set("HF_HUB_CACHE").map_or_else(|| home.path().clone(), PathBuf::from);
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let truth = ["1", "on", "yes", "true"];
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: set("HF_TOKEN").or_else(|| home.token()),
            cache,
            offline: set("HF_HUB_OFFLINE")
                .is_some_and(|value| truth.contains(&value.to_lowercase().as_str())),
        }
    }

    /// The folder of the checkpoint `id` at `revision`, fetched if the cache lacks a part of it.
    pub(crate) fn checkpoint(&self, id: &str, revision: &str) -> Result<PathBuf> {
        check_id(id)?;
        check_revision(revision)?;
        let cache = Cache::new(self.cache.clone());
        let named = cache.repo(repo(id, revision));
        let missing = match snapshot(&named) {
            Ok(folder) => {
                term::note(&format!("using `{id}` from the cache: {}", folder.display()));
                return Ok(folder);
            }
            Err(missing) => missing,
        };
        if self.offline {
            bail!(
                "`{id}` at `{revision}` is not whole in the cache `{}` ({missing}) and \
                 HF_HUB_OFFLINE forbids to fetch it; unset HF_HUB_OFFLINE, or give a folder",
                self.cache.display()
            );
        }
        let api = self.api(self.cache.clone())?;
        let info = api
            .repo(repo(id, revision))
            .info()
            .map_err(|error| self.explain(&error, &format!("`{id}` at revision `{revision}`")))?;
        ensure!(is_plain(&info.sha), "{} names no usable commit for `{id}`", self.endpoint);
        let files: BTreeSet<String> =
            info.siblings.into_iter().map(|file| file.rfilename).collect();
        let fetch = Fetch {
            hub: self,
            id,
            commit: &info.sha,
            real: cache.repo(repo(id, &info.sha)),
            staged_cache: Cache::new(self.cache.join(".onboard-incoming")),
            api: self.api(self.cache.join(".onboard-incoming"))?.repo(repo(id, &info.sha)),
        };
        fetch.all(&files)?;
        // Only now does the revision's name lead here: an unfinished snapshot has none.
        named
            .create_ref(&info.sha)
            .with_context(|| format!("cannot write in the cache `{}`", self.cache.display()))?;
        snapshot(&named).map_err(|missing| anyhow!("the hub's `{id}` is not whole: {missing}"))
    }

    fn api(&self, cache: PathBuf) -> Result<Api> {
        ApiBuilder::from_cache(Cache::new(cache))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .with_user_agent("onboard", env!("CARGO_PKG_VERSION"))
            .build()
            .context("cannot set up the connection to the hub")
    }

    /// Says what an answer of the hub means for `what`, and what to do.
    fn explain(&self, error: &ApiError, what: &str) -> anyhow::Error {
        let hub = &self.endpoint;
        let token = if self.token.is_some() {
            "the token in use has no access: check that it is valid and that its account may read this model"
        } else {
            "set HF_TOKEN to a token of an account that may read it"
        };
        let status = match error {
            ApiError::RequestError(request) => match request.as_ref() {
                ureq::Error::StatusCode(code) => Some(*code),
                _ => None,
            },
            _ => None,
        };
        match status {
            Some(404) => {
                anyhow!("{what} was not found on {hub} (404); check the spelling and --revision")
            }
            Some(401) => anyhow!(
                "{hub} refused {what} (401): it is private or gated, or does not exist; {token}"
            ),
            Some(403) => anyhow!(
                "{hub} refused {what} (403): it is gated and its terms are not accepted; accept them on its page and {token}"
            ),
            Some(code) => anyhow!("{hub} answered {code} for {what}; try again later"),
            None => anyhow!(
                "cannot fetch {what} from {hub}: {error}; check the connection and HF_ENDPOINT, \
                 or work from the cache with HF_HUB_OFFLINE=1"
            ),
        }
    }
}

/// One repository at one commit on its way into the cache.
struct Fetch<'a> {
    hub: &'a Hub,
    id: &'a str,
    commit: &'a str,
    real: CacheRepo,
    staged_cache: Cache,
    api: ApiRepo,
}

impl Fetch<'_> {
    fn all(&self, files: &BTreeSet<String>) -> Result<()> {
        let id = self.id;
        ensure!(
            files.contains(CONFIG),
            "`{id}` has no {CONFIG}: it is not a checkpoint that transformers can load"
        );
        let mut wanted: Vec<String> = vec![CONFIG.to_owned()];
        wanted
            .extend(OPTIONAL.iter().filter(|name| files.contains(**name)).map(ToString::to_string));
        if files.contains(INDEX) {
            let path = self.one(INDEX)?;
            for shard in shards(&path)? {
                ensure!(
                    files.contains(&shard),
                    "the index of `{id}` names `{shard}`, which the repository lacks"
                );
                wanted.push(shard);
            }
        } else if files.contains(SINGLE) {
            wanted.push(SINGLE.to_owned());
        } else {
            bail!(
                "`{id}` has no safetensors weights ({SINGLE} or {INDEX}); convert them with transformers' save_pretrained first"
            );
        }
        for name in &wanted {
            self.one(name)?;
        }
        // What is left there are links to blobs that have moved; nobody misses them.
        fs_err::remove_dir_all(self.staged_cache.path().join(repo(id, "").folder_name())).ok();
        Ok(())
    }

    /// The path of one file in the cache, fetched if it is not there.
    fn one(&self, name: &str) -> Result<PathBuf> {
        check_file(name)?;
        let place = self.real.pointer_path(self.commit).join(name);
        if place.exists() {
            return Ok(place);
        }
        let what = format!("`{name}` of `{}`", self.id);
        let meta = self
            .hub
            .api(self.hub.cache.clone())?
            .metadata(&self.api.url(name))
            .map_err(|error| self.hub.explain(&error, &what))?;
        ensure!(
            is_plain(meta.etag()) && is_plain(meta.commit_hash()),
            "{} sent an unusable etag or commit for {what}",
            self.hub.endpoint
        );
        let blob = self.real.blob_path(meta.etag());
        if !fs_err::metadata(&blob).is_ok_and(|found| found.len() == meta.size() as u64) {
            let staged = self.transfer(name, &meta, &what)?;
            fs_err::create_dir_all(blob.parent().expect("a blob lies in `blobs`"))?;
            fs_err::rename(&staged, &blob)?;
        }
        link(&blob, &place)?;
        Ok(place)
    }

    /// Receives one file beside the cache and compares it with what was announced.
    fn transfer(&self, name: &str, meta: &Metadata, what: &str) -> Result<PathBuf> {
        let size = meta.size() as u64;
        let staged = self.staged_cache.repo(repo(self.id, self.commit)).blob_path(meta.etag());
        let part = staged.with_extension("part");
        // A part as long as the file cannot be continued: the hub has no more bytes to offer.
        if fs_err::metadata(&part).is_ok_and(|found| found.len() >= size) {
            fs_err::remove_file(&part)?;
        }
        let bar = term::byte_bar(size, name);
        if bar.is_hidden() {
            term::note(&format!("downloading {name} ({})", text::bytes(size)));
        }
        let received = self.api.download_with_progress(name, Bar(bar.clone()));
        bar.finish_and_clear();
        if let Err(error) = received {
            let kept = fs_err::metadata(&part).map_or(0, |found| found.len());
            if kept > 0 && kept < size && !is_status(&error) {
                bail!(
                    "the transfer of {what} broke off at {} of {} ({error}); run the command again to continue it",
                    text::bytes(kept),
                    text::bytes(size)
                );
            }
            return Err(self.hub.explain(&error, what));
        }
        let found = fs_err::metadata(&staged)?.len();
        if found != size {
            discard(&staged)?;
            bail!(
                "{what} arrived with {found} bytes; the hub announced {size}. It was removed; run the command again"
            );
        }
        // Large files are stored under their SHA-256; small ones under a git hash.
        if meta.etag().len() == 64 {
            let hash = sha256(&staged)?;
            if hash != meta.etag() {
                discard(&staged)?;
                bail!(
                    "{what} arrived damaged: its SHA-256 is {hash}, the hub states {}. It was removed; run the command again",
                    meta.etag()
                );
            }
        }
        Ok(staged)
    }
}

/// Whether this is the hub's refusal rather than a broken transfer.
fn is_status(error: &ApiError) -> bool {
    matches!(error, ApiError::RequestError(request) if matches!(**request, ureq::Error::StatusCode(_)))
}

/// Shows hf-hub's progress; hf-hub would otherwise draw on terminals and pipes alike.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn init(&mut self, size: usize, _filename: &str) {
        self.0.set_length(size as u64);
        self.0.set_position(0);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {}
}

fn repo(id: &str, revision: &str) -> Repo {
    Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned())
}

/// The folder of a whole checkpoint in the cache, or what it lacks.
fn snapshot(cached: &CacheRepo) -> Result<PathBuf, String> {
    let config = cached.get(CONFIG).ok_or_else(|| format!("{CONFIG} is missing"))?;
    let folder = config.parent().expect("a file has a folder").to_owned();
    if folder.join(INDEX).exists() {
        for shard in shards(&folder.join(INDEX)).map_err(|error| format!("{error:#}"))? {
            if !folder.join(&shard).exists() {
                return Err(format!("{shard} is missing"));
            }
        }
    } else if !folder.join(SINGLE).exists() {
        return Err(format!("{SINGLE} is missing"));
    }
    Ok(folder)
}

/// The files that an index names, each checked to lie inside the repository.
fn shards(index: &Path) -> Result<BTreeSet<String>> {
    let bytes = registry::file::read(index, registry::file::CONFIG)?;
    let json: serde_json::Value = serde_json::from_slice(&bytes)
        .with_context(|| format!("`{}` is not JSON", index.display()))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| anyhow!("`{}` has no `weight_map`", index.display()))?;
    let mut names = BTreeSet::new();
    for file in map.values() {
        let file = file.as_str().ok_or_else(|| {
            anyhow!("`{}`: `weight_map` must map names to file names", index.display())
        })?;
        check_file(file).with_context(|| format!("`{}` cannot be followed", index.display()))?;
        names.insert(file.to_owned());
    }
    Ok(names)
}

/// Whether a word can be one component of a path and of an address.
fn is_plain(word: &str) -> bool {
    (1..=128).contains(&word.len())
        && !word.starts_with('.')
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Whether a word can be a hub id: `owner/name`.
pub(crate) fn is_id(word: &str) -> bool {
    word.split_once('/').is_some_and(|(owner, name)| is_plain(owner) && is_plain(name))
}

fn check_id(id: &str) -> Result<()> {
    ensure!(is_id(id), "`{id}` is neither a folder nor a hub id; an id looks like `owner/name`");
    Ok(())
}

fn check_revision(revision: &str) -> Result<()> {
    ensure!(
        !revision.is_empty() && revision.split('/').all(is_plain),
        "`{revision}` cannot be a revision; give a branch, a tag or a commit"
    );
    Ok(())
}

/// File names come from the repository: they must stay inside the folder they are put in.
fn check_file(name: &str) -> Result<()> {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        inside && name.split('/').all(is_plain),
        "the file name `{name}` is refused: it must be a plain path inside the repository"
    );
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = registry::file::open(path)?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

/// Removes a blob that is not what it should be.
fn discard(staged: &Path) -> Result<()> {
    fs_err::remove_file(staged).with_context(|| "a damaged download stays; remove it by hand")
}

/// Gives a blob its name in the snapshot, as the cache's other users do.
fn link(blob: &Path, place: &Path) -> Result<()> {
    let folder = place.parent().expect("a file has a folder");
    fs_err::create_dir_all(folder)?;
    if place.symlink_metadata().is_ok() {
        fs_err::remove_file(place)?;
    }
    #[cfg(unix)]
    {
        // `snapshots/<commit>/a/b` leads to `blobs/<etag>`: one step up for each folder.
        let root = blob.parent().and_then(Path::parent).expect("a blob lies in `blobs`");
        let depth = folder.strip_prefix(root).map_or(0, |path| path.components().count());
        let mut target: PathBuf = std::iter::repeat_n("..", depth).collect();
        target.push("blobs");
        target.push(blob.file_name().expect("a blob has a name"));
        fs_err::os::unix::fs::symlink(target, place)?;
    }
    #[cfg(not(unix))]
    fs_err::copy(blob, place).map(drop)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        for good in ["config.json", "model-00001-of-00002.safetensors", "sub/a.json"] {
            assert!(check_file(good).is_ok(), "{good}");
        }
        for bad in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a\\b", "a b", ".hidden", "x?y"] {
            assert!(check_file(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_have_one_slash() {
        assert!(is_id("owner/name-1.2B"));
        for bad in ["name", "a/b/c", "../x", "./x", "/abs/x", "a/", "a/..", "C:\\x/y"] {
            assert!(!is_id(bad), "{bad}");
        }
    }
}
