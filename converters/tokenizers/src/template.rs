//! Reads chat templates: one, or a default and named ones, from any of their places.

use std::path::Path;

use registry::file::{TEMPLATE, read_text};

use super::Error;
use super::doc::{Doc, DocNode};
use checkpoints::checkpoint::outside;
use formats::gguf::Metadata;

const KEY: &str = "tokenizer.chat_template";
const NAMES: &str = "tokenizer.chat_templates";

/// Chat template of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Name: `default`, or another that the checkpoint gives.
    pub name: String,
    /// File, or key and file, that holds the text; ready to print.
    pub place: String,
    /// Text.
    pub text: String,
}

/// Reads the chat templates of a checkpoint, from the first place that has any.
pub fn chat_templates(dir: &Path) -> Result<Vec<ChatTemplate>, Error> {
    // A separate file is the newer place, and takes precedence in the reference too.
    let mut templates = files(dir)?;
    for name in ["tokenizer_config.json", "chat_template.json"] {
        if !templates.is_empty() {
            break;
        }
        let Some(doc) = Doc::read(dir, name)? else { continue };
        if let Some(node) = doc.get("chat_template") {
            lies_inside(dir, &dir.join(name))?;
            templates = of(&node, &dir.join(name))?;
        }
    }
    templates.retain(|one| !one.text.is_empty());
    Ok(templates)
}

/// Writes the templates of a checkpoint.
pub(super) fn write(dir: &Path, keys: &mut Metadata) -> Result<(), Error> {
    let mut names = Vec::new();
    let mut default = None;
    for ChatTemplate { name, text, .. } in chat_templates(dir)? {
        // Other characters are not valid in a key.
        let name: String =
            name.chars().map(|c: char| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if name == "default" {
            default = Some(text);
        } else if !name.is_empty() {
            keys.set(format!("{KEY}.{name}"), text);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if !names.is_empty() {
        keys.set(NAMES, names);
    }
    if let Some(text) = default {
        keys.set(KEY, text);
    }
    Ok(())
}

/// Parses a text, or a list of names and texts.
fn of(node: &DocNode<'_>, file: &Path) -> Result<Vec<ChatTemplate>, Error> {
    if let Some(text) = node.value.as_str() {
        let place = format!("`chat_template` of `{}`", file.display());
        return Ok(vec![ChatTemplate { name: "default".into(), place, text: text.into() }]);
    }
    let list = node.list().map_err(|_| node.wrong("a text, or a list of named ones"))?;
    list.map(|node| named(&node, file)).collect()
}

/// Parses a template with a name.
fn named(node: &DocNode<'_>, file: &Path) -> Result<ChatTemplate, Error> {
    let name = node.need("name", "a text")?.str()?.to_owned();
    let place = format!("`chat_template.{}` of `{}`", formats::shown(&name), file.display());
    let text = node.need("template", "a text")?.str()?.to_owned();
    Ok(ChatTemplate { name, place, text })
}

/// Returns an error if a file is a link out of the checkpoint: its text would be published.
fn lies_inside(dir: &Path, file: &Path) -> Result<(), Error> {
    match outside(dir, file)? {
        None => Ok(()),
        Some(leads) => Err(Error::LeadsOut { file: file.into(), leads }),
    }
}

/// Reads a template inside the checkpoint.
fn inside(dir: &Path, file: &Path) -> Result<String, Error> {
    lies_inside(dir, file)?;
    Ok(read_text(file, TEMPLATE)?)
}

/// Reads a file as a template.
fn read(dir: &Path, name: &str, file: &Path) -> Result<ChatTemplate, Error> {
    let place = format!("`{}`", file.display());
    Ok(ChatTemplate { name: name.to_owned(), place, text: inside(dir, file)? })
}

/// Reads `chat_template.jinja`, and the templates beside it by their file names.
fn files(dir: &Path) -> Result<Vec<ChatTemplate>, Error> {
    let file = dir.join("chat_template.jinja");
    let mut templates = Vec::new();
    // Any existing entry of that name is read, or rejected.
    if file.symlink_metadata().is_ok() {
        templates.push(read(dir, "default", &file)?);
    }
    let folder = dir.join("additional_chat_templates");
    if folder.is_dir() {
        let mut additional = Vec::new();
        for entry in fs_err::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "jinja")
                && let Some(name) = path.file_stem().and_then(|name| name.to_str())
            {
                additional.push(read(dir, name, &path)?);
            }
        }
        additional.sort_by(|a, b| a.name.cmp(&b.name));
        templates.extend(additional);
    }
    Ok(templates)
}
