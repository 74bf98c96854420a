//! Tests of bodies that break off, have a wrong length, are slow, or are damaged.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use onboard_hub::HubOptions;

use crate::server::{answer, serve_range, sha256};
use crate::{CONFIG, Scene, fails, hasty, options, weights};

/// Returns the head of a response that announces this many bytes, followed by the first of them.
fn cut(announced: usize, bytes: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {announced}\r\n\r\n").as_bytes(), bytes].concat()
}

#[test]
fn a_dropped_connection_is_resumed() {
    let scene = Scene::new();
    let all = weights();
    scene.pair.storage.raw_times(1, "GET", "/signed/", cut(all.len(), &all[..100_000]));
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == all);
    let requests = scene.pair.storage.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].headers["range"], "bytes=100000-");
    scene.storage_saw_no_token();
}

#[test]
fn a_body_that_ends_early_without_a_length_is_resumed() {
    let scene = Scene::new();
    let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
    scene.pair.storage.raw_times(1, "GET", "/signed/", [&head[..], &weights()[..777]].concat());
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    assert_eq!(scene.pair.storage.requests()[1].headers["range"], "bytes=777-");
}

#[test]
fn a_transfer_that_keeps_breaking_is_given_up_and_continued_later() {
    let scene = Scene::new();
    let all = weights();
    scene.pair.storage.on(move |request, stream| {
        let from = request.from();
        let range = format!("Content-Range: bytes {from}-{}/{}", all.len() - 1, all.len());
        let length = format!("Content-Length: {}", all.len() - from);
        let status = if from == 0 { "200 OK" } else { "206 Partial Content" };
        answer(stream, status, &[range, length], &all[from..from + 1000]);
        true
    });
    fails(scene.weights(), &["broke off at 3000 of 300000 bytes", &scene.pair.storage.origin]);
    assert_eq!(scene.pair.storage.requests().len(), 3);
    let part = scene.path("blobs").join(format!("{}.incomplete", sha256(&weights())));
    assert_eq!(fs_err::metadata(&part).unwrap().len(), 3000);
    assert!(!scene.path("snapshots").exists(), "nothing looks finished");
    let bytes = weights();
    scene.pair.storage.on(move |request, stream| {
        serve_range(request, stream, &bytes);
        true
    });
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    assert_eq!(scene.pair.storage.requests()[3].headers["range"], "bytes=3000-");
    assert_eq!(scene.blobs(), [sha256(&weights())]);
}

#[test]
fn a_server_error_of_the_storage_is_retried() {
    let scene = Scene::new();
    let busy = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n";
    scene.pair.storage.raw_times(2, "GET", "/signed/", busy);
    scene.weights().unwrap();
    let refused = Scene::new();
    refused.pair.storage.raw(
        "GET",
        "/signed/",
        "HTTP/1.1 403 Expired\r\nContent-Length: 0\r\n\r\n",
    );
    fails(refused.weights(), &["403", &refused.pair.storage.origin]);
    assert_eq!(refused.pair.storage.requests().len(), 1);
}

#[test]
fn silence_within_a_body_is_an_error() {
    let scene = Scene::new();
    let head = cut(300_000, &weights()[..5000]);
    scene.pair.storage.on(move |_, stream| {
        stream.write_all(&head).ok();
        thread::sleep(Duration::from_secs(2));
        true
    });
    fails(scene.weights_with(hasty()), &["of 300000 bytes", "went silent"]);
}

#[test]
fn a_body_that_drips_is_an_error() {
    let scene = Scene::new();
    scene.pair.storage.on(|_, stream| {
        stream.write_all(&cut(300_000, b"")).ok();
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
        true
    });
    let window = Duration::from_millis(200);
    let strict = HubOptions { window, least_rate: 10_000, tries: 2, ..options() };
    fails(scene.weights_with(strict), &["too slowly"]);
}

#[test]
fn a_body_longer_than_announced_is_an_error() {
    // Without a length, and chunked; received bytes are not kept.
    for chunked in [false, true] {
        let scene = Scene::new();
        scene.pair.storage.on(move |_, stream| {
            let kind = if chunked { "Transfer-Encoding: chunked" } else { "Connection: close" };
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{kind}\r\n\r\n").as_bytes()).ok();
            let piece = [b'x'; 4096];
            let framed = [b"1000\r\n", &piece[..], b"\r\n"].concat();
            while stream.write_all(if chunked { &framed } else { &piece }).is_ok() {}
            true
        });
        fails(scene.weights(), &["longer than the 300000 bytes"]);
        assert!(scene.blobs().is_empty(), "{:?}", scene.blobs());
    }
}

