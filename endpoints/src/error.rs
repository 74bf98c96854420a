//! Errors of the client: each names the address, the fault and the remedy.

/// Reason why a server gave no usable response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is invalid.
    #[error("`{0}` is no address of a server; expected one like `http://127.0.0.1:8000`")]
    Address(String),
    /// The key is not valid in a header.
    #[error("the API key holds characters that no header may have; copy it again")]
    Key,
    /// The file of trusted certificates contains none.
    #[error(
        "the file of `ca` holds no certificate: {0}; expected PEM text that begins with `-----BEGIN CERTIFICATE-----`"
    )]
    Certificates(String),
    /// No driver has this name.
    #[error("there is no driver `{found}`; expected one of {known}")]
    Driver {
        /// The name.
        found: String,
        /// All names.
        known: String,
    },
    /// Every attempt at a connection failed.
    #[error("`{url}`: {why}{}", remedy(.help))]
    Connection {
        /// The address.
        url: String,
        /// Last failure.
        why: String,
        /// Remedy.
        help: &'static str,
    },
    /// The server returned an error status.
    #[error("`{url}` answered {code}: {words}{}", remedy(.help))]
    Status {
        /// The address.
        url: String,
        /// The status code.
        code: u16,
        /// Error message of the server.
        words: String,
        /// Remedy.
        help: &'static str,
    },
    /// The response is not the requested one.
    #[error("`{url}` sent an unusable answer: {found}{}", remedy(.help))]
    Answer {
        /// The address.
        url: String,
        /// Description of the fault, and of the expected form.
        found: String,
        /// Remedy.
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
    /// No driver recognizes the server.
    #[error(
        "`{url}` is no server that is known here: {tried}; name its driver with the engine option `driver=NAME` (one of {known})"
    )]
    Unknown {
        /// The address.
        url: String,
        /// Results of the probes.
        tried: String,
        /// All drivers.
        known: String,
    },
}

fn remedy(help: &str) -> String {
    if help.is_empty() { String::new() } else { format!("; {help}") }
}

impl Error {
    /// Returns the status code, if the server returned an error status.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns the server's error message, if it returned an error status.
    pub fn words(&self) -> Option<&str> {
        match self {
            Self::Status { words, .. } => Some(words),
            _ => None,
        }
    }
}

/// Escapes control characters in text of a server and shortens long text, so that it is safe to show.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 300;
    let mut out: String = text.trim().chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.trim().chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
