//! Pairs tensors with weights of other names, by shape and by role.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use registry::check::unmatched;
use registry::model::Model;

/// Rules for `weights:`, and undecided pairs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Renames {
    rules: Vec<RenameRule>,
    open: Vec<AmbiguousWeight>,
    /// Number of weights without a remaining tensor.
    lacking: usize,
}

/// Tensors of one name pattern that match a weight of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RenameRule {
    disk: String,
    weight: String,
    tensors: usize,
}

/// Weight with several tensors of its shape, none of which has a name that shows its role.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AmbiguousWeight {
    weight: String,
    candidates: Vec<String>,
}

/// Shapes by the numbers in the holes of a name pattern.
type HoleShapes = BTreeMap<Vec<u32>, Vec<usize>>;

impl Renames {
    /// Pairs weights without a tensor with unused tensors.
    pub(super) fn propose(model: &Model, tensors: &BTreeMap<String, Vec<usize>>) -> Self {
        let (lacking, spare) = unmatched(model, tensors);
        let lacking = groups(lacking.iter().map(|weight| (weight.name.as_str(), &weight.shape)));
        let spare = groups(spare.iter().filter_map(|name| Some((*name, tensors.get(*name)?))));
        Self::pair(&lacking, &spare)
    }

    fn pair(lacking: &BTreeMap<String, HoleShapes>, spare: &BTreeMap<String, HoleShapes>) -> Self {
        let mut renames = Self::default();
        let mut taken: Vec<&String> = Vec::new();
        // Names that show their role come first, which reduces the remaining choices.
        for by_role in [true, false] {
            for (weight, group) in lacking {
                if renames.rules.iter().any(|rule| rule.weight == *weight) {
                    continue;
                }
                let weight_role = role(weight);
                let mut candidates = alike(weight, group, spare);
                candidates.retain(|disk| !taken.contains(disk));
                candidates.retain(|disk| {
                    if by_role {
                        weight_role.is_some() && role(disk) == weight_role
                    } else {
                        weight_role.is_none() || role(disk).is_none()
                    }
                });
                let rivals = lacking.iter().filter(|(other, shapes)| {
                    *other != weight
                        && *shapes == group
                        && ending(other) == ending(weight)
                        && !renames.rules.iter().any(|rule| rule.weight == **other)
                });
                // By shape alone, only a unique match counts.
                let alone = by_role || rivals.count() == 0;
                match &candidates[..] {
                    [disk] if alone => {
                        taken.push(disk);
                        renames.rules.push(RenameRule {
                            disk: (*disk).clone(),
                            weight: weight.clone(),
                            tensors: group.len(),
                        });
                    }
                    [] => {}
                    _ if by_role => {}
                    several => renames.open.push(AmbiguousWeight {
                        weight: weight.clone(),
                        candidates: several.iter().map(|disk| (*disk).clone()).collect(),
                    }),
                }
            }
        }
        let all: usize = lacking.values().map(HoleShapes::len).sum();
        renames.lacking = all.saturating_sub(renames.tensors());
        renames
    }

    /// True if no rule is proposed and no pair is undecided.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.open.is_empty()
    }

    /// Returns the number of tensors that the rules explain.
    pub(super) fn tensors(&self) -> usize {
        self.rules.iter().map(|rule| rule.tensors).sum()
    }

    /// Returns the weight of the rules as evidence: the number of tensors explained, less the number of
    /// weights still missing. A rule that only moves the gaps is no evidence.
    pub(super) fn evidence(&self) -> usize {
        self.tensors().saturating_sub(self.lacking)
    }

    /// Returns rules for a number of tensors, with a number of weights missing.
    #[cfg(test)]
    pub(super) fn made_up(tensors: usize, lacking: usize) -> Self {
        let rule = RenameRule { disk: "a".into(), weight: "b".into(), tensors };
        Self { rules: vec![rule], open: Vec::new(), lacking }
    }

    /// Returns the items of the list; undecided pairs are written as comments.
    pub(super) fn yaml(&self) -> String {
        let mut text = String::new();
        if !self.rules.is_empty() {
            text.push_str("  # Other names, paired by shape and role: look them over.\n");
        }
        for RenameRule { disk, weight, .. } in &self.rules {
            let _ = writeln!(text, "  - {{ disk: {}, weight: {} }}", quoted(disk), quoted(weight));
        }
        if !self.open.is_empty() {
            text.push_str(
                "  # Of the right shape, but no name says which: uncomment and complete.\n",
            );
        }
        for AmbiguousWeight { weight, candidates } in &self.open {
            let candidates: Vec<String> = candidates.iter().map(|disk| quoted(disk)).collect();
            let _ = writeln!(
                text,
                "  # - {{ disk: {}, weight: {} }}",
                candidates.join(" or "),
                quoted(weight)
            );
        }
        text
    }
}

