//! Code of whole specs: goldens, templates that nothing uses, and a target of a handful of ops.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onboard_compile::{Code, ConfigTexts, Target, compile};
use registry::config::Config;
use registry::diag::Finding;
use registry::library::Library;
use registry::ops::OpSet;

fn carried(name: &str) -> Target {
    Target::builtin(name).expect("it can be read")
}

fn written(name: &str, target: &Target) -> Result<Code, Vec<Finding>> {
    let spec = Library::builtin().load(name, &[])?;
    compile(&spec, &OpSet::builtin(), target, &ConfigTexts::default())
}

/// Compares code with the file of an earlier run; `UPDATE=1` renews it.
#[test]
fn code_is_as_before() {
    let all = [
        ("torch", "llama"),
        ("torch", "lfm2"),
        ("torch", "mamba2"),
        ("mlx", "llama"),
        ("vllm", "llama"),
        ("sglang", "llama"),
        ("vllm", "lfm2"),
        ("llama.cpp", "llama"),
        ("llama.cpp", "mamba2"),
    ];
    for (target, name) in all {
        let code = written(name, &carried(target)).expect("it compiles");
        let ending = if target == "llama.cpp" { "cpp" } else { "py" };
        let file = format!("tests/golden/{target}/{name}.{ending}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(&path, &code.text).expect("it is written");
        }
        let golden = fs_err::read_to_string(&path).expect("a golden file");
        assert!(golden == code.text, "{name} differs from {}: UPDATE=1 renews it", path.display());
    }
}

/// Specs whose form a target has no code for, with the reason.
const REFUSED_BY_MLX: [(&str, &str); 9] = [
    ("deepseek_v4", "has no op `sinkhorn`"),
    ("dory", "has no layers that share modules with others"),
    ("glm5_next_text", "has no op `sinkhorn`"),
    ("hrm_text", "has no layers that share modules with others"),
    ("inkling2_loop_text", "has no layers that share modules with others"),
    ("muse_spark_text", "has no step `add`"),
    ("qwen4_exp_text", "has no op `ngram_embed`"),
    ("zamba", "has no layers that take modules from elsewhere"),
    ("zamba2", "has no layers that take modules from elsewhere"),
];

#[test]
fn every_spec_compiles_and_every_template_is_used() {
    all_of_it_is_used(&carried("torch"), Refusals::Of(&[]), &["exp"]);
    // Ops of refused specs.
    let idle = ["sign", "parameter", "exp", "block_mean", "copies", "precise_gelu_tanh"];
    all_of_it_is_used(&carried("mlx"), Refusals::Of(&REFUSED_BY_MLX), &idle);
    // Arithmetic that only refused specs have is no less of use.
    let idle = ["sub", "inverse", "mean", "relu2", "sign", "parameter", "exp"];
    all_of_it_is_used(&carried("vllm"), Refusals::AllBut(LEAST_FOR_VLLM), &idle);
    let idle = [&idle[..], &["gelu", "tanh"]].concat();
    all_of_it_is_used(&carried("sglang"), Refusals::AllBut(LEAST_FOR_SGLANG), &idle);
}

/// The number of specs that have code for vLLM.
const LEAST_FOR_VLLM: usize = 135;

/// The number of specs that have code for SGLang.
const LEAST_FOR_SGLANG: usize = 100;

/// Which specs a target refuses.
#[derive(Clone, Copy)]
enum Refusals<'r> {
    /// These, each for its reason.
    Of(&'r [(&'r str, &'r str)]),
    /// Any but a number of them, for something that the target lacks.
    AllBut(usize),
}

