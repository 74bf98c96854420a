//! `manifest.json` of a dump: the runs, the model, and the recorded values.
//!
//! The text is untrusted. Unknown fields are ignored, so that a newer script may add some; required fields
//! are checked here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use engine::{ChunkMask, InputRounding};
use formats::shown;
use registry::graph::ScaleGranularity;
use registry::layer_choice::LayerChoice;
use registry::listing;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::FileChecksums;

/// Version of the format that this crate reads.
pub const VERSION: u64 = 2;

/// Maximum length of a prompt.
const LONGEST_PROMPT: usize = 1 << 20;

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
    /// Width of a row of log-probabilities.
    pub vocab: usize,
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
#[derive(Debug, Clone, Default, Deserialize)]
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

/// Token sequence.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    /// Name of the prompt, a part of tensor names.
    pub name: String,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Number of tokens that the decode phase feeds at once.
    pub split: usize,
    /// Number of tokens at the start that see each other; 0 for none.
    #[serde(default)]
    pub prefix: usize,
    /// Positions at which documents begin, ascending from 0; empty if the prompt is one document.
    #[serde(default)]
    pub documents: Vec<usize>,
    /// Phases in which taps and states were recorded for the prompt.
    #[serde(default)]
    pub taps: Vec<String>,
    /// Positions of the recorded rows, ascending; all positions if absent.
    #[serde(default)]
    pub rows: Option<Vec<usize>>,
    /// Lengths after which decode recorded the blocks of convolutions and recurrences, ascending. If
    /// absent, they are the length of the prefix and every later one.
    #[serde(default)]
    pub snapshots: Option<Vec<usize>>,
}

impl Prompt {
    /// Returns a prompt of these tokens that is causal and records all rows.
    pub fn causal(tokens: Vec<u32>) -> Self {
        Self {
            name: String::new(),
            split: tokens.len().saturating_sub(1).max(1),
            tokens,
            prefix: 0,
            documents: Vec::new(),
            taps: Vec::new(),
            rows: None,
            snapshots: None,
        }
    }

    /// Returns the positions of the rows of a phase's log-probabilities and taps.
    pub fn positions(&self, phase: Phase) -> Vec<usize> {
        let first = if phase == Phase::Decode { self.split } else { 0 };
        match &self.rows {
            None => (first..self.tokens.len()).collect(),
            Some(rows) => rows.iter().copied().filter(|row| *row >= first).collect(),
        }
    }

    /// Returns the lengths after which decode recorded blocks of convolutions and recurrences.
    pub fn snapshots(&self) -> Vec<usize> {
        match &self.snapshots {
            None => (self.split..=self.tokens.len()).collect(),
            Some(lengths) => lengths.clone(),
        }
    }

    /// True if module outputs and states of a phase were recorded.
    pub fn tapped(&self, phase: Phase) -> bool {
        self.taps.iter().any(|name| name == phase.name())
    }

    /// True if attention is causal over one document.
    pub fn is_causal(&self) -> bool {
        self.prefix <= 1 && self.documents.len() <= 1
    }

    /// Returns the mask of the first `count` tokens, fed as one chunk.
    pub fn mask(&self, count: usize) -> ChunkMask<'_> {
        let inside = self.documents.partition_point(|start| *start < count);
        ChunkMask { prefix: self.prefix, documents: &self.documents[..inside] }
    }

    /// Returns the position at which the document of the decode phase begins.
    pub fn last_document(&self) -> usize {
        self.documents.last().copied().unwrap_or(0)
    }

    /// Returns an error for a prefix and for documents that no run of the prompt has.
    fn check_mask(&self) -> Result<(), PromptError> {
        let split = self.split;
        let documents = &self.documents;
        let ascends = documents.windows(2).all(|pair| pair[0] < pair[1]);
        // Decode continues the last document, behind the prefix.
        let inside = documents.first().is_none_or(|first| *first == 0)
            && documents.last().is_none_or(|last| *last < split);
        if !ascends || !inside || self.prefix > split || (self.prefix > 0 && !documents.is_empty())
        {
            let name = shown(&self.name);
            let prefix = self.prefix;
            let documents = documents.clone();
            return Err(PromptError::Mask { name, prefix, documents, split });
        }
        Ok(())
    }

    /// Returns an error for rows and snapshots that no run of the prompt has.
    fn check_rows(&self) -> Result<(), PromptError> {
        let tokens = self.tokens.len();
        if let Some(rows) = &self.rows
            && (rows.is_empty() || !ascends(rows) || rows.last().is_some_and(|row| *row >= tokens))
        {
            let name = shown(&self.name);
            return Err(PromptError::Rows { name, rows: rows.clone(), tokens });
        }
        if let Some(lengths) = &self.snapshots
            && (!ascends(lengths)
                || !lengths.iter().all(|length| (self.split..=tokens).contains(length)))
        {
            let lengths = lengths.clone();
            let split = self.split;
            let name = shown(&self.name);
            return Err(PromptError::Snapshots { name, lengths, split, tokens });
        }
        Ok(())
    }
}

