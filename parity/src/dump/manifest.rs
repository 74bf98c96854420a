//! `manifest.json` of a dump: the runs, the model, and the recorded values.
//!
//! The text is untrusted. Unknown fields are ignored, so that a newer script may add some; required fields
//! are checked here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use engine::InputRounding;
use formats::shown;
use registry::dtype::Dtype;
use registry::graph::ScaleGranularity;
use registry::layer_choice::LayerChoice;
use registry::listing;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::FileChecksums;
use super::prompt::{Phase, Prompt, check_prompts};

/// Version of the format that this crate reads.
pub const VERSION: u64 = 2;

/// Version of a dump with prompts that have rows in the place of embeddings, which older programs would pass over.
const ROWS_VERSION: u64 = 3;

/// Manifest as written.
#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    /// `onboard-dump`.
    pub format: String,
    /// [`VERSION`].
    pub version: u64,
    /// Producer with versions, for display.
    #[serde(default)]
    pub producer: BTreeMap<String, serde_json::Value>,
    /// Model that was run.
    pub model: ModelId,
    /// Config and tensors of the checkpoint, if they are recorded.
    #[serde(default)]
    pub checkpoint: CheckpointContents,
    /// Pinned versions of the reference, for display.
    #[serde(default)]
    pub pins: BTreeMap<String, serde_json::Value>,
    /// True if the dump is of an encoder of images: its prompts are images, and its rows stand in the place of logits.
    #[serde(default)]
    pub encoder: bool,
    /// Width of a row of log-probabilities.
    pub vocab: usize,
    /// Number of tokens that the model reads, if more than `vocab`.
    #[serde(default)]
    pub input_vocab: Option<usize>,
    /// Storage format of log-probabilities.
    pub logprobs: LogprobKind,
    /// Dtypes that were run, by short name.
    pub runs: Vec<String>,
    /// Token sequences.
    pub prompts: Vec<Prompt>,
    /// Recorded module outputs, in the order of the file.
    #[serde(default)]
    pub taps: Taps,
    /// Recorded states.
    #[serde(default)]
    pub states: Vec<StateInfo>,
    /// Tokens generated greedily after each prompt: `run -> prompt -> tokens`.
    #[serde(default)]
    pub greedy: BTreeMap<String, BTreeMap<String, Vec<u32>>>,
    /// Modules of experts whose routers' choices were recorded.
    #[serde(default)]
    pub routers: Vec<String>,
    /// Matrices that multiplied rounded rows, if declared: `none`, `linear` or `all`.
    #[serde(default)]
    pub rounds: Option<String>,
    /// Format that keys and values were rounded to with the checkpoint's scales, if declared: `none` or
    /// `f8_e4m3`.
    #[serde(default)]
    pub caches: Option<String>,
    /// Runs of the reference under changes that have no effect in exact arithmetic, by dtype.
    #[serde(default)]
    pub members: BTreeMap<String, EnsembleMembers>,
    /// Places where the reference's own code was altered.
    pub patches: Vec<ReferencePatch>,
    /// The chosen layers, if the reference ran without the others.
    #[serde(default)]
    pub layers: Option<ChosenLayers>,
    /// The reference's audit of its own consistency.
    #[serde(default)]
    pub audit: Audit,
    /// Values that a head takes and hands on, in the dump of a head.
    #[serde(default)]
    pub head: Option<HeadEntry>,
    /// Hashes of the dump's files, if it has them.
    #[serde(default)]
    pub sha256: Option<FileChecksums>,
}

/// Choice of layers as the manifest spells it.
#[derive(Debug, Clone, Deserialize)]
pub struct ChosenLayers {
    /// Numbers of the layers, from 0.
    pub chosen: BTreeSet<usize>,
    /// Number of layers of the whole model.
    pub of: usize,
    /// Text before the number of a layer in the names of the checkpoint's tensors.
    pub prefix: String,
}

/// Inputs of a head in the reference, by the names of taps.
#[derive(Debug, Clone, Deserialize)]
pub struct HeadEntry {
    /// Tap of the model whose rows the head was fed.
    pub fed: String,
    /// Tap of the head whose last row is fed for the next draft.
    pub recycled: String,
}

