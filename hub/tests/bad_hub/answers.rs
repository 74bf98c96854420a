//! Tests of responses without a relevant body: statuses, headers, listings.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use onboard_hub::{Client, HubOptions};

use crate::server::{COMMIT, Server, answer, git_hash};
use crate::{CONFIG, ID, Scene, TOKEN, fails, hasty, options};

#[test]
fn too_many_requests_are_waited_out() {
    let scene = Scene::new();
    // A wait of an hour is limited by the options.
    let busy = "HTTP/1.1 429 Slow Down\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
    for (method, part) in [("GET", "/api/"), ("HEAD", "/resolve/"), ("GET", "/resolve/")] {
        scene.pair.hub.raw_times(2, method, part, busy);
    }
    scene.client(options()).list(ID, "main").unwrap();
    scene.config().unwrap();
    assert_eq!(scene.told("Retry"), 6);
    assert_eq!(scene.told("wait: 50ms"), 6);
}

#[test]
fn a_hub_that_stays_unavailable_is_given_up() {
    for code in [429, 500, 502, 503, 504] {
        let scene = Scene::new();
        let head = format!("HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n");
        scene.pair.hub.raw("GET", "/api/", head.clone());
        scene.pair.hub.raw("HEAD", "/resolve/", head);
        fails(scene.client(options()).list(ID, "main"), &[&code.to_string(), "acme/tiny"]);
        fails(scene.config(), &[&code.to_string(), "config.json"]);
        assert_eq!(scene.pair.hub.seen("GET", "/api/").len(), 3);
        assert_eq!(scene.pair.hub.seen("HEAD", "/resolve/").len(), 3);
    }
}

#[test]
fn a_refusal_is_not_asked_again() {
    for code in [400, 401, 403, 404, 410] {
        let scene = Scene::new();
        let head = format!("HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n");
        scene.pair.hub.raw("GET", "/api/", head);
        let error = scene.client(options()).list(ID, "main").unwrap_err();
        assert_eq!(error.status(), Some(code));
        assert_eq!(scene.pair.hub.requests().len(), 1);
    }
}

#[test]
fn silence_is_an_error() {
    let scene = Scene::new();
    for (method, part) in [("GET", "/api/"), ("HEAD", "/resolve/")] {
        scene.pair.hub.on(move |request, _| {
            let fits = request.method == method && request.path.contains(part);
            if fits {
                thread::sleep(Duration::from_secs(2));
            }
            fits
        });
    }
    fails(scene.client(hasty()).list(ID, "main"), &["went silent"]);
    fails(scene.weights_with(hasty()), &["went silent"]);
    assert_eq!(scene.pair.hub.seen("GET", "/api/").len(), 2);
}

#[test]
fn headers_that_drip_are_an_error() {
    let scene = Scene::new();
    scene.pair.hub.on(|_, stream| {
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Padding: 0123456789\r\n\r\n" {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(40));
        }
        true
    });
    fails(scene.client(hasty()).list(ID, "main"), &["went silent"]);
}

#[test]
fn a_connection_that_closes_at_once_is_an_error() {
    let scene = Scene::new();
    scene.pair.hub.raw("GET", "/api/", "");
    fails(scene.client(options()).list(ID, "main"), &["acme/tiny", &scene.pair.hub.origin]);
    assert_eq!(scene.pair.hub.requests().len(), 3);
}

#[test]
fn an_answer_that_is_no_http_is_an_error() {
    for junk in [
        "SSH-2.0-OpenSSH_9\r\n\r\n",
        "HTTP/1.1 banana\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
    ] {
        let scene = Scene::new();
        scene.pair.hub.raw("GET", "/api/", junk);
        fails(scene.client(options()).list(ID, "main"), &["acme/tiny"]);
    }
}

#[test]
fn headers_without_an_end_are_an_error() {
    let scene = Scene::new();
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    for i in 0..4000 {
        head.extend(format!("X-Padding-{i}: {}\r\n", "x".repeat(100)).bytes());
    }
    scene.pair.hub.raw("HEAD", "/resolve/", head);
    fails(scene.config(), &["config.json"]);
}

#[test]
fn a_listing_without_an_end_is_an_error() {
    let scene = Scene::new();
    scene.pair.hub.on(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"a\":\"").ok();
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
        true
    });
    let small = HubOptions { most_listing: 100_000, ..options() };
    fails(scene.client(small).list(ID, "main"), &["longer than 100000 bytes"]);
}

