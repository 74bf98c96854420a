//! Reads a dump: the reference's results on a model, for given tokens.
//!
//! The format is described in `docs/dump.md`. A dump is untrusted: the manifest is checked for consistency,
//! and every tensor's dtype and shape against the manifest, before anything is compared. Tensors are
//! widened on demand.

mod changed;
mod manifest;
mod prompt;
mod seal;
mod tensor_file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use checkpoints::Checkpoint;
use formats::shown;
use registry::dtype::Dtype;
use sha2::{Digest as _, Sha256};

use crate::metrics;

pub use manifest::{
    Audit, CheckpointContents, EnsembleMembers, HeadEntry, KvRounding, Manifest, ModelId,
    ReferencePatch, StateInfo, TapInfo, TrustedPhase, VERSION,
};
pub use prompt::{Phase, Prompt, PromptError, check_prompts};
pub use seal::{FileChecksums, sealed};
use tensor_file::TensorFile;

/// Error in reading a dump. Texts from the files are escaped and shortened, ready to print.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// `manifest.json` is not JSON of the right form.
    #[error("`{path}` is not a manifest of a dump: {why}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Message of the JSON parser.
        why: String,
    },
    /// `manifest.json` contains a contradiction.
    #[error("`{path}`: {message}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Description of the contradiction.
        message: String,
    },
    /// `reference.safetensors` is damaged.
    #[error(transparent)]
    Tensors(#[from] formats::safetensors::Error),
    /// A file has other bytes than when the dump was written.
    #[error(
        "`{path}` was changed or damaged since the dump was written: its SHA-256 is {sha256}; expected {expected} \
         (`sha256` of `manifest.json`): write the dump again with `parity dump`"
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Hash of the file.
        sha256: String,
        /// Hash when the dump was written.
        expected: String,
    },
    /// A tensor that the manifest lists is missing.
    #[error("tensor `{name}` is not in `{path}`; `manifest.json` says that it was recorded")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape or dtype than the manifest requires.
    #[error("tensor `{name}` of `{path}` is {got}; `manifest.json` makes it {want}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Actual shape and dtype.
        got: String,
        /// Expected shape and dtype.
        want: String,
    },
    /// The dump was made from another checkpoint.
    #[error(
        "the dump `{dir}` was made from another model: {change}; \
         write a new dump with `parity dump`, or measure the cost of a conversion with \
         `parity check CONVERTED`, the option `reference DUMP` and the option `source MODEL`"
    )]
    OtherModel {
        /// The dump.
        dir: PathBuf,
        /// First key or tensor that changed, or hashes that differ.
        change: String,
    },
    /// The reference ran without some layers, and the whole model is needed.
    #[error(
        "the dump `{dir}` is of {layers} alone; only `parity check` and `parity diagnose` on the checkpoint's folder \
         compare such a dump: write one of the whole model with `parity dump`"
    )]
    PartOfModel {
        /// The dump.
        dir: PathBuf,
        /// The layers.
        layers: String,
    },
}

/// Opened dump.
#[derive(Debug)]
pub struct Dump {
    /// Folder of the dump.
    pub dir: PathBuf,
    /// Manifest of the dump.
    pub manifest: Manifest,
    /// Notes on contents that this version ignores.
    pub notes: Vec<String>,
    store: TensorFile,
    /// Hash of the tensors, if the manifest has checksums.
    tensors_sha256: Option<String>,
}

/// Router choices of the reference in one phase, by module.
pub type RouterChoices = BTreeMap<String, DumpTensor>;

/// Tensor of a dump, widened to f32.
#[derive(Debug, Clone, PartialEq)]
pub struct DumpTensor {
    /// Stored dtype.
    pub dtype: Dtype,
    /// Shape; for taps the first axis is the token.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub data: Vec<f32>,
}

/// Log-probabilities of one phase.
#[derive(Debug, Clone)]
pub struct Logprobs {
    /// Number of rows.
    pub rows: usize,
    /// Number of entries in a row.
    pub width: usize,
    /// `[rows, width]`: the tokens of the entries, if only the most likely are stored.
    pub ids: Option<Vec<u32>>,
    /// `[rows, width]`: log-probabilities.
    pub values: Vec<f32>,
    /// `[rows]`: log-probability of the next token of the prompt, if stored separately; NaN if there is no
    /// next token.
    pub targets: Option<Vec<f32>>,
}

