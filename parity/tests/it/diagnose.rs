//! Tests that diagnosis names a mistake in a spec, and a setting that another engine ignores. No edit may
//! be blamed for other faults.

mod layouts;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{ModelSource, NativeEngine};
use onboard_parity::diagnose::{
    DiagnoseOptions, Diagnosis, ObservedPrompt, diagnose, explain, noise, observe,
};
use onboard_parity::edit::{Change, ConfigReader, OpMove};
use onboard_parity::mutate::{Fate, MutateOptions, mutate};
use onboard_parity::{CheckOptions, Dump, check_engine};
use registry::config::Config;
use registry::dtype::Dtype;
use registry::graph::{Graph, Node, ValueId};
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::rope::RopeTable;
use registry::scalar::Scalar;
use registry::weight_map::WeightStep;

struct Fixture {
    dir: PathBuf,
    model: Model,
    dump: Dump,
}

fn fixture(name: &str) -> Fixture {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    let text = fs_err::read_to_string(dir.join("config.json")).unwrap();
    let config = Config::parse("config.json", &text).unwrap();
    let library = Library::builtin();
    let spec = library.load(library.find(&config)[0], &[]).unwrap();
    let (model, _) = registry::resolve::resolve(&spec, &config, &OpSet::builtin()).unwrap();
    let mut dump = Dump::open(&dir.join("reference")).unwrap();
    // Prompts of a few tokens say enough, and a search runs each of them hundreds of times.
    dump.manifest.prompts.retain(|prompt| prompt.tokens.len() < 100);
    Fixture { dir, model, dump }
}

fn options() -> CheckOptions {
    CheckOptions {
        dtypes: vec![Dtype::F32],
        schedules: false,
        same_model: false,
        ..CheckOptions::default()
    }
}

fn search() -> DiagnoseOptions {
    DiagnoseOptions { check: options(), ..DiagnoseOptions::default() }
}

impl Fixture {
    fn edited(&self, change: &Change) -> ModelSource<'_> {
        let mut model = self.model.clone();
        change.apply(&mut model);
        ModelSource { model: Arc::new(model), dir: &self.dir }
    }

    /// Diagnoses a model with a mistake.
    fn mistaken(&self, change: &Change) -> Diagnosis {
        let engine = NativeEngine::new();
        let source = self.edited(change);
        let report = check_engine(&engine, &source, &self.dump, &options()).unwrap();
        let diagnosis =
            diagnose(&engine, &source, &self.dump, &report, &search(), &mut |_, _, _| {}).unwrap();
        diagnosis.unwrap()
    }

    /// Explains the results of an engine with a mistake, from all or from the most likely tokens.
    fn foreign(&self, change: &Change, likeliest: Option<usize>) -> Option<Diagnosis> {
        let engine = NativeEngine::new();
        let other = self.edited(change);
        let mut rows = observe(&engine, &other, &self.dump, Dtype::F32, &options()).unwrap();
        if let Some(k) = likeliest {
            for (_, row) in rows.iter_mut().flat_map(|prompt| &mut prompt.rows) {
                row.sort_by(|a, b| b.1.total_cmp(&a.1));
                row.truncate(k);
            }
        }
        self.explained(&rows, &search())
    }

    /// Returns a reader of the config, which resolves the spec with other values.
    fn reader(&self) -> ConfigReader {
        let text = fs_err::read_to_string(self.dir.join("config.json")).unwrap();
        let config = Config::parse("config.json", &text).unwrap();
        let library = Library::builtin();
        let spec = library.load(library.find(&config)[0], &[]).unwrap();
        ConfigReader {
            root: config.root().clone(),
            resolve: Arc::new(move |root: &Scalar| {
                let config = Config::of("config.json", root.clone());
                let model = registry::resolve::resolve(&spec, &config, &OpSet::builtin());
                model.ok().map(|(model, _)| model)
            }),
        }
    }

    /// Explains the results of an engine that reads the config otherwise.
    fn reads(&self, change: impl Fn(&mut Scalar)) -> Diagnosis {
        let reader = self.reader();
        let mut root = reader.root.clone();
        change(&mut root);
        let other = (reader.resolve)(&root).unwrap();
        let other = ModelSource { model: Arc::new(other), dir: &self.dir };
        let engine = NativeEngine::new();
        let rows = observe(&engine, &other, &self.dump, Dtype::F32, &options()).unwrap();
        let search = DiagnoseOptions { config: Some(reader), ..search() };
        self.explained(&rows, &search).unwrap()
    }

    fn explained(&self, rows: &[ObservedPrompt], search: &DiagnoseOptions) -> Option<Diagnosis> {
        let right = ModelSource { model: Arc::new(self.model.clone()), dir: &self.dir };
        let noise = noise(&self.dump, Dtype::F32).unwrap();
        let no = &mut |_: usize, _: usize, _: &str| {};
        explain(&NativeEngine::new(), &right, Dtype::F32, rows, noise, search, no).unwrap()
    }

    fn theta(&self, theta: f64) -> Change {
        let old = &self.model.ropes[0];
        let table = Box::new(RopeTable::plain(&old.name, old.dim, theta));
        Change::Table { rope: 0, table }
    }

    /// Sets an argument in every node that has it.
    fn argument(&self, key: &str, value: &Scalar) -> Change {
        let nodes = self.model.graph.nodes.iter().enumerate();
        let has = nodes.filter(|(_, node)| node.attrs.contains_key(key));
        let values = has.map(|(n, _)| (n, value.clone())).collect();
        Change::Argument { key: key.to_owned(), values }
    }

    /// Returns the nodes of an op.
    fn nodes(&self, op: &str) -> Vec<usize> {
        let nodes = self.model.graph.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.op == op).map(|(n, _)| n).collect()
    }
}

