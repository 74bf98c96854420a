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
        if format.len() > MOST_FORMAT {
            let why = format!("a time format of more than {MOST_FORMAT} bytes");
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
        let now = now.unwrap_or_else(|| jiff::Timestamp::now().to_zoned(TimeZone::UTC).datetime());
        let time = strtime::BrokenDownTime::from(now);
        Ok(formatted(&time, format))
    })
}

/// Formats a time as the C library does in its own locale. Unknown directives stay as they are.
fn formatted(time: &strtime::BrokenDownTime, format: &str) -> String {
    let mut out = String::new();
    let mut remaining = format;
    while let Some(at) = remaining.find('%') {
        out.push_str(&remaining[..at]);
        let directive = &remaining[at..];
        let letter = directive[1..].find(|c: char| !"-_^#0".contains(c) && !c.is_ascii_digit());
        let letter = letter.map(|n| n + 1);
        let Some(letter) = letter else {
            out.push_str(directive);
            return out;
        };
        let next = directive[letter..].chars().next().map_or(1, char::len_utf8);
        let (directive, after) = directive.split_at(letter + next);
        let spelled = match directive {
            "%c" => "%a %b %e %H:%M:%S %Y",
            "%x" => "%m/%d/%y",
            "%X" => "%H:%M:%S",
            "%f" => "%6f",
            // A time without a zone has no name and no offset.
            "%z" | "%Z" => "",
            other => other,
        };
        match time.to_string(spelled) {
            Ok(text) => out.push_str(&text),
            Err(_) => out.push_str(directive),
        }
        remaining = after;
    }
    out.push_str(remaining);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of Python's `datetime.strftime` on Linux.
    #[test]
    fn directives_are_those_of_c() {
        let now: DateTime = "2025-06-05T09:07:03".parse().unwrap();
        let time = strtime::BrokenDownTime::from(now);
        for (format, text) in [
            ("%d %b %Y", "05 Jun 2025"),
            ("%-d %B, %A %j %I %y %%", "5 June, Thursday 156 09 25 %"),
            ("%c|%x|%X|%f|%z%Z", "Thu Jun  5 09:07:03 2025|06/05/25|09:07:03|000000|"),
            ("%", "%"),
            ("%Q é%", "%Q é%"),
            ("%-", "%-"),
        ] {
            assert_eq!(formatted(&time, format), text);
        }
    }
}
