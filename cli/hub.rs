//! Fetches a checkpoint from a model hub into the cache of Python's `huggingface_hub`.

mod settings;
mod show;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use checkpoints::checkpoint::pickled;
use hub::cache::ModelCache;
use hub::{Client, Error, HubOptions, check_file};

use crate::{interrupt, term};

pub(crate) use hub::is_id;
pub(crate) use settings::HubSettings;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Useful files beside the weights; a repository may lack any of them.
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

impl HubSettings {
    /// Returns the folder of the checkpoint `id` at `revision`, fetched if the cache lacks a part of it.
    pub(crate) fn checkpoint(&self, id: &str, revision: &str) -> Result<PathBuf> {
        hub::check_revision(revision)?;
        let cache = ModelCache::new(&self.cache, id)?;
        let missing = match whole(&cache, revision) {
            Ok(folder) => {
                check(&cache, &folder)?;
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
        let progress = show::DownloadProgress::default();
        let client = Client::new(
            &self.endpoint,
            self.token.as_deref(),
            &self.cache,
            concat!("onboard/", env!("CARGO_PKG_VERSION")),
            HubOptions { proxy_from_env: true, ..self.options.clone() },
            move |event| progress.show(&event),
        );
        let client = client.map_err(|error| self.explain(error))?;
        let listing = client.list(id, revision).map_err(|error| self.explain(error))?;
        interrupt::hint("; run the command again to continue the download");
        let fetched = self.all(&client, id, &listing);
        interrupt::hint("");
        fetched?;
        // The revision's name is only now linked to the snapshot: an unfinished snapshot has no name.
        cache
            .set_commit(revision, &listing.commit)
            .with_context(|| format!("cannot write in the cache `{}`", self.cache.display()))?;
        let folder = whole(&cache, revision)
            .map_err(|missing| anyhow!("the hub's `{id}` is not whole: {missing}"))?;
        check(&cache, &folder)?;
        Ok(folder)
    }

    /// Fetches the config, the weights and the useful files beside them.
    fn all(&self, client: &Client, id: &str, listing: &hub::Listing) -> Result<()> {
        let files = &listing.files;
        ensure!(
            files.contains(CONFIG),
            "`{id}` has no {CONFIG}: it is not a checkpoint that transformers can load"
        );
        let mut names: Vec<String> = vec![CONFIG.to_owned()];
        names
            .extend(OPTIONAL.iter().filter(|name| files.contains(**name)).map(ToString::to_string));
        if files.contains(INDEX) {
            let index = client.fetch(id, &listing.commit, INDEX);
            for shard in shards(&index.map_err(|error| self.explain(error))?)? {
                ensure!(
                    files.contains(&shard),
                    "the index of `{id}` names `{shard}`, which the repository lacks"
                );
                names.push(shard);
            }
        } else if files.contains(SINGLE) {
            names.push(SINGLE.to_owned());
        } else if let Some(file) = files.iter().find(|name| pickled::is_pickled(name)) {
            bail!("{}", pickled::advice(&format!("`{id}`"), file, id));
        } else {
            bail!("`{id}` has no safetensors weights: expected {SINGLE} or {INDEX}");
        }
        for name in &names {
            client.fetch(id, &listing.commit, name).map_err(|error| self.explain(error))?;
        }
        Ok(())
    }

    /// Adds advice to an error of the hub.
    fn explain(&self, error: Error) -> anyhow::Error {
        let token = if self.token.is_some() {
            "the token in use has no access: check that it is valid and that its account may read this model"
        } else {
            "set HF_TOKEN to a token of an account that may read it"
        };
        let status = error.status();
        let advice = match (&error, status) {
            (_, Some(404)) => "it was not found; check the spelling and --revision".to_owned(),
            (_, Some(401)) => format!("it is private or gated, or does not exist; {token}"),
            (_, Some(403)) => format!(
                "it is gated and its terms are not accepted; accept them on its page and {token}"
            ),
            (_, Some(_)) => "try again later".to_owned(),
            (Error::Connection { .. }, _) => {
                "check the connection and HF_ENDPOINT, or run the command again; what has arrived \
                 is kept"
                    .to_owned()
            }
            (Error::Endpoint(_), _) => "correct HF_ENDPOINT".to_owned(),
            (Error::Token, _) => "the token comes from HF_TOKEN or `hf auth login`".to_owned(),
            (Error::Answer { .. }, _) => {
                format!("check that `{}` (HF_ENDPOINT) is a model hub", self.endpoint)
            }
            _ => String::new(),
        };
        if advice.is_empty() { error.into() } else { anyhow!("{error}; {advice}") }
    }
}

/// Returns the folder of a complete checkpoint in the cache, or the missing part.
fn whole(cache: &ModelCache, revision: &str) -> Result<PathBuf, String> {
    let folder = cache.snapshot(&cache.commit(revision).ok_or_else(|| missing(CONFIG))?);
    if !folder.join(CONFIG).exists() {
        return Err(missing(CONFIG));
    }
    if folder.join(INDEX).exists() {
        for shard in shards(&folder.join(INDEX)).map_err(|error| format!("{error:#}"))? {
            if !folder.join(&shard).exists() {
                return Err(missing(&shard));
            }
        }
    } else if !folder.join(SINGLE).exists() {
        return Err(missing(SINGLE));
    }
    Ok(folder)
}

/// Says that a file is missing.
fn missing(name: &str) -> String {
    format!("{name} is missing")
}

/// Compares the files of a checkpoint in the cache with their hashes, once.
fn check(cache: &ModelCache, folder: &Path) -> Result<()> {
    /// Number of bytes that take a while.
    const MANY: u64 = 1 << 30;
    let mut names: BTreeSet<String> = [CONFIG, INDEX, SINGLE].map(str::to_owned).into();
    names.extend(OPTIONAL.map(str::to_owned));
    if folder.join(INDEX).exists() {
        names.extend(shards(&folder.join(INDEX))?);
    }
    names.retain(|name| folder.join(name).exists());
    let names: Vec<String> = names.into_iter().collect();
    let commit = folder.file_name().unwrap_or_default().to_string_lossy();
    cache.check(&commit, &names, |bytes| {
        if bytes >= MANY {
            term::note(&format!(
                "comparing {} with their hashes, once",
                registry::quantity::bytes(bytes)
            ));
        }
    })?;
    Ok(())
}

/// Returns the files that an index names, each checked to lie inside the repository.
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