/// Phase of a run: the way in which a prompt is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// All tokens in one forward pass from an empty cache.
    Prefill,
    /// A prefix in one forward pass, then token by token.
    Decode,
}

impl Phase {
    /// Both phases, in the order in which they run.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// Returns the name in tensor names and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
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
    /// Phase that is trusted.
    #[serde(default)]
    pub truth: TrustedPhase,
    /// Remarks, for display.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Manifest {
    /// Returns the manifest with the reference's decode steps trusted.
    pub(crate) fn with_trusted_decode(mut self) -> Self {
        self.audit.truth = TrustedPhase::Decode;
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

/// Fault of a prompt. Names are escaped and shortened, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum PromptError {
    #[error("prompt name `{name}` is empty, has a `/` or is used twice")]
    Name { name: String },
    #[error("prompt `{name}` has {found} tokens; expected 1 to {LONGEST_PROMPT}")]
    Length { name: String, found: usize },
    #[error("`split` of prompt `{name}` is {found}; expected 1 to {last}")]
    Split { name: String, found: usize, last: usize },
    #[error(
        "`rows` of prompt `{name}` is [{}]; expected ascending positions below {tokens}",
        listing::items(rows)
    )]
    Rows { name: String, rows: Vec<usize>, tokens: usize },
    #[error(
        "`snapshots` of prompt `{name}` is [{}]; expected ascending lengths from {split} to {tokens}",
        listing::items(lengths)
    )]
    Snapshots { name: String, lengths: Vec<usize>, split: usize, tokens: usize },
    #[error(
        "prompt `{name}` has a `prefix` of {prefix} and `documents` at [{}]; expected one of them: a prefix \
         of at most {split} (its `split`), or ascending starts from 0 and below {split}",
        listing::items(documents)
    )]
    Mask { name: String, prefix: usize, documents: Vec<usize>, split: usize },
    #[error("prompt `{name}` has token {token}; `vocab` is {vocab}")]
    Token { name: String, token: u32, vocab: usize },
}

/// True if each number is larger than the one before it.
fn ascends(list: &[usize]) -> bool {
    list.windows(2).all(|pair| pair[0] < pair[1])
}

/// Checks prompts against each other and a vocabulary.
pub fn check_prompts(prompts: &[Prompt], vocab: usize) -> Result<(), PromptError> {
    let mut names = std::collections::BTreeSet::new();
    for prompt in prompts {
        let name = &prompt.name;
        let shown_name = shown(name);
        let count = prompt.tokens.len();
        if name.is_empty() || name.contains('/') || !names.insert(name) {
            return Err(PromptError::Name { name: shown_name });
        }
        if count == 0 || count > LONGEST_PROMPT {
            return Err(PromptError::Length { name: shown_name, found: count });
        }
        let last = if count == 1 { 1 } else { count - 1 };
        if prompt.split == 0 || prompt.split > last {
            return Err(PromptError::Split { name: shown_name, found: prompt.split, last });
        }
        prompt.check_rows()?;
        prompt.check_mask()?;
        if let Some(&token) = prompt.tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(PromptError::Token { name: shown_name, token, vocab });
        }
    }
    Ok(())
}

/// Patches of the reference that this version accepts: `PATCHES` of `reference/onboard_dump/patches.py`.
const PATCHES: [(&str, u64); 7] = [
    ("topk_first_of_equals", 1),
    ("compressed_tensors_products_in_f32", 1),
    ("experts_global_scale", 1),
    ("cast_after_dequantization", 1),
    ("rows_rounded_alone", 1),
    ("gelu_table", 1),
    ("linear_inputs_contiguous", 1),
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
        if self.version != VERSION {
            return Err(format!(
                "`version` is {}; this program reads version {VERSION}: write the dump again with its `parity dump`",
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
        check_prompts(&self.prompts, self.vocab).map_err(|e| e.to_string())?;
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
