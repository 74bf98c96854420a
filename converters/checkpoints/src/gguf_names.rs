//! GGUF tensor names for models whose specs give none.

use std::collections::BTreeSet;

use formats::gguf::MAX_NAME;
use indexmap::IndexMap;
use registry::diag::Span;
use registry::gguf::{Gguf, TensorRule};
use registry::model::Model;
use registry::weight_map::{Pattern, WeightRule};
use sha2::{Digest as _, Sha256};

/// Returns the GGUF section of a model whose spec has none: tensors keep their names, shortened if too
/// long.
pub fn own_names(model: &Model) -> Gguf {
    let weights = &model.graph.weights;
    let long = weights.iter().filter(|weight| weight.name.len() >= MAX_NAME);
    let mut rules: Vec<_> =
        long.map(|w| renaming_rule(shortened(&w.name), &w.name, &w.at)).collect();
    rules.extend(weights.first().map(|weight| renaming_rule("*".to_owned(), "*", &weight.at)));
    let metadata = [
        ("layers", "block_count"),
        ("context", "context_length"),
        ("hidden", "embedding_length"),
        ("vocab", "vocab_size"),
    ];
    let counts = metadata.into_iter().filter_map(|(key, name)| {
        let value = model.dims.get(key)?;
        Some((format!("{}.{name}", model.name), value.clone()))
    });
    Gguf {
        arch: model.name.clone(),
        pre: None,
        special: vec![],
        metadata: counts.collect(),
        absent: IndexMap::new(),
        rules,
        wide: BTreeSet::new(),
        tensors: vec![],
        scalars: vec![],
        drop: vec![],
        idle: vec![],
        doubts: vec![],
        ahead: 0,
        aliases: vec![],
        unlike: None,
    }
}

/// Returns the rule that only renames a weight. The disk names here are the model's weight names.
fn renaming_rule(tensor: String, weight: &str, at: &Span) -> TensorRule {
    TensorRule {
        rule: WeightRule {
            disk: Pattern { text: weight.to_owned() },
            weight: Pattern { text: tensor },
            steps: vec![],
            at: at.clone(),
        },
        ty: None,
    }
}

/// Shortens a name to its beginning, a hash that keeps shortened names distinct, and its end.
fn shortened(name: &str) -> String {
    const ENDS: usize = 27;
    let hash = format!("{:x}", Sha256::digest(name.as_bytes()));
    let begin = (0..=ENDS).rev().find(|&n| name.is_char_boundary(n)).unwrap_or(0);
    let end = (name.len() - ENDS..name.len()).find(|&n| name.is_char_boundary(n));
    format!("{}~{}{}", &name[..begin], &hash[..8], &name[end.unwrap_or(name.len())..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_and_stay_apart() {
        for name in [adapter_name(1), adapter_name(2), "é".repeat(40)] {
            assert!(shortened(&name).len() < MAX_NAME, "{name}");
        }
        assert_ne!(shortened(&adapter_name(1)), shortened(&adapter_name(2)));
    }

    fn adapter_name(n: usize) -> String {
        format!("model.layers.11.shared_transformer.feed_forward.adapters.{n}.down_proj.weight")
    }
}
