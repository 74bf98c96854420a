//! Arguments of a call in the forms of the payloads: JSON, pairs, Python, and objects with bare keys.

use serde_json::{Map, Value, json};

use super::error::{GrammarFault, Inexpressible};
use super::keywords::{ANNOTATIONS, other_key};
use super::lark::{LarkText, TextRule};
use super::{ConstraintError, JsonLayout, marks, schema};
use crate::format::{Format, Hole, PatternStep, ValueTrim, ValueType, coerced};

/// Deepest nesting of schemas that are written rule by rule.
const DEPTH: usize = 32;
/// Most rules of one tool's arguments.
const RULES: usize = 5_000;

const LENGTHS: [&str; 2] = ["minLength", "maxLength"];
const NUMBERS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// A parameter of a tool.
struct ToolParameter<'a> {
    name: &'a str,
    schema: &'a Value,
    required: bool,
}

/// Returns the expression of a JSON value. References lead to the definitions of `root`.
pub(super) fn json(
    value: &Value,
    root: &Value,
    lark: &mut LarkText<'_>,
) -> Result<String, GrammarFault> {
    let complete = with_definitions(value, root)?;
    let checked = schema::checked(&complete, JsonLayout::Spaced)?;
    Ok(lark.rule(&format!("%json {checked}")))
}

/// Returns the expression of a JSON value whose text holds none of these marks.
fn json_without(
    value: &Value,
    root: &Value,
    marks: &[&str],
    lark: &mut LarkText<'_>,
) -> Result<String, GrammarFault> {
    let narrowed = marks::without_marks(&with_definitions(value, root)?, marks)?;
    let mut checked =
        schema::checked(&narrowed, JsonLayout::Spaced).map_err(|error| match error {
            // The conditions of the marks make the schema longer.
            ConstraintError::Size { .. } | ConstraintError::Schema { .. } => {
                GrammarFault::Form(Inexpressible::of("a schema of this size"))
            }
            other => GrammarFault::Rule(other),
        })?;
    // The grammar compares keys as they are written, so `\u` in a key would let a mark beside it pass.
    checked["x-guidance"]["json_allowed_escapes"] = json!("nrbtf\\\"");
    Ok(lark.rule(&format!("%json {checked}")))
}

/// Returns a schema with the definitions of `root` to which it refers.
fn with_definitions(value: &Value, root: &Value) -> Result<Value, Inexpressible> {
    let mut output = match value {
        Value::Object(map) => map.clone(),
        Value::Bool(true) => Map::new(),
        _ => return Err(Inexpressible::of("a schema that allows nothing")),
    };
    if !std::ptr::eq(value, root) && value.to_string().contains("\"$ref\"") {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                output.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        if !output.iter().all(|(key, value)| is_definition(key, value)) {
            return Err(Inexpressible::of("`$ref` to another place than `$defs`"));
        }
    }
    Ok(Value::Object(output))
}

fn references_are_definitions(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().all(references_are_definitions),
        Value::Object(map) => map.iter().all(|(key, value)| is_definition(key, value)),
        _ => true,
    }
}

/// True if all references in the value of a keyword lead to definitions.
fn is_definition(key: &str, value: &Value) -> bool {
    match (key, value) {
        ("$ref", Value::String(at)) => {
            at.starts_with("#/$defs/") || at.starts_with("#/definitions/")
        }
        _ => references_are_definitions(value),
    }
}

/// Returns the parameters of a schema that says nothing else.
fn parameters(schema: &Value) -> Result<Vec<ToolParameter<'_>>, Inexpressible> {
    const ANY: &Value = &Value::Bool(true);
    let Value::Object(map) = schema else { return Err(Inexpressible::of("a schema of no object")) };
    let known = ["type", "properties", "required", "additionalProperties"];
    if let Some(key) = other_key(map, &known) {
        return Err(Inexpressible::key(key));
    }
    let required: Vec<&str> = match map.get("required") {
        None => Vec::new(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        Some(_) => return Err(Inexpressible::key("required")),
    };
    let mut parameters = Vec::new();
    match map.get("properties") {
        None => {}
        Some(Value::Object(properties)) => {
            for (name, schema) in properties {
                let required = required.contains(&name.as_str());
                parameters.push(ToolParameter { name, schema, required });
            }
        }
        Some(_) => return Err(Inexpressible::key("properties")),
    }
    for name in required {
        if !parameters.iter().any(|parameter| parameter.name == name) {
            parameters.push(ToolParameter { name, schema: ANY, required: true });
        }
    }
    Ok(parameters)
}

