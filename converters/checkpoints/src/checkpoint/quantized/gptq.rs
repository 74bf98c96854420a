//! GPTQ: `qweight`, `qzeros`, `scales` and `g_idx`, with inputs as rows.
//!
//! Zero points wrap as their packer wraps them ([decision 37](../../../../../docs/decisions/0037-gptq-zero-points.md)).

use super::checks::{FLOATS, SchemeResult};
use super::integer_config::{GroupSize, IntegerConfig};
use super::integers::{CodeAxis, GroupOrder, IntegerLayout, ZeroPoints};
use super::quant_config::QuantConfig;
use super::words::{CodeOrder, PackedCodes};
use super::{Encoding, NamedWeight, QuantizedWeight};
use crate::checkpoint::Checkpoint;
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
    let IntegerConfig { bits, group } = numbers;
    if !["", "gptq", "gptq_v2", "gptq_p"].contains(&config.layout.as_str()) {
        let expected = "gptq, gptq_v2 or gptq_p: convert it to one of them with what made it";
        return Err(checkpoint.config_error("checkpoint_format", &config.layout, expected));
    }
    let planes = config.planes && matches!(bits, 5..=7) || config.layout == "gptq_p";
    let layout = if planes { CodeOrder::Planes } else { CodeOrder::Stream };
    let low = matches!(config.layout.as_str(), "" | "gptq");
    let (tall, outputs) = checkpoint.sides(name, FileDtype::I32)?;
    let [scales, zeros, order] = ["scales", "qzeros", "g_idx"].map(|end| format!("{module}.{end}"));
    let groups = match checkpoint.beside(name, &scales)?.shape[..] {
        [groups, _] => groups,
        _ => 0,
    };
    checkpoint.beside(name, &zeros)?;
    let inputs = match checkpoint.stored(&order) {
        Some(info) => info.elements(),
        None => default_inputs(tall, bits, groups, group),
    };
    if inputs == 0 || PackedCodes::needed(inputs, bits) != tall {
        let actual = format!("{tall} rows");
        let needed = PackedCodes::needed(inputs, bits);
        let many = "rows for the";
        let expected = format!("{needed} {many} {inputs} inputs of `{order}`, {bits} bits each");
        return Err(checkpoint.coded(name, actual, expected));
    }
    let size = match group {
        GroupSize::All => inputs,
        GroupSize::Of(size) => size,
        GroupSize::Unset => inputs.div_ceil(groups.max(1)),
    };
    let groups = inputs.div_ceil(size);
    checkpoint.shaped(&scales, &FLOATS, &[&[groups, outputs]])?;
    let wide = PackedCodes::needed(outputs, bits);
    checkpoint.shaped(&zeros, &[FileDtype::I32], &[&[groups, wide]])?;
    checkpoint.shaped(&order, &[FileDtype::I32], &[&[inputs]])?;
    let told = checkpoint.stored(&order).is_some();
    let plus = match bits {
        // 1 in each code of a word.
        2 | 4 | 8 if low && config.borrowed => u32::MAX / ((1 << bits) - 1),
        _ => 0,
    };
    let words = PackedCodes { layout, plus, ..PackedCodes::stream(bits, wide, 1) };
    let plan = IntegerLayout {
        codes: PackedCodes { layout, ..PackedCodes::stream(bits, 1, outputs) },
        lines: CodeAxis::Output,
        zeros: ZeroPoints::Stored { words, by_row: false, low: low && plus == 0 },
        down: 1,
        size,
        groups,
        apart: (1, outputs),
        order: if told { GroupOrder::Stored } else { GroupOrder::Contiguous },
    };
    let mut parts = vec![name.to_owned(), scales, zeros];
    parts.extend(told.then_some(order));
    let kind = Encoding::Integers(plan);
    let shape = vec![outputs, inputs];
    Ok(Some((format!("{module}.weight"), QuantizedWeight::new(kind, shape, parts))))
}

/// Infers the number of inputs if no tensor gives it. It is the capacity of the words, unless the groups
/// end slightly earlier.
fn default_inputs(tall: usize, bits: u32, groups: usize, group: GroupSize) -> usize {
    let capacity = tall / bits as usize * 32 + tall % bits as usize * 32 / bits as usize;
    match group {
        GroupSize::Of(size) => match groups.checked_mul(size) {
            Some(inputs) if PackedCodes::needed(inputs, bits) == tall => inputs,
            _ => capacity,
        },
        _ => capacity,
    }
}
