//! Bytes of tokens, compared with decoded texts.

use std::path::Path;

use onboard_tokenizers::check::LlamaTokenizer;
use onboard_tokenizers::{ReferenceTokenizer, TokenBytes, TokenizerOptions, read};

fn joined(vocabulary: &[TokenBytes], ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| vocabulary[*id as usize].bytes.iter().copied());
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// Texts of all kinds: the bytes of their tokens are the decoded text, but for a space at the start.
fn agrees(
    name: &str,
    vocabulary: &[TokenBytes],
    encode: impl Fn(&str) -> Vec<u32>,
    decode: impl Fn(&[u32]) -> String,
) -> usize {
    let texts = ["{\"a\": [1, 2.5, \"x\"]}", "Größe  €\n\t🙂 中文", "<tool_call>f</tool_call>"];
    let mut seen = 0;
    for text in texts {
        let ids = encode(text);
        let ours = joined(vocabulary, &ids);
        let want = decode(&ids);
        let ours = ours.strip_prefix(' ').unwrap_or(&ours);
        assert_eq!(ours, want.strip_prefix(' ').unwrap_or(&want), "{name}: {text}");
        seen += ids.len();
    }
    // Any tokens in any order. Decoders differ in the number of marks for bytes that are no character.
    let mut ids: Vec<u32> = Vec::new();
    for n in 0..600_u32 {
        ids.push(n.wrapping_mul(2_654_435_761) % vocabulary.len() as u32);
        let bytes = &vocabulary[ids[ids.len() - 1] as usize].bytes;
        if bytes.is_empty() || std::str::from_utf8(bytes).is_err() {
            ids.pop();
        }
    }
    let ours = joined(vocabulary, &ids);
    let want = decode(&ids);
    assert_eq!(ours.trim_start(), want.trim_start(), "{name}");
    seen
}

#[test]
fn bytes_of_tokens_are_those_of_the_decoded_text() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let mut json = 0;
    let mut keys = 0;
    let mut specials = 0;
    for entry in fs_err::read_dir(fixtures).unwrap() {
        let dir = entry.unwrap().path();
        // Larger ones are the whole tokenizers of models, which take seconds.
        let size = fs_err::metadata(dir.join("tokenizer.json")).map_or(0, |file| file.len());
        if size == 0 || size > 200_000 {
            continue;
        }
        let name = &*dir.to_string_lossy();
        let tokenizer = ReferenceTokenizer::read(&dir).unwrap().unwrap();
        let vocabulary = tokenizer.vocabulary();
        json += agrees(
            name,
            &vocabulary,
            |text| tokenizer.encode(text, false).unwrap(),
            |ids| tokenizer.decode(ids, false).unwrap(),
        );
        specials += usize::from(vocabulary.iter().any(|token| token.special));
        let options = TokenizerOptions::default();
        let Ok(written) = read(&dir, vocabulary.len(), &options) else { continue };
        let loaded = LlamaTokenizer::new(&written.keys).unwrap();
        let from_keys = loaded.vocabulary();
        keys +=
            agrees(name, &from_keys, |text| loaded.encode(text).unwrap(), |ids| loaded.decode(ids));
        let same = vocabulary.iter().zip(&from_keys).filter(|(a, b)| a == b).count();
        assert!(same + 8 > vocabulary.len(), "{name}: {same} of {}", vocabulary.len());
    }
    assert!(json > 1_000 && keys > 1_000 && specials > 10, "{json} {keys} {specials}");
}
