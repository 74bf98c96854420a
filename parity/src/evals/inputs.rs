//! Compares inputs and names the difference: BOS, chat template, few-shot examples, whitespace.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use registry::quantity::plural;

use super::comparison::{EXAMPLES, EvalFinding, EvalVerdict, Example, items, short};
use super::pair::SamplePair;
use super::sample::{Results, Sample};

/// Pattern of chat template markers and special tokens: `<|im_start|>`, `<s>`, `[INST]`.
static MARK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"<\|?[A-Za-z_][^<>\s]{0,40}\|?>|\[/?[A-Z_]{2,24}\]|<｜[^<>\s]{1,40}｜>")
        .expect("a constant pattern")
});

/// Inputs of the pairs.
#[derive(Debug)]
pub(super) struct ComparedInputs<'a> {
    /// Pairs whose inputs are equal or unknown.
    pub equal: Vec<SamplePair<'a>>,
    /// Pairs whose inputs are known on both sides.
    pub known: usize,
    /// Difference of inputs, if there is one.
    pub found: Option<EvalFinding>,
}

/// Compares the inputs.
pub(super) fn inputs<'a>(pairs: &[SamplePair<'a>], a: &Results, b: &Results) -> ComparedInputs<'a> {
    let mut equal = Vec::new();
    let mut known = 0;
    let mut causes: BTreeMap<String, (usize, Vec<Example>)> = BTreeMap::new();
    for &(one, other) in pairs {
        match compare(one, other) {
            None => equal.push((one, other)),
            Some(None) => {
                known += 1;
                equal.push((one, other));
            }
            Some(Some((cause, example))) => {
                known += 1;
                let (count, examples) = causes.entry(cause).or_default();
                *count += 1;
                if examples.len() < EXAMPLES {
                    examples.push(example);
                }
            }
        }
    }
    let finding = (!causes.is_empty()).then(|| found(causes, pairs.len(), a, b));
    ComparedInputs { equal, known, found: finding }
}

fn found(
    causes: BTreeMap<String, (usize, Vec<Example>)>,
    pairs: usize,
    a: &Results,
    b: &Results,
) -> EvalFinding {
    let differ: usize = causes.values().map(|(count, _)| count).sum();
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by(|x, y| y.1.0.cmp(&x.1.0).then_with(|| x.0.cmp(&y.0)));
    let mut why: Vec<String> = causes
        .iter()
        .take(4)
        .map(|(cause, (count, _))| format!("{cause} ({count} of {pairs} items)"))
        .collect();
    if causes.len() > 4 {
        why.push(format!("and {} other kinds of difference", causes.len() - 4));
    }
    for fact in ["chat template", "few-shot examples", "system prompt"] {
        let a = a.facts.get(fact);
        let b = b.facts.get(fact);
        if a != b && (a.is_some() || b.is_some()) {
            why.push(format!(
                "the results files state another {fact}: {} in A, {} in B",
                shown_fact(a),
                shown_fact(b)
            ));
        }
    }
    let headline = format!("{differ} of {} were asked differently: {}", items(pairs), causes[0].0);
    EvalFinding {
        verdict: EvalVerdict::Inputs,
        headline,
        why,
        examples: causes.into_iter().flat_map(|(_, (_, examples))| examples).take(EXAMPLES).collect(),
        todo: vec![
            "run both with the same chat template, system prompt, few-shot examples and BOS setting; \
             where a server takes token ids, send ids instead of text"
                .to_owned(),
        ],
    }
}

/// Returns a fact as text.
fn shown_fact(fact: Option<&String>) -> String {
    fact.map_or_else(|| "none".to_owned(), |fact| short(fact))
}

/// Returns an example of a difference.
fn example(sample: &Sample, what: &str, a: String, b: String) -> Example {
    Example { id: sample.id.clone(), what: what.to_owned(), a, b }
}