fn all_of_it_is_used(target: &Target, refusals: Refusals<'_>, idle: &[&str]) {
    let (mut ops, mut helpers) = (BTreeSet::new(), BTreeSet::new());
    let mut compiled = 0;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../registry/specs");
    let paths = fs_err::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    for path in paths.collect::<BTreeSet<PathBuf>>() {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let refused = match refusals {
            Refusals::Of(list) => list.iter().find(|(spec, _)| *spec == name).copied(),
            Refusals::AllBut(_) => None,
        };
        let code = written(&name, target);
        if let Err(findings) = &code
            && findings[0].message.contains("has no encoders of images")
        {
            assert!(name.ends_with("_encoder"), "{name}: {}", findings[0].message);
            continue;
        }
        match (code, refused) {
            (Ok(code), None) => {
                compiled += 1;
                ops.extend(code.ops);
                helpers.extend(code.helpers);
            }
            (Ok(_), Some(_)) => panic!("{name} compiles: remove it from the list"),
            (Err(findings), Some((_, reason))) => {
                let said = findings.iter().any(|one| one.message.contains(reason));
                assert!(said, "{name}: {findings:?}");
            }
            (Err(findings), None) => {
                let message = &findings[0].message;
                let lacks = message.starts_with("the target ")
                    && (message.contains(" has no ") || message.contains(" keeps no "));
                assert!(lacks && matches!(refusals, Refusals::AllBut(_)), "{name}: {message}");
            }
        }
    }
    if let Refusals::AllBut(least) = refusals {
        assert!(compiled >= least, "{}: {compiled} specs compile", target.name);
    }
    // Ops that specs call under other names.
    let idle = [idle, &["gelu_tanh", "gelu_new", "gelu_fast", "quick_gelu"]].concat();
    let unused: Vec<&String> =
        target.ops.keys().filter(|op| !ops.contains(*op) && !idle.contains(&op.as_str())).collect();
    assert!(unused.is_empty(), "{}: no spec uses the templates of {unused:?}", target.name);
    let helper_of = |name: &str| {
        name.trim_end_matches(|c: char| c.is_numeric()).trim_end_matches('_').to_owned()
    };
    let used: BTreeSet<String> = helpers.iter().map(|name| helper_of(name)).collect();
    let unused: Vec<&str> = target
        .templates
        .keys()
        .filter_map(|name| name.strip_prefix("helpers/"))
        .filter(|name| !used.contains(*name) && !idle.contains(name))
        .collect();
    assert!(unused.is_empty(), "{}: no spec uses the helpers {unused:?}", target.name);
}

#[test]
fn families_of_attention_compile_for_vllm() {
    let parts = [
        ("llama", "class LlamaAttention(nn.Module):"),
        ("qwen2", "self.lm_head.weight = self.model.embed_tokens.weight"),
        ("qwen3", "RMSNorm(config.head_dim, eps=config.eps)"),
        ("mistral", "per_layer_sliding_window=config.sliding"),
        ("gemma2", "logits_soft_cap=config.score_cap"),
        ("gemma3_text", "per_layer_sliding_window=window"),
        ("granite", "self.logits_processor(self.lm_head, x)"),
        ("olmo2", "maybe_prefix(prefix, \"self_attn\")"),
        ("phi", "self.logits_processor(self.lm_head, x, self.lm_head.bias)"),
        ("gpt2", "self.wpe(positions)"),
        ("bloom", "alibi_slopes="),
        ("gpt_oss", "sinks=self.sinks"),
        ("mixtral", "self.moe = FusedMoEFactory("),
        ("deepseek_v3", "attend_expanded(self.attn, "),
        ("llama", "self.qkv_proj = QKVParallelLinear("),
        ("llama", "num_kv_heads=self.qkv_proj.num_kv_heads"),
        ("llama", "(\"gate_up_proj\", \"up_proj\", 1)"),
        ("llama", "@support_torch_compile\nclass LlamaModel(nn.Module):"),
        ("lfm2", "(\"w13\", \"w3\", 1)"),
        ("lfm2", "return (get_conv_copy_spec,)"),
        ("falcon_h1", "get_temporal_copy_spec,"),
        // The kernel of vLLM rotates in the dtype of queries.
        ("llama", "return get_rope("),
        ("ernie4_5", "class Rotary:"),
        ("llama", "self.down_proj = RowParallelLinear("),
        // A norm over all heads needs all columns.
        ("olmo2", "self.q_proj = ReplicatedLinear("),
        ("lfm2", "self.state = State(config, [\"conv\"], "),
        ("falcon_h1", "State(config, [\"conv\", \"recurrent\"], "),
    ];
    for (name, part) in parts {
        let code = written(name, &carried("vllm")).expect("it compiles");
        assert_eq!(code.name, format!("onboard_{name}/{name}.py"));
        let paths = code.extra_files.iter().map(|(path, _)| path.as_str());
        let package = ["pyproject.toml", &format!("onboard_{name}/__init__.py")];
        assert!(paths.eq(package), "{name}: {:?}", code.extra_files);
        let always = [
            "def forward(\n        self,\n        input_ids: Tensor | None,\n        positions: Tensor,",
            "def compute_logits(self, hidden_states: Tensor)",
            "def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:",
            "self.attn = Attention(",
        ];
        for text in always.into_iter().chain([part]) {
            assert!(code.text.contains(text), "{name}: {text}");
        }
    }
}

