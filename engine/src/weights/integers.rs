//! Weights that are stored as integers.

use checkpoints::load::WeightView;
use formats::safetensors::FileDtype;
use formats::shown;

use super::wrong_dtype;
use crate::Error;

/// Integers at and above this are not all in f32.
const LIMIT: u64 = 1 << 24;

/// Reads the integers of a weight, in 32 or 64 bits, as numbers.
pub(super) fn widen(view: &WeightView<'_>, name: &str, elements: usize) -> Result<Vec<f32>, Error> {
    if view.bytes.len() != elements * view.dtype.size() {
        return Err(wrong_dtype(name, view.dtype.name()));
    }
    let integers: Vec<i64> = match view.dtype {
        FileDtype::I64 => {
            view.bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
        }
        FileDtype::I32 => {
            view.bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect()
        }
        other => return Err(wrong_dtype(name, other.name())),
    };
    match integers.iter().find(|number| number.unsigned_abs() >= LIMIT) {
        Some(number) => Err(Error::Other(format!(
            "`{}` has the integer {number}; expected numbers below {LIMIT}",
            shown(name)
        ))),
        None => Ok(integers.into_iter().map(|number| number as f32).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dtype: FileDtype, bytes: &[u8]) -> Result<Vec<f32>, String> {
        let view = WeightView { dtype, shape: &[2], bytes };
        widen(&view, "lists", 2).map_err(|error| error.to_string())
    }

    #[test]
    fn integers_are_exact_or_refused() {
        let bytes = |numbers: [i64; 2]| numbers.map(i64::to_le_bytes).concat();
        assert_eq!(read(FileDtype::I64, &bytes([5, -1])), Ok(vec![5.0, -1.0]));
        let narrow = [7_i32, (1 << 24) - 1].map(i32::to_le_bytes).concat();
        assert_eq!(read(FileDtype::I32, &narrow), Ok(vec![7.0, 16_777_215.0]));
        for large in [1 << 24, i64::MIN] {
            assert!(read(FileDtype::I64, &bytes([0, large])).unwrap_err().contains("`lists`"));
        }
        assert!(read(FileDtype::I64, &narrow).is_err());
        assert!(read(FileDtype::I16, &[0; 4]).is_err());
    }
}
