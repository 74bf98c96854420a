//! Edits of the config: a value that an engine does not read, or reads as another.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use registry::model::Model;
use registry::scalar::Scalar;

use super::{Change, Edit};

/// Maximum number of weights of all models that are kept at once.
const WEIGHTS: usize = 1 << 20;
/// Maximum number of readings of one list.
const PATTERNS: usize = 24;
/// Maximum length of a value that a description shows.
const SHOWN: usize = 60;

/// Returns the model that a config gives; none if the spec refuses it.
type ModelOfConfig = dyn Fn(&Scalar) -> Option<Model> + Send + Sync;

/// Config of a model, and the function that makes a model of such a config.
#[derive(Clone)]
pub struct ConfigReader {
    /// The config: an object.
    pub root: Scalar,
    /// Resolves a spec with a config.
    pub resolve: Arc<ModelOfConfig>,
}

impl fmt::Debug for ConfigReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigReader").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Path of a value: the keys of the objects around it, and its own.
type KeyPath = Vec<String>;

/// One other value of a key; none if the key is not read.
struct ReadValue {
    path: KeyPath,
    value: Option<Scalar>,
    words: String,
}

impl ConfigReader {
    /// Returns the tokens that the config names: those at the begin and the end of texts, and padding.
    pub(crate) fn tokens(&self) -> Vec<(String, u32)> {
        let Scalar::Map(entries) = &self.root else { return Vec::new() };
        let mut all = Vec::new();
        for (key, value) in entries.iter().filter(|(key, _)| key.ends_with("_token_id")) {
            let values = match value {
                Scalar::List(items) => items.as_slice(),
                one => std::slice::from_ref(one),
            };
            let ids = values.iter().filter_map(Scalar::as_usize);
            all.extend(ids.filter_map(|id| Some((format!("`{key}`"), u32::try_from(id).ok()?))));
        }
        all
    }

    /// Returns edits that read one value otherwise, as many as are resolved in time. Values on which the model does
    /// not depend give none.
    pub(crate) fn edits(&self, model: &Model, until: Instant) -> Vec<Edit> {
        // A model of other settings or of chosen layers is not the config's.
        if (self.resolve)(&self.root).as_ref() != Some(model) {
            return Vec::new();
        }
        let mut all: Vec<Edit> = Vec::new();
        let mut weights = 0;
        for ReadValue { path, value, words } in values(&self.root) {
            if Instant::now() >= until {
                break;
            }
            let mut root = self.root.clone();
            set(&mut root, &path, value);
            let Some(other) = (self.resolve)(&root) else { continue };
            if other.graph == model.graph && other.ropes == model.ropes {
                continue;
            }
            weights += other.graph.weights.len();
            if weights > WEIGHTS {
                break;
            }
            let words = format!("`{}` of the config {words}", path.join("."));
            let change = Change::Model(Box::new(other));
            if all.iter().all(|edit| edit.change != change) {
                all.push(Edit { words, place: "config.json".to_owned(), change });
            }
        }
        all
    }
}

/// Sets the value of a path, or removes it.
fn set(at: &mut Scalar, path: &[String], value: Option<Scalar>) {
    let Scalar::Map(entries) = at else { return };
    let Some((key, inner_path)) = path.split_first() else { return };
    if inner_path.is_empty() {
        match value {
            Some(value) => {
                if let Some((_, old)) = entries.iter_mut().find(|(name, _)| name == key) {
                    *old = value;
                }
            }
            None => entries.retain(|(name, _)| name != key),
        }
    } else if let Some((_, inner)) = entries.iter_mut().find(|(name, _)| name == key) {
        set(inner, inner_path, value);
    }
}

/// Returns every other reading of every value, values that are not read first.
fn values(root: &Scalar) -> Vec<ReadValue> {
    let mut all = Vec::new();
    members(root, &mut Vec::new(), &mut all);
    all.extend(namesakes(root, &mut Vec::new(), root));
    all.sort_by_key(|reading| (reading.value.is_some(), reading.path.len()));
    all
}