#[test]
fn families_of_all_kinds_compile_for_llama_cpp() {
    let parts = [
        // Modules of each layer by its kind.
        (
            "lfm2",
            "Layers<Lfm2ConvLayer, Lfm2FullAttentionLayer> layers{config, prefix, \"layers.{}\",",
        ),
        ("lfm2", "config.layer_types, list({\"conv\", \"full_attention\"})};"),
        // A module that is of one class or of another, and one that is missing in some configs.
        ("qwen3_next", "OneOf<Moe, Mlp> mlp{sparse, config, prefix.at(\"mlp\")};"),
        ("apertus", "act_fn->alpha_p.weight"),
        ("deepseek_v3", "Linear q_a_proj{prefix.at(\"q_a_proj\").when(config.q_lora != nullptr),"),
        ("ernie4_5_vl_moe_text", "text_moe.gate_moe_statics_e_score_correction_bias.weight"),
        ("beam", "read(config.config, {\"rope_parameters\"}"),
        // Rows that no result is wanted of end before the head.
        ("gemma3_text", "x = graph.rows(x);\n        return graph.rms_norm(norm, x);"),
        ("gemma3_text", "ggml_tensor * x = graph.result(model(tokens, graph));"),
        // Settings are read where they are members.
        ("gemma3_text", "    int64_t hidden = config[\"hidden_size\"].integer();\n"),
        ("gemma3_text", "    double eps = read(config, {\"rms_norm_eps\"}, 1e-06).real();\n"),
        ("gemma3_text", "    Value logit_cap = read(config, {\"final_logit_softcapping\"});\n"),
        // A comment of several lines is one in all of them.
        ("qwen3_moe", "of the k largest are\n// rounded last.\nstruct SoftmaxMoe"),
        // `true`, or a text in some configs.
        ("laguna", "    Value gating = read("),
    ];
    for (name, part) in parts {
        let code = written(name, &carried("llama.cpp")).expect("it compiles");
        assert!(code.text.contains(part), "{name} has no `{part}`: {}", code.text);
        let is_long = |line: &&str| line.len() > 120 && !line.starts_with("//");
        assert_eq!(code.text.lines().find(is_long), None, "{name}");
    }
}

#[test]
fn what_vllm_has_no_kernel_for_is_refused() {
    let findings = written("doge", &carried("vllm")).expect_err("its keys have a salience");
    let message = "the target has no code for the op `attend` with attention to selected keys";
    assert!(findings.iter().any(|one| one.message == message), "{findings:?}");
}

#[test]
fn families_of_all_kinds_compile_for_mlx() {
    let kept = [
        ("llama", "return KVCache()"),
        ("qwen3", "return KVCache()"),
        ("gemma3_text", "RotatingKVCache(self.window)"),
        ("lfm2", "return ArraysCache(size=1)"),
        ("mamba2", "return ArraysCache(size=2)"),
        ("qwen3_moe", "SwitchGLU("),
        ("deepseek_v3", "latent_attend("),
        ("gpt_oss", "sinks=self.sinks"),
        ("falcon_h1", "return CacheList(KVCache(), ArraysCache(size=2))"),
        ("qwen3_next", "gated_delta_kernel"),
    ];
    for (name, part) in kept {
        let code = written(name, &carried("mlx")).expect("it compiles");
        assert_eq!(code.name, format!("{name}.py"));
        for always in ["class ModelArgs(BaseModelArgs):", "class Model(nn.Module):", part] {
            assert!(code.text.contains(always), "{name} has no `{always}`");
        }
        assert!(!code.text.contains("torch."), "{name}");
    }
}

