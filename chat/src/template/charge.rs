//! Charges for values that the engine compares, hashes or prints as a whole.
//!
//! A list can hold another one twice, and that one a third one twice: sixty short steps make a value of 2^60 items.
//! The engine compares, hashes and formats such a value without a charge.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::control::check;
use super::generator::Generator;

/// Most levels of lists and dicts in a value that is compared.
const DEEPEST: usize = 1_000;

/// Comparisons of each item of a list that is sorted, as a charge.
pub(super) const COMPARISONS: u64 = 4;

/// Charges steps, and ends a rendering that has to stop.
pub(super) fn spend(state: &State<'_, '_>, steps: u64) -> Result<(), Error> {
    check()?;
    state.consume_fuel(steps)
}

/// Charges every item of a value, at all levels, so many times. Refuses values that nest too deeply.
pub(super) fn whole(state: &State<'_, '_>, value: &Value, times: u64) -> Result<(), Error> {
    let mut left = vec![(value.clone(), 0)];
    while let Some((value, depth)) = left.pop() {
        let from = left.len();
        if let Some(text) = value.as_str() {
            spend(state, text.len() as u64 / 64)?;
        } else if let Some(generator) = value.downcast_object_ref::<Generator>() {
            for item in generator.items() {
                spend(state, times)?;
                left.push((item, depth + 1));
            }
        } else if [ValueKind::Seq, ValueKind::Iterable].contains(&value.kind()) {
            for item in value.try_iter()? {
                spend(state, times)?;
                left.push((item, depth + 1));
            }
        } else if value.kind() == ValueKind::Map {
            for key in value.try_iter()? {
                spend(state, times)?;
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