/// Distance of the reference's ensemble from its f32 run: the largest over the members, by row.
#[derive(Debug, Clone, Default)]
pub struct EnsembleSpread {
    /// Root mean square of `Δlogprob`, in nats.
    pub logprobs: Vec<f32>,
    /// Divergence from the f32 run, in nats.
    pub kl: Vec<f32>,
    /// Root mean square of the difference relative to that of the row, by tap.
    pub taps: BTreeMap<String, Vec<f32>>,
    /// Relative difference of states after the prefill, by layer and part.
    pub states: BTreeMap<(usize, String), f32>,
}

impl Logprobs {
    /// Returns one row.
    pub fn row(&self, row: usize) -> crate::metrics::ReferenceRow<'_> {
        let range = row * self.width..(row + 1) * self.width;
        crate::metrics::ReferenceRow {
            ids: self.ids.as_ref().map(|ids| &ids[range.clone()]),
            values: &self.values[range],
        }
    }
}

/// Returns the SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut registry::file::open(path)?, &mut hash)?;
    Ok(hex(hash))
}

fn hex(hash: Sha256) -> String {
    format!("{:x}", hash.finalize())
}

/// Reads a manifest; returns its text too.
fn read_manifest(path: &Path) -> Result<(Vec<u8>, Manifest), Error> {
    let text = registry::file::read(path, registry::file::MANIFEST)?;
    let manifest = serde_json::from_slice(&text)
        .map_err(|error| Error::Json { path: path.to_owned(), why: shown(&error.to_string()) })?;
    Ok((text, manifest))
}

impl Dump {
    /// Reads the manifest of a dump, unchecked.
    pub(crate) fn manifest_of(dir: &Path) -> Result<Manifest, Error> {
        Ok(read_manifest(&dir.join("manifest.json"))?.1)
    }

