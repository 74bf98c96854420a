//! Environment variables of Python's `huggingface_hub`, with the same meaning.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use registry::file;

use crate::options::HubOptions;

/// Hub and cache settings from the environment.
#[derive(Clone)]
pub struct HubSettings {
    /// Address, without a trailing slash.
    pub endpoint: String,
    /// Token, sent only to the hub.
    pub token: Option<String>,
    /// Folder that contains `models--*`.
    pub cache: PathBuf,
    /// True to use only the cache, without the network.
    pub offline: bool,
    /// Timeouts.
    pub options: HubOptions,
}

impl HubSettings {
    /// Reads the settings; `get` returns the value of an environment variable.
    ///
    /// ```
    /// use onboard_hub::HubSettings;
    ///
    /// let settings = HubSettings::read(&|name| (name == "HF_HUB_CACHE").then(|| "/cache".into()));
    /// assert_eq!(settings.cache, std::path::Path::new("/cache"));
    /// ```
    pub fn read(get: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let home = path(get, "HF_HOME").unwrap_or_else(|| {
            let user = path(get, "XDG_CACHE_HOME").unwrap_or_else(|| user(get).join(".cache"));
            user.join("huggingface")
        });
        let cache = path(get, "HF_HUB_CACHE").or_else(|| path(get, "HUGGINGFACE_HUB_CACHE"));
        let endpoint = filled_text(get, "HF_ENDPOINT");
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".to_owned());
        let token_file = path(get, "HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = (!is_on(text(get, "HF_HUB_DISABLE_IMPLICIT_TOKEN")))
            .then(|| {
                let named = filled_text(get, "HF_TOKEN");
                let named = named.or_else(|| filled_text(get, "HUGGING_FACE_HUB_TOKEN"));
                named.as_deref().and_then(clean_token).or_else(|| {
                    let token = file::read_text(&token_file, file::CONFIG).ok()?;
                    clean_token(&token)
                })
            })
            .flatten();
        let mut options = HubOptions::default();
        if let Some(seconds) = seconds(get, "HF_HUB_ETAG_TIMEOUT") {
            options.answer = Duration::from_secs(seconds);
        }
        if let Some(seconds) = seconds(get, "HF_HUB_DOWNLOAD_TIMEOUT") {
            options.read = Duration::from_secs(seconds);
        }
        let offline = filled_text(get, "HF_HUB_OFFLINE");
        let offline = offline.or_else(|| filled_text(get, "TRANSFORMERS_OFFLINE"));
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache: cache.unwrap_or_else(|| home.join("hub")),
            offline: is_on(offline),
            options,
        }
    }
}

/// Returns a variable that is text.
fn text(get: &dyn Fn(&str) -> Option<OsString>, key: &str) -> Option<String> {
    get(key).and_then(|value| value.into_string().ok())
}

/// Returns a variable that is text and not empty.
fn filled_text(get: &dyn Fn(&str) -> Option<OsString>, key: &str) -> Option<String> {
    text(get, key).filter(|value| !value.is_empty())
}

/// Returns the path that a variable names.
fn path(get: &dyn Fn(&str) -> Option<OsString>, key: &str) -> Option<PathBuf> {
    get(key).filter(|value| !value.is_empty()).map(|value| expand(value, get))
}

/// Returns a variable that is a number above 0.
fn seconds(get: &dyn Fn(&str) -> Option<OsString>, key: &str) -> Option<u64> {
    filled_text(get, key).and_then(|value| value.parse::<u64>().ok()).filter(|n| *n > 0)
}

/// True if a switch is on.
fn is_on(value: Option<String>) -> bool {
    let value = value.unwrap_or_default().to_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

/// Returns a token without blanks around it; none if it is empty.
fn clean_token(token: &str) -> Option<String> {
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

fn user(get: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    get("HOME").map(PathBuf::from).or_else(std::env::home_dir).unwrap_or_default()
}

/// Expands `~` at the beginning, and `$NAME` and `${NAME}` if they are set.
fn expand(value: OsString, get: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    let Some(text) = value.to_str() else { return value.into() };
    let mut remaining = text;
    let mut out = OsString::new();
    if let Some(tail) =
        text.strip_prefix('~').filter(|tail| tail.is_empty() || tail.starts_with('/'))
    {
        out.push(user(get));
        remaining = tail;
    }
    while let Some(at) = remaining.find('$') {
        let before = &remaining[..at];
        let after = &remaining[at + 1..];
        out.push(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let end = end.unwrap_or(after.len());
        let (name, tail) = braced.unwrap_or((&after[..end], &after[end..]));
        match get(name).filter(|_| !name.is_empty()) {
            Some(value) => out.push(value),
            None => out.push(&remaining[at..remaining.len() - tail.len()]),
        }
        remaining = tail;
    }
    out.push(remaining);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> HubSettings {
        HubSettings::read(&|key| {
            let found = set.iter().find(|(name, _)| *name == key);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn the_cache_is_where_python_has_it() {
        for (set, expected) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/hub"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")], "/new"),
            (&[("D", "/disk"), ("HF_HUB_CACHE", "$D/a/${D}b$NONE")], "/disk/a//diskb$NONE"),
        ] {
            assert_eq!(read(set).cache, PathBuf::from(expected), "{set:?}");
        }
    }

    #[test]
    fn the_token_is_the_named_one_then_the_stored_one() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        fs_err::write(folder.path().join("token"), "stored\n").unwrap();
        fs_err::write(folder.path().join("other"), "other").unwrap();
        let other = folder.path().join("other");
        let other = other.to_str().unwrap();
        let token = |set: &[(&str, &str)]| {
            read(&[&[("HF_HOME", home)], set].concat()).token.unwrap_or_default()
        };
        assert_eq!(token(&[]), "stored");
        assert_eq!(token(&[("HF_TOKEN_PATH", other)]), "other");
        assert_eq!(token(&[("HF_TOKEN", " named\n")]), "named");
        assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "old")]), "old");
        assert_eq!(token(&[("HF_TOKEN", "  ")]), "stored");
        for yes in ["1", "true", "Yes", "ON"] {
            assert_eq!(token(&[("HF_TOKEN", "x"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", yes)]), "");
        }
    }

    #[test]
    fn offline_is_said_with_either_name() {
        assert!(read(&[("HF_HUB_OFFLINE", "1")]).offline);
        assert!(read(&[("TRANSFORMERS_OFFLINE", "true")]).offline);
        assert!(!read(&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")]).offline);
    }
}
