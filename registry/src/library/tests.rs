use proptest::prelude::*;

use super::*;
use crate::render::{RenderStyle, render};
use crate::syntax::Expr;

#[test]
fn every_builtin_spec_loads() {
    let library = Library::builtin();
    let mut all = Vec::new();
    for name in library.names() {
        match library.load(name, &[]) {
            Ok(spec) => assert_eq!(Path::new(&spec.source.path).file_stem().unwrap(), name),
            Err(findings) => all.extend(findings),
        }
    }
    assert!(all.is_empty(), "{}", render(&all, RenderStyle::Plain));
}

const BASE: &str = "\
spec: 1
name: base
matches: [Base, Other]
dims:
  hidden: hidden_size
  layers: [num_layers, n_layer, = 2]
  ffn: = 4 * hidden
rope:
  main: { dim: hidden, theta: [theta, = 1e4], parameters: = null, partial: 0.5 }
states:
  kv: { kind: attention, k: [hidden], v: [hidden], dtype: activation }
  conv: { kind: conv, shape: [hidden, 2], dtype: activation }
functions:
  mlp(x): |
    return linear(x, mlp.up, ffn)
layers:
  prefix: h.{i}
  each:
    window: null
    wide: i % 2 == 0
  a|b: |
    return mlp(x)
  '*': |
    return x
model: |
  return layers(embed(tokens, wte, 8, hidden))
ignore:
  weights: [h.*.mask]
  config: [dropout]
weights:
  - { disk: 'x.{i}', weight: 'h.{i}', do: [transpose, split(0, 3)] }
";

fn library(specs: &[(&str, &str)], libs: &[(&str, &str)]) -> Library {
    let mut library = Library::default();
    library.add_text("base.yaml", BASE);
    for (path, text) in specs {
        library.add_text(path, text);
    }
    for (name, text) in libs {
        library.libs.insert((*name).into(), SpecFile::new(&format!("lib/{name}.yaml"), text));
    }
    library
}

fn keys<T>(map: &indexmap::IndexMap<String, T>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

/// Formats every finding as `file:line:column message (label)`.
fn findings(library: &Library, name: &str, sets: &[&str]) -> Vec<String> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let refusals = library.load(name, &sets).err().unwrap_or_default();
    refusals
        .iter()
        .map(|finding| {
            let label = match finding.label.as_str() {
                "" => String::new(),
                label => format!(" ({label})"),
            };
            let message = &finding.message;
            match &finding.at {
                Some(at) => {
                    let path = &at.source.path;
                    format!("{path}:{}:{} {message}{label}", at.line(), at.column())
                }
                None => format!("{message}{label}"),
            }
        })
        .collect()
}

#[test]
fn a_whole_spec() {
    let spec = library(&[], &[]).load("base", &[]).unwrap();
    assert_eq!(spec.matches.len(), 2);
    assert_eq!(spec.dims["layers"].sources.len(), 3);
    assert_eq!(spec.states["conv"].parts[0].name.name, "conv");
    assert_eq!(spec.states["kv"].parts.len(), 2);
    assert_eq!(spec.states["conv"].dtype.at.line(), 12);
    let layers = spec.layers.unwrap();
    assert_eq!(keys(&layers.programs), ["a", "b", "*"]);
    assert_eq!(keys(&layers.each), ["window", "wide"]);
    assert_eq!(spec.weights[0].steps.len(), 2);
    let result = &spec.functions["mlp"].program.result[0].at;
    assert_eq!((result.line(), result.column()), (15, 12));
}

#[test]
fn rules_of_a_function_file_come_last() {
    let child = "spec: 1\nname: child\nextends: base\nuse: names\n";
    let lib = "weights:\n  - { disk: 'old.{i}', weight: 'new.{i}' }\n";
    let library = library(&[("child.yaml", child)], &[("names", lib)]);
    let rules = library.load("child", &[]).unwrap().weights;
    let disks: Vec<&str> = rules.iter().map(|rule| rule.disk.name.as_str()).collect();
    assert_eq!(disks, ["x.{i}", "old.{i}"]);
}

