//! `--to`, `--output` and the flags that choose types.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, ValueEnum};
use conversion::gguf::{self as plan, Arithmetic, PlannedTensor, TypeChoice, base_type};
use conversion::mix;
use formats::FileDtype;
use formats::codec::BlockType;
use formats::gguf::{DimsStyle, Metadata};
use formats::imatrix::Imatrix;
use registry::dtype::Dtype;

use super::GgufModel;

/// Format that can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufFormat {
    /// Name as given after `gguf:`.
    pub(crate) name: String,
    target: mix::MixTarget,
}

impl GgufFormat {
    /// True if the format is lossy.
    pub(crate) fn quantizes(&self) -> bool {
        self.target.default_type().is_quantized()
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let Some(name) = text.strip_prefix("gguf:") else {
            bail!(
                "the format `{text}` is not known, or not one of several; expected gguf:TYPE, as in \
                 gguf:q4_k_m, or one checkpoint format such as fp8 (`--to help` lists them)"
            );
        };
        let target = mix::MixTarget::parse(name)?;
        Ok(Self { name: name.to_ascii_lowercase(), target })
    }
}

/// Parser of the value of `--to`; `help` works without the other arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let word = StringValueParser::new().parse_ref(command, arg, value)?;
        if word == "help" {
            return Err(clap::Error::raw(ErrorKind::DisplayHelp, help()));
        }
        Ok(word)
    }
}

/// Returns the output of `--to help`.
fn help() -> String {
    let mut text =
        "GGUF types, as in --to gguf:q4_k_m (a mix: most tensors are of the type named)\n"
            .to_owned();
    for target in mix::MixTarget::all() {
        let ty = target.default_type();
        let bits = ty.bytes() as f64 * 8.0 / ty.elements() as f64;
        let needs = if ty.needs_importance() { "  needs --imatrix" } else { "" };
        let name = target.name().to_lowercase();
        let ty = ty.name();
        text.extend([format!("  {name:<10} {ty:<8} {bits:.2} bits{needs}\n")]);
    }
    text.push_str("Checkpoints, as in --to fp8 -o DIR\n");
    for (name, _, what) in conversion::folder::FolderFormat::all() {
        text.extend([format!("  {name:<16} {what}\n")]);
    }
    text
}

/// The route of llama.cpp's programs whose tensors a file equals byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerRoute {
    /// `convert_hf_to_gguf.py --outtype BASE`, then `llama-quantize`: every matrix is rounded to BASE (see --base) first
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// `convert_hf_to_gguf.py --outtype TYPE` alone, for f32, f16, bf16 and q8_0: rounds once, keeps outer axes of size 1
    #[value(name = "convert_hf_to_gguf")]
    Converter,
}

/// Types that the converter writes with the mix that `llama-quantize` uses for them.
const DIRECT: [&str; 4] = ["f32", "f16", "bf16", "q8_0"];

/// Options that choose the type of each tensor.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TypeArgs {
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
    identity: Option<PeerRoute>,
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

/// Types chosen for a file.
pub(crate) struct TensorTypes {
    pub(crate) choices: Vec<TypeChoice>,
    /// Finer types that each tensor may be raised to; all equal to its own type if it may not be raised.
    pub(crate) levels: Vec<[BlockType; mix::LEVELS]>,
    pub(crate) file_type: u32,
    pub(crate) via: Option<FileDtype>,
    pub(crate) importance: BTreeMap<String, Arc<Vec<f32>>>,
    /// Additional keys.
    pub(crate) keys: Metadata,
}

impl TypeArgs {
    pub(crate) fn identity(&self) -> bool {
        self.identity.is_some()
    }

    /// Returns the form of shapes in the header.
    pub(crate) fn dims(&self) -> DimsStyle {
        match self.identity {
            Some(PeerRoute::Converter) => DimsStyle::AsGiven,
            _ => DimsStyle::Trimmed,
        }
    }

    /// Returns an error for a type that the route does not write.
    fn refuse_route(&self, format: &GgufFormat) -> Result<()> {
        let direct = DIRECT.iter().any(|name| format.name.eq_ignore_ascii_case(name));
        let changed = !self.tensor_type.is_empty()
            || self.output_tensor_type.is_some()
            || self.token_embedding_type.is_some()
            || self.pure
            || self.leave_output_tensor
            || self.base.is_some()
            || self.imatrix.is_some();
        ensure!(
            self.identity != Some(PeerRoute::Converter) || (direct && !changed),
            "--identity convert_hf_to_gguf: that program writes {} as a whole and nothing else; use \
             --identity llama.cpp for `{}` and for types of single tensors",
            DIRECT.join(", "),
            format.name
        );
        Ok(())
    }

