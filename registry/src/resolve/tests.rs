//! Specs from text to model, and the faults that specs have.

use proptest::prelude::*;

use super::*;
use crate::dtype::{Dtype, DtypeRule};
use crate::graph::StateKind;
use crate::library::Library;

mod gguf;

/// Two kinds of layers, a state of each kind, and a tied head.
const SPEC: &str = "\
spec: 1
name: made_up
matches: [MadeUp]
dims:
  hidden: hidden_size
  layers: num_layers
  vocab:  vocab_size
  heads:  [num_heads, = 2]
  size:   = hidden // heads
  width:  [kernel, = 3]
  kinds:  [layer_types, = ['conv' if i % 2 == 0 else 'full' for i in range(layers)]]
  reach:  [reach, = null]
  context: [max_positions, = 64]
rope:
  main: { dim: size, theta: [theta, = 100.0], context: context }
states:
  kv:   { kind: attention, k: [heads, size], v: [heads, size], dtype: activation }
  past: { kind: conv, shape: [hidden, width - 1], dtype: activation }
functions:
  norm(x, weight): |
    return rms_norm(x, weight, 1e-5)
  mix(x): |
    b, u = split(linear(x, mix.in, 2 * hidden), 2)
    return linear(causal_conv(b * u, mix.conv, width, past), mix.out, hidden)
  look(x): |
    q = rope(heads(linear(x, look.q, hidden), heads), main)
    k = rope(heads(linear(x, look.k, hidden), heads), main)
    v = heads(linear(x, look.v, hidden), heads)
    return linear(attend(q, k, v, kv, size ** -0.5, window=window), look.o, hidden)
layers:
  prefix: net.layers.{i}
  kind: kinds[i]
  each:
    window: reach if i > 1 else null
  conv: |
    return x + mix(norm(x, norm1))
  full: |
    return x + look(norm(x, norm1)) * 0.5
model: |
  x = layers(embed(tokens, net.embed, vocab, hidden))
  return linear(norm(x, net.norm), head, vocab, tied=net.embed)
";

const CONFIG: &str = r#"{"architectures": ["MadeUp"], "hidden_size": 8, "num_layers": 4, "vocab_size": 20, "reach": 5}"#;

fn run(spec: &str, config: &str) -> Result<(Model, Vec<Finding>), Vec<Finding>> {
    let mut library = Library::default();
    let name = library.add_text("made_up.yaml", spec);
    let spec = library.load(&name, &[])?;
    let config = Config::parse("config.json", config).map_err(|finding| vec![finding])?;
    resolve(&spec, &config, &OpSet::builtin())
}

/// Formats a finding: the text it points at, and its message.
fn told(finding: &Finding) -> String {
    let at = finding.at.as_ref().map_or(String::new(), |at| {
        let text =
            at.source.text[at.start..at.end].split_whitespace().collect::<Vec<_>>().join(" ");
        format!("`{text}`: ")
    });
    let label =
        if finding.label.is_empty() { String::new() } else { format!(" ({})", finding.label) };
    let help = finding.help.as_ref().map_or(String::new(), |help| format!(" -> {help}"));
    format!("{at}{}{label}{help}", finding.message)
}

