//! Advice on checkpoints in PyTorch's own format, which can contain code.

use std::path::Path;

use registry::shell::shell_word;

/// True if a file name denotes weights in PyTorch's own format, or their index.
pub fn is_pickled(name: &str) -> bool {
    let base = Path::new(name).file_name().and_then(|base| base.to_str()).unwrap_or_default();
    let base = base.strip_suffix(".index.json").unwrap_or(base);
    match base.rsplit_once('.') {
        Some((stem, "bin")) => stem.starts_with("pytorch_model"),
        Some((stem, "pth")) => stem.starts_with("consolidated"),
        _ => false,
    }
}

/// Returns the PyTorch weights of a folder without safetensors.
pub(super) fn find(folder: &Path) -> Option<String> {
    let names = fs_err::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut names: Vec<_> =
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    if names.iter().any(|name| name.ends_with(".safetensors")) {
        return None;
    }
    names.into_iter().find(|name| is_pickled(name))
}

/// Returns advice on converting them to safetensors. `source` is the path that transformers should load.
pub fn advice(place: &str, file: &str, source: &str) -> String {
    format!(
        "{place} has its weights in `{file}`, which can run code when it is read, and no \
         safetensors. Convert it with transformers, if you trust where it comes from: \
         `python -c 'import sys, transformers as t; m = t.AutoModelForCausalLM.from_pretrained(sys.argv[1], \
         dtype=\"auto\"); m.save_pretrained(sys.argv[2]); \
         t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])' \
         {} DIR`, and give DIR instead",
        shell_word(source)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickled_weights_are_known_by_their_names() {
        for name in [
            "pytorch_model.bin",
            "pytorch_model-00001-of-00002.bin",
            "pytorch_model.bin.index.json",
            "consolidated.00.pth",
        ] {
            assert!(is_pickled(name), "{name}");
        }
        for name in ["model.safetensors", "training_args.bin", "pytorch_model.md"] {
            assert!(!is_pickled(name), "{name}");
        }
    }

    #[test]
    fn folders_with_safetensors_need_no_advice() {
        let folder = tempfile::tempdir().unwrap();
        fs_err::write(folder.path().join("pytorch_model.bin"), "").unwrap();
        assert_eq!(find(folder.path()).as_deref(), Some("pytorch_model.bin"));
        fs_err::write(folder.path().join("model.safetensors"), "").unwrap();
        assert_eq!(find(folder.path()), None);
    }
}
