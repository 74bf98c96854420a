//! `input_activations`: rounding of the rows that a quantized matrix multiplies.
//!
//! Operations and their order follow compressed-tensors (names from `quantization/quant_args.py`,
//! arithmetic from `quantization/lifecycle/forward.py`). Unsupported settings are an error only when the
//! rounding is requested, because weights can be read without it.
//!
//! Runs round as their reference did ([decision 33](../../../../../docs/decisions/0033-activation-rounding.md)).

use serde_json::{Map, Value};

use super::checks::SchemeResult;
use super::section::{non_null, section};
use crate::checkpoint::Checkpoint;
use formats::FileDtype;
use formats::numbers;
use registry::dtype::Dtype;

/// Rounding of rows before a matrix multiplies them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounding {
    /// Codes that the values are rounded to.
    pub codes: CodeType,
    /// Values that share a scale.
    pub shared: ScaleSharing,
}

/// Code type that a value divided by its scale is rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeType {
    /// e4m3 floating point.
    E4m3,
    /// Signed integer.
    Integer {
        /// Number of bits, at most 8.
        bits: u32,
        /// True if zero is encoded as 0.
        symmetric: bool,
    },
    /// Floating point of a run's dtype, without a scale.
    Float(Dtype),
}

/// Range of values that share a scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScaleSharing {
    /// Each row has its own scale.
    Row,
    /// Each group of consecutive values of a row has its own scale.
    Group(usize),
    /// All values share one calibrated scale.
    Fixed {
        /// Scale of all values.
        scale: f32,
        /// Zero point.
        zero: f32,
    },
}

/// Input rounding that a config declares for a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum InputScheme {
    /// Inputs are not rounded.
    None,
    /// Scales are computed at run time.
    Dynamic(CodeType, Option<usize>),
    /// The scale is stored beside the weight.
    Stored(CodeType),
    /// The scale is stored beside the weight if present, else each row has its own.
    StoredOrDynamic(CodeType),
    /// Unsupported setting, quoted from the config.
    Other(String),
}

impl InputScheme {
    /// Parses the input rounding of a group.
    pub(super) fn of_group(fields: &Map<String, Value>) -> Self {
        // Rounding inputs but not outputs would reproduce neither the original model nor the quantized one.
        match fields.get("output_activations").filter(|setting| !setting.is_null()) {
            Some(setting) => Self::Other(formats::shown(&format!("output_activations: {setting}"))),
            None => Self::read(fields.get("input_activations")),
        }
    }

    fn read(setting: Option<&Value>) -> Self {
        let Some(setting) = setting.filter(|setting| !setting.is_null()) else { return Self::None };
        Self::parse(setting).unwrap_or_else(|| Self::Other(formats::shown(&setting.to_string())))
    }

    /// Parses a rounding with the defaults of `QuantizationArgs`.
    fn parse(setting: &Value) -> Option<Self> {
        if !setting.is_object() {
            return None;
        }
        let bits = non_null(setting, "num_bits").map_or(Some(8), Value::as_u64)?;
        let symmetric = flag(setting, "symmetric", true)?;
        let ty = non_null(setting, "type").map_or(Some("int".to_owned()), lower_case)?;
        let codes = match (ty.as_str(), bits) {
            ("int", bits @ 2..=8) => CodeType::Integer { bits: bits as u32, symmetric },
            ("float", 8) if symmetric => CodeType::E4m3,
            _ => return None,
        };
        // Scales that are themselves rounded belong to 4-bit formats.
        if non_null(setting, "scale_dtype").is_some() {
            return None;
        }
        let size = non_null(setting, "group_size").map(|size| usize::try_from(size.as_u64()?).ok());
        let strategy = match non_null(setting, "strategy") {
            None => None,
            Some(value) => Some(lower_case(value)?),
        };
        Some(match (flag(setting, "dynamic", false)?, strategy.as_deref(), size) {
            (true, Some("token"), _) => Self::Dynamic(codes, None),
            (true, Some("group") | None, Some(Some(size @ 1..))) => {
                Self::Dynamic(codes, Some(size))
            }
            (false, Some("tensor") | None, None) => Self::Stored(codes),
            _ => return None,
        })
    }
}

/// Returns a setting that is true or false; none if it is anything else.
fn flag(setting: &Value, key: &str, default: bool) -> Option<bool> {
    non_null(setting, key).map_or(Some(default), Value::as_bool)
}

/// Returns a text in lower case; none if the value is no text.
fn lower_case(value: &Value) -> Option<String> {
    value.as_str().map(str::to_lowercase)
}

