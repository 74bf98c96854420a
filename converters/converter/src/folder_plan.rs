//! Plans of conversions to checkpoints.

use std::collections::BTreeSet;
use std::path::PathBuf;

use checkpoints::Checkpoint;
use conversion::folder::{
    self, CalibratedScales, DtypeChoice, FolderFile, FolderFormat, FolderItem, FolderTensor,
};
use models::local_model::LocalModel;

use crate::options::ConvertOptions;

/// File that engines read first.
pub(crate) const CONFIG: &str = "config.json";

/// Default size of a file in bytes.
const SHARD: u64 = 5_000_000_000;

/// Plan of a folder, complete before any value is written.
pub(crate) struct FolderPlan<'c> {
    pub(crate) format: FolderFormat,
    pub(crate) target: &'c LocalModel,
    pub(crate) checkpoint: &'c Checkpoint,
    pub(crate) tensors: Vec<FolderTensor<'c>>,
    pub(crate) choices: Vec<DtypeChoice>,
    /// Scales of activations: their names, and once measured their values.
    pub(crate) scales: CalibratedScales,
    pub(crate) items: Vec<FolderItem<'c>>,
    pub(crate) files: Vec<FolderFile>,
    pub(crate) folder: PathBuf,
    /// True if the config gets the keys of engines in addition to those of transformers.
    pub(crate) compat: bool,
    /// True if code of the checkpoint is copied.
    pub(crate) copy_code: bool,
}

/// Returns the module of a weight.
fn module(name: &str) -> Option<String> {
    name.strip_suffix(".weight").map(str::to_owned)
}

/// Returns the pattern of all modules with the same root as a tensor.
fn root_pattern(name: &str) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    name.split('.').next().map(|root| format!("re:(model\\.)?{root}\\..*"))
}

impl FolderPlan<'_> {
    /// Returns the modules with a matrix that is not quantized.
    pub(crate) fn ignored(&self) -> Vec<String> {
        let all = self.tensors.iter().zip(&self.choices);
        let kept_tensors =
            all.filter(|(_, choice)| choice.kept.is_some()).map(|(tensor, _)| tensor);
        let names = kept_tensors.filter_map(|tensor: &FolderTensor<'_>| match tensor.mixture {
            _ if tensor.shape.len() == 2 => module(&tensor.name),
            // Stacked experts are a parameter of their module, or its weight.
            Some(_) if tensor.shape.len() == 3 => module(&tensor.name)
                .or_else(|| tensor.name.rsplit_once('.').map(|(module, _)| module.to_owned())),
            _ => None,
        });
        let mut names: Vec<String> = names.collect();
        // A tied matrix is a module too, although it has no tensor of its own.
        names.extend(self.target.model.graph.tied.keys().filter_map(|name| module(name)));
        names.dedup();
        // Loaders match module names, which can differ in a multimodal model.
        let model = &self.target.model;
        let called: Vec<String> =
            names.iter().filter_map(|name| model.module_of(&format!("{name}.weight"))).collect();
        names.extend(called.iter().filter_map(|name| module(name)));
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    /// Returns the ignored modules as listed in a config. Encoders are listed by a pattern too, because
    /// their module names depend on the loader, if the format supports patterns.
    pub(crate) fn listed(&self) -> Vec<String> {
        let mut listed = self.ignored();
        if self.format.knows_patterns() {
            let model = &self.target.model;
            let beside = self.tensors.iter().filter(|tensor| model.is_beside(&tensor.name));
            listed.extend(
                beside.filter_map(|tensor| root_pattern(&tensor.name)).collect::<BTreeSet<_>>(),
            );
        }
        listed
    }

    /// Returns the number of quantized tensors.
    pub(crate) fn quantized(&self) -> usize {
        self.choices.iter().filter(|choice| choice.kept.is_none()).count()
    }

    /// Returns a warning if many weights stay unquantized: experts that loaders expect in one tensor.
    pub(crate) fn unchanged(&self) -> Option<String> {
        if !self.format.quantizes() {
            return None;
        }
        let all = self.tensors.iter().zip(&self.choices);
        let stay: Vec<(&FolderTensor<'_>, &DtypeChoice)> = all
            .filter(|(tensor, choice)| choice.kept.is_some() && tensor.mixture.is_some())
            .collect();
        let (first, choice) = stay.first()?;
        let why = match first.shape.len() {
            2 => &choice.why,
            _ => "loaders know those of a layer as one tensor",
        };
        let kept_values: usize = stay.iter().map(|(tensor, _)| tensor.flow.len()).sum();
        let total: usize = self.tensors.iter().map(|tensor| tensor.flow.len()).sum();
        let share = 100.0 * kept_values as f64 / total.max(1) as f64;
        Some(format!(
            "warning: {share:.0} % of the numbers are experts that stay as they are: {why}"
        ))
    }

    /// Returns a note on tensors that are not rounded to plain bf16.
    pub(crate) fn wider(&self) -> Option<String> {
        if self.format.quantizes() {
            return None;
        }
        let all = self.tensors.iter().zip(&self.choices);
        let wide: Vec<&FolderTensor<'_>> =
            all.filter(|(_, choice)| !choice.why.is_empty()).map(|(tensor, _)| tensor).collect();
        let first = wide.first()?;
        let count = registry::quantity::plural(wide.len(), "tensor");
        Some(format!(
            "note: {count} of f32 stay so, as they are wider than the rest on purpose, the first is `{}`",
            first.name
        ))
    }

    /// Returns a warning about loaders that do not support the folder.
    pub(crate) fn loaders(&self) -> Option<String> {
        let all = self.tensors.iter().zip(&self.choices);
        let mixture = all.clone().any(|(t, choice)| choice.kept.is_none() && t.mixture.is_some());
        self.format.unread_by(mixture).map(|why| format!("warning: {why}"))
    }

    pub(crate) fn limit(&self, options: &ConvertOptions) -> u64 {
        match options.shard {
            Some((_, count)) => folder::even_limit(&self.items, count),
            None => options.split_max_size.unwrap_or(SHARD),
        }
    }
}