/// Compares the inputs of two samples. The outer option is none if they are unknown, the inner if they are
/// equal.
#[expect(clippy::option_option, reason = "unknown and equal are different answers")]
fn compare(a: &Sample, b: &Sample) -> Option<Option<(String, Example)>> {
    let mut known = false;
    if let (Some(one), Some(other)) = (&a.ids, &b.ids) {
        known = true;
        if one != other {
            let at = one.iter().zip(other).take_while(|(x, y)| x == y).count();
            let what = format!("token ids, from position {at}");
            let example = example(a, &what, shown_ids(one), shown_ids(other));
            return Some(Some((ids(one, other), example)));
        }
    }
    // Equal ids mean equal prompts, whatever their text.
    if !known && !a.prompts.is_empty() && !b.prompts.is_empty() {
        known = true;
        let pairs = a.prompts.len().max(b.prompts.len());
        let mut one = a.prompts.iter().cycle();
        let mut other = b.prompts.iter().cycle();
        for _ in 0..pairs {
            let (Some(one), Some(other)) = (one.next(), other.next()) else { break };
            if one != other {
                let at = prefix(one, other);
                let one_end = short(one.get(at..).unwrap_or_default());
                let other_end = short(other.get(at..).unwrap_or_default());
                let example = example(a, &format!("prompt, from byte {at}"), one_end, other_end);
                return Some(Some((texts(one, other), example)));
            }
        }
    }
    if !a.choices.is_empty() && !b.choices.is_empty() {
        known = true;
        if a.choices.len() != b.choices.len() {
            let cause = "the number of choices differs".to_owned();
            let ours = format!("{} choices", a.choices.len());
            let theirs = format!("{} choices", b.choices.len());
            return Some(Some((cause, example(a, "choices", ours, theirs))));
        }
        if let Some((one, other)) = a.choices.iter().zip(&b.choices).find(|(x, y)| x != y) {
            let blanks = one.trim() == other.trim();
            let cause = if blanks {
                "the blanks around the choices differ (the delimiter between prompt and choice)"
            } else {
                "the choices differ, or their order"
            };
            let example = example(a, "choices", short(one), short(other));
            return Some(Some((cause.to_owned(), example)));
        }
    }
    if !known && let (Some(one), Some(other)) = (a.prompt_tokens, b.prompt_tokens) {
        known = true;
        if one != other {
            let (more, side) = if one > other { (one - other, "A") } else { (other - one, "B") };
            let guess = if more == 1 {
                ", as one more BOS makes it"
            } else {
                ", as a template or examples make it"
            };
            let cause = format!("the prompts of {side} have {} more{guess}", plural(more, "token"));
            let ours = plural(one, "token");
            let theirs = plural(other, "token");
            return Some(Some((cause, example(a, "length of the prompt", ours, theirs))));
        }
    }
    if !known && let (Some(one), Some(other)) = (&a.prompt_hash, &b.prompt_hash) {
        known = true;
        if one != other {
            let cause =
                "the prompts have another hash; the files do not hold their text".to_owned();
            let example = example(a, "hash of the prompt", short(one), short(other));
            return Some(Some((cause, example)));
        }
    }
    known.then_some(None)
}

/// Formats the first ids of a prompt, with their number.
fn shown_ids(ids: &[u32]) -> String {
    format!("{} ids: {:?}", ids.len(), &ids[..ids.len().min(8)])
}

/// Describes the difference of two lists of ids.
fn ids(a: &[u32], b: &[u32]) -> String {
    for (one, other, name, lacking) in [(a, b, "A", "B"), (b, a, "B", "A")] {
        let Some(at) = position(one, other) else { continue };
        let before = &one[..at];
        let after = &one[at + other.len()..];
        return match (before, after) {
            ([first], []) if other.first() == Some(first) => {
                format!("{name} begins with the id {first} twice: a doubled BOS")
            }
            ([first], []) => {
                format!(
                    "{name} has the id {first} first, which {lacking} lacks: a BOS of one side alone"
                )
            }
            ([], [last]) => format!("{name} ends with the id {last}, which {lacking} lacks"),
            (before, after) => format!(
                "{name} has {} before and {} behind that {lacking} lacks: a chat template, a system prompt or examples",
                plural(before.len(), "id"),
                plural(after.len(), "id")
            ),
        };
    }
    let at = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    if at == 0 && a.len() == b.len() && a.get(1..) == b.get(1..) {
        return format!("the first id differs ({} and {}): another BOS", a[0], b[0]);
    }
    "the token ids differ within the text: another tokenizer, or another text".to_owned()
}

/// Returns the first place of `part` in `all_ids`: at an end, or anywhere in lists of moderate length.
fn position(all_ids: &[u32], part: &[u32]) -> Option<usize> {
    const WORK: usize = 1 << 26;
    let spare = all_ids.len().checked_sub(part.len())?;
    if all_ids.ends_with(part) {
        return Some(spare);
    }
    if all_ids.starts_with(part) {
        return Some(0);
    }
    let searched = spare.saturating_mul(part.len()) <= WORK;
    if searched { all_ids.windows(part.len()).position(|window| window == part) } else { None }
}

