//! Architecture names that a spec inherits, held to the model that they name.

use std::path::Path;

use onboard_spec::config::Config;
use onboard_spec::diag::Finding;
use onboard_spec::library::Library;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;

const CONFIG: &str = r#"{ "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 10000.0 }"#;

/// The warning for a spec that extends `parent` with `text`, for CONFIG with `more` in front.
fn warning(parent: &str, text: &str, more: &str, sets: &[&str]) -> Option<Finding> {
    let mut library = Library::builtin();
    let text = format!("spec: 1\nname: child\nextends: {parent}\n{text}");
    library.add_text("child.yaml", &text);
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let spec = library.load("child", &sets).unwrap();
    let config =
        Config::parse("config.json", &CONFIG.replacen('{', &format!("{{ {more}"), 1)).unwrap();
    let (model, _) = resolve(&spec, &config, &OpSet::builtin()).unwrap();
    model.gguf.and_then(|gguf| gguf.unlike).map(|finding| *finding)
}

fn llama(text: &str) -> Option<Finding> {
    warning("llama", text, "", &[])
}

#[test]
fn a_changed_program_does_not_inherit_an_architecture() {
    let residual = "dims: { mult: = 0.22 }\nlayers:\n  \"*\": |\n    x = x + attention(rms_norm(x, input_layernorm, eps)) * mult\n    \
        return x + mlp(rms_norm(x, post_attention_layernorm, eps)) * mult\n";
    let temperature = "functions:\n  attention(x): |\n    q = temperature(rope(heads(linear(x, self_attn.q_proj, heads * head_dim), heads), main), 0.1, 64)\n    \
        k = rope(heads(linear(x, self_attn.k_proj, kv_heads * head_dim), kv_heads), main)\n    \
        v = heads(linear(x, self_attn.v_proj, kv_heads * head_dim), kv_heads)\n    \
        return linear(attend(q, k, v, kv, scale, window=window), self_attn.o_proj, hidden)\n";
    let logits = "model: |\n  x = layers(embed(tokens, model.embed_tokens, vocab, hidden))\n  \
        return linear(rms_norm(x, model.norm, eps), lm_head, vocab) / 4.0\n";
    let layout = temperature
        .replace("temperature(", "(")
        .replace(", 0.1, 64)", ")")
        .replace(", main)", ", main, layout='interleaved')");
    let norm = "layers:\n  \"*\": |\n    x = x + attention(rms_norm(x, input_layernorm, 1e-6))\n    \
        return x + mlp(rms_norm(x, post_attention_layernorm, eps))\n";
    let state = "states:\n  conv: { kind: conv, shape: [hidden, 2], dtype: activation }\nlayers:\n  \"*\": |\n    \
        x = x + attention(causal_conv(rms_norm(x, input_layernorm, eps), mix, 3, conv))\n    \
        return x + mlp(rms_norm(x, post_attention_layernorm, eps))\ngguf:\n  weights:\n    \
        blk.{i}.ssm_conv1d: model.layers.{i}.mix\n";
    let theta = "rope:\n  main: { dim: head_dim, theta: [= 500.0], context: context }\ngguf: { metadata: { rope.freq_base: ~ } }\n";
    let removed = "gguf: { weights: { blk.{i}.attn_q: \"model.layers.{i}.self_attn.q_proj\" } }\n";
    for (text, label) in [
        (residual, "layer 0: `llama` has no `scale(s=0.22)` here"),
        (temperature, "layer 0: `llama` has no `temperature("),
        (logits, "outside of the layers: `llama` has no `divide(s=4)` here"),
        (&layout, "layer 0: `layout` of `rope` is 'interleaved'; in `llama` it is 'half'"),
        (norm, "layer 0: `eps` of `rms_norm` is 1e-6; in `llama` it is 1e-5"),
        (state, "layer 0: `llama` has no `causal_conv("),
        (theta, "layer 0: `rope` turns by a table of 16, factor 1, frequencies to "),
        (
            removed,
            "layer 0: the weight of `linear` is `blk.0.attn_q.weight (0 of [])`; in `llama` it is",
        ),
    ] {
        let finding = llama(text).unwrap_or_else(|| panic!("not found: {label}"));
        assert!(finding.label.starts_with(label), "{finding:?}\nwanted: {label}");
        assert!(finding.message.contains("`child` inherits `arch: llama` from `llama`"));
        assert!(finding.help.unwrap().contains("`gguf: ~`"));
    }
}

