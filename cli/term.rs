//! Terminal output: data to stdout, everything else to stderr, colour only on terminals.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, WeakProgressBar};
use registry::quantity::{count, rate};

/// Time between two lines of progress without a terminal.
const PACE: Duration = Duration::from_secs(15);

/// Colour with a meaning.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tone {
    Good,
    Bad,
    Strong,
}

/// Escapes control characters as in JSON, so that JSON stays JSON. Names come from files, and untrusted
/// text could move the cursor, ring the bell or hide text.
///
/// Colours of this program carry a random number, which is removed here.
fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mark = format!(";{}m", *MARK);
    let mut out = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(c) = remaining.chars().next() {
        let colour = remaining.strip_prefix("\x1b[").and_then(|tail| {
            let digits = tail.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            let code = tail[..=digits].strip_suffix(&mark)?;
            Some((code, 2 + digits + 1))
        });
        if let Some((code, len)) = colour {
            let _ = write!(out, "\x1b[{code}m");
            remaining = &remaining[len..];
            continue;
        }
        match c {
            '\r' => out.push_str("\\r"),
            c if is_harmless(c) => out.push(c),
            c => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
        }
        remaining = &remaining[c.len_utf8()..];
    }
    Cow::Owned(out)
}

/// True for characters that are written as they are.
fn is_harmless(c: char) -> bool {
    !c.is_control() || matches!(c, '\n' | '\t')
}

/// Random number in every colour of this program.
static MARK: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// Marks the colours of a text whose other parts contain no control characters.
pub(crate) fn own_colours(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        // An `m` without digits is the reset.
        match piece.split_once('m') {
            Some(("", tail)) => {
                let _ = write!(out, "\x1b[0;{}m{tail}", *MARK);
            }
            Some((code, tail)) => {
                let _ = write!(out, "\x1b[{code};{}m{tail}", *MARK);
            }
            None => out.push_str(piece),
        }
    }
    out
}

/// Writes texts of this program to stdout, with the flags of the command line.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_data(&with_flags(text))
}

/// Writes data to stdout, such as the output of a model.
pub(crate) fn print_data(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let text = clean(text);
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Replaces the options that libraries name by the flags of the command line: ``the option `force` `` is `--force`.
pub(crate) fn with_flags(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for (words, flag) in [("the option `", "--"), ("the engine option `", "--engine-option ")] {
        while let Some((before, tail)) = text.split_once(words)
            && let Some((name, after)) = tail.split_once('`')
        {
            text = Cow::Owned(format!("{before}{flag}{name}{after}"));
        }
    }
    text
}

/// Writes a piece of a model's text to stdout at once. Tokens may spell any control character.
pub(crate) fn stream(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(clean(text).as_bytes())?;
    out.flush()
}

/// Writes a prompt for input to stderr.
pub(crate) fn prompt(text: &str) {
    let mut err = io::stderr().lock();
    write!(err, "{text}").and_then(|()| err.flush()).ok();
}

/// Writes a message to stderr. A closed stderr is no error, because nobody reads it.
pub(crate) fn note(text: &str) {
    let mut err = io::stderr().lock();
    let text = with_flags(text);
    let text = clean(&text);
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(err, "{text}{end}").ok();
}

/// True if stdout shows colours.
pub(crate) fn colour_out() -> bool {
    io::stdout().is_terminal() && wanted()
}

/// True if stderr shows colours.
pub(crate) fn colour_err() -> bool {
    io::stderr().is_terminal() && wanted()
}

fn wanted() -> bool {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !no_colour && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns `text` in a colour, if stdout shows colours.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    paint_if(colour_out(), tone, text)
}

/// Returns `text` in a colour, if `colour`.
pub(crate) fn paint_if(colour: bool, tone: Tone, text: &str) -> String {
    if !colour {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Strong => "1",
    };
    let mark = *MARK;
    format!("\x1b[{code};{mark}m{text}\x1b[0;{mark}m")
}

/// Returns a progress bar on stderr for bytes; lines without a terminal.
#[cfg(feature = "hub")]
pub(crate) fn byte_bar(length: u64, what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return in_lines(Some(length), &format!("bytes of {what}"));
    }
    bar(length, what, "  {msg:32!} {wide_bar} {bytes:>10}/{total_bytes:10} {bytes_per_sec} {eta}")
}

/// Returns a progress bar on stderr for a count; lines without a terminal.
pub(crate) fn count_bar(length: u64, what: &str) -> ProgressBar {
    bar(length, what, "  {wide_bar} {human_pos}/{human_len} {msg}  {rate}  {eta} left")
}