/// Follows references, and single alternatives.
fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> Result<&'a Value, Inexpressible> {
    for _ in 0..DEPTH {
        let Value::Object(map) = schema else { return Ok(schema) };
        if let Some(reference) = map.get("$ref") {
            let target = reference.as_str().and_then(|at| root.pointer(at.strip_prefix('#')?));
            let target = target.filter(|_| other_key(map, &["$ref"]).is_none());
            schema = target.ok_or_else(|| Inexpressible::key("$ref"))?;
            continue;
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            if let Some(Value::Array(one)) = map.get(key)
                && let [one] = one.as_slice()
                && other_key(map, &[key]).is_none()
            {
                schema = one;
            }
        }
        if std::ptr::eq(schema.as_object().unwrap_or(map), map) {
            return Ok(schema);
        }
    }
    Err(Inexpressible::key("$ref"))
}

/// One of the kinds of values that a schema allows.
#[derive(Debug, Clone, Copy)]
enum ValueChoice<'a> {
    Any,
    /// String of a length.
    Text {
        least: u64,
        most: Option<u64>,
    },
    /// String with other conditions.
    OtherText,
    Fixed(&'a Value),
    /// Number, boolean or null, with its type; true if it has conditions.
    Scalar(&'a str, bool),
    /// Object or array; true if it has conditions.
    Nested(bool),
}

fn choices<'a>(
    schema: &'a Value,
    root: &'a Value,
    depth: usize,
    output: &mut Vec<ValueChoice<'a>>,
) -> Result<(), Inexpressible> {
    if depth > DEPTH {
        return Err(Inexpressible::of("so many levels"));
    }
    let map = match resolved(schema, root)? {
        Value::Bool(true) => {
            output.push(ValueChoice::Any);
            return Ok(());
        }
        Value::Object(map) => map,
        _ => return Err(Inexpressible::of("a schema that allows nothing")),
    };
    let conditions: Vec<&str> =
        map.keys().map(String::as_str).filter(|key| !ANNOTATIONS.contains(key)).collect();
    if conditions.is_empty() {
        output.push(ValueChoice::Any);
        return Ok(());
    }
    if let Some(value) = map.get("const") {
        if let Some(key) = other_key(map, &["const", "type"]) {
            return Err(Inexpressible::key(key));
        }
        output.push(ValueChoice::Fixed(value));
        return Ok(());
    }
    if let Some(Value::Array(values)) = map.get("enum") {
        if let Some(key) = other_key(map, &["enum", "type"]) {
            return Err(Inexpressible::key(key));
        }
        output.extend(values.iter().map(ValueChoice::Fixed));
        return Ok(());
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(list)) = map.get(key) {
            if let Some(key) = other_key(map, &[key]) {
                return Err(Inexpressible::key(key));
            }
            return list.iter().try_for_each(|schema| choices(schema, root, depth + 1, output));
        }
    }
    let kinds: Vec<&str> = match map.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return Err(Inexpressible::key(conditions[0])),
    };
    for kind in kinds {
        output.push(match kind {
            "string" if has_any(map, &["pattern", "format"]) => ValueChoice::OtherText,
            "string" if has_any(map, &LENGTHS) => ValueChoice::Text {
                least: map.get("minLength").and_then(Value::as_u64).unwrap_or(0),
                most: map.get("maxLength").and_then(Value::as_u64),
            },
            "string" => ValueChoice::Text { least: 0, most: None },
            "integer" | "number" => ValueChoice::Scalar(kind, has_any(map, &NUMBERS)),
            "boolean" | "null" => ValueChoice::Scalar(kind, false),
            "object" | "array" => {
                let plain = ["type", "pattern", "format"].iter().chain(&LENGTHS).chain(&NUMBERS);
                let plain: Vec<&str> = plain.copied().collect();
                ValueChoice::Nested(other_key(map, &plain).is_some())
            }
            other => return Err(Inexpressible(format!("its schema has the type `{other}`"))),
        });
    }
    Ok(())
}

/// True if a schema has one of these keys.
fn has_any(map: &Map<String, Value>, keys: &[&str]) -> bool {
    keys.iter().any(|key| map.contains_key(*key))
}

/// Returns the terminal of any value of a scalar type.
fn scalar(kind: &str) -> &'static str {
    match kind {
        "integer" => "/-?(0|[1-9][0-9]{0,18})/",
        "number" => "/-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?([eE][+\\-]?[0-9]{1,2})?/",
        "boolean" => "/true|false/",
        _ => "/null/",
    }
}

