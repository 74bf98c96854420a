//! Lists the files of processors that the crate carries, so that adding one needs no Rust.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("processors");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    let mut text = format!("static PROCESSORS: [(&str, &str); {}] = [", files.len());
    for file in files {
        println!("cargo::rerun-if-changed={}", file.display());
        let path = file.to_str().expect("the crate's own files have plain names");
        let name = file.file_name().expect("a file").to_string_lossy();
        writeln!(text, "    (\"images/processors/{name}\", include_str!({path:?})),")
            .expect("a string");
    }
    text.push_str("];\n");
    fs::write(out.join("processors.rs"), text)
}
