//! HTTP requests, with redirects followed explicitly so that the token stays with its origin.
//!
//! Other clients send the token on ([decision 43](../../docs/decisions/0043-own-hub-client.md)).

use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ureq::http::header::{HeaderMap, HeaderValue};
use ureq::http::{StatusCode, Uri};
use ureq::{Agent, Body, Proxy, Timeout};

use crate::address::{HubOrigin, redirect};
use crate::retry::AttemptError;
use crate::{Error, HubOptions, shown};

/// Maximum number of redirects of one request.
const MOST_HOPS: usize = 10;
/// Maximum bytes of a response's headers; signed addresses take a few thousand.
const MOST_HEADERS: usize = 64 << 10;

/// Header in which a redirect names the hash of its target file.
pub(crate) const LINKED_ETAG: &str = "x-linked-etag";

/// Method of a request, with its redirect policy.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HubRequest {
    /// GET that stays at the hub; the body must arrive within this time.
    Listing(Duration),
    /// HEAD that stays at the hub. A redirect to another origin, or one that names the file's hash, is the
    /// response.
    Head,
    /// GET from this byte that may end at another origin; the body must arrive within this time.
    Bytes(u64, Duration),
}

/// Response with complete headers.
#[derive(Debug)]
pub(crate) struct HubResponse {
    /// Status: 2xx, or a redirect if that is the response.
    pub status: StatusCode,
    /// Headers of the response.
    pub headers: HeaderMap,
    /// Body, not read yet.
    pub body: Body,
    /// The origin that answered.
    pub origin: HubOrigin,
}

