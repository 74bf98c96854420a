//! Origins of the parts of a spec in the modules of a class.

use std::cell::RefCell;

use crate::record::Record;

/// The modules of a class that a function or a layer program of a spec describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Name of the function, or of the kind of layers.
    pub name: String,
    /// Paths of the modules.
    pub modules: Vec<String>,
    /// The Python class of the modules.
    pub class: String,
}

/// Notes that a function or a layer program describes a module.
pub(crate) fn note(origins: &RefCell<Vec<Origin>>, record: &Record, name: &str, module: &str) {
    let class = record.modules.get(module).map_or_else(String::new, |facts| facts.class.clone());
    let mut origins = origins.borrow_mut();
    match origins.iter_mut().find(|origin| origin.name == name && origin.class == class) {
        Some(origin) => origin.modules.push(module.to_owned()),
        None => {
            origins.push(Origin { name: name.to_owned(), modules: vec![module.to_owned()], class });
        }
    }
}

/// Returns the path of a module with a star for each number.
pub fn starred(path: &str) -> String {
    let parts = path.split('.').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}