/// Adds the readings of every value of an object, and of the objects inside of it.
fn members(at: &Scalar, path: &mut KeyPath, all: &mut Vec<ReadValue>) {
    let Scalar::Map(entries) = at else { return };
    for (key, value) in entries {
        path.push(key.clone());
        all.push(ReadValue { path: path.clone(), value: None, words: "not read".to_owned() });
        for (other, words) in other_values(key, value, entries) {
            all.push(ReadValue { path: path.clone(), value: Some(other), words });
        }
        members(value, path, all);
        path.pop();
    }
}

/// Returns readings of a number from a key at the top whose name is the end of its own: a context that was
/// extended, and the one before.
fn namesakes(root: &Scalar, path: &mut KeyPath, at: &Scalar) -> Vec<ReadValue> {
    let (Scalar::Map(top), Scalar::Map(entries)) = (root, at) else { return Vec::new() };
    let mut all = Vec::new();
    for (key, value) in entries {
        path.push(key.clone());
        for (name, other) in top.iter().filter(|(name, _)| name != key && key.ends_with(name)) {
            if value.as_f64().is_some() && other.as_f64().is_some() && value != other {
                let words = format!("read from `{name}`");
                all.push(ReadValue { path: path.clone(), value: Some(other.clone()), words });
            }
        }
        all.extend(namesakes(root, path, value));
        path.pop();
    }
    all
}