/// Returns the pairs of a tool's arguments.
pub(super) fn pairs(
    schema: &Value,
    format: &Format,
    lark: &mut LarkText<'_>,
) -> Result<String, GrammarFault> {
    let Some(pattern) = &format.pair else { return Err(Inexpressible::of("pairs").into()) };
    let mut words = Vec::new();
    for parameter in parameters(schema)? {
        let value = pair_value(parameter.schema, schema, format)?;
        let mut pair = vec![lark.space().to_owned()];
        let mut steps = pattern.steps.iter();
        while let Some(step) = steps.next() {
            pair.push(match step {
                PatternStep::Literal(text) => lark.literal(text),
                PatternStep::Space => lark.space().to_owned(),
                PatternStep::Hole(Hole::Key) => {
                    let name = parameter.name;
                    if name.is_empty()
                        || name.len() > 256
                        || name.contains(|c: char| c.is_whitespace() || "<>\"'=".contains(c))
                    {
                        return Err(Inexpressible::name(name).into());
                    }
                    lark.literal(name)
                }
                PatternStep::Hole(Hole::Type) => {
                    let kind = if matches!(value, PairForm::Json) {
                        ValueType::Json
                    } else {
                        ValueType::Text
                    };
                    let word = format.value.types.iter().find(|(_, listed)| **listed == kind);
                    let word = word.ok_or_else(|| Inexpressible::of("the type of a value"))?;
                    lark.literal(word.0)
                }
                PatternStep::Hole(Hole::Value) => {
                    let Some(PatternStep::Literal(close)) = steps.next() else {
                        return Err(Inexpressible::of("an open value").into());
                    };
                    match &value {
                        PairForm::Json => {
                            let value = json_without(parameter.schema, schema, &[close], lark)?;
                            format!("{value} {}", lark.literal(close))
                        }
                        PairForm::Text(rule) => lark.text_until(close, rule),
                        PairForm::Words { texts, scalars } => {
                            if texts.iter().any(|text: &String| {
                                format!("{text}{close}").find(close) < Some(text.len())
                            }) {
                                return Err(Inexpressible::key("enum").into());
                            }
                            let texts = texts.iter().map(|text| lark.literal(text));
                            let scalars = scalars.iter().map(|kind| scalar(kind).to_owned());
                            let any: Vec<String> = texts.chain(scalars).collect();
                            let any = lark.rule(&any.join(" | "));
                            format!("{any} {}", lark.literal(close))
                        }
                    }
                }
                PatternStep::Hole(_) => return Err(Inexpressible::of("this pair").into()),
            });
        }
        let pair = lark.rule(&pair.join(" "));
        words.push(if parameter.required { pair } else { format!("{pair}?") });
    }
    Ok(if words.is_empty() { "\"\"".to_owned() } else { lark.rule(&words.join(" ")) })
}

/// Form of the value of a pair.
enum PairForm<'a> {
    Json,
    Text(TextRule),
    /// These texts, and values of scalar types.
    Words {
        texts: Vec<String>,
        scalars: Vec<&'a str>,
    },
}

/// Chooses the form of a value so that reading it gives a value of the schema.
fn pair_value<'a>(
    schema: &'a Value,
    root: &'a Value,
    format: &Format,
) -> Result<PairForm<'a>, Inexpressible> {
    let mut all = Vec::new();
    let result = choices(schema, root, 0, &mut all);
    let typed = !format.value.types.is_empty();
    if typed {
        // The pair says itself that its value is JSON.
        let plain = matches!(all.as_slice(), [ValueChoice::Text { least: 0, most: None }]);
        return Ok(if result.is_ok() && plain {
            PairForm::Text(TextRule::default())
        } else {
            PairForm::Json
        });
    }
    result?;
    if !all.iter().any(is_text) {
        return Ok(PairForm::Json);
    }
    if let [ValueChoice::Any] = all.as_slice() {
        return Ok(PairForm::Text(TextRule::default()));
    }
    if all.iter().any(is_free) && all.iter().all(|choice| is_free(choice) || is_loose(choice)) {
        // The reader takes `null` for null, unless the type is string alone.
        let null =
            all.len() == 1 || all.iter().any(|c| matches!(c, ValueChoice::Scalar("null", _)));
        let without = if null { Vec::new() } else { vec!["(?si:\\s*(null|none)\\s*)".to_owned()] };
        return Ok(PairForm::Text(TextRule { within: None, without }));
    }
    if let [ValueChoice::Text { least, most: limit }] = all.as_slice() {
        let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
        let edge = match format.value.trim {
            ValueTrim::Nothing => None,
            ValueTrim::Newline => Some("\\n"),
            ValueTrim::Space => Some("\\s"),
        };
        return Ok(PairForm::Text(TextRule {
            within: Some(format!("(?s:.{{{least},{limit}}})")),
            without: edge
                .map(|edge| vec![format!("{edge}(?s:.*)"), format!("(?s:.*){edge}")])
                .unwrap_or_default(),
        }));
    }
    let mut texts = Vec::new();
    let mut scalars = Vec::new();
    for choice in &all {
        match choice {
            ValueChoice::Fixed(value) => {
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let json =
                    coerced(trimmed(&text, format), Some(schema), root, format.value.untyped);
                if text.is_empty()
                    || serde_json::from_str::<Value>(&json).ok().as_ref() != Some(value)
                {
                    return Err(Inexpressible::key("enum"));
                }
                texts.push(text);
            }
            ValueChoice::Scalar(kind, false) => scalars.push(*kind),
            ValueChoice::Any
            | ValueChoice::Text { .. }
            | ValueChoice::OtherText
            | ValueChoice::Scalar(_, true)
            | ValueChoice::Nested(_) => {
                return Err(Inexpressible::of("these conditions of a text"));
            }
        }
    }
    Ok(PairForm::Words { texts, scalars })
}

