//! Records a dump with an engine, in the format of a reference but without an ensemble.
//!
//! Two such dumps are compared tap by tap ([`crate::diff`]), without a reference model.

use std::collections::BTreeMap;
use std::path::Path;

use checkpoints::Checkpoint;
use engine::bench::spread_tokens;
use engine::{
    Chunk, ChunkMask, Engine, ModelSource, NoProbe, OutputRows, Session, SessionOptions, StateValue,
};
use formats::numbers;
use formats::safetensors::{FileDtype, TensorSpec, Writer};
use registry::dtype::Dtype;
use registry::graph::StateKind;
use registry::model::Model;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::check::Error;
use crate::dump::{self, CheckpointContents, DumpTensor, Phase, Prompt, VERSION};
use crate::gate::Mode;
use crate::mask_support::{masked, retain_runnable};
use crate::metrics::top1;
use crate::order::ExecutionOrder;
use crate::route::{RouterRow, RoutingProbe};
use crate::run::{self, CapturedTap, ReferenceTaps, StateSnapshot, Trace};

/// Number of tokens that are generated after each prompt, if the context has room for them.
const GREEDY: usize = 8;

/// Tensor of a dump, as stored in the file.
struct StoredTensor {
    declared: TensorSpec,
    /// Tap that the tensor holds, if any.
    tap: Option<(String, Phase)>,
    bytes: Vec<u8>,
}

/// Dump of an engine, ready to be written.
pub struct Recording {
    manifest: OutputManifest,
    tensors: Vec<StoredTensor>,
    /// Remarks about values that could not be recorded.
    pub notes: Vec<String>,
}

/// Subject of a recording.
pub struct RecordingPlan<'a> {
    /// Returns the `producer` entry after the engine has run: its name, version and actual settings.
    pub producer: &'a dyn Fn() -> Value,
    /// Token sequences. If an engine cannot continue a prompt, their decode rows are dropped.
    pub prompts: Vec<Prompt>,
    /// Dtypes for which the engine is opened.
    pub dtypes: &'a [Dtype],
}

/// Runs an engine over prompts and records the rows, taps and states that it exposes.
pub fn record(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    mut subject: RecordingPlan<'_>,
    options: &SessionOptions,
) -> Result<Recording, Error> {
    let (model, checkpoint) = identity(source)?;
    let mut recorded = RecordedValues::default();
    let mut notes = Vec::new();
    notes.extend(retain_runnable(engine, &mut subject.prompts)?);
    let mut states = Vec::new();
    let mut greedy = serde_json::Map::new();
    let order = ExecutionOrder::of(&source.model.graph, |_| true);
    for &dtype in subject.dtypes {
        let mut session = engine.open(
            source,
            &masked(&subject.prompts, SessionOptions { dtype, finite: false, ..options.clone() }),
        )?;
        let features = session.features();
        if !features.steps {
            subject.prompts.iter_mut().for_each(without_decode);
            notes.push(format!(
                "`{}` cannot continue a prompt, so decode was not recorded",
                engine.name()
            ));
        }
        let seen = order.exposed(features, session.shown_parts());
        let mut names: Vec<_> = seen.taps.iter().filter(|(name, _)| !name.contains(':')).collect();
        names.sort_by_key(|(_, place)| **place);
        let tap_names: Vec<String> = names.into_iter().map(|(name, _)| name.clone()).collect();
        let mut run = DtypeRecording {
            session: session.as_mut(),
            dtype,
            wanted: &tap_names,
            kept: &mut recorded,
        };
        let mut tokens = serde_json::Map::new();
        for prompt in &subject.prompts {
            run.prompt(prompt)?;
            tokens.insert(prompt.name.clone(), json!(run.greedy(prompt, features.steps)?));
        }
        greedy.insert(dtype.name().to_owned(), Value::Object(tokens));
        recorded.order = tap_names;
        states = recorded_states(source, &seen);
    }
    notes.dedup();
    let taps = recorded.taps(&subject);
    let runs: Vec<&str> = subject.dtypes.iter().map(|dtype| dtype.name()).collect();
    let mut fields = json!({
        "producer": (subject.producer)(),
        "model": model,
        "checkpoint": checkpoint,
        "vocab": source.model.vocab,
        "logprobs": {"kind": "full"},
        "runs": runs,
        "prompts": subject.prompts.iter().map(prompt_entry).collect::<Vec<_>>(),
        "states": states,
        "patches": [],
        "greedy": greedy,
        "audit": {"notes": notes},
    });
    if source.model.input_vocab > source.model.vocab {
        fields["input_vocab"] = source.model.input_vocab.into();
    }
    let manifest = OutputManifest { format: "onboard-dump", version: VERSION, taps, rest: fields };
    Ok(Recording { manifest, tensors: recorded.tensors, notes })
}

