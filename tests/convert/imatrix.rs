//! Tests of `onboard imatrix`: shards, and measurements that are interrupted.

use std::path::Path;

use crate::tool::{Ran, fixture, onboard, run};

const IDS: &str = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28";

fn imatrix(output: &Path, more: &[&str]) -> Ran {
    let mut command = onboard();
    command.arg("imatrix").arg(fixture("qwen3_moe")).args(["--tokens", IDS, "--chunk", "4", "-o"]);
    run(command.arg(output).args(more))
}

/// Runs a command that succeeds and prints some words.
fn prints(ran: Ran, words: &str) -> Ran {
    let ran = ran.code(0);
    assert!(ran.out.contains(words), "no `{words}` in: {}", ran.out);
    ran
}

fn merge(shards: &[&Path], output: &Path) -> Ran {
    run(onboard().args(["imatrix", "merge"]).args(shards).arg("-o").arg(output))
}

#[test]
fn shards_give_the_bytes_of_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    prints(imatrix(&folder.join("one.gguf"), &[]), "measured on 7 chunks of 4 tokens");
    let one = fs_err::read(folder.join("one.gguf")).unwrap();
    let names = ["a.shard", "b.shard", "c.shard"].map(|name| folder.join(name));
    for (name, shard) in names.iter().zip(["1/3", "2/3", "3/3"]) {
        imatrix(name, &["--shard", shard]).code(0);
    }
    prints(imatrix(&names[1], &["--shard", "2/3"]), "measured already");
    imatrix(&names[1], &["--shard", "1/3"]).code(2).says("is there already");
    let [a, b, c] = &names;
    prints(merge(&[c, a, b], &folder.join("all.gguf")), "measured on 7 chunks of 4 tokens");
    assert!(fs_err::read(folder.join("all.gguf")).unwrap() == one, "the bytes differ");
    merge(&[a, c], &folder.join("x.gguf")).code(2).says("begins with chunk 4; expected chunk 2");
    merge(&[a, b], &folder.join("x.gguf")).code(2).says("the last shard is missing");
    merge(&[a, b, b, c], &folder.join("x.gguf")).code(2).says("given twice");
    merge(&[a, b, c], a).code(2).says("and it is read");
    imatrix(&names[2], &["--shard", "3/3", "--dtype", "f32", "--force"]).code(0);
    merge(&[a, b, c], &folder.join("x.gguf")).code(2).says("another measurement");
    assert!(!folder.join("x.gguf").exists());
    // More shards than chunks: some are empty.
    let many: Vec<_> = (1..=9).map(|n| folder.join(format!("{n}.of9"))).collect();
    for (n, path) in many.iter().enumerate() {
        imatrix(path, &["--shard", &format!("{}/9", n + 1)]).code(0);
    }
    let many: Vec<&Path> = many.iter().map(std::path::PathBuf::as_path).collect();
    merge(&many, &folder.join("many.gguf")).code(0);
    assert!(fs_err::read(folder.join("many.gguf")).unwrap() == one, "the bytes differ");
}

#[test]
fn an_interrupted_measurement_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    imatrix(&folder.join("one.gguf"), &[]).code(0);
    assert!(!folder.join("one.gguf.sums").exists(), "what is kept for a second run is removed");
    imatrix(&folder.join("two.gguf.sums"), &["--shard", "1/2"]).code(0);
    let sums = fs_err::read(folder.join("two.gguf.sums")).unwrap();
    imatrix(&folder.join("two.gguf"), &[])
        .code(0)
        .says("3 of 7 chunks were measured by an earlier run");
    assert!(
        fs_err::read(folder.join("two.gguf")).unwrap()
            == fs_err::read(folder.join("one.gguf")).unwrap()
    );
    let mut damaged = sums.clone();
    let last = damaged.len() - 20;
    damaged[last] ^= 1;
    fs_err::write(folder.join("two.gguf.sums"), &damaged).unwrap();
    imatrix(&folder.join("two.gguf"), &["--force"]).code(2).says("two.gguf.sums` is damaged");
    merge(&[&folder.join("two.gguf.sums")], &folder.join("x.gguf"))
        .code(2)
        .says("two.gguf.sums` is damaged");
    // Sums of another measurement are not used, and a file of something else is not replaced.
    fs_err::write(folder.join("two.gguf.sums"), &sums).unwrap();
    let ran = imatrix(&folder.join("two.gguf"), &["--chunks", "5", "--force"]);
    prints(ran, "measured on 5 chunks").says("is of another measurement");
    fs_err::write(folder.join("two.gguf.sums"), b"notes").unwrap();
    imatrix(&folder.join("two.gguf"), &["--force"])
        .code(2)
        .says("is in the way; move or remove it");
    assert!(fs_err::read(folder.join("two.gguf.sums")).unwrap() == b"notes");
}
