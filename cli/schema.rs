//! The schema of specs, which editors find through the first line of a spec.

use std::path::Path;

use anyhow::Result;

use crate::write;

/// The name of the schema beside a spec.
const FILE: &str = "onboard.schema.json";

/// The line by which YAML language servers find the schema.
pub(crate) const LINE: &str = "# yaml-language-server: $schema=onboard.schema.json";

/// Returns the schema as JSON.
pub(crate) fn text() -> Result<String> {
    Ok(serde_json::to_string_pretty(&registry::schema::schema(&registry::ops::OpSet::builtin()))?
        + "\n")
}

/// Writes the schema beside a spec, unless it is there already.
pub(crate) fn beside(spec: &Path) -> Result<()> {
    let path = spec.with_file_name(FILE);
    if write::is_stdout(spec) || path.exists() {
        return Ok(());
    }
    write::atomic(&path, text()?.as_bytes())
}
