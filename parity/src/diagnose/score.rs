//! Scores the distance of a trial's results from the target.

/// Maximum remaining difference, as a share, of an edit that explains everything.
const MOST_LEFT: f64 = 0.5;

/// Facts about one comparison: a tap, a part of a state, or the log-probabilities of a prompt.
#[derive(Debug, Clone)]
pub(super) struct ComparisonTarget {
    /// Distance that noise explains, as a root mean square.
    pub(super) limit: f64,
    /// Distance without an edit.
    pub(super) before: f64,
    /// Root mean square of the values; 1 for log-probabilities.
    pub(super) size: f64,
    /// True if the comparison exceeds its bound without an edit.
    pub(super) differs: bool,
    /// True if the unedited model gives values of another shape; differences are then relative to `size`.
    pub(super) missing: bool,
    /// True for the comparison that differs first.
    pub(super) first: bool,
}

/// Quality of an edit's explanation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    /// Distance as a share of the distance without the edit: 0 explains everything, 1 nothing.
    pub(super) rest: f64,
    /// Distance relative to noise, over all comparisons.
    pub(super) noise: f64,
    /// Largest distance relative to noise.
    pub(super) worst: f64,
    /// Largest distance among those that differed, relative to the size of their values.
    pub(super) left: f64,
    /// Distance of the first comparison that differed, relative to noise.
    pub(super) first: f64,
}

impl Score {
    /// True if noise explains all remaining differences. An edit that leaves more than half of a difference does not
    /// explain it, even if the difference was hardly larger than noise.
    pub(super) fn exact(&self) -> bool {
        self.worst <= 1.0 && self.rest <= MOST_LEFT
    }
}

/// Returns the root mean square of differences; infinite if one is NaN.
pub(super) fn rms(differences: &[f32]) -> f64 {
    let power: f64 = differences.iter().map(|x| f64::from(*x).powi(2)).sum();
    let rms = (power / differences.len().max(1) as f64).sqrt();
    if rms.is_nan() { f64::INFINITY } else { rms }
}

/// Returns the distance of two trials; infinite if their shapes differ.
pub(super) fn distance(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    rms(&a.iter().zip(b).map(|(x, y)| x - y).collect::<Vec<f32>>())
}

/// Scores the differences of a trial from the target.
pub(super) fn score(differences: &[Option<Vec<f32>>], targets: &[ComparisonTarget]) -> Score {
    let mut remaining = 0.0;
    let mut differ = 0_usize;
    let mut noise = 0.0;
    let infinite = f64::INFINITY;
    let mut worst = 0.0_f64;
    let mut left = 0.0_f64;
    let mut first = 0.0_f64;
    for (n, target) in targets.iter().enumerate() {
        let far = differences.get(n).and_then(Option::as_deref).map_or(infinite, rms);
        let times = far / target.limit;
        noise += times.min(1e30).powi(2);
        worst = worst.max(times);
        if target.differs {
            differ += 1;
            // A comparison that cannot be made counts as unchanged, if it could not be made before either.
            let limit = if target.missing { 1.0 } else { 1e3 };
            remaining += (far / target.before).min(limit).powi(2);
            left = left.max((far / target.size).min(1e3));
        } else if times > 1.0 {
            // A comparison that agreed and now exceeds its bound counts as much as one that differed.
            remaining += 1.0;
        }
        if target.first {
            first = times;
        }
    }
    Score {
        rest: (remaining / differ.max(1) as f64).sqrt(),
        noise: (noise / targets.len().max(1) as f64).sqrt(),
        worst,
        left,
        first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison_target(before: f64, differs: bool) -> ComparisonTarget {
        ComparisonTarget { limit: 1e-3, before, size: 1.0, differs, missing: false, first: differs }
    }

    #[test]
    fn what_is_restored_and_what_is_broken_count() {
        let same = Some(&[0.0, 0.0]);
        let off = Some(&[1.0, -1.0]);
        assert_eq!((score_of_two(same, same).rest, score_of_two(same, same).exact()), (0.0, true));
        assert_eq!((score_of_two(off, same).rest, score_of_two(off, same).exact()), (1.0, false));
        assert_eq!((score_of_two(same, off).rest, score_of_two(same, off).exact()), (1.0, false));
        assert_eq!(score_of_two(same, off).first, 0.0);
        assert!(!score_of_two(same, None).exact() && !score_of_two(None, same).exact());
        // Slightly less than a difference that is slightly beyond noise.
        let near = [comparison_target(1.5e-3, true)];
        assert!(!score(&[Some(vec![8.4e-4])], &near).exact());
        assert!(score(&[Some(vec![7e-4])], &near).exact());
        assert!(rms(&[f32::NAN]).is_infinite() && distance(&[1.0], &[]).is_infinite());
    }

    /// Score of the answers to a comparison that differs without the edit, and to one that does not.
    fn score_of_two(differing: Option<&[f32; 2]>, equal: Option<&[f32; 2]>) -> Score {
        let targets = [comparison_target(1.0, true), comparison_target(0.0, false)];
        score(&[differing, equal].map(|answer| answer.map(|numbers| numbers.to_vec())), &targets)
    }
}
