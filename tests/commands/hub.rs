//! Tests of `onboard add-model owner/name` with a working hub, and with a failing one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fake_hub::{COMMIT, FakeHub, Fault};
use crate::tool::{Ran, fixture, onboard, run};

const WEIGHTS: &str = "model.safetensors";

fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs_err::read_dir(fixture("lfm2")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            let name = entry.file_name().into_string().unwrap();
            files.insert(name, fs_err::read(entry.path()).unwrap());
        }
    }
    files
}

fn ask(hub: &FakeHub, home: &Path) -> Command {
    let mut command = onboard();
    command.args(["show", "acme/tiny", "--dims"]);
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", home).env_remove("HF_HUB_OFFLINE");
    command.env("NO_PROXY", "127.0.0.1");
    command
}

fn fetch(hub: &FakeHub, home: &Path) -> Ran {
    run(&mut ask(hub, home))
}

fn snapshot(home: &Path) -> PathBuf {
    home.join("hub/models--acme--tiny/snapshots").join(COMMIT)
}

#[test]
fn a_checkpoint_is_fetched_once_and_then_found_in_the_cache() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    fetch(&hub, home.path()).code(0).says("downloading model.safetensors");
    for (name, bytes) in files() {
        if name == "README.md" {
            continue;
        }
        assert!(fs_err::read(snapshot(home.path()).join(&name)).unwrap() == bytes, "{name}");
    }
    let count = hub.requests().len();
    fetch(&hub, home.path()).code(0).says("from the cache");
    assert_eq!(hub.requests().len(), count, "the cache was enough");
    let mut offline = ask(&hub, home.path());
    run(offline.env("HF_HUB_OFFLINE", "1")).code(0);
    let blobs = fs_err::read_dir(home.path().join("hub/models--acme--tiny/blobs")).unwrap();
    assert_eq!(blobs.count(), files().len() - usize::from(files().contains_key("README.md")));
}

/// A disk, a copy or another program may have changed the bytes.
#[test]
fn a_changed_file_of_the_cache_is_refused() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    fetch(&hub, home.path()).code(0);
    fetch(&hub, home.path()).code(0).says("from the cache");
    let link = snapshot(home.path()).join(WEIGHTS);
    let blob = fs_err::canonicalize(&link).unwrap();
    let mut bytes = fs_err::read(&blob).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs_err::write(&blob, bytes).unwrap();
    let etag = blob.file_name().unwrap().to_string_lossy().into_owned();
    fetch(&hub, home.path()).code(2).says("in the cache is damaged").says(&etag);
    fs_err::remove_file(&blob).unwrap();
    fetch(&hub, home.path()).code(0);
}

#[test]
fn shards_named_by_an_index_are_fetched() {
    let mut all = files();
    let weights = all.remove(WEIGHTS).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let tensors: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&weights[8..8 + header]).unwrap();
    let map: BTreeMap<_, _> = tensors
        .keys()
        .filter(|name| *name != "__metadata__")
        .map(|name| (name, "model-00001-of-00001.safetensors"))
        .collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    all.insert("model.safetensors.index.json".to_owned(), index.to_string().into_bytes());
    all.insert("model-00001-of-00001.safetensors".to_owned(), weights);
    let hub = FakeHub::start(all);
    let home = tempfile::tempdir().unwrap();
    fetch(&hub, home.path()).code(0);
    assert!(snapshot(home.path()).join("model-00001-of-00001.safetensors").exists());
}

#[test]
fn a_broken_transfer_is_resumed() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    hub.fault(WEIGHTS, Fault::CutOnce(5000));
    fetch(&hub, home.path()).code(0).says("broke off at 5000").says("trying again");
    assert!(fs_err::read(snapshot(home.path()).join(WEIGHTS)).unwrap() == files()[WEIGHTS]);
    assert!(hub.requests().iter().any(|line| line.contains("bytes=5000-")), "{:?}", hub.requests());
}

/// True if a folder has the first 5000 bytes of a file.
#[cfg(unix)]
fn has_unfinished(blobs: &Path) -> bool {
    fs_err::read_dir(blobs).into_iter().flatten().flatten().any(|entry| {
        entry.path().extension().is_some_and(|end| end == "incomplete")
            && entry.metadata().is_ok_and(|metadata| metadata.len() == 5000)
    })
}

