//! The `weights:` section: rules as text become rules as data.
//!
//! Steps are words (`transpose`) and calls (`split(0, 3)`, `reshape([n, d])`); their
//! arguments are expressions over the dims.

use crate::diag::{Finding, Span};
use crate::eval::{self, Env, EvalError, expected};
use crate::scalar::Scalar;
use crate::spec::{Spec, WeightRuleDecl};
use crate::suggest;
use crate::syntax::{Arg, Expr, ExprKind, Ident};
use crate::weight_map::{HeadLayout, Pattern, SplitSizes, WeightRule, WeightStep};

use super::FindingSet;

/// Each step, and how it is written.
const STEPS: &[(&str, &str)] = &[
    ("add", "add(number)"),
    ("at", "at(n, step)"),
    ("concat", "concat(axis) or concat(axis, [tensors in each run])"),
    ("div", "div(number)"),
    ("flatten", "flatten(axis)"),
    ("log_neg", "log_neg"),
    ("mul", "mul(number)"),
    ("mul_rows", "mul_rows([sizes], [numbers])"),
    ("mxfp4", "mxfp4"),
    ("neg_exp", "neg_exp"),
    ("permute_heads", "permute_heads(heads, 'half' or 'interleaved')"),
    ("reshape", "reshape([sizes])"),
    ("resize", "resize(rows)"),
    ("reverse", "reverse(axis)"),
    ("split", "split(axis, parts or [sizes])"),
    ("squeeze", "squeeze(axis)"),
    ("stack", "stack(axis)"),
    ("transpose", "transpose or transpose(a, b)"),
    ("unflatten", "unflatten(axis, [sizes])"),
    ("unsqueeze", "unsqueeze(axis)"),
    ("unstack", "unstack(axis)"),
];

/// The most axes of a tensor.
const MAX_AXIS: usize = 8;

/// Resolves every rule; those that are faulty are left out and reported.
pub(super) fn resolve(spec: &Spec, env: &dyn Env, report: &mut FindingSet) -> Vec<WeightRule> {
    let mut rules = Vec::new();
    for decl in &spec.weights {
        match rule(decl, env) {
            Ok(rule) => rules.push(rule),
            Err(fail) => report.fail(fail),
        }
    }
    rules
}

fn rule(decl: &WeightRuleDecl, env: &dyn Env) -> Result<WeightRule, EvalError> {
    Ok(WeightRule {
        disk: pattern(&decl.disk)?,
        weight: pattern(&decl.weight)?,
        steps: decl.steps.iter().map(|expr| step(expr, env)).collect::<Result<_, _>>()?,
        at: decl.at.clone(),
    })
}

pub(super) fn pattern(ident: &Ident) -> Result<Pattern, Finding> {
    Pattern::parse(&ident.name).map_err(|why| {
        Finding::error(&ident.at, format!("the pattern `{}` is not understood", ident.name))
            .label(why.to_string())
    })
}

