//! Names of dims: config keys as a spec calls them.

use std::cell::RefCell;

use serde_json::Value as Json;

use crate::number::{self, Number};
use crate::record::Record;

/// Usual config keys and the dims that specs make of them.
const USUAL: &[(&str, &str)] = &[
    ("hidden_size", "hidden"),
    ("n_embd", "hidden"),
    ("d_model", "hidden"),
    ("num_hidden_layers", "layers"),
    ("n_layer", "layers"),
    ("n_layers", "layers"),
    ("num_layers", "layers"),
    ("vocab_size", "vocab"),
    ("num_attention_heads", "heads"),
    ("n_head", "heads"),
    ("n_heads", "heads"),
    ("num_key_value_heads", "kv_heads"),
    ("intermediate_size", "ffn"),
    ("n_inner", "ffn"),
    ("rms_norm_eps", "eps"),
    ("layer_norm_eps", "eps"),
    ("norm_eps", "eps"),
    ("layer_norm_epsilon", "eps"),
    ("layernorm_epsilon", "eps"),
    ("hidden_act", "act_name"),
    ("hidden_activation", "act_name"),
    ("activation_function", "act_name"),
    ("tie_word_embeddings", "tied"),
    ("max_position_embeddings", "context"),
    ("n_positions", "context"),
];

/// Names that the language gives to something else.
const TAKEN: &[&str] = &[
    "scale",
    "softmax",
    "act",
    "split",
    "heads_linear",
    "i",
    "kind",
    "x",
    "tokens",
    "merge",
    "slice",
    "copies",
    "add",
    "mul",
    "sub",
    "div",
    "offset",
    "divide",
    "inverse",
    "mean",
    "total",
];

/// Names that were given to config keys so far.
pub struct Names<'r> {
    record: &'r Record,
    used: RefCell<Vec<(String, String)>>,
    computed: RefCell<Vec<(String, String)>>,
}

impl<'r> Names<'r> {
    /// Begins with the dims that every spec has.
    pub fn new(record: &'r Record) -> Self {
        Self { record, used: RefCell::new(Vec::new()), computed: RefCell::new(Vec::new()) }
    }

    /// Returns the dim of a config key.
    pub fn name(&self, key: &str) -> String {
        if key == "i" {
            return key.to_owned();
        }
        if let Some((_, name)) = self.used.borrow().iter().find(|(known, _)| known == key) {
            return name.clone();
        }
        let usual =
            USUAL.iter().find(|(known, _)| *known == key).map(|(_, name)| (*name).to_owned());
        let mut name = usual.unwrap_or_else(|| key.replace('.', "_").to_lowercase());
        while TAKEN.contains(&name.as_str())
            || self.used.borrow().iter().any(|(_, other)| *other == name)
        {
            name.push_str("_value");
        }
        self.used.borrow_mut().push((key.to_owned(), name.clone()));
        name
    }

    /// Gives a config key a name, if nothing else has it.
    pub fn give(&self, key: &str, name: &str) {
        if !self.used.borrow().iter().any(|(known, other)| known == key || other == name) {
            self.used.borrow_mut().push((key.to_owned(), name.to_owned()));
        }
    }

    /// Notes a dim that no single key gives.
    pub fn compute(&self, name: &str, expression: &str) {
        self.computed.borrow_mut().push((name.to_owned(), expression.to_owned()));
    }

    /// Returns the dim of a config key, if the spec has one.
    pub fn name_if_used(&self, key: &str) -> Option<String> {
        self.used.borrow().iter().find(|(known, _)| known == key).map(|(_, name)| name.clone())
    }

    /// Is true if a dim has this name.
    pub fn has(&self, name: &str) -> bool {
        self.used.borrow().iter().any(|(_, known)| known == name)
            || self.computed.borrow().iter().any(|(known, _)| known == name)
    }

    /// Returns the attribute of a module with a word in its name that has this value, as an expression over the config.
    pub fn attribute(&self, module: &str, word: &str, value: i64) -> Option<Number> {
        let values = self.record.modules.get(module).map(|facts| &facts.values)?;
        let named = values.iter().filter(|(name, _)| name.contains(word));
        named.map(|(_, json)| Number::parse(json)).find(|number| {
            number.is_symbolic() && number.evaluate(&self.record.config) == Some(value as f64)
        })
    }

    /// Writes a number.
    pub fn written(&self, number: &Number) -> String {
        number::written(number, &|key| self.name(key))
    }

    /// Lines of `dims:` for the names that were used.
    pub fn dims(&self) -> Vec<(String, String)> {
        let computed = self.computed.borrow().clone();
        let mut lines = Vec::new();
        let mut place = 0;
        // A default can name a key that nothing named before, which then is a dim too.
        while let Some((key, name)) = self.at(place) {
            if !computed.iter().any(|(other, _)| *other == name) {
                lines.push((name, self.source(&key)));
            }
            place += 1;
        }
        lines.extend(computed);
        lines
    }

    /// The key and the name that were used at this place.
    fn at(&self, place: usize) -> Option<(String, String)> {
        self.used.borrow().get(place).cloned()
    }

    /// The key in `config.json` with the default of its class.
    fn source(&self, key: &str) -> String {
        let saved = self.record.attribute_map.get(key).cloned().unwrap_or_else(|| key.to_owned());
        let mut keys = vec![saved.clone()];
        if saved != key {
            keys.push(key.to_owned());
        }
        let default = self.default_of(key);
        match (keys.as_slice(), default) {
            ([single], None) => single.clone(),
            (_, None) => format!("[{}]", keys.join(", ")),
            (_, Some(default)) => {
                let quoted = default.contains(['[', ',', '{', ']', ':', '#', '\'']);
                if quoted {
                    format!("[{}, \"= {default}\"]", keys.join(", "))
                } else {
                    format!("[{}, = {default}]", keys.join(", "))
                }
            }
        }
    }

    fn default_of(&self, key: &str) -> Option<String> {
        if let Some(written) = self.record.derived.get(key) {
            let number = Number::parse(written);
            return Some(self.written(&number));
        }
        if key == "tie_word_embeddings" && number::look_up(&self.record.defaults, key).is_none() {
            return Some(
                (self
                    .record
                    .disk
                    .keys()
                    .all(|name| !name.starts_with(&format!("{}.", self.record.output))))
                .to_string(),
            );
        }
        let value = number::look_up(&self.record.defaults, key).or_else(|| {
            self.record
                .attribute_map
                .get(key)
                .and_then(|saved| number::look_up(&self.record.defaults, saved))
        })?;
        literal(value)
    }
}

/// A literal of the spec language.
pub fn literal(value: &Json) -> Option<String> {
    Some(match value {
        Json::Bool(truth) => truth.to_string(),
        Json::Number(number) => number.as_i64().map_or_else(
            || number::real(number.as_f64().unwrap_or_default()),
            |whole| whole.to_string(),
        ),
        Json::String(word) => format!("'{word}'"),
        Json::Null => "null".to_owned(),
        Json::Array(items) => {
            format!("[{}]", items.iter().map(literal).collect::<Option<Vec<_>>>()?.join(", "))
        }
        Json::Object(_) => return None,
    })
}
