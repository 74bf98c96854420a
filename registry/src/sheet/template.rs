//! Texts with expressions in braces: `no prefix hits below {plan.block} tokens`.

use crate::diag::Finding;
use crate::eval::{Env, EvalError, eval};
use crate::parse::parse_expr;
use crate::scalar::Scalar;
use crate::syntax::Expr;
use crate::text::MappedText;

/// A text and the expressions that fill it.
#[derive(Debug, Clone, Default)]
pub struct SheetText {
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone)]
enum TemplatePart {
    Text(String),
    Value(Expr),
}

impl SheetText {
    /// Reads a text; mistakes of its expressions go to `findings`.
    pub(super) fn parse(text: &MappedText, findings: &mut Vec<Finding>) -> Self {
        let value = text.value();
        let mut parts = Vec::new();
        let mut from = 0;
        while let Some(open) = value[from..].find('{').map(|at| from + at) {
            parts.push(TemplatePart::Text(value[from..open].to_owned()));
            let Some(close) = value[open..].find('}').map(|at| open + at) else {
                let at = text.at(open..value.len());
                findings.push(Finding::error(&at, "this `{` is never closed"));
                return Self { parts };
            };
            match parse_expr(&text.slice(open + 1..close)) {
                Ok(expr) => parts.push(TemplatePart::Value(expr)),
                Err(errors) => findings.extend(errors),
            }
            from = close + 1;
        }
        parts.push(TemplatePart::Text(value[from..].to_owned()));
        Self { parts }
    }

    /// Returns the expressions.
    pub(super) fn exprs(&self) -> impl Iterator<Item = &Expr> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Value(expr) => Some(expr),
            TemplatePart::Text(_) => None,
        })
    }

    /// Returns the text with the values of its expressions.
    pub fn fill(&self, env: &dyn Env) -> Result<String, EvalError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(words) => text.push_str(words),
                TemplatePart::Value(expr) => text.push_str(&shown(&*eval(expr, env)?)),
            }
        }
        Ok(text)
    }
}

/// Formats a value for people: large numbers in groups of three digits.
pub fn shown(value: &Scalar) -> String {
    match value {
        Scalar::Str(text) => text.clone(),
        Scalar::Int(n) => grouped(*n),
        Scalar::Float(x) if x.fract() == 0.0 && x.abs() < 1e15 => grouped(*x as i64),
        Scalar::Float(x) => format!("{x:.3}"),
        Scalar::List(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn grouped(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if n < 0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (85_292, "85,292"), (-1_234_567, "-1,234,567")] {
            assert_eq!(grouped(n), text);
        }
        assert_eq!(shown(&Scalar::Float(0.7518)), "0.752");
        assert_eq!(shown(&Scalar::Float(4096.0)), "4,096");
    }
}
