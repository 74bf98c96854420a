//! The `weights:` section: rules as text become rules as data.

use crate::eval::Env;
use crate::spec::Spec;
use crate::weight_map::Rule;

use super::Report;

pub(super) fn resolve(_spec: &Spec, _env: &dyn Env, _report: &mut Report) -> Vec<Rule> {
    Vec::new()
}
