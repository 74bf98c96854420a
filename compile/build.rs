//! Lists the files of targets that the crate carries, so that adding one needs no Rust.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = root.join("../registry/targets");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let mut files = Vec::new();
    collect(&root, &root, &mut files)?;
    files.sort();
    let mut text = format!("pub(crate) static TARGETS: [(&str, &str); {}] = [", files.len());
    for (shown, path) in files {
        let path = path.to_str().expect("the crate's own files have plain names");
        writeln!(text, "    ({shown:?}, include_str!({path:?})),").expect("a string");
    }
    text.push_str("];\n");
    fs::write(out.join("builtin.rs"), text)
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            println!("cargo::rerun-if-changed={}", path.display());
            let shown = path.strip_prefix(root).expect("it lies below").to_string_lossy();
            files.push((shown.into_owned(), path.canonicalize()?));
        }
    }
    Ok(())
}