    /// Returns an error for options that only apply to files.
    pub(crate) fn refuse(&self) -> Result<()> {
        let given = [
            ("--imatrix", self.imatrix.is_some()),
            ("--tensor-type", !self.tensor_type.is_empty()),
            ("--output-tensor-type", self.output_tensor_type.is_some()),
            ("--token-embedding-type", self.token_embedding_type.is_some()),
            ("--pure", self.pure),
            ("--leave-output-tensor", self.leave_output_tensor),
            ("--base", self.base.is_some()),
            ("--identity", self.identity.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!(
                "{flag} is for GGUF files (--to gguf:...); what a checkpoint of 8 and 4 bits keeps is said in \
                 `quant:` of the spec"
            ),
            None => Ok(()),
        }
    }

    /// Returns the compute dtype of steps that change values.
    pub(crate) fn arithmetic(&self) -> Arithmetic {
        if self.identity() { Arithmetic::OfSource } else { Arithmetic::Wide }
    }

    /// Returns the path of the importance matrix, if one was given.
    pub(crate) fn imatrix(&self) -> Option<&Path> {
        self.imatrix.as_deref()
    }

    /// Reads the importance matrix, if one was given.
    pub(crate) fn read_imatrix(&self) -> Result<Option<Imatrix>> {
        Ok(self.imatrix.as_deref().map(Imatrix::read).transpose()?)
    }

    fn has_type_option(&self, tensor: &str) -> bool {
        self.tensor_type.iter().any(|choice| choice.fits(tensor))
    }

    /// Returns the block format that a tensor keeps: more bits would not add information. An f32 file keeps
    /// none.
    fn source_block_type(&self, tensor: &PlannedTensor<'_>, plain: BlockType) -> Option<BlockType> {
        let packed = tensor.packed.as_ref()?.ty;
        // Rows have to divide, and a factor needs a tensor of its own.
        let row = tensor.flow.shape().last().copied().unwrap_or(0);
        let fits = !packed.has_factor() || plan::may_be_scaled(&tensor.name);
        if !fits || !row.is_multiple_of(packed.elements()) {
            return None;
        }
        let is_chosen = self.pure || self.has_type_option(&tensor.name);
        (!is_chosen && plain != BlockType::F32 && bits(plain) >= bits(packed)).then_some(packed)
    }

    /// Chooses the type of every tensor of a file with these keys.
    pub(crate) fn choose(
        &self,
        format: &GgufFormat,
        model: &GgufModel<'_>,
        keys: &Metadata,
        imatrix: Option<&Imatrix>,
    ) -> Result<TensorTypes> {
        self.refuse_route(format)?;
        let plain = format.target.default_type();
        let quantized = plain.is_quantized();
        let base = match (self.base, quantized) {
            (Some(base), true) => base,
            (Some(_), false) => {
                bail!("--base is for quantized formats; `{}` says it itself", format.name)
            }
            (None, true) => BlockType::of_dtype(model.matrices.run().unwrap_or(Dtype::Bf16)),
            (None, false) => plain,
        };
        ensure!(
            quantized || self.tensor_type.is_empty(),
            "--tensor-type is for quantized formats; a file of `{}` has no other matrices",
            format.name
        );
        let imatrix = imatrix.filter(|_| quantized);
        let facts = mix::MixFacts::read(keys, imatrix.is_some())?;
        let tensors: Vec<mix::MixTensor<'_>> = model
            .tensors
            .iter()
            .map(|tensor| {
                let name = tensor.name.as_str();
                let shape = tensor.flow.shape();
                mix::MixTensor { name, shape, base: base_type(name, shape, base) }
            })
            .collect();
        for choice in &self.tensor_type {
            let fits = tensors.iter().any(|tensor| choice.fits(tensor.name));
            let pattern = choice.pattern();
            ensure!(
                fits,
                "--tensor-type `{pattern}`: no tensor has such a name; `--plan` lists them"
            );
        }
        let overrides = mix::Overrides {
            tensors: self.tensor_type.clone(),
            output: self.output_tensor_type,
            embedding: self.token_embedding_type,
            pure: self.pure,
            leave_output: self.leave_output_tensor,
        };
        let mut choices = Vec::with_capacity(tensors.len());
        let mut levels = Vec::with_capacity(tensors.len());
        let mut lists = BTreeMap::new();
        let mut in_blocks = BTreeSet::new();
        let assigned = mix::assign(format.target, &tensors, &facts, &overrides)?;
        for (n, (tensor, mut assigned)) in model.tensors.iter().zip(assigned).enumerate() {
            let packed = self.source_block_type(tensor, plain);
            in_blocks.extend(packed);
            // In an unquantized file, some operators still require f32.
            if !quantized && tensors[n].base == BlockType::F32 {
                assigned.ty = BlockType::F32;
            }
            let ty = tensor.fixed.or(packed).unwrap_or(assigned.ty);
            let weights = match imatrix {
                Some(imatrix) if ty.is_quantized() && packed.is_none() => weights(imatrix, tensor)?,
                _ => None,
            };
            ensure!(
                weights.is_some()
                    || !ty.is_quantized()
                    || !(assigned.needs_importance || ty.needs_importance()),
                "`{}` becomes {ty}, which is useless without an importance matrix that has it; \
                 make one with `onboard imatrix` and give it with --imatrix, or choose another type",
                tensor.name
            );
            lists.extend(weights.map(|weights| (tensor.name.clone(), weights)));
            let free = tensor.fixed.is_none() && packed.is_none() && !assigned.asked;
            levels.push(if free { mix::levels(&tensors[n], ty) } else { [ty; mix::LEVELS] });
            let why = match packed {
                Some(_) => "kept: as it is packed".to_owned(),
                None => assigned.why,
            };
            choices.push(TypeChoice { ty, why });
        }
        let two_steps = self.identity == Some(PeerRoute::LlamaCpp);
        let via = base.plain().filter(|_| quantized && two_steps).map(FileDtype::from);
        let mut more = Metadata::new();
        if let (Some(imatrix), Some(path)) = (imatrix, &self.imatrix) {
            more.set("quantize.imatrix.file", path.display().to_string());
            if let Some(dataset) = imatrix.datasets.first() {
                more.set("quantize.imatrix.dataset", dataset.as_str());
            }
            more.set("quantize.imatrix.entries_count", u32::try_from(imatrix.entries.len())?);
            more.set("quantize.imatrix.chunks_count", imatrix.chunks);
        }
        // An unquantized file with packed blocks gets their file type, of several the last.
        let of_blocks = in_blocks.last().and_then(|ty| ty.file_types().first());
        let file_type = match of_blocks {
            Some(file) if !quantized => file.id,
            _ => format.target.file_type(),
        };
        Ok(TensorTypes { choices, levels, file_type, via, importance: lists, keys: more })
    }
}

/// Returns the error weights of a tensor, one list per matrix.
fn weights(imatrix: &Imatrix, tensor: &PlannedTensor<'_>) -> Result<Option<Arc<Vec<f32>>>> {
    let shape = tensor.flow.shape();
    let row = shape.last().copied().unwrap_or(1);
    let matrices = shape.iter().rev().skip(2).product();
    Ok(imatrix.weights_for(&tensor.name, row, matrices)?.map(|list| Arc::new(list.to_vec())))
}

/// Returns the bits of 256 numbers of a type.
fn bits(ty: BlockType) -> usize {
    ty.bytes() * 8 * 256 / ty.elements()
}

/// Returns the output path of each format: one path each, or one folder for all.
pub(crate) fn paths(
    formats: &[GgufFormat],
    outputs: &[PathBuf],
    name: &str,
) -> Result<Vec<PathBuf>> {
    for (n, format) in formats.iter().enumerate() {
        let again = formats[..n].iter().any(|other| other.name == format.name);
        ensure!(!again, "--to gguf:{} is given twice", format.name);
    }
    match outputs {
        [] => bail!("where to? give -o FILE (or a folder, if there are several formats)"),
        [one] if formats.len() > 1 || one.is_dir() || one.to_string_lossy().ends_with('/') => {
            ensure!(!one.is_file(), "`{}` is a file; several formats need a folder", one.display());
            let files = formats.iter().map(|format| format!("{name}-{}.gguf", format.name));
            Ok(files.map(|file| one.join(file)).collect())
        }
        paths if paths.len() == formats.len() => Ok(paths.to_vec()),
        paths => bail!(
            "{} formats and {} outputs; give one output each, or one folder",
            formats.len(),
            paths.len()
        ),
    }
}

/// Parses `4G`, `500M`, `100000`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let count: Option<u64> = digits.parse().ok();
    let size = count.and_then(|count| count.checked_mul(unit)).filter(|&size| size > 0);
    size.ok_or_else(|| format!("`{text}` is no size; write 4G, 500M or a number of bytes"))
}

/// Parses `2/8`, the second of eight files, and returns its index counted from zero.
pub(crate) fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/');
    let numbers = parts
        .and_then(|(no, count)| Some((no.parse::<usize>().ok()?, count.parse::<usize>().ok()?)));
    match numbers {
        Some((no, count)) if no > 0 && no <= count && count <= 9999 => Ok((no - 1, count)),
        _ => Err(format!("`{text}` is not I/N with I from 1 to N, as in 2/8")),
    }
}
