//! Accelerators by name: `registry/gpus.yaml`.

use std::sync::Arc;

use crate::diag::{Finding, SourceText};
use crate::suggest;
use crate::yaml::{self, TreeReader, YamlMap};

/// An accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The name.
    pub name: String,
    /// Memory in MiB.
    pub memory: i64,
    /// Compute capability, major and minor digits together (90, 100); none if it has none.
    pub sm: Option<i64>,
    /// Source of the figures.
    pub source: String,
}

/// A name that no known accelerator has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no GPU `{name}`; {}known are {}; for another give the option `gpu-memory`, and the option `gpu-sm` if \
     rules depend on it",
    if .close.is_empty() { String::new() } else { format!("did you mean `{}`? ", .close.join("` or `")) },
    .known.join(", ")
)]
#[non_exhaustive]
pub struct UnknownGpu {
    /// The name.
    pub name: String,
    /// The known names that it begins, as one name with several sizes of memory does; else the nearest, if one is near.
    pub close: Vec<String>,
    /// All known names.
    pub known: Vec<String>,
}

const KEYS: [&str; 3] = ["memory", "sm", "source"];

/// Returns the accelerators that the program knows.
///
/// # Panics
/// Never: the text is part of the program, and a test reads it.
pub fn builtin() -> Vec<Gpu> {
    let text = include_str!("../../gpus.yaml").to_owned();
    let source = SourceText { path: "registry/gpus.yaml".to_owned(), text };
    read(&Arc::new(source)).expect("the table is tested")
}

/// Finds an accelerator by its name, or lists the known names.
pub fn find(name: &str) -> Result<Gpu, UnknownGpu> {
    let all = builtin();
    let word = letters(name);
    if let Some(gpu) = all.iter().find(|gpu| letters(&gpu.name) == word) {
        return Ok(gpu.clone());
    }
    let known: Vec<String> = all.into_iter().map(|gpu| gpu.name).collect();
    let mut close: Vec<String> =
        known.iter().filter(|known| letters(known).starts_with(&word)).cloned().collect();
    if word.is_empty() || close.is_empty() {
        let nearest = suggest::closest(&name.to_lowercase(), known.iter().map(String::as_str));
        close = nearest.map(str::to_owned).into_iter().collect();
    }
    Err(UnknownGpu { name: name.to_owned(), close, known })
}

/// Returns the letters and digits of a name in lower case: people write `RTX 4090`, `rtx-4090` and `rtx4090`.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Reads a table: a map of names, each with `memory` in MiB, `sm` and `source`.
pub fn read(source: &Arc<SourceText>) -> Result<Vec<Gpu>, Vec<Finding>> {
    let tree = yaml::read(source)?;
    let Some(map) = tree.map() else {
        return Err(vec![Finding::error(&tree.at, "expected a map of GPUs")]);
    };
    let mut reader = TreeReader::default();
    let mut gpus = Vec::new();
    for entry in map.values() {
        let name = entry.key.value();
        let Some(map) = reader.map(&entry.value, "a GPU", &KEYS) else { continue };
        let Some(gpu) = gpu(name, map) else {
            let message = format!("GPU `{name}` is incomplete");
            let help = "write `{ memory: MIB, sm: DIGITS, source: TEXT }`; `sm` may be left out";
            reader.findings.push(Finding::error(&entry.key.span(), message).help(help));
            continue;
        };
        gpus.push(gpu);
    }
    reader.finish(gpus)
}

/// Returns the GPU that an entry describes; none if the entry lacks a part.
fn gpu(name: &str, map: &YamlMap) -> Option<Gpu> {
    let sm = match text(map, "sm") {
        Some(sm) => Some(sm.parse().ok()?),
        None => None,
    };
    let memory = text(map, "memory")?.parse().ok().filter(|mib| *mib > 0)?;
    Some(Gpu { name: name.to_owned(), memory, sm, source: text(map, "source")?.to_owned() })
}

/// Returns the text behind a key.
fn text<'a>(map: &'a YamlMap, key: &str) -> Option<&'a str> {
    Some(map.get(key)?.value.text()?.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_name() {
        assert_eq!(find("B200").unwrap().sm, Some(100));
        for name in ["rtx-4090", "RTX 4090", "rtx4090"] {
            assert_eq!(find(name).unwrap().name, "rtx_4090");
        }
        let error = find("a100").unwrap_err().to_string();
        assert!(error.contains("did you mean `a100_40gb` or `a100_80gb`?"), "{error}");
        let error = find("b20").unwrap_err().to_string();
        assert!(
            error.contains("did you mean `b200`?") && error.contains("the option `gpu-memory`"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_table_is_a_finding() {
        assert_eq!(error_of("[]"), "expected a map of GPUs");
        assert_eq!(error_of("x: { memory: 0, source: y }"), "GPU `x` is incomplete");
        assert_eq!(error_of("x: { memory: 1, source: y, sn: 3 }"), "a GPU has no key `sn`");
    }

    fn error_of(text: &str) -> String {
        let source = SourceText { path: "gpus.yaml".to_owned(), text: text.to_owned() };
        super::read(&Arc::new(source)).unwrap_err().remove(0).message
    }
}
