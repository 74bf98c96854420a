//! compressed-tensors integers: `weight_packed` in 32-bit words, or `weight` in bytes.

use super::checks::{FLOATS, SchemeResult};
use super::integers::{CodeAxis, GroupOrder, IntegerLayout, ZeroPoints};
use super::quant_config::QuantConfig;
use super::scheme::{ModuleScheme, SchemeMatch, Strategy, WeightScheme};
use super::words::PackedCodes;
use super::{Encoding, NamedWeight, QuantizedWeight};
use crate::checkpoint::{Checkpoint, Error};
use formats::FileDtype;

/// Returns the weight that a tensor of codes belongs to, if any.
pub(super) fn find(
    checkpoint: &Checkpoint,
    name: &str,
    config: &QuantConfig,
) -> SchemeResult<NamedWeight> {
    let dtype = checkpoint.stored(name).map(|info| info.dtype);
    let (module, packed) = match (name.strip_suffix(".weight_packed"), dtype) {
        (Some(module), Some(FileDtype::I32)) => (module, true),
        (None, Some(FileDtype::I8)) => match name.strip_suffix(".weight") {
            Some(module) => (module, false),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    match config.schemes.of(checkpoint, module)? {
        SchemeMatch::Module(group) => match whole_weights(group) {
            Some(weights) => {
                CodeTensor { checkpoint, name, module, packed, weights: &weights }.named(group)
            }
            None => Err(not_whole(checkpoint, name)),
        },
        SchemeMatch::Ignored => Err(not_whole(checkpoint, name)),
        SchemeMatch::ClassOnly(all) => {
            // Only the model knows module classes, so the first matching group that fits is taken.
            let mut first = None;
            for group in all {
                let Some(weights) = whole_weights(group) else { continue };
                let codes = CodeTensor { checkpoint, name, module, packed, weights: &weights };
                match codes.named(group) {
                    Ok(weight) => return Ok(weight),
                    Err(error) => first = first.or(Some(error)),
                }
            }
            Err(first.unwrap_or_else(|| not_whole(checkpoint, name)))
        }
    }
}

/// Returns the scheme of a group's weights, if they are integers.
fn whole_weights(group: &ModuleScheme) -> Option<WeightScheme> {
    group.weights.filter(|weights| weights.whole)
}

/// Returns the error for a tensor of integer codes whose module has none by the config.
fn not_whole(checkpoint: &Checkpoint, name: &str) -> Error {
    let actual = "codes of integers".to_owned();
    let expected = "a plain weight: `config_groups` and `ignore` of quantization_config say so";
    checkpoint.coded(name, actual, expected.to_owned())
}

/// Tensor of codes with its settings.
struct CodeTensor<'a> {
    checkpoint: &'a Checkpoint,
    name: &'a str,
    module: &'a str,
    packed: bool,
    weights: &'a WeightScheme,
}

impl CodeTensor<'_> {
    /// Returns the weight under its name, with the inputs of its group.
    fn named(&self, group: &ModuleScheme) -> SchemeResult<NamedWeight> {
        let weight = QuantizedWeight { inputs: group.inputs.clone(), ..self.find()? };
        Ok(Some((format!("{}.weight", self.module), weight)))
    }

    fn find(&self) -> SchemeResult<QuantizedWeight> {
        let &Self { checkpoint, name, module, weights, .. } = self;
        let (rows, columns) = self.shape()?;
        let (down, size) = match weights.strategy {
            Strategy::Tensor => (rows, columns),
            Strategy::Channel | Strategy::Other => (1, columns),
            Strategy::Group(size) => (1, size),
            Strategy::Block(down, across) => (down, across),
        };
        if matches!(weights.strategy, Strategy::Group(_)) {
            checkpoint.even(name, columns, size)?;
        }
        let high = rows.div_ceil(down);
        let groups = columns.div_ceil(size);
        let [scales, zeros, order] =
            ["scale", "zero_point", "g_idx"].map(|end| format!("{module}.weight_{end}"));
        checkpoint.beside(name, &scales)?;
        let sides: [&[usize]; 3] = [&[high, groups], &[high], &[]];
        let shapes = match (groups, high) {
            (1, 1) => &sides[..],
            (1, _) => &sides[..2],
            _ => &sides[..1],
        };
        checkpoint.shaped(&scales, &FLOATS, shapes)?;
        let bits = if self.packed { weights.bits } else { 8 };
        let mut parts = vec![name.to_owned(), scales];
        let zero_points = match checkpoint.stored(&zeros) {
            None if weights.symmetric => ZeroPoints::Fixed(1 << (bits - 1)),
            None => {
                checkpoint.beside(name, &zeros)?;
                ZeroPoints::Fixed(0)
            }
            Some(info) if info.dtype == FileDtype::I8 => {
                checkpoint.shaped(&zeros, &[FileDtype::I8], shapes)?;
                // The zero points are shifted by the same offset as the codes.
                let plus = (1_u32 << (bits - 1)).wrapping_sub(128);
                let words = PackedCodes { plus, ..PackedCodes::bytes(groups) };
                ZeroPoints::Stored { words, by_row: true, low: false }
            }
            Some(_) => {
                let tall = PackedCodes::needed(high, bits);
                checkpoint.shaped(&zeros, &[FileDtype::I32], &[&[tall, groups]])?;
                let words = PackedCodes::stream(bits, 1, groups);
                ZeroPoints::Stored { words, by_row: false, low: false }
            }
        };
        parts.extend(checkpoint.stored(&zeros).map(|_| zeros));
        let ordered = checkpoint.stored(&order).is_some() && groups > 1;
        if ordered {
            checkpoint.shaped(&order, &[FileDtype::I32], &[&[columns]])?;
            parts.push(order);
        }
        let codes = if self.packed {
            PackedCodes::stream(bits, PackedCodes::needed(columns, bits), 1)
        } else {
            PackedCodes::bytes(columns)
        };
        let plan = IntegerLayout {
            codes,
            lines: CodeAxis::Output,
            zeros: zero_points,
            down,
            size,
            groups,
            apart: (groups, 1),
            order: if ordered { GroupOrder::StoredIfSet } else { GroupOrder::Contiguous },
        };
        Ok(QuantizedWeight::new(Encoding::Integers(plan), vec![rows, columns], parts))
    }

    /// Returns rows and columns of the weight: those of its bytes, or those of `weight_shape`, which must
    /// match the capacity of the words.
    fn shape(&self) -> SchemeResult<(usize, usize)> {
        let &Self { checkpoint, name, module, weights, packed } = self;
        if !packed {
            return checkpoint.sides(name, FileDtype::I8);
        }
        let (rows, words) = checkpoint.sides(name, FileDtype::I32)?;
        let shape_name = format!("{module}.weight_shape");
        let info = checkpoint.beside(name, &shape_name)?;
        let bytes = checkpoint.stored_bytes(&shape_name)?;
        let sides: Vec<i64> = match info.dtype {
            FileDtype::I64 => {
                bytes.as_chunks::<8>().0.iter().take(3).map(|b| i64::from_le_bytes(*b)).collect()
            }
            FileDtype::I32 => {
                let numbers = bytes.as_chunks::<4>().0.iter().take(3);
                numbers.map(|b| i32::from_le_bytes(*b).into()).collect()
            }
            _ => Vec::new(),
        };
        match sides[..] {
            [tall, wide] if usize::try_from(tall) == Ok(rows) => {
                let columns = usize::try_from(wide).ok().filter(|&columns| {
                    columns > 0 && PackedCodes::needed(columns, weights.bits) == words
                });
                columns.map(|columns| (rows, columns))
            }
            _ => None,
        }
        .ok_or_else(|| {
            let actual = format!("{sides:?} of {}", info.dtype);
            let bits = weights.bits;
            let expected = format!(
                "[{rows}, columns] whose columns fill the {words} words of a row of `{name}`, \
                 {bits} bits each"
            );
            checkpoint.coded(&shape_name, actual, expected)
        })
    }
}
