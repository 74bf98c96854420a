//! Tests of redirects: recipients of the token, and invalid targets.

use crate::server::{COMMIT, Server, answer, serve_range, sha256};
use crate::{CONFIG, ID, Scene, TOKEN, fails, options, weights};

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_origin() {
    let scene = Scene::new();
    scene.client(options()).list(ID, "main").unwrap();
    assert!(fs_err::read(scene.config().unwrap()).unwrap() == CONFIG);
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    for request in scene.pair.hub.requests() {
        assert_eq!(request.headers["authorization"], format!("Bearer {TOKEN}"), "{request:?}");
        assert_eq!(request.headers["accept-encoding"], "identity");
    }
    scene.storage_saw_no_token();
}

#[test]
fn the_token_is_not_sent_along_a_chain_of_other_origins() {
    let scene = Scene::new();
    let third = Server::start();
    let bytes = weights();
    third.on(move |request, stream| {
        crate::server::serve_range(request, stream, &bytes);
        true
    });
    // The name of the host differs, and then only the port.
    let port = third.origin.rsplit(':').next().unwrap();
    let moved = format!("HTTP/1.1 307 Moved\r\nLocation: http://localhost:{port}/x\r\n\r\n");
    scene.pair.storage.raw("GET", "/signed/", moved);
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    scene.storage_saw_no_token();
    assert!(!third.requests().is_empty());
    assert!(!format!("{:?}", third.requests()).contains(TOKEN));
}

#[test]
fn a_listing_at_another_origin_is_refused_and_not_asked_for() {
    let scene = Scene::new();
    let other = &scene.pair.storage.origin;
    let moved = format!("HTTP/1.1 302 Found\r\nLocation: {other}/api\r\n\r\n");
    scene.pair.hub.raw("GET", "/api/models/", moved);
    fails(scene.client(options()).list(ID, "main"), &["redirects to", other]);
    assert!(scene.pair.storage.requests().is_empty());
}

#[test]
fn a_renamed_model_is_followed_on_the_same_host() {
    let scene = Scene::new();
    let from = "HTTP/1.1 307 Moved\r\nLocation: ";
    scene.pair.hub.raw(
        "GET",
        "/api/models/old/name/",
        format!("{from}/api/models/acme/tiny/revision/main\r\n\r\n"),
    );
    let to = format!("/acme/tiny/resolve/{COMMIT}/config.json");
    for method in ["HEAD", "GET"] {
        scene.pair.hub.raw(method, "/old/name/resolve/", format!("{from}{to}\r\n\r\n"));
    }
    let client = scene.client(options());
    assert_eq!(client.list("old/name", "main").unwrap().commit, COMMIT);
    let path = client.fetch("old/name", COMMIT, "config.json").unwrap();
    assert!(fs_err::read(path).unwrap() == CONFIG);
    assert!(scene.pair.hub.requests().iter().all(|r| r.headers.contains_key("authorization")));
}

#[test]
fn a_hub_that_is_its_own_storage_is_believed_about_the_hash_before_the_storage() {
    let scene = Scene::new();
    let bytes = weights();
    let headers = [
        format!("Location: {}/own/weights", scene.pair.hub.origin),
        format!("X-Linked-Etag: \"{}\"", sha256(&bytes)),
        format!("X-Linked-Size: {}", bytes.len()),
    ];
    scene.pair.hub.on(move |request, stream| {
        let weights_path = request.path.ends_with("/model.safetensors");
        if weights_path {
            answer(stream, "302 Found", &headers, b"");
        } else if request.path == "/own/weights" && request.method == "HEAD" {
            answer(stream, "200 OK", &["ETag: \"of-the-storage\"".to_owned()], b"");
        } else if request.path == "/own/weights" {
            serve_range(request, stream, &bytes);
        }
        weights_path || request.path == "/own/weights"
    });
    assert!(fs_err::read(scene.weights().unwrap()).unwrap() == weights());
    assert_eq!(scene.blobs(), [sha256(&weights())]);
}

#[test]
fn a_redirect_without_a_location_is_an_error() {
    for method in ["HEAD", "GET"] {
        let scene = Scene::new();
        scene.pair.hub.raw(method, "/resolve/", "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n");
        fails(scene.weights(), &[WEIGHTS_WORDS, "without a `Location`", "302"]);
    }
    let scene = Scene::new();
    scene.pair.storage.raw("GET", "/signed/", "HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n");
    fails(scene.weights(), &["without a `Location`", &scene.pair.storage.origin]);
    let scene = Scene::new();
    scene.pair.hub.raw("GET", "/api/", "HTTP/1.1 307 Moved\r\nContent-Length: 0\r\n\r\n");
    fails(scene.client(options()).list(ID, "main"), &["without a `Location`"]);
}

const WEIGHTS_WORDS: &str = "`model.safetensors` of `acme/tiny`";

#[test]
fn a_location_that_is_no_address_is_an_error() {
    for bad in
        ["ftp://host/x", "http://", "file:///etc/passwd", "http://a:b@host/x", "http://h:x/", "//"]
    {
        for method in ["HEAD", "GET"] {
            let scene = Scene::new();
            let moved =
                format!("HTTP/1.1 302 Found\r\nLocation: {bad}\r\nContent-Length: 0\r\n\r\n");
            scene.pair.hub.raw(method, "/resolve/", moved);
            fails(scene.weights(), &["redirects to", "302"]);
        }
    }
    let scene = Scene::new();
    let moved = b"HTTP/1.1 302 Found\r\nLocation: http://\xff\xfe/\r\nContent-Length: 0\r\n\r\n";
    scene.pair.hub.raw("HEAD", "/resolve/", moved.to_vec());
    fails(scene.weights(), &["not ASCII"]);
}

#[test]
fn a_loop_of_redirects_ends() {
    for location in ["config.json", "/acme/tiny/resolve/main/config.json", "?again"] {
        let scene = Scene::new();
        let moved =
            format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        scene.pair.hub.raw("HEAD", "/resolve/", moved);
        fails(scene.config(), &["more than 10 times"]);
    }
    // Two origins that redirect the client to each other.
    let scene = Scene::new();
    let back = format!("{}/acme/tiny/resolve/{COMMIT}/model.safetensors", scene.pair.hub.origin);
    scene.pair.storage.on(move |_, stream| {
        answer(stream, "302 Found", &[format!("Location: {back}")], b"");
        true
    });
    fails(scene.weights(), &["more than 10 times"]);
    scene.storage_saw_no_token();
}
