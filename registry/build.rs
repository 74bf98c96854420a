//! Lists the YAML files that the crate carries, so that adding one needs no Rust.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    write("builtin.rs", &[("SPECS", "specs"), ("LIBS", "lib")])?;
    write("sheets.rs", &[("ENGINES", "engines")])
}

/// Writes the lists of some folders as a Rust file.
fn write(name: &str, folders: &[(&str, &str)]) -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let mut text = String::new();
    for (name, folder) in folders {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        let files = yaml_files(&root.join(folder))?;
        writeln!(text, "static {name}: [(&str, &str); {}] = [", files.len()).expect("a string");
        for file in files {
            println!("cargo::rerun-if-changed={}", file.display());
            let path = file.to_str().expect("the crate's own files have plain names");
            let shown = file.file_name().expect("a file").to_string_lossy();
            writeln!(text, "    (\"registry/{folder}/{shown}\", include_str!({path:?})),")
                .expect("a string");
        }
        text.push_str("];\n");
    }
    fs::write(out.join(name), text)
}

fn yaml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