/// Asserts that the first cause explains everything, and that one of its edits contains these words.
fn assert_named(diagnosis: &Diagnosis, words: &str) {
    let first = diagnosis.causes.first().unwrap();
    assert!(diagnosis.explained && first.verified == Some(true), "{diagnosis:#?}");
    assert!(first.edits.iter().any(|edit| edit.edit.contains(words)), "{words}: {first:#?}");
}

#[test]
fn a_mistake_in_a_spec_is_named() {
    let llama = fixture("llama");
    for (change, words) in [
        (llama.theta(500_000.0), "theta = 10000 instead of 500000"),
        (llama.argument("eps", &Scalar::Float(1e-3)), "`eps` of `rms_norm` = 1e-5"),
        (llama.argument("layout", &Scalar::Str("interleaved".into())), "'half'"),
        (llama.argument("scale", &Scalar::Float(1.0)), "`scale` of `attend` = 0.353553"),
        (Change::Op { nodes: llama.nodes("silu"), op: "relu".into() }, "`silu` instead of `relu`"),
    ] {
        assert_named(&llama.mistaken(&change), words);
    }
}

#[test]
fn a_number_that_no_config_has_is_fitted() {
    // Every layer's branches are multiplied by 0.75, so the reference's are a third more.
    let llama = fixture("llama");
    let adds = llama.nodes("add").into_iter();
    let branches = adds.map(|n| llama.model.graph.nodes[n].inputs[1]).collect();
    let change = Change::Scale { values: branches, by: 0.75, tapped: false };
    assert_named(&llama.mistaken(&change), "branch of the residual stream x 1.333");
    // A factor behind the head, whose own tap agrees.
    let values = llama.model.graph.output.into_iter().collect();
    let change = Change::Scale { values, by: 4.0, tapped: false };
    assert_named(&llama.mistaken(&change), "logits x 0.25");
}

#[test]
fn what_another_engine_ignores_is_named() {
    let gemma = fixture("gemma3_text");
    for (change, words, likeliest) in [
        (gemma.argument("plus_one", &Scalar::Bool(false)), "without the offset of 1", None),
        (gemma.argument("plus_one", &Scalar::Bool(false)), "without the offset of 1", Some(5)),
        (gemma.theta(10_000.0), "theta = 10000", Some(20)),
    ] {
        let diagnosis = gemma.foreign(&change, likeliest).unwrap();
        assert_named(&diagnosis, words);
    }
    let nothing = Change::Window(Vec::new());
    assert!(gemma.foreign(&nothing, None).is_none(), "equal engines have nothing to explain");
}