#[test]
fn a_hybrid_model_resolves() {
    let (model, warnings) = run(SPEC, CONFIG).unwrap();
    assert_eq!(warnings, []);
    let graph = &model.graph;
    assert_eq!((model.vocab, model.context, graph.layers.len()), (20, Some(64), 4));
    let kinds: Vec<&str> = graph.layers.iter().map(|layer| layer.kind.as_str()).collect();
    assert_eq!(kinds, ["conv", "full", "conv", "full"]);
    assert_eq!(graph.layers[3].prefix, "net.layers.3");

    let states: Vec<_> =
        graph.states.iter().map(|s| (s.name.as_str(), s.layer, s.kind, s.window)).collect();
    let conv = StateKind::Conv;
    let attention = StateKind::Attention;
    assert_eq!(
        states,
        [
            ("past", 0, conv, None),
            ("kv", 1, attention, None),
            ("past", 2, conv, None),
            ("kv", 3, attention, Some(5))
        ]
    );
    let names: Vec<&str> = graph.weights.iter().map(|weight| weight.name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "net.embed.weight",
            "net.layers.0.norm1.weight",
            "net.layers.0.mix.in.weight",
            "net.layers.0.mix.conv.weight"
        ]
    );
    let conv = &graph.weights[3];
    assert_eq!(conv.shape, [8, 1, 3]);
    assert_eq!(graph.tied["head.weight"], "net.embed.weight");
    assert!(!names.contains(&"head.weight"));

    let taps: Vec<&str> = graph.values.iter().filter_map(|value| value.tap.as_deref()).collect();
    assert_eq!(
        taps[..6],
        [
            "net.embed",
            "net.layers.0.norm1",
            "net.layers.0.mix.in",
            "net.layers.0.mix.conv",
            "net.layers.0.mix.out",
            "net.layers.0"
        ]
    );
    assert_eq!(taps[taps.len() - 2..], ["net.norm", "head"]);
    let head: Vec<&str> = graph.nodes[graph.head..].iter().map(|node| node.op.as_str()).collect();
    assert_eq!(head, ["rms_norm", "linear"]);
    assert_eq!(graph.nodes.len(), graph.layers.last().unwrap().nodes.1 + 2);
    let split = graph.nodes.iter().find(|node| node.op == "split").unwrap();
    assert_eq!(split.attrs["sizes"].to_string(), "[8, 8]");
    assert_eq!(graph.values[split.outputs[1].0].name, "u");
    assert_eq!(graph.nodes.iter().filter(|node| node.op == "scale").count(), 2);
}