/// Returns other values of a key, each with a description.
fn other_values(key: &str, value: &Scalar, siblings: &[(String, Scalar)]) -> Vec<(Scalar, String)> {
    match value {
        Scalar::Bool(flag) => vec![instead(value, Scalar::Bool(!flag))],
        Scalar::Int(n) => [n.checked_add(1), n.checked_sub(1)]
            .into_iter()
            .flatten()
            .map(|n| instead(value, Scalar::Int(n)))
            .collect(),
        Scalar::Float(x) => [1.0, 0.0]
            .into_iter()
            .filter(|other| other != x)
            .map(|other| instead(value, Scalar::Float(other)))
            .collect(),
        Scalar::Str(text) if key.ends_with("type") && text != "default" => {
            vec![instead(value, Scalar::Str("default".to_owned()))]
        }
        Scalar::List(items) => patterns(items)
            .into_iter()
            .map(|(items, words)| (Scalar::List(items), words))
            .chain(bounds(items, siblings).into_iter().map(|other| instead(value, other)))
            .collect(),
        // An object of another kind of layers.
        Scalar::Map(_) => siblings
            .iter()
            .filter(|(name, other)| {
                name != key && matches!(other, Scalar::Map(_)) && other != value
            })
            .map(|(name, other)| (other.clone(), format!("read from `{name}`")))
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns a value that is read in the place of another, with a description.
fn instead(value: &Scalar, other: Scalar) -> (Scalar, String) {
    let words = format!("read as {} instead of {}", short(&other), short(value));
    (other, words)
}

/// Returns other orders of a list that gives each layer a word: moved by one, the same word for all, or one
/// word in every few layers.
fn patterns(items: &[Scalar]) -> Vec<(Vec<Scalar>, String)> {
    let mut words: Vec<&Scalar> = Vec::new();
    for item in items {
        if !matches!(item, Scalar::Str(_)) {
            return Vec::new();
        }
        if !words.contains(&item) {
            words.push(item);
        }
    }
    if words.len() < 2 {
        return Vec::new();
    }
    let mut all: Vec<(Vec<Scalar>, String)> = Vec::new();
    let mut moved = items.to_vec();
    moved.rotate_right(1);
    add_order(&mut all, items, moved.clone(), "read one layer later".to_owned());
    moved.rotate_left(2);
    add_order(&mut all, items, moved, "read one layer earlier".to_owned());
    let reversed = items.iter().rev().cloned().collect();
    add_order(&mut all, items, reversed, "read from its end".to_owned());
    for word in &words {
        let equal = vec![(*word).clone(); items.len()];
        add_order(&mut all, items, equal, format!("read as {word} in every layer"));
    }
    for one in &words {
        let Some(other) = words.iter().find(|word| *word != one) else { continue };
        for every in 2..=8_usize.min(items.len()) {
            for first in [0, every - 1] {
                let list = (0..items.len()).map(|n| if n % every == first { *one } else { *other });
                let words = format!("read as {one} in every {every} layers from layer {first}");
                add_order(&mut all, items, list.cloned().collect(), words);
            }
        }
    }
    all
}

/// Adds an order of a list, unless it is that of `items`, or a known one, or there are [`PATTERNS`] already.
fn add_order(
    all: &mut Vec<(Vec<Scalar>, String)>,
    items: &[Scalar],
    list: Vec<Scalar>,
    words: String,
) {
    if list != items && all.len() < PATTERNS && all.iter().all(|(known, _)| *known != list) {
        all.push((list, words));
    }
}

/// Returns the pairs of numbers that a list of two bounds may be confused with: those of two keys whose names
/// end in `_min` and `_max`.
fn bounds(items: &[Scalar], siblings: &[(String, Scalar)]) -> Vec<Scalar> {
    if items.len() != 2 || items.iter().any(|item| matches!(item, Scalar::Str(_))) {
        return Vec::new();
    }
    let pairs = siblings.iter().filter_map(|(key, low)| {
        let max = format!("{}_max", key.strip_suffix("_min")?);
        let (_, high) = siblings.iter().find(|(name, _)| *name == max)?;
        low.as_f64().and(high.as_f64())?;
        Some(Scalar::List(vec![low.clone(), high.clone()]))
    });
    pairs.collect()
}

/// Formats a value for a description.
fn short(value: &Scalar) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Scalar> {
        text.chars().map(|c| Scalar::Str(c.to_string())).collect()
    }

    #[test]
    fn a_list_of_layers_has_other_orders() {
        let orders: Vec<String> = patterns(&list("ssfs"))
            .into_iter()
            .map(|(items, _)| items.iter().map(|item| item.to_string().replace('\'', "")).collect())
            .collect();
        for want in ["sssf", "sfss", "ssss", "ffff", "fsfs", "ssfs"] {
            assert_eq!(
                orders.iter().any(|text| text == want),
                want != "ssfs",
                "{want}: {orders:?}"
            );
        }
        assert!(patterns(&list("ssss")).is_empty());
        assert!(patterns(&[Scalar::Int(1), Scalar::Int(2)]).is_empty());
    }

    #[test]
    fn values_of_objects_are_read_otherwise() {
        let inner = Scalar::Map(vec![
            ("cut".to_owned(), Scalar::Bool(false)),
            ("first_context".to_owned(), Scalar::Int(4)),
        ]);
        let mut root = Scalar::Map(vec![
            ("step_limit".to_owned(), Scalar::List(vec![Scalar::Float(0.0), Scalar::Float(9.0)])),
            ("context".to_owned(), Scalar::Int(16)),
            ("step_min".to_owned(), Scalar::Float(0.25)),
            ("step_max".to_owned(), Scalar::Float(0.5)),
            ("rope".to_owned(), inner),
        ]);
        let all = values(&root);
        assert!(has_value(&all, &["rope", "cut"], Some(&Scalar::Bool(true))));
        assert!(has_value(&all, &["rope"], None));
        assert!(has_value(&all, &["rope", "first_context"], Some(&Scalar::Int(16))));
        assert!(
            has_value(&all, &["step_max"], Some(&Scalar::Float(1.0)))
                && has_value(&all, &["step_min"], Some(&Scalar::Float(0.0)))
        );
        assert!(has_value(
            &all,
            &["step_limit"],
            Some(&Scalar::List(vec![Scalar::Float(0.25), Scalar::Float(0.5)]))
        ));
        set(&mut root, &["rope".to_owned(), "cut".to_owned()], None);
        assert_eq!(
            root.to_string(),
            "{step_limit: [0.0, 9.0], context: 16, step_min: 0.25, step_max: 0.5, rope: {first_context: 4}}"
        );
    }

    fn has_value(all: &[ReadValue], path: &[&str], value: Option<&Scalar>) -> bool {
        all.iter().any(|reading| reading.path == path && reading.value.as_ref() == value)
    }
}