/// Returns the header that authorizes requests with a token.
fn authorization(token: &str) -> Result<HeaderValue, Error> {
    let fits = token.bytes().all(|b| b.is_ascii_graphic());
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.ok().filter(|_| fits).ok_or(Error::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

impl HubResponse {
    /// Returns a header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns an error about this response.
    pub(crate) fn unusable(&self, what: &str, why: impl Into<String>) -> Error {
        Error::Answer { host: self.origin.to_string(), what: what.to_owned(), why: why.into() }
    }
}

/// Connection to one hub.
#[derive(Debug)]
pub(crate) struct HubHttp {
    agent: Agent,
    hub: HubOrigin,
    token: Option<HeaderValue>,
    /// True once any response arrived: only then is a refused connection retried.
    reached: AtomicBool,
}

impl HubHttp {
    pub(crate) fn new(
        endpoint: &str,
        token: Option<&str>,
        user_agent: &str,
        options: &HubOptions,
    ) -> Result<Self, Error> {
        let uri: Option<Uri> = endpoint.parse().ok();
        let hub = uri.as_ref().and_then(HubOrigin::of);
        let plain = uri.is_some_and(|uri| uri.query().is_none()) && !endpoint.contains('#');
        let hub = hub.filter(|_| plain).ok_or_else(|| Error::Endpoint(shown(endpoint)))?;
        let proxy = if options.proxy_from_env { Proxy::try_from_env() } else { None };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // One connection per request: bytes after a response are never read.
            .max_idle_connections(0)
            .max_response_header_size(MOST_HEADERS)
            .accept_encoding("identity")
            .user_agent(user_agent)
            .proxy(proxy)
            .timeout_resolve(Some(options.connect))
            .timeout_connect(Some(options.connect))
            .timeout_send_request(Some(options.connect))
            .timeout_recv_response(Some(options.answer))
            .timeout_per_read(Some(options.read))
            .timeout_per_write(Some(options.read))
            .build();
        let token = token.map(authorization).transpose()?;
        Ok(Self { agent: config.new_agent(), hub, token, reached: AtomicBool::new(false) })
    }

    /// Sends a request and follows its redirects. The token is sent only to the hub's origin.
    pub(crate) fn send(
        &self,
        address: &str,
        ask: HubRequest,
        what: &str,
    ) -> Result<HubResponse, AttemptError> {
        let mut uri: Uri = address.parse().map_err(|_| Error::Endpoint(shown(address)))?;
        for _ in 0..=MOST_HOPS {
            let origin = HubOrigin::of(&uri).ok_or_else(|| Error::Endpoint(shown(address)))?;
            let reply = self.once(&uri, &origin, ask, what)?;
            if !reply.status.is_redirection() {
                return require_success(reply, what);
            }
            let states = reply.headers.contains_key(LINKED_ETAG);
            let location = reply.headers.get("location").map(|value| value.to_str());
            let next = match location {
                None => Err("it redirects without a `Location`".to_owned()),
                Some(Err(_)) => Err("its `Location` is not ASCII text".to_owned()),
                Some(Ok(location)) => redirect(&uri, location),
            };
            let status = reply.status.as_u16();
            let next = next.map_err(|why| reply.unusable(what, format!("{why} ({status})")))?;
            let elsewhere = HubOrigin::of(&next).is_none_or(|to| to != self.hub);
            match ask {
                HubRequest::Head if elsewhere || states => return Ok(reply),
                HubRequest::Listing(_) if elsewhere => {
                    let to = HubOrigin::of(&next).map(|to| to.to_string()).unwrap_or_default();
                    let why =
                        format!("it redirects to `{to}`; if that is the hub, use its address");
                    return Err(reply.unusable(what, why).into());
                }
                _ => uri = next,
            }
        }
        let why = format!("it redirects more than {MOST_HOPS} times, in a loop perhaps");
        Err(Error::Answer { host: self.hub.to_string(), what: what.to_owned(), why }.into())
    }

    fn once(
        &self,
        uri: &Uri,
        origin: &HubOrigin,
        ask: HubRequest,
        what: &str,
    ) -> Result<HubResponse, AttemptError> {
        let mut request = match ask {
            HubRequest::Head => self.agent.head(uri),
            HubRequest::Listing(_) | HubRequest::Bytes(..) => self.agent.get(uri),
        };
        if let Some(token) = self.token.as_ref().filter(|_| *origin == self.hub) {
            request = request.header("authorization", token.clone());
        }
        if let HubRequest::Bytes(from @ 1.., _) = ask {
            request = request.header("range", format!("bytes={from}-"));
        }
        let total = match ask {
            HubRequest::Head => None,
            HubRequest::Listing(total) | HubRequest::Bytes(_, total) => Some(total),
        };
        let sent = request.config().timeout_recv_body(total).build().call();
        let (head, body) = sent.map_err(|error| self.failure(&error, origin, what))?.into_parts();
        self.reached.store(true, Ordering::Relaxed);
        Ok(HubResponse { status: head.status, headers: head.headers, body, origin: origin.clone() })
    }

    /// Classifies a failure as temporary or permanent.
    fn failure(&self, error: &ureq::Error, origin: &HubOrigin, what: &str) -> AttemptError {
        let host = origin.to_string();
        let what = what.to_owned();
        let unreachable = match error {
            ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => true,
            ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            _ => false,
        };
        let may_pass = match error {
            ureq::Error::Timeout(_) => true,
            // An untrusted certificate is reported as invalid data.
            ureq::Error::Io(error) => error.kind() != io::ErrorKind::InvalidData,
            _ => unreachable,
        };
        let why = explain(error);
        if !may_pass {
            return AttemptError::Permanent(Error::Answer { host, what, why });
        }
        let error = Error::Connection { host, what, why };
        // A hub that was never reached has a wrong address, so retrying is useless.
        if unreachable && !self.reached.load(Ordering::Relaxed) {
            return AttemptError::Permanent(error);
        }
        AttemptError::temporary(error)
    }
}

/// Describes a failed request.
pub(crate) fn explain(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(Timeout::PerRead | Timeout::RecvResponse) => {
            "it went silent".to_owned()
        }
        ureq::Error::Timeout(Timeout::RecvBody) => "it sends too slowly".to_owned(),
        ureq::Error::Timeout(Timeout::Connect) => "the connection took too long".to_owned(),
        ureq::Error::LargeResponseHeader(..) => {
            format!("its headers are longer than {MOST_HEADERS} bytes")
        }
        other => {
            let inner = other.source().map(|inner| format!(" ({inner})")).unwrap_or_default();
            shown(&format!("{other}{inner}"))
        }
    }
}

/// Passes responses with a body; converts others to failures.
fn require_success(reply: HubResponse, what: &str) -> Result<HubResponse, AttemptError> {
    let code = reply.status.as_u16();
    if reply.status.is_success() || code == 416 {
        let encoded = reply.header("content-encoding").unwrap_or("identity");
        if !encoded.eq_ignore_ascii_case("identity") {
            let why = format!("it is compressed (`{}`), which was not asked for", shown(encoded));
            return Err(reply.unusable(what, why).into());
        }
        return Ok(reply);
    }
    let error = Error::Status { code, host: reply.origin.to_string(), what: what.to_owned() };
    if !matches!(code, 408 | 425 | 429 | 500..=599) {
        return Err(error.into());
    }
    let after = reply.header("retry-after").and_then(|value| value.trim().parse().ok());
    Err(AttemptError::Temporary { error, after: after.map(Duration::from_secs), progress: false })
}
