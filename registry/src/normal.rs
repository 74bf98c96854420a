//! The normal distribution.

/// Computes the quantile of the normal distribution. The start is Abramowitz and Stegun 26.2.23, refined by
/// Newton's steps on the distribution itself.
pub fn quantile(p: f64) -> f64 {
    if !(0.0..1.0).contains(&p) || p == 0.0 {
        return if p >= 1.0 { f64::INFINITY } else { f64::NEG_INFINITY };
    }
    let tail = p.min(1.0 - p);
    let t = (-2.0 * tail.ln()).sqrt();
    let top = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let bottom = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut z = t - top / bottom;
    for _ in 0..4 {
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        z += (upper(z) - tail) / density;
    }
    if p < 0.5 { -z } else { z }
}

/// Computes the share of a normal distribution above `z >= 0`. Uses the continued fraction, or for small `z`
/// the series of the part below (Abramowitz and Stegun 26.2.14 and 26.2.11).
fn upper(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    if z < 3.0 {
        let mut term = z;
        let mut total = z;
        for n in 1..80 {
            term *= z * z / f64::from(2 * n + 1);
            total += term;
        }
        return 0.5 - density * total;
    }
    let mut fraction = z;
    for n in (1..60).rev() {
        fraction = z + f64::from(n) / fraction;
    }
    density / fraction
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (p, z) in [
            (0.5, 0.0),
            (0.95, 1.644_853_627),
            (0.975, 1.959_963_985),
            (0.999_9, 3.719_016_485),
            (0.1, -1.281_551_566),
        ] {
            assert!((quantile(p) - z).abs() < 1e-8, "{p}");
        }
    }
}
