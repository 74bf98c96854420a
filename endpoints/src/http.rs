//! HTTP requests: bounded in time, size and attempts; redirects and the key stay at the server's origin.

use std::error::Error as _;
use std::io::{self, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::config::ConfigBuilder;
use ureq::http::header::HeaderValue;
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;
use ureq::{Agent, Timeout};

use crate::address::{ServerOrigin, base, redirect};
use crate::error::shown;
use crate::{EndpointOptions, Error, TrustedCertificates};

/// Maximum number of redirects of one request.
const MOST_HOPS: usize = 5;
/// Maximum bytes of a response's headers.
const MOST_HEADERS: usize = 64 << 10;
/// Maximum bytes of a report that a server gives about itself: a hundred times those of servers with many models.
const MOST_REPORT: u64 = 8 << 20;
/// Maximum bytes of an error that are read.
const MOST_ERROR: u64 = 64 << 10;
/// Maximum wait that a server may request with `Retry-After`.
const MOST_WAIT: Duration = Duration::from_secs(30);

const SLOW: &str =
    "give it more time with the engine option `timeout=SECONDS`, or ask a server that is less busy";
const GONE: &str = "start the server, or correct the address";
const CERTIFICATE: &str = "trust its certificate with the engine option `ca=FILE.pem`, or any with the engine option `insecure=true`";

type AgentConfig = ConfigBuilder<AgentScope>;

/// Connection to one server.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    agent: Agent,
    /// Address without a trailing slash.
    pub(crate) base: String,
    origin: ServerOrigin,
    key: Option<HeaderValue>,
    tries: u32,
    backoff: Duration,
    most_bytes: u64,
    /// Maximum time of a request with its attempts and waits.
    patience: Duration,
    /// True once any response arrived: only then is a refused connection retried.
    reached: AtomicBool,
}

/// Complete response.
#[derive(Debug)]
pub(crate) struct ServerResponse {
    pub(crate) url: String,
    pub(crate) bytes: Vec<u8>,
}

/// Failure of one attempt.
struct FailedRequest {
    error: Error,
    /// True if another attempt may succeed.
    again: bool,
    /// Wait that the server requests.
    after: Option<Duration>,
}

impl From<Error> for FailedRequest {
    fn from(error: Error) -> Self {
        Self { error, again: false, after: None }
    }
}

/// Size of a connection's buffers under load: hundreds of connections are open at once.
const LOAD_BUFFER: usize = 32 << 10;

/// Returns the header that authorizes requests with a key.
fn authorization(key: &str) -> Result<HeaderValue, Error> {
    let fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
    let value = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut value = value.ok().filter(|_| fits).ok_or(Error::Key)?;
    value.set_sensitive(true);
    Ok(value)
}

impl ServerConnection {
    pub(crate) fn new(url: &str, options: &EndpointOptions) -> Result<Self, Error> {
        Self::build(url, options, |config| config)
    }

    /// Returns a client for load tests, which opens a connection for each request. Some servers close a
    /// connection after a stream without saying so, and a request on it would fail.
    pub(crate) fn for_load(url: &str, options: &EndpointOptions) -> Result<Self, Error> {
        Self::build(url, options, |config| {
            config
                .max_idle_connections(0)
                .input_buffer_size(LOAD_BUFFER)
                .output_buffer_size(LOAD_BUFFER)
        })
    }

    fn build(
        url: &str,
        options: &EndpointOptions,
        adapt: impl FnOnce(AgentConfig) -> AgentConfig,
    ) -> Result<Self, Error> {
        let (base, origin) = base(url)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MOST_HEADERS)
            .accept_encoding("identity")
            .user_agent(concat!("onboard/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls(&options.trust)?)
            .proxy(None)
            .timeout_resolve(Some(options.connect))
            .timeout_connect(Some(options.connect))
            .timeout_global(Some(options.answer));
        Ok(Self {
            agent: adapt(config).build().new_agent(),
            base,
            origin,
            key: options.key.as_deref().map(authorization).transpose()?,
            tries: options.tries.max(1),
            backoff: options.backoff,
            most_bytes: options.most_bytes,
            patience: options.answer,
            reached: AtomicBool::new(false),
        })
    }

    /// Sends a GET request.
    pub(crate) fn get(&self, path: &str) -> Result<ServerResponse, Error> {
        self.persist(path, None, self.most_bytes.min(MOST_REPORT))
    }

    /// Sends a POST request with a JSON body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<ServerResponse, Error> {
        self.persist(path, Some(body), self.most_bytes)
    }

