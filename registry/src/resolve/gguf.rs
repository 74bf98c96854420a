//! The `gguf:` section with its dims put in.

use crate::diag::Finding;
use crate::eval::{self, Env, EvalError, expected};
use crate::gguf::{Gguf, TensorRule, split_at_layer};
use crate::scalar::Scalar;
use crate::spec::{DimSource, GgufDecl, GgufEntry, GgufWeight, Spec};
use crate::syntax::{Expr, Ident};
use crate::weight_map::{Pattern, WeightRule};

use super::FindingSet;
use super::rules::{pattern, step};

mod head;
mod tables;

pub(super) use head::HeadLayer;
use tables::{GgufEnv, LayerEnv};

/// More layers than any model has.
const MOST_LAYERS: i64 = 10_000;

/// Place of a layer's number in the name of a tensor.
const LAYER_HOLE: &str = "{i}";

/// The number of a layer in expressions.
const LAYER: &str = "i";

/// Keys that are not below the architecture's name.
const GLOBAL: [&str; 3] = ["general.", "tokenizer.", "xielu."];

/// Resolves the section; none if the spec has none, or if it is faulty, which is reported. With the layers of
/// a head, the result describes a file that has them.
pub(super) fn resolve(
    spec: &Spec,
    env: &dyn Env,
    ahead: &[HeadLayer],
    report: &mut FindingSet,
) -> Option<Gguf> {
    let decl = spec.gguf.as_ref()?;
    let tables = GgufEnv::new(spec, env, ahead.len());
    let env: &dyn Env = &tables;
    let arch = match &decl.arch {
        Some(source) => word(source, env).and_then(|word| word.ok_or_else(|| no_arch(decl))),
        None => Err(no_arch(decl)),
    };
    let arch = report.ok_or_report(arch)?;
    let pre = decl.pre.as_ref().and_then(|source| report.ok_or_report(word(source, env))).flatten();
    let mut metadata = Vec::new();
    for entry in decl.metadata.values() {
        let value = eval::eval_owned(&entry.value, env).and_then(|value| typed(value, entry));
        if let Some(Some(value)) = report.ok_or_report(value) {
            metadata.push((whole(&arch, &entry.name.name), value));
        }
    }
    let mut tensors = Vec::new();
    for entry in decl.tensors.values() {
        let value = eval::eval_owned(&entry.value, env).and_then(|value| numbers(&value, entry));
        let names = of_each_layer(&entry.name, env);
        if let (Some(Some(numbers)), Some(names)) =
            (report.ok_or_report(value), report.ok_or_report(names))
        {
            tensors.extend(names.into_iter().map(|name| (name, numbers.clone())));
        }
    }
    let mut rules = Vec::new();
    for place in ahead {
        let native = decl.nextn.iter().map(|decl| place.own(decl));
        rules.extend(native.filter_map(|decl| report.ok_or_report(rules_of(&decl, env))).flatten());
    }
    rules.extend(
        decl.weights.iter().filter_map(|decl| report.ok_or_report(rules_of(decl, env))).flatten(),
    );
    let aliases = ahead.iter().filter_map(HeadLayer::alias).collect();
    let scalars = decl.scalars.iter().filter_map(|(key, weights)| {
        let weights = report.ok_or_report(pattern(weights).map_err(EvalError::from))?;
        Some((whole(&arch, &key.name), weights))
    });
    let scalars = scalars.collect();
    let mut doubts = Vec::new();
    for entry in decl.assumes.values() {
        if report
            .ok_or_report(eval::eval_owned(&entry.value, env))
            .is_some_and(|is| !eval::truth(&is))
        {
            doubts.push(entry.name.name.clone());
        }
    }
    let drop = decl
        .drop
        .iter()
        .filter_map(|ident| report.ok_or_report(pattern(ident).map_err(EvalError::from)))
        .collect();
    let idle = decl.idle.iter().map(|ident| (ident, false));
    let filled = decl.filled.iter().map(|ident| (ident, true));
    let idle = idle.chain(filled).filter_map(|(ident, filled)| {
        report.ok_or_report(of_layers(ident)).map(|pattern| (pattern, filled))
    });
    let idle = idle.collect();
    let ahead = ahead.len();
    let special = decl
        .special
        .iter()
        .map(|(kind, token): &(Ident, Ident)| (kind.name.clone(), token.name.clone()))
        .collect();
    let wide = decl.wide.iter().map(|key| whole(&arch, &key.name)).collect();
    Some(Gguf {
        arch,
        wide,
        pre,
        special,
        metadata,
        absent: decl.absent.clone(),
        rules,
        tensors,
        scalars,
        drop,
        idle,
        ahead,
        aliases,
        doubts,
        unlike: None,
    })
}