/// Returns the nodes of an op that are read by one node of another op alone, with the results of both.
fn pairs(model: &Model, op: &str, other: &str) -> Vec<(ValueId, ValueId)> {
    let graph = &model.graph;
    let pairs = graph.nodes.iter().filter_map(|node: &Node| {
        let output = node.outputs[0];
        let mut readers = graph.nodes.iter().filter(|reader| reader.inputs.contains(&output));
        let reader = readers.next().filter(|reader| node.op == op && reader.op == other)?;
        Some((output, reader.outputs[0]))
    });
    pairs.collect()
}

#[test]
fn ops_in_another_order_are_named() {
    let qwen = fixture("qwen3");
    let change = Change::Order(pairs(&qwen.model, "rms_norm", "rope"));
    let words = "`rms_norm` after `rope` instead of before it";
    assert_named(&qwen.foreign(&change, None).unwrap(), words);
    // The same in a spec, whose values are recorded under the names of the ops.
    assert_named(&qwen.mistaken(&change), "`rope` after `rms_norm` instead of before it");
    // An exchange and the exchange back give the same graph, with the nodes in another order.
    let hunyuan = fixture("hunyuan_v1_dense");
    let change = Change::Order(pairs(&hunyuan.model, "rope", "rms_norm"));
    let words = "`rope` after `rms_norm` instead of before it";
    assert_named(&hunyuan.foreign(&change, None).unwrap(), words);
}

#[test]
fn norms_of_queries_and_keys_left_out_together_are_named() {
    // In the second model one function calls every norm.
    for (name, place) in [("qwen3", "of 2 inputs of `attend`"), ("qwen3_next", "before `attend`")] {
        let qwen = fixture(name);
        let graph = &qwen.model.graph;
        let pairs = pairs(&qwen.model, "rms_norm", "rope").into_iter();
        let routes = pairs.map(|(output, _): (ValueId, ValueId)| {
            let nodes = graph.nodes.iter().enumerate();
            let readers = nodes.filter(|(_, node)| node.inputs.contains(&output)).map(|(n, _)| n);
            let maker = graph.nodes.iter().find(|node| node.outputs[0] == output).unwrap();
            (readers.collect(), output, maker.inputs[0])
        });
        let diagnosis = qwen.foreign(&Change::Reroute(routes.collect()), None).unwrap();
        assert_named(&diagnosis, "`rms_norm` left out");
        assert!(diagnosis.causes[0].edits[0].place.contains(place), "{diagnosis:#?}");
    }
}

#[test]
fn what_one_reader_takes_from_before_or_behind_an_op_is_named() {
    let deepseek = fixture("deepseek_v3");
    let graph = &deepseek.model.graph;
    // The weights of experts are picked from the scores with the correction bias.
    let adds = graph.nodes.iter().filter(|node| node.op == "weight_add");
    let routes = adds.map(|node: &Node| {
        let scores = node.inputs[0];
        let output = node.outputs[0];
        let nodes = graph.nodes.iter().enumerate();
        let picks = nodes.filter(|(_, other)| other.op == "pick" && other.inputs[0] == scores);
        (picks.map(|(n, _)| n).collect(), scores, output)
    });
    let change = Change::Reroute(routes.collect());
    let words = "`pick` reads the result of `weight_add` instead of its input";
    assert_named(&deepseek.foreign(&change, None).unwrap(), words);
}

#[test]
fn a_router_that_scores_otherwise_is_named() {
    for (name, right, wrong) in
        [("deepseek_v3", "sigmoid", "softmax"), ("qwen3_moe", "softmax", "sigmoid")]
    {
        let fixture = fixture(name);
        let change = Change::Op { nodes: fixture.nodes(right), op: wrong.into() };
        let words = format!("`{wrong}` instead of `{right}`");
        assert_named(&fixture.foreign(&change, None).unwrap(), &words);
    }
}

#[test]
fn a_weight_that_an_engine_drops_is_named() {
    let oss = fixture("gpt_oss");
    let change = Change::Weightless { nodes: oss.nodes("attend"), role: "sinks".into() };
    assert_named(&oss.foreign(&change, None).unwrap(), "`sinks` of `attend` left out");
}

#[test]
fn a_missing_cap_of_the_logits_is_named() {
    let gemma = fixture("gemma2");
    let mut model = gemma.model.clone();
    let cap = model.graph.nodes.pop().unwrap();
    assert_eq!((cap.op.as_str(), model.graph.output), ("softcap", Some(cap.outputs[0])));
    model.graph.output = Some(cap.inputs[0]);
    let diagnosis = gemma.mistaken(&Change::Model(Box::new(model)));
    assert_named(&diagnosis, "`softcap` of the logits, with `c` = 5");
}

