//! Distances of a trial's numbers from those that an edit has to give.

/// The numbers that are wanted.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The numbers; none for differences, which have to be zero.
    pub(super) numbers: Vec<f32>,
    /// Distance that noise explains, as a root mean square.
    pub(super) limit: f64,
    /// Distance without an edit.
    pub(super) before: f64,
    /// Root mean square of the numbers; 1 for log-probabilities.
    pub(super) size: f64,
    pub(super) differs: bool,
}

/// How well an edit explains the numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    /// Distance as a share of the distance without the edit: 0 explains everything, 1 nothing.
    pub(super) rest: f64,
    /// Distance over what noise explains, over all comparisons.
    pub(super) noise: f64,
    /// The largest distance over what noise explains.
    pub(super) worst: f64,
    /// The largest distance of those that differed, over the size of their numbers.
    pub(super) left: f64,
}

impl Score {
    /// True if nothing is left that noise does not explain.
    pub(super) fn exact(&self) -> bool {
        self.worst <= 1.0
    }
}

/// Root mean square of a difference; infinite where one side has no number.
pub(super) fn apart(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return if b.is_empty() { apart(a, &vec![0.0; a.len()]) } else { f64::INFINITY };
    }
    let gap = |(x, y): (&f32, &f32)| {
        if x == y { 0.0 } else { (f64::from(*x) - f64::from(*y)).powi(2) }
    };
    let power: f64 = a.iter().zip(b).map(gap).sum();
    let rms = (power / a.len().max(1) as f64).sqrt();
    if rms.is_nan() { f64::INFINITY } else { rms }
}

/// Compares the numbers of a trial with those that are wanted.
pub(super) fn score(numbers: &[Option<Vec<f32>>], wanted: &[Wanted]) -> Score {
    let (mut rest, mut differ, mut noise) = (0.0, 0_usize, 0.0);
    let mut score = Score { rest: f64::INFINITY, noise: f64::INFINITY, worst: 0.0, left: 0.0 };
    for (n, wanted) in wanted.iter().enumerate() {
        let far = numbers
            .get(n)
            .and_then(Option::as_ref)
            .map_or(f64::INFINITY, |ours| apart(ours, &wanted.numbers));
        let times = far / wanted.limit;
        noise += times.min(1e30).powi(2);
        score.worst = score.worst.max(times);
        if wanted.differs {
            differ += 1;
            // A comparison that cannot be made is as far off as before, where it could not be made either.
            let most = if wanted.numbers.is_empty() { 1.0 } else { 1e3 };
            rest += (far / wanted.before).min(most).powi(2);
            score.left = score.left.max((far / wanted.size).min(1e3));
        } else if times > 1.0 {
            // What agreed and is now beyond its bound counts as much as what differed.
            rest += 1.0;
        }
    }
    score.rest = (rest / differ.max(1) as f64).sqrt();
    score.noise = (noise / wanted.len().max(1) as f64).sqrt();
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(before: f64, differs: bool) -> Wanted {
        Wanted { numbers: vec![1.0, 2.0], limit: 1e-3, before, size: 1.0, differs }
    }

    #[test]
    fn what_is_restored_and_what_is_broken_count() {
        let two = [wanted(1.0, true), wanted(0.0, false)];
        let same = Some(vec![1.0, 2.0]);
        let off = Some(vec![2.0, 3.0]);
        let of = |a: &Option<Vec<f32>>, b: &Option<Vec<f32>>| score(&[a.clone(), b.clone()], &two);
        assert_eq!((of(&same, &same).rest, of(&same, &same).exact()), (0.0, true));
        assert_eq!((of(&off, &same).rest, of(&off, &same).exact()), (1.0, false));
        assert_eq!((of(&same, &off).rest, of(&same, &off).exact()), (1.0, false));
        assert!(!of(&same, &None).exact() && !of(&None, &same).exact());
        assert!(
            apart(&[f32::NAN], &[1.0]).is_infinite() && apart(&[1.0], &[1.0, 2.0]).is_infinite()
        );
    }
}
