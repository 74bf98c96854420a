//! Model with its tensors in the form of a GGUF file.

use checkpoints::Checkpoint;
use checkpoints::weights::{WeightFlow, flows, idle};
use conversion::gguf::{self as plan, Arithmetic, PlannedTensor};
use formats::FileDtype;
use formats::gguf::Metadata;
use models::local_model::LocalModel;
use models::specs::SpecId;
use registry::check::has_head;
use registry::diag::{Finding, Severity};
use registry::gguf::Gguf;
use registry::gguf_head::with_head;
use tokenizer::TokenizerOptions;

use crate::error::{Context as _, Error, Result, ensure, several};
use crate::gguf_source;
use crate::observer::ConversionObserver;

/// Model with its tensors in GGUF form.
pub(crate) struct GgufModel<'c> {
    pub(crate) name: String,
    pub(crate) gguf: Gguf,
    pub(crate) tensors: Vec<PlannedTensor<'c>>,
    pub(crate) tokenizer: Metadata,
    pub(crate) config: String,
    /// Dtype of the matrices.
    pub(crate) matrices: FileDtype,
    pub(crate) checkpoint: &'c Checkpoint,
    pub(crate) warnings: Vec<String>,
    pub(crate) spec: SpecId,
}

impl<'c> GgufModel<'c> {
    pub(crate) fn new(
        observer: &dyn ConversionObserver,
        target: &LocalModel,
        checkpoint: &'c Checkpoint,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        Self::with_or_without(observer, target, checkpoint, arithmetic, true)
    }

    /// Reads the model and its tensors; `head` is true to include the multi-token prediction head, if there
    /// is one.
    pub(crate) fn with_or_without(
        observer: &dyn ConversionObserver,
        target: &LocalModel,
        checkpoint: &'c Checkpoint,
        arithmetic: Arithmetic,
        head: bool,
    ) -> Result<Self> {
        let model = &target.model;
        let (gguf, mut file_weights) = match with_head(model) {
            Some(gguf_and_weights) if head && has_head(model, &checkpoint.shapes()) => {
                gguf_and_weights
            }
            _ => {
                let gguf = model.gguf.clone().unwrap_or_else(|| checkpoints::own_names(model));
                (gguf, model.graph.weights.clone())
            }
        };
        if let Some(unlike) = gguf.unlike.as_deref() {
            let refused = Finding { severity: Severity::Error, ..unlike.clone() };
            return Err(Error::Findings {
                message: "the model does not become a GGUF file".to_owned(),
                findings: vec![refused],
            });
        }
        let (mut weights, _) = flows(checkpoint, &file_weights, &model.rules).map_err(several)?;
        let beside = idle(checkpoint, gguf.idle(&file_weights), &model.rules).map_err(several)?;
        for (weight, sourced) in beside {
            file_weights.push(weight);
            weights.push(sourced);
        }
        let gguf = plan::with_scalars(gguf, &file_weights, &weights).map_err(no_gguf)?;
        let tensors = plan::tensors(&gguf, &file_weights, &weights, arithmetic).map_err(no_gguf)?;
        let mut warnings = plan::unknown(&gguf, &tensors);
        warnings.extend(gguf.doubts.iter().map(|doubt: &String| {
            format!("llama.cpp will not run the file as it is meant: {doubt}")
        }));
        // Arithmetic in the source's dtype belongs to a route of llama.cpp.
        let identity = arithmetic == Arithmetic::OfSource;
        let tokenizer = if target.is_gguf() {
            gguf_source::carried_keys(observer, target)?
        } else {
            tokenizer(observer, target, &gguf, identity, &mut warnings)?
        };
        Ok(Self {
            name: if target.is_gguf() { gguf_source::name(target)? } else { target.name.clone() },
            matrices: matrices(&weights),
            config: target.config.json()?,
            gguf,
            tensors,
            tokenizer,
            checkpoint,
            warnings,
            spec: target.spec.clone(),
        })
    }
}

/// Returns the dtype of the first matrix, which is the default for the matrices of a converted file.
fn matrices(weights: &[WeightFlow<'_>]) -> FileDtype {
    match weights
        .iter()
        .filter(|weight: &&WeightFlow<'_>| weight.flow.shape().len() >= 2)
        .find_map(|weight| weight.flow.dtype())
    {
        Some(dtype @ (FileDtype::F16 | FileDtype::F32)) => dtype,
        _ => FileDtype::Bf16,
    }
}

/// Returns the keys of the tokenizer beside the weights, checked against the tokenizer itself.
fn tokenizer(
    observer: &dyn ConversionObserver,
    target: &LocalModel,
    gguf: &Gguf,
    identity: bool,
    warnings: &mut Vec<String>,
) -> Result<Metadata> {
    let pre = gguf.pre.clone();
    let special = gguf.special.clone();
    let options = TokenizerOptions { pre, special, identity, ..TokenizerOptions::default() };
    let mut loaded = match tokenizer::read(&target.dir, target.model.input_vocab, &options) {
        Ok(loaded) => loaded,
        Err(tokenizer::Error::Missing { .. }) => {
            let parts = ["vocab.json", "merges.txt", "vocab.txt", "tiktoken.model"];
            let present: Vec<&str> =
                parts.into_iter().filter(|name| target.dir.join(name).is_file()).collect();
            ensure!(
                present.is_empty(),
                "`{}` has {} and no tokenizer.json, which is what is read; save one with \
                 transformers' AutoTokenizer.save_pretrained",
                target.dir.display(),
                present.join(", ")
            );
            warnings.push(format!(
                "`{}` has no tokenizer: the file will have none, and can only be fed token ids",
                target.dir.display()
            ));
            let mut keys = Metadata::new();
            keys.set("tokenizer.ggml.model", "none");
            // llama.cpp takes the number of rows of the embedding from here where there is no list of tokens.
            let rows = u32::try_from(target.model.input_vocab)?;
            keys.set(format!("{}.vocab_size", gguf.arch), rows);
            return Ok(keys);
        }
        Err(error) => return Err(error.into()),
    };
    warnings.extend(loaded.warnings.iter().cloned());
    tokenizer::complete(&target.name, &mut loaded.keys, warnings);
    for note in &loaded.notes {
        observer.note(&format!("note: {note}"));
    }
    match tokenizer::self_check(&loaded, &target.dir) {
        Ok(checked) => {
            if let Some(first) = checked.known.first() {
                warnings.push(format!(
                    "{} of {} texts of the check become other tokens in llama.cpp, as {first:?} does",
                    checked.known.len(),
                    checked.strings + checked.known.len()
                ));
            }
        }
        Err(tokenizer::Mismatch::NoReference { .. }) => warnings.push(
            "the tokenizer could not be checked: there is no tokenizer.json to compare with"
                .to_owned(),
        ),
        Err(error) => {
            return Err(error).context("the file's tokenizer would not be the checkpoint's");
        }
    }
    Ok(loaded.keys)
}

/// Combines faults of a model that has no form as a GGUF file.
fn no_gguf(faults: impl IntoIterator<Item = impl ToString>) -> Error {
    Error::Context {
        message: "the model does not become a GGUF file".to_owned(),
        source: Box::new(several(faults)),
    }
}

/// Opens the checkpoint of a model, with an error message for conversions.
pub(crate) fn checkpoint(target: &LocalModel) -> Result<Checkpoint> {
    target.checkpoint().context("there is nothing to convert")
}
