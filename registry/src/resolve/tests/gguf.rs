//! The `gguf:` section of the made-up hybrid.

use super::*;

/// Builds `SPEC` with a `gguf:` section that has `lines` in its `metadata:`.
fn with_gguf(lines: &str) -> String {
    let section = "
gguf:
  arch: other
  pre: \"= 'bpe' if vocab > 5 else null\"
  metadata:
    block_count: layers
LINES  weights:
    token_embd: net.embed
    norm: net.norm
    blk.{n}.first_norm: { weight: \"net.layers.{n}.norm1\", layers: layers, first: \"0\", do: add(n) }
    blk.{i}.ssm_conv1d.weight: { tensor: \"net.layers.{i}.mix.conv.weight\", do: squeeze(1), type: f32 }
    blk.{i}.wide_{in|out}: { weight: \"net.layers.{i}.mix.{in|out}\", when: hidden > 8 }
    blk.{i}.mix_{in|out}: { weight: \"net.layers.{i}.mix.{in|out}\", when: hidden == 8 }
  tensors:
    factors.weight: \"[main.theta ** (i / size) for i in range(2)]\"
    none.weight: null
    blk.{i}.ones.weight: \"[1, 1]\"
  scalars:
    xielu.beta: net.layers.{i}.look.q.weight
  assumes:
    the width is 8: hidden == 8
    nothing slides: reach == null
  drop: [\"*.look.{k|v|o}.weight\"]
";
    format!("{SPEC}{}", section.replace("LINES", lines))
}

#[test]
fn a_model_says_what_it_is_as_a_file() {
    let lines = "    rope.freq_base: main.theta
    rope.scaling: null if main.kind == 'default' else main.factor
    rope.original: main.original
    lists.kinds: \"[k == 'conv' for k in kinds]\"
    general.note: \"'text'\"
";
    let (model, warnings) = run(&with_gguf(lines), CONFIG).unwrap();
    assert_eq!(warnings, []);
    let gguf = model.gguf.unwrap();
    assert_eq!((gguf.arch.as_str(), gguf.pre.as_deref()), ("other", Some("bpe")));
    let metadata: Vec<String> =
        gguf.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        metadata,
        [
            "other.block_count=4",
            "other.rope.freq_base=100.0",
            "other.rope.original=64",
            "other.lists.kinds=[true, false, true, false]",
            "general.note='text'"
        ]
    );
    let ones = (0..4).map(|n| (format!("blk.{n}.ones.weight"), vec![1.0, 1.0]));
    let factors = ("factors.weight".to_owned(), vec![1.0, 100_f32.sqrt().sqrt()]);
    assert_eq!(gguf.tensors, [factors].into_iter().chain(ones).collect::<Vec<_>>());
    assert_eq!(gguf.doubts, ["nothing slides"]);
    let groups = gguf.groups(&model.graph.weights).unwrap();
    let names: Vec<&str> = groups
        .iter()
        .flat_map(|group| &group.tensors)
        .map(|(name, _)| name.as_str())
        .filter(|name| !name.contains("blk.2") && !name.contains("blk.3"))
        .collect();
    assert_eq!(
        names,
        [
            "token_embd.weight",
            "blk.0.first_norm.weight",
            "blk.0.mix_in.weight",
            "blk.0.ssm_conv1d.weight",
            "blk.0.mix_out.weight",
            "blk.1.first_norm.weight",
            "norm.weight"
        ]
    );
    assert_eq!(groups[3].ty.as_deref(), Some("f32"));
    assert_ne!(gguf.rules[2].rule.steps, gguf.rules[3].rule.steps, "steps with a layer's number");
    let scalars = gguf.scalar_weights(&model.graph.weights);
    let scalars: Vec<_> = scalars
        .into_iter()
        .map(|(key, places)| (key, places.len(), &model.graph.weights[places[1]].name))
        .collect();
    assert_eq!(scalars, [("xielu.beta", 2, &"net.layers.3.look.q.weight".to_owned())]);
}

#[test]
fn an_entry_with_a_condition_of_layers_counts_in_those_layers() {
    let general = "    blk.{i}.mix_{in|out}: {";
    let late =
        "    blk.{i}.late_{in|out}: { weight: \"net.layers.{i}.mix.{in|out}\", when: i > 1 }\n";
    let text = with_gguf("").replace(general, &format!("{late}{general}"));
    let (model, warnings) = run(&text, CONFIG).unwrap();
    assert_eq!(warnings, []);
    let groups = model.gguf.unwrap().groups(&model.graph.weights).unwrap();
    let tensors = groups.iter().flat_map(|group| &group.tensors).map(|(name, _)| name.as_str());
    let names: Vec<&str> = tensors.filter(|name| name.ends_with("_in.weight")).collect();
    assert_eq!(names, ["blk.0.mix_in.weight", "blk.2.late_in.weight"]);
}

#[test]
fn a_faulty_condition_of_layers_is_named() {
    let text = with_gguf("").replace("when: hidden > 8", "when: \"kinds[i + 9] == 'conv'\"");
    let findings = run(&text, CONFIG).unwrap_err();
    let told: Vec<String> = findings.iter().map(told).collect();
    assert_eq!(told, ["`kinds[i + 9]`: the index 9 is out of range (there are 4 items)"]);
}

#[test]
fn faulty_keys_of_a_file_are_named() {
    for (line, expected) in [
        ("x: main.thetta", "`thetta`: there is no member `thetta` -> did you mean `theta`?"),
        (
            "x: net.y",
            "`net.y`: `net.y` is a path, and a number or text is needed here -> a config key in an expression is written `config('net.y')`",
        ),
        (
            "x: \"[1, 'a']\"",
            "`[1, 'a']`: a key cannot hold this list: it is empty, or its items differ in kind -> a key holds a number, a boolean, text, or a list of one of them",
        ),
        (
            "x: main",
            "`main`: a key cannot hold a map -> a key holds a number, a boolean, text, or a list of one of them",
        ),
    ] {
        let findings = run(&with_gguf(&format!("    {line}\n")), CONFIG).unwrap_err();
        let told: Vec<String> = findings.iter().map(told).collect();
        assert_eq!(told, [expected], "{line}");
    }
}
