//! Weights in blocks, and rounded inputs of matrices, on the CPU and on the emulated device.

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use checkpoints::gguf_weights::BlockView;
use checkpoints::load::WeightView;
use formats::codec::{self, BlockType};
use formats::safetensors::FileDtype;
use libtest_mimic::Trial;
use onboard_engine::device::blocks;
use onboard_engine::weights::WeightSource;
use onboard_engine::{Error, InputRounding, NativeEngine, ProductArithmetic, SessionOptions};
use registry::config::Config;
use registry::dtype::Dtype;
use registry::graph::WeightId;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;

use crate::sessions::{compare_opened, fixture};
use crate::{emulation, sessions, trials};

pub(crate) fn trials() -> Vec<Trial> {
    let decoded = || blocks::decoded().map(|ty| ty.name().to_owned());
    // One more is decoded at upload.
    let types = decoded().chain(["Q3_K".to_owned()]);
    let mut trials =
        trials::each("quantized::blocks", types, weights_in_blocks_have_the_bits_of_the_cpu);
    let integers = products_in_integers_have_the_bits;
    trials.extend(trials::each("quantized::integers", decoded(), integers));
    trials.extend([
        trials::one("quantized::memory", blocks_take_their_own_size),
        trials::one("quantized::inputs", rounded_inputs_have_the_bits_of_the_cpu),
        trials::one("quantized::apart", experts_that_round_apart_are_refused),
    ]);
    trials
}

/// Random weights, all matrices of them in blocks of a type or with rounded inputs.
pub(crate) struct RandomWeights {
    shapes: Vec<Vec<usize>>,
    plain: Vec<Vec<u8>>,
    blocks: BTreeMap<usize, Vec<u8>>,
    ty: Option<BlockType>,
    rounding: Option<Rounding>,
    /// True if the rounding of each weight has a scale of its own.
    apart: bool,
    /// True if every third weight in blocks has a factor.
    factor: bool,
}

impl RandomWeights {
    pub(crate) fn new(model: &Model, ty: Option<BlockType>, rounding: Option<Rounding>) -> Self {
        let shapes: Vec<Vec<usize>> = model.graph.weights.iter().map(|w| w.shape.clone()).collect();
        let mut plain = Vec::new();
        let mut blocks = BTreeMap::new();
        let mut state = 7_u32;
        for (n, shape) in shapes.iter().enumerate() {
            let numbers: Vec<f32> = (0..shape.iter().product())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 24) as f32 * 0.5 - 0.25
                })
                .collect();
            if let (Some(ty), &[_, inputs]) = (ty, shape.as_slice())
                && inputs.is_multiple_of(ty.elements())
            {
                let mut bytes = vec![0; numbers.len() / ty.elements() * ty.bytes()];
                codec::encode(ty, &numbers, inputs, None, &mut bytes).unwrap();
                blocks.insert(n, bytes);
            }
            plain.push(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
        }
        Self { shapes, plain, blocks, ty, rounding, apart: false, factor: true }
    }
}

impl WeightSource for RandomWeights {
    fn view(&self, id: WeightId) -> Result<WeightView<'_>, Error> {
        Ok(WeightView {
            dtype: FileDtype::F32,
            shape: &self.shapes[id.0],
            bytes: &self.plain[id.0],
        })
    }

    fn blocks(&self, id: WeightId) -> Option<BlockView<'_>> {
        let factor = if self.factor && id.0.is_multiple_of(3) { 0.75 } else { 1.0 };
        let bytes = self.blocks.get(&id.0)?;
        Some(BlockView { ty: self.ty?, shape: &self.shapes[id.0], bytes, factor, row_factors: &[] })
    }

    fn rounding(&self, id: WeightId) -> Result<Option<Rounding>, Error> {
        Ok(self.rounding.filter(|_| self.shapes[id.0].len() == 2).map(|how| match how.shared {
            ScaleSharing::Fixed { scale, zero } if self.apart => {
                let scale = scale * (1.0 + id.0 as f32);
                Rounding { shared: ScaleSharing::Fixed { scale, zero }, ..how }
            }
            _ => how,
        }))
    }
}

