//! Compares a folder with its hashes, and with the bytes that its format makes of the checkpoint.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use checkpoints::Checkpoint;
use conversion::Work;
use conversion::folder::{self, FolderFormat};
use formats::gguf::split::SET_KEY;
use formats::mmap::FileMap;
use formats::safetensors::SafetensorsHeader;
use formats::{FileDtype, shown};
use models::config::ConfigFile;
use models::local_model::LocalModel;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::folder::{config_text, config_value, items, plan, side_files};
use crate::folder_plan::{CONFIG, FolderPlan};
use crate::loaded_files::loaded_files;
use crate::options::CalibrationOptions;
use crate::run::ConversionRun;
use crate::verified::compare_hashes;

/// Key of the config that names the format.
const QUANTIZATION: &str = "quantization_config";

/// Compares a folder with its checkpoint, and returns the faults of the folder.
pub(crate) fn verify_folder(
    run: ConversionRun<'_>,
    target: &LocalModel,
    path: &Path,
) -> Result<Vec<String>> {
    let checkpoint = target.checkpoint()?;
    let verified = compare_hashes(path)?;
    let mut faults = verified.as_ref().map(|files| files.faults.clone()).unwrap_or_default();
    let opened = Checkpoint::open(path);
    let written = match opened {
        Ok(written) => written,
        // A folder that differs from its hashes need not open.
        Err(_) if !faults.is_empty() => return report(run, 0, faults),
        Err(error) => return Err(error.into()),
    };
    let config = ConfigFile::read(&path.join(CONFIG))?.value()?;
    let Some(mut plan) = plan_of(run, target, &checkpoint, (&written, &config), path)? else {
        if verified.is_none() {
            return Err(Error::NothingToCompare {
                folder: path.to_owned(),
                key: QUANTIZATION,
                source_model: target.dir.clone(),
            });
        }
        faults.push(format!(
            "`{CONFIG}`: its `{QUANTIZATION}` is none that a conversion of `{}` writes",
            target.dir.display()
        ));
        return report(run, 0, faults);
    };
    plan.items = items(run.options.threads(), &plan)?;
    let limit = folder::limit_of(&plan.items, |name| written.stored(name).map(|info| info.file));
    plan.files = folder::lay_out(path, &plan.items, limit, &set_id(&written)?)?;
    let (compared, differences) = differences(run, &plan, &written)?;
    let same_tensors = differences.is_empty();
    faults.extend(differences);
    if verified.is_none() {
        run.observer.note("note: no hashes lie in the folder");
        if same_tensors {
            faults.extend(header_differences(&plan)?);
        }
        faults.extend(side_differences(run, &plan)?);
    }
    if !plan.scales.all.is_empty() {
        let count = plan.scales.all.len();
        run.observer.note(&format!(
            "note: {count} scales were measured on a text: the source does not determine them"
        ));
    }
    faults.extend(config_faults(run, plan, &config, verified.is_some())?);
    report(run, compared, faults)
}

/// Returns the text that identifies the set of files; nothing if no such text can be read.
fn set_id(written: &Checkpoint) -> Result<String> {
    let Some(first) = written.files().first() else { return Ok(String::new()) };
    let mut metadata = SafetensorsHeader::read(first)?.metadata;
    let set_id = metadata.remove(SET_KEY).unwrap_or_default();
    let is_hash = set_id.len() == 64 && set_id.bytes().all(|digit| digit.is_ascii_hexdigit());
    Ok(if is_hash { set_id } else { String::new() })
}

/// Prints the result of the comparison, and returns the faults.
fn report(run: ConversionRun<'_>, compared: usize, faults: Vec<String>) -> Result<Vec<String>> {
    if run.options.json {
        run.observer.print(&serde_json::to_string_pretty(
            &json!({ "tensors": compared, "faults": faults }),
        )?)?;
    } else if faults.is_empty() && compared > 0 {
        run.observer
            .print(&format!("{compared} tensors have the bytes that the checkpoint gives"))?;
    } else if faults.is_empty() {
        run.observer.print("as written, by the hashes")?;
    }
    Ok(faults)
}

