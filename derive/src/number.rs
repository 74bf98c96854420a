//! Numbers and words of a class as expressions over its config.

use std::fmt;

use serde_json::Value as Json;

/// An expression that a class computed from its config.
#[derive(Debug, Clone, PartialEq)]
pub enum Number {
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Real(f64),
    /// A truth value.
    Bool(bool),
    /// A word.
    Word(String),
    /// Nothing.
    None,
    /// A key of the config, with dots between nested ones.
    Config(String),
    /// An operator or function with its operands.
    Apply(String, Vec<Self>),
    /// Something the record does not explain.
    Unknown(String),
}

impl Number {
    /// Reads the form that the recorder writes: `["config", key]`, `["value", literal]`, `[operator, operands..]`.
    pub fn parse(json: &Json) -> Self {
        let Some(items) = json.as_array() else { return Self::literal(json) };
        let Some(head) = items.first().and_then(Json::as_str) else {
            return Self::Unknown("list".to_owned());
        };
        match (head, items.get(1)) {
            // Keys are looked up in the config of the text model first.
            ("config", Some(Json::String(key))) => {
                Self::Config(key.strip_prefix("text_config.").unwrap_or(key).to_owned())
            }
            ("value", Some(literal)) => Self::literal(literal),
            ("key", Some(inner)) => match (Self::parse(inner), items.get(2).and_then(Json::as_str))
            {
                (Self::Config(path), Some(key)) => Self::Config(format!("{path}.{key}")),
                _ => Self::Unknown("key".to_owned()),
            },
            ("unknown", Some(kind)) => Self::Unknown(kind.as_str().unwrap_or_default().to_owned()),
            _ => Self::Apply(head.to_owned(), items.iter().skip(1).map(Self::parse).collect())
                .simplified(),
        }
    }

    fn literal(json: &Json) -> Self {
        match json {
            Json::Null => Self::None,
            Json::Bool(truth) => Self::Bool(*truth),
            Json::String(word) => match word.as_str() {
                "inf" => Self::Real(f64::INFINITY),
                "-inf" => Self::Real(f64::NEG_INFINITY),
                _ => Self::Word(word.clone()),
            },
            Json::Number(number) => number
                .as_i64()
                .map_or_else(|| Self::Real(number.as_f64().unwrap_or(f64::NAN)), Self::Int),
            _ => Self::Unknown("literal".to_owned()),
        }
    }

    /// Applies an operator and simplifies the result.
    pub fn apply(operator: &str, operands: Vec<Self>) -> Self {
        Self::Apply(operator.to_owned(), operands).simplified()
    }

    /// Rewrites that hold for sizes: conversions of whole numbers, factors that cancel, constants.
    fn simplified(self) -> Self {
        let Self::Apply(operator, operands) = self else { return self };
        if let Some(constant) = fold(&operator, &operands) {
            return constant;
        }
        if operator == "+" || operator == "-" {
            return sum(&operator, &operands);
        }
        match (operator.as_str(), operands.as_slice()) {
            ("//", [numerator, Self::Apply(quotient, parts)])
                if quotient == "//" && parts.len() == 2 && parts[0] == *numerator =>
            {
                parts[1].clone()
            }
            ("int", [inner]) if inner.is_whole() => inner.clone(),
            ("*", [Self::Int(1), other]) | ("*" | "//" | "**", [other, Self::Int(1)]) => {
                other.clone()
            }
            ("+", [Self::Int(0), other]) | ("+" | "-", [other, Self::Int(0)]) => other.clone(),
            ("//", [Self::Apply(product, factors), divisor])
                if product == "*" && factors.len() == 2 && factors.contains(divisor) =>
            {
                if factors[1] == *divisor { factors[0].clone() } else { factors[1].clone() }
            }
            ("//", [numerator, divisor]) if numerator == divisor => Self::Int(1),
            _ => Self::Apply(operator, operands),
        }
    }

    fn is_whole(&self) -> bool {
        match self {
            Self::Int(_) | Self::Config(_) => true,
            Self::Apply(operator, _)
                if ["//", "int", "floor", "ceil"].contains(&operator.as_str()) =>
            {
                true
            }
            Self::Apply(operator, operands) => {
                ["+", "-", "%"].contains(&operator.as_str()) && operands.iter().all(Self::is_whole)
            }
            _ => false,
        }
    }

