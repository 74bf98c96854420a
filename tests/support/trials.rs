//! Trials by name: one for each fixture, so that a failure names its fixture and the others still run.

use libtest_mimic::{Arguments, Trial};

/// Returns a trial `kind::name` for each name. A check fails by a panic.
pub(crate) fn each(
    kind: &str,
    names: impl IntoIterator<Item = String>,
    check: impl Fn(&str) + Clone + Send + 'static,
) -> Vec<Trial> {
    let trials: Vec<Trial> = names
        .into_iter()
        .map(|name: String| {
            let check = check.clone();
            one(&format!("{kind}::{name}"), move || check(&name))
        })
        .collect();
    assert!(!trials.is_empty(), "there is no fixture for the trials `{kind}`");
    trials
}

/// Returns a single trial. A check fails by a panic.
pub(crate) fn one(name: &str, check: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        check();
        Ok(())
    })
}

/// Runs the trials that the command line selects, and exits.
pub(crate) fn run(trials: impl IntoIterator<Item = Vec<Trial>>) -> ! {
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