/// Returns the norms of each layer.
fn norms(model: &Model) -> Vec<Vec<usize>> {
    let layers = model.graph.layers.iter().map(|layer| layer.nodes.0..layer.nodes.1);
    layers
        .map(|nodes: std::ops::Range<usize>| {
            nodes.filter(|n| model.graph.nodes[*n].op == "rms_norm").collect()
        })
        .collect()
}

#[test]
fn norms_in_each_others_place_are_named() {
    let llama = fixture("llama");
    let pairs: Vec<(usize, usize)> = norms(&llama.model).iter().map(|n| (n[0], n[1])).collect();
    let diagnosis = llama.mistaken(&Change::Projections(pairs.clone()));
    assert_named(&diagnosis, "in each other's place");
    assert_named(&diagnosis, "layers.0.post_attention_layernorm.weight`");
    assert_named(&llama.mistaken(&Change::Weights(pairs)), "swapped");
}

#[test]
fn norms_before_and_behind_a_branch_are_named() {
    let llama = fixture("llama");
    let graph = &llama.model.graph;
    let change = Change::Move(
        norms(&llama.model).iter().flat_map(|nodes| moves_behind_branches(graph, nodes)).collect(),
    );
    assert_named(&llama.mistaken(&change), "`rms_norm` before the branch");
}

fn moves_behind_branches(graph: &Graph, nodes: &[usize]) -> Vec<OpMove> {
    let layer = graph.nodes[nodes[0]].layer;
    let sums: Vec<&Node> =
        graph.nodes.iter().filter(|node| node.layer == layer && node.op == "add").collect();
    let moves = nodes.iter().zip(sums).map(|(norm, sum)| OpMove {
        result: graph.nodes[*norm].outputs[0],
        after: sum.inputs[1],
        except: None,
    });
    moves.collect()
}

#[test]
fn numbers_in_each_others_place_are_named() {
    let granite = fixture("granite");
    let nodes = granite.model.graph.nodes.iter().enumerate();
    let attrs = nodes.flat_map(|(n, node)| node.attrs.iter().map(move |(key, x)| (n, key, x)));
    let swapped = attrs.filter_map(|(n, key, value)| {
        let other = match value.as_f64()? {
            0.2 => 0.4,
            0.4 => 0.2,
            _ => return None,
        };
        Some((n, key.clone(), Scalar::Float(other)))
    });
    let change = Change::Arguments(swapped.collect());
    let words = "dims `residual_mult` and `scale` in each other's place";
    assert_named(&granite.mistaken(&change), words);
}

#[test]
fn weights_that_the_spec_ignores_are_named() {
    let qwen = fixture("qwen2_moe");
    let mut model = qwen.model.clone();
    let graph = &mut model.graph;
    let gates: Vec<ValueId> = graph
        .nodes
        .iter()
        .filter(|node| node.op == "sigmoid")
        .map(|node| node.outputs[0])
        .collect();
    let gated: Vec<(ValueId, ValueId)> = graph
        .nodes
        .iter()
        .filter(|node| gates.contains(&node.inputs[0]))
        .map(|node| (node.outputs[0], node.inputs[1]))
        .collect();
    for (from, to) in gated {
        let inputs = graph.nodes.iter_mut().flat_map(|node| &mut node.inputs);
        inputs.filter(|input| **input == from).for_each(|input| *input = to);
    }
    model.ignore.push("*.shared_expert_gate.weight".to_owned());
    let diagnosis = qwen.mistaken(&Change::Model(Box::new(model)));
    let gate = "model.layers.0.mlp.shared_expert_gate.weight";
    assert_eq!(diagnosis.ignored, [gate], "{diagnosis:#?}");
    let text = onboard_parity::report::causes(&diagnosis);
    let remark =
        "the spec ignores `model.layers.0.mlp.shared_expert_gate.weight`: an op that it lacks";
    assert!(!diagnosis.explained && text.contains(remark), "{text}");
}

