//! Responses of a hub and of its storage, as sent over the network.

use std::io;

use crate::case::Case;
use crate::judge::hubs::hashes::{git_hash, sha256};
use crate::seeds::Sources;

/// Responses to a listing, to HEAD and to GET, and those of the storage.
pub(crate) const LISTING: &str = "listing.http";
pub(crate) const HEAD: &str = "head.http";
pub(crate) const BODY: &str = "body.http";
pub(crate) const STORED: &str = "stored.http";

/// Placeholders for the addresses of the two servers.
pub(crate) const HUB: &str = "http://hub.test";
pub(crate) const STORE: &str = "http://store.test";

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Returns the listing of a repository with two files.
fn listing(name: &str) -> String {
    format!(
        "{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":\"{name}\"}},{{\"rfilename\":\"sub/b.json\"}}]}}"
    )
}

fn ok(headers: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{headers}\r\n{body}")
}

fn moved(headers: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\n{headers}\r\n")
}

/// Returns a small file in git, a large one in a storage, and one whose hub states no hash.
#[expect(clippy::unnecessary_wraps, reason = "every kind has seeds of one type")]
pub(crate) fn hubs(_: &Sources) -> io::Result<Vec<Case>> {
    let bytes = "{\"model_type\": \"llama\", \"hidden_size\": 64}\n";
    let len = bytes.len();
    let short = listing("config.json");
    let git = git_hash(bytes.as_bytes());
    let small = [
        (LISTING, ok(&format!("Content-Length: {}\r\n", short.len()), &short)),
        (
            HEAD,
            ok(
                &format!("X-Repo-Commit: {COMMIT}\r\nETag: \"{git}\"\r\nContent-Length: {len}\r\n"),
                "",
            ),
        ),
        (BODY, ok(&format!("Content-Length: {len}\r\nETag: \"{git}\"\r\n"), bytes)),
        (STORED, ok("", "")),
    ];
    let to = format!(
        "Location: {STORE}/signed?key=1\r\nX-Repo-Commit: {COMMIT}\r\nX-Linked-Size: {len}\r\n\
         X-Linked-ETag: \"{}\"\r\nX-Xet-Hash: abc\r\n",
        sha256(bytes.as_bytes())
    );
    let large = [
        (LISTING, ok("", &listing("model.safetensors"))),
        (HEAD, moved(&to)),
        (BODY, moved(&to)),
        (STORED, ok(&format!("Content-Length: {len}\r\n"), bytes)),
    ];
    let chunks = format!("{len:x}\r\n{bytes}\r\n0\r\n\r\n");
    let plain = [
        (LISTING, ok(&format!("Link: <{HUB}/api>\r\n"), &listing("vocab.json"))),
        (HEAD, ok("ETag: W/\"v1\"\r\n", "")),
        (
            BODY,
            ok(
                &format!("Transfer-Encoding: chunked\r\nContent-Range: bytes 0-9/{len}\r\n"),
                &chunks,
            ),
        ),
        (STORED, ok("", "")),
    ];
    let busy = [
        (LISTING, ok("", &listing("tokenizer.json"))),
        (HEAD, ok(&format!("ETag: \"{git}\"\r\nContent-Length: {len}\r\n"), "")),
        (
            BODY,
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-{}/{len}\r\nContent-Length: {len}\r\n\r\n{bytes}",
                len - 1
            ),
        ),
        (
            STORED,
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
                .to_owned(),
        ),
    ];
    Ok([small, large, plain, busy]
        .map(|files: [(&str, String); 4]| Case {
            files: files.map(|(name, text)| (name.to_owned(), text.into_bytes())).into(),
            ..Case::default()
        })
        .into())
}
