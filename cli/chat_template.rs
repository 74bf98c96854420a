//! Reads the chat template of a model: a checkpoint, a GGUF file, or a file with the template alone.

use std::path::Path;

use chat::{Template, TemplateError};
use formats::gguf::GgufFile;
use registry::file;

/// Reads the template of a folder or a GGUF file. A GGUF file without one has that of its folder.
pub(crate) fn of_model(model: &Path) -> Result<Template, TemplateError> {
    if model.is_dir() {
        return Template::open(model);
    }
    let from_file = GgufFile::open(model).ok();
    if let Some(template) = from_file.and_then(|f| Template::from_gguf(model, f.metadata())) {
        return Ok(template);
    }
    let parent = model.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    Template::open(folder).map_err(|error| match error {
        TemplateError::Missing { .. } => {
            let places = "its key `tokenizer.chat_template` nor chat_template.jinja in its folder";
            TemplateError::Missing { path: model.to_owned(), places }
        }
        other => other,
    })
}

/// Reads the template of a model, or a file that holds nothing else (`*.jinja`).
pub(crate) fn of_path(path: &Path) -> anyhow::Result<Template> {
    if path.extension().is_some_and(|end| end == "jinja") {
        let text = file::read_text(path, file::TEMPLATE)?;
        return Ok(Template::from_source(&path.display().to_string(), &text, []));
    }
    Ok(of_model(path)?)
}
