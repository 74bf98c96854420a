//! `strftime_now`: the time as text.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::{Error, ErrorKind, Value};

/// Longest format, in bytes.
const MOST_FORMAT: usize = 1000;

/// Returns the function for a time, or for the present in UTC.
pub(super) fn strftime(now: Option<DateTime>) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        let wrong = |why: String| Error::new(ErrorKind::InvalidOperation, why);
        if format.len() > MOST_FORMAT {
            return Err(wrong(format!("a time format of more than {MOST_FORMAT} bytes")));
        }
        let now =
            now.unwrap_or_else(|| jiff::Timestamp::now().to_zoned(TimeZone::UTC).datetime());
        let time = strtime::BrokenDownTime::from(now);
        time.to_string(format).map_err(|why| wrong(format!("a time format: {why}")))
    })
}
