//! The planned output as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::iter::repeat;

use conversion::gguf::{GgufOutput, GgufPlan};
use registry::quantity::bytes as size;

use crate::error::Result;
use crate::gguf_model::GgufModel;

/// Reason for a tensor whose type follows from another tensor.
const BEHIND: &str = "what the blocks are multiplied by";

/// Formats the plan for people.
pub(crate) fn text(model: &GgufModel<'_>, planned: &[(GgufOutput, Vec<GgufPlan>)]) -> String {
    let mut text =
        format!("{} as `{}`, {} tensors\n", model.name, model.gguf.arch, model.tensors.len());
    for (output, files) in planned {
        let bytes: u64 = files.iter().map(|file| file.layout.file_len).sum();
        let _ = writeln!(
            text,
            "\n{}  {} in {} file(s)",
            output.path.display(),
            size(bytes),
            files.len()
        );
        let infos =
            files.iter().flat_map(|file| file.layout.tensors.iter().map(move |info| (file, info)));
        let why = output.choices.iter().map(|choice| choice.why.as_str());
        for ((file, info), why) in infos.zip(why.chain(repeat(BEHIND))) {
            let shape: Vec<_> = info.shape.iter().map(ToString::to_string).collect();
            let part = if files.len() > 1 {
                file.path.file_name().unwrap_or_default().to_string_lossy()
            } else {
                "".into()
            };
            let _ = writeln!(
                text,
                "  {:<40} {:<8} {:>16} {:>12} @{:<12} {} {part}",
                info.name,
                info.ty.name(),
                shape.join("x"),
                size(info.bytes),
                info.offset,
                why
            );
        }
        let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for info in files.iter().flat_map(|file| &file.layout.tensors) {
            let entry = types.entry(info.ty.name()).or_default();
            *entry = (entry.0 + 1, entry.1 + info.bytes);
        }
        for (ty, (count, bytes)) in types {
            let _ = writeln!(text, "  {ty:<8} {count:>6} tensors {:>12}", size(bytes));
        }
    }
    text
}

/// Formats the plan for programs.
pub(crate) fn json(
    model: &GgufModel<'_>,
    planned: &[(GgufOutput, Vec<GgufPlan>)],
) -> Result<String> {
    let outputs: Vec<_> = planned
        .iter()
        .map(|(output, files)| {
            let mut choices = output.choices.iter();
            let files: Vec<_> = files
                .iter()
                .map(|file| {
                    let tensors: Vec<_> = file
                        .layout
                        .tensors
                        .iter()
                        .map(|info| {
                            serde_json::json!({
                                "name": info.name, "type": info.ty.name(), "shape": info.shape,
                                "offset": info.offset, "bytes": info.bytes,
                                "why": choices.next().map_or(BEHIND, |choice| &choice.why),
                            })
                        })
                        .collect();
                    serde_json::json!({
                        "path": file.path, "bytes": file.layout.file_len,
                        "data": file.layout.data_start(), "tensors": tensors,
                    })
                })
                .collect();
            serde_json::json!({ "file_type": output.file_type, "files": files })
        })
        .collect();
    let plan =
        serde_json::json!({ "model": model.name, "arch": model.gguf.arch, "outputs": outputs });
    Ok(serde_json::to_string_pretty(&plan)?)
}
