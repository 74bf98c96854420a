//! Identifies conversions by their inputs: sets of files, and interrupted runs.
//!
//! Files carry the hash of their set, so the hashed text keeps its words when types of this program get
//! other names: shards of two builds still make one set.
//!
//! Parts of other conversions are refused by it ([decision 29](../../../docs/decisions/0029-set-fingerprints.md)).

use checkpoints::Checkpoint;
use conversion::folder::DtypeChoice;
use conversion::gguf::{GgufOutput, GgufPlan, TypeChoice};
use conversion::mix::LEVELS;
use formats::codec::BlockType;
use registry::gguf::TensorRule;
use sha2::{Digest as _, Sha256};

use crate::error::Result;
use crate::folder_plan::FolderPlan;
use crate::gguf_model::GgufModel;

/// Returns the hash of one conversion of the same weights to GGUF, on any machine.
pub(crate) fn of_gguf(
    model: &GgufModel<'_>,
    output: &GgufOutput,
    identity: bool,
) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(model.checkpoint.fingerprint()?);
    add_settings(&mut hash, model, output, identity);
    Ok(format!("{:x}", hash.finalize()))
}

/// Adds everything that a GGUF file depends on besides the weights.
fn add_settings(hash: &mut Sha256, model: &GgufModel<'_>, output: &GgufOutput, identity: bool) {
    hash.update(&model.spec.sha256);
    // Resolved rules of the spec, with the settings of the command line.
    let rules = listed(&model.gguf.rules, rule);
    let choices = listed(&output.choices, |TypeChoice { ty, why }| {
        format!("Choice {{ ty: {ty:?}, why: {why:?} }}")
    });
    hash.update(format!("{rules} {choices} {:?} {:?} {identity}", output.via, output.dims));
    for (name, weights) in &output.importance {
        hash.update(format!("{name} {}", weights.len()));
        weights.iter().for_each(|weight| hash.update(weight.to_le_bytes()));
    }
}

/// Returns the hash of one conversion of the same weights to a checkpoint, on any machine.
pub(crate) fn of_folder(plan: &FolderPlan<'_>) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(plan.checkpoint.fingerprint()?);
    add_folder_settings(&mut hash, plan);
    Ok(format!("{:x}", hash.finalize()))
}

/// Adds everything that a checkpoint depends on besides the weights.
fn add_folder_settings(hash: &mut Sha256, plan: &FolderPlan<'_>) {
    hash.update(&plan.target.spec.sha256);
    let choices = listed(&plan.choices, |DtypeChoice { kept: dtype, why }| {
        format!("Choice {{ kept: {dtype:?}, why: {why:?} }}")
    });
    hash.update(format!("{:?} {choices}", plan.format));
}

/// Returns the hash of a run that writes GGUF files: a run that resumes it reads the same files. Files are
/// identified by length, time and one window, because hashing the weights can take as long as the conversion.
pub(crate) fn of_gguf_run(
    model: &GgufModel<'_>,
    planned: &[(GgufOutput, Vec<GgufPlan>)],
    identity: bool,
) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    add_files(&mut hash, model.checkpoint)?;
    for (output, files) in planned {
        add_settings(&mut hash, model, output, identity);
        hash.update(format!("{:?} {:?}", output.shard, output.split));
        for file in files {
            hash.update(&file.layout.header);
        }
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Returns the hash of a run that writes a checkpoint: a run that resumes it reads the same files.
pub(crate) fn of_folder_run(plan: &FolderPlan<'_>) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(of_folder(plan)?);
    plan.checkpoint.stamps().iter().for_each(|stamp| hash.update(format!("{stamp}\n")));
    plan.files.iter().for_each(|file| hash.update(&file.header));
    plan.scales.all.iter().for_each(|(_, scale)| hash.update(scale.to_le_bytes()));
    Ok(format!("{:x}", hash.finalize()))
}

/// Returns the hash of the inputs of a search for the types of a GGUF file.
pub(crate) fn of_gguf_search(
    model: &GgufModel<'_>,
    output: &GgufOutput,
    levels: &[[BlockType; LEVELS]],
) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    add_files(&mut hash, model.checkpoint)?;
    add_settings(&mut hash, model, output, false);
    hash.update(format!("{levels:?}"));
    Ok(format!("{:x}", hash.finalize()))
}

/// Returns the hash of the inputs of a search for the matrices of a checkpoint that stay as they are.
pub(crate) fn of_folder_search(plan: &FolderPlan<'_>) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    add_files(&mut hash, plan.checkpoint)?;
    add_folder_settings(&mut hash, plan);
    plan.scales.all.iter().for_each(|(_, scale)| hash.update(scale.to_le_bytes()));
    Ok(format!("{:x}", hash.finalize()))
}

/// Adds the files of a checkpoint by length, time and one window.
fn add_files(hash: &mut Sha256, checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.stamps().iter().for_each(|stamp| hash.update(format!("{stamp}\n")));
    hash.update(checkpoint.file_samples()?);
    Ok(())
}

fn listed<T>(all: &[T], text: impl Fn(&T) -> String) -> String {
    format!("[{}]", all.iter().map(text).collect::<Vec<_>>().join(", "))
}

fn rule(of: &TensorRule) -> String {
    let rule = &of.rule;
    let at = &of.rule.at;
    format!(
        "TensorRule {{ rule: Rule {{ disk: {:?}, weight: {:?}, steps: {:?}, at: Span {{ \
         source: Source {{ path: {:?}, text: {:?} }}, start: {}, end: {} }} }}, ty: {:?} }}",
        rule.disk, rule.weight, rule.steps, at.source.path, at.source.text, at.start, at.end, of.ty
    )
}
