//! Vision-language and audio checkpoints: a known text model with encoders beside it.
//!
//! The config keeps the text model in an object of its own, and its tensors lie under a prefix
//! that depends on the version of transformers that wrote them. The text model is described by its
//! spec; this module only locates its config and tensors. A wrapper computes text-only input exactly
//! as its text model does. No spec names a class for which that is false (for example, one with
//! bidirectional attention over a prefix).
//!
//! Prefixes are listed here once ([decision 45](../../docs/decisions/0045-wrappers-as-text-models.md)).

use std::collections::BTreeSet;

use crate::config::Config;
use crate::graph::Graph;
use crate::library::Library;
use crate::weight_map::{Pattern, WeightRule};

/// Prefixes of tensor names in vision-language checkpoints, and the prefixes that replace them.
pub const PREFIXES: [(&str, &str); 8] = [
    // Some classes read the layers under their usual names and write them under those of their encoder's.
    ("language_model.model.encoder.layers.", "model.layers."),
    ("language_model.model.blocks.", "model.layers."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.", ""),
    ("text_model.", ""),
    ("thinker.", ""),
    ("llm.", ""),
];

/// Prefixes under which only the text model lies begin with one of these.
const TEXT_ONLY: [&str; 3] = ["language_model.", "text_model.", "model.llm."];

impl Library {
    /// Returns the specs that describe a config: by its class, or as its text model.
    pub fn find(&self, config: &Config) -> Vec<&str> {
        let class = config.architecture().unwrap_or_default();
        let specs = self.find_architecture(class);
        if !specs.is_empty() {
            return specs;
        }
        let holds = self.inside(class);
        match config.inner_kind() {
            Some(kind) => holds.into_iter().filter(|name| self.is_kind(name, kind)).collect(),
            None => holds,
        }
    }
}

/// Returns the rules of a spec for the tensors of a wrapper: each rule, and the unchanged names, under every
/// prefix.
pub(crate) fn rules(model_rules: Vec<WeightRule>, at: &crate::diag::Span) -> Vec<WeightRule> {
    let mut all = model_rules;
    for (outer, inner) in PREFIXES {
        let known: Vec<WeightRule> =
            all.iter().filter(|rule| !wraps(&rule.disk.text)).cloned().collect();
        all.extend(known.iter().filter_map(|rule| wrapped(rule, outer, inner)));
    }
    all.extend(PREFIXES.map(|(outer, inner)| WeightRule {
        disk: Pattern { text: format!("{outer}*") },
        weight: Pattern { text: format!("{inner}*") },
        steps: Vec::new(),
        at: at.clone(),
    }));
    all
}

/// Returns a rule with the prefix `outer` of a wrapper's tensors in the place of `inner`.
fn wrapped(rule: &WeightRule, outer: &str, inner: &str) -> Option<WeightRule> {
    let suffix = rule.disk.text.strip_prefix(inner)?;
    Some(WeightRule { disk: Pattern { text: format!("{outer}{suffix}") }, ..rule.clone() })
}

/// Returns the rule for a checkpoint of the model without its head. Such a checkpoint leaves out the common
/// beginning of all other names.
pub(crate) fn bare(graph: &Graph, at: &crate::diag::Span) -> Option<WeightRule> {
    let mut counts = std::collections::BTreeMap::new();
    for weight in &graph.weights {
        *counts.entry(weight.name.split_once('.')?.0).or_insert(0_usize) += 1;
    }
    let (first, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    Some(WeightRule {
        disk: Pattern { text: "*".to_owned() },
        weight: Pattern { text: format!("{first}.*") },
        steps: Vec::new(),
        at: at.clone(),
    })
}

fn wraps(name: &str) -> bool {
    PREFIXES.iter().any(|(outer, _)| name.starts_with(outer))
}

/// Returns the roots of the graph's weights: the first two words of their names.
pub(crate) fn roots(graph: &Graph) -> BTreeSet<String> {
    let names = graph.weights.iter().map(|weight| weight.name.split('.'));
    names.map(|segments| segments.take(2).collect::<Vec<_>>().join(".")).collect()
}

/// True if a name is that of a module or of something below it.
fn is_below(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
}

/// True if a tensor of a checkpoint belongs to no module of an encoder. Checkpoints may leave out the first word of all
/// names.
pub(crate) fn outside(encoder: &Graph, name: &str) -> bool {
    let roots = roots(encoder);
    !roots.iter().any(|root| {
        is_below(name, root)
            || root.split_once('.').is_some_and(|(_, without_first)| is_below(name, without_first))
    })
}

/// True if a tensor of a wrapper belongs to a model beside the text model. `roots` are those of the text
/// model.
pub(crate) fn beside(roots: &BTreeSet<String>, name: &str) -> bool {
    let bare = PREFIXES
        .iter()
        .find_map(|(outer, inner)| Some(format!("{inner}{}", name.strip_prefix(outer)?)))
        .unwrap_or_else(|| name.to_owned());
    let text_only = TEXT_ONLY.iter().any(|word| {
        name.starts_with(word) || name.strip_prefix("model.").is_some_and(|n| n.starts_with(word))
    });
    let held = roots.iter().any(|root| is_below(&bare, root));
    !text_only && !held
}

/// Returns the name that transformers 5 gives a tensor of a wrapper, if it differs from the name on disk.
/// Encoders stand below `model`, the text model below `model.language_model`, its head beside them.
pub(crate) fn module(roots: &BTreeSet<String>, rules: &[WeightRule], name: &str) -> Option<String> {
    if beside(roots, name) {
        return (!name.starts_with("model.")).then(|| format!("model.{name}"));
    }
    let mut renamed = rules.iter().filter_map(|rule| rule.renamed(name));
    let text = renamed.find(|name| !beside(roots, name));
    let text = text.unwrap_or_else(|| name.to_owned());
    let called = match text.strip_prefix("model.") {
        Some(_) if wraps(name) && name.starts_with("model.") => return None,
        Some(suffix) => format!("model.language_model.{suffix}"),
        None => text,
    };
    (called != name).then_some(called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beside_the_text_are_told_apart() {
        let roots = ["model.layers", "model.norm", "lm_head.weight"].map(str::to_owned).into();
        for name in [
            "vision_tower.layers.0.w",
            "model.visual.blocks.0.w",
            "visual.blocks.0.w",
            "model.layers_of_another.w",
            "thinker.visual.blocks.0.w",
            "multi_modal_projector.linear_1.weight",
        ] {
            assert!(beside(&roots, name), "{name}");
        }
        assert!(!beside(&roots, "model.llm.embed.weight"));
        let at = crate::text::MappedText::whole("t", "").span();
        let rules = rules(Vec::new(), &at);
        for (disk, module_name) in [
            ("vision_tower.layers.0.w", Some("model.vision_tower.layers.0.w")),
            ("model.visual.blocks.0.w", None),
            ("language_model.model.layers.0.w", Some("model.language_model.layers.0.w")),
            ("language_model.model.blocks.0.w", Some("model.language_model.layers.0.w")),
            ("language_model.model.encoder.layers.0.w", Some("model.language_model.layers.0.w")),
            ("language_model.lm_head.weight", Some("lm_head.weight")),
            ("model.language_model.layers.0.w", None),
            ("model.layers.0.w", Some("model.language_model.layers.0.w")),
            ("lm_head.weight", None),
        ] {
            assert_eq!(module(&roots, &rules, disk).as_deref(), module_name, "{disk}");
        }
        for name in [
            "model.layers.0.w",
            "model.language_model.layers.0.w",
            "model.language_model.unheard.of",
            "language_model.unheard.of",
            "language_model.model.layers.0.w",
            "language_model.lm_head.weight",
            "thinker.model.layers.0.w",
            "lm_head.weight",
        ] {
            assert!(!beside(&roots, name), "{name}");
        }
    }
}
