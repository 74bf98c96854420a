//! User overrides of the table's types.

use regex::Regex;

use super::Error;
use formats::codec::BlockType;
use formats::shown;

/// User overrides of the table's types.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Types for tensors whose names match; the first match wins. They apply only if the target is a
    /// quantized type.
    pub tensors: Vec<TensorType>,
    /// Type of `output.weight`, or of the embedding that is used in its place.
    pub output: Option<BlockType>,
    /// Type of the embeddings.
    pub embedding: Option<BlockType>,
    /// True if every quantized tensor gets the target's own type.
    pub pure: bool,
    /// True if `output.weight` stays unquantized.
    pub leave_output: bool,
}

/// Parsed `PATTERN=TYPE`.
#[derive(Debug, Clone)]
pub struct TensorType {
    pattern: Regex,
    /// Type of the matching tensors.
    pub ty: BlockType,
}

impl TensorType {
    /// Parses `PATTERN=TYPE`, as in `ffn_down=q8_0`. The pattern is a regular expression that may match
    /// anywhere in a name; it is converted to lower case, as in llama.cpp's tool.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let parts = text.split_once('=');
        let parts = parts.filter(|(pattern, name)| !pattern.is_empty() && !name.is_empty());
        let (pattern, name) = parts.ok_or_else(|| Error::Malformed { found: shown(text) })?;
        let ty = parse_type(name)?;
        let pattern = Regex::new(&pattern.to_ascii_lowercase()).map_err(|error| {
            // The last line states the error; those before it point at the position.
            let why = error.to_string().lines().last().unwrap_or_default().to_owned();
            let why = why.trim_start_matches("error: ").to_owned();
            Error::Pattern { pattern: shown(pattern), why: shown(&why) }
        })?;
        Ok(Self { pattern, ty })
    }

    /// Returns the pattern.
    pub fn pattern(&self) -> &str {
        self.pattern.as_str()
    }

    /// True if the pattern matches a tensor's name.
    pub fn fits(&self, name: &str) -> bool {
        self.pattern.is_match(name)
    }
}

/// Parses the name of a type, in any case, if tensors of a model can have it.
pub fn parse_type(name: &str) -> Result<BlockType, Error> {
    let ty = BlockType::parse(name).filter(|ty| is_of_weights(*ty));
    ty.ok_or_else(|| Error::UnknownType { found: shown(name) })
}

/// True for the types that weights are written in.
fn is_of_weights(ty: BlockType) -> bool {
    ty.is_written() && (ty.is_quantized() || ty.plain().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_anywhere_in_small_letters() {
        let rule = TensorType::parse("BLK\\.[01]\\.ffn=Q8_0").unwrap();
        assert_eq!((rule.pattern(), rule.ty), ("blk\\.[01]\\.ffn", BlockType::Q80));
        assert!(rule.fits("blk.1.ffn_up.weight") && !rule.fits("blk.2.ffn_up.weight"));
        // Integers are written where a section asks for them, and no weights become integers.
        assert!(parse_type("i32").is_err() && parse_type("f32").is_ok());
        assert!(!rule.fits("BLK.1.ffn_up.weight"));
        for (text, part) in [
            ("ffn", "PATTERN=TYPE"),
            ("=q8_0", "PATTERN=TYPE"),
            ("ffn=", "PATTERN=TYPE"),
            ("ffn=q9", "`q9`"),
            ("ffn=q8_1", "`q8_1`"),
            ("ffn=a=q8_0", "`a=q8_0`"),
            ("(=q8_0", "unclosed group"),
            ("(?!a)b=q8_0", "look-around"),
        ] {
            let message = TensorType::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
