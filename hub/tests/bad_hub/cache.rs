//! Tests of the cache on the disk: its layout, and concurrent use by several programs.

use std::thread;
use std::time::Duration;

use onboard_hub::cache::ModelCache;

use crate::server::{COMMIT, git_hash, serve_range, sha256};
use crate::{CONFIG, ID, Scene, WEIGHTS, fails, hasty, options, weights};

#[test]
#[cfg(unix)]
fn the_layout_is_that_of_pythons_library() {
    let scene = Scene::new();
    scene.config().unwrap();
    scene.weights().unwrap();
    let cache = ModelCache::new(scene.home.path(), ID).unwrap();
    cache.set_commit("refs/pr/1", COMMIT).unwrap();
    assert_eq!(fs_err::read_to_string(scene.path("refs/refs/pr/1")).unwrap(), COMMIT);
    assert_eq!(cache.commit("refs/pr/1").as_deref(), Some(COMMIT));
    cache.set_commit(COMMIT, COMMIT).unwrap();
    assert!(!scene.path("refs").join(COMMIT).exists(), "a commit needs no ref");
    assert_eq!(
        link_of(&scene, WEIGHTS),
        std::path::Path::new("../../blobs").join(sha256(&weights()))
    );
    assert_eq!(
        link_of(&scene, "config.json"),
        std::path::Path::new("../../blobs").join(git_hash(CONFIG))
    );
    let lock = scene.home.path().join(".locks/models--acme--tiny");
    assert!(lock.join(format!("{}.lock", sha256(&weights()))).exists());
    assert!(scene.home.path().join("CACHEDIR.TAG").exists());
    let mut blobs = [git_hash(CONFIG), sha256(&weights())];
    blobs.sort();
    assert_eq!(scene.blobs(), blobs);
}

fn link_of(scene: &Scene, name: &str) -> std::path::PathBuf {
    fs_err::read_link(scene.path("snapshots").join(COMMIT).join(name)).unwrap()
}

#[test]
fn what_is_in_the_cache_is_not_asked_for() {
    let scene = Scene::new();
    let first = scene.weights().unwrap();
    let count = scene.pair.hub.requests().len();
    assert_eq!(scene.weights().unwrap(), first);
    assert_eq!(scene.pair.hub.requests().len(), count);
    // The bytes exist under the name of another commit: they are linked, not fetched.
    fs_err::remove_file(&first).unwrap();
    scene.weights().unwrap();
    assert_eq!(scene.pair.storage.requests().len(), 1);
}

#[test]
fn a_blob_of_another_length_is_replaced() {
    let scene = Scene::new();
    fs_err::create_dir_all(scene.path("blobs")).unwrap();
    fs_err::write(scene.path("blobs").join(sha256(&weights())), b"cut").unwrap();
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
}

#[test]
#[cfg(unix)]
fn links_in_the_way_are_replaced_and_not_followed() {
    use fs_err::os::unix::fs::symlink;
    let scene = Scene::new();
    let precious = scene.home.path().join("precious");
    fs_err::write(&precious, "precious").unwrap();
    fs_err::create_dir_all(scene.path("blobs")).unwrap();
    let blob = scene.path("blobs").join(sha256(&weights()));
    symlink(&precious, format!("{}.incomplete", blob.display())).unwrap();
    symlink(&precious, &blob).unwrap();
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    assert_eq!(fs_err::read(&precious).unwrap(), b"precious");
}

#[test]
fn an_unfinished_file_that_is_too_long_or_damaged_is_not_believed() {
    let scene = Scene::new();
    fs_err::create_dir_all(scene.path("blobs")).unwrap();
    let part = scene.path("blobs").join(format!("{}.incomplete", sha256(&weights())));
    fs_err::write(&part, vec![0; 300_001]).unwrap();
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    let scene = Scene::new();
    fs_err::create_dir_all(scene.path("blobs")).unwrap();
    let part = scene.path("blobs").join(format!("{}.incomplete", sha256(&weights())));
    fs_err::write(&part, [0; 1000]).unwrap();
    fails(scene.weights(), &["damaged", "run the command again"]);
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
}

#[test]
fn several_fetches_at_once_share_one_transfer() {
    let scene = Scene::new();
    let bytes = weights();
    scene.pair.storage.on(move |request, stream| {
        // Long enough for all of them to arrive.
        thread::sleep(Duration::from_millis(300));
        serve_range(request, stream, &bytes);
        true
    });
    thread::scope(|scope| {
        let fetches: Vec<_> = (0..4).map(|_| scope.spawn(|| scene.weights().unwrap())).collect();
        for fetch in fetches {
            assert!(fs_err::read(fetch.join().unwrap()).unwrap() == weights());
        }
    });
    assert_eq!(scene.pair.storage.requests().len(), 1);
    assert_eq!(scene.blobs(), [sha256(&weights())]);
}

#[test]
fn a_lock_whose_holder_does_nothing_is_an_error() {
    let scene = Scene::new();
    let folder = scene.home.path().join(".locks/models--acme--tiny");
    fs_err::create_dir_all(&folder).unwrap();
    let held = std::fs::File::create(folder.join(format!("{}.lock", sha256(&weights())))).unwrap();
    held.lock().unwrap();
    fails(scene.weights_with(hasty()), &["another process", ".lock"]);
    assert_eq!(scene.told("Waiting"), 1);
    drop(held);
    scene.weights_with(options()).unwrap();
}
