//! The terminal: data to stdout, everything else to stderr, colour only where it is seen.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use indicatif::ProgressStyle;
use indicatif::{ProgressBar, ProgressDrawTarget};

/// A colour with a meaning.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tone {
    Good,
    Bad,
    Strong,
}

/// Text as a terminal may have it: names come from files, and a file from anywhere could move the cursor or
/// ring. Colours are let through where `colours` are shown, since those are written here.
fn clean(text: &str, colours: bool) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = rest.strip_prefix("\x1b[").filter(|_| colours).and_then(|tail| {
            let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
            tail[digits..].starts_with('m').then_some(digits + 3)
        });
        let len = colour.unwrap_or(c.len_utf8());
        if harmless(c) || colour.is_some() {
            out.push_str(&rest[..len]);
        } else {
            out.extend(c.escape_default());
        }
        rest = &rest[len..];
    }
    Cow::Owned(out)
}

/// Writes data to stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let text = clean(text, colour_out());
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Writes a piece of a model's text to stdout at once. Tokens may spell any control character.
pub(crate) fn stream(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(clean(text, false).as_bytes())?;
    out.flush()
}

/// Tells the person something. A closed stderr is nobody listening, so it is no error.
pub(crate) fn note(text: &str) {
    let mut err = io::stderr().lock();
    let text = clean(text, colour_err());
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(err, "{text}{end}").ok();
}

/// Whether stdout shows colours.
pub(crate) fn colour_out() -> bool {
    io::stdout().is_terminal() && wanted()
}

/// Whether stderr shows colours.
pub(crate) fn colour_err() -> bool {
    io::stderr().is_terminal() && wanted()
}

fn wanted() -> bool {
    let set = |key| std::env::var_os(key).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `text` in a colour, if stdout shows colours.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    paint_if(colour_out(), tone, text)
}

/// `text` in a colour, if `colour`.
pub(crate) fn paint_if(colour: bool, tone: Tone, text: &str) -> String {
    if !colour {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Strong => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A bar on stderr for something counted in bytes; nothing where nobody watches.
#[cfg(feature = "hub")]
pub(crate) fn byte_bar(length: u64, what: &str) -> ProgressBar {
    bar(length, what, "  {msg:32!} {wide_bar} {bytes:>10}/{total_bytes:10} {bytes_per_sec} {eta}")
}

/// A bar on stderr for so many of something; nothing where nobody watches.
pub(crate) fn count_bar(length: u64, what: &str) -> ProgressBar {
    bar(length, what, "  {wide_bar} {human_pos}/{human_len} {msg}  {per_sec}  {eta} left")
}

fn bar(length: u64, what: &str, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
    bar.set_message(what.to_owned());
    bar
}

/// A spinner on stderr for something of unknown length.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_terminal_is_shown_and_colours_pass() {
        let plain = "a name\tof a tensor, ünïcode\n";
        assert!(matches!(clean(plain, false), Cow::Borrowed(_)));
        let own = paint_if(true, Tone::Good, "well");
        assert_eq!(clean(&own, true), own);
        // Where no colours are shown, whatever looks like one came from a file.
        assert_eq!(clean(&own, false), "\\u{1b}[32mwell\\u{1b}[0m");
        for colours in [false, true] {
            assert_eq!(
                clean("a\x1b[2Jb\x07\r\x1b]0;title\x07", colours),
                "a\\u{1b}[2Jb\\u{7}\\r\\u{1b}]0;title\\u{7}"
            );
        }
    }
}