    /// Returns the value of the number under a config.
    pub fn evaluate(&self, config: &Json) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Real(number) => Some(*number),
            Self::Bool(truth) => Some(f64::from(u8::from(*truth))),
            Self::Config(path) => match look_up(config, path)? {
                Json::Bool(truth) => Some(f64::from(u8::from(*truth))),
                other => other.as_f64(),
            },
            Self::Apply(operator, operands)
                if ["in", "item", "==", "!="].contains(&operator.as_str()) =>
            {
                compare(operator, operands, config)
            }
            Self::Apply(operator, operands) => {
                let values: Vec<f64> = operands
                    .iter()
                    .map(|operand| operand.evaluate(config))
                    .collect::<Option<_>>()?;
                compute(operator, &values)
            }
            Self::Word(_) | Self::None | Self::Unknown(_) => None,
        }
    }

    /// Returns the word that the number is under a config.
    pub fn word(&self, config: &Json) -> Option<String> {
        match self {
            Self::Word(word) => Some(word.clone()),
            Self::Config(path) => look_up(config, path)?.as_str().map(str::to_owned),
            Self::Apply(operator, operands) if operator == "item" => {
                let Self::Config(path) = &operands[0] else { return None };
                let place = operands[1].evaluate(config)?;
                look_up(config, path)?.as_array()?.get(place as usize)?.as_str().map(str::to_owned)
            }
            _ => None,
        }
    }

    /// Puts another number in the place of each whole number literal that a test accepts.
    #[must_use]
    pub fn replaced(&self, literal: i64, with: &Self) -> Self {
        match self {
            Self::Int(value) if *value == literal => with.clone(),
            Self::Apply(operator, operands) => Self::Apply(
                operator.clone(),
                operands.iter().map(|operand| operand.replaced(literal, with)).collect(),
            ),
            other => other.clone(),
        }
    }

    /// Names the layer's number where an item of a list is that of the layer.
    #[must_use]
    pub fn of_layer(&self, layer: i64) -> Self {
        match self {
            Self::Apply(operator, operands)
                if operator == "item" && operands.get(1) == Some(&Self::Int(layer)) =>
            {
                Self::Apply(
                    operator.clone(),
                    vec![operands[0].clone(), Self::Config("i".to_owned())],
                )
            }
            Self::Apply(operator, operands) => Self::Apply(
                operator.clone(),
                operands.iter().map(|operand| operand.of_layer(layer)).collect(),
            ),
            other => other.clone(),
        }
    }

    /// Names the layer's number where it is divided.
    #[must_use]
    pub fn counting_layers(&self, layer: i64) -> Self {
        match self {
            Self::Apply(operator, operands)
                if operator == "//" && operands.first() == Some(&Self::Int(layer)) =>
            {
                let mut operands = operands.clone();
                operands[0] = Self::Config("i".to_owned());
                Self::Apply(operator.clone(), operands)
            }
            Self::Apply(operator, operands) => Self::Apply(
                operator.clone(),
                operands.iter().map(|operand| operand.counting_layers(layer)).collect(),
            ),
            other => other.clone(),
        }
    }

    /// The test of one layer.
    #[must_use]
    pub fn at_layer(&self, layer: i64) -> Self {
        match self {
            Self::Config(key) if key == "i" => Self::Int(layer),
            Self::Apply(operator, operands) => Self::Apply(
                operator.clone(),
                operands.iter().map(|operand| operand.at_layer(layer)).collect(),
            )
            .simplified(),
            other => other.clone(),
        }
    }

    /// Collects the whole number literals.
    pub fn literals(&self, literals: &mut Vec<i64>) {
        match self {
            Self::Int(value) if !literals.contains(value) => literals.push(*value),
            Self::Apply(_, operands) => {
                for operand in operands {
                    operand.literals(literals);
                }
            }
            _ => {}
        }
    }

    /// Collects the config keys that the number reads.
    pub fn keys(&self, keys: &mut Vec<String>) {
        match self {
            Self::Config(path) if !keys.contains(path) => keys.push(path.clone()),
            Self::Apply(_, operands) => operands.iter().for_each(|operand| operand.keys(keys)),
            _ => {}
        }
    }

    /// Is true if the number reads a key that begins so.
    pub fn reads(&self, beginning: &str) -> bool {
        let mut keys = Vec::new();
        self.keys(&mut keys);
        keys.iter().any(|key| key.starts_with(beginning))
    }

    /// Is true if the number reads the config.
    pub fn is_symbolic(&self) -> bool {
        let mut keys = Vec::new();
        self.keys(&mut keys);
        !keys.is_empty()
    }
}