/// Returns the plan whose config names the same format as the folder's.
fn plan_of<'c>(
    run: ConversionRun<'_>,
    target: &'c LocalModel,
    checkpoint: &'c Checkpoint,
    (written, config): (&Checkpoint, &Value),
    path: &Path,
) -> Result<Option<FolderPlan<'c>>> {
    let outputs: &[bool] = if run.options.quantize_output { &[true] } else { &[false, true] };
    let measured = written.measured_scales();
    let calibration = CalibrationOptions {
        static_activations: !measured.inputs.is_empty(),
        kv_scales: !measured.caches.is_empty(),
        ..CalibrationOptions::default()
    };
    let mut nearest: Option<(usize, FolderPlan<'c>)> = None;
    for (_, format, _) in FolderFormat::all() {
        let format = format.of_source(checkpoint);
        let Ok(format) = calibration.stored(format) else { continue };
        for &output in outputs {
            let mut plan = plan(target, checkpoint, format, path, output)?;
            keep_stored(&mut plan, written);
            let Ok(scales) = calibration.planned(&plan) else { continue };
            plan.scales = scales;
            let planned = config_value(&(), &plan)?;
            let same_dtype = format.quantizes() || planned.get("dtype") == config.get("dtype");
            if planned.get(QUANTIZATION) != config.get(QUANTIZATION) || !same_dtype {
                continue;
            }
            let different = other_dtypes(&plan, written);
            if nearest.as_ref().is_none_or(|(count, _)| different < *count) {
                nearest = Some((different, plan));
            }
        }
    }
    let Some((_, mut plan)) = nearest else { return Ok(None) };
    for (name, scale) in &mut plan.scales.all {
        *scale = written.scale(name)?.unwrap_or(*scale);
    }
    Ok(Some(plan))
}

/// Lists the files whose names, lengths or headers are not those that the conversion writes.
fn header_differences(plan: &FolderPlan<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for planned in &plan.files {
        let file = planned.path.display();
        if !planned.path.exists() {
            faults.push(format!("`{file}` is missing"));
            continue;
        }
        let map = FileMap::open(&planned.path)?;
        let header = &planned.header;
        if map.get(..header.len()) != Some(&header[..]) {
            faults.push(format!("`{file}` has another header than the conversion writes"));
        } else if map.len() as u64 != planned.len {
            faults.push(format!("`{file}` has {} bytes, expected {}", map.len(), planned.len));
        }
    }
    Ok(faults)
}

/// Lists the files beside the weights that are not those which the conversion writes.
fn side_differences(run: ConversionRun<'_>, plan: &FolderPlan<'_>) -> Result<Vec<String>> {
    let mut sides = side_files::of_source(&(), plan)?;
    sides.extend(side_files::of_format(plan));
    sides.extend(side_files::of_files(plan));
    let mut faults = Vec::new();
    for side in &sides {
        let file = side.path.display();
        if !side.path.exists() {
            faults.push(format!("`{file}` is missing"));
        } else if registry::file::read(&side.path, registry::file::COPIED)? != side.bytes {
            faults.push(format!("`{file}` has other bytes than the checkpoint gives"));
        }
    }
    let is_written = |path: &PathBuf| {
        plan.files.iter().any(|file| file.path == *path)
            || sides.iter().any(|side| side.path == *path)
    };
    let others = loaded_files(&plan.folder)?.into_iter().filter(|path| !is_written(path));
    faults.extend(others.map(|path| {
        format!("`{}` is read by loaders, and is no file of the conversion", path.display())
    }));
    // A card names the source and the version of this program; nothing is computed with it.
    let card = side_files::card(plan);
    let same_card = registry::file::read(&card.path, registry::file::COPIED)
        .is_ok_and(|bytes| bytes == card.bytes);
    if !same_card {
        run.observer.note(&format!(
            "note: `{}` is not as this version writes it for the source",
            card.path.display()
        ));
    }
    Ok(faults)
}

