//! Formats of checkpoints that `--to` accepts.

use std::collections::BTreeMap;

use registry::quant::QuantRules;

use super::scaled::{BLOCK, BlockScale, ScaleScheme};
use super::{DtypeChoice, FolderTensor};
use formats::safetensors::FileDtype;

/// Format of a safetensors checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderFormat {
    /// Plain bf16.
    Bf16,
    /// compressed-tensors, e4m3, a scale per row.
    Fp8,
    /// compressed-tensors, e4m3, a scale per matrix.
    Fp8Tensor,
    /// e4m3 with f32 scales for square blocks, optionally powers of two.
    Fp8Block {
        /// True if scales are powers of two.
        power: bool,
    },
    /// Blocks of e4m3 under the names of compressed-tensors.
    Fp8CtBlock,
    /// ModelOpt, e4m3.
    Fp8Modelopt {
        /// True if a matrix has one scale, as stored input scales require; false for one scale per row.
        whole: bool,
    },
    /// compressed-tensors, e2m1 with a scale per 16 values.
    Nvfp4,
    /// compressed-tensors, e2m1 with a power-of-two scale per 32 values.
    Mxfp4,
}

/// Reason that a format stores no scales of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoInputs {
    /// The format is plain.
    #[error("nothing in it has a scale")]
    Plain,
    /// The scales of rows are computed in groups, at run time.
    #[error("engines scale its rows in groups of 128 as they come")]
    Groups,
    /// The rows are not quantized.
    #[error("its matrices multiply rows of 16 bits")]
    Wide,
}

const MODELOPT: &str = "ModelOpt: e4m3, a scale per row; per matrix with the option `static-activations`; not for transformers";

/// Names, formats and short descriptions.
const NAMES: &[(&str, FolderFormat, &str)] = &[
    ("bf16", FolderFormat::Bf16, "plain numbers; undoes what is quantized"),
    (
        "fp8",
        FolderFormat::Fp8,
        "compressed-tensors: e4m3, a scale per row, tokens scaled as they come",
    ),
    ("fp8:tensor", FolderFormat::Fp8Tensor, "compressed-tensors: e4m3, a scale per matrix"),
    ("fp8:block", FolderFormat::Fp8Block { power: false }, "e4m3, an f32 scale per 128x128"),
    (
        "fp8:block-ue8m0",
        FolderFormat::Fp8Block { power: true },
        "the same with powers of two for scales",
    ),
    (
        "fp8:ct-block",
        FolderFormat::Fp8CtBlock,
        "compressed-tensors: e4m3, a scale per 128x128; no mixtures in transformers",
    ),
    ("fp8:modelopt", FolderFormat::Fp8Modelopt { whole: false }, MODELOPT),
    (
        "nvfp4",
        FolderFormat::Nvfp4,
        "compressed-tensors: e2m1, a scale per 16, weights only; no mixtures in transformers",
    ),
    ("mxfp4", FolderFormat::Mxfp4, "compressed-tensors: e2m1, a power of two per 32, weights only"),
];

