//! Conditions under which modules and lines of a class are there.

use registry::syntax::{BinaryOp, Expr, ExprKind};

use crate::python::binding::AND;
use crate::python::{enclosed, expression};
use crate::symbol::negated;
use crate::value::ModuleUse;

/// Returns a condition as code.
fn shown(condition: &Expr) -> String {
    expression(condition).0
}

/// True if a condition of one list is the opposite of one of the other.
pub(crate) fn contradict(a: &[Expr], b: &[Expr]) -> bool {
    a.iter().any(|one| {
        let opposite = shown(&negated(one));
        b.iter().any(|other| shown(other) == opposite)
    })
}

/// Returns the conditions that are in all lists.
pub(crate) fn shared(all: &[&[Expr]]) -> Vec<Expr> {
    let Some((first, rest)) = all.split_first() else { return Vec::new() };
    let everywhere =
        |one: &&Expr| rest.iter().all(|other| other.iter().any(|two| shown(two) == shown(one)));
    first.iter().filter(everywhere).cloned().collect()
}

/// Returns the conditions that are not known.
pub(crate) fn without(conditions: &[Expr], known: &[Expr]) -> Vec<Expr> {
    let is_known = |one: &&Expr| !known.iter().any(|other| shown(other) == shown(one));
    conditions.iter().filter(is_known).cloned().collect()
}

/// Returns the conditions under which one of several is there.
pub(crate) fn any_of(uses: &[ModuleUse]) -> Vec<Expr> {
    let all: Vec<&[Expr]> = uses.iter().map(|one| one.conditions.as_slice()).collect();
    let common = shared(&all);
    let mut rests: Vec<Vec<Expr>> = Vec::new();
    for one in &all {
        let rest = without(one, &common);
        let text = |conditions: &[Expr]| conditions.iter().map(shown).collect::<Vec<_>>();
        if !rests.iter().any(|known| text(known) == text(&rest)) {
            rests.push(rest);
        }
    }
    let opposed = rests
        .iter()
        .any(|a| a.len() == 1 && rests.iter().any(|b| b.len() == 1 && contradict(a, b)));
    if rests.iter().any(Vec::is_empty) || opposed {
        return common;
    }
    let joined = |op: BinaryOp| {
        move |a: Expr, b: Expr| {
            let at = a.at.clone();
            Expr { kind: ExprKind::Binary(op, Box::new(a), Box::new(b)), at }
        }
    };
    let any = rests.into_iter().filter_map(|rest| rest.into_iter().reduce(joined(BinaryOp::And)));
    common.into_iter().chain(any.reduce(joined(BinaryOp::Or))).collect()
}

/// Writes conditions as one.
pub(crate) fn all_of(conditions: &[Expr]) -> String {
    let all = conditions.iter().map(expression);
    let least = if conditions.len() > 1 { AND } else { 0 };
    all.map(|one| enclosed(&one, least)).collect::<Vec<_>>().join(" and ")
}
