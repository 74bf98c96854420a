//! Parses SentencePiece models: the few protocol buffer fields that a conversion needs.
//!
//! Field and type numbers are those of `sentencepiece_model.proto`. Other fields are skipped by their wire
//! type; a length is accepted only if that many bytes follow.

use std::path::Path;

use super::Error;
use super::table::TokenType;

/// SentencePiece model.
#[derive(Debug, Default)]
pub(super) struct SentencePieceModel {
    pub(super) pieces: Vec<VocabPiece>,
    /// Algorithm of the model, if the file names it: 1 for Unigram, 2 for BPE.
    pub(super) made_by: Option<u64>,
    /// True if a space is added before every text.
    pub(super) dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    /// True if characters are replaced before tokenization.
    pub(super) normalizes: bool,
}

/// Piece of the vocabulary.
#[derive(Debug)]
pub(super) struct VocabPiece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) ty: TokenType,
}

/// Value of a field.
enum Field<'a> {
    Number(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8], usize),
}

struct ProtoReader<'a> {
    bytes: &'a [u8],
    /// Offset of `bytes` in the file.
    base: usize,
    at: usize,
}

type ProtoFault = (String, usize);

/// Reads a `tokenizer.model`.
pub(super) fn read(file: &Path) -> Result<SentencePieceModel, Error> {
    let bytes = registry::file::read(file, registry::file::TOKENIZER)?;
    parse(&bytes).map_err(|(why, at)| Error::NotPieces { file: file.to_owned(), why, at })
}

fn parse(bytes: &[u8]) -> Result<SentencePieceModel, ProtoFault> {
    let mut model = SentencePieceModel {
        dummy_prefix: true,
        remove_extra_whitespaces: true,
        ..SentencePieceModel::default()
    };
    let mut reader = ProtoReader { bytes, base: 0, at: 0 };
    while let Some((number, field)) = reader.field()? {
        match (number, field) {
            (1, Field::Bytes(inner, base)) => {
                let piece = piece(ProtoReader { bytes: inner, base, at: 0 }, model.pieces.len())?;
                model.pieces.push(piece);
            }
            (2, Field::Bytes(inner, base)) => {
                let mut spec = ProtoReader { bytes: inner, base, at: 0 };
                while let Some((number, field)) = spec.field()? {
                    if let (3, Field::Number(kind)) = (number, field) {
                        model.made_by = Some(kind);
                    }
                }
            }
            (3, Field::Bytes(inner, base)) => {
                let mut spec = ProtoReader { bytes: inner, base, at: 0 };
                while let Some((number, field)) = spec.field()? {
                    match (number, field) {
                        (2, Field::Bytes(map, _)) => model.normalizes = !map.is_empty(),
                        (3, Field::Number(yes)) => model.dummy_prefix = yes != 0,
                        (4, Field::Number(yes)) => model.remove_extra_whitespaces = yes != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if model.pieces.is_empty() { Err(("no pieces".into(), 0)) } else { Ok(model) }
}

fn piece(mut reader: ProtoReader<'_>, n: usize) -> Result<VocabPiece, ProtoFault> {
    let base = reader.base;
    let mut text = None;
    let mut score = 0.0;
    let mut ty = TokenType::Normal;
    while let Some((number, field)) = reader.field()? {
        match (number, field) {
            (1, Field::Bytes(bytes, at)) => match std::str::from_utf8(bytes) {
                Ok(word) => text = Some(word.to_owned()),
                Err(_) => return Err((format!("piece {n} is not UTF-8"), at)),
            },
            (2, Field::Fixed32(bytes)) => score = f32::from_le_bytes(bytes),
            (3, Field::Number(kind)) => {
                ty = match kind {
                    1 => TokenType::Normal,
                    2 => TokenType::Unknown,
                    3 => TokenType::Control,
                    4 => TokenType::UserDefined,
                    5 => TokenType::Unused,
                    6 => TokenType::Byte,
                    _ => return Err((format!("piece {n} is of type {kind}, not 1 to 6,"), base)),
                }
            }
            _ => {}
        }
    }
    if !score.is_finite() {
        return Err((format!("the score of piece {n} is {score}"), base));
    }
    let text = text.ok_or_else(|| (format!("piece {n} has no text"), base))?;
    Ok(VocabPiece { text, score, ty })
}

impl<'a> ProtoReader<'a> {
    fn fault<T>(&self, why: &str) -> Result<T, ProtoFault> {
        Err((why.to_owned(), self.base + self.at))
    }

    fn field(&mut self) -> Result<Option<(u64, Field<'a>)>, ProtoFault> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Fixed64
            }
            2 => {
                let length = self.varint()?;
                let begin = self.base + self.at;
                let Ok(length) = usize::try_from(length) else {
                    return self.fault("a length beyond the file");
                };
                Field::Bytes(self.take(length)?, begin)
            }
            5 => {
                let bytes = self.take(4)?;
                Field::Fixed32([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            kind => return self.fault(&format!("wire type {kind}, which no field has,")),
        };
        Ok(Some((tag >> 3, field)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtoFault> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else { return self.fault("a field ends beyond its message") };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ProtoFault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else {
                return self.fault("the file was cut short");
            };
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.fault("a number of more than ten bytes")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `a` with score -1 and `<0x0A>` of type byte, without a space before every text.
    const FILE: &[u8] = b"\x0a\x08\x0a\x01a\x15\0\0\x80\xbf\x0a\x0a\x0a\x06<0x0A>\x18\x06\
        \x12\x02\x18\x02\x1a\x02\x18\0";

    #[test]
    fn fields_are_found() {
        let model = parse(FILE).unwrap();
        assert_eq!(model.pieces.len(), 2);
        assert_eq!((model.pieces[0].text.as_str(), model.pieces[0].score), ("a", -1.0));
        assert_eq!(model.pieces[1].ty, TokenType::Byte);
        assert_eq!((model.made_by, model.dummy_prefix, model.normalizes), (Some(2), false, false));
        assert!(model.remove_extra_whitespaces);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        assert_eq!(fault_of(b""), ("no pieces".into(), 0));
        assert_eq!(
            fault_of(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").0,
            "a field ends beyond its message"
        );
        assert_eq!(fault_of(b"\x0a\x03\x0a\x01\xff"), ("piece 0 is not UTF-8".into(), 4));
        assert_eq!(fault_of(b"\x0a\x05\x0a\x01a\x18\x09").0, "piece 0 is of type 9, not 1 to 6,");
        assert_eq!(fault_of(b"\x0a\x08\x0a\x01a\x15\0\0\xc0\x7f").0, "the score of piece 0 is NaN");
        assert_eq!(fault_of(b"\x0b"), ("wire type 3, which no field has,".into(), 1));
        assert_eq!(fault_of(b"\x0a\x02\x18\x01").0, "piece 0 has no text");
        for cut in 1..FILE.len() {
            // A cut between two fields leaves a valid model.
            let _whole_or_fault = parse(&FILE[..cut]);
        }
    }

    fn fault_of(bytes: &[u8]) -> ProtoFault {
        parse(bytes).unwrap_err()
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _model_or_fault = parse(&bytes);
        }

        #[test]
        fn no_damage_panics(at in 0..FILE.len(), byte in any::<u8>()) {
            let mut bytes = FILE.to_vec();
            bytes[at] = byte;
            let _model_or_fault = parse(&bytes);
        }
    }
}