/// Returns the model of a fixture with other numbers in its config.
pub(crate) fn changed_model(name: &str, changes: &[(&str, u64)]) -> Model {
    let text = fs_err::read_to_string(fixture(name).join("config.json")).unwrap();
    let mut config: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).unwrap();
    for (key, number) in changes {
        assert!(config.insert((*key).to_owned(), (*number).into()).is_some(), "{key}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs_err::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
    let config = Config::read(&path).unwrap();
    let library = Library::builtin();
    let spec = library.load(library.find(&config).first().expect("a spec"), &[]).unwrap();
    registry::resolve::resolve(&spec, &config, &OpSet::builtin()).unwrap().0
}

/// Returns the model of a fixture with rows of 256 numbers, a block of every type.
pub(crate) fn wide_model(name: &str) -> Model {
    let sizes: &[&str] = match name {
        "lfm2_moe" => &["hidden_size", "intermediate_size", "moe_intermediate_size"],
        _ => &["hidden_size", "intermediate_size"],
    };
    let changes: Vec<(&str, u64)> = sizes.iter().map(|size| (*size, 256)).collect();
    changed_model(name, &changes)
}

pub(crate) fn block_type(name: &str) -> BlockType {
    BlockType::declared().find(|ty| ty.name() == name).expect("a type")
}

fn weights_in_blocks_have_the_bits_of_the_cpu(name: &str) {
    let model = Arc::new(wide_model("lfm2_moe"));
    let ty = block_type(name);
    // One dtype for each type is enough: products decode before they see the inputs.
    let dtype = Dtype::ALL[usize::from(name.as_bytes()[1]) % 3];
    let blocks = random_blocks(&model, ty).blocks.len();
    assert!(blocks > 20, "{name}: {blocks}");
    let options = SessionOptions { dtype, threads: Some(1), ..SessionOptions::default() };
    let device = NativeEngine::on(emulation::device(dtype == Dtype::F32));
    let [mut host, mut device] = [NativeEngine::new(), device].map(|engine| {
        let weights = Box::new(random_blocks(&model, ty));
        engine.open_with(Arc::clone(&model), weights, &options).unwrap()
    });
    compare_opened(name, &mut *host, &mut *device);
}

fn random_blocks(model: &Model, ty: BlockType) -> RandomWeights {
    RandomWeights::new(model, Some(ty), None)
}

/// The arithmetic `q8`, of matrices and of experts.
fn products_in_integers_have_the_bits(name: &str) {
    let model = Arc::new(wide_model("lfm2_moe"));
    let ty = block_type(name);
    for (dtype, factor) in [(Dtype::F32, true), (Dtype::F16, false)] {
        let open = |engine: NativeEngine, arithmetic| {
            let options =
                SessionOptions { dtype, arithmetic, threads: Some(1), ..Default::default() };
            let weights = RandomWeights { factor, ..RandomWeights::new(&model, Some(ty), None) };
            engine.open_with(Arc::clone(&model), Box::new(weights), &options).unwrap()
        };
        let integers = ProductArithmetic::Q8 { repack: false };
        compare_opened(
            name,
            &mut *open(NativeEngine::new(), integers),
            &mut *open(NativeEngine::on(emulation::device(dtype == Dtype::F32)), integers),
        );
        let [exact, rounded] = [ProductArithmetic::Exact, integers].map(|arithmetic| {
            let engine = NativeEngine::on(emulation::device(dtype == Dtype::F32));
            sessions::record(&mut *open(engine, arithmetic), model.vocab)
        });
        assert!(exact != rounded, "{name}: the arithmetic makes no difference");
    }
}

fn blocks_take_their_own_size() {
    let model = Arc::new(wide_model("lfm2_moe"));
    let ty = block_type("Q4_0");
    let all: usize = random_blocks(&model, ty)
        .shapes
        .iter()
        .map(|shape| shape.iter().product::<usize>() * 4)
        .sum();
    open_in_memory(&model, ty, all as u64 / 5).unwrap();
    assert!(matches!(open_in_memory(&model, ty, all as u64 / 10), Err(Error::DeviceMemory { .. })));
}

fn open_in_memory(model: &Arc<Model>, ty: BlockType, free: u64) -> Result<(), Error> {
    let engine = NativeEngine::on(emulation::with_memory(false, free));
    let weights = Box::new(random_blocks(model, ty));
    engine.open_with(Arc::clone(model), weights, &SessionOptions::default()).map(|_| ())
}

/// Every kind of codes, and of numbers that share a scale, in matrices, experts and latents.
fn rounded_inputs_have_the_bits_of_the_cpu() {
    let fixed = ScaleSharing::Fixed { scale: 0.013, zero: 0.0 };
    for (name, codes, shared, dtype) in [
        ("lfm2_moe", CodeType::E4m3, ScaleSharing::Row, Dtype::F32),
        ("lfm2_moe", integer(8, true), ScaleSharing::Group(16), Dtype::Bf16),
        ("lfm2_moe", integer(8, false), ScaleSharing::Row, Dtype::F16),
        ("deepseek_v3", integer(4, false), ScaleSharing::Group(7), Dtype::F32),
        ("deepseek_v3", CodeType::E4m3, fixed, Dtype::Bf16),
        (
            "qwen3",
            integer(8, false),
            ScaleSharing::Fixed { scale: 0.011, zero: -12.0 },
            Dtype::Bf16,
        ),
    ] {
        let model = Arc::new(crate::sessions::model(name));
        let rounding = Some(Rounding { codes, shared });
        for rounds in [InputRounding::All, InputRounding::Linear] {
            let device = NativeEngine::on(emulation::device(dtype == Dtype::F32));
            let [mut host, mut device] = [NativeEngine::new(), device].map(|engine| {
                let weights = Box::new(RandomWeights::new(&model, None, rounding));
                let threads = Some(1);
                let options =
                    SessionOptions { dtype, rounds, threads, ..SessionOptions::default() };
                engine.open_with(Arc::clone(&model), weights, &options).unwrap()
            });
            compare_opened(name, &mut *host, &mut *device);
        }
    }
}

fn integer(bits: u32, symmetric: bool) -> CodeType {
    CodeType::Integer { bits, symmetric }
}

fn experts_that_round_apart_are_refused() {
    let model = Arc::new(crate::sessions::model("lfm2_moe"));
    let shared = ScaleSharing::Fixed { scale: 0.01, zero: 0.0 };
    let rounding = Some(Rounding { codes: CodeType::E4m3, shared });
    let weights = RandomWeights { apart: true, ..RandomWeights::new(&model, None, rounding) };
    let options = SessionOptions { rounds: InputRounding::All, ..SessionOptions::default() };
    let engine = NativeEngine::on(emulation::device(false));
    let Err(why) = engine.open_with(Arc::clone(&model), Box::new(weights), &options) else {
        panic!("each expert has a scale of its own")
    };
    let why = why.to_string();
    assert!(why.contains("experts") && why.contains("run it without rounding"), "{why}");
}