/// Returns the error that a section names no architecture.
fn no_arch(decl: &GgufDecl) -> EvalError {
    Finding::error(&decl.at, "the `gguf` section has no `arch`")
        .help("write the name that llama.cpp gives the architecture: `arch: <name>`")
        .into()
}

/// Returns the names of a computed tensor: with a hole `{i}` one for each layer.
fn of_each_layer(ident: &Ident, env: &dyn Env) -> Result<Vec<String>, EvalError> {
    if !ident.name.contains(LAYER_HOLE) {
        return Ok(vec![ident.name.clone()]);
    }
    let layers = count_of_layers(ident, env)?;
    Ok((0..layers).map(|i| ident.name.replace(LAYER_HOLE, &i.to_string())).collect())
}

/// Returns the number of layers of the model, for a name with a hole for them.
fn count_of_layers(ident: &Ident, env: &dyn Env) -> Result<i64, EvalError> {
    let layers = Ident { name: "layers".to_owned(), ..ident.clone() };
    let layers = env.lookup(&layers)?.as_usize().unwrap_or(0);
    Ok(i64::try_from(layers).map_or(MOST_LAYERS, |layers| layers.min(MOST_LAYERS)))
}

/// Parses a pattern of one weight in each layer.
fn of_layers(ident: &Ident) -> Result<Pattern, EvalError> {
    let pattern = pattern(ident)?;
    if split_at_layer(&pattern).is_none() {
        return Err(Finding::error(&ident.at, "this is not one weight of each layer")
            .label("one hole `{i}` and no other, as in `model.layers.{i}.self_attn.k_proj.weight`")
            .into());
    }
    Ok(pattern)
}

fn whole(arch: &str, key: &str) -> String {
    if GLOBAL.iter().any(|start| key.starts_with(start)) {
        key.to_owned()
    } else {
        format!("{arch}.{key}")
    }
}

/// Reads a literal word, or text that is computed; null is none.
fn word(source: &DimSource, env: &dyn Env) -> Result<Option<String>, EvalError> {
    match source {
        DimSource::Key(ident) => Ok(Some(ident.name.clone())),
        DimSource::Compute(expr) => match eval::eval_owned(expr, env)? {
            Scalar::Str(text) => Ok(Some(text)),
            Scalar::Null => Ok(None),
            other => Err(Finding::error(&expr.at, "this is not text")
                .label(expected("text", &other))
                .into()),
        },
    }
}

/// Checks a value against the types that the format can hold; null is none.
fn typed(value: Scalar, entry: &GgufEntry) -> Result<Option<Scalar>, EvalError> {
    let why = match &value {
        Scalar::Null => return Ok(None),
        Scalar::List(items) => {
            let mut kinds = items.iter().map(item_kind);
            let first = kinds.next().flatten();
            let same = first.is_some() && kinds.all(|kind| kind == first);
            (!same)
                .then_some("a key cannot hold this list: it is empty, or its items differ in kind")
        }
        Scalar::Map(_) => Some("a key cannot hold a map"),
        _ => None,
    };
    match why {
        None => Ok(Some(value)),
        Some(why) => Err(Finding::error(&entry.value.at, why)
            .help("a key holds a number, a boolean, text, or a list of one of them")
            .into()),
    }
}

/// Returns the kind of an item; none if no list of a key can hold it.
fn item_kind(value: &Scalar) -> Option<&'static str> {
    match value {
        Scalar::Bool(_) => Some("boolean"),
        Scalar::Int(_) | Scalar::Float(_) => Some("number"),
        Scalar::Str(_) => Some("text"),
        Scalar::Null | Scalar::List(_) | Scalar::Map(_) => None,
    }
}

