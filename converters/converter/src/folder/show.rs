//! The plan of a folder: every tensor with its reason, and its limits.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use conversion::folder::{FolderTensor, format::split_limits};
use registry::quantity::bytes as size;
use serde_json::json;

use crate::error::Result;
use crate::folder_plan::FolderPlan;

/// Formats the plan for people.
pub(super) fn text(plan: &FolderPlan<'_>) -> String {
    let bytes: u64 = plan.files.iter().map(|file| file.len).sum();
    let mut text = format!(
        "{} as {}, {} tensors, {} quantized\n\n{}  {} in {} file(s)\n",
        plan.target.name,
        plan.format.name(),
        plan.tensors.len(),
        plan.quantized(),
        plan.folder.display(),
        size(bytes),
        plan.files.len()
    );
    for item in &plan.items {
        for out in &item.outs {
            let declared = &out.declared;
            let shape: Vec<_> = declared.shape.iter().map(ToString::to_string).collect();
            let name = &declared.name;
            let dtype = declared.dtype;
            let _ = writeln!(text, "  {name:<56} {dtype:<8} {:>14}", shape.join("x"));
        }
    }
    let mut tensors_by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, choice) in plan.tensors.iter().zip(&plan.choices) {
        if choice.kept.is_some() && tensor.shape.len() > 1 && plan.format.quantizes() {
            tensors_by_reason.entry(&choice.why).or_default().push(&tensor.name);
        }
    }
    for (why, names) in tensors_by_reason {
        let _ = writeln!(text, "kept, {why}: {}", names.join(", "));
    }
    for (name, limit) in limits(plan) {
        let _ = writeln!(text, "warning: `{name}` cannot be spread, {limit}");
    }
    text
}

/// Lists the quantized matrices that tensor parallelism breaks, with the limit of each.
fn limits(plan: &FolderPlan<'_>) -> Vec<(String, String)> {
    let all = plan.tensors.iter().zip(&plan.choices).filter(|(_, choice)| choice.kept.is_none());
    let limits = all.flat_map(|(tensor, _): (&FolderTensor<'_>, _)| {
        let &[rows, row] = &tensor.shape[..] else { return Vec::new() };
        let limits = split_limits(plan.format, rows, row).into_iter();
        limits.map(|limit| (tensor.name.clone(), limit)).collect::<Vec<_>>()
    });
    limits.collect()
}

/// Formats the plan for programs.
pub(super) fn json(plan: &FolderPlan<'_>) -> Result<String> {
    let files: Vec<_> = plan
        .files
        .iter()
        .map(|file| {
            let outs = plan.items[file.items.0..file.items.1].iter().flat_map(|item| &item.outs);
            let tensors: Vec<_> = outs
                .map(|out| {
                    let declared = &out.declared;
                    json!({
                        "name": declared.name, "dtype": declared.dtype.name(),
                        "shape": declared.shape,
                    })
                })
                .collect();
            json!({ "path": file.path, "bytes": file.len, "tensors": tensors })
        })
        .collect();
    let kept_tensors: BTreeMap<&str, &str> = plan
        .tensors
        .iter()
        .zip(&plan.choices)
        .filter(|(tensor, choice)| choice.kept.is_some() && tensor.shape.len() == 2)
        .map(|(tensor, choice)| (tensor.name.as_str(), choice.why.as_str()))
        .collect();
    let limits: Vec<_> = limits(plan)
        .into_iter()
        .map(|(tensor, limit)| json!({ "tensor": tensor, "cannot_spread": limit }))
        .collect();
    let json = json!({
        "model": plan.target.name, "format": plan.format.name(), "files": files, "kept": kept_tensors,
        "quantization_config": plan.format.quantization(&plan.listed(), plan.scales.asked),
        "tensor_parallel": limits,
    });
    Ok(serde_json::to_string_pretty(&json)?)
}