/// True if a value may be any text or one of some texts.
fn is_text(choice: &ValueChoice<'_>) -> bool {
    matches!(
        choice,
        ValueChoice::Any
            | ValueChoice::Text { .. }
            | ValueChoice::OtherText
            | ValueChoice::Fixed(Value::String(_))
    )
}

/// True if a value may be every text.
fn is_free(choice: &ValueChoice<'_>) -> bool {
    matches!(choice, ValueChoice::Text { least: 0, most: None })
}

/// True if a value has another type than text, and no conditions.
fn is_loose(choice: &ValueChoice<'_>) -> bool {
    matches!(choice, ValueChoice::Scalar(_, false) | ValueChoice::Nested(false))
}

fn trimmed<'t>(text: &'t str, format: &Format) -> &'t str {
    match format.value.trim {
        ValueTrim::Nothing => text,
        ValueTrim::Newline => {
            let start = text.strip_prefix('\n').unwrap_or(text);
            start.strip_suffix('\n').unwrap_or(start)
        }
        ValueTrim::Space => text.trim(),
    }
}

/// True for a name of Python: letters, digits and these signs, and no digit first.
pub(super) fn is_python_name(name: &str, signs: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c))
}

/// Returns the arguments of a Python call.
pub(super) fn python(schema: &Value, lark: &mut LarkText<'_>) -> Result<String, GrammarFault> {
    let mut items = Vec::new();
    for parameter in parameters(schema)? {
        if !is_python_name(parameter.name, "_") {
            return Err(Inexpressible::name(parameter.name).into());
        }
        let value = json(parameter.schema, schema, lark)?;
        let head = lark.literal(&format!("{}=", parameter.name));
        items.push((lark.rule(&format!("{head} {value}")), parameter.required));
    }
    Ok(sequence(&items, "\", \"", lark))
}

/// Returns a sequence of items in their order, with a text between them; true for items that have to be there.
fn sequence(items: &[(String, bool)], between: &str, lark: &mut LarkText<'_>) -> String {
    // From the last item on: the rest behind another item, and the rest at the start.
    let mut behind = "\"\"".to_owned();
    let mut first = "\"\"".to_owned();
    for (item, required) in items.iter().rev() {
        let begun = format!("{item} {behind}");
        let next = format!("{between} {item} {behind}");
        let (next, start) = if *required {
            (next, begun)
        } else {
            (format!("{next} | {behind}"), format!("{begun} | {first}"))
        };
        behind = lark.rule(&next);
        first = lark.rule(&start);
    }
    first
}

/// Returns an object with bare keys, whose strings stand between marks.
pub(super) fn marked(
    schema: &Value,
    mark: &str,
    lark: &mut LarkText<'_>,
) -> Result<String, GrammarFault> {
    let mut writer = MarkedWriter { root: schema, mark, rules: 0, known: Vec::new() };
    writer.object(schema, 0, lark)
}

/// Writes rules of values in objects with bare keys.
struct MarkedWriter<'a> {
    root: &'a Value,
    mark: &'a str,
    rules: usize,
    /// Rules of schemas that references lead to.
    known: Vec<(&'a Value, String)>,
}

impl<'a> MarkedWriter<'a> {
    fn object(
        &mut self,
        schema: &'a Value,
        depth: usize,
        lark: &mut LarkText<'_>,
    ) -> Result<String, GrammarFault> {
        let mut items = Vec::new();
        for parameter in parameters(schema)? {
            let name = parameter.name;
            if !is_python_name(name, "_-.") {
                return Err(Inexpressible::name(name).into());
            }
            let value = self.value(parameter.schema, depth + 1, lark)?;
            let head = lark.literal(&format!("{name}:"));
            items.push((lark.rule(&format!("{head} {value}")), parameter.required));
        }
        let inner = sequence(&items, "\",\"", lark);
        Ok(lark.rule(&format!("\"{{\" {inner} \"}}\"")))
    }

