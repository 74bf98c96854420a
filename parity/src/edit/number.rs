//! Formats numbers as specs write them.

use registry::scalar::Scalar;

/// Formats a number with the fewest digits that distinguish it from its f32 neighbours.
pub(super) fn show(x: f64) -> String {
    if x == 0.0 {
        return "0".to_owned();
    }
    let size = x.abs();
    if (1e-3..1e7).contains(&size) {
        let text = format!("{:.*}", digits(size), x);
        return if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        };
    }
    let text = format!("{x:.5e}");
    match text.split_once('e') {
        Some((head, power)) if head.contains('.') => {
            format!("{}e{power}", head.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

fn digits(size: f64) -> usize {
    let before = size.log10().floor().max(0.0) as usize;
    6_usize.saturating_sub(before)
}

/// Rounds to a number of significant digits.
pub(crate) fn round_to(x: f64, digits: usize) -> f64 {
    format!("{x:.*e}", digits.saturating_sub(1)).parse().unwrap_or(x)
}

pub(super) fn text(value: &Scalar) -> String {
    match value {
        Scalar::Float(x) => show(*x),
        Scalar::Int(n) => n.to_string(),
        Scalar::Str(text) => format!("'{text}'"),
        Scalar::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_in_a_spec() {
        for (x, want) in [
            (1e-5, "1e-5"),
            (10000.0, "10000"),
            (500_000.0, "500000"),
            (0.125, "0.125"),
            (1.01, "1.01"),
            (0.088_388_347, "0.088388"),
            (1e8, "1e8"),
            (-2.5, "-2.5"),
            (0.0, "0"),
        ] {
            assert_eq!(show(x), want);
        }
        assert_eq!(round_to(0.990_099, 3), 0.99);
        assert_eq!(round_to(123_456.0, 2), 120_000.0);
    }
}