const SHEET: &str = "target: tiny\nforms: [shared_layers, lent_modules]\nabout: a test\nfile: \"{name}.txt\"\nlayout: python\nwidth: \"160\"\nstates: []\nwords:\n  list: \"list({{ items }})\"\n  dict: \"dict({{ items }})\"\n";
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
    compile(&library.load(&name, &[])?, &OpSet::builtin(), &target, &ConfigTexts::default())
}

#[test]
fn a_target_is_data() {
    let code = tiny(SPEC).expect("it compiles");
    assert!(code.text.contains("self.mix = matrix(config.hidden, config.hidden)"), "{}", code.text);
    assert!(code.text.contains("logits = self.head.times(x)"), "{}", code.text);
    assert_eq!(code.name, "small.txt");
    assert!(code.extra_files.is_empty());
}

#[test]
fn a_target_writes_several_files() {
    let written = |path: &str| {
        let sheet = [SHEET, "files: { \"", path, "\": note, about.py: note }\n"].concat();
        let note = "{{ architectures | join }}\n\n\n\nof {{ model_type or name }}\n";
        let files = vec![
            ("sheet.yaml", sheet.as_str()),
            ("ops/all.yaml", OPS),
            ("file.jinja", FILE),
            ("note.jinja", note),
        ];
        let target = Target::read("tiny", &files)?;
        let mut library = Library::default();
        let name = library.add_text("small.yaml", SPEC);
        let config = Config::parse(
            "config.json",
            r#"{"architectures": ["OtherForCausalLM"], "model_type": "other"}"#,
        );
        let texts = ConfigTexts::from_config(&config.map_err(|one| vec![one])?);
        compile(&library.load(&name, &[])?, &OpSet::builtin(), &target, &texts)
    };
    let code = written("of/{name}.md").expect("it compiles");
    let text = "SmallForCausalLMOtherForCausalLM\n\n\n\nof other\n";
    assert_eq!(code.extra_files[0], ("of/small.md".to_owned(), text.to_owned()));
    let text = "SmallForCausalLMOtherForCausalLM\n\nof other\n";
    assert_eq!(code.extra_files[1], ("about.py".to_owned(), text.to_owned()));
    let findings = written("../{name}").expect_err("it lies outside");
    assert!(findings[0].message.contains("`../small`, which is no path below"), "{findings:?}");
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
        "list(SmallLayer(config, place) for place in range(config.own))",
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
        "self.mix = dict(str(n): matrix(config.hidden, config.hidden) for n in layers)",
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

#[test]
fn functions_that_multiply_are_refused() {
    let mut methods =
        "functions:\n  f0(x): |\n    y = linear(x, a, hidden)\n    return linear(y, b, hidden)\n"
            .to_owned();
    let mut inline = "functions:\n  f0(x): linear(x, a, hidden)\n".to_owned();
    for n in 1..30 {
        let inner = n - 1;
        let method = format!("  f{n}(x): |\n    y = f{inner}(x)\n    return f{inner}(y)\n");
        let line = format!("  f{n}(x): f{inner}(f{inner}(x))\n");
        methods.push_str(&method);
        inline.push_str(&line);
    }
    for functions in [methods, inline] {
        let spec = SPEC
            .replace("layers:\n  prefix", &format!("{functions}layers:\n  prefix"))
            .replace("linear(x, mix, hidden)", "f29(x)");
        let findings = tiny(&spec).expect_err("it has 2^29 calls");
        assert!(findings[0].message.contains("more than"), "{findings:?}");
    }
}

#[test]
fn sizes_that_overflow_stay_as_they_are() {
    let large = "9223372036854775807";
    for size in [
        format!("hidden * {large} * {large}"),
        format!("hidden + {large} + {large}"),
        format!("hidden - {large} - {large}"),
        format!("hidden + (-(-{large} - 1))"),
    ] {
        let spec = SPEC.replace("linear(x, mix, hidden)", &format!("linear(x, mix, {size})"));
        let code = tiny(&spec).expect("it compiles");
        assert!(code.text.contains("92233720368547758"), "{size}: {}", code.text);
    }
}

/// Writes a folder with the sheets of some targets, and opens the first.
fn beside(folder: &str, sheets: &[(&str, &str)]) -> Result<Target, Vec<Finding>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    for (name, sheet) in sheets {
        fs_err::create_dir_all(folder.join(name)).expect("a folder");
        fs_err::write(folder.join(name).join("sheet.yaml"), sheet).expect("it is written");
    }
    Target::open(&folder.join(sheets[0].0))
}