/// Returns the numbers of a tensor; null is none.
fn numbers(value: &Scalar, entry: &GgufEntry) -> Result<Option<Vec<f32>>, EvalError> {
    let numbers: Option<Vec<f32>> = match value {
        Scalar::Null => return Ok(None),
        Scalar::List(items) => items.iter().map(|x| x.as_f64().map(|x| x as f32)).collect(),
        _ => None,
    };
    numbers.map(Some).ok_or_else(|| {
        Finding::error(&entry.value.at, "a tensor is a list of numbers")
            .label(expected("a list of numbers", value))
            .into()
    })
}

/// Returns the rules of an entry; none if it does not count in this model.
fn rules_of(decl: &GgufWeight, env: &dyn Env) -> Result<Vec<TensorRule>, EvalError> {
    let reads_layer = decl.steps.iter().chain(&decl.when).any(|expr| expr.mentions(LAYER));
    if reads_layer && decl.weight.name.contains(LAYER_HOLE) {
        return rules_of_layers(decl, env);
    }
    if !applies(decl, env)? {
        return Ok(Vec::new());
    }
    let Some((layers, first)) = &decl.layers else {
        return Ok(vec![rule(decl, &decl.weight, &decl.name, env)?]);
    };
    let layers = layer_count(layers, env)?;
    let first = layer_count(first, env)?;
    (0..layers)
        .map(|n| {
            let weight = numbered(&decl.weight, "{n}", n);
            let name = numbered(&decl.name, "{n}", first + n);
            rule(decl, &weight, &name, &LayerEnv::new(env, "n", n))
        })
        .collect()
}

/// Returns true if the entry has no condition, or meets it.
fn applies(decl: &GgufWeight, env: &dyn Env) -> Result<bool, EvalError> {
    match &decl.when {
        Some(when) => Ok(eval::truth(&eval::eval_owned(when, env)?)),
        None => Ok(true),
    }
}

/// Returns the rules of an entry that reads the number of the layer: one for each layer that it applies to.
fn rules_of_layers(decl: &GgufWeight, env: &dyn Env) -> Result<Vec<TensorRule>, EvalError> {
    let mut rules = Vec::new();
    for i in 0..count_of_layers(&decl.name, env)? {
        let layer = LayerEnv::new(env, LAYER, i);
        if applies(decl, &layer)? {
            let weight = numbered(&decl.weight, LAYER_HOLE, i);
            let name = numbered(&decl.name, LAYER_HOLE, i);
            rules.push(rule(decl, &weight, &name, &layer)?);
        }
    }
    Ok(rules)
}

/// Evaluates a number of layers.
fn layer_count(expr: &Expr, env: &dyn Env) -> Result<i64, EvalError> {
    match eval::eval_owned(expr, env)? {
        Scalar::Int(n @ 0..=MOST_LAYERS) => Ok(n),
        other => Err(EvalError::from(
            Finding::error(&expr.at, "this is no number of layers")
                .label(expected(&format!("an integer up to {MOST_LAYERS}"), &other)),
        )),
    }
}

/// Puts a number in the place of a hole.
fn numbered(ident: &Ident, hole: &str, n: i64) -> Ident {
    Ident { name: ident.name.replace(hole, &n.to_string()), ..ident.clone() }
}

/// Builds the rule for one pattern of the model and one of the file.
fn rule(
    decl: &GgufWeight,
    weight: &Ident,
    name: &Ident,
    env: &dyn Env,
) -> Result<TensorRule, EvalError> {
    let mut names = (weight.clone(), name.clone());
    if !decl.exact {
        for ident in [&mut names.0, &mut names.1] {
            ident.name.push_str(".{weight|bias}");
        }
    }
    Ok(TensorRule {
        rule: WeightRule {
            disk: pattern(&names.0)?,
            weight: pattern(&names.1)?,
            steps: decl.steps.iter().map(|expr| step(expr, env)).collect::<Result<_, _>>()?,
            at: decl.at.clone(),
        },
        ty: decl.ty.as_ref().map(|ident| ident.name.clone()),
    })
}
