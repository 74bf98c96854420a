//! Bounded retries of temporary failures: dropped connections, timeouts, 429 and 5xx.

use std::thread;
use std::time::Duration;

use crate::Error;
use crate::event::Event;
use crate::options::HubOptions;

/// Failure of one attempt.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// Permanent failure.
    Permanent(Error),
    /// Temporary failure.
    Temporary {
        /// The error if no attempt is left.
        error: Error,
        /// Wait that the hub requested.
        after: Option<Duration>,
        /// True if the attempt received enough bytes that it does not count.
        progress: bool,
    },
}

impl AttemptError {
    /// Returns a failure that is retried after the usual wait.
    pub(crate) fn temporary(error: Error) -> Self {
        Self::Temporary { error, after: None, progress: false }
    }
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Permanent(error)
    }
}

impl From<std::io::Error> for AttemptError {
    fn from(error: std::io::Error) -> Self {
        Self::Permanent(Error::Io(error))
    }
}

/// Repeats an attempt until it succeeds, fails permanently, or has failed too often in a row.
pub(crate) fn persist<T>(
    options: &HubOptions,
    tell: &dyn Fn(Event<'_>),
    mut attempt: impl FnMut() -> Result<T, AttemptError>,
) -> Result<T, Error> {
    let mut failed = 0;
    loop {
        let (error, after, progress) = match attempt() {
            Ok(value) => return Ok(value),
            Err(AttemptError::Permanent(error)) => return Err(error),
            Err(AttemptError::Temporary { error, after, progress }) => (error, after, progress),
        };
        failed = if progress { 1 } else { failed + 1 };
        if failed >= options.tries {
            return Err(error);
        }
        let backoff = options.backoff.saturating_mul(1 << (failed - 1).min(16));
        let wait = after.unwrap_or(backoff).min(options.most_backoff);
        tell(Event::Retry { why: &error, wait });
        thread::sleep(wait);
    }
}
