//! Groups of arguments of `convert`: types, a divergence to meet, and scales measured on a text.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use conversion::mix;
use converter::{CalibrationOptions, GoalOptions, PeerRoute, TypeOptions};
use formats::codec::BlockType;

use crate::engines::DeviceArgs;

/// A divergence, and what it is measured against.
#[derive(Debug, Args)]
#[command(next_help_heading = "A divergence to meet")]
pub(super) struct DivergenceArgs {
    /// Choose by measurement, so that the mean divergence from the reference is at most so many nats: GGUF
    /// tensors get finer types, matrices of checkpoints stay as they are, the ones that matter most for their size
    /// first. Takes the room of another output or two while it measures. After an interruption, the same command
    /// goes on with what it measured
    #[arg(long, value_name = "NATS", value_parser = parse_kl)]
    target_kl: Option<f64>,
    /// The dump to measure against; default: MODEL/reference, then MODEL/dump
    #[arg(long, value_name = "DUMP", requires = "target_kl", conflicts_with_all = ["text", "tokens"])]
    reference: Option<PathBuf>,
    /// A text to measure on where there is no dump, against MODEL's own f32 run; cut as --chunk and --chunks say
    #[arg(long, value_name = "FILE", requires = "target_kl")]
    text: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        requires = "target_kl",
        conflicts_with = "text"
    )]
    tokens: Vec<u32>,
    /// Measure with activations of 8 bits too (checkpoints of 8 bits)
    #[arg(long, requires = "target_kl")]
    w8a8: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Parses a divergence in nats.
fn parse_kl(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|nats: &f64| nats.is_finite() && *nats > 0.0);
    number.ok_or_else(|| format!("`{text}` is no divergence; expected nats above 0, as 1e-3"))
}

impl DivergenceArgs {
    pub(super) fn options(&self) -> GoalOptions {
        GoalOptions {
            target_kl: self.target_kl,
            reference: self.reference.clone(),
            text: self.text.clone(),
            tokens: self.tokens.clone(),
            w8a8: self.w8a8,
            device: self.device.of_measurement(),
        }
    }

    /// Prepares the device of the measurements, if there are some.
    pub(super) fn prepare_device(&self) {
        if self.target_kl.is_some() {
            self.device.prepare();
        }
    }
}

/// Scales of activations, and the text that they are measured on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scales measured on a text (checkpoints of 8 and 4 bits)")]
pub(super) struct CalibrationArgs {
    /// Give all that a matrix multiplies one scale; without, engines scale each row as it comes
    #[arg(long)]
    static_activations: bool,
    /// Write scales for keys and values of 8 bits, one per layer each
    #[arg(long)]
    kv_scales: bool,
    /// The text to measure on
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "calibrate")]
    calibrate_tokens: Vec<u32>,
    /// Leave out the scales of activations, keys and values that a quantized source has
    #[arg(long)]
    drop_scales: bool,
    /// Tokens in a chunk, of this text and of that of --target-kl; default: 512, or all that the model handles
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// At most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
}

impl CalibrationArgs {
    pub(super) fn options(&self) -> CalibrationOptions {
        CalibrationOptions {
            static_activations: self.static_activations,
            kv_scales: self.kv_scales,
            calibrate: self.calibrate.clone(),
            calibrate_tokens: self.calibrate_tokens.clone(),
            drop_scales: self.drop_scales,
            chunk: self.chunk,
            chunks: self.chunks,
        }
    }
}

/// The route of llama.cpp's programs whose tensors a file equals byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PeerRouteChoice {
    /// `convert_hf_to_gguf.py --outtype BASE`, then `llama-quantize`: every matrix is rounded to BASE (see --base) first
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// `convert_hf_to_gguf.py --outtype TYPE` alone, for f32, f16, bf16 and q8_0: rounds once, keeps outer axes of size 1
    #[value(name = "convert_hf_to_gguf")]
    Converter,
}

/// Options that choose the type of each tensor.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TypeArgs {
    /// An importance matrix, from `onboard imatrix` or llama.cpp (GGUF or .dat)
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// A type for tensors whose names match a regular expression (repeatable): ffn_down=q8_0
    #[arg(long, value_name = "REGEX=TYPE", value_parser = tensor_type)]
    tensor_type: Vec<mix::TensorType>,
    /// The type of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = block_type)]
    output_tensor_type: Option<BlockType>,
    /// The type of the embeddings
    #[arg(long, value_name = "TYPE", value_parser = block_type)]
    token_embedding_type: Option<BlockType>,
    /// Every quantized tensor gets the type that was named, without a mix
    #[arg(long)]
    pure: bool,
    /// Do not quantize the output matrix
    #[arg(long)]
    leave_output_tensor: bool,
    /// Dtype of matrices that are not quantized; default: as in the checkpoint
    #[arg(long, value_name = "TYPE", value_parser = plain_type)]
    base: Option<BlockType>,
    /// Give every tensor the bytes that llama.cpp's own programs give on x86-64
    ///
    /// Remaining differences: `general.name`, `general.size_label` and other keys of the model's origin,
    /// which the converter takes from folder names and model cards; the order of keys; and `ssm_a`, which
    /// torch's exp may leave one unit in the last place off, depending on its build and CPU.
    #[arg(long, value_name = "ROUTE")]
    identity: Option<PeerRouteChoice>,
}

fn tensor_type(text: &str) -> Result<mix::TensorType, String> {
    mix::TensorType::parse(text).map_err(|e| e.to_string())
}

fn block_type(text: &str) -> Result<BlockType, String> {
    mix::parse_type(text).map_err(|e| e.to_string())
}

fn plain_type(text: &str) -> Result<BlockType, String> {
    BlockType::parse(text)
        .filter(|ty| ty.plain().is_some())
        .ok_or_else(|| format!("`{text}` is none of f32, f16, bf16"))
}

impl TypeArgs {
    pub(super) fn options(&self) -> TypeOptions {
        TypeOptions {
            imatrix: self.imatrix.clone(),
            tensor_type: self.tensor_type.clone(),
            output_tensor_type: self.output_tensor_type,
            token_embedding_type: self.token_embedding_type,
            pure: self.pure,
            leave_output_tensor: self.leave_output_tensor,
            base: self.base,
            identity: self.identity.map(|route| match route {
                PeerRouteChoice::LlamaCpp => PeerRoute::LlamaCpp,
                PeerRouteChoice::Converter => PeerRoute::Converter,
            }),
        }
    }
}
