//! Sheets and plugins of engines that this crate carries, as texts.

use crate::builtin::{PLUGINS, SHEETS};

/// Returns the sheets of engines: path and text.
pub fn sheets() -> &'static [(&'static str, &'static str)] {
    &SHEETS
}

/// Returns the Python files of engines that run in a process of their own: name and text.
pub fn plugins() -> &'static [(&'static str, &'static str)] {
    &PLUGINS
}