#[test]
fn a_target_takes_what_it_lacks_from_its_base() {
    let sheet = "target: mine\nbase: torch\nwithout: [mlstm]\n";
    let target = beside("takes", &[("mine", sheet)]).expect("it can be read");
    let torch = carried("torch");
    assert!(target.ops.contains_key("linear") && !target.ops.contains_key("mlstm"));
    assert_eq!(target.steps, torch.steps);
    assert!(target.templates.contains_key("helpers/rotate"));
    assert!(!target.templates.contains_key("helpers/mlstm"));
    assert!(target.templates.contains_key("parts/rule"), "the base of its base has it");
    assert!(!target.templates.contains_key("file"));
}

/// Returns the place and the message of what is wrong with sheets.
fn said(folder: &str, sheets: &[(&str, &str)]) -> String {
    let finding = beside(folder, sheets).expect_err("it is wrong").remove(0);
    let at = finding.at.expect("a place");
    let file = at.source.path.rsplit('/').next().unwrap_or_default().to_owned();
    format!("{file}:{} {}", at.line(), finding.message)
}

#[test]
fn a_base_that_is_not_there_or_goes_in_a_circle_is_named() {
    assert_eq!(
        said("unknown", &[("mine", "target: mine\nbase: torchh\n")]),
        "sheet.yaml:2 there is no target `torchh` to take from"
    );
    assert_eq!(
        said("outside", &[("mine", "target: mine\nbase: ../torch\n")]),
        "sheet.yaml:2 there is no target `../torch` to take from"
    );
    let circle = [("one", "target: one\nbase: two\n"), ("two", "target: two\nbase: one\n")];
    assert_eq!(
        said("circle", &circle),
        "sheet.yaml:2 `one` takes from `two` takes from `one`: a circle"
    );
    assert_eq!(
        said("left", &[("mine", "target: mine\nbase: torch\nwithout: [flip]\n")]),
        "sheet.yaml:3 `torch` has no op `flip` to leave out"
    );
}

#[test]
fn a_folder_without_a_sheet_is_no_target() {
    assert!(!Target::names().contains(&"python"));
    let findings = Target::builtin("python").expect_err("it has parts alone");
    assert!(findings[0].message.starts_with("there is no target `python`; there are: "));
}

#[test]
fn code_without_a_form_in_cpp_is_refused() {
    let sheet = SHEET.replace("layout: python", "layout: cpp");
    let ops = OPS.replace("{{ W }}.times({{ x }})", "{{ W }}.times({{ x }}) @ 2");
    let files = vec![("sheet.yaml", sheet.as_str()), ("ops/all.yaml", &ops), ("file.jinja", FILE)];
    let target = Target::read("tiny", &files).expect("it can be read");
    let mut library = Library::default();
    let name = library.add_text("small.yaml", SPEC);
    let spec = library.load(&name, &[]).expect("a spec");
    let findings = compile(&spec, &OpSet::builtin(), &target, &ConfigTexts::default())
        .expect_err("`@` is no sign of C++");
    assert!(findings[0].message.contains("has no C++ for this code"), "{findings:?}");
}

#[test]
fn sheets_with_mistakes_are_refused() {
    for (right, wrong, message) in [
        ("target: tiny\n", "", "the sheet of a target needs `target`"),
        ("width: \"160\"", "width: wide", "this is no number of columns"),
        ("layout: python", "layout: pyhton", "`layout` cannot be `pyhton`"),
        ("list({{ items }})", "list({{ items )", "this is no template"),
    ] {
        let sheet = SHEET.replacen(right, wrong, 1);
        let files = vec![("sheet.yaml", sheet.as_str())];
        let findings = Target::read("tiny", &files).expect_err("the sheet is wrong");
        assert!(findings[0].message.starts_with(message), "{findings:?}");
    }
}
