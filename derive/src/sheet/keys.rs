//! Config keys and tensors that no part of a spec reads.

use serde_json::Value as Json;

use super::Sheet;
use crate::number::{self, Number};
use crate::origin::starred;

impl Sheet<'_> {
    /// Tensors of the checkpoint that the class has no weight for, or one that no rows reach.
    pub(super) fn unread_tensors(&self) -> Vec<String> {
        let layers = format!("{}.", starred(self.list));
        let read = self.record.sources.iter().filter(|(weight, _)| {
            // Modules outside of the layers are those of wrappers, which need no word.
            self.is_read(weight) || !starred(weight).starts_with(&layers)
        });
        let sources: Vec<&String> =
            read.flat_map(|(_, sources)| sources).map(|source| &source.disk).collect();
        let mut unread: Vec<String> = self
            .record
            .disk
            .keys()
            .filter(|name| {
                !self.record.weights.contains_key(*name)
                    && !self.record.buffers.contains_key(*name)
                    && !sources.contains(name)
            })
            .map(|name| format!("\"{}\"", starred(&crate::write::text_model(name))))
            .collect();
        unread.sort();
        unread.dedup();
        unread
    }

    /// Lists with an item for each layer are as here.
    pub(super) fn same_lists(&self) -> Vec<(String, String)> {
        let keys = self.record.text_config().as_object().into_iter().flatten();
        keys.filter(|(_, value)| {
            value.as_array().is_some_and(|items| items.len() == self.written.len())
        })
        .filter_map(|(key, value)| {
            let written = crate::names::literal(value)?;
            let saved = self.record.attribute_map.get(key).unwrap_or(key);
            let test = format!("config('{saved}', config('{key}', null)) == {written}");
            Some((format!("the layers of {key} are known"), test))
        })
        .collect()
    }

    /// Keys that no part of the spec reads: what the class decides by them is assumed, and keys that it does not read are ignored.
    pub(super) fn other_keys(&self, text: &str) -> (Vec<(String, String)>, Vec<String>) {
        let mut assumptions = Vec::new();
        let mut ignored = Vec::new();
        let mut decided: Vec<String> = Vec::new();
        for decision in &self.record.decisions {
            Number::parse(&decision.test).keys(&mut decided);
        }
        let inner = self.record.text_config();
        let aliases: Vec<&String> = self.record.attribute_map.values().collect();
        for (key, value) in inner.as_object().into_iter().flatten() {
            let read = text
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .any(|word| word == key);
            let structural = [
                "architectures",
                "model_type",
                "dtype",
                "torch_dtype",
                "transformers_version",
                "use_cache",
                "_name_or_path",
            ]
            .contains(&key.as_str())
                || key.ends_with("token_id");
            if read
                || structural
                || self.record.attribute_map.contains_key(key) && !aliases.contains(&key)
            {
                continue;
            }
            let harmless = [
                "initializer_range",
                "output_attentions",
                "output_hidden_states",
                "output_router_logits",
                "router_aux_loss_coef",
                "is_encoder_decoder",
                "chunk_size_feed_forward",
                "problem_type",
                "max_position_embeddings",
                "pretraining_tp",
            ]
            .contains(&key.as_str())
                || key.contains("dropout")
                || key.ends_with("_pdrop")
                || key.contains("aux_loss");
            let branches = (!harmless && self.record.reads.contains(key))
                || decided.contains(key)
                || self
                    .record
                    .attribute_map
                    .iter()
                    .any(|(alias, saved)| saved == key && decided.contains(alias));
            match (branches, crate::names::literal(value)) {
                (true, Some(written)) if !value.is_array() => {
                    let default = number::look_up(&self.record.defaults, key)
                        .and_then(crate::names::literal)
                        .unwrap_or_else(|| "null".to_owned());
                    let test = if value.is_null() {
                        format!("has('{key}') and config('{key}', null) == null")
                    } else {
                        format!("config('{key}', {default}) == {written}")
                    };
                    assumptions
                        .push((format!("{key} is {written}").replace(['\'', ':'], ""), test));
                }
                (true, Some(written)) => {
                    assumptions.push((
                        format!("the items of {key} are known"),
                        known_items(key, value, &written),
                    ));
                }
                _ => ignored.push(key.clone()),
            }
        }
        (assumptions, ignored)
    }
}

/// The test that a list has no other words than here, or is the list that is here.
fn known_items(key: &str, value: &Json, written: &str) -> String {
    let words = words_of(value);
    if words.is_empty() {
        return format!("config('{key}', null) == {written}");
    }
    format!("has('{key}') and all([k in [{}] for k in config('{key}')])", quoted(&words))
}

/// Words of a list, each once.
pub(super) fn words_of(value: &Json) -> Vec<&str> {
    let mut words: Vec<&str> =
        value.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// Words as items of a list of the spec language.
pub(super) fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", ")
}
