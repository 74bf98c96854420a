// Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU. Source: transformers models/llama.
// Most dense families extend this file.
//
// Written from the spec `llama` of onboard.

#include "onboard.h"

// llama.cpp compiles several files as one, so each family has a namespace.
namespace onboard::family_llama {

// Sizes and settings, read from the config of the checkpoint.
struct Config : Settings {
    int64_t hidden = config["hidden_size"].integer();
    int64_t layers = config["num_hidden_layers"].integer();
    int64_t vocab = config["vocab_size"].integer();
    int64_t heads = config["num_attention_heads"].integer();
    int64_t kv_heads = read(config, {"num_key_value_heads"}, heads).integer();
    int64_t head_dim = read(config, {"head_dim"}, floor_div(hidden, heads)).integer();
    int64_t ffn = config["intermediate_size"].integer();
    double eps = read(config, {"rms_norm_eps"}, 1e-06).real();
    Value act = read(config, {"hidden_act"}, "silu");
    bool tied = read(config, {"tie_word_embeddings"}, false).flag();
    Value context = read(config, {"max_position_embeddings"}, 2048);
    double scale = power(head_dim, -0.5).real();
    bool qkv_bias = read(config, {"attention_bias"}, false).flag();
    bool mlp_bias = read(config, {"mlp_bias"}, false).flag();
    double rope_theta = read(config, {"rope_parameters.rope_theta", "rope_theta"}, 10000.0).real();
    Value rope_parameters = read(config, {"rope_parameters", "rope_scaling"});

    using Settings::Settings;
};

struct Attention : Module<Config> {
    Linear q_proj{prefix.at("q_proj"), config.hidden, config.heads * config.head_dim, config.qkv_bias};
    Linear k_proj{prefix.at("k_proj"), config.hidden, config.kv_heads * config.head_dim, config.qkv_bias};
    Linear v_proj{prefix.at("v_proj"), config.hidden, config.kv_heads * config.head_dim, config.qkv_bias};
    Attend attn{prefix.at("attn"), config.kv_heads, config.head_dim, config.head_dim};
    Linear o_proj{prefix.at("o_proj"), config.heads * config.head_dim, config.hidden, config.qkv_bias};

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * x, Graph & graph, const Rope & rope) {
        ggml_tensor * q = graph.rotate(graph.heads(graph.linear(q_proj, x), config.heads), rope, false);
        ggml_tensor * k = graph.rotate(graph.heads(graph.linear(k_proj, x), config.kv_heads), rope, false);
        ggml_tensor * v = graph.heads(graph.linear(v_proj, x), config.kv_heads);
        return graph.linear(o_proj, graph.attend(attn, q, k, v, config.scale));
    }
};

struct Mlp : Module<Config> {
    Linear gate_proj{prefix.at("gate_proj"), config.hidden, config.ffn, config.mlp_bias};
    Linear up_proj{prefix.at("up_proj"), config.hidden, config.ffn, config.mlp_bias};
    Linear down_proj{prefix.at("down_proj"), config.ffn, config.hidden, config.mlp_bias};

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * x, Graph & graph) {
        ggml_tensor * gate = graph.act(config.act, graph.linear(gate_proj, x));
        return graph.linear(down_proj, graph.mul(gate, graph.linear(up_proj, x)));
    }
};

struct LlamaLayer : Module<Config> {
    Norm input_layernorm{prefix.at("input_layernorm"), config.hidden, config.eps};
    Norm post_attention_layernorm{prefix.at("post_attention_layernorm"), config.hidden, config.eps};
    Attention self_attn{config, prefix.at("self_attn")};
    Mlp mlp{config, prefix.at("mlp")};

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * x, Graph & graph, const Rope & rope) {
        x = graph.add(x, self_attn(graph.rms_norm(input_layernorm, x), graph, rope));
        return graph.add(x, mlp(graph.rms_norm(post_attention_layernorm, x), graph));
    }
};

struct LlamaModel : Module<Config> {
    Embedding embed_tokens{prefix.at("embed_tokens"), config.vocab, config.hidden};
    Norm norm{prefix.at("norm"), config.hidden, config.eps};
    Layers<LlamaLayer> layers{config, prefix, "layers.{}", config.layers};
    Rotary rope = Rotary(config.head_dim, config.rope_theta, config.rope_parameters).context(config.context);

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * tokens, Graph & graph) {
        const auto rope = this->rope(graph);
        ggml_tensor * x = graph.embed(embed_tokens, tokens);
        for (auto & layer : layers) {
            x = layer(x, graph, rope);
        }
        x = graph.rows(x);
        return graph.rms_norm(norm, x);
    }
};

struct LlamaForCausalLM : Module<Config> {
    Linear lm_head{prefix.at("lm_head"), config.hidden, config.vocab};
    LlamaModel model{config, prefix.at("model")};

    LlamaForCausalLM(const Config & config, const Prefix & prefix) : Module(config, prefix) {
        if (config.tied) {
            tie(prefix, "lm_head.weight", lm_head.weight, model.embed_tokens.weight);
        }
    }

    ggml_tensor * operator()(ggml_tensor * tokens, Graph & graph) {
        ggml_tensor * x = graph.result(model(tokens, graph));
        return graph.linear(lm_head, x);
    }
};

const Family family("llama", new_model<Config, LlamaForCausalLM>);

}
