//! Names that requests may call this server by.
//!
//! A page in a browser of this machine can send requests to servers on it. With a name of its site that leads to
//! 127.0.0.1 it could read the answers too. Its requests carry its name in `Host`, and its site in `Origin`.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};

use crate::ServeOptions;
use crate::error::ApiError;

/// Refuses a request whose `Host` or `Origin` is of another site, unless a key protects the server.
pub(crate) fn check(options: &ServeOptions, request: &Request) -> Result<(), ApiError> {
    if options.api_key.is_some() {
        return Ok(());
    }
    // The address of a request line, and every header of a kind: readers differ in the one that counts.
    let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
    let mut hosts = authority.into_iter().chain(header_texts(request, header::HOST));
    if let Some(host) = hosts.find(|host| !allows(options, host)) {
        return Err(refused("Host", host));
    }
    let mut origins = header_texts(request, header::ORIGIN);
    match origins.find(|origin| !allows(options, site(origin))) {
        Some(origin) => Err(refused("Origin", origin)),
        None => Ok(()),
    }
}

/// Returns the texts of all headers of a name; one is empty if the header is no text.
fn header_texts(request: &Request, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = request.headers().get_all(name).iter();
    values.map(|value| value.to_str().unwrap_or_default())
}

/// Returns the host and port of an origin.
fn site(origin: &str) -> &str {
    let scheme = ["http://", "https://"].into_iter().find_map(|scheme| origin.strip_prefix(scheme));
    scheme.unwrap_or(origin)
}

/// True if this host, with or without a port, is this machine or was allowed.
fn allows(options: &ServeOptions, host: &str) -> bool {
    let name = without_port(host).to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    if options.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return true;
    }
    match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        // No site can choose an address as its name.
        Ok(address) => {
            address.is_loopback() || address == options.host || options.host.is_unspecified()
        }
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

/// Returns a host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

fn refused(header: &str, value: &str) -> ApiError {
    let value: String = value.chars().take(100).flat_map(char::escape_default).collect();
    ApiError::coded(
        StatusCode::FORBIDDEN,
        "other_site",
        format!(
            "the header `{header}: {value}` is of another site; expected localhost, a loopback address, or a name that the \
             server was started for: whoever runs it can allow more names, or set a key"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(host: &str, hosts: &[&str]) -> ServeOptions {
        let hosts = hosts.iter().map(|name| (*name).to_owned()).collect();
        ServeOptions { host: host.parse().unwrap(), hosts, ..ServeOptions::default() }
    }

    #[test]
    fn hosts_of_this_machine_are_served() {
        let local = options("127.0.0.1", &[]);
        let named = options("10.0.0.7", &["box.example"]);
        let open = options("0.0.0.0", &[]);
        for (options, host, served) in [
            (&local, "localhost", true),
            (&local, "LOCALHOST.:8000", true),
            (&local, "app.localhost:1", true),
            (&local, "127.0.0.1:8000", true),
            (&local, "127.8.9.1", true),
            (&local, "[::1]:8000", true),
            (&local, "::1", true),
            (&local, "10.0.0.7", false),
            (&local, "evil.example", false),
            (&local, "localhost.evil.example", false),
            (&local, "notlocalhost", false),
            (&local, "127.0.0.1.evil.example", false),
            (&local, "", false),
            (&local, "null", false),
            (&named, "10.0.0.7:80", true),
            (&named, "Box.Example:80", true),
            (&named, "10.0.0.8", false),
            (&named, "x.box.example", false),
            (&open, "192.168.1.5:8000", true),
            (&open, "[fe80::1]", true),
            (&open, "box.example", false),
        ] {
            assert_eq!(allows(options, host), served, "{host} at {}", options.host);
        }
        assert_eq!(site("https://a.example:1"), "a.example:1");
        assert_eq!(site("null"), "null");
    }

    #[test]
    fn every_header_counts() {
        let local = options("127.0.0.1", &[]);
        for (uri, headers, served) in [
            ("/", &[("host", "localhost")][..], true),
            ("/", &[("host", "localhost"), ("host", "evil.example")], false),
            ("http://evil.example/", &[("host", "localhost")], false),
            ("http://localhost/", &[("host", "evil.example")], false),
            ("/", &[("origin", "http://localhost"), ("origin", "http://evil.example")], false),
        ] {
            let mut request = Request::builder().uri(uri);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(axum::body::Body::empty()).unwrap();
            assert_eq!(check(&local, &request).is_ok(), served, "{uri} {headers:?}");
        }
    }
}
