//! `config.json`: values in file order, and which keys were asked for.
//!
//! Keys are dotted (`rope_parameters.rope_theta`). If the file has an object for its text model
//! (`text_config`), a key is looked up there first, then at the top level.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::diag::{Finding, SourceText, Span};
use crate::scalar::Scalar;

mod json;

mod irrelevant;

/// Keys under which a vision-language model keeps the config of its text model.
pub const INNER: [&str; 4] =
    ["text_config", "thinker_config.text_config", "llm_config", "language_config"];
/// The config key that is true if the output head is the embedding.
const TIED: &str = "tie_word_embeddings";
/// Objects that only a model with encoders has.
const ENCODERS: [&str; 3] = ["vision_config", "audio_config", "vision_tower_config"];

/// Keys under which a vision-language model keeps the config of its encoder of images.
const IMAGE_ENCODERS: [&str; 3] =
    ["vision_config", "thinker_config.vision_config", "vision_tower_config"];

/// A checkpoint's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    path: String,
    /// The text, if it was read from one.
    source: Option<Arc<SourceText>>,
    root: Scalar,
    read: RefCell<BTreeSet<String>>,
    /// Keys of the objects in which other keys are looked up first.
    inner_keys: &'static [&'static str],
    /// Values that the config class of the inner text model has for keys that are left out.
    defaults: Vec<(String, Scalar)>,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Finding> {
        let shown = path.display().to_string();
        let text = crate::file::read_text(path, crate::file::CONFIG)
            .map_err(|error| Finding::unplaced(format!("cannot read the config: {error}")))?;
        Self::parse(&shown, &text)
    }

    /// Reads a text; `path` is what findings call it.
    pub fn parse(path: &str, text: &str) -> Result<Self, Finding> {
        let mut root = json::parse(path, text)?;
        let Scalar::Map(entries) = &mut root else {
            return Err(Finding::unplaced(format!(
                "`{path}` holds {}, expected an object",
                root.kind()
            )));
        };
        older_scaling_first(entries);
        let source = SourceText { path: path.to_owned(), text: text.to_owned() };
        Ok(Self { source: Some(Arc::new(source)), ..Self::of(path, root) })
    }

    /// Creates a config from a value; `path` is its name in findings.
    pub fn of(path: &str, root: Scalar) -> Self {
        Self {
            path: path.to_owned(),
            source: None,
            root,
            read: RefCell::default(),
            inner_keys: &INNER,
            defaults: Vec::new(),
        }
    }

    /// Returns all values: an object.
    pub fn root(&self) -> &Scalar {
        &self.root
    }

    /// Returns the config as JSON.
    pub fn json(&self) -> String {
        let mut value = serde_json::Value::from(&self.root);
        value.sort_all_objects();
        value.to_string()
    }

    /// Returns the file's path, as findings call it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of a dotted key, also a null; the key then counts as read.
    pub fn get(&self, key: &str) -> Option<&Scalar> {
        self.mark(key);
        self.peek(key)
    }

    /// Returns the value of a dotted key like [`Config::get`], without counting the key as read.
    pub fn peek(&self, key: &str) -> Option<&Scalar> {
        // The head belongs to the class that the checkpoint is of.
        if key == TIED && !self.is_text() {
            let outer = member(&self.root, key).or_else(|| {
                // The object that holds the text model may itself be a part.
                let (holder, _) = self.inner()?.0.rsplit_once('.')?;
                member(descend(&self.root, holder)?, key)
            });
            return outer.or_else(|| member(self.inner()?.1, key)).or_else(|| self.default(key));
        }
        self.inner()
            .and_then(|(_, text)| descend(text, key))
            .or_else(|| self.default(key))
            .or_else(|| descend(&self.root, key))
    }

    /// Returns the place of a key's value in the text, or of an item inside of its lists.
    pub(crate) fn place(&self, key: &str, items: &[usize]) -> Option<Span> {
        let source = self.source.as_ref()?;
        let inside = self.inner().map(|(place, _)| format!("{place}.{key}"));
        let (start, end) = inside
            .and_then(|key| json::place(source, &key, items))
            .or_else(|| json::place(source, key, items))?;
        Some(Span { source: Arc::clone(source), start, end })
    }

    /// Returns the config with these defaults for its inner text model, if it has one. Inner configs are
    /// written without values that equal the defaults of their class.
    pub(crate) fn with_defaults(&self, defaults: Vec<(String, Scalar)>) -> Self {
        let defaults = if self.inner().is_some() { defaults } else { Vec::new() };
        Self { defaults, ..self.clone() }
    }

    /// Returns the config as that of the encoder of images, whose keys are looked up first in the encoder's object.
    pub(crate) fn of_encoder(&self) -> Self {
        Self { inner_keys: &IMAGE_ENCODERS, ..self.clone() }
    }

    fn default(&self, key: &str) -> Option<&Scalar> {
        self.defaults.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the key and the config of an inner text model, if the file has one.
    fn inner(&self) -> Option<(&'static str, &Scalar)> {
        self.inner_keys.iter().find_map(|key| match descend(&self.root, key) {
            Some(text @ Scalar::Map(_)) => Some((*key, text)),
            _ => None,
        })
    }

    /// True if the class is a text model, whatever else its config has.
    fn is_text(&self) -> bool {
        self.architecture().is_none_or(|class| class.ends_with("ForCausalLM"))
    }

    /// True if the checkpoint holds other models beside the text model.
    pub fn is_wrapped(&self) -> bool {
        self.inner().is_some()
            || ENCODERS.iter().any(|key| matches!(member(&self.root, key), Some(Scalar::Map(_))))
    }

    /// Returns a boolean of the inner text model's config.
    pub fn inner_flag(&self, key: &str) -> Option<bool> {
        match member(self.inner()?.1, key) {
            Some(Scalar::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// Returns the `model_type` of the inner text model.
    pub fn inner_kind(&self) -> Option<&str> {
        match member(self.inner()?.1, "model_type") {
            Some(Scalar::Str(kind)) => Some(kind),
            _ => None,
        }
    }

    /// Gives a key of the outermost map another value.
    pub fn replace(&mut self, key: &str, value: Scalar) {
        if let Scalar::Map(entries) = &mut self.root
            && let Some(entry) = entries.iter_mut().find(|(name, _)| name == key)
        {
            entry.1 = value;
        }
    }

    /// Returns the entries of the outermost map.
    pub(crate) fn entries_mut(&mut self) -> Option<&mut Vec<(String, Scalar)>> {
        match &mut self.root {
            Scalar::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Counts a key as read: a spec names it, even if this config took another branch.
    pub fn mark(&self, key: &str) {
        self.read.borrow_mut().insert(key.to_owned());
    }

    /// True if a key counts as read.
    pub fn is_read(&self, key: &str) -> bool {
        self.read.borrow().contains(key)
    }

    /// Returns `architectures[0]`.
    pub fn architecture(&self) -> Option<&str> {
        let list = member(&self.root, "architectures")?;
        match list {
            Scalar::List(items) => match items.first() {
                Some(Scalar::Str(name)) => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns every key, dotted where nested, for suggestions.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        if let Some((_, text)) = self.inner() {
            collect(text, "", &mut keys);
        }
        collect(&self.root, "", &mut keys);
        keys
    }

    /// Returns every key that is no object, dotted where nested.
    pub(crate) fn leaves(&self) -> Vec<String> {
        self.keys()
            .into_iter()
            .filter(|key: &String| !matches!(self.peek(key), Some(Scalar::Map(_))))
            .collect()
    }

    /// Keys that nobody asked for, that are not null, and that may matter to the model.
    /// `ignored` are patterns of the spec, with `*`.
    pub fn unread(&self, ignored: &[&str]) -> Vec<String> {
        let read = self.read.borrow();
        let mut unread = Vec::new();
        // Keys beside the text model do not describe it.
        let (place, entries) = match (self.inner(), &self.root) {
            (Some((place, Scalar::Map(entries))), _) => (format!("{place}."), entries),
            (_, Scalar::Map(entries)) => (String::new(), entries),
            _ => return unread,
        };
        for (key, value) in entries {
            if place.is_empty() && ENCODERS.contains(&key.as_str()) {
                continue;
            }
            report(key, value, &place, &read, ignored, &mut unread);
        }
        unread
    }

    /// Returns the config without the keys that nobody asked for.
    pub(crate) fn without_unread(&self, ignored: &[&str]) -> Self {
        let mut root = self.root.clone();
        if let Scalar::Map(entries) = &mut root {
            for key in self.unread(ignored) {
                remove(entries, &key);
            }
        }
        Self::of(&self.path, root)
    }
}

/// Removes a key, dotted where nested.
fn remove(entries: &mut Vec<(String, Scalar)>, key: &str) {
    let Some((first, suffix)) = key.split_once('.') else {
        return entries.retain(|(name, _)| name != key);
    };
    for (name, value) in entries {
        if let Scalar::Map(inner) = value
            && name == first
        {
            remove(inner, suffix);
        }
    }
}

/// True if a pattern with `*` (any text) matches the whole of `name`.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut remaining) = name.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return remaining.is_empty() };
    for part in middle {
        let Some(at) = remaining.find(part) else { return false };
        remaining = &remaining[at + part.len()..];
    }
    remaining.ends_with(last)
}

fn report(
    key: &str,
    value: &Scalar,
    prefix: &str,
    read: &BTreeSet<String>,
    ignored: &[&str],
    unread: &mut Vec<String>,
) {
    let top = key.split('.').next().unwrap_or(key);
    if *value == Scalar::Null
        || read.contains(key)
        || irrelevant::is_irrelevant(top)
        || ignored.iter().any(|pattern| matches(pattern, key))
    {
        return;
    }
    let inside = format!("{key}.");
    match value {
        // Some of it was read: name only what was not.
        Scalar::Map(entries)
            if read.range(inside.clone()..).next().is_some_and(|k| k.starts_with(&inside)) =>
        {
            for (name, value) in entries {
                report(&format!("{inside}{name}"), value, prefix, read, ignored, unread);
            }
        }
        _ => unread.push(format!("{prefix}{key}")),
    }
}

fn collect(value: &Scalar, prefix: &str, keys: &mut Vec<String>) {
    if let Scalar::Map(entries) = value {
        for (key, value) in entries {
            let name = format!("{prefix}{key}");
            collect(value, &format!("{name}."), keys);
            keys.push(name);
        }
    }
}

fn member<'a>(value: &'a Scalar, key: &str) -> Option<&'a Scalar> {
    match value {
        Scalar::Map(entries) => {
            entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
        }
        _ => None,
    }
}

fn descend<'a>(value: &'a Scalar, key: &str) -> Option<&'a Scalar> {
    member(value, key).or_else(|| {
        let (first, remaining) = key.split_once('.')?;
        descend(member(value, first)?, remaining)
    })
}

/// Replaces `rope_parameters` by an older `rope_scaling` of the same config. The reference takes nothing of
/// the newer settings then (`convert_rope_params_to_dict` of transformers 5).
fn older_scaling_first(entries: &mut [(String, Scalar)]) {
    let older = entries.iter().find(|(key, _)| key == "rope_scaling").map(|(_, value)| value);
    let Some(older @ Scalar::Map(settings)) = older else { return };
    if settings.is_empty() {
        return;
    }
    let older = older.clone();
    if let Some((_, newer)) = entries.iter_mut().find(|(key, _)| key == "rope_parameters") {
        *newer = older;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse("config.json", text).unwrap()
    }

    #[test]
    fn keys_are_dotted_and_text_config_comes_first() {
        let c = config(r#"{"a": 1, "rope": {"theta": 5.0}, "text_config": {"a": 2, "n": null}}"#);
        assert_eq!(c.get("a"), Some(&Scalar::Int(2)));
        assert_eq!(c.get("rope.theta"), Some(&Scalar::Float(5.0)));
        assert_eq!(c.get("n"), Some(&Scalar::Null));
        assert_eq!(c.get("rope.theta.x"), None);
    }

    #[test]
    fn older_rotary_settings_win_over_newer_ones() {
        let c =
            config(r#"{"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": {"factor": 4.0}}"#);
        assert_eq!(c.get("rope_parameters.factor"), Some(&Scalar::Float(4.0)));
        assert_eq!(c.get("rope_parameters.rope_theta"), None);
        let c = config(r#"{"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": null}"#);
        assert_eq!(c.get("rope_parameters.rope_theta"), Some(&Scalar::Float(7.0)));
    }

    #[test]
    fn unread_keys_are_named_in_file_order() {
        let c = config(
            r#"{"z": 1, "a": {"x": 1, "y": 2}, "b": {"x": 1}, "n": null, "use_cache": true, "skip_me": 3, "text_config": {"t": 1}}"#,
        );
        let _ = c.get("a.x");
        // Keys beside the text model do not describe it.
        assert_eq!(c.unread(&["skip_*"]), ["text_config.t"]);
        let c = config(
            r#"{"z": 1, "a": {"x": 1, "y": 2}, "b": {"x": 1}, "n": null, "use_cache": true, "skip_me": 3}"#,
        );
        let _ = c.get("a.x");
        assert_eq!(c.unread(&["skip_*"]), ["z", "a.y", "b"]);
        let read = c.without_unread(&["skip_*"]);
        assert_eq!(read.leaves(), ["a.x", "n", "use_cache", "skip_me"]);
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("a.*.b", "a.1.b", true),
            ("a.*.b", "a.1.b.c", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("a", "ab", false),
            ("*b*", "abc", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn values_have_places() {
        let c = config(
            r#"{"a": 1, "b": {"c.d": [["x"], "y\"]"]}, "a": "z", "text_config": {"k": [1, 22]}}"#,
        );
        assert_eq!(place_text(&c, "a", &[]), "\"z\"");
        assert_eq!(place_text(&c, "b.c.d", &[0]), "[\"x\"]");
        assert_eq!(place_text(&c, "b.c.d", &[0, 0]), "\"x\"");
        assert_eq!(place_text(&c, "b.c.d", &[1]), "\"y\\\"]\"");
        assert_eq!(place_text(&c, "k", &[1]), "22");
        for (key, item) in [("k", 2), ("a", 0), ("b.e", 0), ("none", 0)] {
            assert_eq!(place_text(&c, key, &[item]), "none", "{key}");
        }
    }

    fn place_text(config: &Config, key: &str, items: &[usize]) -> String {
        config.place(key, items).map_or("none".to_owned(), |at| at.text().to_owned())
    }

    #[test]
    fn a_config_is_an_object() {
        assert!(Config::parse("config.json", "[1]").unwrap_err().message.contains("a list"));
    }
}
