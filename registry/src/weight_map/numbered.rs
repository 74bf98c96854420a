//! Holes of patterns for a number that is computed from another hole, as `{2 * i + 1}`.

/// A number in a name: a factor times the number of a hole, plus an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberedHole<'p> {
    /// Name of the hole.
    pub hole: &'p str,
    /// The factor, above 0.
    pub factor: u32,
    /// The offset.
    pub offset: i32,
}

impl<'p> NumberedHole<'p> {
    /// True if the text between two braces is arithmetic, sound or not.
    pub(super) fn is_arithmetic(text: &str) -> bool {
        text.contains(['+', '-', '*', '/', ' '])
    }

    /// Reads the text between two braces; `None` for the name of a hole and for faulty arithmetic.
    pub(super) fn parse(text: &'p str) -> Option<Self> {
        if !Self::is_arithmetic(text) {
            return None;
        }
        let sign = text.find(['+', '-']);
        let product = &text[..sign.unwrap_or(text.len())];
        let offset = match sign {
            Some(at) => text[at..].replace(' ', "").parse().ok()?,
            None => 0,
        };
        let times = product.split_once('*');
        let factor = times.map_or(Ok(1), |(factor, _)| factor.trim().parse()).ok()?;
        let hole = times.map_or(product, |(_, hole)| hole).trim();
        let named = hole.starts_with(|char: char| char.is_ascii_alphabetic())
            && hole.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
        (named && factor > 0).then_some(Self { hole, factor, offset })
    }

    /// Returns the number in a name, from the text that fills the hole; `None` if that is no number.
    pub(super) fn number_for(self, filling: &str) -> Option<String> {
        let product = i64::from(self.factor).checked_mul(number(filling)?)?;
        let sum = product.checked_add(self.offset.into())?;
        (sum >= 0).then(|| sum.to_string())
    }

    /// Returns the text that fills the hole, from the number in a name; `None` if no integer gives that number.
    pub(super) fn filling_for(self, text: &str) -> Option<String> {
        let product = number(text)?.checked_sub(self.offset.into())?;
        let factor = i64::from(self.factor);
        (product >= 0 && product % factor == 0).then(|| (product / factor).to_string())
    }
}

/// Returns the number that a text writes in decimal digits, without zeros before it.
fn number(text: &str) -> Option<i64> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then(|| number.into())
}
