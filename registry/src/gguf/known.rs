//! Tables of stock llama.cpp: architectures, and the names that their tensors may have.
//!
//! `data/gguf_archs.json` and `data/gguf_scales.json` are derived from llama.cpp, which is under the MIT licence
//! (Copyright (c) 2023-2026 The ggml authors).

use std::collections::BTreeMap;
use std::sync::OnceLock;

fn table() -> &'static BTreeMap<String, Vec<String>> {
    static TABLE: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        // A test reads it: it is part of the program.
        serde_json::from_str(include_str!("../../data/gguf_archs.json")).unwrap_or_default()
    })
}

/// True if llama.cpp knows the architecture.
pub fn is_known(arch: &str) -> bool {
    table().contains_key(arch)
}

/// True if llama.cpp knows a tensor of this name in the architecture.
pub fn knows_tensor(arch: &str, name: &str) -> bool {
    let Some(templates) = table().get(arch) else { return false };
    let ends = [".weight", ".bias", ".scale", ".input_scale"];
    let base = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let words: Vec<&str> =
        base.split('.').map(|part| if is_number(part) { "{bid}" } else { part }).collect();
    let template = words.join(".");
    // Rotary factors are looked up under a layer's template too.
    templates.iter().any(|known| *known == template || known.ends_with(&format!(".{template}")))
}

/// True if a part of a tensor's name is a number.
fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

/// Names of tensors, and the architectures whose graphs multiply them by a scale beside them: those whose file in
/// llama.cpp's `src/models` hands the tensor's `_s` on.
fn scaled() -> &'static BTreeMap<String, Vec<String>> {
    static TABLE: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        serde_json::from_str(include_str!("../../data/gguf_scales.json")).unwrap_or_default()
    })
}

/// True if llama.cpp multiplies by the scale beside a tensor. It loads that scale whatever the architecture.
pub fn applies_scale(arch: &str, name: &str) -> bool {
    let behind = name.strip_prefix("blk.").and_then(|suffix| suffix.split_once('.'));
    let Some((_, name)) = behind else { return false };
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    let mut rows = scaled().iter().filter(|(names, _)| names.split(' ').any(|one| one == stem));
    rows.any(|(_, archs)| archs.iter().any(|known| known == arch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_not_heeded_everywhere() {
        let heeding: Vec<&str> = table()
            .keys()
            .map(String::as_str)
            .filter(|a| applies_scale(a, "blk.3.ffn_up.weight"))
            .collect();
        assert!((10..30).contains(&heeding.len()), "{heeding:?}");
        assert!(heeding.iter().all(|arch| !applies_scale(arch, "output.weight")));
        let mut known = scaled().values().flatten();
        assert!(known.all(|arch| is_known(arch)));
    }

    #[test]
    fn templates_are_matched_with_their_suffixes() {
        assert!(table().len() > 100);
        let (arch, templates) =
            table().iter().find(|(_, t)| t.iter().any(|t| t == "blk.{bid}.attn_q")).unwrap();
        assert!(!templates.is_empty() && is_known(arch) && !is_known("no such"));
        assert!(knows_tensor(arch, "blk.12.attn_q.weight"));
        assert!(knows_tensor(arch, "token_embd.weight"));
        assert!(!knows_tensor(arch, "blk.12.attn_quux.weight"));
        assert!(!knows_tensor(arch, "model.layers.0.attn_q.weight"));
    }
}