#[test]
fn heads_contexts_and_kinds_have_dims_of_known_names() {
    let child = "\
spec: 1
name: child
extends: base
dims: { context: n_ctx, layer_types: kinds }
rope:
  main: { dim: ~ }
";
    let library = library(&[("child.yaml", child)], &[]);
    let text = |expr: &Expr| format!("{:?}", expr.kind);
    let base = library.load("base", &[]).unwrap();
    assert_eq!((&base.rope["main"].context, &base.layers.unwrap().kind), (&None, &None));
    let spec = library.load("child", &[]).unwrap();
    let table = &spec.rope["main"];
    assert!(text(&table.dim).contains("head_dim"), "{}", text(&table.dim));
    assert!(text(table.context.as_ref().unwrap()).contains("context"));
    assert!(text(spec.layers.unwrap().kind.as_ref().unwrap()).contains("layer_types"));
}

#[test]
fn a_child_overrides_by_name() {
    let child = "\
spec: 1
name: child
extends: base
use: glu
dims: { ffn: ~, extra: [key, = 1] }
states: { conv: ~ }
layers:
  each: { wide: ~, tall: i }
  b|c: |
    return glu(x)
ignore: { config: [other] }
weights: ~
";
    let lib = "functions:\n  glu(x): |\n    return x\n  mlp(x, y=1): |\n    return x\n";
    let library = library(&[("child.yaml", child)], &[("glu", lib)]);
    let spec = library.load("child", &[]).unwrap();
    assert_eq!(spec.name.name, "child");
    assert!(spec.matches.is_empty(), "matches are not inherited");
    assert_eq!(keys(&spec.dims), ["hidden", "layers", "extra"]);
    assert_eq!(keys(&spec.states), ["kv"]);
    let mut functions = keys(&spec.functions);
    functions.sort_unstable();
    assert_eq!(functions, ["glu", "mlp"]);
    assert_eq!(spec.functions["mlp"].params.len(), 2, "a used file overrides the parent");
    let layers = spec.layers.unwrap();
    assert_eq!(keys(&layers.each), ["window", "tall"]);
    assert_eq!(layers.prefix.at.source.path, "base.yaml");
    let paths = layers.programs.iter();
    let paths: Vec<_> =
        paths.map(|(kind, program)| format!("{kind} {}", program.program.at.source.path)).collect();
    assert_eq!(paths, ["a base.yaml", "b child.yaml", "* base.yaml", "c child.yaml"]);
    assert_eq!(spec.ignore.config[0].name, "other");
    assert_eq!(spec.ignore.weights[0].name, "h.*.mask");
    assert!(spec.weights.is_empty());
    assert_eq!(spec.uses[0].name, "glu");
}

