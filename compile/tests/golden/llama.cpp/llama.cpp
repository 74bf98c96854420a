// Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU. Source: transformers models/llama.
// Most dense families extend this file.
//
// Written from the spec `llama` of onboard.

#include "onboard.h"

// llama.cpp compiles several files as one, so each family has a namespace.
namespace onboard::family_llama {

// Sizes and settings, read from the config of the checkpoint.
struct Config {
    Value hidden;
    Value layers;
    Value vocab;
    Value heads;
    Value kv_heads;
    Value head_dim;
    Value ffn;
    Value eps;
    Value act;
    Value tied;
    Value context;
    Value scale;
    Value qkv_bias;
    Value mlp_bias;
    Value rope_theta;
    Value rope_parameters;

    explicit Config(const Value & config) {
        hidden = config["hidden_size"];
        layers = config["num_hidden_layers"];
        vocab = config["vocab_size"];
        heads = config["num_attention_heads"];
        kv_heads = read(config, {"num_key_value_heads"}, heads);
        head_dim = read(config, {"head_dim"}, floor_div(hidden, heads));
        ffn = config["intermediate_size"];
        eps = read(config, {"rms_norm_eps"}, 1e-06);
        act = read(config, {"hidden_act"}, "silu");
        tied = read(config, {"tie_word_embeddings"}, false);
        context = read(config, {"max_position_embeddings"}, 2048);
        scale = power(head_dim, -0.5);
        qkv_bias = read(config, {"attention_bias"}, false);
        mlp_bias = read(config, {"mlp_bias"}, false);
        rope_theta = read(config, {"rope_parameters.rope_theta", "rope_theta"}, 10000.0);
        rope_parameters = read(config, {"rope_parameters", "rope_scaling"});
    }
};

struct Attention {
    Value heads;
    Value kv_heads;
    Value scale;
    Linear q_proj;
    Linear k_proj;
    Linear v_proj;
    Attend attn;
    Linear o_proj;

    Attention() = default;

    Attention(const Config & config, const Prefix & prefix) {
        heads = config.heads;
        kv_heads = config.kv_heads;
        scale = config.scale;
        q_proj = Linear(prefix.at("q_proj"), config.hidden, config.heads * config.head_dim, config.qkv_bias);
        k_proj = Linear(prefix.at("k_proj"), config.hidden, config.kv_heads * config.head_dim, config.qkv_bias);
        v_proj = Linear(prefix.at("v_proj"), config.hidden, config.kv_heads * config.head_dim, config.qkv_bias);
        attn = Attend(prefix.at("attn"), config.kv_heads, config.head_dim, config.head_dim, nullptr, false, nullptr);
        o_proj = Linear(prefix.at("o_proj"), config.heads * config.head_dim, config.hidden, config.qkv_bias);
    }

    ggml_tensor *operator()(ggml_tensor *x, Graph &graph, const Rope &rope) {
        auto q = graph.rotate(graph.heads(graph.linear(q_proj, x), heads, 1), rope, false);
        auto k = graph.rotate(graph.heads(graph.linear(k_proj, x), kv_heads, 1), rope, false);
        auto v = graph.heads(graph.linear(v_proj, x), kv_heads, 1);
        return graph.linear(o_proj, graph.attend(attn, q, k, v, scale, nullptr));
    }
};


struct Mlp {
    Value act;
    Linear gate_proj;
    Linear up_proj;
    Linear down_proj;

    Mlp() = default;

    Mlp(const Config & config, const Prefix & prefix) {
        act = config.act;
        gate_proj = Linear(prefix.at("gate_proj"), config.hidden, config.ffn, config.mlp_bias);
        up_proj = Linear(prefix.at("up_proj"), config.hidden, config.ffn, config.mlp_bias);
        down_proj = Linear(prefix.at("down_proj"), config.ffn, config.hidden, config.mlp_bias);
    }

    ggml_tensor *operator()(ggml_tensor *x, Graph &graph) {
        auto gate = graph.act(act, graph.linear(gate_proj, x));
        return graph.linear(down_proj, graph.mul(gate, graph.linear(up_proj, x), 1, 1));
    }
};


// The interface of layers of all kinds.
struct Layer {
    virtual ~Layer() = default;
    virtual ggml_tensor *operator()(ggml_tensor *x, Graph &graph, const Rope &rope) = 0;
};

using Layers = std::vector<std::shared_ptr<Layer>>;

struct LlamaLayer : Layer {
    Norm input_layernorm;
    Norm post_attention_layernorm;
    Attention self_attn;
    Mlp mlp;

    LlamaLayer() = default;

    LlamaLayer(const Config & config, const Prefix & prefix) {
        input_layernorm = Norm(prefix.at("input_layernorm"), config.hidden, config.eps, false, false);
        post_attention_layernorm = Norm(prefix.at("post_attention_layernorm"), config.hidden, config.eps, false, false);
        self_attn = Attention(config, prefix.at("self_attn"));
        mlp = Mlp(config, prefix.at("mlp"));
    }

    ggml_tensor *operator()(ggml_tensor *x, Graph &graph, const Rope &rope) override {
        x = graph.add(x, self_attn(graph.rms_norm(input_layernorm, x), graph, rope), 1, 1);
        return graph.add(x, mlp(graph.rms_norm(post_attention_layernorm, x), graph), 1, 1);
    }
};


struct LlamaModel {
    Embedding embed_tokens;
    Norm norm;
    Layers layers;
    Rotary rope;

    LlamaModel() = default;

    LlamaModel(const Config & config, const Prefix & prefix) {
        embed_tokens = Embedding(prefix.at("embed_tokens"), config.vocab, config.hidden);
        norm = Norm(prefix.at("norm"), config.hidden, config.eps, false, false);
        for (int layer = 0; layer < config.layers; ++layer) {
            layers.push_back(std::make_shared<LlamaLayer>(config, prefix.at(filled("layers.{}", layer))));
        }
        rope = Rotary(config.head_dim, config.rope_theta, config.rope_parameters).context(config.context);
    }

    ggml_tensor *operator()(ggml_tensor *tokens, Graph &graph) {
        auto rope = this->rope(graph);
        auto x = graph.embed(embed_tokens, tokens);
        for (const auto & layer : layers) {
            x = (*layer)(x, graph, rope);
        }
        return graph.rms_norm(norm, x);
    }
};


struct LlamaForCausalLM : Model {
    Config config;
    Linear lm_head;
    LlamaModel model;

    LlamaForCausalLM(const Config & given, const Prefix & prefix) : config(given) {
        lm_head = Linear(prefix.at("lm_head"), config.hidden, config.vocab, false);
        model = LlamaModel(config, prefix.at("model"));
        if (config.tied) {
            tie(prefix, "lm_head.weight", lm_head.weight, model.embed_tokens.weight);
        }
    }

    ggml_tensor *operator()(ggml_tensor * tokens, Graph & graph) override {
        auto x = model(tokens, graph);
        auto logits = graph.linear(lm_head, x);
        return logits;
    }
};

const Family family("llama", [](const Value & config, const Prefix & prefix) {
    return std::make_unique<LlamaForCausalLM>(Config(config), prefix);
});

}
