//! Model behind a stand-in: a fixture, with an edit of its graph.

use std::path::PathBuf;
use std::sync::Arc;

use engine::{
    Chunk, Engine as _, ModelSource, NativeEngine, NoProbe, OutputRows, Session, SessionOptions,
    SlotId, StateValue,
};
use registry::config::Config;
use registry::graph::StateKind;
use registry::library::Library;
use registry::ops::OpSet;

use crate::tool::fixture;

/// Maximum number of inputs that a convolution stores.
const KERNEL: usize = 4;

/// Edit of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twist {
    None,
    /// Another base of rotary positions.
    Theta,
    /// Gate and up projections of each MLP are swapped.
    GateUp,
    /// Random weights.
    Other,
}

/// Opened model.
pub(super) struct Running {
    session: Box<dyn Session>,
    pub(super) vocab: usize,
    /// Convolution states left by the last sequence.
    left: Vec<StateValue>,
    _files: Option<tempfile::TempDir>,
}

impl Running {
    pub(super) fn open(name: &str, twist: Twist) -> Self {
        let mut dir: PathBuf = fixture(name);
        let mut text = fs_err::read_to_string(dir.join("config.json")).unwrap();
        if twist == Twist::Theta {
            // The default of engines; if that is correct, another one.
            let at = text.find("\"rope_theta\": ").unwrap() + "\"rope_theta\": ".len();
            let end = at + text[at..].find([',', '\n', '}']).unwrap();
            let other = if text[at..end].trim() == "10000.0" { "500.0" } else { "10000.0" };
            text.replace_range(at..end, other);
        }
        let config =
            Config::parse("config.json", &text).unwrap_or_else(|e| panic!("{}", e.message));
        let library = Library::builtin();
        let spec = library.find(&config)[0];
        let spec = library.load(spec, &[]).unwrap();
        let mut model = registry::resolve::resolve(&spec, &config, &OpSet::builtin()).unwrap().0;
        if twist == Twist::GateUp {
            for weight in &mut model.graph.weights {
                weight.name = match weight.name.split_once("gate_proj") {
                    Some((before, after)) => format!("{before}up_proj{after}"),
                    None => weight.name.replace("up_proj", "gate_proj"),
                };
            }
        }
        let mut files = None;
        if twist == Twist::Other {
            let folder = tempfile::tempdir().unwrap();
            let weights: Vec<(String, Vec<usize>)> =
                model.graph.weights.iter().map(|w| (w.name.clone(), w.shape.clone())).collect();
            let dtype = formats::FileDtype::F32;
            checkpoints::random::write_random_checkpoint(
                folder.path(),
                &weights,
                dtype,
                7,
                1 << 30,
            )
            .unwrap();
            fs_err::write(folder.path().join("config.json"), &text).unwrap();
            folder.path().clone_into(&mut dir);
            files = Some(folder);
        }
        let vocab = model.vocab;
        let source = ModelSource { model: Arc::new(model), dir: &dir };
        let session = NativeEngine::new().open(&source, &SessionOptions::default()).unwrap();
        Self { session, vocab, left: Vec::new(), _files: files }
    }

    /// Returns log-probabilities after each token, in a fresh slot or in one with used convolution states.
    pub(super) fn rows(&mut self, tokens: &[u32], leak: bool) -> Vec<Vec<f32>> {
        let slot =
            if leak && !self.left.is_empty() { self.dirty() } else { self.session.open_slot() };
        let chunk = Chunk { slot, tokens, rows: OutputRows::All };
        let logits = self.session.step(&[chunk], &mut NoProbe).unwrap().pop().unwrap();
        if leak {
            self.left = self.session.states(slot).unwrap();
        }
        self.session.release(slot).unwrap();
        logits.data.chunks(self.vocab).map(log_softmax).collect()
    }

    /// Returns a slot with the convolution states of the last sequence, and all others cleared. It is for
    /// models without attention, which have no positions.
    fn dirty(&mut self) -> SlotId {
        let mut states = self.left.clone();
        let model = self.session.model();
        for value in &mut states {
            if model.graph.states[value.state.0].kind != StateKind::Conv {
                value.data.fill(0.0);
            }
        }
        self.session.seed(KERNEL, &states).unwrap()
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    logits.iter().map(|x| (f64::from(x - top) - sum.ln()) as f32).collect()
}