/// Tests and items of lists, whose operands may be words.
fn compare(operator: &str, operands: &[Number], config: &Json) -> Option<f64> {
    let [left, right] = operands else { return None };
    let truth = |truth: bool| Some(f64::from(u8::from(truth)));
    match operator {
        "in" => {
            let value = left.evaluate(config)?;
            let Number::Config(path) = right else { return None };
            truth(
                look_up(config, path)?.as_array()?.iter().any(|item| item.as_f64() == Some(value)),
            )
        }
        "item" => {
            let place = right.evaluate(config)?;
            let Number::Config(path) = left else { return None };
            let item = look_up(config, path)?.as_array()?.get(place as usize)?;
            item.as_bool().map(|truth| f64::from(u8::from(truth))).or_else(|| item.as_f64())
        }
        _ => {
            let same = match (left.word(config), right.word(config)) {
                (Some(one), Some(other)) => one == other,
                _ => left.evaluate(config)? == right.evaluate(config)?,
            };
            truth(same == (operator == "=="))
        }
    }
}

/// Returns the value at a dotted path.
pub fn look_up<'j>(config: &'j Json, path: &str) -> Option<&'j Json> {
    let find = |json| path.split('.').try_fold(json, |json: &Json, key| json.get(key));
    config.get("text_config").and_then(find).or_else(|| find(config))
}

/// A sum with equal terms joined.
fn sum(operator: &str, operands: &[Number]) -> Number {
    let mut terms: Vec<(i64, Number)> = Vec::new();
    for (place, operand) in operands.iter().enumerate() {
        collect_terms(operand, if place > 0 && operator == "-" { -1 } else { 1 }, &mut terms);
    }
    let literal: i64 = terms
        .iter()
        .filter_map(|(factor, term)| match term {
            Number::Int(value) => Some(factor * value),
            _ => None,
        })
        .sum();
    terms.retain(|(factor, term)| *factor != 0 && !matches!(term, Number::Int(_)));
    terms.sort_by_key(|(factor, _)| *factor < 0);
    let mut result: Option<Number> = None;
    for (factor, term) in terms {
        let size = factor.abs();
        let scaled = if size == 1 {
            term
        } else {
            Number::Apply("*".to_owned(), vec![Number::Int(size), term])
        };
        result = Some(match result {
            None if factor < 0 => Number::Apply("neg".to_owned(), vec![scaled]),
            None => scaled,
            Some(sum) => {
                Number::Apply(if factor < 0 { "-" } else { "+" }.to_owned(), vec![sum, scaled])
            }
        });
    }
    match (result, literal) {
        (None, value) => Number::Int(value),
        (Some(sum), 0) => sum,
        (Some(sum), value) => Number::Apply(
            if value < 0 { "-" } else { "+" }.to_owned(),
            vec![sum, Number::Int(value.abs())],
        ),
    }
}

fn collect_terms(number: &Number, factor: i64, terms: &mut Vec<(i64, Number)>) {
    match number {
        Number::Apply(operator, operands)
            if (operator == "+" || operator == "-") && operands.len() == 2 =>
        {
            collect_terms(&operands[0], factor, terms);
            collect_terms(&operands[1], if operator == "-" { -factor } else { factor }, terms);
        }
        Number::Apply(operator, operands)
            if operator == "*"
                && matches!(operands.first(), Some(Number::Int(_)))
                && operands.len() == 2 =>
        {
            if let Number::Int(times) = operands[0] {
                collect_terms(&operands[1], factor * times, terms);
            }
        }
        other => match terms
            .iter_mut()
            .find(|(_, known)| known == other && !matches!(known, Number::Int(_)))
        {
            Some((known, _)) => *known += factor,
            None => terms.push((factor, other.clone())),
        },
    }
}

