//! Base64 with the standard alphabet and padding.

/// Decodes a text, or returns none if any character, length or padding is wrong.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let plain = bytes.strip_suffix(b"==").or_else(|| bytes.strip_suffix(b"=")).unwrap_or(bytes);
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len() / 4 * 3);
    for group in plain.chunks(4) {
        let mut word = 0_u32;
        for &byte in group {
            word = word << 6 | value(byte)?;
        }
        word <<= 6 * (4 - group.len());
        let [_, bytes @ ..] = word.to_be_bytes();
        let (decoded, partial) = bytes.split_at(group.len().checked_sub(1).filter(|&n| n > 0)?);
        // Bits after the last byte must be zero.
        if partial.iter().any(|&byte| byte != 0) {
            return None;
        }
        out.extend_from_slice(decoded);
    }
    Some(out)
}

/// Encodes bytes.
#[cfg(test)]
pub(crate) fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes(word);
        for n in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * n)) as usize & 63];
            text.push(if n <= group.len() { digit.into() } else { '=' });
        }
    }
    text
}

fn value(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_and_refused() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("/+8A", b"\xff\xef\0"),
        ] {
            assert_eq!(decode(text).unwrap(), bytes, "{text}");
            assert_eq!(encode(bytes), text);
        }
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Zg==Zg==", "Z===", "====", "Z m8", "Zm-_"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
