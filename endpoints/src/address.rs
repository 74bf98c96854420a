//! Parses addresses of servers, and the origin that an API key belongs to.

use ureq::http::Uri;

use crate::Error;
use crate::error::shown;

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerOrigin {
    scheme: String,
    host: String,
    port: u16,
}

impl ServerOrigin {
    /// Returns the origin of an absolute `http` or `https` address without credentials.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let authority = uri.authority()?;
        let host = authority.host().to_ascii_lowercase();
        let port = match authority.as_str().get(authority.host().len()..)? {
            "" => default,
            suffix => suffix.strip_prefix(':')?.parse().ok()?,
        };
        let plain = !authority.as_str().contains('@');
        (!host.is_empty() && plain).then_some(Self { scheme, host, port })
    }
}

/// Parses the address of a server: no query, no fragment; a final `/v1` or slash is removed.
pub(crate) fn base(url: &str) -> Result<(String, ServerOrigin), Error> {
    let plain = url.trim().trim_end_matches('/');
    let plain = plain.strip_suffix("/v1").unwrap_or(plain).trim_end_matches('/');
    if plain.contains(['?', '#', ' ']) {
        return Err(invalid_address(url));
    }
    let uri: Uri = plain.parse().map_err(|_| invalid_address(url))?;
    let origin = ServerOrigin::of(&uri).ok_or_else(|| invalid_address(url))?;
    Ok((plain.to_owned(), origin))
}

/// Returns the error for text that is no address of a server.
fn invalid_address(url: &str) -> Error {
    Error::Address(shown(url))
}

/// Resolves the `Location` of a response to a request for `from`, if it stays at the origin.
pub(crate) fn redirect(from: &Uri, origin: &ServerOrigin, location: &str) -> Option<Uri> {
    let target = location.trim();
    let authority = from.authority()?;
    let scheme = from.scheme_str()?;
    let absolute = if target.starts_with("//") {
        format!("{scheme}:{target}")
    } else if target.starts_with('/') {
        format!("{scheme}://{authority}{target}")
    } else {
        target.to_owned()
    };
    let uri: Uri = absolute.parse().ok()?;
    (ServerOrigin::of(&uri)? == *origin).then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_servers() {
        for (url, expected) in [
            ("http://h:1/", "http://h:1"),
            ("http://h:1/v1", "http://h:1"),
            ("https://h/a/v1/", "https://h/a"),
        ] {
            assert_eq!(base(url).unwrap().0, expected);
        }
        for bad in
            ["h:1", "ftp://h", "http://h?x=1", "http://u:p@h", "http://h:99999", "http://", ""]
        {
            assert!(base(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn redirects_stay_at_the_origin() {
        let from: Uri = "http://h:1/a".parse().unwrap();
        let origin = ServerOrigin::of(&from).unwrap();
        for (to, stays) in [
            ("/b", true),
            ("http://H:1/b", true),
            ("http://h:2/b", false),
            ("https://h:1/b", false),
            ("//evil/b", false),
            ("b", false),
        ] {
            assert_eq!(redirect(&from, &origin, to).is_some(), stays, "{to}");
        }
    }
}