    fn value(
        &mut self,
        schema: &'a Value,
        depth: usize,
        lark: &mut LarkText<'_>,
    ) -> Result<String, GrammarFault> {
        self.rules += 1;
        if depth > DEPTH || self.rules > RULES {
            return Err(Inexpressible::of("so many values").into());
        }
        let target = resolved(schema, self.root)?;
        let known = self.known.iter().find(|(schema, _)| std::ptr::eq(*schema, target));
        if let Some((_, name)) = known {
            return Ok(name.clone());
        }
        let name = lark.name();
        self.known.push((target, name.clone()));
        let body = self.alternatives(target, depth, lark)?;
        lark.define(&name, &body);
        Ok(name)
    }

    fn alternatives(
        &mut self,
        schema: &'a Value,
        depth: usize,
        lark: &mut LarkText<'_>,
    ) -> Result<String, GrammarFault> {
        if let Some(list) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
            let list = list.as_array().ok_or_else(|| Inexpressible::key("anyOf"))?;
            let other = schema.as_object().and_then(|map| other_key(map, &["anyOf", "oneOf"]));
            if let Some(key) = other {
                return Err(Inexpressible::key(key).into());
            }
            let all = list.iter().map(|schema| self.value(schema, depth + 1, lark));
            return Ok(all.collect::<Result<Vec<_>, _>>()?.join(" | "));
        }
        let mut all = Vec::new();
        choices(schema, self.root, 0, &mut all)?;
        let mut words = Vec::new();
        for choice in all {
            words.push(match choice {
                ValueChoice::Any => {
                    let text = self.text(&TextRule::default(), lark);
                    format!("{text} | {} | {}", scalar("number"), scalar("boolean"))
                }
                ValueChoice::Text { least: 0, most: None } => self.text(&TextRule::default(), lark),
                ValueChoice::Text { least, most: limit } => {
                    let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
                    let within = Some(format!("(?s:.{{{least},{limit}}})"));
                    self.text(&TextRule { within, without: Vec::new() }, lark)
                }
                ValueChoice::OtherText => {
                    return Err(Inexpressible::of("`pattern` or `format`").into());
                }
                ValueChoice::Fixed(Value::String(text)) => {
                    if text.contains(self.mark) {
                        return Err(Inexpressible::key("enum").into());
                    }
                    lark.literal(&format!("{0}{text}{0}", self.mark))
                }
                ValueChoice::Fixed(value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => {
                    lark.literal(&value.to_string())
                }
                ValueChoice::Fixed(_) => return Err(Inexpressible::key("enum").into()),
                ValueChoice::Scalar(kind, false) => scalar(kind).to_owned(),
                ValueChoice::Scalar(..) => json(schema, self.root, lark)?,
                ValueChoice::Nested(_) => self.nested(schema, depth, lark)?,
            });
        }
        Ok(words.join(" | "))
    }

    fn text(&self, rule: &TextRule, lark: &mut LarkText<'_>) -> String {
        let open = lark.literal(self.mark);
        let text = lark.text_until(self.mark, rule);
        format!("{open} {text}")
    }

    fn nested(
        &mut self,
        schema: &'a Value,
        depth: usize,
        lark: &mut LarkText<'_>,
    ) -> Result<String, GrammarFault> {
        const ANY: &Value = &Value::Bool(true);
        if schema.get("type") != Some(&json!("array")) {
            return self.object(schema, depth, lark);
        }
        let known = ["type", "items", "minItems", "maxItems"];
        if let Some(key) = schema.as_object().and_then(|map| other_key(map, &known)) {
            return Err(Inexpressible::key(key).into());
        }
        let item = self.value(schema.get("items").unwrap_or(ANY), depth + 1, lark)?;
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let limit = schema.get("maxItems").and_then(Value::as_u64);
        let list = match limit {
            Some(0) => return Ok("\"[\" \"]\"".to_owned()),
            Some(limit) if limit < least => return Err(Inexpressible::key("maxItems").into()),
            Some(limit) => format!("{item} (\",\" {item}){{{},{}}}", least.max(1) - 1, limit - 1),
            None => format!("{item} (\",\" {item}){{{},}}", least.max(1) - 1),
        };
        let list = if least == 0 { format!("({list})?") } else { list };
        Ok(format!("\"[\" {list} \"]\""))
    }
}
