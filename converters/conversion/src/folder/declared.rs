//! Declarations of the formats of checkpoints: names, scales, config and limits, one for each.

use serde_json::{Value, json};

use super::config::{Said, compressed, float4, float8, modelopt, modelopt_file, tokens};
use super::format::{Format, NoInputs};
use super::scaled::{BLOCK, Scheme, SquareScale, global_scale, whole_scale};
use formats::safetensors::FileDtype;

/// Facts about a format. [`Declaration::new`] has the defaults of those that a format may lack.
pub(super) struct Declaration {
    pub(super) format: Format,
    /// Name as given to `--to`.
    pub(super) name: &'static str,
    /// Description in a few words.
    pub(super) about: &'static str,
    /// False for a variant that follows from another option.
    pub(super) listed: bool,
    /// Quantization scheme of matrices whose shared scale is the argument; none for plain values.
    pub(super) scheme: Option<fn(f32) -> Scheme>,
    /// Scale that all fused matrices share, stored as a tensor of its own.
    pub(super) shared: Option<Shared>,
    /// Variant that stores scales of inputs, or the reason why there is none.
    pub(super) inputs: Result<Format, NoInputs>,
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
    pub(super) unread: Unread,
    /// Writes `quantization_config`; none for plain values.
    pub(super) config: Option<fn(&Said<'_>) -> Value>,
    /// Writes `hf_quant_config.json`, for the formats that have one.
    pub(super) beside: Option<fn(&Said<'_>) -> Value>,
}

/// Scale that matrices share.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    /// Suffix of its tensor.
    pub(super) name: &'static str,
    /// Dtype of its tensor.
    pub(super) dtype: FileDtype,
    /// Returns the scale for values up to a peak.
    pub(super) scale: fn(f32) -> f32,
}

/// Loaders that cannot read a format, and the remedy.
#[derive(Clone, Copy)]
pub(super) enum Unread {
    Never,
    /// If experts are quantized.
    Mixtures(&'static str),
    Always(&'static str),
}

impl Declaration {
    const fn new(format: Format, name: &'static str, about: &'static str) -> Self {
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
            unread: Unread::Never,
            config: None,
            beside: None,
        }
    }
}

/// Every format, in the order in which programs list them.
pub(super) static DECLARED: [Declaration; 10] = [
    Declaration::new(Format::Bf16, "bf16", "plain numbers; undoes what is quantized"),
    Declaration {
        scheme: Some(|_| Scheme::Rows(FileDtype::Bf16)),
        inputs: Ok(Format::Fp8),
        patterns: true,
        config: Some(|said| {
            compressed(said, "float-quantized", &float8("channel"), &tokens(said.asked))
        }),
        ..Declaration::new(
            Format::Fp8,
            "fp8",
            "compressed-tensors: e4m3, a scale per row, tokens scaled as they come",
        )
    },
    Declaration {
        scheme: Some(Scheme::Whole),
        shared: Some(Shared {
            name: "weight_scale",
            dtype: FileDtype::Bf16,
            scale: |peak| whole_scale(peak, FileDtype::Bf16),
        }),
        inputs: Ok(Format::Fp8Tensor),
        patterns: true,
        config: Some(|said| {
            compressed(said, "float-quantized", &float8("tensor"), &tokens(said.asked))
        }),
        ..Declaration::new(
            Format::Fp8Tensor,
            "fp8:tensor",
            "compressed-tensors: e4m3, a scale per matrix",
        )
    },
    Declaration {
        scheme: Some(|_| Scheme::Squares(SquareScale::F32)),
        config: Some(|said| squares(said, "float")),
        ..fp8_block(false, "fp8:block", "e4m3, an f32 scale per 128x128")
    },
    Declaration {
        scheme: Some(|_| Scheme::Squares(SquareScale::Power)),
        config: Some(|said| squares(said, "ue8m0")),
        ..fp8_block(true, "fp8:block-ue8m0", "the same with powers of two for scales")
    },
    Declaration {
        scheme: Some(|_| Scheme::Squares(SquareScale::Bf16)),
        inputs: Err(NoInputs::Groups),
        patterns: true,
        unread: Unread::Mixtures(
            "transformers (5.19 and 5.23, with compressed-tensors 0.17 and 0.20) does not load mixtures of \
             fp8:ct-block: it expects scales of rows for experts; fp8:block has the same squares and loads",
        ),
        config: Some(|said| {
            let mut weights = float8("block");
            weights["block_structure"] = json!([BLOCK, BLOCK]);
            let mut inputs = tokens(said.asked);
            inputs["strategy"] = json!("group");
            inputs["group_size"] = json!(BLOCK);
            compressed(said, "float-quantized", &weights, &inputs)
        }),
        ..Declaration::new(
            Format::Fp8CtBlock,
            "fp8:ct-block",
            "compressed-tensors: e4m3, a scale per 128x128; no mixtures in transformers",
        )
    },
    Declaration {
        scheme: Some(|_| Scheme::Rows(FileDtype::F32)),
        config: Some(|said| modelopt(said, PER_ROW)),
        beside: Some(|said| modelopt_file(said, PER_ROW)),
        ..fp8_modelopt(false)
    },
    // One scale per matrix, which stored scales of inputs require.
    Declaration {
        listed: false,
        scheme: Some(Scheme::Whole),
        shared: Some(Shared {
            name: "weight_scale",
            dtype: FileDtype::F32,
            scale: |peak| whole_scale(peak, FileDtype::F32),
        }),
        config: Some(|said| modelopt(said, PER_MATRIX)),
        beside: Some(|said| modelopt_file(said, PER_MATRIX)),
        ..fp8_modelopt(true)
    },
    Declaration {
        scheme: Some(Scheme::Sixteens),
        shared: Some(Shared {
            name: "weight_global_scale",
            dtype: FileDtype::F32,
            scale: global_scale,
        }),
        inputs: Err(NoInputs::Wide),
        codes: "weight_packed",
        patterns: true,
        unread: Unread::Mixtures(
            "transformers (5.23) leaves out the scale of scales of experts in NVFP4: give the folder to an engine \
             that multiplies by it, or write mxfp4",
        ),
        config: Some(|said| {
            let weights = float4("tensor_group", 16, "torch.float8_e4m3fn");
            compressed(said, "nvfp4-pack-quantized", &weights, &Value::Null)
        }),
        ..Declaration::new(
            Format::Nvfp4,
            "nvfp4",
            "compressed-tensors: e2m1, a scale per 16, weights only; no mixtures in transformers",
        )
    },
    Declaration {
        scheme: Some(|_| Scheme::ThirtyTwos),
        inputs: Err(NoInputs::Wide),
        codes: "weight_packed",
        patterns: true,
        config: Some(|said| {
            let weights = float4("group", 32, "torch.uint8");
            compressed(said, "mxfp4-pack-quantized", &weights, &Value::Null)
        }),
        ..Declaration::new(
            Format::Mxfp4,
            "mxfp4",
            "compressed-tensors: e2m1, a power of two per 32, weights only",
        )
    },
];

/// ModelOpt's names for e4m3 with one scale per row, and per matrix.
const PER_ROW: &str = "FP8_PER_CHANNEL_PER_TOKEN";
const PER_MATRIX: &str = "FP8";

const fn fp8_block(power: bool, name: &'static str, about: &'static str) -> Declaration {
    Declaration {
        inputs: Err(NoInputs::Groups),
        scales: "weight_scale_inv",
        single: (FileDtype::F32, &[1]),
        ..Declaration::new(Format::Fp8Block { power }, name, about)
    }
}

const fn fp8_modelopt(whole: bool) -> Declaration {
    Declaration {
        inputs: Ok(Format::Fp8Modelopt { whole: true }),
        single: (FileDtype::F32, &[]),
        beside_makers: true,
        unread: Unread::Always(
            "transformers (5.19 and 5.23) ignores ModelOpt's scales and reads the codes as weights: give the folder \
             to an engine that knows them, or write fp8",
        ),
        ..Declaration::new(
            Format::Fp8Modelopt { whole },
            "fp8:modelopt",
            "ModelOpt: e4m3, a scale per row; per matrix with the option `static-activations`; not for transformers",
        )
    }
}

/// Returns the config of transformers' own fp8.
fn squares(said: &Said<'_>, scales: &str) -> Value {
    json!({
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
        "weight_block_size": [BLOCK, BLOCK], "scale_fmt": scales,
        "modules_to_not_convert": said.ignored,
    })
}