fn fold(operator: &str, operands: &[Number]) -> Option<Number> {
    let values: Vec<f64> = operands
        .iter()
        .map(|operand| match operand {
            Number::Int(number) => Some(*number as f64),
            Number::Real(number) => Some(*number),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let value = compute(operator, &values)?;
    let whole = operands.iter().all(|operand| matches!(operand, Number::Int(_)))
        && value.fract() == 0.0
        && operator != "/"
        && operator != "float";
    Some(if whole { Number::Int(value as i64) } else { Number::Real(value) })
}

fn compute(operator: &str, values: &[f64]) -> Option<f64> {
    Some(match (operator, values) {
        ("+", [a, b]) => a + b,
        ("-", [a, b]) => a - b,
        ("*", [a, b]) => a * b,
        ("/", [a, b]) => a / b,
        ("//", [a, b]) => (a / b).floor(),
        ("%", [a, b]) => a - b * (a / b).floor(),
        ("**", [a, b]) => a.powf(*b),
        ("neg", [a]) => -a,
        ("sqrt", [a]) => a.sqrt(),
        ("ceil", [a]) => a.ceil(),
        ("floor" | "int", [a]) => a.floor(),
        ("float" | "round", [a]) => *a,
        ("<", [a, b]) => f64::from(u8::from(a < b)),
        ("<=", [a, b]) => f64::from(u8::from(a <= b)),
        (">", [a, b]) => f64::from(u8::from(a > b)),
        (">=", [a, b]) => f64::from(u8::from(a >= b)),
        ("min", items) => items.iter().copied().fold(f64::INFINITY, f64::min),
        ("max", items) => items.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        _ => return None,
    })
}

/// Writes an expression of the spec language, with config keys under the names that `name` gives them.
pub fn written(number: &Number, name: &dyn Fn(&str) -> String) -> String {
    match number {
        Number::Int(value) => value.to_string(),
        Number::Real(value) => real(*value),
        Number::Bool(truth) => truth.to_string(),
        Number::Word(word) => format!("'{word}'"),
        Number::None => "null".to_owned(),
        Number::Config(path) => name(path),
        Number::Unknown(what) => format!("unknown_{what}"),
        Number::Apply(operator, operands) => applied(operator, operands, name),
    }
}

fn applied(operator: &str, operands: &[Number], name: &dyn Fn(&str) -> String) -> String {
    let texts: Vec<String> = operands.iter().map(|operand| written(operand, name)).collect();
    match (operator, texts.as_slice()) {
        ("neg", [inner]) => format!("-{inner}"),
        ("item", [list, index]) => format!("{list}[{index}]"),
        ("list", items) => format!("[{}]", items.join(", ")),
        (
            "+" | "-" | "*" | "/" | "//" | "%" | "**" | "in" | "==" | "!=" | "<" | "<=" | ">"
            | ">=",
            [_, _],
        ) => {
            let left = bracketed(&operands[0], &texts[0], operator, false);
            let right = bracketed(&operands[1], &texts[1], operator, true);
            format!("{left} {operator} {right}")
        }
        (word, items) => format!("{word}({})", items.join(", ")),
    }
}

fn strength(operator: &str) -> u8 {
    match operator {
        "in" | "==" | "!=" | "<" | "<=" | ">" | ">=" => 0,
        "+" | "-" => 1,
        "*" | "/" | "//" | "%" => 2,
        "neg" => 3,
        "**" => 4,
        _ => 9,
    }
}

fn bracketed(operand: &Number, text: &str, around: &str, right: bool) -> String {
    let inner = match operand {
        Number::Apply(operator, _) => strength(operator),
        Number::Int(value) if *value < 0 => 3,
        Number::Real(value) if *value < 0.0 => 3,
        _ => 9,
    };
    let outer = strength(around);
    let loose = inner < outer || (inner == outer && (right != (around == "**")));
    if loose && !(around == "**" && right && inner == 3) {
        format!("({text})")
    } else {
        text.to_owned()
    }
}

/// Writes a real number as the spec language reads it.
pub fn real(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 {
        return format!("{value:.1}");
    }
    let plain = format!("{value}");
    if plain.len() <= 12 {
        plain
    } else {
        let short = format!("{value:e}");
        if short.len() < plain.len() { short } else { plain }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&written(self, &str::to_owned))
    }
}
