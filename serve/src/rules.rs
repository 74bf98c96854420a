//! Fields that constrain outputs, and their rules.

use std::sync::Arc;

use axum::http::StatusCode;
use chat::{
    ConstraintCompiler, ConstraintError, Format, JsonLayout, OutputConstraint, OutputRule,
    ReasoningPrefix,
};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::neutral;
use crate::object;
use crate::state::ServerState;

/// The field `response_format` of the OpenAI API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "object::optional")]
    json_schema: Option<NamedSchema>,
    /// Schema in the form of llama.cpp.
    schema: Option<Value>,
}

/// Schema of `response_format`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    #[expect(dead_code, reason = "it names the schema, which changes no answer")]
    name: Option<String>,
    #[expect(dead_code, reason = "it describes the schema, which changes no answer")]
    description: Option<String>,
    #[expect(dead_code, reason = "schemas are always kept")]
    strict: Option<bool>,
    schema: Option<Value>,
}

/// The field `structured_outputs` of vLLM.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    disable_any_whitespace: Option<bool>,
    disable_additional_properties: Option<bool>,
    whitespace_pattern: Option<String>,
    structural_tag: Option<Value>,
}

impl ResponseFormat {
    fn rule(self) -> Result<Option<OutputRule>, ApiError> {
        let named = match (self.json_schema, self.schema) {
            (named, None) => named,
            (None, schema) if self.kind != "text" => {
                let schema = Some(NamedSchema { schema, ..NamedSchema::default() });
                return Self { kind: "json_schema".to_owned(), json_schema: schema, schema: None }
                    .rule();
            }
            _ => {
                let needs = "`response_format.schema` stands without `json_schema`, and not with the type `text`";
                return Err(ApiError::field("response_format", needs));
            }
        };
        match (self.kind.as_str(), named) {
            ("text", None) => Ok(None),
            ("json_object", None) => Ok(Some(OutputRule::JsonObject(JsonLayout::Spaced))),
            ("json_schema", Some(NamedSchema { schema: Some(schema), .. })) => {
                Ok(Some(OutputRule::Schema(schema, JsonLayout::Spaced)))
            }
            ("json_schema", _) => {
                let message = "`response_format` needs `json_schema` with `schema`";
                Err(ApiError::field("response_format", message))
            }
            ("text" | "json_object", _) => {
                let message = "`response_format.json_schema` needs the type `json_schema`";
                Err(ApiError::field("response_format", message))
            }
            (other, _) => {
                let message = format!(
                    "`response_format.type` is `{other}`; expected `text`, `json_object` or `json_schema`"
                );
                Err(ApiError::field("response_format", message))
            }
        }
    }
}

impl StructuredOutputs {
    fn rule(self) -> Result<OutputRule, ApiError> {
        let closed = self.disable_additional_properties.as_ref();
        neutral("structured_outputs.disable_additional_properties", closed, &false)?;
        let pattern = self.whitespace_pattern.as_ref();
        neutral("structured_outputs.whitespace_pattern", pattern, &String::new())?;
        let tag = self.structural_tag.as_ref();
        neutral("structured_outputs.structural_tag", tag, &Value::Null)?;
        let compact = self.disable_any_whitespace == Some(true);
        let layout = if compact { JsonLayout::Compact } else { JsonLayout::Spaced };
        let schema = match self.json {
            Some(Value::String(text)) => Some(serde_json::from_str(&text).map_err(|why| {
                let message = format!("`structured_outputs.json` is not JSON: {why}");
                ApiError::field("structured_outputs", message)
            })?),
            other => other,
        };
        let rules = [
            schema.map(|schema| OutputRule::Schema(schema, layout)),
            self.regex.map(OutputRule::Regex),
            self.choice.map(OutputRule::Choice),
            self.grammar.map(OutputRule::Grammar),
            self.json_object.filter(|object| *object).map(|_| OutputRule::JsonObject(layout)),
        ];
        let mut rules = rules.into_iter().flatten();
        match (rules.next(), rules.next()) {
            (Some(rule), None) => Ok(rule),
            (first, _) => {
                let rules = if first.is_some() { "several rules" } else { "no rule" };
                let message = format!(
                    "`structured_outputs` has {rules}; expected one of `json`, `regex`, `choice`, `grammar`, `json_object`"
                );
                Err(ApiError::field("structured_outputs", message))
            }
        }
    }
}

/// Returns the rule of a request, and the field that gives it.
pub(crate) fn rule(
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<StructuredOutputs>,
) -> Result<Option<(OutputRule, &'static str)>, ApiError> {
    let format = response_format.map(ResponseFormat::rule).transpose()?.flatten();
    let outputs = structured_outputs.map(StructuredOutputs::rule).transpose()?;
    match (format, outputs) {
        (Some(_), Some(_)) => Err(ApiError::field(
            "structured_outputs",
            "`structured_outputs` and `response_format` both constrain the answer; leave one out",
        )),
        (Some(rule), None) => Ok(Some((rule, "response_format"))),
        (None, Some(rule)) => Ok(Some((rule, "structured_outputs"))),
        (None, None) => Ok(None),
    }
}

