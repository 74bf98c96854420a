//! Numbers of things in texts for people, with their units.

/// Formats a size in bytes with a unit.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

/// Formats a count with a unit: `742.49 M`.
pub fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.2} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Formats a rate for people, with three digits: `50.3 M weights/s`.
pub fn rate(per_second: f64, noun: &str) -> String {
    let per_second = if per_second.is_finite() { per_second.max(0.0) } else { 0.0 };
    let units = [(1e9, " B"), (1e6, " M"), (1e3, " K"), (1.0, "")];
    // Numbers that round up to the next unit belong to that unit.
    let unit = units.into_iter().find(|(size, _)| per_second >= 0.9995 * size);
    let (size, letter) = unit.unwrap_or((1.0, ""));
    let number = per_second / size;
    let decimals = match number {
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}{letter} {noun}/s")
}

/// Formats a count with its noun: `1 layer`, `2 layers`.
pub fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_490_000_000), "1.49 GB");
        assert_eq!(count(742_489_344), "742.49 M");
        assert_eq!(plural(1, "layer"), "1 layer");
        for (per_second, expected) in [
            (50_331_648.2, "50.3 M weights/s"),
            (999_600.0, "1.00 M weights/s"),
            (123.4, "123 weights/s"),
            (0.25, "0.25 weights/s"),
            (12_345.0, "12.3 K weights/s"),
            (2.5e12, "2500 B weights/s"),
            (f64::NAN, "0.00 weights/s"),
        ] {
            assert_eq!(rate(per_second, "weights"), expected);
        }
    }
}