#[test]
fn broken_families() {
    let library = library(
        &[
            ("a.yaml", "spec: 1\nname: a\nextends: b\n"),
            ("b.yaml", "spec: 1\nname: b\nextends: a\n"),
            ("c.yaml", "spec: 1\nname: c\nextends: bse\n"),
            (
                "d.yaml",
                "spec: 1\nname: d\nextends: base\nuse: [glue]\ndims: { fnn: ~ }\nstate: {}\n",
            ),
            ("e.yaml", "spec: 2\nname: e\nextends: base\n"),
            ("f.yaml", "name: f\n"),
            ("g.yaml", "- a\n"),
            ("h.yaml", "spec: 1\nname: h\nextends: base\nuse: bad\nmodel: ~\n"),
            ("i.yaml", "spec: 1\nname: i\nextends: base\nfunctions:\n  f(x): x\n  f(y): y\n"),
            (
                "j.yaml",
                "spec: 1\nname: j\nextends: bse\ndims:\n  gone: ~\n  ffn: 7\nstate: {}\nlayers: { each: { a: 1 + } }\n",
            ),
            (
                "k.yaml",
                "spec: 1\nname: k\nextends: base\ndims: &all\n  ffn: 7\n  wide: !!int ffn\nrope:\n  main: { dim: *all, thta: 1 }\n  near: { partial: 1 }\n",
            ),
            ("l.yaml", "spec: 1\nname: l\nextends: k\nstate: {}\n"),
        ],
        &[("glu", "functions: {}\n"), ("bad", "funtions: {}\n")],
    );
    for (name, want) in [
        ("a", vec!["b.yaml:3:10 `a` extends itself (a -> b -> a)"]),
        ("c", vec!["c.yaml:3:10 there is no spec `bse` to extend"]),
        (
            "d",
            vec![
                "d.yaml:4:7 there is no function file `glue`",
                "d.yaml:5:14 there is no inherited `fnn` to remove",
                "d.yaml:6:1 a spec has no key `state`",
            ],
        ),
        ("e", vec!["e.yaml:1:7 version `2` of the spec language is not known"]),
        (
            "f",
            vec![
                "f.yaml:1:1 a spec needs the key `spec`",
                "f.yaml:1:1 a spec needs the key `model`",
            ],
        ),
        ("g", vec!["g.yaml:1:1 a spec is a map of keys (found a list)"]),
        (
            "h",
            vec![
                "lib/bad.yaml:1:1 a function file has no key `funtions`",
                "h.yaml:1:1 a spec needs the key `model`",
            ],
        ),
        ("i", vec!["i.yaml:6:3 `f` stands twice"]),
        (
            "j",
            vec![
                "j.yaml:3:10 there is no spec `bse` to extend",
                "j.yaml:7:1 a spec has no key `state`",
                "j.yaml:6:8 `7` is not a config key",
                "j.yaml:8:25 syntax error (the text ends here; expected a value)",
            ],
        ),
        (
            "k",
            vec![
                "k.yaml:4:7 anchors and aliases are not read",
                "k.yaml:6:9 tags are not read",
                "k.yaml:8:16 anchors and aliases are not read",
                "k.yaml:5:8 `7` is not a config key",
                "k.yaml:9:3 a rope table needs the key `theta`",
            ],
        ),
        (
            "l",
            vec![
                "k.yaml:4:7 anchors and aliases are not read",
                "k.yaml:6:9 tags are not read",
                "k.yaml:8:16 anchors and aliases are not read",
                "l.yaml:4:1 a spec has no key `state`",
                "k.yaml:5:8 `7` is not a config key",
                "k.yaml:9:3 a rope table needs the key `theta`",
            ],
        ),
        ("bass", vec!["there is no spec `bass`"]),
    ] {
        assert_eq!(findings(&library, name, &[]), want, "{name}");
    }
    let refusals = library.load("c", &[]).unwrap_err();
    assert_eq!(refusals[0].help.as_deref(), Some("did you mean `base`?"));
}

