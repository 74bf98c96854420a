//! Addresses: origins, redirect targets, and the encoding of path segments.

use std::fmt;

use ureq::http::Uri;

use crate::shown;

/// Scheme, host and port: the unit that a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubOrigin {
    scheme: String,
    host: String,
    port: u16,
}

impl HubOrigin {
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
        // The parser ignores a malformed port, so what follows the host is checked here.
        let port = match authority.as_str().get(host.len()..)? {
            "" => default,
            suffix => suffix.strip_prefix(':')?.parse().ok()?,
        };
        let credentials = authority.as_str().contains('@');
        (!host.is_empty() && !credentials).then_some(Self { scheme, host, port })
    }

    fn is_secure(&self) -> bool {
        self.scheme == "https"
    }
}

impl fmt::Display for HubOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        let default = if self.is_secure() { 443 } else { 80 };
        if self.port == default { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Resolves the `Location` of a response to a request for `base`, or returns the reason why it cannot be
/// followed.
pub(crate) fn redirect(base: &Uri, location: &str) -> Result<Uri, String> {
    let from = HubOrigin::of(base).ok_or("the address of the request has no origin")?;
    let target = location.split('#').next().unwrap_or_default().trim();
    let path = base.path();
    let absolute = if target.is_empty() {
        return Err("it redirects to an empty address".to_owned());
    } else if target.starts_with("//") {
        format!("{}:{target}", from.scheme)
    } else if target.starts_with('/') {
        format!("{from}{target}")
    } else if target.starts_with('?') {
        format!("{from}{path}{target}")
    } else if has_scheme(target) {
        target.to_owned()
    } else {
        let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
        format!("{from}{folder}{target}")
    };
    let uri: Uri = absolute.parse().map_err(|_| refused(location))?;
    let to = HubOrigin::of(&uri).ok_or_else(|| refused(location))?;
    if from.is_secure() && !to.is_secure() {
        return Err(format!("it redirects from https to `{to}`, which is not encrypted"));
    }
    Ok(uri)
}

/// Returns the reason why a redirect to this location is refused.
fn refused(location: &str) -> String {
    format!(
        "it redirects to `{}`, which is no http or https address without credentials",
        shown(location)
    )
}

fn has_scheme(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    end.is_some_and(|end| end > 0 && text[end..].starts_with(':'))
}

/// Percent-encodes everything but letters, digits and `-_.~`; `/` stays if `slashes`.
pub(crate) fn encode(text: &str, slashes: bool) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || (slashes && byte == b'/') {
            out.push(byte as char);
        } else {
            write!(out, "%{byte:02X}").expect("a string takes everything");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(base: &str, location: &str) -> Result<String, String> {
        redirect(&base.parse().unwrap(), location).map(|uri| uri.to_string())
    }

    #[test]
    fn redirects_are_resolved_against_the_request() {
        let base = "http://hub.test:8080/a/b?q=1";
        for (location, expected) in [
            ("/c/d?e=f", "http://hub.test:8080/c/d?e=f"),
            ("c", "http://hub.test:8080/a/c"),
            ("?x", "http://hub.test:8080/a/b?x"),
            ("//cdn.test/x", "http://cdn.test/x"),
            ("https://cdn.test/x#part", "https://cdn.test/x"),
            ("HTTP://hub.test:8080/x", "http://hub.test:8080/x"),
        ] {
            assert_eq!(follow(base, location).as_deref(), Ok(expected), "{location}");
        }
    }

    #[test]
    fn targets_that_cannot_be_followed_are_refused() {
        for bad in [
            "",
            "   ",
            "#x",
            "ftp://host/x",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "http://",
            "http:///x",
            "http://user:secret@host/x",
            "http://host:99999/x",
            "http://host:/x",
            "http://ho st/x",
            "http://[::1/x",
            "//",
            "\u{1b}[2J",
            "http://h\u{f6}st/",
        ] {
            assert!(follow("http://hub.test/a", bad).is_err(), "{bad:?}");
        }
        let error = follow("https://hub.test/a", "http://hub.test/a").unwrap_err();
        assert!(error.contains("not encrypted"), "{error}");
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://HF.test/x"), origin("https://hf.test:443/y"));
        for other in ["http://hf.test", "https://hf.test:444", "https://hf.test.evil", "https://a"]
        {
            assert_ne!(origin("https://hf.test"), origin(other), "{other}");
        }
        assert_eq!(origin("http://127.0.0.1:8080@evil.test/"), None);
    }

    fn origin(text: &str) -> Option<HubOrigin> {
        HubOrigin::of(&text.parse().unwrap())
    }

    #[test]
    fn segments_are_encoded() {
        assert_eq!(encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encode("sub dir/ü?.json", true), "sub%20dir/%C3%BC%3F.json");
    }
}
