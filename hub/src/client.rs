//! Client that resolves a revision and fetches its files.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::address::encode;
use crate::cache::ModelCache;
use crate::connection::Connection;
use crate::http::{HubHttp, HubRequest};
use crate::names::{check_id, is_plain};
use crate::retry::AttemptError;
use crate::{Error, Event, HubOptions, check_file, check_revision, download, shown};

/// Maximum wait for a whole listing; most are a few kilobytes.
const LISTING: Duration = Duration::from_secs(60);

/// The commit of a revision and the names of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The commit.
    pub commit: String,
    /// The files, each checked to stay inside a folder.
    pub files: BTreeSet<String>,
}

/// Client of a hub, with the cache for its files.
pub struct Client {
    connection: Connection,
    endpoint: String,
    cache: PathBuf,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a client of the hub at `endpoint`. `user_agent` names the program.
    pub fn new(
        endpoint: &str,
        token: Option<&str>,
        cache: &Path,
        user_agent: &str,
        options: HubOptions,
        listener: impl Fn(Event<'_>) + 'static,
    ) -> Result<Self, Error> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let http = HubHttp::new(&endpoint, token, user_agent, &options)?;
        let connection = Connection { http, options, listener: Box::new(listener) };
        Ok(Self { connection, endpoint, cache: cache.to_owned() })
    }

    /// Requests the commit of a revision, and the list of its files.
    pub fn list(&self, id: &str, revision: &str) -> Result<Listing, Error> {
        check_id(id)?;
        check_revision(revision)?;
        let what = format!("`{id}` at revision `{revision}`");
        let revision = encode(revision, false);
        let address = format!("{}/api/models/{id}/revision/{revision}", self.endpoint);
        self.connection.persist(|| self.list_once(&address, &what))
    }

    fn list_once(&self, address: &str, what: &str) -> Result<Listing, AttemptError> {
        let limit = self.connection.options.most_listing;
        let mut reply = self.connection.http.send(address, HubRequest::Listing(LISTING), what)?;
        let mut bytes = Vec::new();
        let mut body = reply.body.as_reader().take(limit + 1);
        body.read_to_end(&mut bytes).map_err(|error| {
            let host = reply.origin.to_string();
            let what = what.to_owned();
            AttemptError::temporary(Error::Connection {
                host,
                what,
                why: download::truncated_body(&error),
            })
        })?;
        if bytes.len() as u64 > limit {
            return Err(reply.unusable(what, format!("it is longer than {limit} bytes")).into());
        }
        parse(&bytes).map_err(|why| reply.unusable(what, why).into())
    }

    /// Returns the path of a file in the cache, fetching it if it is missing.
    pub fn fetch(&self, id: &str, commit: &str, name: &str) -> Result<PathBuf, Error> {
        check_revision(commit)?;
        check_file(name)?;
        let cache = ModelCache::new(&self.cache, id)?;
        let place = cache.snapshot(commit).join(name);
        if place.exists() {
            return Ok(place);
        }
        let address = format!(
            "{}/{id}/resolve/{}/{}",
            self.endpoint,
            encode(commit, false),
            encode(name, true)
        );
        let what = format!("`{name}` of `{id}`");
        download::Download { connection: &self.connection, cache, commit, name, address, what }
            .run()
    }
}

/// Parses a listing: `{"sha": COMMIT, "siblings": [{"rfilename": NAME}, ...]}`.
fn parse(bytes: &[u8]) -> Result<Listing, String> {
    let json: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))?;
    let commit = json.get("sha").and_then(Value::as_str).unwrap_or_default();
    if !is_plain(commit) {
        return Err(format!("its `sha` is `{}`, expected a commit", shown(commit)));
    }
    let siblings = json.get("siblings").and_then(Value::as_array);
    let siblings = siblings.ok_or("it has no list `siblings`, expected the names of the files")?;
    let mut files = BTreeSet::new();
    for sibling in siblings {
        let name = sibling.get("rfilename").and_then(Value::as_str);
        let name = name.ok_or("an entry of `siblings` has no `rfilename`")?;
        check_file(name).map_err(|error| error.to_string())?;
        files.insert(name.to_owned());
    }
    Ok(Listing { commit: commit.to_owned(), files })
}