/// Returns the `model` entry of a manifest, and the contents of the checkpoint; those of a file are not recorded.
fn identity(source: &ModelSource<'_>) -> Result<(Value, CheckpointContents), Error> {
    let architecture = &source.model.architecture;
    if source.dir.is_file() {
        let weights = dump::sha256(source.dir)?;
        let model =
            json!({"architecture": architecture, "config_sha256": "", "weights_sha256": weights});
        return Ok((model, CheckpointContents::default()));
    }
    let checkpoint = Checkpoint::open(source.dir)?;
    let path = source.dir.join("config.json");
    let weights = checkpoint.fingerprint()?;
    let config = dump::sha256(&path)?;
    let model =
        json!({"architecture": architecture, "config_sha256": config, "weights_sha256": weights});
    Ok((model, CheckpointContents::of(&checkpoint, &path)?))
}

/// Manifest to be written.
#[derive(Serialize)]
struct OutputManifest {
    format: &'static str,
    version: u64,
    taps: OutputTaps,
    #[serde(flatten)]
    rest: Value,
}

/// Taps in order of execution, with their phases.
struct OutputTaps(Vec<(String, Vec<&'static str>)>);

impl Serialize for OutputTaps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer
            .collect_map(self.0.iter().map(|(name, phases)| (name, json!({"phases": phases}))))
    }
}

/// Values recorded so far.
#[derive(Default)]
struct RecordedValues {
    tensors: Vec<StoredTensor>,
    /// Taps that the engine exposes, in order of execution.
    order: Vec<String>,
    /// Number of runs and prompts in which a tap occurred, by tap and phase.
    came: BTreeMap<(String, Phase), usize>,
}

impl RecordedValues {
    /// Lists the taps that occurred in every run and prompt of a phase, and drops the tensors of the
    /// others.
    fn taps(&mut self, subject: &RecordingPlan<'_>) -> OutputTaps {
        let due: BTreeMap<Phase, usize> =
            Phase::ALL.map(|phase| (phase, recordings(subject, phase))).into();
        self.came.retain(|(_, phase), came| due.get(phase) == Some(came));
        let mut taps = Vec::new();
        for name in &self.order {
            let phases: Vec<&'static str> = Phase::ALL
                .into_iter()
                .filter(|phase: &Phase| self.came.contains_key(&(name.clone(), *phase)))
                .map(Phase::name)
                .collect();
            if !phases.is_empty() {
                taps.push((name.clone(), phases));
            }
        }
        self.tensors.retain(|t| t.tap.as_ref().is_none_or(|tap| self.came.contains_key(tap)));
        OutputTaps(taps)
    }
}

/// Returns the number of runs of prompts that record taps of a phase.
fn recordings(subject: &RecordingPlan<'_>, phase: Phase) -> usize {
    let prompts = subject.prompts.iter();
    let recorded = prompts.filter(|p| p.tapped(phase) && !p.positions(phase).is_empty());
    recorded.count() * subject.dtypes.len()
}

/// Reduces a prompt to its prefill rows, because its last row would also be one of decode.
fn without_decode(prompt: &mut Prompt) {
    let count = prompt.tokens.len();
    prompt.taps.retain(|phase| phase == Phase::Prefill.name());
    prompt.snapshots = None;
    if count < 2 {
        return;
    }
    prompt.split = count - 1;
    let rows = prompt.positions(Phase::Prefill).into_iter().filter(|row| row + 1 < count);
    prompt.rows = Some(rows.collect());
}

fn prompt_entry(prompt: &Prompt) -> Value {
    let mut entry = json!({
        "name": prompt.name,
        "tokens": prompt.tokens,
        "split": prompt.split,
        "taps": prompt.taps,
    });
    if prompt.prefix > 0 {
        entry["prefix"] = json!(prompt.prefix);
    }
    if !prompt.documents.is_empty() {
        entry["documents"] = json!(prompt.documents);
    }
    if let Some(rows) = &prompt.rows {
        entry["rows"] = json!(rows);
    }
    if prompt.tapped(Phase::Decode) {
        entry["snapshots"] = json!(prompt.snapshots());
    }
    entry
}

/// Lists the states that the engine exposes, in the terms of manifests.
fn recorded_states(source: &ModelSource<'_>, seen: &ExecutionOrder) -> Vec<Value> {
    let states = source.model.graph.states.iter().filter_map(|state| {
        let parts: Vec<&str> = state
            .parts
            .iter()
            .map(|p| p.name.as_str())
            .filter(|part: &&str| seen.states.contains_key(&(state.layer, (*part).to_owned())))
            .collect();
        let kind = if state.kind.has_rows() { StateKind::Attention } else { state.kind };
        (!parts.is_empty())
            .then(|| json!({"layer": state.layer, "kind": kind.name(), "parts": parts}))
    });
    states.collect()
}

