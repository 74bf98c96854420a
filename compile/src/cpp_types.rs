//! Types of C++ that expressions of settings have, where they have the same in every config.

use std::collections::BTreeSet;

use crate::cpp_code::{CodeExpr, CppNames, CppType, is_truth};

use CodeExpr::{Attribute, Binary, Call, If, Number, Unary};

/// Returns the type of a sum or product.
fn widest(a: CppType, b: CppType) -> Option<CppType> {
    match (a, b) {
        (CppType::Int, CppType::Int) => Some(CppType::Int),
        (CppType::Real, CppType::Int | CppType::Real) | (CppType::Int, CppType::Real) => {
            Some(CppType::Real)
        }
        _ => None,
    }
}

fn of_literal(expr: &CodeExpr) -> Option<CppType> {
    match expr {
        Number(text) if text.contains(['.', 'e']) => Some(CppType::Real),
        Number(_) => Some(CppType::Int),
        _ if is_truth(expr) => Some(CppType::Bool),
        _ => None,
    }
}

/// Returns the type of an expression as it is written; none for a `Value`.
pub(crate) fn written_type(expr: &CodeExpr, names: &impl CppNames) -> Option<CppType> {
    let part = |expr: &CodeExpr| written_type(expr, names);
    match expr {
        Attribute(base, name) if base.is_name("self") => names.type_of(name),
        Attribute(base, name) if base.is_name("config") => names.setting_type(name),
        Binary("+" | "-" | "*", a, b) => widest(part(a)?, part(b)?),
        Unary("-", inner) => part(inner).filter(|ty| widest(*ty, *ty).is_some()),
        If(_, a, b) => part(a).filter(|ty| part(b) == Some(*ty)),
        _ => of_literal(expr),
    }
}

/// Returns the type that the value of a setting has in every config; none if it differs or may be null.
pub(crate) fn meant_type(expr: &CodeExpr, names: &impl CppNames) -> Option<CppType> {
    let part = |expr: &CodeExpr| meant_type(expr, names);
    if let Some(ty) = written_type(expr, names) {
        return Some(ty);
    }
    match expr {
        Call(function, given) if function.is_name("read") => {
            let (_, default) = given.iter().find(|(name, _)| name.is_some())?;
            // Where the default is an integer, a config may have a fraction.
            part(default).filter(|ty| *ty != CppType::Int)
        }
        Call(function, _) if function.is_name("int") || function.is_name("len") => {
            Some(CppType::Int)
        }
        Binary("**", base, power) => {
            let is_real = |expr: &CodeExpr| part(expr) == Some(CppType::Real);
            (is_real(base) || is_real(power)).then_some(CppType::Real)
        }
        Binary("/", a, b) => widest(part(a)?, part(b)?).map(|_| CppType::Real),
        Binary("+" | "-" | "*", a, b) => widest(part(a)?, part(b)?),
        Binary("//", a, b) => widest(part(a)?, part(b)?).filter(|ty| *ty == CppType::Int),
        Unary("-", inner) => part(inner).filter(|ty| widest(*ty, *ty).is_some()),
        If(_, a, b) => part(a).filter(|ty| part(b) == Some(*ty)),
        _ => None,
    }
}

/// Returns the settings that lines compare with a text or look for in a list, so that they may be texts in some configs.
pub(crate) fn compared<'t>(lines: impl Iterator<Item = &'t str>) -> BTreeSet<String> {
    let signs = [" == \"", " != \"", " in ", " not in "];
    let mut names = BTreeSet::new();
    for line in lines {
        for part in line.split("config.").chain(line.split("self.")).skip(1) {
            let name = part.split(|c| !crate::words::is_of_name(c)).next().unwrap_or_default();
            if signs.iter().any(|sign| part[name.len()..].starts_with(sign)) {
                names.insert(name.to_owned());
            }
        }
    }
    names
}
