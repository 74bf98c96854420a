//! Every family that llama.cpp knows: our f32 file agrees with the reference inside llama.cpp.

use std::process::Output;

use crate::tool::{convert, fixture, parity};

/// Families, and the most that a log-probability may differ.
fn families() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("families.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' '))
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn files_of_every_family_agree_with_the_reference_in_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    assert!(families().count() > 15);
    for (family, bound) in families() {
        let file = folder.path().join(format!("{family}.gguf"));
        let made = convert()
            .arg(fixture(family))
            .args(["--to", "gguf:f32", "-o"])
            .arg(&file)
            .output()
            .unwrap();
        if !made.status.success() {
            faults.push(format!("{family} is not converted:\n{}", said(&made)));
            continue;
        }
        let checked = parity()
            .arg("check")
            .arg(&file)
            .args(["--engine", "llama.cpp", "--threads", "1", "--bound", bound, "--reference"])
            .arg(fixture(family).join("reference"))
            .output()
            .unwrap();
        if !checked.status.success() {
            faults.push(format!("{family} differs:\n{}", said(&checked)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}