/// Ensemble of one dtype.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct EnsembleMembers {
    /// Names of the runs in the ensemble.
    #[serde(default)]
    pub ran: Vec<String>,
    /// Names of runs that failed, with the reasons.
    #[serde(default)]
    pub failed: BTreeMap<String, String>,
}

/// A place where the reference's own code was altered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReferencePatch {
    /// Name of the patch.
    pub name: String,
    /// Version of the patch.
    pub version: u64,
}

/// Identity of the checkpoint.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelId {
    /// `architectures[0]`.
    #[serde(default)]
    pub architecture: String,
    /// `model_type`.
    #[serde(default)]
    pub model_type: String,
    /// SHA-256 of `config.json`.
    pub config_sha256: String,
    /// Fingerprint of the weights, see `docs/dump.md`.
    pub weights_sha256: String,
    /// Dtype of the checkpoint.
    #[serde(default)]
    pub dtype: Option<String>,
}

/// Contents of the checkpoint, with which a change is named.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct CheckpointContents {
    /// Text of `config.json`.
    #[serde(default)]
    pub config: Option<String>,
    /// First digits of the SHA-256 of each tensor, see `docs/dump.md`.
    #[serde(default)]
    pub tensors: BTreeMap<String, String>,
}

/// Storage format of log-probabilities: `{"kind": "full"}` or `{"kind": "topk", "k": 64}`.
#[derive(Debug, Clone, Deserialize)]
pub struct LogprobKind {
    /// `full` or `topk`.
    pub kind: String,
    /// Number of entries per row, for `topk`.
    #[serde(default)]
    pub k: Option<usize>,
}

/// Taps by name, in file order: the order in which the reference ran its modules.
#[derive(Debug, Clone, Default)]
pub struct Taps(pub Vec<(String, TapInfo)>);

/// Phases in which a module's output was recorded.
#[derive(Debug, Clone, Deserialize)]
pub struct TapInfo {
    /// Names of the phases, `prefill` and `decode`; unknown names are ignored.
    pub phases: Vec<String>,
    /// Tap that always has the same values and is stored in its place, or `logits`.
    #[serde(default)]
    pub same_as: Option<String>,
}

impl TapInfo {
    /// True if `phase` was recorded.
    pub fn has(&self, phase: Phase) -> bool {
        self.phases.iter().any(|name| name == phase.name())
    }
}

impl<'de> Deserialize<'de> for Taps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TapsVisitor;
        impl<'de> Visitor<'de> for TapsVisitor {
            type Value = Taps;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of taps by module path")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Taps, M::Error> {
                let mut taps = Vec::new();
                while let Some(entry) = map.next_entry::<String, TapInfo>()? {
                    taps.push(entry);
                }
                Ok(Taps(taps))
            }
        }
        deserializer.deserialize_map(TapsVisitor)
    }
}

/// Recorded state.
#[derive(Debug, Clone, Deserialize)]
pub struct StateInfo {
    /// Layer of the state.
    pub layer: usize,
    /// `attention`, `conv`, `recurrent`.
    pub kind: String,
    /// `k` and `v`, `conv`, `recurrent`.
    pub parts: Vec<String>,
}

/// The reference's audit of its own consistency.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Audit {
    /// Phase that is trusted, if the dump says so.
    #[serde(rename = "truth", default)]
    pub stated_truth: Option<TrustedPhase>,
    /// Remarks, for display.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Distances of the reference's steps from its prefill, by dtype.
    #[serde(flatten)]
    pub dtypes: BTreeMap<String, serde_json::Value>,
}

impl Audit {
    /// Returns the phase that is trusted.
    pub fn truth(&self) -> TrustedPhase {
        self.stated_truth.unwrap_or_default()
    }

    /// Describes what is missing to trust the reference's steps in a dtype.
    pub fn gap(&self, dtype: Dtype) -> Option<String> {
        /// Share of the largest logit by which steps that agree with a prefill never differ from it. References with rows
        /// rounded to 8 bits reach 0.023.
        const FAR: f64 = 0.1;
        let distance =
            self.dtypes.get(dtype.name()).and_then(|of| of["decode_vs_prefill"].as_f64());
        let (Some(distance), Some(truth)) = (distance, self.stated_truth) else {
            return Some(
                "it does not say how far the reference's steps are from its prefill".to_owned(),
            );
        };
        (dtype == Dtype::F32 && truth == TrustedPhase::Decode && distance > FAR).then(|| {
            format!("it trusts steps that are {distance:.1e} of the largest logit from the prefill")
        })
    }
}

