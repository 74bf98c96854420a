//! Outputs that are damaged, or made to take long.

use std::sync::OnceLock;

use onboard_chat::{Format, ParserOptions, ReasoningMode};
use proptest::prelude::*;
use serde_json::Value;

use super::{golden, options, outputs, parsed, tools};

#[test]
fn hostile_outputs_end() {
    const MANY: usize = 1 << 20;
    for format in Format::all() {
        let name = format.name();
        let starts: Vec<String> = if format.has_calls() && !format.is_fallback() {
            let cases = golden(name).into_iter().take(40).map(|case| case.text);
            cases.map(|text| text[..floor(&text, text.len() * 2 / 3)].to_owned()).collect()
        } else {
            vec![format.reasoning().map(|(open, _)| open.to_owned()).unwrap_or_default()]
        };
        let storms = [
            "[",
            "{",
            "{\"a\":",
            "\"",
            "'",
            "\\",
            "<",
            "</",
            " ",
            "\n",
            "\u{1f600}",
            ",",
            "<think>",
            "0",
            "x",
        ];
        for (at, storm) in storms.iter().enumerate() {
            let start = &starts[at % starts.len()];
            let text = format!("{start}{}", storm.repeat(MANY / storm.len() / 8));
            for whole_calls in [true, false] {
                let options = ParserOptions { max_call: 1 << 16, ..options(whole_calls) };
                parsed(format, &options, [text.as_str()]);
            }
        }
        // The start of an output again and again.
        let text = starts[0].repeat(MANY / 4 / starts[0].len().max(1));
        parsed(format, &options(true), [text.as_str()]);
    }
}

/// Returns the last place up to `at` between two characters.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

fn pieces(text: &str, cuts: &[usize]) -> Vec<String> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| floor(text, cut % (text.len() + 1))).collect();
    ends.push(text.len());
    ends.sort_unstable();
    let mut start = 0;
    ends.into_iter().map(|end| text[std::mem::replace(&mut start, end)..end].to_owned()).collect()
}

/// Puts a slip into a text: characters of another output at a place, in place of some of its own.
fn slipped(
    text: &str,
    other: &str,
    (at, length, from, take): (usize, usize, usize, usize),
) -> String {
    let start = floor(text, at % (text.len() + 1));
    let end = floor(text, (start + length % 8).min(text.len())).max(start);
    let from = floor(other, from % (other.len() + 1));
    let to = floor(other, (from + take % 24).min(other.len())).max(from);
    format!("{}{}{}", &text[..start], &other[from..to], &text[end..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damaged outputs, cut anywhere: nothing is lost and the cuts change nothing.
    #[test]
    fn damaged_outputs_keep_their_text(
        pick in any::<[usize; 3]>(),
        slips in prop::collection::vec(any::<(usize, usize, usize, usize)>(), 0..4),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
        whole_calls in any::<bool>(),
        inside in any::<bool>(),
    ) {
        let all = corpus();
        let (format, texts) = &all[pick[0] % all.len()];
        let (_, other_texts) = &all[pick[1] % all.len()];
        let mut text = texts[pick[2] % texts.len()].clone();
        for slip in slips {
            text = slipped(&text, &other_texts[slip.0 % other_texts.len()], slip);
        }
        let reasoning = if inside { ReasoningMode::Inside } else { ReasoningMode::Marked };
        let options = ParserOptions { reasoning, tools: tools().clone(), whole_calls, ..ParserOptions::default() };
        let whole_output = parsed(format, &options, [text.as_str()]);
        let cut = pieces(&text, &cuts);
        prop_assert_eq!(&whole_output, &parsed(format, &options, cut.iter().map(String::as_str)));
        if whole_calls {
            for (name, arguments) in &whole_output.0.calls {
                let object: Result<serde_json::Map<String, Value>, _> = serde_json::from_str(arguments);
                // Half of a surrogate pair and a number beyond f64 are JSON, which serde_json cannot hold.
                let refused = object.err().map(|error| error.to_string()).unwrap_or_default();
                let fine = refused.is_empty() || refused.contains("number out of range") || arguments.contains("\\u");
                prop_assert!(fine, "{}: {}: {}", name, refused, arguments);
            }
        }
    }
}

fn corpus() -> &'static [(&'static Format, Vec<String>)] {
    static CORPUS: OnceLock<Vec<(&'static Format, Vec<String>)>> = OnceLock::new();
    CORPUS.get_or_init(|| {
        outputs()
            .map(|(format, cases)| (format, cases.into_iter().map(|case| case.text).collect()))
            .collect()
    })
}
