//! Model behind a stand-in: a fixture, with an edit of its graph.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use engine::{
    Chunk, Engine as _, ModelSource, NativeEngine, NoProbe, OutputRows, ProductArithmetic, Session,
    SessionOptions, SlotId, StateValue,
};
use formats::codec::BlockType;
use formats::gguf::GgufFile;
use models::open::{OpenOptions, open};
use models::specs::Specs;
use registry::config::Config;
use registry::graph::StateKind;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;

use crate::tool::fixture;

/// Maximum number of inputs that a convolution stores.
const KERNEL: usize = 4;

/// Returns the rounding of rows that are multiplied by blocks of a type.
fn rounding_of(ty: BlockType) -> Rounding {
    Rounding {
        codes: CodeType::Integer { bits: 8, symmetric: true },
        shared: ScaleSharing::Group(if ty.elements() > 32 { 256 } else { 32 }),
    }
}

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

/// Products of a server of a quantized file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Products {
    /// Rows are rounded by the types of the file's tensors, as in llama.cpp.
    OfFile,
    /// The native engine's own products in integers, with a scale for 32 numbers.
    Integers,
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

    /// Opens a GGUF file with an edit of its model, as an engine that rounds rows before products.
    pub(super) fn of_file(path: &Path, edit: fn(&mut Model), products: Products) -> Self {
        let opened = open(path, &mut Specs::builtin(), &OpenOptions::default()).unwrap();
        let mut model = Arc::unwrap_or_clone(opened.target.model);
        edit(&mut model);
        let file = GgufFile::open(path).unwrap();
        let types = file.tensors().iter().map(|info| info.ty).filter(|ty| ty.is_quantized());
        let options = match products {
            Products::OfFile => SessionOptions {
                rounds_by_type: types.map(|ty| (ty, rounding_of(ty))).collect(),
                ..SessionOptions::default()
            },
            Products::Integers => SessionOptions {
                arithmetic: ProductArithmetic::Q8 { repack: false },
                ..SessionOptions::default()
            },
        };
        let vocab = model.vocab;
        let source = ModelSource { model: Arc::new(model), dir: path };
        let session = NativeEngine::new().open(&source, &options).unwrap();
        Self { session, vocab, left: Vec::new(), _files: None }
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