#[test]
fn weights_in_the_wrong_layers_are_unexplained() {
    let llama = fixture("llama");
    let layers: Vec<(usize, usize)> =
        llama.model.graph.layers.iter().map(|layer| layer.nodes).collect();
    // All weights of the first two layers are swapped.
    let pairs = (layers[0].0..layers[0].1).zip(layers[1].0..layers[1].1).collect();
    let change = Change::Weights(pairs);
    let diagnosis = llama.mistaken(&change);
    assert!(!diagnosis.explained && diagnosis.tried > 10, "{diagnosis:#?}");
    let diagnosis = llama.foreign(&change, None).unwrap();
    assert!(!diagnosis.explained && diagnosis.tried > 100, "{diagnosis:#?}");
}

#[test]
fn rows_of_another_model_are_refused() {
    let llama = fixture("llama");
    let source = ModelSource { model: Arc::new(llama.model.clone()), dir: &llama.dir };
    for (tokens, rows) in [
        (vec![], vec![]),
        (vec![1 << 20], vec![]),
        (vec![1], vec![(1, vec![(0, -1.0)])]),
        (vec![1], vec![(0, vec![(1 << 20, -1.0)])]),
    ] {
        let observed = ObservedPrompt { name: "a".into(), tokens, rows };
        let no = &mut |_: usize, _: usize, _: &str| {};
        let engine = NativeEngine::new();
        let diagnosis = explain(&engine, &source, Dtype::F32, &[observed], 1e-5, &search(), no);
        assert!(diagnosis.is_err());
    }
}

#[test]
fn the_edit_that_undoes_a_mutant_is_named_first() {
    let llama = fixture("llama");
    let source = ModelSource { model: Arc::new(llama.model.clone()), dir: &llama.dir };
    let mut curable = 0;
    for only in ["rms_norm", "rope `main`", "one projection"] {
        let options = MutateOptions {
            dtypes: vec![Dtype::F32],
            only: Some(only.to_owned()),
            diagnose: true,
            ..MutateOptions::default()
        };
        let no = &mut |_: usize, _: usize, _: &str| {};
        let book = mutate(&NativeEngine::new(), &source, &llama.dump, &options, no).unwrap();
        for outcome in book.outcomes.iter().filter(|outcome| outcome.fate == Fate::Caught) {
            let blame = outcome.blame.as_ref().unwrap();
            assert!(blame.is_right(), "{outcome:#?}");
            curable += usize::from(blame.curable);
        }
    }
    assert!(curable >= 8, "{curable}");
}

/// Returns the value of a dotted key of an object.
fn member<'a>(root: &'a mut Scalar, key: &str) -> &'a mut Scalar {
    key.split('.').fold(root, |at, key| {
        let Scalar::Map(entries) = at else { panic!("{key}: {at}") };
        &mut entries.iter_mut().find(|(name, _)| name == key).unwrap().1
    })
}

#[test]
fn a_value_of_the_config_that_is_read_otherwise_is_named() {
    let diagnosis = fixture("gemma3_text").reads(|root: &mut Scalar| {
        let Scalar::List(items) = member(root, "layer_types") else { panic!() };
        items.rotate_right(1);
    });
    assert_named(&diagnosis, "`layer_types` of the config read one layer later");
    let diagnosis = fixture("gpt_oss").reads(|root: &mut Scalar| {
        *member(root, "rope_parameters.truncate") = Scalar::Bool(true);
    });
    assert_named(&diagnosis, "`rope_parameters.truncate` of the config not read");
    let diagnosis = fixture("mamba2").reads(|root: &mut Scalar| {
        let bounds = vec![Scalar::Float(0.001), Scalar::Float(0.1)];
        *member(root, "time_step_limit") = Scalar::List(bounds);
    });
    assert_named(&diagnosis, "`time_step_limit` of the config read as [0.001, 0.1]");
    let diagnosis = fixture("qwen3_next")
        .reads(|root: &mut Scalar| *member(root, "num_experts_per_tok") = Scalar::Int(2));
    assert_named(&diagnosis, "`num_experts_per_tok` of the config read as 2 instead of 3");
}

#[test]
fn a_token_before_every_prompt_is_named() {
    let llama = fixture("llama3");
    let source = ModelSource { model: Arc::new(llama.model.clone()), dir: &llama.dir };
    let mut dump = Dump::open(&llama.dir.join("reference")).unwrap();
    for prompt in &mut dump.manifest.prompts {
        prompt.tokens.insert(0, 304);
    }
    let engine = NativeEngine::new();
    let mut rows = observe(&engine, &source, &dump, Dtype::F32, &options()).unwrap();
    for prompt in &mut rows {
        prompt.tokens.remove(0);
        prompt.rows.remove(0);
        prompt.rows.iter_mut().for_each(|(at, _)| *at -= 1);
    }
    let search = DiagnoseOptions { config: Some(llama.reader()), ..search() };
    let diagnosis = llama.explained(&rows, &search).unwrap();
    assert_named(&diagnosis, "token 304 (`bos_token_id`) before the prompt");
}

