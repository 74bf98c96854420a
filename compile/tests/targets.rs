//! Code of whole specs: goldens, templates that nothing uses, and a target of a handful of ops.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onboard_compile::{Code, Target, compile};
use registry::diag::Finding;
use registry::library::Library;
use registry::ops::OpSet;

fn torch() -> Target {
    Target::builtin("torch").expect("it can be read")
}

fn written(name: &str, target: &Target) -> Result<Code, Vec<Finding>> {
    let spec = Library::builtin().load(name, &[])?;
    compile(&spec, &OpSet::builtin(), target, &BTreeSet::new())
}

/// Compares code with the file of an earlier run; `UPDATE=1` renews it.
#[test]
fn code_is_as_before() {
    for name in ["llama", "lfm2", "mamba2"] {
        let code = written(name, &torch()).expect("it compiles");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.py"));
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(&path, &code.text).expect("it is written");
        }
        let golden = fs_err::read_to_string(&path).expect("a golden file");
        assert!(golden == code.text, "{name} differs from {}: UPDATE=1 renews it", path.display());
    }
}

#[test]
fn every_spec_compiles_and_every_template_is_used() {
    let target = torch();
    let (mut ops, mut helpers) = (BTreeSet::new(), BTreeSet::new());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../registry/specs");
    let paths = fs_err::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    for path in paths.collect::<BTreeSet<PathBuf>>() {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let code =
            written(&name, &target).unwrap_or_else(|all| panic!("{name}: {}", all[0].message));
        ops.extend(code.ops);
        helpers.extend(code.helpers);
    }
    // Ops that specs call under other names.
    let idle = ["gelu_tanh", "gelu_new", "gelu_fast", "quick_gelu"];
    let unused: Vec<&String> =
        target.ops.keys().filter(|op| !ops.contains(*op) && !idle.contains(&op.as_str())).collect();
    assert!(unused.is_empty(), "no spec uses the templates of {unused:?}");
    let helper_of = |name: &str| {
        name.trim_end_matches(|c: char| c.is_numeric()).trim_end_matches('_').to_owned()
    };
    let used: BTreeSet<String> = helpers.iter().map(|name| helper_of(name)).collect();
    let unused: Vec<&str> = target
        .templates
        .keys()
        .filter_map(|name| name.strip_prefix("helpers/"))
        .filter(|name| !used.contains(*name))
        .collect();
    assert!(unused.is_empty(), "no spec uses the helpers {unused:?}");
}

const SHEET: &str = "target: tiny\nabout: a test\nfile: \"{name}.txt\"\nlayout: python\nwidth: \"160\"\nstates: []\n";
const OPS: &str = "\
embed:
  gives: \"[d]\"
  modules: { W: \"table({{ n }}, {{ d }})\" }
  call: \"{{ W }}.rows({{ tokens }})\"
linear:
  gives: \"[out]\"
  modules: { W: \"matrix({{ x.size }}, {{ out }})\" }
  call: \"{{ W }}.times({{ x }})\"
";
const FILE: &str = "{% for class in classes + [model] %}class {{ class.name }}\n{{ class.init | join(\"\\n\") }}\n{% for method in class.methods %}{{ method.body | join(\"\\n\") }}\n{% endfor %}{% endfor %}";
const SPEC: &str = "\
spec: 1
name: small
matches: [SmallForCausalLM]
dims:
  hidden: hidden_size
  layers: num_layers
  vocab:  vocab_size
layers:
  prefix: model.layers.{i}
  \"*\": |
    return linear(x, mix, hidden)
model: |
  x = layers(embed(tokens, model.embed, vocab, hidden))
  return linear(x, head, vocab)
";

fn tiny(spec: &str) -> Result<Code, Vec<Finding>> {
    let target = Target::read(
        "tiny",
        &vec![("sheet.yaml", SHEET), ("ops/all.yaml", OPS), ("file.jinja", FILE)],
    )?;
    let mut library = Library::default();
    let name = library.add_text("small.yaml", spec);
    compile(&library.load(&name, &[])?, &OpSet::builtin(), &target, &BTreeSet::new())
}

#[test]
fn a_target_is_data() {
    let code = tiny(SPEC).expect("it compiles");
    assert!(code.text.contains("self.mix = matrix(config.hidden, config.hidden)"), "{}", code.text);
    assert!(code.text.contains("logits = self.head.times(x)"), "{}", code.text);
    assert_eq!(code.name, "small.txt");
}

#[test]
fn layers_that_run_several_times_share_modules() {
    let spec = SPEC
        .replace("layers.{i}", "layers.{place}")
        .replace("  \"*\":", "  each:\n    place: i % own\n    first: i < own\n  \"*\":")
        .replace("linear(x, mix, hidden)", "linear(x, mix, hidden) if first else x")
        .replace("num_layers", "num_layers\n  own: num_modules");
    let code = tiny(&spec).expect("it compiles");
    for part in [
        "nn.ModuleList([SmallLayer(config, place) for place in range(config.own)])",
        "if any(layer < config.own for layer in range(config.layers) if layer % config.own == place):",
        "place = layer % self.own\n            x = self.layers[place](x, layer)",
        "first = layer < self.own\n",
    ] {
        assert!(code.text.contains(part), "{part}: {}", code.text);
    }
}

#[test]
fn layers_take_modules_of_another_layer() {
    let spec = SPEC
        .replace("  \"*\":", "  each:\n    owner: i // 2 * 2\n  \"*\":")
        .replace("linear(x, mix,", "linear(x, fill('model.layers.{}.mix.{}', owner, i),");
    let code = tiny(&spec).expect("it compiles");
    for part in [
        "self.mix = nn.ModuleDict({str(n): matrix(config.hidden, config.hidden) for n in layers})",
        "block.mix = self.layers[layer // 2 * 2].mix",
    ] {
        assert!(code.text.contains(part), "{part}: {}", code.text);
    }
}

#[test]
fn an_op_that_a_target_lacks_is_named_with_its_place() {
    let findings =
        tiny(&SPEC.replace("linear(x, mix, hidden)", "silu(x)")).expect_err("it lacks one");
    assert_eq!(findings[0].message, "the target `tiny` has no op `silu`");
    assert_eq!(findings[0].at.as_ref().expect("a place").line(), 11);
}
