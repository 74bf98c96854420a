//! What a quantized checkpoint of a model keeps as it is, and which scales are shared.

use crate::weight_map::{Holes, Pattern};

/// The `quant:` section of a spec, resolved. Patterns are of modules: a tensor's name without
/// its `.weight`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Quant {
    /// What is not quantized: in words, and which modules that are.
    pub keep: Vec<(String, Pattern)>,
    /// Modules that engines fuse, so that they have one scale where a tensor has one.
    pub together: Vec<(String, Pattern)>,
}

impl Quant {
    /// Why a weight is not quantized, if the spec says so.
    pub fn kept(&self, weight: &str) -> Option<&str> {
        let module = module(weight);
        let keeps = |(_, pattern): &&(String, Pattern)| pattern.fit(module).is_some();
        self.keep.iter().find(keeps).map(|(why, _)| why.as_str())
    }

    /// The weights that share a scale with this one, and it among them, in the order of the
    /// pattern; only itself if there is none. Not all of them need exist.
    pub fn together(&self, weight: &str) -> Vec<String> {
        let module = module(weight);
        let end = &weight[module.len()..];
        let all = self.together.iter().find_map(|(_, pattern)| {
            let mut holes: Holes = pattern.fit(module)?;
            holes.retain(|name, _| !name.contains('|'));
            pattern.spread(&holes)
        });
        match all {
            Some(modules) => modules.into_iter().map(|module| module + end).collect(),
            None => vec![weight.to_owned()],
        }
    }
}

/// A tensor's name without its last word, if that is `weight`.
fn module(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(why: &str, pattern: &str) -> (String, Pattern) {
        (why.to_owned(), Pattern::parse(pattern).unwrap())
    }

    #[test]
    fn modules_are_kept_and_grouped_by_pattern() {
        let quant = Quant {
            keep: vec![entry("routers", "*.mlp.gate"), entry("the head", "head")],
            together: vec![entry("qkv", "*.{q|k|v}_proj")],
        };
        assert_eq!(quant.kept("a.0.mlp.gate.weight"), Some("routers"));
        assert_eq!(quant.kept("a.0.mlp.gate_up.weight"), None);
        assert_eq!(quant.kept("head.weight"), Some("the head"));
        assert_eq!(
            quant.together("a.1.k_proj.weight"),
            ["a.1.q_proj.weight", "a.1.k_proj.weight", "a.1.v_proj.weight"]
        );
        assert_eq!(quant.together("a.1.o_proj.weight"), ["a.1.o_proj.weight"]);
    }
}