/// Lists the keys of a config that are not those which the checkpoint gives, with the keys of engines or without. Without
/// hashes, its text counts too: readers differ in the one of two equal keys that they take.
fn config_faults(
    run: ConversionRun<'_>,
    mut plan: FolderPlan<'_>,
    config: &Value,
    is_hashed: bool,
) -> Result<Vec<String>> {
    plan.compat = run.options.compat;
    let mut differences = config_differences(config, &config_value(&(), &plan)?);
    if !differences.is_empty() && !plan.compat && !plan.target.config.parsed().is_wrapped() {
        plan.compat = true;
        let with_added_keys = config_differences(config, &config_value(&(), &plan)?);
        if with_added_keys.len() < differences.len() {
            differences = with_added_keys;
        }
    }
    if differences.is_empty() && !is_hashed {
        let path = plan.folder.join(CONFIG);
        let text = registry::file::read_text(&path, registry::file::CONFIG)?;
        if text != config_text(&(), &plan)? {
            differences.push(format!(
                "`{CONFIG}` has the keys and values of the conversion in another text"
            ));
        }
    }
    Ok(differences)
}

/// Lists the keys of a config that differ from those that the checkpoint gives.
fn config_differences(actual: &Value, expected: &Value) -> Vec<String> {
    let empty = Map::new();
    let actual = actual.as_object().unwrap_or(&empty);
    let expected = expected.as_object().unwrap_or(&empty);
    let names: BTreeSet<&String> = actual.keys().chain(expected.keys()).collect();
    let differing = names.into_iter().filter(|name| actual.get(*name) != expected.get(*name));
    let differences = differing.map(|name| {
        let actual = brief(actual.get(name));
        let expected = brief(expected.get(name));
        format!("`{CONFIG}`: `{}` is {actual}, expected {expected}", shown(name))
    });
    differences.collect()
}

/// Returns a value of a config as a message shows it.
fn brief(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| format!("`{}`", shown(&value.to_string())))
}

/// Returns the number of unquantized tensors that the folder has in another dtype.
fn other_dtypes(plan: &FolderPlan<'_>, written: &Checkpoint) -> usize {
    let all = plan.tensors.iter().zip(&plan.choices);
    let kept_tensors = all.filter_map(|(tensor, choice)| Some((&tensor.name, choice.kept?)));
    kept_tensors
        .filter(|(name, dtype)| written.stored(name).is_some_and(|info| info.dtype != *dtype))
        .count()
}

/// Keeps matrices that the folder has unquantized, as a target divergence may.
fn keep_stored(plan: &mut FolderPlan<'_>, written: &Checkpoint) {
    let plain = [FileDtype::F32, FileDtype::F16, FileDtype::Bf16];
    for (tensor, choice) in plan.tensors.iter().zip(&mut plan.choices) {
        let stored = written.stored(&tensor.name).map(|info| info.dtype);
        if let Some(dtype) = stored.filter(|dtype| choice.kept.is_none() && plain.contains(dtype)) {
            choice.kept = Some(dtype);
        }
    }
}

/// Returns the number of compared tensors, and the differences of the folder.
fn differences(
    run: ConversionRun<'_>,
    plan: &FolderPlan<'_>,
    written: &Checkpoint,
) -> Result<(usize, Vec<String>)> {
    let mut faults = Vec::new();
    let mut compared = 0;
    for declared in plan.items.iter().flat_map(|item| &item.outs).map(|out| &out.declared) {
        let name = &declared.name;
        match written.stored(name) {
            None => faults.push(format!("tensor `{name}` is missing")),
            Some(info) if info.dtype != declared.dtype || info.shape != declared.shape => {
                let actual = (info.dtype, &info.shape);
                let expected = (declared.dtype, &declared.shape);
                faults.push(format!("tensor `{name}` is {actual:?}, expected {expected:?}"));
            }
            Some(_) => compared += 1,
        }
    }
    let work: Work<'_> = folder::work(&plan.items, &plan.files, None, String::new());
    let unequal = conversion::compare(&work, run.options.threads(), |name: &str| {
        written.stored_bytes(name).ok()
    })?;
    for (name, at) in unequal {
        faults.push(format!(
            "tensor `{name}` has other bytes than the checkpoint gives, the first is byte {at}"
        ));
    }
    Ok((compared, faults))
}