    /// Sends a POST request with JSON once, without redirects, and returns the response before its body.
    pub(crate) fn send_once(
        &self,
        path: &str,
        body: &[u8],
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let request = self.agent.post(format!("{}{path}", self.base));
        let request = request.header("content-type", "application/json");
        self.with_key(request.header("connection", "close")).send(body)
    }

    /// Repeats an attempt until it succeeds, fails permanently, or has failed too often.
    fn persist(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: u64,
    ) -> Result<ServerResponse, Error> {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let begun = Instant::now();
        let mut failed = 0;
        loop {
            let failure = match self.follow(path, bytes.as_deref(), limit) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            failed += 1;
            if !failure.again || failed >= self.tries {
                return Err(failure.error);
            }
            let backoff = self.backoff.saturating_mul(1 << (failed - 1).min(16));
            let wait = failure.after.unwrap_or(backoff).min(MOST_WAIT);
            // A wait that leaves no time for an answer is of no use.
            if begun.elapsed().saturating_add(wait) >= self.patience {
                return Err(failure.error);
            }
            thread::sleep(wait);
        }
    }

    /// Sends a request and follows redirects that stay at the origin.
    fn follow(
        &self,
        path: &str,
        body: Option<&[u8]>,
        limit: u64,
    ) -> Result<ServerResponse, FailedRequest> {
        let address = format!("{}{path}", self.base);
        let mut uri: Uri = address.parse().map_err(|_| Error::Address(shown(&address)))?;
        for _ in 0..=MOST_HOPS {
            let url = uri.to_string();
            let sent = match body {
                Some(body) => {
                    let request = self.agent.post(&uri).header("content-type", "application/json");
                    self.with_key(request).send(body)
                }
                None => self.with_key(self.agent.get(&uri)).call(),
            };
            let mut answer = sent.map_err(|error| self.failure(&error, &url))?;
            self.reached.store(true, Ordering::Relaxed);
            let status = answer.status();
            if status.is_redirection() {
                let location = answer.headers().get("location");
                let location = location.and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
                // 301 to 303 turn a POST into a GET, which is another request.
                let keeps = body.is_none() || matches!(status.as_u16(), 307 | 308);
                let next = redirect(&uri, &self.origin, location).filter(|_| keeps);
                uri = next.ok_or_else(|| Error::Answer {
                    url: url.clone(),
                    found: format!("it redirects to `{}` ({})", shown(location), status.as_u16()),
                    help: "give the address of the server itself: prompts and keys are sent to no other origin",
                })?;
                continue;
            }
            let after = answer.headers().get("retry-after").and_then(|v| v.to_str().ok());
            let after = after.and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
            if status.is_success() {
                let bytes = self.read(answer.body_mut(), &url, limit)?;
                return Ok(ServerResponse { url, bytes });
            }
            let code = status.as_u16();
            let mut bytes = Vec::new();
            let mut reader = answer.body_mut().as_reader().take(MOST_ERROR);
            reader.read_to_end(&mut bytes).map_err(|error| self.broken(&error, &url))?;
            let error = Error::Status { code, words: words(&bytes), help: advice(code), url };
            let again = matches!(code, 408 | 425 | 429 | 500..=599);
            return Err(FailedRequest { error, again, after });
        }
        let problem = format!("it redirects more than {MOST_HOPS} times, in a loop perhaps");
        let help = "give the address of the server itself";
        Err(Error::Answer { url: address, found: problem, help }.into())
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", key.clone()),
            None => request,
        }
    }

    fn read(&self, body: &mut ureq::Body, url: &str, limit: u64) -> Result<Vec<u8>, FailedRequest> {
        let mut bytes = Vec::new();
        let mut reader = body.as_reader().take(limit + 1);
        reader.read_to_end(&mut bytes).map_err(|error| self.broken(&error, url))?;
        if bytes.len() as u64 > limit {
            let problem = format!("it is longer than {limit} bytes");
            let help = if limit < self.most_bytes {
                "check that the address is that of the server"
            } else {
                "ask for fewer log-probabilities with the engine option `top=COUNT`"
            };
            return Err(Error::Answer { url: url.to_owned(), found: problem, help }.into());
        }
        Ok(bytes)
    }

    /// Explains a truncated response.
    fn broken(&self, error: &io::Error, url: &str) -> FailedRequest {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
            Some(inner) => self.failure(inner, url),
            None => FailedRequest {
                error: Error::Connection {
                    url: url.to_owned(),
                    why: format!("the answer broke off: {error}"),
                    help: "look into the server's log",
                },
                again: true,
                after: None,
            },
        }
    }

    /// Classifies a failure as temporary or permanent.
    fn failure(&self, error: &ureq::Error, url: &str) -> FailedRequest {
        let url = url.to_owned();
        let (why, help, passes) = match error {
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                ("no connection in time".to_owned(), GONE, true)
            }
            ureq::Error::Timeout(_) => ("no complete answer in time".to_owned(), SLOW, false),
            ureq::Error::HostNotFound => ("there is no such host".to_owned(), GONE, false),
            other => {
                let inner = other.source().map(|inner| format!(" ({inner})")).unwrap_or_default();
                let words = shown(&format!("{other}{inner}"));
                let refused = matches!(other, ureq::Error::ConnectionFailed)
                    || matches!(other, ureq::Error::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused);
                if words.contains("certificate") || words.contains("UnknownIssuer") {
                    (format!("its certificate is not trusted: {words}"), CERTIFICATE, false)
                } else if refused {
                    (format!("no connection: {words}"), GONE, true)
                } else if matches!(other, ureq::Error::Io(_)) {
                    (
                        format!("the connection broke: {words}"),
                        "look whether the server still runs, and into its log",
                        true,
                    )
                } else {
                    (words, "", false)
                }
            }
        };
        // A server that was never reached has a wrong address, so retrying is useless.
        let again = passes && self.reached.load(Ordering::Relaxed);
        FailedRequest { error: Error::Connection { url, why, help }, again, after: None }
    }
}