#[test]
fn a_length_other_than_the_announced_one_is_an_error() {
    for length in [299_999, 300_001, 5] {
        let scene = Scene::new();
        let all = [&weights()[..], b"x"].concat();
        scene.pair.storage.raw("GET", "/signed/", cut(length, &all[..length]));
        fails(scene.weights(), &[&length.to_string(), "announced were 300000"]);
    }
}

#[test]
fn bytes_behind_the_announced_end_are_nobodys() {
    let scene = Scene::new();
    let behind = [&weights()[..], b"HTTP/1.1 200 OK\r\n\r\nevil"].concat();
    scene.pair.storage.raw("GET", "/signed/", cut(300_000, &behind));
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
}

#[test]
fn a_compressed_body_is_an_error() {
    // A few compressed bytes that expand to many: they are not decompressed.
    let head =
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\u{b}\x08\x00";
    let scene = Scene::new();
    scene.pair.storage.raw("GET", "/signed/", head);
    scene.pair.hub.raw("GET", "/api/", head);
    fails(scene.weights(), &["compressed (`gzip`)"]);
    fails(scene.client(options()).list(crate::ID, "main"), &["compressed (`gzip`)"]);
}

#[test]
fn damaged_bytes_of_large_and_of_small_files_are_removed() {
    let scene = Scene::new();
    let mut all = weights();
    all[150_000] ^= 1;
    scene.pair.storage.raw("GET", "/signed/", cut(all.len(), &all));
    fails(scene.weights(), &["damaged", "SHA-256", &sha256(&weights())]);
    let mut small = CONFIG.to_vec();
    small[3] ^= 1;
    scene.pair.hub.raw("GET", "/resolve/", cut(small.len(), &small));
    fails(scene.config(), &["damaged", "git blob hash"]);
    assert!(scene.blobs().is_empty(), "{:?}", scene.blobs());
    assert!(!scene.path("snapshots").exists());
}

#[test]
fn a_range_that_is_passed_over_starts_again() {
    let scene = Scene::new();
    let all = weights();
    let full_reply = cut(all.len(), &all);
    scene.pair.storage.raw("GET", "/signed/", full_reply);
    scene.pair.storage.raw_times(1, "GET", "/signed/", cut(all.len(), &all[..1234]));
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == all);
    assert_eq!(scene.pair.storage.requests()[1].headers["range"], "bytes=1234-");
}

#[test]
fn a_range_that_was_not_asked_for_is_an_error() {
    for range in
        ["bytes 0-299999/300000", "bytes 2000-299999/300000", "banana", "bytes 1000-299999/5"]
    {
        let scene = Scene::new();
        let all = weights();
        let head = format!(
            "HTTP/1.1 206 Partial\r\nContent-Range: {range}\r\nContent-Length: 299000\r\n\r\n"
        );
        scene.pair.storage.raw("GET", "/signed/", [head.as_bytes(), &all[1000..]].concat());
        scene.pair.storage.raw_times(1, "GET", "/signed/", cut(all.len(), &all[..1000]));
        fails(scene.weights(), &["model.safetensors"]);
        assert!(!scene.path("snapshots").exists());
    }
}

#[test]
fn a_file_without_a_known_length_is_an_error() {
    let scene = Scene::new();
    let etag = crate::server::git_hash(CONFIG);
    let head = format!("HTTP/1.1 200 OK\r\nETag: \"{etag}\"\r\nConnection: close\r\n\r\n");
    scene.pair.hub.raw("HEAD", "/resolve/", head.clone());
    scene.pair.hub.raw("GET", "/resolve/", [head.as_bytes(), CONFIG].concat());
    fails(scene.config(), &["states no length"]);
}

#[test]
fn a_file_without_a_hash_is_taken_with_a_word() {
    let scene = Scene::new();
    let head =
        format!("HTTP/1.1 200 OK\r\nETag: \"v1-abc\"\r\nContent-Length: {}\r\n\r\n", CONFIG.len());
    scene.pair.hub.raw("HEAD", "/resolve/", head.clone());
    scene.pair.hub.raw("GET", "/resolve/", [head.as_bytes(), CONFIG].concat());
    scene.config().unwrap();
    assert_eq!(scene.told("Unverified"), 1);
}