#[test]
fn broken_entries() {
    for (from, to, want) in [
        ("= 4 * hidden", "4 * hidden", "7:8 `4 * hidden` is not a config key"),
        ("= 4 * hidden", "7", "7:8 `7` is not a config key"),
        ("= 4 * hidden", "[]", "7:8 expected a config key or `= expression` (found a list)"),
        ("n_layer, = 2", "= 2, n_layer", "6:29 this alternative is never reached"),
        ("ffn: =", "f.n: =", "7:3 `f.n` is not a name"),
        ("theta: [theta, = 1e4]", "thta: theta", "9:24 a rope table has no key `thta`"),
        ("kind: conv, shape", "kind: conv, dims", ""),
        ("k: [hidden], v: [hidden], ", "", "11:3 state `kv` has no shape"),
        ("dtype: activation }\n  conv", "}\n  conv", "11:3 a state needs the key `dtype`"),
        ("h.{i}", "h.i", "17:11 the prefix of layers has no `{i}`"),
        ("  mlp(x): |", "  mlp: |", "14:6 a function says its parameters"),
        (
            "linear(x, mlp.up",
            "linear(x mlp.up",
            "15:21 syntax error (found `mlp.up`; expected `,` or `)`)",
        ),
        (
            "  each:",
            "  eech:",
            "18:3 layers of kind `eech` have no program (found a map; expected the lines of a program)",
        ),
        ("  weights: [h", "  weight: [h", "28:3 `ignore` has no key `weight`"),
        ("disk: 'x.{i}'", "disc: x", "31:5 a weight rule needs the key `disk`"),
        ("name: base", "name: two words", "2:7 expected one word (found `two words`)"),
    ] {
        assert!(BASE.contains(from), "{from}");
        let mut library = Library::default();
        let name = library.add_text("t.yaml", &BASE.replacen(from, to, 1));
        let refusals = findings(&library, &name, &[]);
        if want.is_empty() {
            assert!(refusals.is_empty(), "{refusals:?}");
        } else {
            assert!(refusals.contains(&format!("t.yaml:{want}")), "{to}: {refusals:?}");
        }
    }
}

#[test]
fn overrides() {
    let library = library(&[], &[]);
    let sets = ["states.conv.dtype=bf16", "dims.layers=1e1", "layers.each.window=i + 1", "name= x"];
    let spec = library.load("base", &sets.map(String::from)).unwrap();
    assert_eq!(spec.states["conv"].dtype.name, "bf16");
    assert_eq!(spec.states["conv"].dtype.at.source.path, "the option `set states.conv.dtype=bf16`");
    assert_eq!(spec.states["conv"].dtype.at.text(), "bf16");
    assert_eq!(spec.dims["layers"].sources.len(), 1);
    for (set, want) in [
        ("states.conv.dtyp=f32", "the option `set states.conv.dtyp=f32`:1:13 conv has no `dtyp`"),
        ("stats.conv=1", "the option `set stats.conv=1`:1:1 the spec has no `stats`"),
        (
            "states.conv=1",
            "the option `set states.conv=1`:1:1 `states.conv` is a map (only a single value can be set)",
        ),
        (
            "states.conv.shape=1",
            "the option `set states.conv.shape=1`:1:1 `states.conv.shape` is a list (only a single value can be set)",
        ),
        (
            "states.conv.dtype.x=1",
            "the option `set states.conv.dtype.x=1`:1:1 `states.conv.dtype` has nothing inside it",
        ),
        ("functions.mlp=1", "the option `set functions.mlp=1`:1:1 a function cannot be set"),
        ("dims.layers", "the option `set dims.layers`:1:1 an override without a value"),
        (
            "dims.ffn=2 *",
            "the option `set dims.ffn=2 *`:1:13 syntax error (the text ends here; expected a value)",
        ),
        (
            "states.conv.dtype=&x",
            "the option `set states.conv.dtype=&x`:1:19 anchors and aliases are not read",
        ),
        (
            "states.conv.dtype=",
            "the option `set states.conv.dtype=`:1:19 expected one word (found nothing)",
        ),
        ("=", "the option `set =`:1:1 the spec has no ``"),
    ] {
        assert_eq!(findings(&library, "base", &[set]), [want], "{set}");
    }
}