/// Describes the difference of two prompts.
fn texts(a: &str, b: &str) -> String {
    for (one, other, name, lacking) in [(a, b, "A", "B"), (b, a, "B", "A")] {
        let core = other.trim();
        let Some(at) = (!core.is_empty()).then(|| one.find(core)).flatten() else { continue };
        let before = &one[..at];
        let after = &one[at + core.len()..];
        if before.trim().is_empty() && after.trim().is_empty() {
            return "blanks at the ends of the prompts differ".to_owned();
        }
        let mut added = [marks(before), marks(after)];
        added.iter_mut().for_each(Vec::dedup);
        let added = added.concat();
        if let [mark] = added.as_slice()
            && before.trim() == mark
            && after.trim().is_empty()
        {
            let twice = other.trim_start().starts_with(mark.as_str());
            return if twice {
                format!("{name} begins with `{mark}` twice: a doubled BOS")
            } else {
                format!(
                    "{name} begins with `{mark}`, which {lacking} lacks: a BOS of one side alone"
                )
            };
        }
        if !added.is_empty() {
            let shown: Vec<_> = added.iter().take(4).map(|mark| format!("`{mark}`")).collect();
            return format!(
                "{name} has a chat template that {lacking} lacks ({})",
                shown.join(" ")
            );
        }
        return match (before.trim().is_empty(), after.trim().is_empty()) {
            (false, true) => format!(
                "{name} has a text before the question that {lacking} lacks: few-shot examples, a description or a system prompt"
            ),
            (true, false) => format!("{name} has a text behind the question that {lacking} lacks"),
            _ => format!(
                "{name} has texts around the question that {lacking} lacks: another template"
            ),
        };
    }
    if a.split_whitespace().eq(b.split_whitespace()) {
        return "blanks and line breaks within the prompts differ".to_owned();
    }
    let one = marks(a);
    let other = marks(b);
    if one != other {
        return format!(
            "the chat templates differ (A begins with {}, B with {})",
            first_mark(&one),
            first_mark(&other)
        );
    }
    let same = prefix(a, b);
    let tail = suffix(&a[same..], &b[same..]);
    if same + tail == 0 {
        return "the prompts have nothing in common".to_owned();
    }
    "the prompts differ within the text: another version of the task, or other examples".to_owned()
}

/// Returns the marks of a chat template in a text.
fn marks(text: &str) -> Vec<String> {
    MARK.find_iter(text).map(|mark| mark.as_str().to_owned()).collect()
}

/// Returns the first mark of a chat template as text.
fn first_mark(marks: &[String]) -> String {
    marks.first().map_or_else(|| "no mark".to_owned(), |mark| format!("`{mark}`"))
}

/// Returns the length of the common prefix in bytes, at a character boundary.
fn prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}

fn suffix(a: &str, b: &str) -> usize {
    a.chars()
        .rev()
        .zip(b.chars().rev())
        .take_while(|(x, y)| x == y)
        .map(|(x, _)| x.len_utf8())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_ids_have_names() {
        for (a, b, words) in [
            (&[1, 5, 6][..], &[5, 6][..], "A has the id 1 first, which B lacks"),
            (&[1, 5], &[1, 1, 5], "B begins with the id 1 twice: a doubled BOS"),
            (&[2, 5], &[1, 5], "the first id differs (2 and 1)"),
            (&[9, 8, 5, 6, 7], &[5, 6], "A has 2 ids before and 1 id behind"),
            (&[5, 6, 2], &[5, 6], "A ends with the id 2"),
            (&[5, 6, 7], &[5, 9, 7], "within the text"),
            (&[], &[1], "B has the id 1 first"),
        ] {
            let message = ids(a, b);
            assert!(message.contains(words), "{a:?} {b:?}: {message}");
        }
    }

    #[test]
    fn differences_of_texts_have_names() {
        for (a, b, words) in [
            ("<s>Q", "Q", "A begins with `<s>`, which B lacks"),
            (
                "<|begin_of_text|>Q",
                "<|begin_of_text|><|begin_of_text|>Q",
                "B begins with `<|begin_of_text|>` twice",
            ),
            (
                "Q",
                "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
                "B has a chat template that A lacks",
            ),
            ("[INST] Q [/INST]", "Q", "A has a chat template that B lacks (`[INST]` `[/INST]`)"),
            ("one\n\ntwo\n\nQ", "Q", "few-shot examples"),
            ("Q ", "Q", "blanks at the ends"),
            ("Q\nR", "Q R", "blanks and line breaks"),
            ("Q R S", "Q T S", "within the text"),
            (
                "<|user|>Q R",
                "<|im_start|>Q T",
                "the chat templates differ (A begins with `<|user|>`",
            ),
            ("", "Q", "nothing in common"),
        ] {
            let message = texts(a, b);
            assert!(message.contains(words), "{a:?} {b:?}: {message}");
        }
    }
}