/// Recording of one dtype.
struct DtypeRecording<'a> {
    session: &'a mut dyn Session,
    dtype: Dtype,
    /// Taps that the engine exposes, in order of execution.
    wanted: &'a [String],
    kept: &'a mut RecordedValues,
}

impl DtypeRecording<'_> {
    fn prompt(&mut self, prompt: &Prompt) -> Result<(), Error> {
        for phase in Phase::ALL {
            let rows = prompt.positions(phase).len();
            if rows == 0 {
                continue;
            }
            let trace = self.trace(prompt, phase)?;
            let base = format!("{}/{}/{phase}", self.dtype, prompt.name);
            let width = trace.logits.len() / rows;
            self.keep(format!("{base}/logits"), vec![rows, width], &trace.logits, None);
            if !prompt.tapped(phase) {
                continue;
            }
            for (name, tap) in &trace.taps {
                self.tap(&base, phase, name, rows, tap);
            }
            self.states(&base, prompt, phase, &trace.states);
        }
        Ok(())
    }

    fn trace(&mut self, prompt: &Prompt, phase: Phase) -> Result<Trace, engine::Error> {
        let absent = DumpTensor { dtype: Dtype::F32, shape: Vec::new(), data: Vec::new() };
        let mut taps = ReferenceTaps::default();
        if prompt.tapped(phase) {
            let names = self.wanted.iter();
            *taps.of_mut(phase) = names.map(|name| (name.clone(), absent.clone())).collect();
        }
        let mut row = RouterRow::new(Mode::Cumulative);
        let mut steer = RoutingProbe::new(&[], self.dtype, String::new(), &mut row);
        match phase {
            Phase::Prefill => {
                run::prefill(self.session, prompt, &taps, run::InputSource::Own, &mut steer)
            }
            Phase::Decode => run::decode(self.session, prompt, &taps, &mut steer),
        }
    }

    fn tap(&mut self, base: &str, phase: Phase, name: &str, rows: usize, tap: &CapturedTap) {
        let width: usize = tap.row.iter().product();
        // After the output layer of the graph only wanted rows exist.
        if width == 0 || tap.data.len() != rows * width {
            return;
        }
        let key = (name.to_owned(), phase);
        *self.kept.came.entry(key.clone()).or_default() += 1;
        let shape = [&[rows], &tap.row[..]].concat();
        self.keep(format!("{base}/tap/{name}"), shape, &tap.data, Some(key));
    }

    fn states(&mut self, base: &str, prompt: &Prompt, phase: Phase, moments: &[StateSnapshot]) {
        let Some(last) = moments.last() else { return };
        let kinds: Vec<StateKind> =
            self.session.model().graph.states.iter().map(|state| state.kind).collect();
        for (n, value) in last.values.iter().enumerate() {
            let rows = kinds.get(value.state.0).is_some_and(|kind| kind.has_rows());
            let (shape, data) = match (rows, phase) {
                (_, Phase::Prefill) => (value.shape.clone(), value.data.clone()),
                (true, Phase::Decode) => {
                    written(prompt.tokens.len(), moments, |moment| moment.values.get(n).cloned())
                }
                (false, Phase::Decode) => {
                    let lengths = prompt.snapshots();
                    let at = moments.iter().filter(|m| lengths.binary_search(&m.seen).is_ok());
                    let values = at.filter_map(|moment| moment.values.get(n));
                    let data: Vec<f32> =
                        values.flat_map(|value| value.data.iter().copied()).collect();
                    ([&[lengths.len()], &value.shape[..]].concat(), data)
                }
            };
            let name = format!("{base}/state/{}/{}", value.layer, value.part);
            self.keep(name, shape, &data, None);
        }
    }

    /// Stores values in the run's dtype if all of them are exact in it, and in f32 otherwise.
    fn keep(
        &mut self,
        name: String,
        shape: Vec<usize>,
        data: &[f32],
        tap: Option<(String, Phase)>,
    ) {
        let run_dtype = FileDtype::from(self.dtype);
        let mut bytes = encode(run_dtype, data);
        let mut back = vec![0.0; data.len()];
        numbers::to_f32(run_dtype, &bytes, &mut back)
            .expect("a dtype of runs, and a buffer of its length");
        let exact = back.iter().zip(data).all(|(a, b)| a.to_bits() == b.to_bits());
        let dtype = if exact { run_dtype } else { FileDtype::F32 };
        if !exact {
            bytes = encode(dtype, data);
        }
        self.kept.tensors.push(StoredTensor {
            declared: TensorSpec { name, dtype, shape },
            tap,
            bytes,
        });
    }

    fn greedy(&mut self, prompt: &Prompt, steps: bool) -> Result<Vec<u32>, engine::Error> {
        let context = self.session.model().context.unwrap_or(usize::MAX);
        // The last token is not fed, so it needs no position.
        let room = context.saturating_sub(prompt.tokens.len()).saturating_add(1);
        let count = GREEDY.min(room);
        if !steps {
            let causal = prompt.is_plain();
            let tokens =
                causal.then(|| self.session.generate(&prompt.tokens, count)).transpose()?;
            return Ok(tokens.flatten().unwrap_or_default());
        }
        let slot = self.session.open_slot();
        let mut tokens = Vec::new();
        let mut fed = prompt.tokens.clone();
        let mut mask = prompt.mask(fed.len());
        while tokens.len() < count {
            let chunk = Chunk { slot, tokens: &fed, rows: OutputRows::Last };
            let rows = run::feed_masked(self.session, chunk, mask, &mut NoProbe)?;
            mask = ChunkMask::default();
            tokens.push(top1(rows.row(0)) as u32);
            fed = tokens[tokens.len() - 1..].to_vec();
        }
        self.session.release(slot)?;
        Ok(tokens)
    }
}

