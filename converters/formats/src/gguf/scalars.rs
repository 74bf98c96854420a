//! Small weights that a file stores as keys instead of tensors.

use registry::graph::Weight;

use super::{Metadata, MetadataArray, MetadataValue};
use crate::shown;

/// Maximum number of values of one key.
pub const MOST: usize = 1 << 20;

/// Reason that weights cannot be read from a key. Names are escaped, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("the weights of the key `{key}` have too many numbers")]
    TooMany { key: String },
    #[error("there is no key `{key}`")]
    Missing { key: String },
    #[error("the key `{key}` is {found}, expected numbers of kind f32")]
    Kind { key: String, found: String },
    #[error("the key `{key}` has {found} numbers, the model has {expected}")]
    Count { key: String, found: usize, expected: usize },
}

/// Returns the total number of values of some weights, if a key can hold that many.
pub fn count(places: &[usize], weights: &[Weight]) -> Option<usize> {
    let counts = places.iter().map(|&place: &usize| {
        weights[place].shape.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim))
    });
    counts.into_iter().try_fold(0_usize, |sum, n| sum.checked_add(n?)).filter(|&n| n <= MOST)
}

/// Reads the values of each weight from its key: concatenated, or one value for all.
pub fn read(
    metadata: &Metadata,
    key: &str,
    places: &[usize],
    weights: &[Weight],
) -> Result<Vec<Vec<f32>>, Error> {
    let expected = count(places, weights).ok_or_else(|| Error::TooMany { key: shown(key) })?;
    let numbers = match metadata.get(key) {
        Some(MetadataValue::F32(x)) => vec![*x; expected],
        Some(MetadataValue::Array(MetadataArray::F32(numbers))) => numbers.clone(),
        Some(other) => {
            return Err(Error::Kind { key: shown(key), found: other.kind_name() });
        }
        None => return Err(Error::Missing { key: shown(key) }),
    };
    if numbers.len() != expected {
        return Err(Error::Count { key: shown(key), found: numbers.len(), expected });
    }
    let mut remaining = numbers.as_slice();
    let mut lists = Vec::with_capacity(places.len());
    for &place in places {
        let (now, later) = remaining.split_at(weights[place].shape.iter().product());
        lists.push(now.to_vec());
        remaining = later;
    }
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::dtype::DtypeRule;
    use registry::text::MappedText;

    fn weight(shape: &[usize]) -> Weight {
        let at = MappedText::whole("t", "").span();
        Weight {
            name: "w".into(),
            shape: shape.to_vec(),
            dtype: DtypeRule::Activation,
            integers: false,
            at,
        }
    }

    #[test]
    fn numbers_come_back_weight_by_weight() {
        let weights = [weight(&[2]), weight(&[]), weight(&[1])];
        let mut keys = Metadata::new();
        keys.set("list", MetadataValue::Array(MetadataArray::F32(vec![1.0, 2.0, 3.0, 4.0])));
        keys.set("one", MetadataValue::F32(7.0));
        keys.set("text", MetadataValue::String("x".into()));
        assert_eq!(
            read(&keys, "list", &[2, 0, 1], &weights).unwrap(),
            [vec![1.0], vec![2.0, 3.0], vec![4.0]]
        );
        assert_eq!(read(&keys, "one", &[0, 1], &weights).unwrap(), [vec![7.0, 7.0], vec![7.0]]);
        for (key, places, expected) in [
            ("list", &[0][..], "the key `list` has 4 numbers, the model has 2"),
            ("text", &[0], "the key `text` is string, expected numbers of kind f32"),
            ("none", &[0], "there is no key `none`"),
        ] {
            let error = read(&keys, key, places, &weights).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let huge = [weight(&[MOST]), weight(&[usize::MAX, 2])];
        assert_eq!(
            (count(&[0], &huge), count(&[0, 0], &huge), count(&[1], &huge)),
            (Some(MOST), None, None)
        );
    }
}
