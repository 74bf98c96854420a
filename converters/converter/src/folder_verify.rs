//! Compares a folder with its hashes, and with the bytes that its format makes of the checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use checkpoints::Checkpoint;
use conversion::Work;
use conversion::folder::{self, FolderFormat};
use formats::{FileDtype, shown};
use models::config::ConfigFile;
use models::local_model::LocalModel;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::folder::{CONFIG, config_value, items, plan, side_files};
use crate::folder_plan::FolderPlan;
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
    let matching = format_of(run, target, &checkpoint, (&written, &config), path)?;
    let Some(plan) = matching else {
        if verified.is_none() {
            return Err(Error::NothingToCompare {
                folder: path.to_owned(),
                key: QUANTIZATION,
                source_model: target.dir.clone(),
            });
        }
        run.observer.note(
            "note: the format is none that is written with these settings: compared with the hashes alone",
        );
        return report(run, 0, faults);
    };
    let (compared, differences) = differences(run, &plan, &written)?;
    faults.extend(differences);
    if verified.is_none() {
        run.observer.note("note: no hashes lie in the folder");
        faults.extend(side_differences(&plan)?);
        faults.extend(config_faults(plan, &config)?);
    }
    report(run, compared, faults)
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
fn format_of<'c>(
    run: ConversionRun<'_>,
    target: &'c LocalModel,
    checkpoint: &'c Checkpoint,
    (written, config): (&Checkpoint, &Value),
    path: &Path,
) -> Result<Option<FolderPlan<'c>>> {
    let outputs: &[bool] = if run.options.quantize_output { &[true] } else { &[false, true] };
    let mut nearest: Option<(usize, FolderPlan<'c>)> = None;
    for (_, format, _) in FolderFormat::all() {
        let format = format.of_source(checkpoint);
        for &output in outputs {
            let mut plan = plan(target, checkpoint, format, path, output)?;
            keep_stored(&mut plan, written);
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
    Ok(nearest.map(|(_, plan)| plan))
}

/// Lists the files beside the weights that are not those which the checkpoint gives.
fn side_differences(plan: &FolderPlan<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for side in side_files::of_source(&(), plan)?.into_iter().chain(side_files::of_format(plan)) {
        let file = side.path.display();
        if !side.path.exists() {
            faults.push(format!("`{file}` is missing"));
        } else if registry::file::read(&side.path, registry::file::COPIED)? != side.bytes {
            faults.push(format!("`{file}` has other bytes than the checkpoint gives"));
        }
    }
    Ok(faults)
}

/// Lists the keys of a config that are not those which the checkpoint gives, with the keys of engines or without.
fn config_faults(mut plan: FolderPlan<'_>, config: &Value) -> Result<Vec<String>> {
    let differences = config_differences(config, &config_value(&(), &plan)?);
    if differences.is_empty() || plan.target.config.parsed().is_wrapped() {
        return Ok(differences);
    }
    plan.compat = true;
    let with_added_keys = config_differences(config, &config_value(&(), &plan)?);
    Ok(if with_added_keys.len() < differences.len() { with_added_keys } else { differences })
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
    let items = items(run.options.threads(), plan)?;
    let mut faults = Vec::new();
    let mut compared = 0;
    for declared in items.iter().flat_map(|item| &item.outs).map(|out| &out.declared) {
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
    let files = folder::lay_out(&plan.folder, &items, u64::MAX, "")?;
    let work: Work<'_> = folder::work(&items, &files, None, String::new());
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
