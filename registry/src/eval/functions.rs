//! The functions that expressions can call.

use std::borrow::Cow;

use super::operators::{Number, capped, finite, order, repeat, too_large};
use super::{expected, truth};
use crate::config::Config;
use crate::diag::{Finding, Span};
use crate::ngram::hash_factors;
use crate::normal::quantile;
use crate::scalar::Scalar;
use crate::suggest;
use crate::syntax::Ident;

/// Their names.
pub const NAMES: &[&str] = &[
    "abs",
    "all",
    "any",
    "bf16",
    "ceil",
    "config",
    "exp",
    "f32",
    "fill",
    "float",
    "floor",
    "get",
    "has",
    "hash_factors",
    "int",
    "len",
    "listed",
    "log",
    "map",
    "max",
    "min",
    "primes",
    "quantile",
    "range",
    "repeat",
    "round",
    "round_up",
    "sqrt",
    "sum",
];

/// The arguments of a call.
struct BuiltinCall<'a> {
    name: &'a str,
    args: &'a [Cow<'a, Scalar>],
    at: &'a Span,
}

impl BuiltinCall<'_> {
    fn arity(&self, least: usize, largest: usize) -> Result<(), Finding> {
        let n = self.args.len();
        if n >= least && n <= largest {
            return Ok(());
        }
        let takes =
            if least == largest { least.to_string() } else { format!("{least} to {largest}") };
        Err(Finding::error(
            self.at,
            format!("`{}` is given {n} arguments and takes {takes}", self.name),
        ))
    }

    fn wrong(&self, what: &str, n: usize) -> Finding {
        Finding::error(self.at, format!("`{}` needs {what}", self.name))
            .label(expected(what, &self.args[n]))
    }

    fn number(&self, n: usize) -> Result<Number, Finding> {
        Number::of(&self.args[n]).ok_or_else(|| self.wrong("a number", n))
    }

    fn int(&self, n: usize) -> Result<i64, Finding> {
        match self.number(n)? {
            Number::Int(value) => Ok(value),
            Number::Float(_) => Err(self.wrong("an integer", n)),
        }
    }

    fn size(&self, n: usize) -> Result<usize, Finding> {
        usize::try_from(self.int(n)?).map_err(|_| self.wrong("a number of 0 or more", n))
    }

    /// Builds a map of keys and values in turn.
    fn map(&self) -> Result<Scalar, Finding> {
        let mut entries: Vec<(String, Scalar)> = Vec::new();
        for n in (0..self.args.len()).step_by(2) {
            let key = self.text(n)?;
            let Some(value) = self.args.get(n + 1) else {
                let message = "`map` needs a value for each key";
                return Err(Finding::error(self.at, message).label(format!("`{key}` has none")));
            };
            if entries.iter().any(|(other, _)| other == key) {
                return Err(Finding::error(self.at, format!("`map` is given `{key}` twice")));
            }
            entries.push((key.to_owned(), value.clone().into_owned()));
        }
        Ok(Scalar::Map(entries))
    }

    fn list(&self, n: usize) -> Result<&[Scalar], Finding> {
        match &*self.args[n] {
            Scalar::List(items) => Ok(items),
            _ => Err(self.wrong("a list", n)),
        }
    }

    fn text(&self, n: usize) -> Result<&str, Finding> {
        match &*self.args[n] {
            Scalar::Str(text) => Ok(text),
            _ => Err(self.wrong("a text", n)),
        }
    }

    /// Converts a float to an integer, as `int()`, `floor()` and their like give it.
    fn whole(&self, x: f64) -> Result<Scalar, Finding> {
        // Exclusive above: `i64::MAX as f64` is one more than the largest.
        if x >= i64::MIN as f64 && x < i64::MAX as f64 {
            Ok(Scalar::Int(x as i64))
        } else {
            Err(too_large(self.at))
        }
    }

    fn rounded(&self, round: fn(f64) -> f64) -> Result<Scalar, Finding> {
        self.arity(1, 1)?;
        match self.number(0)? {
            Number::Int(n) => Ok(Scalar::Int(n)),
            Number::Float(x) => self.whole(round(x)),
        }
    }

    fn float(&self, of: fn(f64) -> f64) -> Result<Scalar, Finding> {
        self.arity(1, 1)?;
        finite(of(self.number(0)?.float()), self.at)
    }
}