fn encode(dtype: FileDtype, data: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; data.len() * dtype.size()];
    numbers::from_f32(dtype, data, &mut bytes)
        .expect("a dtype of runs, and a buffer of its length");
    bytes
}

/// Combines the rows that were written for each position, from the snapshots that show them.
fn written(
    tokens: usize,
    moments: &[StateSnapshot],
    of: impl Fn(&StateSnapshot) -> Option<StateValue>,
) -> (Vec<usize>, Vec<f32>) {
    let mut data = Vec::new();
    let mut shape = vec![tokens];
    let mut known = 0;
    for moment in moments {
        let Some(value) = of(moment) else { continue };
        let width: usize = value.shape.iter().skip(1).product();
        let kept_positions = value.shape.first().copied().unwrap_or(0).min(moment.seen);
        shape = [&[tokens], value.shape.get(1..).unwrap_or_default()].concat();
        data.resize(tokens * width, 0.0);
        // A row is taken from its first snapshot; later changes to it are excluded.
        for position in known.max(moment.seen - kept_positions)..moment.seen.min(tokens) {
            let row = position + kept_positions - moment.seen;
            let from = row * width..(row + 1) * width;
            let to = position * width;
            data[to..to + width].copy_from_slice(&value.data[from]);
        }
        known = moment.seen;
    }
    (shape, data)
}

impl Recording {
    /// Writes the tensors, and returns the manifest with checksums for the caller to write last. A folder without
    /// it is not a dump.
    pub fn write(&self, tensors: &Path) -> Result<Vec<u8>, Error> {
        let declared: Vec<TensorSpec> = self.tensors.iter().map(|t| t.declared.clone()).collect();
        let mut writer =
            Writer::create(tensors, &BTreeMap::new(), &declared).map_err(dump::Error::from)?;
        for tensor in &self.tensors {
            writer.write(&tensor.declared.name, &tensor.bytes).map_err(dump::Error::from)?;
        }
        writer.finish().map_err(dump::Error::from)?;
        let manifest =
            serde_json::to_string_pretty(&self.manifest).map_err(std::io::Error::from)?;
        Ok(dump::sealed(&manifest, &dump::sha256(tensors)?).into_bytes())
    }
}

/// Derives prompts if there is no dump to take them from. There is a prompt of one token, one of two, a
/// short one with taps, and one that exceeds windows and blocks as far as the context allows.
pub fn derived(model: &Model) -> Vec<Prompt> {
    /// Tokens of the longest prompt.
    const LONG: usize = 134;
    let windows = model.graph.states.iter().filter_map(|state| state.window).filter(|w| *w < 1024);
    let main = windows.max().map_or(11, |window| (window + 6).max(11));
    let limit = model.context.unwrap_or(LONG).max(1);
    let mut first = 1;
    let mut prompt = |name: &str, count: usize, split: usize, taps: &[Phase]| {
        let count = count.min(limit);
        let tokens = spread_tokens(model.vocab, first..first + count);
        first += count;
        Prompt {
            name: name.to_owned(),
            tokens,
            split: split.min(count.saturating_sub(1)).max(1),
            prefix: 0,
            documents: Vec::new(),
            given: Vec::new(),
            positions: Vec::new(),
            spans: Vec::new(),
            beside: 0,
            taps: taps.iter().map(|phase| phase.name().to_owned()).collect(),
            rows: None,
            snapshots: None,
        }
    };
    vec![
        prompt("one", 1, 1, &[]),
        prompt("two", 2, 1, &[]),
        prompt("main", main, main / 2, &Phase::ALL),
        prompt("long", LONG.max(main + 8), LONG - 8, &[]),
    ]
}