#[test]
fn texts_are_held_to_the_words_of_the_spec() {
    // Words of programs; one finding for a word, and none for what follows from it.
    let kinds = r#""layer_types": ["conv", "ful", "ful", "full"]"#;
    assert_eq!(
        told_of(SPEC, kinds),
        [
            "`\"ful\"`: `layer_types[1]` is the unknown word `ful` (expected `conv` or `full`) -> did you mean `full`?"
        ]
    );
    for (list, count) in
        [(r#""conv", "full", "conv", "full", "full""#, "5 items"), (r#""conv""#, "1 item")]
    {
        let told = told_of(SPEC, &format!(r#""layer_types": [{list}]"#));
        let expected = format!(
            "`[{list}]`: `layer_types` has {count} for 4 layers (expected one item per layer) -> correct the list, or the number of layers"
        );
        assert_eq!(told[0], expected);
    }
    let told = told_of(SPEC, r#""layer_types": ["conv", 7, "conv", "full"]"#);
    assert_eq!(told[0], "`7`: `layer_types[1]` is an integer (expected `conv` or `full`, found 7)");

    // Each way of comparing: what leads from the key to the comparison, then a word that is known only
    // as the default, and one that nobody knows.
    let ways = [
        ("= 1.0 if mode == 'fine' else 2.0", ""),
        ("= 1.0 if mode in ['fine'] else 2.0", ""),
        ("= 1.0 if not 'fine' != mode else 2.0", ""),
        ("= 1.0 if [m for m in listed(mode, 3)][1] == 'fine' else 2.0", ""),
        ("= 1.0 if config('mode', 'rough') == 'fine' else 2.0", ""),
        ("= 1.0", "scale(x, 1.0 if mode == 'fine' else 2.0)"),
        ("= 1.0", "by_word(x, mode)"),
        ("= 1.0", "by_word(x, word=mode)"),
        ("= 1.0", "by_default(x)"),
        ("= 1.0", "by_local(x)"),
    ];
    let functions = "functions:
  by_word(x, word): |
    return scale(x, 1.0 if word == 'fine' else 2.0)
  by_default(x, word=mode): |
    return by_word(x, word)
  by_local(x): |
    word = mode
    return by_word(x, word)
";
    for (dim, call) in ways {
        let call = if call.is_empty() { "scale(x, factor)" } else { call };
        let spec = SPEC
            .replace(
                "  reach:  [reach",
                &format!("  mode: [mode, = 'rough']\n  factor: \"{dim}\"\n  reach:  [reach"),
            )
            .replace("functions:\n", functions)
            .replace(
                "return x + mix(norm(x, norm1))",
                &format!("return {call} + mix(norm(x, norm1))"),
            );
        let none: [String; 0] = [];
        assert_eq!(told_of_mode(&spec, "fine"), none, "{dim} {call}");
        assert_eq!(told_of_mode(&spec, "rough"), none, "{dim} {call}");
        assert_eq!(
            told_of_mode(&spec, "fin"),
            [
                "`\"fin\"`: `mode` is the unknown word `fin` (expected `fine` or `rough`) -> did you mean `fine`?"
            ],
            "{dim} {call}"
        );
    }
}

fn told_of_mode(spec: &str, word: &str) -> Vec<String> {
    let mut told = told_of(spec, &format!(r#""mode": "{word}""#));
    told.retain(|told| !told.contains("never used"));
    told
}

fn told_of(spec: &str, more: &str) -> Vec<String> {
    let config = CONFIG.replacen('{', &format!("{{{more}, "), 1);
    match run(spec, &config) {
        Ok((_, warnings)) => warnings.iter().map(told).collect(),
        Err(findings) => findings.iter().map(told).collect(),
    }
}

/// Changes of the spec, and what is told about each.
const BAD_SPECS: [(&str, &str, &str); 26] = [
    (
        "rms_norm(x, weight",
        "rms_nrom(x, weight",
        ": there is no op or function `rms_nrom` -> did you mean `rms_norm`?",
    ),
    (
        "norm(x, norm1)) * 0.5",
        "nrm(x, norm1)) * 0.5",
        ": there is no op or function `nrm` -> did you mean `norm`?",
    ),
    (
        "return rms_norm(x, weight, 1e-5)",
        "return norm(x, weight)",
        "`norm(x, weight)`: functions call each other in a circle (`norm` calls `norm`) -> programs are straight lines",
    ),
    ("mix(norm(x, norm1))", "mix(norm(x))", ": `norm` is not given `weight` (`norm(x, weight)`)"),
    (
        "mix(norm(x, norm1))",
        "mix(norm(x, norm1, 3))",
        ": `norm` is given 3 arguments and takes 2 (`norm(x, weight)`)",
    ),
    (
        "window=window)",
        "windw=window)",
        ": `attend` has no parameter `windw` (`attend(q, k, v, state, scale, window=null, softcap=null, sinks=null, softmax='f32', alibi=null, scores='rounded', sink_form='column', values='own', salience=null, salience_bias=false, keep=null, chunked=false, mask='causal', selected=null, block=1, relative=null, query_sinks=null)`) -> did you mean `window`?",
    ),
    ("b * u", "b * x2", ": there is no dim or variable `x2` -> did you mean `x`?"),
    ("b * u", "b * net.y", ": `net.y` is a path (expected a number or a text)"),
    (
        "attend(q, k, v",
        "attend(q, kk, v",
        ": there is no value `kk` (`k` of `attend` is a value) -> did you mean `k`?",
    ),
    (
        "b * u",
        "b * heads(u, heads)",
        ": the two sides differ in shape ([8] and [2, 4]) -> `b` is [8] from `split(linear(x, mix.in, 2 * hidden), 2)` (made_up.yaml:23); `heads` is [2, 4] from `heads(u, heads)` (made_up.yaml:24)",
    ),
    (
        "width - 1]",
        "width]",
        ": `conv` of the state `past` does not fit what `causal_conv` keeps (declared as [8, 3], kept are [8, 2])",
    ),
    (
        "width, past)",
        "width, kv)",
        ": `causal_conv` needs a state of kind `conv`, and `kv` is of kind `attention`",
    ),
    (
        "width, past)",
        "width, pst)",
        ": `state` of `causal_conv` is a state (there is no state `pst`) -> did you mean `past`?",
    ),
    ("b, u = split", "b, u, w = split", ": 2 results are assigned to 3 names (this gives 2)"),
    (
        "2 * hidden), 2)",
        "2 * hidden), 3)",
        ": 16 numbers do not split into 3 equal parts (`linear` is [16])",
    ),
    ("kind: kinds[i]", "kind: kinds[i + 1]", ": the index 4 is out of range (there are 4 items)"),
    (
        "else 'full' for",
        "else 'ful' for",
        ": no program is for layers of kind `ful` (`config.json` has layers of that kind) -> did you mean `full`?",
    ),
    (
        "head, vocab, tied",
        "head, vocab - 1, tied",
        ": the weight `net.embed.weight` is used with two shapes ([19, 8] here and [20, 8] before)",
    ),
    (
        "vocab:  vocab_size",
        "vocab:  vocab_size\n  input_vocab: = 19",
        ": `input_vocab` is 19 (expected at least `vocab`, which is 20)",
    ),
    (
        "size:   = hidden // heads",
        "size:   = width * size",
        ": the dim `size` is computed from itself (by way of `size`)",
    ),
    (
        "size:   = hidden // heads",
        "size:   = hidden // head",
        ": there is no dim or variable `head` -> did you mean `heads`?",
    ),
    (
        "size:   = hidden // heads",
        "size:   = hidden // num_heads",
        ": there is no dim or variable `num_heads`",
    ),
    (
        "dtype: activation }\n  past",
        "dtype: bf17 }\n  past",
        ": there is no dtype `bf17` -> known are `activation`, `f32`, `bf16`, `f16`",
    ),
    (
        "rope(heads(linear(x, look.q",
        "rope(heads(linear(net.a, look.q",
        "`net.a`: there is no value `net.a` (`x` of `linear` is a value)",
    ),
    (
        "x = layers(embed",
        "x = layer(embed",
        ": there is no op or function `layer` -> did you mean `layers`?",
    ),
    (
        "norm(x, net.norm), head",
        "tokens, head",
        ": `x` of `linear` is a value (these are the token ids) -> only `embed` takes `tokens`",
    ),
];

#[test]
fn bad_specs_are_told_what_is_wrong() {
    for (from, to, expected) in BAD_SPECS {
        assert!(SPEC.contains(from), "{from}");
        let findings = run(&SPEC.replace(from, to), CONFIG).unwrap_err();
        let all: Vec<String> =
            findings.iter().filter(|f| f.severity == Severity::Error).map(told).collect();
        assert!(all.iter().any(|one| one.contains(expected)), "{to}: {all:#?}");
    }
}

#[test]
fn rows_stand_for_the_embedding_and_behind_the_first_layers() {
    let with = |layers: &str| {
        SPEC.replace("kind: kinds[i]\n", &format!("kind: kinds[i]\n  beside: {layers}\n"))
    };
    let (model, _) = run(&with("layers - 2"), CONFIG).unwrap();
    assert_eq!(model.graph.beside, 2);
    let (embedding, width) = model.embedding().unwrap();
    assert_eq!(model.graph.values[embedding.0].tap.as_deref(), Some("net.embed"));
    assert_eq!(model.graph.values[embedding.0].shape, [width]);
    let output = model.graph.layer_output(1).unwrap();
    assert_eq!(model.graph.values[output.0].tap.as_deref(), Some("net.layers.1"));
    assert_eq!(run(SPEC, CONFIG).unwrap().0.graph.beside, 0);
    for wrong in ["5", "0 - 1", "1.5"] {
        let findings = run(&with(wrong), CONFIG).unwrap_err();
        let told = |text: &str| findings.iter().any(|finding| finding.label.contains(text));
        assert!(told("0 to 4"), "{wrong}: {findings:?}");
    }
}

#[test]
fn a_model_takes_what_the_last_layer_carries() {
    let spec = SPEC
        .replace("kind: kinds[i]\n", "kind: kinds[i]\n  carry: [seen]\n")
        .replace("mix(norm(x, norm1))\n", "mix(norm(x, norm1)), x\n")
        .replace("x = layers(", "x, seen = layers(")
        .replace("norm(x, net.norm)", "norm(x + seen, net.norm)");
    let (model, _) = run(&spec, CONFIG).unwrap();
    let graph = &model.graph;
    let result = |layer: usize| graph.nodes[graph.layers[layer].nodes.1 - 1].outputs[0];
    // The last layer leaves what the one before it carries: its own x.
    assert_eq!(graph.nodes[graph.head].inputs, [result(3), result(1)]);
    let more = spec.replace("x, seen =", "x, a, b =");
    let nothing = SPEC.replace("x = layers(", "x, seen = layers(");
    for (spec, gives) in [(more, "2 results"), (nothing, "1 results")] {
        let findings = run(&spec, CONFIG).unwrap_err();
        assert!(findings.iter().any(|finding| finding.message.contains(gives)), "{findings:?}");
    }
}

#[test]
fn bad_configs_are_told_what_is_wrong() {
    for (from, to, expected) in [
        (
            "\"vocab_size\": 20, ",
            "",
            ": `config.json` has no key `vocab_size` (`vocab` is read from here)",
        ),
        (
            "hidden_size",
            "hiden_size",
            "`config.json` has no key `hidden_size` (`hidden` is read from here) -> the config has `hiden_size`",
        ),
        (
            "\"num_layers\": 4",
            "\"num_layers\": \"4\"",
            "`config.json`: the key `num_layers` is not an integer (expected an integer above 0, found the text '4')",
        ),
        (
            "\"num_layers\": 4",
            "\"num_layers\": 4000000000",
            "`config.json`: the key `num_layers` is 4000000000 (at most 4096 are allowed)",
        ),
        (
            "\"num_layers\": 4",
            "\"num_layers\": -1",
            "`config.json`: the key `num_layers` is out of range (expected an integer above 0, found -1)",
        ),
        (
            "\"hidden_size\": 8",
            "\"hidden_size\": \"8\"",
            "`config.json`: the key `hidden_size` is not an integer",
        ),
        (
            "\"hidden_size\": 8",
            "\"hidden_size\": 0",
            "`config.json`: the key `hidden_size` is 0 (expected at least 1)",
        ),
        (
            "\"hidden_size\": 8",
            "\"hidden_size\": 268435456",
            "this is 536870912, at most 268435456 is allowed",
        ),
        (
            "\"reach\": 5",
            "\"reach\": \"5\"",
            "`window` of `attend` is an integer above 0 (expected an integer above 0, found the text '5')",
        ),
        (
            "\"reach\": 5",
            "\"kernel\": 2.5",
            "`width` of `causal_conv` is an integer above 0 (expected an integer above 0, found 2.5) -> it is the key `kernel` of `config.json`",
        ),
    ] {
        assert!(CONFIG.contains(from), "{from}");
        let findings = run(SPEC, &CONFIG.replace(from, to)).unwrap_err();
        let all: Vec<String> = findings.iter().map(told).collect();
        assert!(all.iter().any(|one| one.contains(expected)), "{to}: {all:#?}");
    }
}

#[test]
fn several_faults_come_at_once_and_each_once() {
    let spec = SPEC
        .replace("b * u", "b * w")
        .replace("size ** -0.5", "sise ** -0.5")
        .replace("dtype: activation }\nfun", "dtype: f17 }\nfun");
    let findings = run(&spec, CONFIG).unwrap_err();
    let all: Vec<String> = findings.iter().map(|finding| finding.message.clone()).collect();
    assert_eq!(
        all,
        [
            "there is no dtype `f17`",
            "there is no dim or variable `w`",
            "there is no dim or variable `sise`"
        ]
    );
}

#[test]
fn what_is_not_used_is_a_warning() {
    let spec = SPEC.replace("  reach:  [reach", "  spare: [spare, = 3]\n  reach:  [reach");
    let config =
        CONFIG.replace("\"reach\": 5", "\"reach\": 5, \"other\": {\"a\": 1}, \"use_cache\": true");
    let (_, warnings) = run(&spec, &config).unwrap();
    let all: Vec<String> = warnings.iter().map(|finding| finding.message.clone()).collect();
    assert_eq!(
        all,
        ["the dim `spare` is never used", "`config.json`: nothing reads the key `other`"]
    );
}

#[test]
fn a_state_in_another_dtype_than_its_input_is_refused() {
    let spec = SPEC.replace("width - 1], dtype: activation", "width - 1], dtype: bf16");
    let (model, _) = run(&spec, CONFIG).unwrap();
    assert_eq!(model.graph.states[0].dtype, DtypeRule::Fixed(Dtype::Bf16));
    assert_eq!(model.check_dtypes(Dtype::Bf16), []);
    let findings = model.check_dtypes(Dtype::F16);
    assert_eq!(findings.len(), 1);
    assert_eq!(
        findings[0].message,
        "state `past` of `conv` layers is kept in bf16, but `causal_conv` is fed f16 values"
    );
    assert!(findings[0].label.ends_with("made_up.yaml:24 needs f16 here"), "{}", findings[0].label);
    assert_eq!(told(&findings[0])[..6], *"`bf16`");
    assert_eq!(
        findings[0].help.as_deref(),
        Some(
            "declare `dtype: activation`, or run with the option `dtype bf16`; the option `allow-dtype-mismatch` of `parity check` runs it anyway"
        )
    );
    let spec = SPEC.replace("b * u,", "cast(b * u, 'f32'),");
    let (model, _) = run(&spec, CONFIG).unwrap();
    assert!(
        model.check_dtypes(Dtype::Bf16)[0]
            .help
            .as_ref()
            .unwrap()
            .starts_with("declare `dtype: f32`;")
    );
    assert_eq!(model.check_dtypes(Dtype::F32), []);
}

#[test]
fn checkpoints_are_checked() {
    let (model, _) = run(SPEC, CONFIG).unwrap();
    let good: BTreeMap<String, Vec<usize>> = model
        .graph
        .weights
        .iter()
        .map(|weight| (weight.name.clone(), weight.shape.clone()))
        .collect();
    assert_eq!(crate::check::check_weights(&model, &good), []);

    let mut bad = good.clone();
    for i in 0..4 {
        let norm = bad.remove(&format!("net.layers.{i}.norm1.weight")).unwrap();
        bad.insert(format!("net.layers.{i}.norm_1.weight"), norm);
        bad.insert(format!("net.layers.{i}.rotary.inv_freq"), vec![2]);
    }
    bad.insert("net.layers.1.look.q.weight".into(), vec![8, 9]);
    bad.insert("net.layers.3.look.q.weight".into(), vec![8, 9]);
    bad.insert("head.weight".into(), vec![20, 8]);
    let findings = crate::check::check_weights(&model, &bad);
    let all: Vec<String> = findings.iter().map(told).collect();
    assert_eq!(
        all,
        [
            "`norm1`: the checkpoint has no tensor `net.layers.{0..3}.norm1.weight` (4 tensors) (named here, expected as [8]) \
             -> it has `net.layers.0.norm_1.weight`, which nothing uses; rename it here, or add a rule to `weights:`",
            "`look.q`: the tensor `net.layers.{1,3}.look.q.weight` (2 tensors) has the shape [8, 9] (the spec makes it [8, 8]) \
             -> correct the sizes of this call, or the dims they are made of",
            "the checkpoint stores `head.weight`, which the config ties to `net.embed.weight` \
             -> the stored tensor is passed over; if the two differ, the config is wrong about the tie",
            "nothing uses the tensor `net.layers.{0..3}.norm_1.weight` (4 tensors) of the checkpoint \
             -> use it in the spec of `made_up`, or list it under `ignore: weights:`",
            "nothing uses the tensor `net.layers.{0..3}.rotary.inv_freq` (4 tensors) of the checkpoint \
             -> use it in the spec of `made_up`, or list it under `ignore: weights:`",
        ]
    );
    assert_eq!(findings[2].severity, Severity::Warning);
}

#[test]
fn weight_rules_are_read_and_checked() {
    let rules = "weights:\n  - { disk: 'net.layers.{i}.mix.both', weight: 'net.layers.{i}.mix.{in|out}.weight', do: ['split(0, [2 * hidden, hidden])'] }\n";
    let spec = format!("{SPEC}{rules}");
    let (model, _) = run(&spec, CONFIG).unwrap();
    assert_eq!(model.rules.len(), 2, "its own, and that for names without their beginning");
    let mut disk: BTreeMap<String, Vec<usize>> = model
        .graph
        .weights
        .iter()
        .map(|weight| (weight.name.clone(), weight.shape.clone()))
        .collect();
    for i in [0, 2] {
        disk.remove(&format!("net.layers.{i}.mix.in.weight"));
        disk.remove(&format!("net.layers.{i}.mix.out.weight"));
        disk.insert(format!("net.layers.{i}.mix.both"), vec![24, 8]);
    }
    assert_eq!(crate::check::check_weights(&model, &disk), []);
    run(&spec.replace("do: ['split", "do: ['reverse(0)', 'split"), CONFIG).unwrap();
    let findings = run(&spec.replace("split(0, [2", "splt(0, [2"), CONFIG).unwrap_err();
    assert!(
        told(&findings[0]).contains("there is no step `splt` -> did you mean `split`?"),
        "{findings:?}"
    );
}

#[test]
fn functions_cannot_multiply_without_end() {
    let mut spec = SPEC.to_owned();
    let functions: String = std::iter::once("  f0(x): |\n    return x\n".to_owned())
        .chain(
            (1..30).map(|n: usize| format!("  f{n}(x): |\n    return f{}(f{}(x))\n", n - 1, n - 1)),
        )
        .collect();
    spec = spec
        .replace("layers:\n  prefix", &format!("{functions}layers:\n  prefix"))
        .replace("mix(norm(x, norm1))", "f29(x)");
    let findings = run(&spec, CONFIG).unwrap_err();
    assert!(
        findings.iter().any(|finding| finding.message.contains("too long")),
        "{:?}",
        findings.iter().map(told).collect::<Vec<_>>()
    );
}

fn program() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "x", "hidden", "heads", "net.w", "past", "kv", "main", "2", "0.5", "null", "'half'",
        "kinds", "[1, 2]", "i", "-1", "none", "vocab",
    ]);
    word.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
        let names: Vec<String> =
            OpSet::builtin().names().map(str::to_owned).chain(["norm", "mix", "look", "layers"].map(String::from)).collect();
        let arg = prop_oneof![
            4 => inner.clone(),
            1 => (prop::sample::select(vec!["bias", "eps", "scale", "window", "each"]), inner.clone())
                .prop_map(|(name, value)| format!("{name}={value}")),
        ];
        prop_oneof![
            3 => (prop::sample::select(names), prop::collection::vec(arg, 0..6))
                .prop_map(|(name, args)| format!("{name}({})", args.join(", "))),
            1 => (inner.clone(), prop::sample::select(vec!["+", "-", "*", "/", "**"]), inner.clone())
                .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
        ]
    })
}

proptest! {
    #[test]
    fn no_program_panics(layer in program(), model in program()) {
        let text = SPEC.replace("return x + mix(norm(x, norm1))", &format!("y = {layer}\n    return {layer}"))
            .replace("norm(x, net.norm), head", &format!("{model}, head"));
        let _unused = run(&text, CONFIG);
    }
}
