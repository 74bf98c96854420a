//! Declarations of the formats of checkpoints: names, scales, config and limits, one for each.

use registry::dtype::Dtype;
use serde_json::{Value, json};

use super::config::{ConfigFacts, compressed, float4, float8, modelopt, modelopt_file, tokens};
use super::scaled::{BLOCK, BlockScale, ScaleScheme, global_scale, whole_scale};
use formats::safetensors::FileDtype;

/// Facts about a format. [`Declaration::new`] has the defaults of those that a format may lack.
pub(super) struct FormatDeclaration {
    pub(super) format: FolderFormat,
    /// Name as given to `--to`.
    pub(super) name: &'static str,
    /// Description in a few words.
    pub(super) about: &'static str,
    /// False for a variant that follows from another option.
    pub(super) listed: bool,
    /// Quantization scheme of matrices whose shared scale is the argument; none for plain values.
    pub(super) scheme: Option<fn(f32) -> ScaleScheme>,
    /// Scale that all fused matrices share, stored as a tensor of its own.
    pub(super) shared: Option<SharedScale>,
    /// Variant that stores scales of inputs, or the reason why there is none.
    pub(super) inputs: Result<FolderFormat, NoInputs>,
    /// Suffix of the tensor of codes, behind the module's name.
    pub(super) codes: &'static str,
    /// Suffix of the tensor of scales.
    pub(super) scales: &'static str,
    /// Dtype and shape of a tensor of one scale.
    pub(super) single: (FileDtype, &'static [usize]),
    /// True if the config may name modules by patterns.
    pub(super) patterns: bool,
    /// True if scales of keys and values stand beside the matrices that make them.
    pub(super) beside_makers: bool,
    /// Loaders that cannot read the format.
    pub(super) unread: LoaderLimit,
    /// Writes `quantization_config`; none for plain values.
    pub(super) config: Option<fn(&ConfigFacts<'_>) -> Value>,
    /// Writes `hf_quant_config.json`, for the formats that have one.
    pub(super) beside: Option<fn(&ConfigFacts<'_>) -> Value>,
}

/// Scale that matrices share.
#[derive(Clone, Copy)]
pub(super) struct SharedScale {
    /// Suffix of its tensor.
    pub(super) name: &'static str,
    /// Dtype of its tensor.
    pub(super) dtype: FileDtype,
    /// Returns the scale for values up to a peak.
    pub(super) scale: fn(f32) -> f32,
}

/// Loaders that cannot read a format, and the remedy.
#[derive(Clone, Copy)]
pub(super) enum LoaderLimit {
    Never,
    /// If experts are quantized.
    Mixtures(&'static str),
    Always(&'static str),
}

impl FormatDeclaration {
    const fn new(format: FolderFormat, name: &'static str, about: &'static str) -> Self {
        Self {
            format,
            name,
            about,
            listed: true,
            scheme: None,
            shared: None,
            inputs: Err(NoInputs::Plain),
            codes: "weight",
            scales: "weight_scale",
            single: (FileDtype::Bf16, &[1]),
            patterns: false,
            beside_makers: false,
            unread: LoaderLimit::Never,
            config: None,
            beside: None,
        }
    }
}

/// Every format, in the order in which programs list them.
pub(super) static DECLARATIONS: [FormatDeclaration; 14] = [
    FormatDeclaration::new(FolderFormat::Bf16, "bf16", "plain numbers; undoes what is quantized"),
    FormatDeclaration::new(
        FolderFormat::Plain { dtype: None },
        "hf",
        "a folder for transformers, of a GGUF file too, in the dtype of most weights; bf16 if they are quantized",
    ),
    FormatDeclaration::new(
        FolderFormat::Plain { dtype: Some(Dtype::F32) },
        "hf:f32",
        "the same in f32",
    ),
    FormatDeclaration::new(
        FolderFormat::Plain { dtype: Some(Dtype::Bf16) },
        "hf:bf16",
        "the same in bf16",
    ),
    FormatDeclaration::new(
        FolderFormat::Plain { dtype: Some(Dtype::F16) },
        "hf:f16",
        "the same in f16",
    ),
    FormatDeclaration {
        scheme: Some(|_| ScaleScheme::Fp8Rows(FileDtype::Bf16)),
        inputs: Ok(FolderFormat::Fp8),
        patterns: true,
        config: Some(|facts| {
            compressed(facts, "float-quantized", &float8("channel"), &tokens(facts.asked))
        }),
        ..FormatDeclaration::new(
            FolderFormat::Fp8,
            "fp8",
            "compressed-tensors: e4m3, a scale per row, tokens scaled as they come",
        )
    },
    FormatDeclaration {
        scheme: Some(ScaleScheme::Fp8Tensor),
        shared: Some(SharedScale {
            name: "weight_scale",
            dtype: FileDtype::Bf16,
            scale: |peak| whole_scale(peak, FileDtype::Bf16),
        }),
        inputs: Ok(FolderFormat::Fp8Tensor),
        patterns: true,
        config: Some(|facts| {
            compressed(facts, "float-quantized", &float8("tensor"), &tokens(facts.asked))
        }),
        ..FormatDeclaration::new(
            FolderFormat::Fp8Tensor,
            "fp8:tensor",
            "compressed-tensors: e4m3, a scale per matrix",
        )
    },
    FormatDeclaration {
        scheme: Some(|_| ScaleScheme::Fp8Blocks(BlockScale::F32)),
        config: Some(|facts| squares(facts, "float")),
        ..fp8_block(false, "fp8:block", "e4m3, an f32 scale per 128x128")
    },
    FormatDeclaration {
        scheme: Some(|_| ScaleScheme::Fp8Blocks(BlockScale::Power)),
        config: Some(|facts| squares(facts, "ue8m0")),
        ..fp8_block(true, "fp8:block-ue8m0", "the same with powers of two for scales")
    },
    FormatDeclaration {
        scheme: Some(|_| ScaleScheme::Fp8Blocks(BlockScale::Bf16)),
        inputs: Err(NoInputs::Groups),
        patterns: true,
        unread: LoaderLimit::Mixtures(
            "transformers (5.19 and 5.23, with compressed-tensors 0.17 and 0.20) does not load mixtures of \
             fp8:ct-block: it expects scales of rows for experts; fp8:block has the same squares and loads",
        ),
        config: Some(|facts| {
            let mut weights = float8("block");
            weights["block_structure"] = json!([BLOCK, BLOCK]);
            let mut inputs = tokens(facts.asked);
            inputs["strategy"] = json!("group");
            inputs["group_size"] = json!(BLOCK);
            compressed(facts, "float-quantized", &weights, &inputs)
        }),
        ..FormatDeclaration::new(
            FolderFormat::Fp8CtBlock,
            "fp8:ct-block",
            "compressed-tensors: e4m3, a scale per 128x128; no mixtures in transformers",
        )
    },
    FormatDeclaration {
        scheme: Some(|_| ScaleScheme::Fp8Rows(FileDtype::F32)),
        config: Some(|facts| modelopt(facts, PER_ROW)),
        beside: Some(|facts| modelopt_file(facts, PER_ROW)),
        ..fp8_modelopt(false)
    },
    // One scale per matrix, which stored scales of inputs require.
    FormatDeclaration {
        listed: false,
        scheme: Some(ScaleScheme::Fp8Tensor),
        shared: Some(SharedScale {
            name: "weight_scale",
            dtype: FileDtype::F32,
            scale: |peak| whole_scale(peak, FileDtype::F32),
        }),
        config: Some(|facts| modelopt(facts, PER_MATRIX)),
        beside: Some(|facts| modelopt_file(facts, PER_MATRIX)),
        ..fp8_modelopt(true)
    },
    FormatDeclaration {
        scheme: Some(ScaleScheme::Nvfp4),
        shared: Some(SharedScale {
            name: "weight_global_scale",
            dtype: FileDtype::F32,
            scale: global_scale,
        }),
        inputs: Err(NoInputs::Wide),
        codes: "weight_packed",
        patterns: true,
        unread: LoaderLimit::Mixtures(
            "transformers (5.23) leaves out the scale of scales of experts in NVFP4: give the folder to an engine \
             that multiplies by it, or write mxfp4",
        ),
        config: Some(|facts| {
            let weights = float4("tensor_group", 16, "torch.float8_e4m3fn");
            compressed(facts, "nvfp4-pack-quantized", &weights, &Value::Null)
        }),
        ..FormatDeclaration::new(
            FolderFormat::Nvfp4,
            "nvfp4",
            "compressed-tensors: e2m1, a scale per 16, weights only; no mixtures in transformers",
        )
    },
    FormatDeclaration {
        scheme: Some(|_| ScaleScheme::Mxfp4),
        inputs: Err(NoInputs::Wide),
        codes: "weight_packed",
        patterns: true,
        config: Some(|facts| {
            let weights = float4("group", 32, "torch.uint8");
            compressed(facts, "mxfp4-pack-quantized", &weights, &Value::Null)
        }),
        ..FormatDeclaration::new(
            FolderFormat::Mxfp4,
            "mxfp4",
            "compressed-tensors: e2m1, a power of two per 32, weights only",
        )
    },
];

/// ModelOpt's names for e4m3 with one scale per row, and per matrix.
const PER_ROW: &str = "FP8_PER_CHANNEL_PER_TOKEN";
const PER_MATRIX: &str = "FP8";

const fn fp8_block(power: bool, name: &'static str, about: &'static str) -> FormatDeclaration {
    FormatDeclaration {
        inputs: Err(NoInputs::Groups),
        scales: "weight_scale_inv",
        single: (FileDtype::F32, &[1]),
        ..FormatDeclaration::new(FolderFormat::Fp8Block { power }, name, about)
    }
}

const fn fp8_modelopt(per_matrix: bool) -> FormatDeclaration {
    FormatDeclaration {
        inputs: Ok(FolderFormat::Fp8Modelopt { whole: true }),
        single: (FileDtype::F32, &[]),
        beside_makers: true,
        unread: LoaderLimit::Always(
            "transformers (5.19 and 5.23) ignores ModelOpt's scales and reads the codes as weights: give the folder \
             to an engine that knows them, or write fp8",
        ),
        ..FormatDeclaration::new(
            FolderFormat::Fp8Modelopt { whole: per_matrix },
            "fp8:modelopt",
            "ModelOpt: e4m3, a scale per row; per matrix with the option `static-activations`; not for transformers",
        )
    }
}

/// Returns the config of transformers' own fp8.
fn squares(facts: &ConfigFacts<'_>, scales: &str) -> Value {
    json!({
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
        "weight_block_size": [BLOCK, BLOCK], "scale_fmt": scales,
        "modules_to_not_convert": facts.ignored,
    })
}

/// Format of a safetensors checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderFormat {
    /// Plain bf16; f32 tensors of a checkpoint in 16 bits stay.
    Bf16,
    /// One plain dtype for all tensors, except those that the reference keeps in f32.
    Plain {
        /// The dtype; none for that of most weights.
        dtype: Option<Dtype>,
    },
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
