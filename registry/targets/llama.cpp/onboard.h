// Models that are written from specs: values of configs, modules that know their tensors, and steps of graphs.
// A family is a file beside this one that registers itself; it needs no other change of llama.cpp.
#pragma once

#include "models.h"

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace onboard {

using tensors = std::vector<ggml_tensor *>;

// A value of a config: null, true or false, a number, a text, a list or a map.
struct Value {
    enum Kind { NONE, BOOL, INT, FLOAT, TEXT, LIST, MAP } kind = NONE;
    int64_t i = 0;
    double  x = 0;
    std::string text;
    std::vector<Value> items;
    std::map<std::string, Value> entries;

    Value() {}
    Value(std::nullptr_t) {}
    Value(bool flag) : kind(BOOL), i(flag), x(flag) {}
    Value(int n) : kind(INT), i(n), x(n) {}
    Value(int64_t n) : kind(INT), i(n), x((double) n) {}
    Value(double x) : kind(FLOAT), i((int64_t) x), x(x) {}
    Value(const char * text) : kind(TEXT), text(text) {}
    Value(const std::string & text) : kind(TEXT), text(text) {}
    Value(std::initializer_list<Value> items) : kind(LIST), items(items) {}

    explicit operator bool() const;
    bool is_null() const { return kind == NONE; }
    bool is_number() const { return kind == INT || kind == FLOAT || kind == BOOL; }
    // The value as a type, or an error.
    int64_t integer() const;
    float number() const;
    double real() const;
    bool flag() const;
    Value operator[](const Value & key) const;
    Value otherwise(const std::function<Value()> & other) const; // if it is null
};

Value operator+(const Value & a, const Value & b);
Value operator-(const Value & a, const Value & b);
Value operator*(const Value & a, const Value & b);
Value operator/(const Value & a, const Value & b);
Value operator%(const Value & a, const Value & b);
Value operator-(const Value & a);
bool operator==(const Value & a, const Value & b);
inline bool operator!=(const Value & a, const Value & b) { return !(a == b); }
bool operator<(const Value & a, const Value & b);
inline bool operator>(const Value & a, const Value & b) { return b < a; }
bool operator<=(const Value & a, const Value & b);
inline bool operator>=(const Value & a, const Value & b) { return b <= a; }

Value list(std::initializer_list<Value> items);
Value floor_div(const Value & a, const Value & b);
Value power(const Value & a, const Value & b);
Value both(const Value & a, const Value & b);
Value either(const Value & a, const Value & b);
Value read(const Value & config, std::initializer_list<const char *> keys, const Value & other = nullptr);
bool has(const Value & config, const std::string & key);
bool contains(const Value & list, const Value & item);
Value entry(const Value & map, const Value & key, const Value & other);
Value map(std::initializer_list<std::pair<Value, Value>> entries);
Value each(const Value & list, const std::function<Value(const Value &)> & body,
        const std::function<bool(const Value &)> & filter = nullptr);
Value slice(const Value & list, const Value & from, const Value & to);
Value range(const Value & a, const Value & b = nullptr, const Value & step = 1);
Value repeat(const Value & list, const Value & count);
Value len_of(const Value & list);
Value sum_of(const Value & list);
Value max_of(const Value & a, const Value & b = nullptr);
Value min_of(const Value & a, const Value & b = nullptr);
Value abs_of(const Value & a);
Value round_of(const Value & a);
Value str_of(const Value & a);
Value list_of(const Value & a);
bool any_of(const Value & list);
bool all_of(const Value & list);
bool bool_of(const Value & a);
bool is_list(const Value & a);
Value integer(const Value & a);
Value number(const Value & a);
Value f32(const Value & a);
Value bf16(const Value & a);
std::string filled(const std::string & form, const Value & a = nullptr, const Value & b = nullptr);
[[noreturn]] void unknown_kind(const Value & kind);

namespace math {
Value sqrt(const Value & a);
Value log(const Value & a);
Value exp(const Value & a);
Value ceil(const Value & a);
Value floor(const Value & a);
}

// What a layer keeps between calls.
struct Plan {
    struct Layer {
        int64_t kv_heads = 0, key = 0, value = 0, window = 0, chunk = 0;
        int64_t kept = 0; // numbers of recurrent states
    };
    std::vector<Layer> layers;
    float softcap = -1.0f; // of scores; below 0 if no attention was seen
    int64_t most_bias = 0;
};

struct Loading {
    llama_model_base * model = nullptr;
    llama_model_loader * loader = nullptr; // null while only the plan is made
    std::set<std::string> names;           // that were asked for
    std::set<std::string> missing;
    Plan plan;
    int layers = 0;
};

// The path of a module, by which it finds its tensors.
struct Prefix {
    Loading * loading = nullptr; // null when the model is loaded
    std::string path;
    std::string name; // the path below the layer
    int layer = -1;
    bool absent = false;

    Prefix at(const std::string & name) const;
    Prefix when(const Value & condition) const; // of a module that is there if the condition holds
    ggml_tensor * tensor(
            const char * suffix, llm_tensor like, std::initializer_list<Value> sizes, bool required = true) const;
};

// A module of the library, after which the tensors that it computes are named.
struct Named {
    std::string name;
    int layer = -1;
    Named() {}
    explicit Named(const Prefix & prefix) : name(prefix.name), layer(prefix.layer) {}
};

struct Linear : Named {
    ggml_tensor * weight = nullptr;
    ggml_tensor * bias = nullptr;
    Linear() {}
    Linear(const Prefix & prefix, const Value & in, const Value & out, const Value & bias = false);
};

struct Embedding : Named {
    ggml_tensor * weight = nullptr;
    Embedding() {}
    Embedding(const Prefix & prefix, const Value & count, const Value & size);
};

struct Norm : Named {
    ggml_tensor * weight = nullptr;
    ggml_tensor * bias = nullptr;
    float eps = 0.0f;
    bool plus_one = false;
    int64_t groups = 1;
    Norm() {}
    Norm(const Prefix & prefix, const Value & size, const Value & eps, const Value & bias = false,
            const Value & plus_one = false, const Value & groups = 1);
};

struct Parameter : Named {
    ggml_tensor * weight = nullptr;
    Parameter() {}
    Parameter(const Prefix & prefix, const Value & a, const Value & b = nullptr, const Value & c = nullptr);
};

struct Experts : Named {
    ggml_tensor * gate = nullptr;
    ggml_tensor * up = nullptr;
    ggml_tensor * down = nullptr;
    ggml_tensor * gate_bias = nullptr;
    ggml_tensor * up_bias = nullptr;
    ggml_tensor * down_bias = nullptr;
    Experts() {}
    Experts(const Prefix & prefix, const Value & size, const Value & inner, const Value & count,
            const Value & gated = true, const Value & bias = false);
};

struct Conv : Named {
    ggml_tensor * weight = nullptr;
    ggml_tensor * bias = nullptr;
    int64_t channels = 0, width = 0, offset = 0, dilation = 1;
    Conv() {}
    Conv(const Prefix & prefix, const Value & channels, const Value & width, const Value & bias = false,
            const Value & dilation = 1);
};

// A recurrent state of a layer.
struct State : Named {
    int64_t size = 0, offset = 0;
    State() {}
    State(const Prefix & prefix, const Value & size);
};

// What attention keeps of a layer.
struct Attend : Named {
    Attend() {}
    Attend(const Prefix & prefix, const Value & kv_heads, const Value & key, const Value & value,
            const Value & window = nullptr, const Value & chunk = false, const Value & softcap = nullptr);
};

struct Rotary;

struct Rope {
    const Rotary * table = nullptr;
    ggml_tensor * periods = nullptr;
    ggml_tensor * long_periods = nullptr; // of rows where `is_long` is 1
    ggml_tensor * is_long = nullptr;
    float factor = 1.0f;
};

struct Graph : public llm_graph_context {
    explicit Graph(const llm_graph_params & params);

    ggml_tensor * tokens_in = nullptr;
    ggml_tensor * positions_in = nullptr;

    ggml_tensor * tokens();
    ggml_tensor * positions();
    // Rows for which results are wanted, from where on no other rows are computed.
    ggml_tensor * rows(ggml_tensor * x);
    // Rows that enter the head.
    ggml_tensor * result(ggml_tensor * x);
    // Log-odds of the tokens of a vocabulary.
    ggml_tensor * logits(ggml_tensor * x, int64_t vocabulary);
    void layer_input(ggml_tensor * x, int layer) { res->t_layer_inp[layer] = x; }
    ggml_tensor * layer_output(ggml_tensor * x, int layer);
    ggml_tensor * cont(ggml_tensor * x);

    ggml_tensor * embed(const Embedding & w, ggml_tensor * tokens);
    ggml_tensor * linear(const Linear & w, ggml_tensor * x);
    ggml_tensor * product(ggml_tensor * w, ggml_tensor * x);
    ggml_tensor * rms_norm(const Norm & w, ggml_tensor * x);
    ggml_tensor * rms_norm(ggml_tensor * x, const Value & eps);
    ggml_tensor * layer_norm(const Norm & w, ggml_tensor * x);
    ggml_tensor * layer_norm(ggml_tensor * x, const Value & eps);
    ggml_tensor * gated_norm(const Norm & w, ggml_tensor * x, ggml_tensor * gate, bool gate_first, bool silu = true);
    ggml_tensor * act(const Value & name, ggml_tensor * x);
    ggml_tensor * scale(ggml_tensor * x, const Value & s, const Value & shift = 0);
    ggml_tensor * sum(ggml_tensor * x);
    ggml_tensor * mean(ggml_tensor * x);
    // Rows of the two have these numbers of axes.
    ggml_tensor * binary(char op, ggml_tensor * x, ggml_tensor * y, int rank, int other);
    ggml_tensor * add(ggml_tensor * x, ggml_tensor * y, int rank = 1, int other = 1);
    ggml_tensor * sub(ggml_tensor * x, ggml_tensor * y, int rank = 1, int other = 1);
    ggml_tensor * mul(ggml_tensor * x, ggml_tensor * y, int rank = 1, int other = 1);
    ggml_tensor * div(ggml_tensor * x, ggml_tensor * y, int rank = 1, int other = 1);
    ggml_tensor * plus(ggml_tensor * x, ggml_tensor * parameter);
    ggml_tensor * times(ggml_tensor * x, ggml_tensor * parameter);
    ggml_tensor * clamp(ggml_tensor * x, const Value & low, const Value & high);
    ggml_tensor * heads(ggml_tensor * x, const Value & count, int rank = 1);
    ggml_tensor * flat(ggml_tensor * x, int rank);
    ggml_tensor * merge(ggml_tensor * x, int rank = 2);
    tensors split(ggml_tensor * x, const Value & sizes);
    ggml_tensor * part(ggml_tensor * x, const Value & from, const Value & to);
    ggml_tensor * concat(const tensors & parts);
    ggml_tensor * rotate(ggml_tensor * x, const Rope & rope, bool interleaved);
    ggml_tensor * attend(const Attend & state, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, const Value & scale,
            ggml_tensor * sinks = nullptr);
    ggml_tensor * latent(const Attend & state, const Linear & w, ggml_tensor * q, ggml_tensor * c, ggml_tensor * r,
            const Value & v_dim, const Value & scale, ggml_tensor * sinks = nullptr);
    ggml_tensor * places(const Value & offset);
    ggml_tensor * by_position(const std::function<std::vector<float>(int64_t)> & row);
    ggml_tensor * temperature(ggml_tensor * x, const Value & factor, const Value & every, const Value & shift,
            const char * form, int rank);
    ggml_tensor * sinusoid(const Value & frequencies, const Value & offset);
    ggml_tensor * copies(ggml_tensor * x, const Value & count);
    // A weight for each row of x.
    ggml_tensor * parameter(ggml_tensor * w, int axes, ggml_tensor * x, int x_axes);
    ggml_tensor * heads_linear(ggml_tensor * w, ggml_tensor * x, bool in_out, bool shared);
    ggml_tensor * xielu(ggml_tensor * x, ggml_tensor * p, ggml_tensor * n, ggml_tensor * beta, ggml_tensor * eps);
    ggml_tensor * topk(ggml_tensor * x, const Value & count);
    ggml_tensor * group_mask(ggml_tensor * x, const Value & groups, const Value & keep, bool by_max, bool zero);
    ggml_tensor * pick(ggml_tensor * x, ggml_tensor * chosen);
    ggml_tensor * mixture(const Experts & w, ggml_tensor * x, ggml_tensor * chosen, ggml_tensor * weights,
            const Value & act, bool on_input = false, const Value & limit = nullptr, const Value & alpha = nullptr);
    ggml_tensor * conv(const Conv & w, ggml_tensor * x);
    ggml_tensor * previous(const State & state, ggml_tensor * x);
    ggml_tensor * ssd(const State & state, ggml_tensor * x, ggml_tensor * dt, ggml_tensor * b, ggml_tensor * c,
            ggml_tensor * a_log, ggml_tensor * d, bool per_channel = false);
    ggml_tensor * log_decay(
            ggml_tensor * x, ggml_tensor * a_log, ggml_tensor * bias, int rank, const Value & floor = nullptr);
    ggml_tensor * delta(const State & state, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
            ggml_tensor * beta, const Value & scale, const Value & eps);

  private:
    llm_graph_input_attn_kv      * attn = nullptr;
    llm_graph_input_attn_kv_iswa * attn_iswa = nullptr;
    llm_graph_input_rs           * recurrent = nullptr;
    const llama_memory_recurrent_context * recurrent_context = nullptr;
    std::map<int, ggml_tensor *> states;
    bool few_rows = false;
    ggml_tensor * named(const Named & module, ggml_tensor * x);
    ggml_tensor * with(char op, ggml_tensor * x, ggml_tensor * parameter);
    ggml_tensor * weighted(const Norm & w, ggml_tensor * y);
    void inputs();
    ggml_tensor * kept(int layer, int64_t offset, int64_t size);
    void keep(int layer, int64_t offset, ggml_tensor * x, int64_t size);
};

// Angles of rotary positions: periods by which positions are divided.
struct Rotary {
    std::vector<float> periods, long_periods;
    float scale = 1.0f;
    int64_t reach = 0;
    Value dim_given, theta_given, parameters_given, partial_given, context_given, original_given;
    Rotary() {}
    Rotary(const Value & dim, const Value & theta, const Value & parameters = nullptr);
    Rotary & partial(const Value & value);
    Rotary & context(const Value & value);
    Rotary & original(const Value & value);
    Rotary & behind(const Value & value);
    [[noreturn]] Rotary & long_by_scale(const Value & value);
    Rope operator()(Graph & g) const;
    void make();
};

void tie(const Prefix & prefix, const char * name, ggml_tensor *& weight, ggml_tensor * other);

// The values of a list of known length.
template <size_t... N> auto unpacked(const tensors & all, std::index_sequence<N...>) {
    return std::make_tuple(all.at(N)...);
}
template <size_t count> auto unpacked(const tensors & all) { return unpacked(all, std::make_index_sequence<count>()); }

// Base of the settings of a family.
struct Settings {
    const Value config;
    explicit Settings(const Value & config) : config(config) {}
};

// Base of the modules of a family.
template <typename Config> struct Module {
    const Config & config;
    const Prefix prefix;
    const Value layer; // the number of the layer that it lies in
    Module(const Config & config, const Prefix & prefix) : config(config), prefix(prefix), layer(prefix.layer) {}
};

// A module that is of one class or of another, or is missing.
template <typename... T> struct OneOf : public std::variant<std::monostate, T...> {
    OneOf() {}

    // Of the first class if a condition holds; otherwise of the second, if there is one.
    template <typename... A> explicit OneOf(const Value & is_first, const A &... given) {
        if (is_first) {
            this->template emplace<1>(given...);
        } else if constexpr (sizeof...(T) > 1) {
            this->template emplace<2>(given...);
        }
    }

    // The module, where there is one class.
    auto * operator->() { return &std::get<1>(*this); }

    template <typename... A> auto operator()(A &&... given) {
        using Result = std::common_type_t<std::invoke_result_t<T, A...>...>;
        return std::visit([&](auto & module) -> Result {
            if constexpr (std::is_same_v<std::decay_t<decltype(module)>, std::monostate>) {
                throw std::runtime_error("onboard: a layer lacks a module");
            } else {
                return module(given...);
            }
        }, static_cast<std::variant<std::monostate, T...> &>(*this));
    }
};

// A layer, whose input and output llama.cpp knows.
template <typename... T> struct LayerOf {
    OneOf<T...> module;
    int number = 0;

    template <typename... A> auto operator()(ggml_tensor * x, A &&... given) {
        Graph & graph = graph_of(given...);
        graph.layer_input(x, number);
        auto y = module(x, given...);
        if constexpr (std::is_same_v<decltype(y), ggml_tensor *>) {
            return graph.layer_output(y, number);
        } else {
            return y;
        }
    }

private:
    template <typename A, typename... B> static Graph & graph_of(A & first, B &... others) {
        if constexpr (std::is_same_v<A, Graph>) {
            return first;
        } else {
            return graph_of(others...);
        }
    }
};

// All layers. If there are several classes, each has a kind of layers or a list of kinds, and null stands for all other kinds.
template <typename... T> struct Layers : public std::vector<LayerOf<T...>> {
    template <typename Config>
    Layers(const Config & config, const Prefix & prefix, const char * path, const Value & count,
            const Value & kinds = nullptr, const Value & classes = nullptr) {
        this->resize(count.integer());
        for (int n = 0; n < (int) this->size(); ++n) {
            (*this)[n].number = n;
            const size_t place = kinds.is_null() ? 0 : place_of(kinds[n], classes);
            make(place, (*this)[n].module, std::index_sequence_for<T...>(), config, prefix.at(filled(path, n)));
        }
    }

private:
    static size_t place_of(const Value & kind, const Value & classes) {
        for (size_t n = 0; n < classes.items.size(); ++n) {
            const Value & one = classes.items[n];
            if (one.is_null() || one == kind || (is_list(one) && contains(one, kind))) {
                return n;
            }
        }
        unknown_kind(kind);
    }

    template <size_t... N, typename... A>
    static void make(size_t place, OneOf<T...> & module, std::index_sequence<N...>, const A &... given) {
        ((void) (place == N ? (module.template emplace<N + 1>(given...), 0) : 0), ...);
    }
};

// A model of one family.
struct Model {
    virtual ~Model() = default;
    virtual ggml_tensor * operator()(ggml_tensor * tokens, Graph & g) = 0;
};

using Maker = std::function<std::unique_ptr<Model>(const Value & config, const Prefix & prefix)>;

// Makes a family known under its name.
struct Family {
    Family(const char * name, Maker maker);
};

// A model with its settings.
template <typename Config, typename T> struct Owner : public Model {
    Config config;
    T model;
    Owner(const Value & given, const Prefix & prefix) : config(given), model(config, prefix) {}
    ggml_tensor * operator()(ggml_tensor * tokens, Graph & g) override { return model(tokens, g); }
};

template <typename Config, typename T> std::unique_ptr<Model> new_model(const Value & config, const Prefix & prefix) {
    return std::make_unique<Owner<Config, T>>(config, prefix);
}

}
