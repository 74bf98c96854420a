//! Formats of checkpoints that `--to` accepts.

use std::collections::BTreeMap;

use checkpoints::Checkpoint;
use registry::dtype::Dtype;
use registry::quant::QuantRules;
use serde_json::Value;

use super::config::{ConfigFacts, ScaleKinds};
use super::declarations::{DECLARATIONS, FolderFormat, FormatDeclaration, LoaderLimit, NoInputs};
use super::scaled::{BLOCK, ScaleScheme};
use super::{DtypeChoice, FolderTensor};
use formats::safetensors::FileDtype;

impl FolderFormat {
    pub(super) fn declaration(self) -> &'static FormatDeclaration {
        DECLARATIONS.iter().find(|declared| declared.format == self).expect("a test looks for each")
    }

    fn listed() -> impl Iterator<Item = &'static FormatDeclaration> {
        DECLARATIONS.iter().filter(|declared| declared.listed)
    }

    /// Parses the name of a format.
    pub fn parse(name: &str) -> Option<Self> {
        let declaration = Self::listed().find(|declared| declared.name.eq_ignore_ascii_case(name));
        declaration.map(|declared| declared.format)
    }

    /// Returns every format with its name and description.
    pub fn all() -> impl Iterator<Item = (&'static str, Self, &'static str)> {
        Self::listed().map(|declared| (declared.name, declared.format, declared.about))
    }

    /// Returns the dtype of a plain format; none if matrices are quantized, or if the source decides.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Self::Bf16 => Some(Dtype::Bf16),
            Self::Plain { dtype } => dtype,
            _ => None,
        }
    }

    /// Returns the format with the dtype of most values of the source, if it leaves that open; bf16 for quantized
    /// weights, whose values have no dtype.
    #[must_use]
    pub fn of_source(self, checkpoint: &Checkpoint) -> Self {
        if self != (Self::Plain { dtype: None }) {
            return self;
        }
        let quantized = !checkpoint.block_types().is_empty();
        let counts = Dtype::ALL.map(|dtype| {
            let tensors = checkpoint.tensors().iter().filter(|(name, info)| {
                info.dtype.run() == Some(dtype) && !checkpoint.is_quantized(name)
            });
            (tensors.map(|(_, info)| info.elements() as u128).sum::<u128>(), dtype)
        });
        let coded = checkpoint.tensors().keys().any(|name| checkpoint.is_quantized(name));
        let commonest =
            counts.into_iter().max_by_key(|(count, _)| *count).filter(|(count, _)| *count > 0);
        let dtype =
            commonest.filter(|_| !quantized && !coded).map_or(Dtype::Bf16, |(_, dtype)| dtype);
        Self::Plain { dtype: Some(dtype) }
    }

    /// Returns the format's name.
    pub fn name(self) -> &'static str {
        self.declaration().name
    }

    /// Returns the variant of the format that stores input scales, or the reason why there is none.
    pub fn with_inputs(self) -> Result<Self, NoInputs> {
        self.declaration().inputs
    }

    /// Returns the dtype and shape of a tensor that holds one scale.
    pub(super) fn single(self) -> (FileDtype, Vec<usize>) {
        let (dtype, shape) = self.declaration().single;
        (dtype, shape.to_vec())
    }

    /// Describes the loaders that cannot read the format; `mixture` is true if experts are quantized.
    pub fn unread_by(self, mixture: bool) -> Option<&'static str> {
        match self.declaration().unread {
            LoaderLimit::Mixtures(why) if mixture => Some(why),
            LoaderLimit::Always(why) => Some(why),
            LoaderLimit::Mixtures(_) | LoaderLimit::Never => None,
        }
    }

    /// True if the config may name modules by patterns.
    pub fn knows_patterns(self) -> bool {
        self.declaration().patterns
    }

    /// Returns `quantization_config`; none for plain bf16. `ignored` lists the modules that are not quantized.
    pub fn quantization(self, ignored: &[String], kinds: ScaleKinds) -> Option<Value> {
        self.declaration().config.map(|config| config(&ConfigFacts { ignored, asked: kinds }))
    }

    /// Returns `hf_quant_config.json`, for the formats that have one.
    pub fn beside(self, ignored: &[String], kinds: ScaleKinds) -> Option<Value> {
        self.declaration().beside.map(|beside| beside(&ConfigFacts { ignored, asked: kinds }))
    }

    /// True if matrices are quantized, which requires experts to be split.
    pub fn quantizes(self) -> bool {
        self.declaration().scheme.is_some()
    }

    /// True if all matrices that engines fuse share one scale.
    pub fn shares(self) -> bool {
        self.declaration().shared.is_some()
    }

    /// Returns the quantization scheme for matrices whose shared scale is `scale`; none for plain bf16.
    pub fn scheme(self, scale: f32) -> Option<ScaleScheme> {
        self.declaration().scheme.map(|scheme| scheme(scale))
    }

    /// Chooses to quantize or keep each tensor.
    pub fn choose(self, tensors: &[FolderTensor<'_>], quant: &QuantRules) -> Vec<DtypeChoice> {
        let Some(scheme) = self.scheme(1.0) else {
            return match self {
                Self::Plain { dtype } => uniform(tensors, dtype.unwrap_or(Dtype::Bf16)),
                _ => plain(tensors),
            };
        };
        let mut refused: Vec<Option<String>> =
            tensors.iter().map(|tensor| refusal(scheme, tensor)).collect();
        if matches!(scheme, ScaleScheme::Fp8Blocks(..)) {
            // Engines stack fused matrices: all of them are quantized, or none.
            let named = tensors.iter().enumerate().map(|(n, tensor)| (tensor.weight.as_str(), n));
            let places: BTreeMap<&str, usize> = named.collect();
            for n in 0..tensors.len() {
                let Some(why) = refused[n].clone().filter(|_| tensors[n].matrix.is_ok()) else {
                    continue;
                };
                let name = &tensors[n].name;
                let fused = quant.scale_group(&tensors[n].weight);
                let fused = fused.iter().filter_map(|name| places.get(name.as_str()));
                for &other in fused.filter(|&&other| other != n) {
                    refused[other].get_or_insert(format!("fused with `{name}`: {why}"));
                }
            }
        }
        // Engines run the experts of a mixture as one: all of them are quantized, or none.
        let mut mixtures: BTreeMap<usize, String> = BTreeMap::new();
        for (tensor, refused) in tensors.iter().zip(&refused) {
            if let (Some(mixture), Some(why), [_, _]) = (tensor.mixture, refused, &tensor.shape[..])
            {
                mixtures
                    .entry(mixture)
                    .or_insert_with(|| format!("of the same mixture as `{}`: {why}", tensor.name));
            }
        }
        for (tensor, refused) in tensors.iter().zip(&mut refused) {
            if let Some(why) = tensor.mixture.and_then(|mixture| mixtures.get(&mixture)) {
                refused.get_or_insert_with(|| why.clone());
            }
        }
        tensors
            .iter()
            .zip(refused)
            .map(|(tensor, refused): (&FolderTensor<'_>, Option<String>)| match refused {
                Some(why) => DtypeChoice { kept: Some(tensor.dtype), why },
                None => DtypeChoice { kept: None, why: String::new() },
            })
            .collect()
    }
}