    /// Opens a dump and checks everything except the tensor values.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("manifest.json");
        let (text, manifest) = read_manifest(&path)?;
        let tensors = dir.join("reference.safetensors");
        let mut tensors_sha256 = None;
        if let Some(checksums) = &manifest.sha256 {
            checksums.verify(dir, &text, tensors_sha256.insert(sha256(&tensors)?))?;
        }
        manifest.check().map_err(|message| Error::Manifest { path, message })?;
        let store = TensorFile::open(&tensors)?;
        let notes = Vec::new();
        let mut dump = Self { dir: dir.to_owned(), manifest, notes, store, tensors_sha256 };
        dump.check()?;
        Ok(dump)
    }

    /// Opens a dump of a whole model.
    pub fn open_whole(dir: &Path) -> Result<Self, Error> {
        let dump = Self::open(dir)?;
        match dump.manifest.layer_choice() {
            Some(choice) => {
                Err(Error::PartOfModel { dir: dump.dir.clone(), layers: choice.listed() })
            }
            None => Ok(dump),
        }
    }

    /// Returns a SHA-256 over the hashes of all files.
    pub fn sha256(&self) -> Result<String, Error> {
        let mut all = Sha256::new();
        all.update(sha256(&self.dir.join("manifest.json"))?);
        match &self.tensors_sha256 {
            Some(known) => all.update(known),
            None => all.update(sha256(&self.dir.join("reference.safetensors"))?),
        }
        Ok(hex(all))
    }

    /// Returns the dtypes of the runs, as far as this program supports them.
    pub fn runs(&self) -> Vec<Dtype> {
        Dtype::ALL
            .into_iter()
            .filter(|d| self.manifest.runs.iter().any(|r| r == d.name()))
            .collect()
    }

    /// Returns an error for a checkpoint other than the one the dump was made from, with the hashes of its config and
    /// its weights. The error names the first key or tensor that changed, if the dump records them.
    pub fn verify_model(
        &self,
        config: (&Path, &str),
        weights: (&Checkpoint, &str),
    ) -> Result<(), Error> {
        let model = &self.manifest.model;
        let recorded = &self.manifest.checkpoint;
        let (path, config_sha256) = config;
        let (checkpoint, weights_sha256) = weights;
        let is_config_equal = config_sha256.eq_ignore_ascii_case(&model.config_sha256)
            || changed::is_same_config(recorded, path);
        let are_weights_equal = weights_sha256.eq_ignore_ascii_case(&model.weights_sha256);
        if is_config_equal && are_weights_equal {
            return Ok(());
        }
        let change = changed::first_change(recorded, path, checkpoint).unwrap_or_else(|| {
            let (what, actual, expected) = if is_config_equal {
                ("the fingerprint of the weights", weights_sha256, &model.weights_sha256)
            } else {
                ("the SHA-256 of `config.json`", config_sha256, &model.config_sha256)
            };
            format!("{what} is {actual} here and {expected} in the dump")
        });
        Err(Error::OtherModel { dir: self.dir.clone(), change })
    }

    /// Returns the log-probabilities of a phase; none for a decode phase without steps.
    pub fn logprobs(
        &self,
        run: Dtype,
        prompt: &Prompt,
        phase: Phase,
    ) -> Result<Option<Logprobs>, Error> {
        let rows = prompt.positions(phase).len();
        if rows == 0 {
            return Ok(None);
        }
        let base = format!("{run}/{}/{phase}", prompt.name);
        Ok(Some(match self.manifest.logprobs.k.filter(|_| self.manifest.logprobs.kind == "topk") {
            None => {
                let logits = self.store.read(&format!("{base}/logits"))?.data;
                let mut values = vec![0.0; logits.len()];
                let width = self.manifest.vocab;
                for (logits, row) in logits.chunks_exact(width).zip(values.chunks_exact_mut(width))
                {
                    metrics::log_softmax(logits, row);
                }
                Logprobs { rows, width, ids: None, values, targets: None }
            }
            Some(k) => Logprobs {
                rows,
                width: k,
                ids: Some(self.store.read_ids(&format!("{base}/top_ids"), self.manifest.vocab)?),
                values: self.store.read(&format!("{base}/top_logprobs"))?.data,
                targets: Some(self.store.read(&format!("{base}/target_logprobs"))?.data),
            },
        }))
    }

    /// Returns the logits of a phase, if the whole vocabulary is stored.
    pub fn logits(
        &self,
        run: Dtype,
        prompt: &Prompt,
        phase: Phase,
    ) -> Result<Option<DumpTensor>, Error> {
        self.optional(&format!("{run}/{}/{phase}/logits", prompt.name))
    }

    /// Reads the distance of a dtype's ensemble from the f32 run, in each row of a prompt's prefill.
    pub fn spread(&self, run: Dtype, prompt: &Prompt) -> Result<Option<EnsembleSpread>, Error> {
        let base = format!("{run}/{}/spread", prompt.name);
        let Some(mut logits) = self.optional(&format!("{base}/logits"))? else { return Ok(None) };
        let ran = self.manifest.members.get(run.name()).is_some_and(|all| !all.ran.is_empty());
        if !ran || logits.data.iter().any(|spread| *spread < 0.0) {
            let fault = if ran { "a negative distance" } else { "distances of no run" };
            return Err(Error::Manifest {
                path: self.dir.join("manifest.json"),
                message: format!(
                    "the ensemble of {run} (`members.{run}` and `{}/logits`) has {fault}; write the dump again with `parity dump`",
                    shown(&base)
                ),
            });
        }
        let rows = logits.data.len() / 2;
        let kl = logits.data.split_off(rows);
        let taps =
            self.optional(&format!("{base}/taps"))?.map(|tensor| tensor.data).unwrap_or_default();
        let each = taps.chunks_exact(rows.max(1)).zip(&self.manifest.taps.0);
        // -1 marks a tap or state that prefill does not have.
        let each = each.filter(|(rows, _)| rows.iter().all(|spread| *spread >= 0.0));
        let taps = each.map(|(rows, (tap, _))| (tap.clone(), rows.to_vec())).collect();
        let states =
            self.optional(&format!("{base}/states"))?.map(|tensor| tensor.data).unwrap_or_default();
        let parts = self
            .manifest
            .states
            .iter()
            .flat_map(|state| state.parts.iter().map(|part| (state.layer, part.clone())));
        let states = parts.zip(states).filter(|(_, spread)| *spread >= 0.0).collect();
        Ok(Some(EnsembleSpread { logprobs: logits.data, kl, taps, states }))
    }

    /// Returns a module's output, if it was recorded.
    pub fn tap(
        &self,
        run: Dtype,
        prompt: &Prompt,
        phase: Phase,
        tap: &str,
    ) -> Result<Option<DumpTensor>, Error> {
        self.optional(&self.tap_name(run, prompt, phase, tap))
    }

    /// Returns the name of the tensor that holds a module's output.
    fn tap_name(&self, run: Dtype, prompt: &Prompt, phase: Phase, tap: &str) -> String {
        let info = self.manifest.taps.0.iter().find(|(name, _)| name == tap);
        let leaf = match info.and_then(|(_, info)| info.same_as.as_deref()) {
            Some("logits") => "logits".to_owned(),
            other => format!("tap/{}", other.unwrap_or(tap)),
        };
        format!("{run}/{}/{phase}/{leaf}", prompt.name)
    }

    /// Returns a part of a state, if it was recorded.
    pub fn state(
        &self,
        run: Dtype,
        prompt: &Prompt,
        phase: Phase,
        layer: usize,
        part: &str,
    ) -> Result<Option<DumpTensor>, Error> {
        self.optional(&state_name(run, prompt, phase, layer, part))
    }

    /// Returns the choices of routers, by the module of their experts. The phase `greedy` selects those of
    /// greedy tokens.
    pub fn choices(
        &self,
        run: Dtype,
        prompt: &Prompt,
        phase: &str,
    ) -> Result<RouterChoices, Error> {
        let mut all = RouterChoices::new();
        for module in &self.manifest.routers {
            let name = format!("{run}/{}/{phase}/chosen/{module}", prompt.name);
            let Some(shape) = self.store.shape(&name) else { continue };
            // Integers below 2^24 are exact in f32.
            let ids = self.store.read_ids(&name, 1 << 24)?;
            let shape = shape.to_vec();
            let data = ids.iter().map(|id| *id as f32).collect();
            all.insert(module.clone(), DumpTensor { dtype: Dtype::F32, shape, data });
        }
        Ok(all)
    }

    /// Returns what the dump calls the rows that come with the tokens.
    fn fed_rows(&self) -> &'static str {
        if self.manifest.encoder { "patches" } else { "hidden" }
    }

    /// Returns the hidden rows that a head takes in addition to the tokens of a prompt: one per token,
    /// `width` wide.
    pub fn hidden(&self, run: Dtype, prompt: &Prompt, width: usize) -> Result<Vec<f32>, Error> {
        let name = format!("{run}/{}/{}", prompt.name, self.fed_rows());
        self.store.expect(&name, &[prompt.tokens.len(), width], false)?;
        Ok(self.store.read(&name)?.data)
    }

    /// Returns the rows in the place of embeddings that a prompt has; none for text.
    pub fn rows_of(&self, run: Dtype, prompt: &Prompt) -> Result<Option<engine::GivenRows>, Error> {
        if !prompt.has_rows() {
            return Ok(None);
        }
        let base = format!("{run}/{}", prompt.name);
        let read = |name: String| Ok::<_, Error>(self.store.read(&name)?.data);
        let given = !prompt.given.is_empty();
        let layers = 0..prompt.beside;
        Ok(Some(engine::GivenRows {
            at: prompt.given.clone(),
            rows: if given { read(format!("{base}/given"))? } else { Vec::new() },
            beside: layers
                .map(|layer| read(format!("{base}/beside/{layer}")))
                .collect::<Result<_, _>>()?,
            positions: prompt.positions.clone(),
        }))
    }

    /// Opens the dump of the model's `nextn` head, if there is one.
    pub fn nextn(&self) -> Result<Option<Self>, Error> {
        let dir = self.dir.join("nextn");
        if dir.join("manifest.json").is_file() { Self::open(&dir).map(Some) } else { Ok(None) }
    }

    fn optional(&self, name: &str) -> Result<Option<DumpTensor>, Error> {
        if self.store.shape(name).is_none() { Ok(None) } else { self.store.read(name).map(Some) }
    }

    /// Checks every tensor's name, dtype and shape against the manifest.
    fn check(&mut self) -> Result<(), Error> {
        let mut expected_names = BTreeSet::new();
        for run in &self.manifest.runs {
            if Dtype::ALL.iter().all(|d| d.name() != run) {
                let run = shown(run);
                self.notes.push(format!("run `{run}` is of a dtype that is not compared here"));
            }
        }
        for (tap, info) in &self.manifest.taps.0 {
            for phase in &info.phases {
                if Phase::ALL.iter().all(|p| p.name() != phase) {
                    let [phase, tap] = [phase, tap].map(|name| shown(name));
                    self.notes.push(format!("phase `{phase}` of tap `{tap}` is passed over"));
                }
            }
        }
        for run in self.runs() {
            for prompt in &self.manifest.prompts {
                expected_names.insert(format!("{run}/{}/{}", prompt.name, self.fed_rows()));
                self.check_given(run, prompt, &mut expected_names)?;
                for phase in Phase::ALL {
                    self.check_phase(run, prompt, phase, &mut expected_names)?;
                }
            }
        }
        let extra = self.store.names().filter(|name| !expected_names.contains(*name)).count();
        if extra > 0 {
            self.notes.push(format!("{extra} tensors of the dump are not of version {VERSION}"));
        }
        Ok(())
    }

    /// Checks the rows in the place of embeddings.
    fn check_given(
        &self,
        run: Dtype,
        prompt: &Prompt,
        expected_names: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        if prompt.given.is_empty() {
            return Ok(());
        }
        let name = format!("{run}/{}/given", prompt.name);
        self.store.expect_rows(&name, prompt.given.len())?;
        let shape = self.store.shape(&name).map(<[usize]>::to_vec).unwrap_or_default();
        if shape.len() != 2 {
            return Err(self.store.unexpected(&name, format!("[{}, hidden]", prompt.given.len())));
        }
        expected_names.insert(name);
        for layer in 0..prompt.beside {
            let name = format!("{run}/{}/beside/{layer}", prompt.name);
            self.store.expect(&name, &shape, false)?;
            expected_names.insert(name);
        }
        Ok(())
    }

    fn check_phase(
        &self,
        run: Dtype,
        prompt: &Prompt,
        phase: Phase,
        expected_names: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        let rows = prompt.positions(phase).len();
        let base = format!("{run}/{}/{phase}", prompt.name);
        let m = &self.manifest;
        let leaves: Vec<(&str, Vec<usize>, bool)> = match m.logprobs.k {
            Some(k) if m.logprobs.kind == "topk" => vec![
                ("top_ids", vec![rows, k], true),
                ("top_logprobs", vec![rows, k], false),
                ("logsumexp", vec![rows], false),
                ("target_logprobs", vec![rows], false),
            ],
            _ => vec![("logits", vec![rows, m.vocab], false)],
        };
        for (leaf, shape, ids) in leaves {
            let name = format!("{base}/{leaf}");
            if rows > 0 {
                self.store.expect(&name, &shape, ids)?;
            }
            expected_names.insert(name);
        }
        for module in &m.routers {
            let name = format!("{base}/chosen/{module}");
            if let Some(shape) = self.store.shape(&name) {
                let k = shape.get(1).copied().unwrap_or(1);
                let all =
                    prompt.tokens.len() - if phase == Phase::Decode { prompt.split } else { 0 };
                self.store.expect(&name, &[all, k], true)?;
            }
            expected_names.insert(name);
            expected_names.insert(format!("{run}/{}/greedy/chosen/{module}", prompt.name));
        }
        let all = prompt.positions(Phase::Prefill).len();
        let parts = m.states.iter().map(|state| state.parts.len()).sum();
        for (leaf, shape) in
            [("logits", &[2, all][..]), ("taps", &[m.taps.0.len(), all]), ("states", &[parts])]
        {
            let name = format!("{run}/{}/spread/{leaf}", prompt.name);
            if self.store.shape(&name).is_some() {
                self.store.expect(&name, shape, false)?;
            }
            expected_names.insert(name);
        }
        if !prompt.tapped(phase) {
            return Ok(());
        }
        for (tap, info) in &m.taps.0 {
            let name = self.tap_name(run, prompt, phase, tap);
            if info.has(phase) && rows > 0 {
                self.store.expect_rows(&name, rows)?;
            }
            expected_names.insert(name);
        }
        for state in &m.states {
            for part in &state.parts {
                let name = format!("{base}/state/{}/{part}", state.layer);
                if let Some(shape) = self.store.shape(&name) {
                    // The other axes are compared with the model's own declaration later.
                    let tokens = prompt.tokens.len();
                    let snapshots = prompt.snapshots().len();
                    let attends = state.kind == "attention";
                    let (fits, want) = match (attends, phase) {
                        (true, Phase::Decode) => {
                            (shape.first() == Some(&tokens), format!("[{tokens}, ..]"))
                        }
                        (false, Phase::Decode) => {
                            (shape.first() == Some(&snapshots), format!("[{snapshots}, ..]"))
                        }
                        (true, Phase::Prefill) => (
                            shape.first().is_some_and(|positions| *positions <= tokens),
                            format!("[kept, heads, dim], at most {tokens} kept"),
                        ),
                        (false, Phase::Prefill) => {
                            (!shape.is_empty(), "of one axis at least".to_owned())
                        }
                    };
                    if !fits {
                        return Err(self.store.unexpected(&name, want));
                    }
                    self.store.number(&name)?;
                } else if rows > 0 {
                    return Err(self.store.missing(&name));
                }
                expected_names.insert(name);
            }
        }
        Ok(())
    }
}

fn state_name(run: Dtype, prompt: &Prompt, phase: Phase, layer: usize, part: &str) -> String {
    format!("{run}/{}/{phase}/state/{layer}/{part}", prompt.name)
}
