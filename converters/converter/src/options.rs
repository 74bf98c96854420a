//! Options of conversions.

use std::path::PathBuf;
use std::sync::Arc;

use conversion::mix;
use engine::NativeEngine;
use formats::codec::BlockType;
use formats::output::{DirectDisk, Disk};
use models::open::OpenOptions;

use crate::error::Result;

/// Options of a conversion.
///
/// [`ConvertOptions::new`] has the defaults of the command line: one format, one output, a worker per core. Texts of
/// errors call a field by its name with dashes, as in ``the option `target-kl` ``. No option for threads or memory changes
/// a byte of the result.
///
/// ```
/// use onboard_converter::ConvertOptions;
///
/// let options = ConvertOptions { plan: true, ..ConvertOptions::new("gguf:q4_k_m", "model.gguf") };
/// assert!(options.check().is_ok());
/// assert!(ConvertOptions::new("gguf:q9_x", "model.gguf").check().is_err());
/// ```
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct ConvertOptions {
    /// Formats: `gguf:TYPE` once or several times, or one checkpoint format such as `fp8`.
    pub to: Vec<String>,
    /// Output paths: a file for each GGUF format, or one folder.
    pub output: Vec<PathBuf>,
    /// True to hand the plan to the observer, and to write nothing.
    pub plan: bool,
    /// True for plans and comparisons in JSON.
    pub json: bool,
    /// True to go on with a conversion that was stopped.
    pub resume: bool,
    /// True to write over existing files.
    pub force: bool,
    /// True to quantize the weights of a GGUF file again, which rounds them twice.
    pub requantize: bool,
    /// Maximum bytes of a file.
    pub split_max_size: Option<u64>,
    /// Index and number of the files of a set, of which one is written.
    pub shard: Option<(usize, usize)>,
    /// True to quantize the output matrix of a checkpoint too.
    pub quantize_output: bool,
    /// True to add the config keys that engines read and transformers leaves out.
    pub compat: bool,
    /// True to copy the code of a checkpoint.
    pub copy_code: bool,
    /// Divergence to meet.
    pub goal: GoalOptions,
    /// Scales that are measured on a text.
    pub calibration: CalibrationOptions,
    /// Choice of the type of each tensor.
    pub types: TypeOptions,
    /// Options that the model was opened with; a GGUF file records them.
    pub opened: OpenOptions,
    /// Number of worker threads; one per core by default.
    pub threads: Option<usize>,
    /// Number of values that a worker holds at a time.
    pub slab: usize,
    /// Disk operations that make files and names durable.
    pub disk: Arc<dyn Disk>,
}

impl ConvertOptions {
    /// Returns the options of a conversion to one format and one output.
    pub fn new(format: &str, output: impl Into<PathBuf>) -> Self {
        Self { to: vec![format.to_owned()], output: vec![output.into()], ..Self::default() }
    }

    /// Returns the files of the shard; all if there is none.
    pub(crate) fn of_shard(&self, files: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
        let numbered = files.enumerate();
        let of_shard = numbered.filter(|(n, _)| self.shard.is_none_or(|(no, _)| no == *n));
        of_shard.map(|(_, path)| path).collect()
    }

    /// Returns the number of worker threads.
    pub(crate) fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(cores).clamp(1, 1024)
    }
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            to: Vec::new(),
            output: Vec::new(),
            plan: false,
            json: false,
            resume: false,
            force: false,
            requantize: false,
            split_max_size: None,
            shard: None,
            quantize_output: false,
            compat: false,
            copy_code: false,
            goal: GoalOptions::default(),
            calibration: CalibrationOptions::default(),
            types: TypeOptions::default(),
            opened: OpenOptions::default(),
            threads: None,
            slab: 1024 * 1000,
            disk: Arc::new(DirectDisk),
        }
    }
}

/// Error for the option `compat` with a GGUF file.
pub(crate) const NO_CONFIG: &str =
    "the option `compat` is about a config.json, and GGUF files have keys of their own";