#[test]
fn rope_tables_and_states_merge_by_key() {
    let child = "\
spec: 1
name: child
extends: base
rope: { main: { partial: 0.25, context: 64 } }
states:
  kv: { dtype: f32 }
  conv: { shape: [ffn, 2], layer: i }
";
    let library = library(&[("child.yaml", child)], &[]);
    assert_eq!(main_rope(&library, "base", &[]), (2, 1, Some("0.5".to_owned()), None));
    assert_eq!(
        main_rope(&library, "child", &[]),
        (2, 1, Some("0.25".to_owned()), Some("64".to_owned()))
    );
    let spec = library.load("child", &[]).unwrap();
    assert_eq!(spec.states["kv"].parts.len(), 2);
    assert_eq!(spec.states["kv"].dtype.name, "f32");
    assert_eq!(spec.states["conv"].dtype.name, "activation");
    assert!(spec.states["conv"].layer.is_some());

    assert_eq!(
        main_rope(&library, "base", &["rope.main.context=7"]),
        (2, 1, Some("0.5".to_owned()), Some("7".to_owned()))
    );
    assert_eq!(
        main_rope(&library, "base", &["rope={main: {partial: 1}}"]),
        (2, 1, Some("1".to_owned()), None)
    );
    assert_eq!(
        main_rope(&library, "base", &["rope.main={context: 7}"]),
        (2, 1, Some("0.5".to_owned()), Some("7".to_owned()))
    );
    assert_eq!(main_rope(&library, "base", &["rope.main.partial=~"]), (2, 1, None, None));
    assert_eq!(main_rope(&library, "base", &["rope.main.partial=null"]), (2, 1, None, None));
    for (set, want) in [
        ("rope.main.contxt=7", "the option `set rope.main.contxt=7`:1:11 main has no `contxt`"),
        ("rope.near.dim=7", "the option `set rope.near.dim=7`:1:6 rope has no `near`"),
        (
            "rope={near: {dim: 8}}",
            "the option `set rope={near: {dim: 8}}`:1:7 a rope table needs the key `theta`",
        ),
    ] {
        assert_eq!(findings(&library, "base", &[set]), [want], "{set}");
    }
    let long = library.load("base", &["states.conv.layer=i".to_owned()]).unwrap();
    assert!(long.states["conv"].layer.is_some());
}

fn main_rope(
    library: &Library,
    name: &str,
    sets: &[&str],
) -> (usize, usize, Option<String>, Option<String>) {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let main = library.load(name, &sets).unwrap().rope["main"].clone();
    let partial = main.partial.map(|expr| expr.at.text().to_owned());
    let context = main.context.map(|expr| expr.at.text().to_owned());
    (main.theta.len(), main.parameters.len(), partial, context)
}

#[test]
fn architectures() {
    let library = library(&[], &[]);
    assert_eq!(library.find_architecture("Other"), ["base"]);
    assert!(library.find_architecture("other").is_empty());
    assert_eq!(library.architectures().len(), 2);
    assert_eq!(library.get("base").unwrap().path, "base.yaml");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Specs with pieces cut out, doubled or replaced load or give findings
    /// that can be shown.
    #[test]
    fn any_mutated_spec_is_loaded_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12usize, prop::sample::select(vec![
            "", " ", "\n", ":", ": ", "[", "]", "{", "}", ",", "'", "\"", "|", "#", "=", "(", ")", "~",
            "\t", "é", "*", "-", "- ", "return ", "0", ".", "\u{1b}", "extends: t\n", "null",
        ])), 1..6),
        set in "[a-z]{0,6}(\\.[a-z]{1,6}){0,2}=?\\PC{0,6}",
    ) {
        let mut text = BASE.to_owned();
        for (place, cut, piece) in edits {
            let chars: Vec<char> = text.chars().collect();
            if chars.is_empty() { break; }
            let at = place.index(chars.len());
            let end = (at + cut).min(chars.len());
            text = chars[..at].iter().chain(piece.chars().collect::<Vec<_>>().iter())
                .chain(&chars[end..]).collect();
        }
        let mut library = Library::default();
        let name = library.add_text("t.yaml", &text);
        for sets in [vec![], vec![set]] {
            if let Err(findings) = library.load(&name, &sets) {
                prop_assert!(!findings.is_empty());
                prop_assert!(render(&findings, RenderStyle::Plain).ends_with('\n'));
            }
        }
    }
}