/// Returns the refusal of a rule that a field gives.
fn refused(field: &str, error: &ConstraintError) -> ApiError {
    match error {
        ConstraintError::Busy => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        _ => ApiError::field(field, format!("`{field}` cannot be kept: {error}")),
    }
}

/// Returns the error of an answer that cannot go on under its rule.
pub(crate) fn stuck(error: &ConstraintError) -> ApiError {
    ApiError::coded(
        StatusCode::BAD_REQUEST,
        "constraint_failed",
        format!("the answer cannot go on under its constraint: {error}"),
    )
}

/// Returns the error for a rule whose compiler did not end.
fn compile_failure() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the rule cannot be compiled")
}

impl ServerState {
    /// Returns the compiler of rules, which is made for the first one.
    fn compiler(&self) -> Result<Arc<ConstraintCompiler>, ConstraintError> {
        let compiler = self.compiler.get_or_init(|| {
            let codec = self.codec.as_ref().ok_or_else(|| ConstraintError::Vocabulary {
                why: "the model has no tokenizer".to_owned(),
            })?;
            ConstraintCompiler::new(&codec.vocabulary(), self.vocab, &self.ends).map(Arc::new)
        });
        compiler.clone()
    }

    /// Runs work with the compiler, without holding up other requests.
    pub(crate) async fn with_compiler<T: Send + 'static>(
        self: &Arc<Self>,
        field: &'static str,
        work: impl FnOnce(&ConstraintCompiler) -> Result<T, ConstraintError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let _permit = self.compiling.acquire().await.map_err(|_| compile_failure())?;
        let state = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            state.compiler().and_then(|compiler| work(&compiler))
        })
        .await
        .map_err(|_| compile_failure())?;
        done.map_err(|error| refused(field, &error))
    }

    /// Compiles a rule.
    pub(crate) async fn constrain(
        self: &Arc<Self>,
        rule: OutputRule,
        field: &'static str,
        prefix: ReasoningPrefix,
        format: Option<&'static Format>,
    ) -> Result<OutputConstraint, ApiError> {
        self.with_compiler(field, move |compiler: &ConstraintCompiler| {
            compiler.compile(&rule, prefix, format)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_refused_by_name() {
        let none = "null";
        assert_eq!(read_rule(none, none), Ok(None));
        assert_eq!(read_rule("{\"type\": \"text\"}", none), Ok(None));
        let object = read_rule("{\"type\": \"json_object\"}", none);
        assert_eq!(object, Ok(Some(("JsonObject(Spaced)".to_owned(), "response_format"))));
        let schema = "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"strict\": true, \"schema\": {\"type\": \"null\"}}}";
        assert!(read_rule(schema, none).unwrap().unwrap().0.starts_with("Schema("));
        let text = "{\"json\": \"{\\\"z\\\": 1, \\\"a\\\": 2}\"}";
        let compact = "{\"json\": {}, \"disable_any_whitespace\": true}";
        assert!(read_rule(none, compact).unwrap().unwrap().0.ends_with("Compact)"));
        // The order of keys is that of the request.
        let (shown, field) = read_rule(none, text).unwrap().unwrap();
        assert!(shown.find("\"z\"") < shown.find("\"a\""), "{shown}");
        assert_eq!(field, "structured_outputs");
        for (format, outputs, words) in [
            ("{\"type\": \"xml\"}", none, "`xml`"),
            ("{\"type\": \"json_schema\"}", none, "needs `json_schema`"),
            ("{\"type\": \"text\", \"json_schema\": {}}", none, "needs the type"),
            (none, "{}", "no rule"),
            (none, "{\"regex\": \"a\", \"choice\": [\"b\"]}", "several rules"),
            (none, "{\"json\": \"{\"}", "not JSON"),
            (
                none,
                "{\"json\": {}, \"disable_additional_properties\": true}",
                "disable_additional_properties",
            ),
            (none, "{\"structural_tag\": \"x\"}", "structural_tag"),
            (schema, "{\"regex\": \"a\"}", "leave one out"),
        ] {
            let error = read_rule(format, outputs).unwrap_err();
            assert!(error.message.contains(words), "{words}: {}", error.message);
        }
    }

    fn read_rule(format: &str, outputs: &str) -> Result<Option<(String, &'static str)>, ApiError> {
        let format = serde_json::from_str(format).unwrap();
        let outputs = serde_json::from_str(outputs).unwrap();
        rule(format, outputs).map(|read| read.map(|(rule, field)| (format!("{rule:?}"), field)))
    }
}