fn bar(length: u64, what: &str, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return in_lines(Some(length), what);
    }
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(template).expect("a constant template");
    let noun = clean(what).into_owned();
    bar.set_message(noun.clone());
    bar.set_style(style.with_key(
        "rate",
        move |state: &ProgressState, out: &mut dyn fmt::Write| {
            out.write_str(&rate(state.per_sec(), &noun)).ok();
        },
    ));
    bar
}

/// Returns a spinner on stderr for work of unknown length; lines without a terminal.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return in_lines(None, what);
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_message(clean(what).into_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Bars that are shown as lines.
static LINES: Mutex<Vec<WeakProgressBar>> = Mutex::new(Vec::new());

/// Returns a bar that writes a line from time to time, for logs. Short work writes none.
fn in_lines(length: Option<u64>, what: &str) -> ProgressBar {
    static ONCE: Once = Once::new();
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
    bar.set_message(what.to_owned());
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push(bar.downgrade());
    ONCE.call_once(|| {
        // Without the thread there are no lines.
        drop(thread::Builder::new().name("progress".to_owned()).spawn(write_lines));
    });
    bar
}

/// Writes a line for each bar from time to time, without an end.
fn write_lines() {
    loop {
        thread::sleep(PACE);
        let mut bars = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        bars.retain(|bar| bar.upgrade().is_some_and(|bar| !bar.is_finished()));
        bars.iter().filter_map(WeakProgressBar::upgrade).for_each(|bar| note(&line(&bar)));
    }
}

/// Describes the state of a bar.
fn line(bar: &ProgressBar) -> String {
    let what = bar.message();
    let seconds = bar.elapsed().as_secs();
    match bar.length() {
        Some(length) => {
            let done = count(bar.position());
            let all = count(length);
            format!("  {done} of {all} {what}, {seconds} s, {}", rate(bar.per_sec(), &what))
        }
        None => format!("  {what}, {seconds} s"),
    }
}

/// Spinner of a command that names its parts.
static PARTS: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows the part of a command that begins.
pub(crate) fn part(text: &str) {
    let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    parts.get_or_insert_with(|| spinner(text)).set_message(clean(text).into_owned());
}

/// Removes what [`part`] shows.
pub(crate) fn end_parts() {
    if let Some(bar) = PARTS.lock().unwrap_or_else(PoisonError::into_inner).take() {
        bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_libraries_are_flags_here() {
        for (text, shown) in [
            ("allow it with the option `force`", "allow it with --force"),
            (
                "the option `set a=1` or the engine option `top=1`, `x`",
                "--set a=1 or --engine-option top=1, `x`",
            ),
            ("the option `without end", "the option `without end"),
        ] {
            assert_eq!(with_flags(text), shown);
        }
    }

    #[test]
    fn what_moves_a_terminal_is_shown_and_own_colours_pass() {
        let plain = "a name\tof a tensor, ünïcode\n";
        assert!(matches!(clean(plain), Cow::Borrowed(_)));
        let own = paint_if(true, Tone::Good, "well");
        assert_eq!(clean(&own), "\x1b[32mwell\x1b[0m");
        assert_eq!(clean(&own_colours("\x1b[1m\x1b[91ma\x1b[0m")), "\x1b[1m\x1b[91ma\x1b[0m");
        // Colours from a file are escaped: text could be hidden with them.
        assert_eq!(clean("a\x1b[8mb\x1b[0m\x1b[31;1m"), "a\\u001b[8mb\\u001b[0m\\u001b[31;1m");
        assert_eq!(
            clean("a\x1b[2Jb\x07\r\x1b]0;title\x07\u{9b}2J\x7f"),
            "a\\u001b[2Jb\\u0007\\r\\u001b]0;title\\u0007\\u009b2J\\u007f"
        );
    }

    #[test]
    fn findings_have_no_control_characters_of_files() {
        let finding = registry::diag::Finding::unplaced("a\x1b[8mb\u{9b}8m").help("c\x1b[8md");
        let shown = registry::render::render(&[finding], registry::render::RenderStyle::Coloured);
        assert!(!clean(&own_colours(&shown)).contains("\x1b[8m"), "{shown:?}");
    }

    #[test]
    fn json_with_control_characters_stays_json() {
        let json = serde_json::json!({ "a": "\x1b\u{9b}\x7f" }).to_string();
        let shown: serde_json::Value = serde_json::from_str(&clean(&json)).unwrap();
        assert_eq!(shown["a"], "\x1b\u{9b}\x7f");
    }

    #[test]
    fn bars_without_a_terminal_are_lines() {
        let bar = in_lines(Some(3), "chunks");
        bar.inc(2);
        assert!(line(&bar).starts_with("  2 of 3 chunks, 0 s, "), "{}", line(&bar));
        assert!(line(&bar).ends_with(" chunks/s"), "{}", line(&bar));
        let bar = in_lines(None, "writing");
        bar.set_message("reading");
        assert_eq!(line(&bar), "  reading, 0 s");
    }
}