fn tls(trust: &TrustedCertificates) -> Result<TlsConfig, Error> {
    let builder = TlsConfig::builder();
    Ok(match trust {
        TrustedCertificates::Public => builder.build(),
        TrustedCertificates::Any => builder.disable_verification(true).build(),
        TrustedCertificates::Pem(pem) => {
            let certificate = Certificate::from_pem(pem)
                .map_err(|error| Error::Certificates(shown(&error.to_string())))?;
            builder.root_certs(RootCerts::new_with_certs(&[certificate])).build()
        }
    })
}

/// Returns the server's error message: the message of a JSON error, or the text. At most [`MOST_ERROR`] bytes are read.
pub(crate) fn words(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(MOST_ERROR as usize)];
    let json: Option<Value> = serde_json::from_slice(bytes).ok();
    let message = json.as_ref().and_then(|json| {
        let inner = json.get("error").unwrap_or(json);
        inner.get("message").or_else(|| inner.get("detail")).unwrap_or(inner).as_str()
    });
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    match message.unwrap_or(&text).trim() {
        "" => "it says nothing more".to_owned(),
        words => format!("`{}`", shown(words)),
    }
}

/// Returns the remedy for a status.
fn advice(code: u16) -> &'static str {
    match code {
        401 | 403 => {
            "put the key into ONBOARD_API_KEY, or name its variable with the engine option `key-env=NAME`"
        }
        404 => "check the address, and the served name (the engine option `model=NAME`)",
        429 => "try again later, or ask for less at a time with the engine option `parallel=1`",
        503 => "wait until the server has loaded its model, or look into its log",
        500..=599 => "look into the server's log",
        _ => "",
    }
}