/// Quotes a name. Invalid characters are dropped, so that such a rule matches nothing.
fn quoted(name: &str) -> String {
    format!(
        "\"{}\"",
        name.chars()
            .filter(|c: &char| c.is_ascii_alphanumeric() || "._-{}/".contains(*c))
            .collect::<String>()
    )
}

/// Groups names by pattern: the first number is `{i}`, the second `{e}`.
fn groups<'n>(
    names: impl Iterator<Item = (&'n str, &'n Vec<usize>)>,
) -> BTreeMap<String, HoleShapes> {
    let mut groups: BTreeMap<String, HoleShapes> = BTreeMap::new();
    for (name, shape) in names {
        let (form, numbers) = form(name);
        groups.entry(form).or_default().insert(numbers, shape.clone());
    }
    groups
}

fn form(name: &str) -> (String, Vec<u32>) {
    let mut numbers = Vec::new();
    let mut segments = Vec::new();
    for segment in name.split('.') {
        match segment.parse() {
            Ok(number) if numbers.len() < 2 => {
                segments.push(["{i}", "{e}"][numbers.len()]);
                numbers.push(number);
            }
            _ => segments.push(segment),
        }
    }
    (segments.join("."), numbers)
}

/// Returns the last part of a name and its number of holes, which separate biases from weights and experts
/// from layers.
fn ending(name: &str) -> (&str, usize) {
    let last = name.rsplit('.').next().unwrap_or(name);
    (last, name.matches('{').count())
}

/// Role of a tensor, derived from words in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TensorRole {
    Embedding,
    Positions,
    Head,
    LastNorm,
    NormOfAttention,
    NormOfMlp,
    NormOfQueries,
    NormOfKeys,
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
    Router,
}

/// Returns the unused tensors that may be a weight by their endings, shapes and blocks.
fn alike<'t>(
    weight: &str,
    group: &HoleShapes,
    spare: &'t BTreeMap<String, HoleShapes>,
) -> Vec<&'t String> {
    let same_shapes = spare.iter().filter(|(_, shapes)| *shapes == group).map(|(disk, _)| disk);
    same_shapes
        .filter(|disk| ending(disk) == ending(weight) && !in_other_block(disk, weight))
        .collect()
}

/// True if two names indicate different blocks of a layer.
fn in_other_block(a: &str, b: &str) -> bool {
    block(a).zip(block(b)).is_some_and(|(a, b)| a != b)
}