/// Checks that hostile specs take little time and memory: nothing grows faster than the file.
#[test]
fn large_hostile_specs() {
    let n = crate::yaml::MAX_BYTES;
    let head = "spec: 1\nname: t\n";
    let many = (0..n / 16).fold(String::new(), |text, n| text + &format!("  a.{n}: ,\n"));
    for text in [
        format!("{head}dims: {{ a: [{}] }}\n", "='x' ".repeat(n / 6)),
        format!("{head}dims: {{ a: = {} }}\n", "'x' ".repeat(n / 5)),
        format!("{head}layers:\n  {}: x\n", "a|".repeat(n / 3)),
        format!("{head}model: {}\n", "f(".repeat(n / 3)),
        format!("{head}model: |\n{}", "  x = = y\n".repeat(n / 11)),
        format!("{head}dims:\n{many}"),
        format!("{head}{}", "a: &b\n".repeat(n / 7)),
        format!("{head}matches: {}\n", "[".repeat(n / 2)),
        format!("{head}model: a\n{}", "  b\n".repeat(n / 5)),
        format!("{head}model: \"{}\"\n", "\\n".repeat(n / 3)),
    ] {
        let mut library = Library::default();
        let name = library.add_text("t.yaml", &text);
        let findings = library.load(&name, &[]).unwrap_err();
        assert!(findings.len() <= 100, "{}", findings.len());
        assert!(!render(&findings, RenderStyle::Plain).is_empty());
    }
}

/// Checks the rendered text of findings.
#[test]
fn findings_read_well() {
    let child = "\
spec: 1
name: child
extends: base
dims:
  eps: norm eps
stats: {}
functions:
  mlp(x): |
    y = linear(x mlp.up, ffn)
    return y
layers:
  '*': |
    x = = 2
    y
    return )
";
    let library = library(&[("child.yaml", child)], &[]);
    let want = "\
error: `norm eps` is not a config key
 --> child.yaml:5:8
  |
5 |   eps: norm eps
  |        ^^^^^^^^
  |
  = help: write `= norm eps` if it is meant as a value or an expression

error: a spec has no key `stats`
 --> child.yaml:6:1
  |
6 | stats: {}
  | ^^^^^
  |
  = help: did you mean `states`?

error: syntax error
 --> child.yaml:9:18
  |
9 |     y = linear(x mlp.up, ffn)
  |                  ^^^^^^ found `mlp.up`; expected `,` or `)`

error: syntax error
  --> child.yaml:13:9
   |
13 |     x = = 2
   |         ^ found `=`; expected a value
   |
   = help: `==` compares; `=` stands only after a name

error: the value of this line goes nowhere
  --> child.yaml:14:5
   |
14 |     y
   |     ^
   |
   = help: assign it to a name, or remove it

error: syntax error
  --> child.yaml:15:12
   |
15 |     return )
   |            ^ found `)`; expected a value

6 errors
";
    assert_eq!(render(&library.load("child", &[]).unwrap_err(), RenderStyle::Plain), want);
}

#[test]
fn a_model_inside_another_is_found_by_either_of_its_names() {
    let one = inner_spec("one", "kinds: [uno, ein]\n");
    let two = inner_spec("two", "");
    let library = library(&[("one.yaml", &one), ("two.yaml", &two)], &[]);
    assert_eq!(specs_of_kind(&library, "one"), ["one"]);
    assert_eq!(specs_of_kind(&library, "ein"), ["one"]);
    assert_eq!(specs_of_kind(&library, "two"), ["two"]);
    assert!(specs_of_kind(&library, "drei").is_empty());
}

fn specs_of_kind(library: &Library, kind: &str) -> Vec<String> {
    let json =
        format!(r#"{{"architectures": ["Seeing"], "text_config": {{"model_type": "{kind}"}}}}"#);
    let config = crate::config::Config::parse("config.json", &json).unwrap();
    library.find(&config).into_iter().map(str::to_owned).collect()
}

fn inner_spec(name: &str, kinds: &str) -> String {
    format!("spec: 1\nname: {name}\nextends: base\ninside: [Seeing]\n{kinds}")
}
