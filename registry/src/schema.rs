//! The JSON Schema of a spec, for editors; made from the decoder's table and the declarations of ops.

use serde_json::{Map, Value, json};

use crate::ops::{Declaration, OpSet, Param, ParamKind};
use crate::spec::keys::{KeyForm, KeyTable, SPEC, VERSION};

/// Returns the schema of a spec file whose programs call these ops.
pub fn schema(ops: &OpSet) -> Value {
    let mut schema = table(&SPEC);
    let entries: Map<String, Value> =
        ops.declared().map(|op| (op.name().to_owned(), call(op))).collect();
    schema["$defs"] = json!({ "ops": entries });
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("An onboard spec");
    schema.sort_all_objects();
    schema
}

/// Builds the arguments of a call of an op.
fn call(op: &Declaration) -> Value {
    let params = &op.signature().params;
    let properties: Map<String, Value> =
        params.iter().map(|param| (param.name.to_owned(), argument(param))).collect();
    let required: Vec<&str> =
        params.iter().filter(|p| p.default.is_none()).map(|p| p.name).collect();
    json!({
        "description": crate::ops::table::call(op),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn argument(param: &Param) -> Value {
    let mut schema = match param.kind {
        ParamKind::Word(words) => json!({ "enum": words }),
        kind => json!({ "description": kind.describe() }),
    };
    let Some(default) = &param.default else { return schema };
    let default = Value::from(default);
    if let (Value::Null, Some(Value::Array(words))) = (&default, schema.get_mut("enum")) {
        words.push(Value::Null);
    }
    schema["default"] = default;
    schema
}

fn table(table: &KeyTable) -> Value {
    let properties: Map<String, Value> = table
        .keys
        .iter()
        .map(|key| {
            let mut value = form(key.form);
            value["description"] = json!(key.doc);
            (key.name.to_owned(), value)
        })
        .collect();
    // A spec that extends another may leave out what that one has.
    let required = table.keys.iter().filter(|key| key.required);
    let required: Vec<&str> = if table.inherits {
        required.map(|key| key.name).filter(|name| matches!(*name, "spec" | "name")).collect()
    } else {
        required.map(|key| key.name).collect()
    };
    let additional = match table.others {
        Some(KeyForm::Program) => removable(&form(KeyForm::Program)),
        Some(other) => form(other),
        None => json!(false),
    };
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": additional,
    })
}

fn form(form_: KeyForm) -> Value {
    let text = json!({ "type": "string" });
    match form_ {
        KeyForm::Version => {
            // YAML reads it as a number.
            json!({ "const": VERSION.parse::<i64>().unwrap_or_default() })
        }
        KeyForm::Word | KeyForm::Program => text,
        KeyForm::Words | KeyForm::Steps => one_or_list(&text),
        KeyForm::Sources => one_or_list(&json!({ "type": ["string", "null"] })),
        KeyForm::Expr => json!({ "type": ["string", "number", "boolean", "null"] }),
        KeyForm::Exprs => json!({ "type": "array", "items": form(KeyForm::Expr) }),
        KeyForm::Names(inner) => {
            json!({ "type": "object", "additionalProperties": removable(&form(*inner)) })
        }
        KeyForm::Table(inner) => table(inner),
        KeyForm::Tables(inner) => json!({ "type": "array", "items": table(inner) }),
        KeyForm::WordOr(inner) => json!({ "anyOf": [text, table(inner)] }),
    }
}

fn one_or_list(item: &Value) -> Value {
    json!({ "anyOf": [item, { "type": "array", "items": item }] })
}

/// Allows `~`, which removes what is inherited.
fn removable(form: &Value) -> Value {
    json!({ "anyOf": [form, { "type": "null" }] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_schema_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.json");
        let fresh = serde_json::to_string_pretty(&schema(&OpSet::builtin())).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(path, &fresh).unwrap();
        }
        let written = fs_err::read_to_string(path).unwrap_or_default();
        assert!(
            written == fresh,
            "registry/schema.json is stale: run `UPDATE=1 cargo test -p onboard-spec schema`"
        );
    }
}