/// Device of the native engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MeasuringDevice {
    /// CPU.
    #[default]
    Cpu,
    /// The one visible GPU.
    Gpu,
}

impl MeasuringDevice {
    /// Creates the native engine on the device, which is opened now.
    pub(crate) fn engine(self) -> Result<NativeEngine> {
        Ok(match self {
            Self::Cpu => NativeEngine::new(),
            Self::Gpu => engine::drivers::gpu()?,
        })
    }
}

/// Divergence that a conversion has to meet, and its reference.
///
/// The mean divergence from the reference is at most [`GoalOptions::target_kl`] nats: tensors of a GGUF file get finer types,
/// and matrices of a checkpoint stay unquantized. Those that matter most for their size come first. The reference is a dump,
/// or the model's own run in f32 on a text.
///
/// ```
/// use onboard_converter::{ConvertOptions, GoalOptions};
///
/// let goal = GoalOptions { target_kl: Some(1e-2), tokens: vec![1, 2, 3, 4], ..GoalOptions::default() };
/// let options = ConvertOptions { goal, ..ConvertOptions::new("gguf:f32", "model.gguf") };
/// assert!(options.check().is_err(), "f32 loses nothing");
/// ```
#[derive(Debug, Clone, Default)]
pub struct GoalOptions {
    /// Maximum mean divergence in nats; nothing is searched without it.
    pub target_kl: Option<f64>,
    /// Dump to measure against; by default that beside the model.
    pub reference: Option<PathBuf>,
    /// Text to measure on where there is no dump.
    pub text: Option<PathBuf>,
    /// Token ids in place of a text.
    pub tokens: Vec<u32>,
    /// True to measure with activations of 8 bits.
    pub w8a8: bool,
    /// Device of the measurements.
    pub device: MeasuringDevice,
}

/// Scales of activations, keys and values, and the text that they are measured on.
#[derive(Debug, Clone, Default)]
pub struct CalibrationOptions {
    /// True for one scale for all that a matrix multiplies.
    pub static_activations: bool,
    /// True for scales of keys and values of 8 bits.
    pub kv_scales: bool,
    /// Text to measure on.
    pub calibrate: Option<PathBuf>,
    /// Token ids in place of a text.
    pub calibrate_tokens: Vec<u32>,
    /// True to leave out calibrated scales of a quantized source.
    pub drop_scales: bool,
    /// Tokens in a chunk of texts; 512 by default, or all that the model handles.
    pub chunk: Option<usize>,
    /// Maximum number of chunks.
    pub chunks: Option<usize>,
}

/// Route of llama.cpp's programs whose tensors a file equals byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRoute {
    /// `convert_hf_to_gguf.py --outtype BASE`, then `llama-quantize`: every matrix is rounded to the base first.
    LlamaCpp,
    /// `convert_hf_to_gguf.py --outtype TYPE` alone, which rounds once.
    Converter,
}

/// Choice of the type of each tensor of a GGUF file.
///
/// A mix chooses by default. The fields override it for single tensors, for the output matrix and the embedding, or for all
/// tensors. With [`TypeOptions::identity`] the bytes are those of a program of llama.cpp.
///
/// ```
/// use onboard_converter::TypeOptions;
///
/// let types = TypeOptions { pure: true, ..TypeOptions::default() };
/// assert!(!types.identity());
/// ```
#[derive(Debug, Clone, Default)]
pub struct TypeOptions {
    /// Importance matrix.
    pub imatrix: Option<PathBuf>,
    /// Types for tensors whose names match a regular expression.
    pub tensor_type: Vec<mix::TensorType>,
    /// Type of the output matrix.
    pub output_tensor_type: Option<BlockType>,
    /// Type of the embedding.
    pub token_embedding_type: Option<BlockType>,
    /// True to give every quantized tensor the named type, without a mix.
    pub pure: bool,
    /// True to leave the output matrix unquantized.
    pub leave_output_tensor: bool,
    /// Dtype of matrices that are not quantized.
    pub base: Option<BlockType>,
    /// Route of llama.cpp's programs whose bytes every tensor gets.
    pub identity: Option<PeerRoute>,
}
