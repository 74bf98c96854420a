//! Grammar of forced calls, from the patterns of a format and the schemas of the tools.

use serde_json::{Map, Value, json};

use super::error::{GrammarFault, Inexpressible};
use super::forms;
use super::lark::{LarkText, SpecialToken};
use super::{ConstraintError, schema};
use crate::format::{CallPattern, Format, Hole, PatternStep};

/// Longest name of a tool.
const MAX_NAME: usize = 128;

/// Tool that an output may call.
#[derive(Debug, Clone)]
pub struct CallableTool {
    /// Name.
    pub name: String,
    /// JSON schema of the arguments; null for a tool without arguments.
    pub parameters: Value,
}

/// Calls that an output has to be.
#[derive(Debug, Clone)]
pub struct ForcedCalls {
    /// Format that reads the calls: that of the model, or the one in JSON if the model's cannot express a tool.
    pub format: &'static Format,
    pub(super) grammar: String,
}

impl ForcedCalls {
    pub(super) fn new(
        model_format: Option<&'static Format>,
        tools: &[CallableTool],
        several: bool,
        specials: &[SpecialToken],
    ) -> Result<Self, ConstraintError> {
        let mut checked = Vec::new();
        for tool in tools {
            if tool.name.is_empty()
                || tool.name.len() > MAX_NAME
                || !tool
                    .name
                    .chars()
                    .all(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
            {
                let why =
                    format!("its name has to be 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`");
                return Err(failed(tool, why));
            }
            checked.push((tool, schema::plain(&arguments(tool)?)?));
        }
        let model_format = model_format.filter(|format| format.has_calls());
        let fallback = Format::fallback(model_format);
        let formats = model_format.into_iter().chain(fallback);
        let mut last = None;
        for format in formats {
            for pattern in &format.calls {
                let candidate = CallsGrammar { format, pattern, tools: &checked, several };
                match candidate.text(specials) {
                    Ok(grammar) => return Ok(Self { format, grammar }),
                    Err(GrammarFault::Form(why)) => last = Some(why),
                    Err(GrammarFault::Rule(error)) => return Err(error),
                }
            }
        }
        let why = last.map_or_else(|| "there is no format of calls".to_owned(), |why| why.0);
        Err(ConstraintError::Tool { tool: String::new(), why })
    }
}

fn failed(tool: &CallableTool, why: String) -> ConstraintError {
    ConstraintError::Tool { tool: formats::shown(&tool.name), why }
}

/// Returns the schema of a tool's arguments, which is one of an object. Arguments without a name in the schema are not
/// written, unless the schema allows them itself.
fn arguments(tool: &CallableTool) -> Result<Value, ConstraintError> {
    let mut map = match &tool.parameters {
        Value::Null => {
            return Ok(
                json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            );
        }
        Value::Bool(true) => Map::new(),
        Value::Object(map) => map.clone(),
        _ => return Err(failed(tool, "its `parameters` are no schema".to_owned())),
    };
    match map.get("type") {
        None => {
            map.insert("type".to_owned(), json!("object"));
        }
        Some(Value::String(kind)) if kind == "object" => {}
        Some(other) => {
            return Err(failed(
                tool,
                format!("the type of its `parameters` is {other}; expected \"object\""),
            ));
        }
    }
    let open = ["additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"];
    if map.contains_key("properties") && !open.iter().any(|key| map.contains_key(*key)) {
        map.insert("additionalProperties".to_owned(), json!(false));
    }
    Ok(Value::Object(map))
}

/// Grammar of the calls that one pattern can write.
struct CallsGrammar<'a> {
    format: &'static Format,
    pattern: &'static CallPattern,
    tools: &'a [(&'a CallableTool, Value)],
    several: bool,
}

