//! Servers that expose no log-probabilities, and comparison of a server's tokenizer with the model's own.

use endpoints::Endpoint;

use super::Error;

/// The model's own tokenizer: returns the ids of a text, without or with special tokens around it; none if
/// it fails.
pub type EncodeText<'a> = dyn Fn(&str, bool) -> Option<Vec<u32>> + 'a;

/// Texts on which tokenizers differ: spaces, digits, cases, other scripts, and characters of several
/// tokens.
const TEXTS: [&str; 6] = [
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces,\ta tab\nand a new line\n\n",
    "12345 + 67890 = 80235; 3.14159e-10",
    "Straße, naïve, Ελλάδα, Москва, 東京, 서울",
    "fn main() { println!(\"{:?}\", x[0]); }",
    "don't I'LL we've 🤔👩‍👩‍👧",
];

/// Compares the tokenizer of a server with the model's own; none if either is missing.
pub(super) fn compare(
    server: &dyn Endpoint,
    encode: Option<&EncodeText<'_>>,
) -> Result<Option<String>, endpoints::Error> {
    let Some(encode) = encode else { return Ok(None) };
    let mut compared = 0;
    for text in TEXTS {
        let (Some(ours), Some(theirs)) = (encode(text, false), server.tokenize(text)?) else {
            continue;
        };
        compared += 1;
        if ours != theirs {
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            return Ok(Some(format!(
                "the server's tokenizer is another: of {text:?} it makes {} tokens and ours {}, and token {at} differs \
                 first; ids were sent, so no number of this report depends on it",
                theirs.len(),
                ours.len()
            )));
        }
    }
    Ok((compared > 0)
        .then(|| format!("tokenizer: {compared} texts give the same ids there and here")))
}

/// Compares the token counts of texts, if a server provides nothing else.
fn counts(
    server: &dyn Endpoint,
    encode: Option<&EncodeText<'_>>,
) -> Result<String, endpoints::Error> {
    let Some(encode) = encode else {
        return Ok("; the model has no tokenizer to compare its own with".to_owned());
    };
    if let Some(note) = compare(server, Some(encode))? {
        return Ok(format!("; {note}"));
    }
    let mut gaps = Vec::new();
    for text in TEXTS {
        if let (Some(ours), Some(theirs)) = (encode(text, true), server.count_text(text)?) {
            gaps.push(theirs as i64 - ours.len() as i64);
        }
    }
    Ok(match gaps.first() {
        None => "; it does not say how many tokens a text has either".to_owned(),
        Some(0) if gaps.iter().all(|gap| *gap == 0) => {
            format!("; {} texts have as many tokens there as here", gaps.len())
        }
        Some(first) if gaps.iter().all(|gap| gap == first) => format!(
            "; each of {} texts has {first:+} tokens there: special tokens around texts differ, as a second BOS does",
            gaps.len()
        ),
        Some(_) => {
            "; texts have other numbers of tokens there: it has another tokenizer".to_owned()
        }
    })
}

/// Returns the error for a server that exposes no log-probabilities.
pub(super) fn not_provable(
    server: &dyn Endpoint,
    encode: Option<&EncodeText<'_>>,
) -> Result<Error, endpoints::Error> {
    let facts = server.facts();
    let hidden = facts.hidden.join("; ");
    let tokens = counts(server, encode)?;
    let reason = format!("gives neither log-probabilities nor ids of tokens ({hidden})");
    Ok(Error::NotProvable { url: facts.url.clone(), reason, tokens })
}
