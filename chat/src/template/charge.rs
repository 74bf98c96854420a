//! Charges for values that the engine compares, hashes or prints as a whole.
//!
//! A list can hold another one twice, and that one a third one twice: sixty short steps make a value of 2^60 items.
//! The engine compares, hashes and formats such a value without a charge.

use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Most levels of lists and dicts in a value that is compared.
const DEEPEST: usize = 1_000;

/// Items that are left of a lazy result. It is true, and has no length.
#[derive(Debug)]
pub(super) struct Generator {
    items: Mutex<std::vec::IntoIter<Value>>,
}

impl Generator {
    pub(super) fn new(items: Vec<Value>) -> Self {
        Self { items: Mutex::new(items.into_iter()) }
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = Arc::clone(self);
        let next = move || this.items.lock().unwrap_or_else(PoisonError::into_inner).next();
        Enumerator::Iter(Box::new(std::iter::from_fn(next)))
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

/// Charges every item of a value, at all levels, so many times. Refuses values that nest too deeply.
pub(super) fn whole(state: &State<'_, '_>, value: &Value, times: u64) -> Result<(), Error> {
    let mut left = vec![(value.clone(), 0)];
    while let Some((value, depth)) = left.pop() {
        let from = left.len();
        if let Some(generator) = value.downcast_object_ref::<Generator>() {
            let items = generator.items.lock().unwrap_or_else(PoisonError::into_inner);
            state.consume_fuel(times.saturating_mul(items.as_slice().len() as u64))?;
            left.extend(items.as_slice().iter().map(|item| (item.clone(), depth + 1)));
        } else if [ValueKind::Seq, ValueKind::Iterable].contains(&value.kind()) {
            for item in value.try_iter()? {
                state.consume_fuel(times)?;
                left.push((item, depth + 1));
            }
        } else if value.kind() == ValueKind::Map {
            for key in value.try_iter()? {
                state.consume_fuel(times)?;
                left.push((value.get_item(&key)?, depth + 1));
                left.push((key, depth + 1));
            }
        }
        if left.len() > from && depth >= DEEPEST {
            let why = format!("a value of more than {DEEPEST} levels is compared or formatted");
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    }
    Ok(())
}
