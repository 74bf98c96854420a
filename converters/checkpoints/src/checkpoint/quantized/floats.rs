//! Floating-point codes: 8 bits in blocks, or 4 bits in groups of a row.

use std::collections::BTreeMap;

use super::checks::SchemeResult;
use super::quant_config::QuantConfig;
use super::scheme::ModuleScheme;
use super::{Encoding, GlobalScale, NamedWeight, QuantizedWeight};
use crate::checkpoint::{Checkpoint, Error, TensorInfo};
use formats::FileDtype;

/// Returns the weight that a tensor of codes belongs to, if any.
pub(super) fn find(
    checkpoint: &Checkpoint,
    name: &str,
    config: &QuantConfig,
) -> SchemeResult<NamedWeight> {
    let stored = &checkpoint.stored;
    let Some(info) = stored.get(name) else { return Ok(None) };
    let eight_bits = matches!(info.dtype, FileDtype::F8E4m3 | FileDtype::F8E5m2);
    if !eight_bits && info.dtype != FileDtype::U8 {
        return Ok(None);
    }
    let module = name.strip_suffix("_packed").unwrap_or(name);
    let module = module.strip_suffix(".weight").unwrap_or(module);
    let group = config.schemes.of_floats(checkpoint, module)?;
    let named = if eight_bits {
        eight(checkpoint, name, info, group.and_then(ModuleScheme::block).or(config.block))?
    } else {
        four(checkpoint, name, info)?
    };
    let Some((weight, quantized)) = named else { return Ok(None) };
    let inputs = match group {
        Some(group) => group.inputs.clone(),
        None => config.inputs_of(info.dtype),
    };
    Ok(Some((weight, QuantizedWeight { inputs, ..quantized })))
}

/// Returns the name of the scales beside 8-bit codes, if there are any.
pub(super) fn scale_of(name: &str, stored: &BTreeMap<String, TensorInfo>) -> Option<String> {
    let ends = ["_scale_inv", "_scale"];
    ends.iter().map(|end| format!("{name}{end}")).find(|n| stored.contains_key(n))
}

fn eight(
    checkpoint: &Checkpoint,
    name: &str,
    info: &TensorInfo,
    block: Option<(usize, usize)>,
) -> SchemeResult<NamedWeight> {
    let stored = &checkpoint.stored;
    let Some(scale) = scale_of(name, stored) else { return Ok(None) };
    let sides = &stored[&scale].shape;
    // Codes without their scales would be taken for values.
    let &[rows, columns] = &info.shape[..] else {
        return Err(unknown_layout(checkpoint, name, info, &scale));
    };
    let bytes = stored[&scale].dtype == FileDtype::U8;
    let (down, across) = match sides[..] {
        // MXFP8: power-of-two scales stored as bytes.
        _ if bytes => (1, 32),
        _ if sides.iter().all(|&side| side == 1) => (rows, columns),
        [n] | [n, 1] if n == rows => (1, columns),
        _ => block.unwrap_or((128, 128)),
    };
    let down = down.max(1);
    let across = across.max(1);
    let needed = rows.div_ceil(down) * columns.div_ceil(across);
    // Compared as rows and columns, ignoring axes of one: a transposed shape would pass too.
    let blocks = [rows.div_ceil(down), columns.div_ceil(across)];
    let lies = without_ones(sides) == without_ones(&blocks);
    if stored[&scale].elements() != needed || !lies || !(bytes || stored[&scale].dtype.is_float()) {
        return Err(unknown_layout(checkpoint, name, info, &scale));
    }
    let parts = vec![name.to_owned(), scale];
    let weight = QuantizedWeight::new(Encoding::Fp8(down, across), info.shape.clone(), parts);
    Ok(Some((name.to_owned(), weight)))
}

/// Returns the error for 8-bit codes whose scales have an unknown shape.
fn unknown_layout(checkpoint: &Checkpoint, name: &str, codes: &TensorInfo, scale: &str) -> Error {
    let actual = described(codes, scale, &checkpoint.stored[scale]);
    let expected = "one scale, one for each row, or one for each block of the `weight_block_size`";
    checkpoint.coded(name, actual, expected.to_owned())
}

/// Describes codes and their scales, for an error.
fn described(codes: &TensorInfo, scale: &str, scales: &TensorInfo) -> String {
    let ty = scales.dtype.name();
    let sides = &scales.shape;
    let shape = &codes.shape;
    format!("codes of shape {shape:?} with scales `{scale}` of {ty} and shape {sides:?}")
}

/// Returns the sides that are not 1.
fn without_ones(sides: &[usize]) -> Vec<usize> {
    sides.iter().copied().filter(|&side| side != 1).collect()
}

fn four(checkpoint: &Checkpoint, name: &str, info: &TensorInfo) -> SchemeResult<NamedWeight> {
    let stored = &checkpoint.stored;
    let weight = name.strip_suffix("_packed").unwrap_or(name).to_owned();
    let &[rows, half] = &info.shape[..] else { return Ok(None) };
    let scale = format!("{weight}_scale");
    let (Some(columns), Some(scales)) = (half.checked_mul(2), stored.get(&scale)) else {
        return Ok(None);
    };
    let run = scales.elements().checked_div(rows).and_then(|runs| columns.checked_div(runs));
    // 6-bit codes are bytes too, and would give groups of 48.
    let Some(group) = run.filter(|group| [16, 32].contains(group)) else { return Ok(None) };
    let expected = [rows, columns.div_ceil(group)];
    let bytes = matches!(scales.dtype, FileDtype::F8E4m3 | FileDtype::F8E8m0 | FileDtype::U8);
    if info.dtype != FileDtype::U8
        || !weight.ends_with("weight")
        || rows.checked_mul(expected[1]) != Some(scales.elements())
        || !bytes
    {
        return Ok(None);
    }
    // A transposed shape, or bytes of another format, would pass too.
    let sixteens = group == 16;
    if (scales.dtype == FileDtype::F8E4m3) != sixteens || scales.shape != expected {
        let actual = described(info, &scale, scales);
        let dtype = if sixteens { FileDtype::F8E4m3 } else { FileDtype::U8 };
        let expected = format!("scales of {} and shape {expected:?}", dtype.name());
        return Err(checkpoint.coded(name, actual, expected));
    }
    let globals = [
        (format!("{weight}_global_scale"), GlobalScale::Divides),
        (format!("{weight}_scale_2"), GlobalScale::Multiplies),
    ];
    let global = globals.into_iter().find(|(name, _)| {
        stored.get(name).is_some_and(|info| info.elements() == 1 && info.dtype.is_float())
    });
    let mut parts = vec![name.to_owned(), scale];
    let how = global.as_ref().map_or(GlobalScale::None, |(_, how)| *how);
    parts.extend(global.map(|(name, _)| name));
    Ok(Some((weight, QuantizedWeight::new(Encoding::Fp4(group, how), vec![rows, columns], parts))))
}