#[test]
fn a_part_of_the_owners_program_is_another_program() {
    let text = "layers:\n  \"*\": |\n    x = x + attention(rms_norm(x, input_layernorm, eps))\n    \
        return x + mlp(rms_norm(x, post_attention_layernorm, eps)) * residual_mult\n";
    let finding = warning("granite", text, r#""residual_multiplier": 0.5, "#, &[]).unwrap();
    let expected = "layer 0: `scale(s=0.5)` of `granite` is missing before `add`";
    assert_eq!(finding.label, expected);
    let text = "model: |\n  x = layers(embed(tokens, model.embed_tokens, vocab, hidden) * embedding_mult)\n  \
        return linear(rms_norm(x, model.norm, eps), lm_head, vocab)\n";
    let finding = warning("granite", text, r#""logits_scaling": 8.0, "#, &[]).unwrap();
    assert_eq!(finding.label, "outside of the layers: `divide(s=8)` of `granite` is missing");
}

#[test]
fn what_keys_carry_is_inherited() {
    let another_key = "dims: { eps: [norm_eps, = 1e-3], kv_heads: [n_kv, = 1] }\n";
    let order = "functions:\n  attention(x): |\n    v = heads(linear(x, self_attn.v_proj, kv_heads * head_dim), kv_heads)\n    \
        k = rope(heads(linear(x, self_attn.k_proj, kv_heads * head_dim), kv_heads), main, compute='f32')\n    \
        q = rope(heads(linear(x, self_attn.q_proj, heads * head_dim), heads), main)\n    \
        return linear(attend(q, k, v, kv, scale, window=window), self_attn.o_proj, hidden)\n";
    let nothing = "layers:\n  \"*\": |\n    x = x + attention(rms_norm(x, input_layernorm, eps, cast='after')) * 1.0\n    \
        return x + mlp(rms_norm(x, post_attention_layernorm, eps))\n";
    for text in ["", another_key, order, nothing] {
        assert_eq!(llama(text), None, "{text}");
    }
    // A name for a norm that the checkpoint has otherwise.
    let renamed = "model: |\n  x = layers(embed(tokens, model.embed_tokens, vocab, hidden))\n  \
        return linear(rms_norm(x, model.last, eps), lm_head, vocab)\ngguf: { weights: { output_norm: model.last } }\n";
    assert_eq!(llama(renamed), None);
    // An author may say that keys carry the difference, or that there is no such file.
    let changed = "dims: { scale: = 0.1 }\n";
    assert!(llama(changed).is_some());
    assert_eq!(llama(&format!("{changed}gguf: {{ arch: llama }}\n")), None);
    assert_eq!(llama(&format!("{changed}gguf: ~\n")), None);
}

/// Parts of a file beside the layers: heads, and tensors of computed numbers.
#[test]
fn heads_and_computed_tensors_are_held_to_the_owner() {
    let scaled = "nextn: { norm_h: \"rms_norm(h, hnorm, eps) * 0.5\" }\n";
    let removed = "gguf: { tensors: { rope_freqs.weight: ~ } }\n";
    for (parent, fixture, text) in [("glm4_moe", "glm4_moe", scaled), ("llama", "llama3", removed)]
    {
        assert_eq!(unlike_parent(parent, fixture, ""), None, "{parent}");
        assert!(unlike_parent(parent, fixture, text).is_some(), "{parent}");
    }
}

fn unlike_parent(parent: &str, fixture: &str, text: &str) -> Option<Box<Finding>> {
    let mut library = Library::builtin();
    let child = format!("spec: 1\nname: child\nextends: {parent}\n{text}");
    library.add_text("child.yaml", &child);
    let spec = library.load("child", &[]).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
    let config = Config::read(&folder.join("config.json")).unwrap();
    let (model, _) = resolve(&spec, &config, &OpSet::builtin()).unwrap();
    model.gguf.and_then(|gguf| gguf.unlike)
}

#[test]
fn overrides_are_held_to_the_same() {
    let finding = set_warning("dims.scale=0.1").unwrap();
    assert!(finding.message.starts_with("overrides make `child` another model"), "{finding:?}");
    assert_eq!(finding.label, "layer 0: `scale` of `attend` is 0.1; in `child` it is 0.25");
    assert_eq!(set_warning("dims.eps=1e-3"), None);
    assert_eq!(set_warning("states.kv.dtype=f32"), None);
    assert_eq!(set_warning("gguf=null"), None);
}

fn set_warning(set: &str) -> Option<Finding> {
    warning("llama", "gguf: { arch: llama }\n", "", &[set])
}
