//! Numbers that a checkpoint stores as integers.

use formats::FileDtype;

use crate::flow::Error;

/// Integers at and above this are not all in f32.
const LIMIT: u64 = 1 << 24;

/// True for dtypes of integers that [`numbers`] reads.
pub fn is_integer(dtype: FileDtype) -> bool {
    matches!(dtype, FileDtype::I64 | FileDtype::I32)
}

/// Reads little-endian integers of 32 or 64 bits as numbers. An error names one that f32 does not hold.
pub fn numbers(dtype: FileDtype, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    let integers: Vec<i64> = match dtype {
        FileDtype::I64 => {
            bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
        }
        FileDtype::I32 => {
            bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect()
        }
        dtype => return Err(Error::Dtype { dtype }),
    };
    match integers.iter().find(|number| number.unsigned_abs() >= LIMIT) {
        Some(&number) => Err(Error::Integer { number, limit: LIMIT }),
        None => Ok(integers.into_iter().map(|number| number as f32).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: [i64; 2]) -> Vec<u8> {
        numbers.map(i64::to_le_bytes).concat()
    }

    #[test]
    fn integers_are_exact_or_refused() {
        assert_eq!(numbers(FileDtype::I64, &bytes([5, -1])), Ok(vec![5.0, -1.0]));
        let narrow = [7_i32, (1 << 24) - 1].map(i32::to_le_bytes).concat();
        assert_eq!(numbers(FileDtype::I32, &narrow), Ok(vec![7.0, 16_777_215.0]));
        for number in [1 << 24, i64::MIN] {
            let refused = Err(Error::Integer { number, limit: LIMIT });
            assert_eq!(numbers(FileDtype::I64, &bytes([0, number])), refused);
        }
        assert!(numbers(FileDtype::I16, &[0; 4]).is_err());
    }
}
