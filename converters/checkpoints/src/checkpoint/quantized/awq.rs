//! AWQ: `qweight`, `qzeros` and `scales`, with inputs as rows (`gemm`) or as columns (`gemv`).

use super::checks::{FLOATS, SchemeResult};
use super::integer_config::{GroupSize, IntegerConfig};
use super::integers::{CodeAxis, GroupOrder, IntegerLayout, ZeroPoints};
use super::quant_config::QuantConfig;
use super::words::{CodeOrder, PackedCodes};
use super::{Encoding, NamedWeight, QuantizedWeight};
use crate::checkpoint::{Checkpoint, Error};
use formats::FileDtype;

/// Returns the weight that a tensor of codes belongs to, if any.
pub(super) fn find(
    checkpoint: &Checkpoint,
    name: &str,
    config: &QuantConfig,
) -> SchemeResult<NamedWeight> {
    let Some(module) = name.strip_suffix(".qweight") else { return Ok(None) };
    let Some(numbers) = config.of_module(checkpoint, module)? else {
        let actual = format!("codes, though `{}` says that its module has none", config.exceptions);
        return Err(checkpoint.coded(name, actual, "a plain weight".to_owned()));
    };
    let [scales, zeros] = ["scales", "qzeros"].map(|end| format!("{module}.{end}"));
    let parts = vec![name.to_owned(), scales, zeros];
    let (plan, shape) = match config.layout.as_str() {
        "" | "gemm" => wide(checkpoint, &parts, numbers)?,
        "gemv" => tall(checkpoint, &parts, numbers)?,
        other => {
            let expected = "gemm or gemv: convert it to one of them with what made it";
            return Err(checkpoint.config_error("version", other, expected));
        }
    };
    let weight = format!("{module}.weight");
    Ok(Some((weight, QuantizedWeight::new(Encoding::Integers(plan), shape, parts))))
}

/// Plans words packed along the outputs: 4-bit codes interleaved, other widths as a stream.
fn wide(
    checkpoint: &Checkpoint,
    parts: &[String],
    numbers: IntegerConfig,
) -> SchemeResult<(IntegerLayout, Vec<usize>)> {
    let [name, scales, zeros] = parts else { return Err(missing(checkpoint, parts)) };
    let bits = numbers.bits;
    let (inputs, words) = checkpoint.sides(name, FileDtype::I32)?;
    let stored = checkpoint.beside(name, scales)?.shape.clone();
    checkpoint.beside(name, zeros)?;
    let (rows, outputs) = match stored[..] {
        [rows, outputs] => (rows, outputs),
        _ => (0, 0),
    };
    if PackedCodes::needed(outputs, bits) != words || (bits == 4 && !outputs.is_multiple_of(8)) {
        let actual = format!("{words} columns");
        let expected = format!("words for {outputs} outputs of `{scales}`, {bits} bits each");
        return Err(checkpoint.coded(name, actual, expected));
    }
    let size = size(numbers.group, inputs, rows);
    checkpoint.even(name, inputs, size)?;
    let groups = inputs.div_ceil(size);
    checkpoint.shaped(scales, &FLOATS, &[&[groups, outputs]])?;
    checkpoint.shaped(zeros, &[FileDtype::I32], &[&[groups, words]])?;
    let layout = if bits == 4 { CodeOrder::Interleaved } else { CodeOrder::Stream };
    let lines = PackedCodes { layout, ..PackedCodes::stream(bits, words, 1) };
    let plan = IntegerLayout {
        codes: lines,
        lines: CodeAxis::Input,
        zeros: ZeroPoints::Stored { words: lines, by_row: false, low: false },
        down: 1,
        size,
        groups,
        apart: (1, outputs),
        order: GroupOrder::Contiguous,
    };
    Ok((plan, vec![outputs, inputs]))
}

/// Plans words packed along the inputs, with rows of scales and zero points that may be padded.
fn tall(
    checkpoint: &Checkpoint,
    parts: &[String],
    numbers: IntegerConfig,
) -> SchemeResult<(IntegerLayout, Vec<usize>)> {
    let [name, scales, zeros] = parts else { return Err(missing(checkpoint, parts)) };
    let (outputs, words) = checkpoint.sides(name, FileDtype::I32)?;
    if numbers.bits != 4 {
        let actual = numbers.bits.to_string();
        return Err(checkpoint.config_error("bits", &actual, "4 where `version` is gemv"));
    }
    let inputs = words.checked_mul(8).ok_or_else(|| missing(checkpoint, parts))?;
    let stored = checkpoint.beside(name, scales)?.shape.clone();
    let padded = stored.get(1).copied().unwrap_or_default();
    checkpoint.beside(name, zeros)?;
    let size = match numbers.group {
        GroupSize::Of(size) => size,
        GroupSize::All => inputs,
        GroupSize::Unset => {
            return Err(checkpoint.config_error("group_size", "nothing", "the size of a group"));
        }
    };
    let groups = inputs.div_ceil(size);
    let wide = padded.max(groups);
    checkpoint.shaped(scales, &FLOATS, &[&[outputs, wide]])?;
    let line = PackedCodes::needed(wide, 4);
    checkpoint.shaped(zeros, &[FileDtype::I32], &[&[outputs, line]])?;
    let plan = IntegerLayout {
        codes: PackedCodes::stream(4, words, 1),
        lines: CodeAxis::Output,
        zeros: ZeroPoints::Stored {
            words: PackedCodes::stream(4, line, 1),
            by_row: true,
            low: false,
        },
        down: 1,
        size,
        groups,
        apart: (wide, 1),
        order: GroupOrder::Contiguous,
    };
    Ok((plan, vec![outputs, inputs]))
}

fn size(group: GroupSize, inputs: usize, groups: usize) -> usize {
    match group {
        GroupSize::Of(size) => size,
        GroupSize::All => inputs,
        GroupSize::Unset => inputs.div_ceil(groups.max(1)),
    }
}

fn missing(checkpoint: &Checkpoint, parts: &[String]) -> Error {
    let name = parts.first().map_or("", String::as_str);
    checkpoint.coded(name, "no such parts".to_owned(), "codes, scales and zeros".to_owned())
}