#[test]
fn a_listing_that_is_none_is_an_error() {
    for (body, words) in [
        ("", "not JSON"),
        ("<html>", "not JSON"),
        ("[]", "`sha`"),
        (r#"{"sha":"../../x","siblings":[]}"#, "`sha`"),
        (r#"{"sha":"abc"}"#, "`siblings`"),
        (r#"{"sha":"abc","siblings":[{}]}"#, "`rfilename`"),
        (r#"{"sha":"abc","siblings":[{"rfilename":"../x"}]}"#, "file name `../x` is refused"),
        (r#"{"sha":"abc","siblings":[{"rfilename":"a/../../x"}]}"#, "is refused"),
        (r#"{"sha":"abc","siblings":[{"rfilename":"/etc/passwd"}]}"#, "is refused"),
        (r#"{"sha":"abc","siblings":[{"rfilename":"..\\x"}]}"#, "is refused"),
        (r#"{"sha":"abc","siblings":[{"rfilename":"a\u0000b"}]}"#, "is refused"),
        (r#"{"sha":"abc","siblings":[{"rfilename":"a\u001b[2J"}]}"#, "a\\u{1b}[2J"),
    ] {
        let scene = Scene::new();
        scene.pair.hub.on(move |_, stream| {
            answer(stream, "200 OK", &[], body.as_bytes());
            true
        });
        fails(scene.client(options()).list(ID, "main"), &[words]);
    }
    let deep = "[".repeat(200_000);
    let scene = Scene::new();
    scene.pair.hub.on(move |_, stream| {
        answer(stream, "200 OK", &[], deep.as_bytes());
        true
    });
    fails(scene.client(options()).list(ID, "main"), &["not JSON"]);
}

#[test]
fn a_revision_with_slashes_is_one_segment() {
    let scene = Scene::new();
    scene.client(options()).list(ID, "refs/pr/1").unwrap();
    assert!(scene.pair.hub.requests()[0].path.ends_with("/revision/refs%2Fpr%2F1"));
    for bad in ["../../api/whoami", "a/../b", "", "main?x", "a b"] {
        fails(scene.client(options()).list(ID, bad), &["revision", "is refused"]);
    }
    for bad in ["../x", "a/../b", "/etc/passwd", "a\0", "a\\b"] {
        fails(scene.client(options()).fetch(ID, COMMIT, bad), &["file name", "is refused"]);
    }
    assert_eq!(scene.pair.hub.requests().len(), 1, "nothing was asked for");
}

#[test]
fn what_is_announced_of_a_file_must_be_usable() {
    let good = git_hash(CONFIG);
    for (headers, words) in [
        (vec!["Content-Length: 5".to_owned()], "etag"),
        (vec!["ETag: \"../../../x\"".to_owned()], "etag"),
        (vec!["ETag: \"\"".to_owned()], "etag"),
        (vec![format!("ETag: \"{}\"", "a".repeat(500))], "etag"),
        (vec![format!("ETag: {good}"), "X-Repo-Commit: fff".to_owned()], "commit `fff`"),
        (vec![format!("ETag: {good}"), "X-Linked-Size: -1".to_owned()], "length"),
        (vec![format!("ETag: {good}"), "X-Linked-Size: 99999999999999999999".to_owned()], "length"),
    ] {
        let scene = Scene::new();
        scene.pair.hub.on(move |request, stream| {
            let fits = request.method == "HEAD";
            if fits {
                answer(stream, "200 OK", &headers, b"");
            }
            fits
        });
        fails(scene.config(), &[words]);
        assert!(scene.blobs().is_empty());
    }
}

#[test]
fn a_token_that_is_none_is_refused_and_not_shown() {
    for bad in ["hf_secret\r\nX-Evil: 1", "hf_secret\0", "hf_sécret hf_secret"] {
        let home = tempfile::tempdir().unwrap();
        let client =
            Client::new("http://127.0.0.1:1", Some(bad), home.path(), "t", options(), |_| {});
        let error = client.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("cret"), "{error:?}");
    }
    let scene = Scene::new();
    assert!(!format!("{:?}", scene.client(options())).contains(TOKEN));
}

#[test]
fn an_address_that_is_none_is_refused() {
    for bad in [
        "",
        "huggingface.co",
        "ftp://hub",
        "https://",
        "http://user:pw@hub",
        "https://h:99999",
        "https://h/?a=b",
    ] {
        let client =
            Client::new(bad, None, std::path::Path::new("/nowhere"), "t", options(), |_| {});
        assert!(client.is_err(), "{bad}");
    }
}

#[test]
fn a_hub_that_is_not_there_is_an_error_at_once() {
    let origin = Server::start().origin;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = tempfile::tempdir().unwrap();
    let patient = HubOptions { backoff: Duration::from_secs(60), ..options() };
    let none = format!("http://{closed}");
    let client = Client::new(&none, None, home.path(), "t", patient.clone(), |_| {}).unwrap();
    fails(client.list(ID, "main"), &[&none]);
    let unknown =
        Client::new("http://no-such-host.invalid", None, home.path(), "t", patient, |_| {});
    fails(unknown.unwrap().list(ID, "main"), &["no-such-host.invalid"]);
    drop(origin);
}
