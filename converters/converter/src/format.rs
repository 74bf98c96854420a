//! Formats, output paths, and the choice of types.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conversion::gguf::{self as plan, Arithmetic, PlannedTensor, TypeChoice, base_type};
use conversion::mix;
use formats::FileDtype;
use formats::codec::BlockType;
use formats::gguf::{DimsStyle, Metadata};
use formats::imatrix::Imatrix;
use registry::dtype::Dtype;

use crate::error::{Result, bail, ensure};
use crate::gguf_model::GgufModel;
use crate::options::{PeerRoute, TypeOptions};

/// Format that can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufFormat {
    /// Name as given after `gguf:`.
    pub name: String,
    target: mix::MixTarget,
}

impl GgufFormat {
    /// True if the format is lossy.
    pub fn quantizes(&self) -> bool {
        self.target.default_type().is_quantized()
    }

    /// Returns the format of a mix.
    pub(crate) fn of(target: mix::MixTarget) -> Self {
        Self { name: target.name().to_ascii_lowercase(), target }
    }

    /// Parses a format such as `gguf:q4_k_m`.
    pub fn parse(text: &str) -> Result<Self> {
        let Some(name) = text.strip_prefix("gguf:") else {
            bail!(
                "the format `{text}` is not known, or not one of several; expected gguf:TYPE, as in \
                 gguf:q4_k_m, or one checkpoint format such as fp8 (the option `to help` lists them)"
            );
        };
        let target = mix::MixTarget::parse(name)?;
        Ok(Self { name: name.to_ascii_lowercase(), target })
    }
}

/// Types that the converter writes with the mix that `llama-quantize` uses for them.
const DIRECT: [&str; 4] = ["f32", "f16", "bf16", "q8_0"];

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

impl TypeOptions {
    /// True if the bytes of a program of llama.cpp are asked for.
    pub fn identity(&self) -> bool {
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
            "the option `identity convert_hf_to_gguf`: that program writes {} as a whole and nothing else; use \
             the option `identity llama.cpp` for `{}` and for types of single tensors",
            DIRECT.join(", "),
            format.name
        );
        Ok(())
    }

    /// Returns an error for options that only apply to files.
    pub(crate) fn refuse(&self) -> Result<()> {
        let given = [
            ("imatrix", self.imatrix.is_some()),
            ("tensor-type", !self.tensor_type.is_empty()),
            ("output-tensor-type", self.output_tensor_type.is_some()),
            ("token-embedding-type", self.token_embedding_type.is_some()),
            ("pure", self.pure),
            ("leave-output-tensor", self.leave_output_tensor),
            ("base", self.base.is_some()),
            ("identity", self.identity.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!(
                "the option `{flag}` is for GGUF files (the option `to gguf:...`); what a checkpoint of 8 and 4 bits keeps is said in \
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
                bail!(
                    "the option `base` is for quantized formats; `{}` says it itself",
                    format.name
                )
            }
            (None, true) => BlockType::of_dtype(model.matrices.run().unwrap_or(Dtype::Bf16)),
            (None, false) => plain,
        };
        ensure!(
            quantized || self.tensor_type.is_empty(),
            "the option `tensor-type` is for quantized formats; a file of `{}` has no other matrices",
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
                "the option `tensor-type` `{pattern}`: no tensor has such a name; the option `plan` lists them"
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
                 make one with `onboard imatrix` and give it with the option `imatrix`, or choose another type",
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
        let keys = self.imatrix_keys(imatrix)?;
        // An unquantized file with packed blocks gets their file type, of several the last.
        let of_blocks = in_blocks.last().and_then(|ty| ty.file_types().first());
        let file_type = match of_blocks {
            Some(file) if !quantized => file.id,
            _ => format.target.file_type(),
        };
        Ok(TensorTypes { choices, levels, file_type, via, importance: lists, keys })
    }
}

impl TypeOptions {
    /// Returns the keys about the importance matrix, if one is used.
    fn imatrix_keys(&self, imatrix: Option<&Imatrix>) -> Result<Metadata> {
        let mut keys = Metadata::new();
        if let (Some(imatrix), Some(path)) = (imatrix, &self.imatrix) {
            keys.set("quantize.imatrix.file", path.display().to_string());
            if let Some(dataset) = imatrix.datasets.first() {
                keys.set("quantize.imatrix.dataset", dataset.as_str());
            }
            keys.set("quantize.imatrix.entries_count", u32::try_from(imatrix.entries.len())?);
            keys.set("quantize.imatrix.chunks_count", imatrix.chunks);
        }
        Ok(keys)
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
        ensure!(!again, "the option `to gguf:{}` is given twice", format.name);
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