pub(super) fn call(
    name: &Ident,
    args: &[Cow<'_, Scalar>],
    at: &Span,
    config: &Config,
) -> Result<Scalar, Finding> {
    let call = BuiltinCall { name: &name.name, args, at };
    match name.name.as_str() {
        "min" => extreme(&call, std::cmp::Ordering::Less),
        "max" => extreme(&call, std::cmp::Ordering::Greater),
        "abs" => {
            call.arity(1, 1)?;
            match call.number(0)? {
                Number::Int(n) => n.checked_abs().map(Scalar::Int).ok_or_else(|| too_large(at)),
                Number::Float(x) => Ok(Scalar::Float(x.abs())),
            }
        }
        "int" => call.rounded(f64::trunc),
        "floor" => call.rounded(f64::floor),
        "ceil" => call.rounded(f64::ceil),
        // Python rounds halves to even.
        "round" => call.rounded(f64::round_ties_even),
        "float" => call.float(|x| x),
        "f32" => call.float(|x| f64::from(x as f32)),
        "bf16" => call.float(|x| f64::from(to_bf16(x as f32))),
        "sqrt" => call.float(f64::sqrt),
        "exp" => call.float(f64::exp),
        // At 0 and 1 the quantile is infinite.
        "quantile" => {
            call.arity(1, 1)?;
            Ok(Scalar::Float(quantile(call.number(0)?.float())))
        }
        "log" => {
            call.arity(1, 2)?;
            let log = call.number(0)?.float().ln();
            finite(if args.len() == 2 { log / call.number(1)?.float().ln() } else { log }, at)
        }
        "round_up" => round_up(&call),
        "primes" => primes(&call),
        "hash_factors" => factors(&call),
        "fill" => fill(&call),
        "range" => range(&call),
        "len" => {
            call.arity(1, 1)?;
            match &*args[0] {
                Scalar::Str(text) => Ok(Scalar::Int(text.chars().count() as i64)),
                Scalar::Map(entries) => Ok(Scalar::Int(entries.len() as i64)),
                _ => call.list(0).map(|items| Scalar::Int(items.len() as i64)),
            }
        }
        "sum" => {
            call.arity(1, 1)?;
            call.list(0)?.iter().try_fold(Scalar::Int(0), |sum, item| {
                super::binary(crate::syntax::BinaryOp::Add, &sum, item, at)
            })
        }
        "any" => {
            call.arity(1, 1)?;
            Ok(Scalar::Bool(call.list(0)?.iter().any(truth)))
        }
        "all" => {
            call.arity(1, 1)?;
            Ok(Scalar::Bool(call.list(0)?.iter().all(truth)))
        }
        "listed" => {
            call.arity(2, 2)?;
            match &*args[0] {
                list @ Scalar::List(_) => Ok(list.clone()),
                one => repeat(&Scalar::List(vec![one.clone()]), call.int(1)?, at),
            }
        }
        "repeat" => {
            call.arity(2, 2)?;
            repeat(&args[0], call.int(1)?, at)
        }
        "config" => {
            call.arity(1, 2)?;
            read(&call, config)
        }
        "get" => {
            call.arity(3, 3)?;
            Ok(entry(&args[0], &args[1]).unwrap_or(&args[2]).clone())
        }
        "map" => call.map(),
        "has" => {
            call.arity(1, 1)?;
            Ok(Scalar::Bool(config.get(call.text(0)?).is_some()))
        }
        _ => {
            let mut finding =
                Finding::error(&name.at, format!("there is no function `{}`", name.name));
            finding.help = suggest::help(&name.name, NAMES.iter().copied());
            Err(finding)
        }
    }
}

/// Returns the value of a map under a key; an integer key is looked up by its decimal text.
fn entry<'a>(map: &'a Scalar, key: &Scalar) -> Option<&'a Scalar> {
    let Scalar::Map(entries) = map else { return None };
    let name = match key {
        Scalar::Int(n) => n.to_string(),
        Scalar::Str(text) => text.clone(),
        _ => return None,
    };
    entries
        .iter()
        .find(|(key, value)| *key == name && *value != Scalar::Null)
        .map(|(_, value)| value)
}

fn extreme(call: &BuiltinCall<'_>, ordering: std::cmp::Ordering) -> Result<Scalar, Finding> {
    let items: Vec<&Scalar> = match call.args {
        [list] => match &**list {
            Scalar::List(items) => items.iter().collect(),
            _ => return Err(call.wrong("a list, or several numbers", 0)),
        },
        args => args.iter().map(Cow::as_ref).collect(),
    };
    let Some((&first, remaining)) = items.split_first() else {
        return Err(Finding::error(call.at, format!("`{}` of nothing", call.name)));
    };
    let mut best = first;
    for item in remaining {
        match order(item, best) {
            Some(order) if order == ordering => best = item,
            Some(_) => {}
            None => {
                return Err(Finding::error(
                    call.at,
                    format!("cannot compare {} with {}", item.kind(), best.kind()),
                ));
            }
        }
    }
    Ok(best.clone())
}