/// Returns the reason why a scheme cannot quantize a tensor.
fn refusal(scheme: ScaleScheme, tensor: &FolderTensor<'_>) -> Option<String> {
    match (&tensor.matrix, &tensor.shape[..]) {
        (Err(why), _) => Some(why.to_string()),
        (Ok(()), &[rows, row]) if tensor.name.ends_with(".weight") => scheme.refuses(rows, row),
        (Ok(()), _) => Some("it is no module's weight".to_owned()),
    }
}

/// Chooses one dtype for all values, except those that the reference keeps in f32.
fn uniform(tensors: &[FolderTensor<'_>], dtype: Dtype) -> Vec<DtypeChoice> {
    let choices = tensors.iter().map(|tensor| {
        let wide = tensor.always_wide && dtype != Dtype::F32;
        let target = if wide { FileDtype::F32 } else { dtype.into() };
        let kept_dtype = Some(if tensor.dtype.is_float() { target } else { tensor.dtype });
        DtypeChoice { kept: kept_dtype, why: if wide { WIDER.to_owned() } else { String::new() } }
    });
    choices.collect()
}

/// Chooses the dtypes of a plain bf16 checkpoint. In a 16-bit checkpoint, f32 tensors are deliberate and
/// stay. In an f32 checkpoint, only tensors stay f32 that the reference always keeps in f32.
fn plain(tensors: &[FolderTensor<'_>]) -> Vec<DtypeChoice> {
    let mut wide = 0_u128;
    let mut floats = 0_u128;
    for tensor in tensors.iter().filter(|tensor| tensor.dtype.is_float()) {
        let count = tensor.flow.len() as u128;
        floats += count;
        wide += if tensor.dtype == FileDtype::F32 { count } else { 0 };
    }
    let mostly_wide = 2 * wide > floats;
    let choices = tensors.iter().map(|tensor| {
        let is_wide = tensor.dtype == FileDtype::F32;
        let stays = is_wide && (tensor.always_wide || !mostly_wide);
        let kept_dtype =
            if stays || !tensor.dtype.is_float() { tensor.dtype } else { FileDtype::Bf16 };
        let why = if stays { WIDER.to_owned() } else { String::new() };
        DtypeChoice { kept: Some(kept_dtype), why }
    });
    choices.collect()
}

/// Reason for leaving a tensor in a dtype wider than bf16.
const WIDER: &str = "it is wider than the rest on purpose";

/// Returns the limits on splitting a matrix over several devices, by rows or by columns.
pub fn split_limits(format: FolderFormat, rows: usize, row: usize) -> Vec<String> {
    let Some(run) = format.scheme(1.0).and_then(ScaleScheme::run) else { return Vec::new() };
    let mut limits = Vec::new();
    let devices = most_devices(rows, run);
    if run == BLOCK && devices != 32 {
        limits.push(format!("its rows over more than {devices} devices"));
    }
    let devices = most_devices(row, run);
    if devices != 32 {
        limits.push(format!("its columns over more than {devices} devices"));
    }
    limits
}

/// Returns the largest number of devices, up to 32, that can share this many numbers in whole runs.
fn most_devices(size: usize, run: usize) -> usize {
    let counts = [2, 4, 8, 16, 32].into_iter();
    counts.take_while(|n| size.is_multiple_of(run * n)).last().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_declared_once() {
        for declared in &DECLARATIONS {
            let same = DECLARATIONS.iter().filter(|other| other.format == declared.format).count();
            assert_eq!(same, 1, "{}", declared.name);
            assert_eq!(FolderFormat::parse(declared.name).unwrap().name(), declared.name);
            assert_eq!(declared.config.is_some(), declared.format.quantizes(), "{}", declared.name);
        }
    }
}
