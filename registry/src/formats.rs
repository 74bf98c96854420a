//! Files of the formats of tool calls and reasoning, which the program embeds.
//!
//! The crate of conversations reads them; here they are texts with a name.

use std::sync::Arc;

use crate::diag::SourceText;

/// Returns the files by their name without its end.
pub fn builtin() -> impl Iterator<Item = (&'static str, Arc<SourceText>)> {
    crate::builtin::FORMATS.iter().map(|(path, text)| {
        let name = path.rsplit('/').next().and_then(|name| name.strip_suffix(".yaml"));
        let source = SourceText { path: (*path).to_owned(), text: (*text).to_owned() };
        (name.unwrap_or(path), Arc::new(source))
    })
}