impl FolderFormat {
    /// Parses the name of a format.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|row| row.0.eq_ignore_ascii_case(name)).map(|row| row.1)
    }

    /// Returns every format with its name and description.
    pub fn all() -> impl Iterator<Item = (&'static str, Self, &'static str)> {
        NAMES.iter().copied()
    }

    /// Returns the format's name.
    pub fn name(self) -> &'static str {
        let own = match self {
            Self::Fp8Modelopt { .. } => Self::Fp8Modelopt { whole: false },
            other => other,
        };
        NAMES.iter().find(|row| row.1 == own).map_or("", |row| row.0)
    }

    /// Returns the variant of the format that stores input scales, or the reason why there is none.
    pub fn with_inputs(self) -> Result<Self, NoInputs> {
        match self {
            Self::Bf16 => Err(NoInputs::Plain),
            Self::Fp8 | Self::Fp8Tensor => Ok(self),
            Self::Fp8Modelopt { .. } => Ok(Self::Fp8Modelopt { whole: true }),
            Self::Fp8Block { .. } | Self::Fp8CtBlock => Err(NoInputs::Groups),
            Self::Nvfp4 | Self::Mxfp4 => Err(NoInputs::Wide),
        }
    }

    /// Returns the shape of a tensor that holds one scale.
    pub(super) fn one(self) -> Vec<usize> {
        if matches!(self, Self::Fp8Modelopt { .. }) { Vec::new() } else { vec![1] }
    }

    /// Describes the loaders that cannot read the format; `mixture` is true if experts are quantized.
    pub fn unread_by(self, mixture: bool) -> Option<&'static str> {
        match self {
            Self::Fp8CtBlock if mixture => Some(
                "transformers (5.19 and 5.23, with compressed-tensors 0.17 and 0.20) does not load mixtures of \
                 fp8:ct-block: it expects scales of rows for experts; fp8:block has the same squares and loads",
            ),
            Self::Nvfp4 if mixture => Some(
                "transformers (5.23) leaves out the scale of scales of experts in NVFP4: give the folder to an engine \
                 that multiplies by it, or write mxfp4",
            ),
            Self::Fp8Modelopt { .. } => Some(
                "transformers (5.19 and 5.23) ignores ModelOpt's scales and reads the codes as weights: give the folder \
                 to an engine that knows them, or write fp8",
            ),
            _ => None,
        }
    }

    /// True if the config may name modules by patterns.
    pub fn knows_patterns(self) -> bool {
        matches!(self, Self::Fp8 | Self::Fp8Tensor | Self::Fp8CtBlock | Self::Nvfp4 | Self::Mxfp4)
    }

    /// True if matrices are quantized, which requires experts to be split.
    pub fn quantizes(self) -> bool {
        self != Self::Bf16
    }

    /// True if all matrices that engines fuse share one scale.
    pub fn shares(self) -> bool {
        matches!(self, Self::Fp8Tensor | Self::Nvfp4 | Self::Fp8Modelopt { whole: true })
    }

    /// Returns the quantization scheme for matrices whose shared scale is `scale`; none for plain bf16.
    pub fn scheme(self, scale: f32) -> Option<ScaleScheme> {
        Some(match self {
            Self::Bf16 => return None,
            Self::Fp8 => ScaleScheme::Fp8Rows(FileDtype::Bf16),
            Self::Fp8Modelopt { whole: false } => ScaleScheme::Fp8Rows(FileDtype::F32),
            Self::Fp8Tensor | Self::Fp8Modelopt { whole: true } => ScaleScheme::Fp8Tensor(scale),
            Self::Fp8Block { power: false } => ScaleScheme::Fp8Blocks(BlockScale::F32),
            Self::Fp8Block { power: true } => ScaleScheme::Fp8Blocks(BlockScale::Power),
            Self::Fp8CtBlock => ScaleScheme::Fp8Blocks(BlockScale::Bf16),
            Self::Nvfp4 => ScaleScheme::Nvfp4(scale),
            Self::Mxfp4 => ScaleScheme::Mxfp4,
        })
    }

    /// Chooses to quantize or keep each tensor.
    pub fn choose(self, tensors: &[FolderTensor<'_>], quant: &QuantRules) -> Vec<DtypeChoice> {
        let Some(scheme) = self.scheme(1.0) else { return plain(tensors) };
        let refuses = |tensor: &FolderTensor<'_>| match (&tensor.matrix, &tensor.shape[..]) {
            (Err(why), _) => Some(why.to_string()),
            (Ok(()), &[rows, row]) if tensor.name.ends_with(".weight") => scheme.refuses(rows, row),
            (Ok(()), _) => Some("it is no module's weight".to_owned()),
        };
        let mut refused: Vec<Option<String>> = tensors.iter().map(refuses).collect();
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
                let others = fused.iter().filter_map(|name| places.get(name.as_str()));
                for &other in others.filter(|&&other| other != n) {
                    refused[other].get_or_insert(format!("fused with `{name}`: {why}"));
                }
            }
        }
        // Engines run the experts of a mixture as one: all of them are quantized, or none.
        let mut mixtures: BTreeMap<usize, String> = BTreeMap::new();
        for (tensor, refused) in tensors.iter().zip(&refused) {
            if let (Some(mixture), Some(why), [_, _]) = (tensor.mixture, refused, &tensor.shape[..])
            {
                let why = || format!("of the same mixture as `{}`: {why}", tensor.name);
                mixtures.entry(mixture).or_insert_with(why);
            }
        }
        for (tensor, refused) in tensors.iter().zip(&mut refused) {
            if let Some(why) = tensor.mixture.and_then(|mixture| mixtures.get(&mixture)) {
                refused.get_or_insert_with(|| why.clone());
            }
        }
        let choice = |(tensor, refused): (&FolderTensor<'_>, Option<String>)| match refused {
            Some(why) => DtypeChoice { kept: Some(tensor.dtype), why },
            None => DtypeChoice { kept: None, why: String::new() },
        };
        tensors.iter().zip(refused).map(choice).collect()
    }
}

/// Chooses the dtypes of a plain bf16 checkpoint. In a 16-bit checkpoint, f32 tensors are deliberate and
/// stay. In an f32 checkpoint, only tensors stay f32 that the reference always keeps in f32.
fn plain(tensors: &[FolderTensor<'_>]) -> Vec<DtypeChoice> {
    let count = |wanted: &dyn Fn(&FolderTensor<'_>) -> bool| -> u128 {
        tensors.iter().filter(|tensor| wanted(tensor)).map(|tensor| tensor.flow.len() as u128).sum()
    };
    let wide = |tensor: &FolderTensor<'_>| tensor.dtype == FileDtype::F32;
    let mostly_wide = 2 * count(&wide) > count(&|tensor| tensor.dtype.is_float());
    let choice = |tensor: &FolderTensor<'_>| {
        let stays = wide(tensor) && (tensor.always_wide || !mostly_wide);
        let kept = if stays || !tensor.dtype.is_float() { tensor.dtype } else { FileDtype::Bf16 };
        let why = if stays { WIDER.to_owned() } else { String::new() };
        DtypeChoice { kept: Some(kept), why }
    };
    tensors.iter().map(choice).collect()
}

/// Reason for leaving a tensor in a dtype wider than bf16.
const WIDER: &str = "it is wider than the rest on purpose";

/// Returns the limits on splitting a matrix over several devices, by rows or by columns.
pub fn split_limits(format: FolderFormat, rows: usize, row: usize) -> Vec<String> {
    let Some(run) = format.scheme(1.0).and_then(ScaleScheme::run) else { return Vec::new() };
    let mut limits = Vec::new();
    let most = |size: usize| {
        [2, 4, 8, 16, 32].into_iter().take_while(|n| size.is_multiple_of(run * n)).last()
    };
    if run == BLOCK && most(rows) != Some(32) {
        limits.push(format!("its rows over more than {} devices", most(rows).unwrap_or(1)));
    }
    if most(row) != Some(32) {
        limits.push(format!("its columns over more than {} devices", most(row).unwrap_or(1)));
    }
    limits
}