impl Manifest {
    /// Returns the manifest with the reference's decode steps trusted.
    pub(crate) fn with_trusted_decode(mut self) -> Self {
        self.audit.stated_truth = Some(TrustedPhase::Decode);
        self.audit.notes = vec![
            "the reference's steps do not agree with its own prefill, for the tables of its prefill are rounded: \
             the engine follows it in both"
                .to_owned(),
        ];
        self
    }
}

/// Phase of the reference that decode is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrustedPhase {
    /// The reference's decode agrees with its prefill.
    #[default]
    Decode,
    /// The reference's decode disagrees, and a full forward pass is correct.
    Prefill,
}

/// Rounding of keys and values before attention reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvRounding {
    /// Keys and values are not rounded.
    None,
    /// Keys and values were rounded to 8 bits, with scales of the checkpoint.
    Fp8(ScaleGranularity),
}

fn caches(word: &str) -> Option<KvRounding> {
    match word {
        "none" => Some(KvRounding::None),
        "f8_e4m3" => Some(KvRounding::Fp8(ScaleGranularity::Tensor)),
        _ => None,
    }
}

fn rounds(word: &str) -> Option<InputRounding> {
    Some(match word {
        "none" => InputRounding::None,
        "linear" => InputRounding::Linear,
        "all" => InputRounding::All,
        _ => return None,
    })
}

/// Patches of the reference that this version accepts: `PATCHES` of `reference/onboard_dump/patches.py`.
const PATCHES: [(&str, u64); 9] = [
    ("topk_first_of_equals", 1),
    ("compressed_tensors_products_in_f32", 1),
    ("experts_global_scale", 1),
    ("cast_after_dequantization", 1),
    ("rows_rounded_alone", 1),
    ("gelu_table", 1),
    ("linear_inputs_contiguous", 1),
    ("attention_in_f32", 1),
    ("weights_of_the_inputs_dtype", 1),
];

impl Manifest {
    /// Returns the matrices that multiplied rounded rows, if declared.
    pub fn rounds(&self) -> Option<InputRounding> {
        rounds(self.rounds.as_deref()?)
    }

    /// Returns the rounding of keys and values, if declared.
    pub fn caches(&self) -> Option<KvRounding> {
        caches(self.caches.as_deref()?)
    }

    /// Returns the scales of keys and values, if they were rounded to 8 bits.
    pub(crate) fn kv_fp8(&self) -> Option<ScaleGranularity> {
        match self.caches()? {
            KvRounding::None => None,
            KvRounding::Fp8(scales) => Some(scales),
        }
    }

    /// Returns the chosen layers, if the reference ran without the others.
    pub fn layer_choice(&self) -> Option<LayerChoice> {
        self.layers.as_ref().map(|layers| LayerChoice {
            chosen: layers.chosen.clone(),
            of: layers.of,
            prefix: layers.prefix.clone(),
        })
    }