pub(super) fn step(expr: &Expr, env: &dyn Env) -> Result<WeightStep, EvalError> {
    let (name, args): (&Ident, &[Arg]) = match &expr.kind {
        ExprKind::Path(names) if names.len() == 1 => (&names[0], &[]),
        ExprKind::Call(name, args) => (name, args),
        _ => return Err(Finding::error(&expr.at, "a step is a word or a call").into()),
    };
    let Some((_, usage)) = STEPS.iter().find(|(step, _)| *step == name.name) else {
        let mut finding = Finding::error(&name.at, format!("there is no step `{}`", name.name));
        finding.help = suggest::help(&name.name, STEPS.iter().map(|(step, _)| *step));
        return Err(finding.into());
    };
    // `at` takes a step, which is no value.
    if let ("at", [n, inner]) = (name.name.as_str(), args) {
        let n = eval::eval_owned(&n.value, env)?;
        let call = StepCall { args: &[n], at: &expr.at, usage };
        return Ok(WeightStep::At(call.axis(0)?, Box::new(step(&inner.value, env)?)));
    }
    let args =
        args.iter().map(|arg| eval::eval_owned(&arg.value, env)).collect::<Result<Vec<_>, _>>()?;
    let call = StepCall { args: &args, at: &expr.at, usage };
    let step = match name.name.as_str() {
        "transpose" if args.is_empty() => Ok(WeightStep::Transpose(0, 1)),
        "transpose" => {
            call.exactly(2).and_then(|()| Ok(WeightStep::Transpose(call.axis(0)?, call.axis(1)?)))
        }
        "reverse" => call.exactly(1).and_then(|()| Ok(WeightStep::Reverse(call.axis(0)?))),
        "split" => call
            .exactly(2)
            .and_then(|()| Ok(WeightStep::Split { axis: call.axis(0)?, sizes: call.sizes(1)? })),
        "reshape" => call.exactly(1).and_then(|()| match call.sizes(0)? {
            SplitSizes::Each(sizes) => Ok(WeightStep::Reshape(sizes)),
            SplitSizes::Equal(size) => Ok(WeightStep::Reshape(vec![size])),
        }),
        "mxfp4" => call.exactly(0).map(|()| WeightStep::Mxfp4),
        "neg_exp" => call.exactly(0).map(|()| WeightStep::NegExp),
        "log_neg" => call.exactly(0).map(|()| WeightStep::LogNeg),
        "add" => call.exactly(1).and_then(|()| Ok(WeightStep::Add(call.number(0)?))),
        "mul" => call.exactly(1).and_then(|()| Ok(WeightStep::Mul(call.number(0)?))),
        "div" => call.exactly(1).and_then(|()| Ok(WeightStep::Div(call.number(0)?))),
        "resize" => call.exactly(1).and_then(|()| Ok(WeightStep::Resize(call.size(0)?))),
        "unflatten" => call.exactly(2).and_then(|()| match call.sizes(1)? {
            SplitSizes::Each(sizes) => Ok(WeightStep::Unflatten { axis: call.axis(0)?, sizes }),
            SplitSizes::Equal(_) => Err(call.wrong(expected("a list of sizes", &args[1]))),
        }),
        "mul_rows" => call.exactly(2).and_then(|()| match (call.sizes(0)?, &args[1]) {
            (SplitSizes::Each(sizes), Scalar::List(numbers)) if sizes.len() == numbers.len() => {
                let numbers: Option<Vec<f64>> = numbers.iter().map(Scalar::as_f64).collect();
                let numbers =
                    numbers.ok_or_else(|| call.wrong(expected("a list of numbers", &args[1])))?;
                Ok(WeightStep::MulRows(sizes.into_iter().zip(numbers).collect()))
            }
            _ => Err(call.wrong("the lists differ in length".to_owned())),
        }),
        "concat" if args.len() == 2 => match call.sizes(1)? {
            SplitSizes::Each(runs) => Ok(WeightStep::ConcatRuns { axis: call.axis(0)?, runs }),
            SplitSizes::Equal(_) => Err(call.wrong(expected("a list of counts", &args[1]))),
        },
        "permute_heads" => call.exactly(2).and_then(|()| {
            Ok(WeightStep::PermuteHeads { heads: call.size(0)?, to: call.layout(1)? })
        }),
        one => call.exactly(1).and_then(|()| {
            let axis = call.axis(0)?;
            Ok(match one {
                "squeeze" => WeightStep::Squeeze(axis),
                "unsqueeze" => WeightStep::Unsqueeze(axis),
                "unstack" => WeightStep::Unstack(axis),
                "concat" => WeightStep::Concat(axis),
                "flatten" => WeightStep::Flatten(axis),
                _ => WeightStep::Stack(axis),
            })
        }),
    }?;
    Ok(step)
}

struct StepCall<'a> {
    args: &'a [Scalar],
    at: &'a Span,
    usage: &'a str,
}

impl StepCall<'_> {
    fn wrong(&self, label: String) -> Finding {
        Finding::error(self.at, "the step is not understood")
            .label(label)
            .help(format!("write `{}`", self.usage))
    }

    fn exactly(&self, count: usize) -> Result<(), Finding> {
        if self.args.len() == count {
            Ok(())
        } else {
            Err(self.wrong(format!("it has {} arguments", self.args.len())))
        }
    }

    fn axis(&self, n: usize) -> Result<usize, Finding> {
        let value = &self.args[n];
        value
            .as_usize()
            .filter(|axis| *axis < MAX_AXIS)
            .ok_or_else(|| self.wrong(expected("an axis, from 0", value)))
    }

    fn number(&self, n: usize) -> Result<f64, Finding> {
        let value = &self.args[n];
        value.as_f64().ok_or_else(|| self.wrong(expected("a number", value)))
    }

    fn size(&self, n: usize) -> Result<usize, Finding> {
        let value = &self.args[n];
        value
            .as_usize()
            .filter(|size| *size > 0)
            .ok_or_else(|| self.wrong(expected("a number above 0", value)))
    }

    fn sizes(&self, n: usize) -> Result<SplitSizes, Finding> {
        match &self.args[n] {
            Scalar::List(items) => {
                let sizes: Option<Vec<usize>> = items.iter().map(Scalar::as_usize).collect();
                sizes
                    .map(SplitSizes::Each)
                    .ok_or_else(|| self.wrong(expected("a list of sizes", &self.args[n])))
            }
            _ => self.size(n).map(SplitSizes::Equal),
        }
    }

    fn layout(&self, n: usize) -> Result<HeadLayout, Finding> {
        match &self.args[n] {
            Scalar::Str(word) if word == "half" => Ok(HeadLayout::Half),
            Scalar::Str(word) if word == "interleaved" => Ok(HeadLayout::Interleaved),
            other => Err(self.wrong(expected("'half' or 'interleaved'", other))),
        }
    }
}