impl Checkpoint {
    /// Returns the input rounding of a weight; none if the config declares none. Returns an error that
    /// names the weight if the config asks for an unsupported one.
    pub fn rounding(&self, weight: &str) -> SchemeResult<Option<Rounding>> {
        let Some(quantized) = self.quantized.get(weight) else { return Ok(None) };
        let module = weight.strip_suffix("weight").unwrap_or(weight);
        let codes_of = quantized.parts.first().map_or(weight, String::as_str);
        // Some programs use the other name (`activation_scale`, which vLLM treats as `input_scale`).
        let name = ["input_scale", "activation_scale"].map(|end| format!("{module}{end}"));
        let name = name.iter().find(|name| self.stored(name).is_some()).unwrap_or(&name[0]);
        Ok(Some(match &quantized.inputs {
            InputScheme::None => return Ok(None),
            &InputScheme::Dynamic(codes, None) => Rounding { codes, shared: ScaleSharing::Row },
            &InputScheme::Dynamic(codes, Some(size)) => {
                // Blocks may be ragged, and then the last e4m3 group of a row may be too.
                let inputs = quantized.shape.get(1).copied().unwrap_or(0);
                if codes != CodeType::E4m3 {
                    self.even(codes_of, inputs, size)?;
                }
                Rounding { codes, shared: ScaleSharing::Group(size) }
            }
            &InputScheme::Stored(codes) => {
                self.beside(codes_of, name)?;
                let scale = self.scale(name)?.unwrap_or(1.0);
                self.fixed_rounding(codes_of, module, codes, scale)?
            }
            &InputScheme::StoredOrDynamic(codes) => match self.scale(name)? {
                Some(scale) => self.fixed_rounding(codes_of, module, codes, scale)?,
                None => Rounding { codes, shared: ScaleSharing::Row },
            },
            InputScheme::Other(setting) => {
                let key = format!("input_activations of `{}`", module.trim_end_matches('.'));
                let expected = "integers of 2 to 8 bits or floats of 8, per token, in groups or \
                                with a stored scale: nothing else is rounded here";
                return Err(self.config_error(&key, setting, expected));
            }
        }))
    }

    /// Returns the rounding with a calibrated scale. The zero point of asymmetric codes is stored in `module`, whose
    /// weight has its codes in the tensor `codes_of`.
    fn fixed_rounding(
        &self,
        codes_of: &str,
        module: &str,
        codes: CodeType,
        scale: f32,
    ) -> SchemeResult<Rounding> {
        let zero = match codes {
            CodeType::Integer { symmetric: false, .. } => {
                self.input_zero(codes_of, &format!("{module}input_zero_point"))?
            }
            _ => 0.0,
        };
        Ok(Rounding { codes, shared: ScaleSharing::Fixed { scale, zero } })
    }

    /// True if the config declares input rounding for any weight.
    pub fn rounds_inputs(&self) -> bool {
        self.quantized.values().any(|quantized| quantized.inputs != InputScheme::None)
    }

    /// True if the config declares rounding of keys and values.
    pub fn rounds_caches(&self) -> bool {
        let setting = section(self.root());
        setting.is_some_and(|(setting, _)| {
            setting.get("kv_cache_scheme").is_some_and(|x| !x.is_null())
        })
    }

    /// Reads the zero point that is stored under this name.
    fn input_zero(&self, weight: &str, name: &str) -> SchemeResult<f32> {
        let info = self.beside(weight, name)?;
        let bytes = self.stored_bytes(name)?;
        let zero = match (info.dtype, bytes) {
            (FileDtype::I8, &[byte]) => f32::from(byte.cast_signed()),
            (FileDtype::I32, bytes) => match bytes.as_chunks::<4>() {
                ([one], []) => i32::from_le_bytes(*one) as f32,
                _ => f32::NAN,
            },
            (dtype, bytes) if dtype.is_float() && bytes.len() == dtype.size() => {
                let mut one = [f32::NAN];
                numbers::to_f32(dtype, bytes, &mut one).ok();
                one[0]
            }
            _ => f32::NAN,
        };
        if (-128.0..=127.0).contains(&zero) && zero.fract() == 0.0 {
            return Ok(zero);
        }
        let actual = format!("{} numbers of {}, the first {zero}", info.elements(), info.dtype);
        Err(self.coded(name, actual, "one integer from -128 to 127".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_config_become_roundings() {
        for (setting, want) in [
            (
                r#"{"dynamic": true, "strategy": "token"}"#,
                Some(InputScheme::Dynamic(eight_bits(true), None)),
            ),
            (
                r#"{"type": "INT", "num_bits": 8, "symmetric": false, "dynamic": true, "strategy": "token"}"#,
                Some(InputScheme::Dynamic(eight_bits(false), None)),
            ),
            (r#"{"symmetric": false}"#, Some(InputScheme::Stored(eight_bits(false)))),
            (
                r#"{"type": "float", "dynamic": true, "strategy": "group", "group_size": 32}"#,
                Some(InputScheme::Dynamic(CodeType::E4m3, Some(32))),
            ),
            (r#"{"dynamic": true, "strategy": "tensor"}"#, None),
            (r#"{"dynamic": "local", "strategy": "tensor_group", "group_size": 16}"#, None),
            (r#"{"num_bits": 4, "type": "float", "dynamic": true, "strategy": "token"}"#, None),
            (r#"{"dynamic": true, "strategy": "group", "group_size": 0}"#, None),
            (r#"{"num_bits": 16}"#, None),
            ("7", None),
        ] {
            let value: Value = serde_json::from_str(setting).expect("JSON");
            match (InputScheme::read(Some(&value)), want) {
                (InputScheme::Other(_), None) => {}
                (scheme, want) => assert_eq!(Some(scheme), want, "{setting}"),
            }
        }
        assert_eq!(InputScheme::read(None), InputScheme::None);
        assert_eq!(InputScheme::read(Some(&Value::Null)), InputScheme::None);
    }

    fn eight_bits(symmetric: bool) -> CodeType {
        CodeType::Integer { bits: 8, symmetric }
    }
}
