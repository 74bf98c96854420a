//! Table of drivers: one for each HTTP API of servers.

use std::sync::Arc;

use registry::diag::SourceText;
use registry::sheet::Sheet;
use serde_json::Value;

use crate::http::ServerConnection;
use crate::{Endpoint, EndpointOptions, Error, ServerFacts};

mod llama_server;
mod onboard;
mod openai;
mod sglang;
mod vllm;

/// Opens a server after its identification.
pub(crate) type OpenEndpoint =
    fn(ServerConnection, ServerFacts, &EndpointOptions) -> Result<Box<dyn Endpoint>, Error>;

/// HTTP API, with the way to recognize its servers.
#[derive(Debug)]
pub struct EndpointDriver {
    /// Name, as given to `--engine-option driver=`.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Descriptions of the log-probabilities that its servers provide.
    pub shows: &'static [&'static str],
    /// Name of the engine's sheet, which lists the addresses where a server reports its settings.
    pub sheet: Option<&'static str>,
    /// Address that identifies its servers, if no sheet defines one.
    pub(crate) probe: &'static str,
    /// Returns true if a response of that address is of such a server; the second value is that of
    /// `/v1/models`.
    pub(crate) knows: fn(&Value, &Value) -> bool,
    /// Determines what the server provides, and opens it.
    pub(crate) open: OpenEndpoint,
}

/// All drivers, in the order in which they are tried.
pub const DRIVERS: [&EndpointDriver; 5] =
    [&sglang::DRIVER, &llama_server::DRIVER, &vllm::DRIVER, &onboard::DRIVER, &openai::DRIVER];

/// Returns the names of all drivers.
pub(crate) fn names() -> String {
    DRIVERS.map(|driver| format!("`{}`", driver.name)).join(", ")
}

/// Returns the owner of the first model that a server lists.
fn owner(models: &Value) -> &str {
    crate::json::find(models, "data.0.owned_by").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the sheet of a driver's engine.
pub(crate) fn sheet(driver: &EndpointDriver) -> Option<Sheet> {
    let sheet_name = driver.sheet?;
    let mut sources = registry::sheet::builtin();
    let (_, source): (_, Arc<SourceText>) = sources.find(|(name, _)| *name == sheet_name)?;
    Sheet::read(&source).ok()
}

/// Returns the flag that changes a setting of a driver's engine, from the sheet.
fn flag(driver: &EndpointDriver, setting: &str) -> Option<String> {
    sheet(driver)?.settings.get(setting)?.flag.clone()
}
