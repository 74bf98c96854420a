//! Fetches whole checkpoints: config, weights, and the useful files beside them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use checkpoints::checkpoint::{INDEX, SINGLE, pickled};
use registry::listing::error_chain;

use crate::cache::ModelCache;
use crate::client::{Client, Listing};
use crate::error::Error;
use crate::event::Event;
use crate::names::{check_file, check_revision};
use crate::options::HubOptions;
use crate::settings::HubSettings;

const CONFIG: &str = "config.json";

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

/// Observer of a fetched checkpoint. Every method has a default that does nothing.
pub trait FetchObserver {
    /// Takes an event of the client.
    fn event(&self, _event: &Event<'_>) {}

    /// Takes the folder of a checkpoint that is whole in the cache.
    fn cached(&self, _id: &str, _folder: &Path) {}

    /// Takes the number of bytes that are compared with their hashes.
    fn comparing(&self, _bytes: u64) {}

    /// Takes true while files arrive, of which an interrupted download keeps what is there.
    fn downloading(&self, _active: bool) {}
}

impl FetchObserver for () {}

/// Reason why a checkpoint cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The repository, the cache or the settings do not fit.
    #[error("{message}")]
    Refused {
        /// Place, value found, value expected and remedy.
        message: String,
    },
    /// A step failed.
    #[error("{message}")]
    Context {
        /// Description of the step.
        message: String,
        /// Error of the step.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Error of the client.
    #[error(transparent)]
    Hub(#[from] Error),
    /// A file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Returns the error with a message.
fn refused(message: String) -> CheckpointError {
    CheckpointError::Refused { message }
}

/// Returns the error of a step.
fn error_in(
    message: String,
    error: impl std::error::Error + Send + Sync + 'static,
) -> CheckpointError {
    CheckpointError::Context { message, source: Box::new(error) }
}

impl HubSettings {
    /// Returns the folder of the checkpoint `id` at `revision`, fetched if the cache lacks a part of it.
    /// `user_agent` names the program.
    pub fn checkpoint(
        &self,
        id: &str,
        revision: &str,
        user_agent: &str,
        observer: &Rc<dyn FetchObserver>,
    ) -> Result<PathBuf, CheckpointError> {
        check_revision(revision)?;
        let cache = ModelCache::new(&self.cache, id)?;
        let missing = match whole(&cache, revision) {
            Ok(folder) => {
                check(&cache, &folder, &**observer)?;
                observer.cached(id, &folder);
                return Ok(folder);
            }
            Err(missing) => missing,
        };
        if self.offline {
            return Err(refused(format!(
                "`{id}` at `{revision}` is not whole in the cache `{}` ({missing}) and \
                 HF_HUB_OFFLINE forbids to fetch it; unset HF_HUB_OFFLINE, or give a folder",
                self.cache.display()
            )));
        }
        let listener = Rc::clone(observer);
        let client = Client::new(
            &self.endpoint,
            self.token.as_deref(),
            &self.cache,
            user_agent,
            HubOptions { proxy_from_env: true, ..self.options.clone() },
            move |event| listener.event(&event),
        );
        let client = client.map_err(|error| self.explain(error))?;
        let listing = client.list(id, revision).map_err(|error| self.explain(error))?;
        observer.downloading(true);
        let fetched = self.all(&client, id, &listing);
        observer.downloading(false);
        fetched?;
        // The revision's name is only now linked to the snapshot: an unfinished snapshot has no name.
        cache.set_commit(revision, &listing.commit).map_err(|error| {
            error_in(format!("cannot write in the cache `{}`", self.cache.display()), error)
        })?;
        let folder = whole(&cache, revision)
            .map_err(|missing| refused(format!("the hub's `{id}` is not whole: {missing}")))?;
        check(&cache, &folder, &**observer)?;
        Ok(folder)
    }

    /// Fetches the config, the weights and the useful files beside them.
    fn all(&self, client: &Client, id: &str, listing: &Listing) -> Result<(), CheckpointError> {
        let files = &listing.files;
        if !files.contains(CONFIG) {
            return Err(refused(format!(
                "`{id}` has no {CONFIG}: it is not a checkpoint that transformers can load"
            )));
        }
        let mut names: Vec<String> = vec![CONFIG.to_owned()];
        names
            .extend(OPTIONAL.iter().filter(|name| files.contains(**name)).map(ToString::to_string));
        if files.contains(INDEX) {
            let index = client.fetch(id, &listing.commit, INDEX);
            for shard in shards(&index.map_err(|error| self.explain(error))?)? {
                if !files.contains(&shard) {
                    return Err(refused(format!(
                        "the index of `{id}` names `{shard}`, which the repository lacks"
                    )));
                }
                names.push(shard);
            }
        } else if files.contains(SINGLE) {
            names.push(SINGLE.to_owned());
        } else if let Some(file) = files.iter().find(|name| pickled::is_pickled(name)) {
            return Err(refused(pickled::advice(&format!("`{id}`"), file, id)));
        } else {
            return Err(refused(format!(
                "`{id}` has no safetensors weights: expected {SINGLE} or {INDEX}"
            )));
        }
        for name in &names {
            client.fetch(id, &listing.commit, name).map_err(|error| self.explain(error))?;
        }
        Ok(())
    }

    /// Adds advice to an error of the hub.
    fn explain(&self, error: Error) -> CheckpointError {
        let token = if self.token.is_some() {
            "the token in use has no access: check that it is valid and that its account may read this model"
        } else {
            "set HF_TOKEN to a token of an account that may read it"
        };
        let status = error.status();
        let advice = match (&error, status) {
            (_, Some(404)) => {
                "it was not found; check the spelling and the option `revision`".to_owned()
            }
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
        if advice.is_empty() { error.into() } else { refused(format!("{error}; {advice}")) }
    }
}

/// Returns the folder of a complete checkpoint in the cache, or the missing part.
fn whole(cache: &ModelCache, revision: &str) -> Result<PathBuf, String> {
    let folder = cache.snapshot(&cache.commit(revision).ok_or_else(|| missing(CONFIG))?);
    if !folder.join(CONFIG).exists() {
        return Err(missing(CONFIG));
    }
    if folder.join(INDEX).exists() {
        for shard in shards(&folder.join(INDEX)).map_err(|error| error_chain(&error))? {
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
fn check(
    cache: &ModelCache,
    folder: &Path,
    observer: &dyn FetchObserver,
) -> Result<(), CheckpointError> {
    let mut names: BTreeSet<String> = [CONFIG, INDEX, SINGLE].map(str::to_owned).into();
    names.extend(OPTIONAL.map(str::to_owned));
    if folder.join(INDEX).exists() {
        names.extend(shards(&folder.join(INDEX))?);
    }
    names.retain(|name| folder.join(name).exists());
    let names: Vec<String> = names.into_iter().collect();
    let commit = folder.file_name().unwrap_or_default().to_string_lossy();
    Ok(cache.check(&commit, &names, |bytes| observer.comparing(bytes))?)
}

/// Returns the files that an index names, each checked to lie inside the repository.
fn shards(index: &Path) -> Result<BTreeSet<String>, CheckpointError> {
    let place = index.display();
    let bytes = registry::file::read(index, registry::file::CONFIG)?;
    let json: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| error_in(format!("`{place}` is not JSON"), error))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| refused(format!("`{place}` has no `weight_map`")))?;
    let mut names = BTreeSet::new();
    for file in map.values() {
        let file = file.as_str().ok_or_else(|| {
            refused(format!("`{place}`: `weight_map` must map names to file names"))
        })?;
        check_file(file)
            .map_err(|error| error_in(format!("`{place}` cannot be followed"), error))?;
        names.insert(file.to_owned());
    }
    Ok(names)
}
