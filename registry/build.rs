//! Lists the files that the crate carries (specs, function files, sheets and plugins of engines, formats of tool calls), so that adding one
//! needs no Rust.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let mut text = String::new();
    for (name, folder, kind) in [
        ("SPECS", "specs", "yaml"),
        ("LIBS", "lib", "yaml"),
        ("SHEETS", "engines", "yaml"),
        ("FORMATS", "formats", "yaml"),
        ("PLUGINS", "plugins", "py"),
    ] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        let files = files(&root.join(folder), kind)?;
        writeln!(text, "pub(crate) static {name}: [(&str, &str); {}] = [", files.len())
            .expect("a string");
        for file in files {
            println!("cargo::rerun-if-changed={}", file.display());
            let path = file.to_str().expect("the crate's own files have plain names");
            let shown = file.file_name().expect("a file").to_string_lossy();
            let place = if kind == "yaml" { format!("registry/{folder}/") } else { String::new() };
            writeln!(text, "    (\"{place}{shown}\", include_str!({path:?})),").expect("a string");
        }
        text.push_str("];\n");
    }
    fs::write(out.join("builtin.rs"), text)
}

fn files(folder: &Path, kind: &str) -> io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == kind) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