/// Returns the block of a layer that a name indicates, if any.
fn block(name: &str) -> Option<LayerModule> {
    let name = name.to_lowercase();
    if has_module(&name, &["attn", "attention", "mixer"]) {
        Some(LayerModule::Attention)
    } else if has_module(&name, &["mlp", "ffn", "feed_forward", "expert", "moe"]) {
        Some(LayerModule::Mlp)
    } else {
        None
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerModule {
    Attention,
    Mlp,
}

/// True if a part of a name, other than those of norms, contains one of these words.
fn has_module(name: &str, words: &[&str]) -> bool {
    let mut modules = name.split('.').filter(|part| !part.contains("norm"));
    modules.any(|part| words.iter().any(|word| part.contains(word)))
}

/// Returns the role that a name indicates, if any.
fn role(name: &str) -> Option<TensorRole> {
    let name = name.to_lowercase();
    let segments: Vec<&str> = name.split('.').filter(|part| !part.starts_with('{')).collect();
    let modules = match &segments[..] {
        [modules @ .., "weight" | "bias"] => modules,
        all => all,
    };
    let (last, before) = modules.split_last()?;
    let words: Vec<&str> = last.split('_').collect();
    let is = |any: &[&str]| any.iter().any(|word| words.contains(word) || last == word);
    let says = |any: &[&str]| any.iter().any(|word| last.contains(word));
    let layered = name.contains('{');
    let norm = says(&["norm"]) || is(&["ln"]) || last.starts_with("ln");
    if !layered {
        return if norm {
            Some(TensorRole::LastNorm)
        } else if is(&["wpe"]) || says(&["pos"]) {
            Some(TensorRole::Positions)
        } else if is(&["head", "output", "out", "unembed"]) {
            Some(TensorRole::Head)
        } else if says(&["emb", "wte"]) || is(&["tok", "tokens"]) {
            Some(TensorRole::Embedding)
        } else {
            None
        };
    }
    let attention = block(&name) == Some(LayerModule::Attention);
    let mlp = block(&name) == Some(LayerModule::Mlp);
    if norm {
        return if attention || is(&["q", "k", "query", "key"]) {
            if is(&["q", "query"]) {
                Some(TensorRole::NormOfQueries)
            } else if is(&["k", "key"]) {
                Some(TensorRole::NormOfKeys)
            } else {
                None
            }
        } else if says(&["post_att", "ffn", "mlp", "feed"]) || last.ends_with('2') {
            Some(TensorRole::NormOfMlp)
        } else if says(&["input", "attn", "attention"]) || last.ends_with('1') {
            Some(TensorRole::NormOfAttention)
        } else {
            None
        };
    }
    let router = last == &"gate" && before.last().is_some_and(|part| part.contains("moe"));
    let roles = [
        (is(&["router"]) || router, TensorRole::Router),
        (is(&["q", "query", "wq"]), TensorRole::Query),
        (is(&["k", "key", "wk"]), TensorRole::Key),
        (is(&["v", "value", "wv"]), TensorRole::Value),
        (is(&["gate", "w1", "wg"]), TensorRole::Gate),
        (is(&["up", "w3", "wu", "fc1", "fc", "dense_h_to_4h"]), TensorRole::Up),
        (is(&["down", "w2", "wd", "fc2", "dense_4h_to_h"]), TensorRole::Down),
        (is(&["o", "wo"]), TensorRole::Output),
        (is(&["out", "proj", "dense", "output"]) && attention, TensorRole::Output),
        (is(&["out", "proj", "output"]) && mlp, TensorRole::Down),
    ];
    roles.into_iter().find(|(applies, _)| *applies).map(|(_, role)| role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[(&str, &[usize])]) -> BTreeMap<String, HoleShapes> {
        let names: Vec<(&str, Vec<usize>)> =
            names.iter().map(|(name, shape)| (*name, shape.to_vec())).collect();
        groups(names.iter().map(|(name, shape)| (*name, shape)))
    }

    #[test]
    fn names_are_paired_by_shape_and_role() {
        let lacking = named(&[
            ("model.embed_tokens.weight", &[16, 8]),
            ("lm_head.weight", &[16, 8]),
            ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
            ("model.layers.1.self_attn.k_proj.weight", &[4, 8]),
            ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
            ("model.layers.1.self_attn.v_proj.weight", &[4, 8]),
            ("model.layers.0.input_layernorm.weight", &[8]),
            ("model.layers.0.post_attention_layernorm.weight", &[8]),
            ("model.norm.weight", &[8]),
        ]);
        let spare = named(&[
            ("tok_embeddings.weight", &[16, 8]),
            ("output.weight", &[16, 8]),
            ("blocks.0.attention.wk.weight", &[4, 8]),
            ("blocks.1.attention.wk.weight", &[4, 8]),
            ("blocks.0.attention.wv.weight", &[4, 8]),
            ("blocks.1.attention.wv.weight", &[4, 8]),
            ("blocks.0.attention_norm.weight", &[8]),
            ("blocks.0.ffn_norm.weight", &[8]),
            ("the_last.weight", &[8]),
        ]);
        let renames = Renames::pair(&lacking, &spare);
        let text = renames.yaml();
        for pair in [
            "\"blocks.{i}.attention.wk.weight\", weight: \"model.layers.{i}.self_attn.k_proj.weight\"",
            "\"output.weight\", weight: \"lm_head.weight\"",
            "\"blocks.{i}.ffn_norm.weight\", weight: \"model.layers.{i}.post_attention_layernorm.weight\"",
            "\"the_last.weight\", weight: \"model.norm.weight\"",
        ] {
            assert!(text.contains(pair), "{pair}\n{text}");
        }
        assert_eq!((renames.tensors(), renames.open.len(), renames.lacking), (9, 0, 0));
    }

    #[test]
    fn rules_speak_for_a_spec_less_what_is_missing_even_so() {
        for (lacking, credit) in [(0, 8), (3, 5), (8, 0), (9, 0)] {
            assert_eq!(Renames::made_up(8, lacking).evidence(), credit);
        }
    }

    #[test]
    fn what_no_name_says_is_left_to_choose() {
        let lacking = named(&[
            ("m.0.self_attn.k_proj.weight", &[4, 8]),
            ("m.0.self_attn.v_proj.weight", &[4, 8]),
        ]);
        let spare = named(&[("b.0.alpha.weight", &[4, 8]), ("b.0.beta.weight", &[4, 8])]);
        let renames = Renames::pair(&lacking, &spare);
        assert_eq!((renames.tensors(), renames.open.len(), renames.lacking), (0, 2, 2));
        assert!(renames.yaml().lines().all(|line| line.starts_with("  #")));
        // Another shape, another number of layers, and a bias are not candidates.
        let unlike =
            named(&[("b.0.k.weight", &[8, 4]), ("b.1.k.weight", &[4, 8]), ("b.0.k.bias", &[4, 8])]);
        assert!(Renames::pair(&lacking, &unlike).is_empty());
    }

    #[test]
    fn a_role_of_another_block_is_no_candidate() {
        let lacking = named(&[("m.0.mlp.gate_proj.weight", &[8, 8])]);
        assert!(pair_with(&lacking, "b.0.attn.gate.weight").is_empty());
        assert_eq!(pair_with(&lacking, "b.0.feed_forward.gate.weight").tensors(), 1);
        assert_eq!(pair_with(&lacking, "b.0.gate.weight").tensors(), 1);
    }

    fn pair_with(lacking: &BTreeMap<String, HoleShapes>, name: &str) -> Renames {
        Renames::pair(lacking, &named(&[(name, &[8, 8])]))
    }
}
