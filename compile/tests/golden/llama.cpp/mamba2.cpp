// Mamba-2: state spaces only, the residual stream in f32. Source: transformers models/mamba2.
//
// Written from the spec `mamba2` of onboard.

#include "onboard.h"

// llama.cpp compiles several files as one, so each family has a namespace.
namespace onboard::family_mamba2 {

// Sizes and settings, read from the config of the checkpoint.
struct Config : Settings {
    int64_t hidden = config["hidden_size"].integer();
    int64_t layers = config["num_hidden_layers"].integer();
    int64_t vocab = config["vocab_size"].integer();
    double eps = read(config, {"layer_norm_epsilon"}, 1e-05).real();
    bool tied = read(config, {"tie_word_embeddings"}, false).flag();
    int64_t ssm_heads = read(config, {"num_heads"}, 128).integer();
    Value ssm_dim = read(config, {"head_dim"}, 64);
    int64_t ssm_inner = (ssm_heads * ssm_dim).integer();
    int64_t ssm_groups = read(config, {"n_groups"}, 8).integer();
    int64_t ssm_size = read(config, {"state_size"}, 128).integer();
    Value ssm_act = read(config, {"hidden_act"}, "silu");
    Value conv_width = read(config, {"conv_kernel"}, 4);
    bool conv_bias = read(config, {"use_conv_bias"}, true).flag();
    bool ssm_bias = read(config, {"use_bias"}, false).flag();
    Value dt_limit = read(config, {"time_step_limit"});
    Value dt_min = dt_limit ? dt_limit[0] : nullptr;
    Value dt_max = dt_limit ? (dt_limit[1] > 1e38 ? nullptr : dt_limit[1]) : nullptr;

    using Settings::Settings;
};

// `P` is the path of the mixer.
struct Mamba2 : Module<Config> {
    Linear in_proj{prefix.at("in_proj"), config.hidden,
            2 * config.ssm_inner + 2 * config.ssm_groups * config.ssm_size + config.ssm_heads, config.ssm_bias};
    Norm norm{prefix.at("norm"), config.ssm_heads * floor_div(config.ssm_inner, config.ssm_heads), config.eps, false,
            false, config.ssm_groups};
    Linear out_proj{prefix.at("out_proj"), config.ssm_heads * floor_div(config.ssm_inner, config.ssm_heads),
            config.hidden, config.ssm_bias};
    Conv conv1d{prefix.at("conv1d"), config.ssm_inner + 2 * config.ssm_groups * config.ssm_size, config.conv_width,
            config.conv_bias};
    Parameter A_log{prefix.at("A_log"), config.ssm_heads};
    Parameter D{prefix.at("D"), config.ssm_heads};
    Parameter dt_bias{prefix.at("dt_bias"), config.ssm_heads};
    State scan{prefix.at("scan"), config.ssm_heads * floor_div(config.ssm_inner, config.ssm_heads) * config.ssm_size};

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * x, Graph & graph) {
        auto [gate, y] = unpacked<2>(mamba2_scan(graph.linear(in_proj, x), graph));
        y = graph.gated_norm(norm, y, gate, true);
        return graph.linear(out_proj, y);
    }

    tensors mamba2_scan(ggml_tensor * x, Graph & graph) {
        auto [gate, xbc, dt] = unpacked<3>(graph.split(x,
                list({config.ssm_inner, config.ssm_inner + 2 * config.ssm_groups * config.ssm_size,
                config.ssm_heads})));
        xbc = graph.act(config.ssm_act, graph.conv(conv1d, xbc));
        auto [u, b, c] = unpacked<3>(graph.split(xbc, list({config.ssm_inner, config.ssm_groups * config.ssm_size,
                config.ssm_groups * config.ssm_size})));
        return tensors{gate, graph.ssd(scan, graph.heads(u, config.ssm_heads),
                graph.clamp(graph.act("softplus", graph.plus(dt, dt_bias.weight)), config.dt_min, config.dt_max),
                graph.heads(b, config.ssm_groups), graph.heads(c, config.ssm_groups), A_log.weight, D.weight)};
    }
};

struct Mamba2Layer : Module<Config> {
    Norm norm{prefix.at("norm"), config.hidden, config.eps};
    Mamba2 mixer{config, prefix.at("mixer")};

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * x, Graph & graph) {
        return graph.add(x, mixer(graph.rms_norm(norm, x), graph));
    }
};

struct Mamba2Model : Module<Config> {
    Embedding embeddings{prefix.at("embeddings"), config.vocab, config.hidden};
    Norm norm_f{prefix.at("norm_f"), config.hidden, config.eps};
    Layers<Mamba2Layer> layers{config, prefix, "layers.{}", config.layers};

    using Module::Module;

    ggml_tensor * operator()(ggml_tensor * tokens, Graph & graph) {
        ggml_tensor * x = graph.embed(embeddings, tokens);
        for (auto & layer : layers) {
            x = layer(x, graph);
        }
        x = graph.rows(x);
        return graph.rms_norm(norm_f, x);
    }
};

struct Mamba2ForCausalLM : Module<Config> {
    Linear lm_head{prefix.at("lm_head"), config.hidden, config.vocab};
    Mamba2Model backbone{config, prefix.at("backbone")};

    Mamba2ForCausalLM(const Config & config, const Prefix & prefix) : Module(config, prefix) {
        if (config.tied) {
            tie(prefix, "lm_head.weight", lm_head.weight, backbone.embeddings.weight);
        }
    }

    ggml_tensor * operator()(ggml_tensor * tokens, Graph & graph) {
        ggml_tensor * x = graph.result(backbone(tokens, graph));
        return graph.linear(lm_head, x);
    }
};

const Family family("mamba2", new_model<Config, Mamba2ForCausalLM>);

}