impl CallsGrammar<'_> {
    fn text(&self, specials: &[SpecialToken]) -> Result<String, GrammarFault> {
        let mut lark = LarkText::new(specials);
        let named = self.pattern.has(Hole::Name);
        let listed = self.pattern.has(Hole::Calls) || self.pattern.has(Hole::Python);
        let mut calls = Vec::new();
        if named || self.pattern.has(Hole::Call) {
            for tool in self.tools {
                calls.push(self.call(std::slice::from_ref(tool), &mut lark)?);
            }
        } else {
            calls.push(self.call(self.tools, &mut lark)?);
        }
        let call = lark.rule(&calls.join(" | "));
        // A mark that ends the output is not written inside it, and nothing follows it.
        let ends = matches!(self.pattern.steps.last(), Some(PatternStep::Literal(text)) if lark.ends(text));
        let more = if self.several && !listed && !ends {
            let space = lark.space();
            match self.format.between.chars().next() {
                Some(c) => format!("({} {space} {call})*", lark.literal(&c.to_string())),
                None => format!("({space} {call})*"),
            }
        } else {
            String::new()
        };
        let start = match &self.format.section {
            Some(section) => {
                let space = lark.space();
                let open = lark.literal(&section.open);
                let close = lark.literal(&section.close);
                format!("{open} {space} {call} {more} {space} {close}")
            }
            None => format!("{call} {more}"),
        };
        Ok(lark.finish(&start))
    }

    /// Returns the rule of a call of a tool, or of a list of calls of any tools.
    fn call(
        &self,
        tools: &[(&CallableTool, Value)],
        lark: &mut LarkText<'_>,
    ) -> Result<String, GrammarFault> {
        let first = &tools[0];
        let mut words = Vec::new();
        for step in &self.pattern.steps {
            words.push(match step {
                PatternStep::Literal(text) => lark.literal(text),
                PatternStep::Space => lark.space().to_owned(),
                PatternStep::Hole(hole) => match hole {
                    Hole::Name => {
                        lark.literal(&format!("{}{}", self.format.name_prefix, first.0.name))
                    }
                    Hole::Id => lark.terminal("/[0-9]{1,3}/"),
                    Hole::Arguments => forms::json(&first.1, &first.1, lark)?,
                    Hole::Object => forms::marked(&first.1, &self.format.strings, lark)?,
                    Hole::Pairs => forms::pairs(&first.1, self.format, lark)?,
                    Hole::Call => self.object(first, lark)?,
                    Hole::Calls => {
                        let objects = tools.iter().map(|tool| self.object(tool, lark));
                        let objects = objects.collect::<Result<Vec<_>, _>>()?;
                        self.list(&objects, lark)
                    }
                    Hole::Python => {
                        let calls = tools.iter().map(|(tool, schema)| {
                            let arguments = forms::python(schema, lark)?;
                            if !forms::is_python_name(&tool.name, "_.-") {
                                return Err(Inexpressible::name(&tool.name).into());
                            }
                            let head = lark.literal(&format!("{}(", tool.name));
                            Ok(format!("{head} {arguments} \")\""))
                        });
                        let calls = calls.collect::<Result<Vec<_>, GrammarFault>>()?;
                        self.list(&calls, lark)
                    }
                    Hole::Tags => return Err(Inexpressible::of("nested tags").into()),
                    Hole::Key | Hole::Value | Hole::Type => {
                        return Err(Inexpressible::of("a hole of a pair").into());
                    }
                },
            });
        }
        Ok(lark.rule(&words.join(" ")))
    }

    /// Returns the object of a call.
    fn object(
        &self,
        tool: &(&CallableTool, Value),
        lark: &mut LarkText<'_>,
    ) -> Result<String, GrammarFault> {
        let keys = &self.format.keys;
        if keys.by_name {
            let head = lark.literal(&format!("{{{}: ", json!(tool.0.name)));
            let value = forms::json(&tool.1, &tool.1, lark)?;
            return Ok(lark.rule(&format!("{head} {value} \"}}\"")));
        }
        let (Some(name), Some(arguments)) = (keys.name.first(), keys.arguments.first()) else {
            return Err(Inexpressible::of("an object without keys").into());
        };
        let head = format!("{{{}: {}, {}: ", json!(name), json!(tool.0.name), json!(arguments));
        let head = lark.literal(&head);
        let value = forms::json(&tool.1, &tool.1, lark)?;
        Ok(lark.rule(&format!("{head} {value} \"}}\"")))
    }

    /// Returns a list of any of these items.
    fn list(&self, items: &[String], lark: &mut LarkText<'_>) -> String {
        let item = lark.rule(&items.join(" | "));
        let more = if self.several { format!("(\", \" {item})*") } else { String::new() };
        format!("\"[\" {item} {more} \"]\"")
    }
}
