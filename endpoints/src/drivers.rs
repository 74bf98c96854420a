//! The table of drivers: one for each form of HTTP that servers speak.

use std::sync::Arc;

use registry::diag::Source;
use registry::sheet::Sheet;
use serde_json::Value;

use crate::http::Http;
use crate::{Endpoint, Error, Facts, Options};

mod llama_server;
mod openai;
mod sglang;
mod vllm;

/// Opens a server that was recognised.
pub(crate) type Open = fn(Http, Facts, &Options) -> Result<Box<dyn Endpoint>, Error>;

/// A form of HTTP, and the way to recognise its servers.
#[derive(Debug)]
pub struct Driver {
    /// Its name, as `--engine-option driver=` takes it.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Words for the evidence it gives.
    pub shows: &'static [&'static str],
    /// The name of the engine's sheet, which says where a server reports the settings in force.
    pub sheet: Option<&'static str>,
    /// The address that tells its servers from others, where no sheet says it.
    pub(crate) probe: &'static str,
    /// True if an answer of that address is of such a server; the second value is that of `/v1/models`.
    pub(crate) knows: fn(&Value, &Value) -> bool,
    /// Finds out what the server gives.
    pub(crate) open: Open,
}

/// All drivers, in the order in which they are tried.
pub const DRIVERS: [&Driver; 4] =
    [&sglang::DRIVER, &llama_server::DRIVER, &vllm::DRIVER, &openai::DRIVER];

/// The names of all drivers.
pub(crate) fn names() -> String {
    DRIVERS.map(|driver| format!("`{}`", driver.name)).join(", ")
}

/// The owner of the first model that a server lists.
fn owner(models: &Value) -> &str {
    crate::json::find(models, "data.0.owned_by").and_then(Value::as_str).unwrap_or_default()
}

/// The sheet of a driver's engine.
pub(crate) fn sheet(driver: &Driver) -> Option<Sheet> {
    let wanted = driver.sheet?;
    let mut sources = registry::sheet::builtin();
    let (_, source): (_, Arc<Source>) = sources.find(|(name, _)| *name == wanted)?;
    Sheet::read(&source).ok()
}

/// Returns the flag that changes a setting of a driver's engine, as the sheet has it.
fn flag(driver: &Driver, setting: &str) -> Option<String> {
    sheet(driver)?.settings.get(setting)?.flag.clone()
}
