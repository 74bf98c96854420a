//! "Did you mean ...?"

use crate::listing::{QUOTED, shortened};

/// Returns the candidate closest to `name`, if it is close enough to be a misspelling.
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance > 0 && *distance <= (name.len().max(candidate.len()) / 3).max(1)
        })
        .min_by_key(|(distance, candidate)| (*distance, *candidate))
        .map(|(_, candidate)| candidate)
}

/// Returns the help line for an unknown `name`: the closest candidate, or all if they are few.
pub fn help<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<String> {
    if let Some(candidate) = closest(name, candidates.clone()) {
        return Some(format!("did you mean `{}`?", shortened(candidate, QUOTED)));
    }
    let all: Vec<String> = candidates
        .into_iter()
        .take(13)
        .map(|candidate| format!("`{}`", shortened(candidate, QUOTED)))
        .collect();
    (!all.is_empty() && all.len() <= 12).then(|| format!("known are {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slips_are_suggested() {
        let known = ["rms_norm", "layer_norm", "linear"];
        assert_eq!(closest("rmsnorm", known), Some("rms_norm"));
        assert_eq!(closest("conv", known), None);
        assert_eq!(help("conv", known).unwrap(), "known are `rms_norm`, `layer_norm`, `linear`");
    }
}