/// Rounds to the nearest number whose lower 16 bits are zeros, ties to even.
fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Fills each `{}` of a text with the next argument.
fn fill(call: &BuiltinCall<'_>) -> Result<Scalar, Finding> {
    call.arity(1, 9)?;
    let mut pieces = call.text(0)?.split("{}");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut values = call.args.iter().skip(1);
    for piece in pieces {
        match values.next().map(|value| &**value) {
            Some(Scalar::Str(value)) => text.push_str(value),
            Some(Scalar::Int(value)) => text.push_str(&value.to_string()),
            _ => return Err(call.wrong("a text, then a text or integer for each `{}`", 0)),
        }
        text.push_str(piece);
        if text.len() > super::MAX_ITEMS {
            return Err(too_large(call.at));
        }
    }
    Ok(Scalar::Str(text))
}

fn round_up(call: &BuiltinCall<'_>) -> Result<Scalar, Finding> {
    call.arity(2, 2)?;
    let x = call.int(0)?;
    let m = call.int(1)?;
    if m <= 0 {
        return Err(Finding::error(call.at, "`round_up` needs a multiple above 0")
            .label(format!("this is {m}")));
    }
    let up = (m - x.rem_euclid(m)) % m;
    x.checked_add(up).map(Scalar::Int).ok_or_else(|| too_large(call.at))
}

/// The most divisions that a search of primes may take.
const MAX_DIVISIONS: i64 = 1 << 28;

/// Lists the first prime numbers from a number on.
fn primes(call: &BuiltinCall<'_>) -> Result<Scalar, Finding> {
    call.arity(2, 2)?;
    let first = call.int(0)?;
    let count = call.size(1)?;
    capped(count, call.at)?;
    let mut numbers = Vec::new();
    let mut divisions = MAX_DIVISIONS;
    let mut candidate = first.max(2);
    while numbers.len() < count {
        let root = (candidate as f64).sqrt() as i64 + 1;
        divisions -= root;
        if divisions < 0 {
            return Err(Finding::error(call.at, "these primes are too large to be searched")
                .label(format!("{count} from {first} on"))
                .help("give a smaller start, or fewer primes"));
        }
        if (2..=root).all(|divisor| divisor >= candidate || candidate % divisor != 0) {
            numbers.push(Scalar::Int(candidate));
        }
        candidate = candidate.checked_add(1).ok_or_else(|| too_large(call.at))?;
    }
    Ok(Scalar::List(numbers))
}

/// Lists the factors of tokens in hashes of n-grams.
fn factors(call: &BuiltinCall<'_>) -> Result<Scalar, Finding> {
    call.arity(3, 3)?;
    let vocab = call.size(1)?;
    let count = call.size(2)?;
    capped(count, call.at)?;
    let factors = hash_factors(call.int(0)?, vocab, count);
    Ok(Scalar::List(factors.into_iter().map(Scalar::Int).collect()))
}

fn range(call: &BuiltinCall<'_>) -> Result<Scalar, Finding> {
    call.arity(1, 3)?;
    let (from, to) =
        if call.args.len() == 1 { (0, call.int(0)?) } else { (call.int(0)?, call.int(1)?) };
    let step = if call.args.len() == 3 { call.int(2)? } else { 1 };
    if step == 0 {
        return Err(Finding::error(call.at, "the step of `range` is 0"));
    }
    let from = i128::from(from);
    let to = i128::from(to);
    let step = i128::from(step);
    let count =
        if step > 0 { (to - from + step - 1) / step } else { (from - to - step - 1) / -step };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    capped(count, call.at)?;
    // Every item lies between two i64.
    Ok(Scalar::List((0..count as i128).map(|n| Scalar::Int((from + n * step) as i64)).collect()))
}

fn read(call: &BuiltinCall<'_>, config: &Config) -> Result<Scalar, Finding> {
    let key = call.text(0)?;
    match (config.get(key), call.args.get(1)) {
        (None | Some(Scalar::Null), Some(default)) => Ok(default.as_ref().clone()),
        (Some(value), _) => Ok(value.clone()),
        (None, None) => {
            let keys = config.keys();
            let mut finding =
                Finding::error(call.at, format!("`{}` has no key `{key}`", config.path()));
            finding.help = suggest::closest(key, keys.iter().map(String::as_str))
                .map(|close| format!("did you mean `{close}`?"))
                .or_else(|| Some(format!("give a default: `config('{key}', 0)`")));
            Err(finding)
        }
    }
}