#[test]
#[cfg(unix)]
fn a_stopped_transfer_leaves_nothing_that_looks_finished_and_is_continued() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    hub.fault(WEIGHTS, Fault::StallOnce(5000));
    let mut command = ask(&hub, home.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let blobs = home.path().join("hub/models--acme--tiny/blobs");
    for _ in 0..3000 {
        if has_unfinished(&blobs) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(has_unfinished(&blobs), "{:?}", hub.requests());
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("to continue the download"), "{errors}");
    assert!(!snapshot(home.path()).join(WEIGHTS).exists());
    assert!(!home.path().join("hub/models--acme--tiny/refs/main").exists());
    assert!(has_unfinished(&blobs));
    fetch(&hub, home.path()).code(0);
    assert!(hub.requests().iter().any(|line| line.contains("bytes=5000-")), "{:?}", hub.requests());
    assert!(fs_err::read(snapshot(home.path()).join(WEIGHTS)).unwrap() == files()[WEIGHTS]);
}

#[test]
fn damaged_bytes_are_removed() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    hub.fault(WEIGHTS, Fault::Corrupt);
    fetch(&hub, home.path()).code(2).says("arrived damaged").says("SHA-256");
    assert!(!snapshot(home.path()).join(WEIGHTS).exists());
    let blobs = fs_err::read_dir(home.path().join("hub/models--acme--tiny/blobs")).unwrap();
    for blob in blobs {
        let length = blob.unwrap().metadata().unwrap().len() as usize;
        assert_ne!(length, files()[WEIGHTS].len(), "no damaged blob stays");
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    for (status, words) in [
        (404, "was not found"),
        (401, "set HF_TOKEN"),
        (403, "set HF_TOKEN"),
        (400, "try again later"),
    ] {
        let hub = FakeHub::start(files());
        let home = tempfile::tempdir().unwrap();
        hub.answer(status);
        fetch(&hub, home.path()).code(2).says("acme/tiny").says(words);
    }
}

#[test]
fn a_token_is_sent_and_never_shown() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    hub.answer(403);
    let mut command = ask(&hub, home.path());
    let ran = run(command.env("HF_TOKEN", "hf_secret")).code(2).says("the token in use");
    assert!(!ran.err.contains("hf_secret"));
    assert!(hub.requests()[0].contains("Bearer hf_secret"));
}

#[test]
fn names_in_an_index_cannot_leave_the_cache() {
    let mut all = files();
    let index = r#"{"weight_map": {"a": "../../../../evil.safetensors"}}"#;
    all.insert("model.safetensors.index.json".to_owned(), index.as_bytes().to_vec());
    let hub = FakeHub::start(all);
    let home = tempfile::tempdir().unwrap();
    fetch(&hub, home.path()).code(2).says("evil.safetensors").says("is refused");
}

#[test]
fn a_repository_without_what_is_needed_is_refused() {
    for (lacks, words) in
        [("config.json", "has no config.json"), (WEIGHTS, "no safetensors weights")]
    {
        let mut all = files();
        all.remove(lacks);
        let hub = FakeHub::start(all);
        let home = tempfile::tempdir().unwrap();
        fetch(&hub, home.path()).code(2).says(words);
    }
    let mut all = files();
    let weights = all.remove(WEIGHTS).unwrap();
    all.insert("pytorch_model.bin".to_owned(), weights);
    let hub = FakeHub::start(all);
    let home = tempfile::tempdir().unwrap();
    fetch(&hub, home.path())
        .code(2)
        .says("pytorch_model.bin")
        .says("save_pretrained")
        .says("acme/tiny DIR");
    assert!(!hub.requests().iter().any(|line| line.contains("pytorch_model")));
}

#[test]
fn offline_without_a_cache_says_what_is_missing() {
    let hub = FakeHub::start(files());
    let home = tempfile::tempdir().unwrap();
    let mut command = ask(&hub, home.path());
    run(command.env("HF_HUB_OFFLINE", "1"))
        .code(2)
        .says("config.json is missing")
        .says("HF_HUB_OFFLINE");
    assert!(hub.requests().is_empty());
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files());
    let mut command = ask(&hub, home.path());
    run(command.env("HF_ENDPOINT", "http://127.0.0.1:1"))
        .code(2)
        .says("http://127.0.0.1:1")
        .says("HF_ENDPOINT");
}
