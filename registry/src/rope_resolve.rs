//! Rotary tables from declarations.

use crate::diag::Finding;
use crate::eval::Env;
use crate::rope::RopeTable;
use crate::spec::Spec;

pub(crate) fn resolve(_spec: &Spec, _env: &dyn Env, _report: &mut dyn FnMut(Finding)) -> Vec<Option<RopeTable>> {
    Vec::new()
}
