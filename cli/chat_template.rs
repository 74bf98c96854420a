//! Reads the chat template of a model: a checkpoint, a GGUF file, or a file with the template alone.

use std::path::Path;

use chat::{Template, TemplateError};
use registry::file;

/// Reads the template of a folder or a GGUF file. A GGUF file without one has that of its folder.
pub(crate) fn of_model(model: &Path) -> Result<Template, TemplateError> {
    Template::of_model(model)
}

/// Reads the template of a model, or a file that holds nothing else (`*.jinja`).
pub(crate) fn of_path(path: &Path) -> anyhow::Result<Template> {
    if path.extension().is_some_and(|end| end == "jinja") {
        let text = file::read_text(path, file::TEMPLATE)?;
        return Ok(Template::from_source(&path.display().to_string(), &text, []));
    }
    Ok(of_model(path)?)
}
