// Mamba-2: state spaces only, the residual stream in f32. Source: transformers models/mamba2.
//
// Written from the spec `mamba2` of onboard.

#include "onboard.h"

// llama.cpp compiles several files as one, so each family has a namespace.
namespace onboard::family_mamba2 {

// Sizes and settings, read from the config of the checkpoint.
struct Config {
    Value hidden;
    Value layers;
    Value vocab;
    Value eps;
    Value tied;
    Value ssm_heads;
    Value ssm_dim;
    Value ssm_inner;
    Value ssm_groups;
    Value ssm_size;
    Value ssm_act;
    Value conv_width;
    Value conv_bias;
    Value ssm_bias;
    Value dt_limit;
    Value dt_min;
    Value dt_max;

    explicit Config(const Value & config) {
        hidden = config["hidden_size"];
        layers = config["num_hidden_layers"];
        vocab = config["vocab_size"];
        eps = read(config, {"layer_norm_epsilon"}, 1e-05);
        tied = read(config, {"tie_word_embeddings"}, false);
        ssm_heads = read(config, {"num_heads"}, 128);
        ssm_dim = read(config, {"head_dim"}, 64);
        ssm_inner = ssm_heads * ssm_dim;
        ssm_groups = read(config, {"n_groups"}, 8);
        ssm_size = read(config, {"state_size"}, 128);
        ssm_act = read(config, {"hidden_act"}, "silu");
        conv_width = read(config, {"conv_kernel"}, 4);
        conv_bias = read(config, {"use_conv_bias"}, true);
        ssm_bias = read(config, {"use_bias"}, false);
        dt_limit = read(config, {"time_step_limit"});
        dt_min = dt_limit ? dt_limit[0] : nullptr;
        dt_max = dt_limit ? (dt_limit[1] > 1e38 ? nullptr : dt_limit[1]) : nullptr;
    }
};

// `P` is the path of the mixer.
struct Mamba2 {
    Value dt_max;
    Value dt_min;
    Value ssm_act;
    Value ssm_groups;
    Value ssm_heads;
    Value ssm_inner;
    Value ssm_size;
    Linear in_proj;
    Norm norm;
    Linear out_proj;
    Conv conv1d;
    Parameter A_log;
    Parameter D;
    Parameter dt_bias;
    State scan;

    Mamba2() = default;

    Mamba2(const Config & config, const Prefix & prefix) {
        dt_max = config.dt_max;
        dt_min = config.dt_min;
        ssm_act = config.ssm_act;
        ssm_groups = config.ssm_groups;
        ssm_heads = config.ssm_heads;
        ssm_inner = config.ssm_inner;
        ssm_size = config.ssm_size;
        in_proj = Linear(prefix.at("in_proj"), config.hidden, 2 * config.ssm_inner + 2 * config.ssm_groups * config.ssm_size + config.ssm_heads, config.ssm_bias);
        norm = Norm(prefix.at("norm"), config.ssm_heads * floor_div(config.ssm_inner, config.ssm_heads), config.eps, false, false, config.ssm_groups);
        out_proj = Linear(prefix.at("out_proj"), config.ssm_heads * floor_div(config.ssm_inner, config.ssm_heads), config.hidden, config.ssm_bias);
        conv1d = Conv(prefix.at("conv1d"), config.ssm_inner + 2 * config.ssm_groups * config.ssm_size, config.conv_width, config.conv_bias, 1);
        A_log = Parameter(prefix.at("A_log"), config.ssm_heads);
        D = Parameter(prefix.at("D"), config.ssm_heads);
        dt_bias = Parameter(prefix.at("dt_bias"), config.ssm_heads);
        scan = State(prefix.at("scan"), config.ssm_heads * floor_div(config.ssm_inner, config.ssm_heads) * config.ssm_size);
    }

    ggml_tensor *operator()(ggml_tensor *x, Graph &graph) {
        const tensors several_1 = mamba2_scan(graph.linear(in_proj, x), graph);
        auto gate = several_1[0];
        auto y = several_1[1];
        y = graph.gated_norm(norm, y, gate, true, true);
        return graph.linear(out_proj, y);
    }

    tensors mamba2_scan(ggml_tensor *x, Graph &graph) {
        const tensors several_1 = graph.split(x, list({ssm_inner, ssm_inner + 2 * ssm_groups * ssm_size, ssm_heads}));
        auto gate = several_1[0];
        auto xbc = several_1[1];
        auto dt = several_1[2];
        xbc = graph.act(ssm_act, graph.conv(conv1d, xbc));
        const tensors several_2 = graph.split(xbc, list({ssm_inner, ssm_groups * ssm_size, ssm_groups * ssm_size}));
        auto u = several_2[0];
        auto b = several_2[1];
        auto c = several_2[2];
        return tensors{gate, graph.ssd(scan, graph.heads(u, ssm_heads, 1), graph.clamp(graph.act("softplus", graph.plus(dt, dt_bias.weight)), dt_min, dt_max), graph.heads(b, ssm_groups, 1), graph.heads(c, ssm_groups, 1), A_log.weight, D.weight, false)};
    }
};


// The interface of layers of all kinds.
struct Layer {
    virtual ~Layer() = default;
    virtual ggml_tensor *operator()(ggml_tensor *x, Graph &graph) = 0;
};

using Layers = std::vector<std::shared_ptr<Layer>>;

struct Mamba2Layer : Layer {
    Norm norm;
    Mamba2 mixer;

    Mamba2Layer() = default;

    Mamba2Layer(const Config & config, const Prefix & prefix) {
        norm = Norm(prefix.at("norm"), config.hidden, config.eps, false, false);
        mixer = Mamba2(config, prefix.at("mixer"));
    }

    ggml_tensor *operator()(ggml_tensor *x, Graph &graph) override {
        return graph.add(x, mixer(graph.rms_norm(norm, x), graph), 1, 1);
    }
};


struct Mamba2Model {
    Embedding embeddings;
    Norm norm_f;
    Layers layers;

    Mamba2Model() = default;

    Mamba2Model(const Config & config, const Prefix & prefix) {
        embeddings = Embedding(prefix.at("embeddings"), config.vocab, config.hidden);
        norm_f = Norm(prefix.at("norm_f"), config.hidden, config.eps, false, false);
        for (int layer = 0; layer < config.layers; ++layer) {
            layers.push_back(std::make_shared<Mamba2Layer>(config, prefix.at(filled("layers.{}", layer))));
        }
    }

    ggml_tensor *operator()(ggml_tensor *tokens, Graph &graph) {
        auto x = graph.embed(embeddings, tokens);
        for (const auto & layer : layers) {
            x = (*layer)(x, graph);
        }
        return graph.rms_norm(norm_f, x);
    }
};


struct Mamba2ForCausalLM : Model {
    Config config;
    Linear lm_head;
    Mamba2Model backbone;

    Mamba2ForCausalLM(const Config & given, const Prefix & prefix) : config(given) {
        lm_head = Linear(prefix.at("lm_head"), config.hidden, config.vocab, false);
        backbone = Mamba2Model(config, prefix.at("backbone"));
        if (config.tied) {
            tie(prefix, "lm_head.weight", lm_head.weight, backbone.embeddings.weight);
        }
    }

    ggml_tensor *operator()(ggml_tensor * tokens, Graph & graph) override {
        auto x = backbone(tokens, graph);
        auto logits = graph.linear(lm_head, x);
        return logits;
    }
};

const Family family("mamba2", [](const Value & config, const Prefix & prefix) {
    return std::make_unique<Mamba2ForCausalLM>(Config(config), prefix);
});

}
