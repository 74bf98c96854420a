//! Checks on the tensors that a checkpoint stores for a quantized weight, with error messages.

use crate::checkpoint::{Checkpoint, Error, TensorInfo};
use formats::FileDtype;
use formats::shown;

/// Advice for a checkpoint that does not match its config.
pub(super) const AGAIN: &str = "the file is damaged or was made by a program with another layout: \
                                download it again, or quantize the model again";

pub(super) type SchemeResult<T> = Result<T, Error>;

impl Checkpoint {
    /// Returns an error about a tensor.
    pub(super) fn coded(&self, tensor: &str, actual: String, expected: String) -> Error {
        let file = self.stored(tensor).and_then(|info| self.files().get(info.file));
        Error::Coded {
            file: file.map_or(self.root(), |file| file.as_path()).into(),
            tensor: shown(tensor),
            found: actual,
            expected,
            advice: AGAIN,
        }
    }

    /// Returns an error about a config key.
    pub(super) fn config_error(&self, key: &str, actual: &str, expected: &str) -> Error {
        Error::Quantization {
            root: self.root().into(),
            key: shown(key),
            found: shown(actual),
            expected: expected.to_owned(),
        }
    }

    /// Returns an error if groups do not fill the inputs, which packing programs reject too.
    pub(super) fn even(&self, tensor: &str, inputs: usize, size: usize) -> SchemeResult<()> {
        if inputs.is_multiple_of(size.max(1)) {
            return Ok(());
        }
        let actual = format!("{inputs} inputs");
        Err(self.coded(tensor, actual, format!("a multiple of `group_size`, which is {size}")))
    }

    /// Returns a tensor that the weight of `tensor` requires.
    pub(super) fn beside(&self, tensor: &str, name: &str) -> SchemeResult<&TensorInfo> {
        self.stored(name).ok_or_else(|| {
            let actual = format!("no `{}` beside it", shown(name));
            self.coded(tensor, actual, "one that says the type of its codes".to_owned())
        })
    }

    /// Checks the shape and dtype of a tensor.
    pub(super) fn shaped(
        &self,
        name: &str,
        dtypes: &[FileDtype],
        shapes: &[&[usize]],
    ) -> SchemeResult<()> {
        let Some(info) = self.stored(name) else { return Ok(()) };
        if dtypes.contains(&info.dtype) && shapes.contains(&info.shape.as_slice()) {
            return Ok(());
        }
        let expected: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
        let dtypes: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
        let actual = format!("shape {:?} of {}", info.shape, info.dtype);
        Err(self.coded(name, actual, format!("{} of {}", expected.join(" or "), dtypes.join(", "))))
    }

    /// Returns the two sides of a tensor of codes.
    pub(super) fn sides(&self, name: &str, dtype: FileDtype) -> SchemeResult<(usize, usize)> {
        match self.stored(name) {
            Some(info) if info.dtype == dtype => match info.shape[..] {
                [a, b] if a > 0 && b > 0 => return Ok((a, b)),
                _ => {}
            },
            _ => {}
        }
        let actual = self.stored(name).map_or("nothing".to_owned(), |info| {
            format!("shape {:?} of {}", info.shape, info.dtype)
        });
        Err(self.coded(name, actual, format!("rows and columns of {dtype}")))
    }
}

/// Dtypes that scales may have.
pub(super) const FLOATS: [FileDtype; 3] = [FileDtype::F16, FileDtype::Bf16, FileDtype::F32];