#[test]
fn heads_that_take_their_groups_in_turn_are_named() {
    for (name, op) in [("mamba2", "ssd_scan"), ("qwen3_next", "delta_rule")] {
        let fixture = fixture(name);
        let diagnosis = fixture.foreign(&Change::Tiles(fixture.nodes(op)), None).unwrap();
        let words = format!("heads of `{op}` that share a group lie a number of groups");
        assert_named(&diagnosis, &words);
    }
}

#[test]
fn decays_without_their_function_are_named() {
    let next = fixture("qwen3_next");
    let change = Change::PlainDecay(next.nodes("log_decay"));
    assert_named(&next.foreign(&change, None).unwrap(), "`log_decay` without its softplus");
}

#[test]
fn an_expert_that_is_left_out_is_named() {
    let olmoe = fixture("olmoe");
    let change = olmoe.layout(&[("experts.5.down_proj", vec![WeightStep::Mul(0.0)])]);
    assert_named(&olmoe.foreign(&change, None).unwrap(), "expert 5 of `experts` left out");
    let half: Vec<_> = [3, 4, 5].map(|n| format!("experts.{n}.down_proj")).into();
    let half: Vec<_> =
        half.iter().map(|name| (name.as_str(), vec![WeightStep::Mul(0.0)])).collect();
    let words = "the second half of the experts of `experts` left out";
    assert_named(&olmoe.foreign(&olmoe.layout(&half), None).unwrap(), words);
}

#[test]
fn parts_that_are_computed_in_fewer_bits_are_named() {
    let llama = fixture("llama");
    let head = llama.nodes("linear").into_iter().next_back().into_iter().collect();
    let change = Change::Narrow { nodes: head, dtype: Dtype::Bf16, inputs: true };
    assert_named(&llama.foreign(&change, None).unwrap(), "result of `linear` rounded to bf16");
    let mut table = llama.model.ropes[0].clone();
    table.rounded = Some(Dtype::Bf16);
    let change = Change::Table { rope: 0, table: Box::new(table) };
    let words = "rope with cos and sin rounded to bf16";
    assert_named(&llama.foreign(&change, None).unwrap(), words);
}

#[test]
fn numbers_in_reversed_order_are_named() {
    let llama = fixture("llama");
    let unflatten = WeightStep::Unflatten { axis: 1, sizes: vec![0, 2] };
    let pairs = vec![unflatten, WeightStep::Reverse(2), WeightStep::Flatten(1)];
    let change = llama.layout(&[("down_proj", pairs)]);
    let words = "down_proj.weight` read with `do: [unflatten(1, [0, 2]), reverse(2), flatten(1)]`";
    assert_named(&llama.foreign(&change, None).unwrap(), words);
    let mamba = fixture("mamba2");
    let change = mamba.layout(&[("conv1d.weight", vec![WeightStep::Reverse(2)])]);
    let words = "conv1d.weight` read with `do: [reverse(2)]`";
    assert_named(&mamba.foreign(&change, None).unwrap(), words);
}

#[test]
fn two_faults_at_once_are_named_together() {
    let llama = fixture("llama");
    let mut model = llama.model.clone();
    llama.argument("eps", &Scalar::Float(1e-4)).apply(&mut model);
    Change::Op { nodes: llama.nodes("silu"), op: "relu".into() }.apply(&mut model);
    let diagnosis = llama.foreign(&Change::Model(Box::new(model)), None).unwrap();
    let first = &diagnosis.causes[0];
    assert!(diagnosis.explained && first.verified == Some(true), "{diagnosis:#?}");
    let mut words: Vec<&str> =
        first.edits[..1].iter().chain(&first.with).map(|edit| edit.edit.as_str()).collect();
    words.sort_unstable();
    assert_eq!(words, ["`eps` of `rms_norm` = 1e-4 instead of 1e-5", "`relu` instead of `silu`"]);
}
