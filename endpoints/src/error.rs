//! Errors of the client: each names the address, what was found and what to do.

/// Reasons why a server gave no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is none.
    #[error("`{0}` is no address of a server; expected one like `http://127.0.0.1:8000`")]
    Address(String),
    /// The key cannot be put into a header.
    #[error("the API key holds characters that no header may have; copy it again")]
    Key,
    /// The file of trusted certificates holds none.
    #[error(
        "the file of `ca` holds no certificate: {0}; expected PEM text that begins with `-----BEGIN CERTIFICATE-----`"
    )]
    Certificates(String),
    /// No driver of this name.
    #[error("there is no driver `{found}`; expected one of {known}")]
    Driver {
        /// The name.
        found: String,
        /// All names.
        known: String,
    },
    /// The connection failed, in every attempt.
    #[error("`{url}`: {why}{}", remedy(.help))]
    Connection {
        /// The address.
        url: String,
        /// The last failure.
        why: String,
        /// What to do.
        help: &'static str,
    },
    /// The server refused.
    #[error("`{url}` answered {code}: {words}{}", remedy(.help))]
    Status {
        /// The address.
        url: String,
        /// The status code.
        code: u16,
        /// The server's words.
        words: String,
        /// What to do.
        help: &'static str,
    },
    /// An answer that is not what was asked for.
    #[error("`{url}` sent an unusable answer: {found}{}", remedy(.help))]
    Answer {
        /// The address.
        url: String,
        /// What is wrong, and what was expected.
        found: String,
        /// What to do.
        help: &'static str,
    },
    /// The server serves other models.
    #[error(
        "`{url}` does not serve `{wanted}`; it serves {served}: give one of them with the engine option `model=NAME`"
    )]
    Model {
        /// The address.
        url: String,
        /// The name asked for.
        wanted: String,
        /// Names of the server.
        served: String,
    },
    /// No driver knows the server.
    #[error(
        "`{url}` is no server that is known here: {tried}; name its driver with the engine option `driver=NAME` (one of {known})"
    )]
    Unknown {
        /// The address.
        url: String,
        /// What the probes gave.
        tried: String,
        /// All drivers.
        known: String,
    },
}

fn remedy(help: &str) -> String {
    if help.is_empty() { String::new() } else { format!("; {help}") }
}

impl Error {
    /// The status code, where the server refused.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The server's words, where it refused.
    pub fn words(&self) -> Option<&str> {
        match self {
            Self::Status { words, .. } => Some(words),
            _ => None,
        }
    }
}

/// Makes text of a server safe to show: control characters escaped, long text cut.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 300;
    let mut out: String = text.trim().chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.trim().chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
