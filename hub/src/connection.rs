//! The connection to a hub: requests, limits, and who hears of what happens.

use crate::Error;
use crate::event::Event;
use crate::http::HubHttp;
use crate::options::HubOptions;
use crate::retry::{AttemptError, persist};

/// A connection with its limits.
pub(crate) struct Connection {
    pub http: HubHttp,
    pub options: HubOptions,
    pub listener: Box<dyn Fn(Event<'_>)>,
}

impl Connection {
    /// Repeats an attempt until it succeeds, fails for good, or has failed too often in a row.
    pub(crate) fn persist<T>(
        &self,
        attempt: impl FnMut() -> Result<T, AttemptError>,
    ) -> Result<T, Error> {
        persist(&self.options, &self.listener, attempt)
    }

    pub(crate) fn notify(&self, event: Event<'_>) {
        (self.listener)(event);
    }
}