    /// Checks everything that does not need the tensors; the error describes the fault.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(word) = self.caches.as_deref().filter(|word| caches(word).is_none()) {
            return Err(format!(
                "`caches` is `{}`; expected `none` or `f8_e4m3` (with a stored scale for all keys and \
                 one for all values of a layer): keys and values are rounded to nothing else here",
                shown(word)
            ));
        }
        if let Some(word) = self.rounds.as_deref().filter(|word| rounds(word).is_none()) {
            let word = shown(word);
            return Err(format!("`rounds` is `{word}`; expected `none`, `linear` or `all`"));
        }
        if self.format != "onboard-dump" {
            let format = shown(&self.format);
            return Err(format!("`format` is `{format}`; expected `onboard-dump`"));
        }
        if ![VERSION, ROWS_VERSION].contains(&self.version) {
            return Err(format!(
                "`version` is {}; this program reads versions {VERSION} and {ROWS_VERSION}: write the dump again with its `parity dump`",
                self.version
            ));
        }
        match (self.logprobs.kind.as_str(), self.logprobs.k) {
            ("full", _) => {}
            ("topk", Some(k)) if k >= 1 && k <= self.vocab => {}
            ("topk", k) => {
                return Err(format!("`logprobs.k` is {k:?}; expected 1 to {}", self.vocab));
            }
            (kind, _) => {
                let kind = shown(kind);
                return Err(format!("`logprobs.kind` is `{kind}`; expected `full` or `topk`"));
            }
        }
        for (what, none) in [("runs", self.runs.is_empty()), ("prompts", self.prompts.is_empty())] {
            if none {
                return Err(format!(
                    "`{what}` is empty, so there is nothing to compare with; write the dump again with `parity dump`"
                ));
            }
        }
        if let Some(layers) = &self.layers {
            let beyond = layers.chosen.last().is_none_or(|last| *last >= layers.of);
            if beyond || layers.prefix.is_empty() || layers.prefix.chars().any(char::is_control) {
                return Err(format!(
                    "`layers` chooses {} of {} below `{}`; expected numbers of layers below their count, and the \
                     text before the number in names of tensors",
                    listing::items(&layers.chosen),
                    layers.of,
                    shown(&layers.prefix)
                ));
            }
        }
        self.check_names()?;
        self.check_aliases()?;
        self.check_patches()?;
        let mut members = self.members.iter();
        if let Some((run, all)) = members.find(|(_, all)| all.ran.len() + all.failed.len() < 2) {
            let count = all.ran.len() + all.failed.len();
            return Err(format!(
                "`members.{}` lists {count} runs; expected two or more, with those that failed: write the dump again with \
                 `parity dump`",
                shown(run)
            ));
        }
        let input_vocab = self.input_vocab.unwrap_or(self.vocab).max(self.vocab);
        check_prompts(&self.prompts, input_vocab).map_err(|e| e.to_string())?;
        for (run, by_prompt) in &self.greedy {
            for (prompt, tokens) in by_prompt {
                if let Some(token) = tokens.iter().find(|t| **t as usize >= self.vocab) {
                    return Err(format!(
                        "`greedy.{}.{}` has token {token}; `vocab` is {}",
                        shown(run),
                        shown(prompt),
                        self.vocab
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns an error for an unknown patch of the reference.
    fn check_patches(&self) -> Result<(), String> {
        match self
            .patches
            .iter()
            .find(|patch: &&ReferencePatch| !PATCHES.contains(&(&*patch.name, patch.version)))
        {
            Some(ReferencePatch { name, version }) => Err(format!(
                "`patches` has `{}` in version {version}, which this program does not know; write the dump again with its \
                 `parity dump`",
                shown(name)
            )),
            None => Ok(()),
        }
    }

    /// Returns an error for taps that are declared equal to a tap that is not stored.
    fn check_aliases(&self) -> Result<(), String> {
        let mut taps =
            self.taps.0.iter().filter_map(|(tap, info)| Some((tap, info.same_as.as_ref()?)));
        match taps.find(|(_, other)| !self.is_stored(other)) {
            Some((tap, other)) => {
                let [tap, other] = [tap, other].map(|name| shown(name));
                Err(format!("tap `{tap}` is the same as `{other}`, which is not stored"))
            }
            None => Ok(()),
        }
    }

    /// True if the dump has a tensor for a tap.
    fn is_stored(&self, name: &str) -> bool {
        name == "logits" && self.logprobs.kind == "full"
            || self.taps.0.iter().any(|(tap, info)| tap == name && info.same_as.is_none())
    }

    /// Returns an error for names that reports and terminals cannot show.
    fn check_names(&self) -> Result<(), String> {
        let taps = self.taps.0.iter().flat_map(|(tap, info)| info.phases.iter().chain([tap]));
        let parts = self.states.iter().flat_map(|state| &state.parts);
        let names = self.prompts.iter().map(|prompt| &prompt.name).chain(taps).chain(parts);
        let members = self.members.iter().flat_map(|(run, all)| {
            all.ran.iter().chain(all.failed.iter().flat_map(|(name, why)| [name, why])).chain([run])
        });
        let names = names.chain(members).chain(self.patches.iter().map(|patch| &patch.name));
        let names = names.chain(self.prompts.iter().flat_map(|prompt| &prompt.taps));
        let names = names.chain(self.head.iter().flat_map(|head| [&head.fed, &head.recycled]));
        let mut names = names.chain(&self.runs).chain(&self.routers);
        match names.find(|name| name.chars().any(char::is_control)) {
            Some(name) => Err(format!("the name `{}` has control characters", shown(name))),
            None => Ok(()),
        }
    }
}
