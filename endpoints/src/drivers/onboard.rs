//! `onboard serve`: the form of vLLM, with rows of whole vocabularies.

use serde_json::Value;

use super::{EndpointDriver, vllm};
use crate::http::ServerConnection;
use crate::{Endpoint, EndpointOptions, Error, ServerFacts};

pub(super) static DRIVER: EndpointDriver = EndpointDriver {
    name: "onboard",
    about: "onboard serve",
    shows: &["rows", "tokens"],
    sheet: None,
    probe: "/version",
    knows: |version, models| {
        super::owner(models) == DRIVER.name && version.get("version").is_some_and(Value::is_string)
    },
    open,
};

fn open(
    http: ServerConnection,
    mut facts: ServerFacts,
    options: &EndpointOptions,
) -> Result<Box<dyn Endpoint>, Error> {
    let report: Value = http.get("/health")?.report()?;
    facts.version = text_of(&report, "version");
    facts.dtype = text_of(&report, "dtype");
    vllm::open(http, facts, options)
}

/// Returns the text under a key of the server's report.
fn text_of(report: &Value, key: &str) -> Option<String> {
    report.get(key).and_then(Value::as_str).map(str::to_owned)
}
