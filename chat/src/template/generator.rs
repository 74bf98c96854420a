//! Results of filters that give their items once, as generators of Python do.

use std::sync::{Arc, Mutex, PoisonError};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

/// Items that are left of a lazy result. It is true, and has no length.
#[derive(Debug)]
pub(super) struct Generator {
    items: Mutex<std::vec::IntoIter<Value>>,
}

impl Generator {
    pub(super) fn new(items: Vec<Value>) -> Self {
        Self { items: Mutex::new(items.into_iter()) }
    }

    /// Returns the items that are left, and leaves them.
    pub(super) fn items(&self) -> Vec<Value> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).as_slice().to_vec()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = Arc::clone(self);
        Enumerator::Iter(Box::new(std::iter::from_fn(move || {
            this.items.lock().unwrap_or_else(PoisonError::into_inner).next()
        })))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<generator object>")
    }
}
