#include "onboard.h"

#include "../llama-kv-cache-iswa.h"
#include "../llama-kv-cache.h"
#include "../llama-memory-hybrid-iswa.h"
#include "../llama-memory-hybrid.h"
#include "../llama-memory-recurrent.h"
#include "../llama-model-loader.h"

#include "../../vendor/nlohmann/json.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace onboard {

static std::runtime_error failure(const std::string & message) {
    return std::runtime_error("onboard: " + message);
}

// values

Value::operator bool() const {
    switch (kind) {
        case NONE: return false;
        case TEXT: return !text.empty();
        case LIST: return !items.empty();
        case MAP:  return !entries.empty();
        default:   return x != 0.0;
    }
}

int64_t Value::integer() const {
    if (!is_number() || (kind == FLOAT && x != std::floor(x))) {
        throw failure(is_number() ? std::to_string(x) + " in the config is no integer"
                                  : "a number is missing in the config");
    }
    return i;
}

float Value::number() const { return (float) real(); }

double Value::real() const {
    if (!is_number()) {
        throw failure("a number is missing in the config");
    }
    return x;
}

bool Value::flag() const {
    if (!is_number() || (x != 0.0 && x != 1.0)) {
        throw failure("a truth value is missing in the config");
    }
    return x != 0.0;
}

Value Value::operator[](const Value & key) const {
    if (kind == LIST && key.is_number()) {
        const int64_t n = key.i < 0 ? key.i + (int64_t) items.size() : key.i;
        if (n < 0 || n >= (int64_t) items.size()) {
            throw failure("a list of the config is too short");
        }
        return items[n];
    }
    if (kind == MAP) {
        auto found = entries.find(key.kind == TEXT ? key.text : std::to_string(key.i));
        if (found == entries.end()) {
            throw failure("the config lacks the key `" + key.text + "`");
        }
        return found->second;
    }
    return nullptr;
}

Value Value::otherwise(const std::function<Value()> & other) const { return is_null() ? other() : *this; }

static Value arithmetic(const Value & a, const Value & b, char sign) {
    if (a.kind == Value::LIST && b.kind == Value::LIST && sign == '+') {
        Value joined = a;
        joined.items.insert(joined.items.end(), b.items.begin(), b.items.end());
        return joined;
    }
    if (a.kind == Value::TEXT && b.kind == Value::TEXT && sign == '+') {
        return a.text + b.text;
    }
    if (sign == '*' && a.kind == Value::LIST && b.is_number()) {
        Value all;
        all.kind = Value::LIST;
        for (int64_t n = 0; n < b.i; ++n) {
            all.items.insert(all.items.end(), a.items.begin(), a.items.end());
        }
        return all;
    }
    if (!a.is_number() || !b.is_number()) {
        return nullptr;
    }
    const bool whole = a.kind != Value::FLOAT && b.kind != Value::FLOAT;
    switch (sign) {
        case '+': return whole ? Value(a.i + b.i) : Value(a.x + b.x);
        case '-': return whole ? Value(a.i - b.i) : Value(a.x - b.x);
        case '*': return whole ? Value(a.i * b.i) : Value(a.x * b.x);
        case '/': return a.x / b.x;
        case '%': return whole ? Value(((a.i % b.i) + b.i) % b.i) : Value(a.x - std::floor(a.x / b.x) * b.x);
        default:
            return whole ? Value((int64_t)std::floor((double)a.i / (double)b.i)) : Value(std::floor(a.x / b.x));
    }
}

Value operator+(const Value & a, const Value & b) { return arithmetic(a, b, '+'); }
Value operator-(const Value & a, const Value & b) { return arithmetic(a, b, '-'); }
Value operator*(const Value & a, const Value & b) { return arithmetic(a, b, '*'); }
Value operator/(const Value & a, const Value & b) { return arithmetic(a, b, '/'); }
Value operator%(const Value & a, const Value & b) { return arithmetic(a, b, '%'); }
Value floor_div(const Value & a, const Value & b) { return arithmetic(a, b, 'd'); }
Value operator-(const Value & a) { return arithmetic(0, a, '-'); }

bool operator==(const Value & a, const Value & b) {
    if (a.is_number() && b.is_number()) {
        return a.x == b.x;
    }
    return a.kind == b.kind && a.text == b.text && a.items == b.items && a.entries == b.entries;
}

bool operator<(const Value & a, const Value & b) {
    return a.is_number() && b.is_number() && a.x < b.x;
}

bool operator<=(const Value & a, const Value & b) {
    return a.is_number() && b.is_number() && a.x <= b.x;
}

Value list(std::initializer_list<Value> items) {
    Value all;
    all.kind = Value::LIST;
    all.items = items;
    return all;
}

Value power(const Value & a, const Value & b) {
    const double result = std::pow(a.x, b.x);
    if (a.kind == Value::INT && b.kind == Value::INT && b.i >= 0) {
        return (int64_t) std::llround(result);
    }
    return result;
}

Value both(const Value & a, const Value & b) { return a ? b : a; }
Value either(const Value & a, const Value & b) { return a ? a : b; }

static const Value * reached(const Value & config, const std::string & key) {
    const Value * at = &config;
    size_t start = 0;
    while (at && start <= key.size()) {
        const size_t end = std::min(key.find('.', start), key.size());
        auto found = at->entries.find(key.substr(start, end - start));
        at = found == at->entries.end() ? nullptr : &found->second;
        start = end + 1;
    }
    return at;
}

Value read(const Value & config, std::initializer_list<const char *> keys, const Value & other) {
    for (const char * key : keys) {
        const Value * found = reached(config, key);
        if (found && !found->is_null()) {
            return *found;
        }
    }
    return other;
}

bool has(const Value & config, const std::string & key) { return reached(config, key) != nullptr; }

bool contains(const Value & list, const Value & item) {
    if (list.kind == Value::TEXT) {
        return list.text.find(item.text) != std::string::npos;
    }
    if (list.kind == Value::MAP) {
        return list.entries.count(item.text) > 0;
    }
    return std::find(list.items.begin(), list.items.end(), item) != list.items.end();
}

Value entry(const Value & map, const Value & key, const Value & other) {
    auto found = map.entries.find(key.kind == Value::TEXT ? key.text : std::to_string(key.i));
    return found == map.entries.end() || found->second.is_null() ? other : found->second;
}

Value map(std::initializer_list<std::pair<Value, Value>> entries) {
    Value map;
    map.kind = Value::MAP;
    for (const auto & [key, value] : entries) {
        map.entries[key.kind == Value::TEXT ? key.text : std::to_string(key.i)] = value;
    }
    return map;
}

Value each(const Value & list, const std::function<Value(const Value &)> & body,
        const std::function<bool(const Value &)> & filter) {
    Value all;
    all.kind = Value::LIST;
    for (const Value & item : list.items) {
        if (!filter || filter(item)) {
            all.items.push_back(body(item));
        }
    }
    return all;
}

Value slice(const Value & list, const Value & from, const Value & to) {
    const int64_t size = list.items.size();
    auto place = [&](const Value & end, int64_t other) {
        const int64_t n = end.is_null() ? other : end.i < 0 ? end.i + size : end.i;
        return std::max<int64_t>(0, std::min(n, size));
    };
    Value part;
    part.kind = Value::LIST;
    const int64_t last = place(to, size);
    for (int64_t n = place(from, 0); n < last; ++n) {
        part.items.push_back(list.items[n]);
    }
    return part;
}

Value range(const Value & a, const Value & b, const Value & step) {
    Value all;
    all.kind = Value::LIST;
    const int64_t from = b.is_null() ? 0 : a.i;
    const int64_t to = b.is_null() ? a.i : b.i;
    for (int64_t n = from; n < to; n += std::max<int64_t>(1, step.i)) {
        all.items.push_back(n);
    }
    return all;
}

Value repeat(const Value & list, const Value & count) {
    Value all;
    all.kind = Value::LIST;
    for (int64_t n = 0; n < count.i && !list.items.empty(); ++n) {
        all.items.push_back(list.items[n % list.items.size()]);
    }
    return all;
}

Value len_of(const Value & list) {
    return (int64_t)(list.kind == Value::TEXT  ? list.text.size()
                     : list.kind == Value::MAP ? list.entries.size()
                                               : list.items.size());
}

Value sum_of(const Value & list) {
    Value sum = 0;
    for (const Value & item : list.items) {
        sum = sum + item;
    }
    return sum;
}

static Value extreme(const Value & a, const Value & b, bool most) {
    const std::vector<Value> all = a.kind == Value::LIST ? a.items : std::vector<Value>{a, b};
    if (all.empty()) {
        return nullptr;
    }
    Value best = all[0];
    for (const Value & item : all) {
        if (most ? best < item : item < best) {
            best = item;
        }
    }
    return best;
}

Value max_of(const Value & a, const Value & b) { return extreme(a, b, true); }
Value min_of(const Value & a, const Value & b) { return extreme(a, b, false); }
Value abs_of(const Value & a) { return a < 0 ? -a : a; }
Value round_of(const Value & a) { return (int64_t) std::nearbyint(a.x); }
Value str_of(const Value & a) { return a.kind == Value::TEXT ? a.text : std::to_string(a.i); }
Value list_of(const Value & a) { return a; }
bool any_of(const Value & list) {
    return std::any_of(list.items.begin(), list.items.end(), [](const Value & v) { return bool(v); });
}
bool all_of(const Value & list) {
    return std::all_of(list.items.begin(), list.items.end(), [](const Value & v) { return bool(v); });
}
bool bool_of(const Value & a) { return bool(a); }
bool is_list(const Value & a) { return a.kind == Value::LIST; }
Value integer(const Value & a) { return (int64_t) std::trunc(a.x); }
Value number(const Value & a) {
    return a.kind == Value::TEXT ? Value(a.text[0] == '-' ? -INFINITY : INFINITY) : Value(a.x);
}
Value f32(const Value & a) { return (double) (float) a.x; }

Value bf16(const Value & a) {
    return (double) ggml_bf16_to_fp32(ggml_fp32_to_bf16((float) a.x));
}

std::string filled(const std::string & form, const Value & a, const Value & b) {
    std::string text = form;
    for (const Value * one : {&a, &b}) {
        const size_t at = text.find("{}");
        if (at != std::string::npos) {
            text.replace(at, 2, str_of(*one).text);
        }
    }
    return text;
}

void unknown_kind(const Value & kind) {
    throw failure("there is no kind of layers `" + kind.text + "`");
}

namespace math {
Value sqrt(const Value & a) { return std::sqrt(a.x); }
Value log(const Value & a) { return std::log(a.x); }
Value exp(const Value & a) { return std::exp(a.x); }
Value ceil(const Value & a) { return (int64_t) std::ceil(a.x); }
Value floor(const Value & a) { return (int64_t) std::floor(a.x); }
}

static Value value_of(const nlohmann::json & json) {
    Value value;
    switch (json.type()) {
        case nlohmann::json::value_t::boolean:         return json.get<bool>();
        case nlohmann::json::value_t::number_integer:
        case nlohmann::json::value_t::number_unsigned: return json.get<int64_t>();
        case nlohmann::json::value_t::number_float:    return json.get<double>();
        case nlohmann::json::value_t::string:          return json.get<std::string>();
        case nlohmann::json::value_t::array:
            value.kind = Value::LIST;
            for (const auto & item : json) {
                value.items.push_back(value_of(item));
            }
            return value;
        case nlohmann::json::value_t::object:
            if (json.contains("__float__")) {
                const std::string word = json["__float__"];
                return word[0] == '-' ? -(double) INFINITY : word[0] == 'n' ? (double) NAN : (double) INFINITY;
            }
            value.kind = Value::MAP;
            for (const auto & item : json.items()) {
                value.entries[item.key()] = value_of(item.value());
            }
            return value;
        default: return nullptr;
    }
}

// modules

Prefix Prefix::at(const std::string & name) const {
    Prefix inner = *this;
    inner.path = path.empty() ? name : path + "." + name;
    const size_t dot = name.rfind('.');
    inner.name = this->name.empty() ? name : this->name + "." + name;
    if (layer < 0 && dot != std::string::npos && std::isdigit((unsigned char) name[dot + 1])) {
        inner.layer = std::stoi(name.substr(dot + 1));
        inner.name.clear();
        loading->layers = std::max(loading->layers, inner.layer + 1);
    }
    return inner;
}

Prefix Prefix::when(const Value & condition) const {
    Prefix inner = *this;
    inner.absent = absent || !condition;
    return inner;
}

ggml_tensor * Prefix::tensor(
        const char * suffix, llm_tensor like, std::initializer_list<Value> sizes, bool required) const {
    if (loading->loader == nullptr || absent) {
        return nullptr;
    }
    const std::string whole = *suffix ? path + "." + suffix : path;
    const std::string name = whole.substr(whole.size() - std::min<size_t>(whole.size(), GGML_MAX_NAME - 1));
    ggml_tensor * meta = loading->loader->get_tensor_meta(name.c_str());
    loading->names.insert(name);
    if (!meta) {
        if (required) {
            loading->missing.insert(name);
        }
        return nullptr;
    }
    int64_t count = 1;
    for (const Value & size : sizes) {
        count *= size.integer();
    }
    if (count != ggml_nelements(meta)) {
        throw failure("`" + name + "` has another size than the config says");
    }
    // Matrices, tables and vectors lie where llama.cpp puts tensors of this kind.
    const bool in_layer = layer >= 0;
    const bool is_table = like == LLM_TENSOR_TOKEN_EMBD;
    const llm_tensor kind = is_table || in_layer          ? like
                            : like == LLM_TENSOR_FFN_DOWN ? LLM_TENSOR_OUTPUT
                                                          : LLM_TENSOR_OUTPUT_NORM;
    const char * word = std::strcmp(suffix, "bias") == 0 ? "bias" : "weight";
    const LLM_TN_IMPL tn(kind, name, word, is_table || !in_layer ? -1 : layer);
    return loading->model->create_tensor(*loading->loader, tn, {meta->ne[0], meta->ne[1], meta->ne[2], meta->ne[3]}, 0);
}

Linear::Linear(const Prefix & prefix, const Value & in, const Value & out, const Value & has_bias) : Named(prefix) {
    weight = prefix.tensor("weight", LLM_TENSOR_FFN_DOWN, {in, out});
    bias = has_bias ? prefix.tensor("bias", LLM_TENSOR_FFN_DOWN, {out}) : nullptr;
}

Embedding::Embedding(const Prefix & prefix, const Value & count, const Value & size) : Named(prefix) {
    Prefix outside = prefix;
    outside.layer = -1;
    weight = outside.tensor("weight", LLM_TENSOR_TOKEN_EMBD, {size, count});
}

Norm::Norm(const Prefix & prefix, const Value & size, const Value & eps, const Value & has_bias, const Value & plus_one,
        const Value & groups) :
    Named(prefix),
    eps(prefix.absent ? 0.0f : eps.number()),
    plus_one(plus_one),
    groups(prefix.absent ? 1 : groups.integer()) {
    weight = prefix.tensor("weight", LLM_TENSOR_ATTN_NORM, {size});
    bias = has_bias ? prefix.tensor("bias", LLM_TENSOR_ATTN_NORM, {size}) : nullptr;
}

Parameter::Parameter(const Prefix & prefix, const Value & a, const Value & b, const Value & c) : Named(prefix) {
    weight = prefix.tensor("", LLM_TENSOR_ATTN_NORM, {a, b.is_null() ? Value(1) : b, c.is_null() ? Value(1) : c});
}

Experts::Experts(const Prefix & prefix, const Value & size, const Value & inner, const Value & count,
        const Value & gated, const Value & bias) :
    Named(prefix) {
    if (gated) {
        gate = prefix.at("gate_proj").tensor("weight", LLM_TENSOR_FFN_GATE_EXPS, {size, inner, count});
        gate_bias = bias ? prefix.at("gate_proj").tensor("bias", LLM_TENSOR_FFN_GATE_EXPS, {inner, count}) : nullptr;
    }
    up = prefix.at("up_proj").tensor("weight", LLM_TENSOR_FFN_UP_EXPS, {size, inner, count});
    down = prefix.at("down_proj").tensor("weight", LLM_TENSOR_FFN_DOWN_EXPS, {inner, size, count});
    up_bias = bias ? prefix.at("up_proj").tensor("bias", LLM_TENSOR_FFN_UP_EXPS, {inner, count}) : nullptr;
    down_bias = bias ? prefix.at("down_proj").tensor("bias", LLM_TENSOR_FFN_DOWN_EXPS, {size, count}) : nullptr;
}

static Plan::Layer & planned(const Prefix & prefix) {
    auto & layers = prefix.loading->plan.layers;
    if (prefix.layer < 0) {
        throw failure("`" + prefix.path + "` keeps a state outside of layers");
    }
    if ((int) layers.size() <= prefix.layer) {
        layers.resize(prefix.layer + 1);
    }
    return layers[prefix.layer];
}

State::State(const Prefix & prefix, const Value & size) : Named(prefix) {
    if (prefix.absent) {
        return;
    }
    this->size = size.integer();
    offset = planned(prefix).kept;
    planned(prefix).kept += this->size;
}

Conv::Conv(const Prefix & prefix, const Value & channels, const Value & width, const Value & has_bias,
        const Value & dilation) :
    Named(prefix) {
    if (prefix.absent) {
        return;
    }
    this->channels = channels.integer();
    this->width = width.integer();
    this->dilation = dilation.integer();
    if (this->dilation != 1) {
        throw failure("convolutions with gaps");
    }
    weight = prefix.tensor("weight", LLM_TENSOR_SSM_CONV1D, {width, channels});
    bias = has_bias ? prefix.tensor("bias", LLM_TENSOR_SSM_CONV1D, {channels}) : nullptr;
    offset = planned(prefix).kept;
    planned(prefix).kept += this->channels * (this->width - 1);
}

Attend::Attend(const Prefix & prefix, const Value & kv_heads, const Value & key, const Value & value,
        const Value & window, const Value & chunk, const Value & softcap) :
    Named(prefix) {
    if (prefix.absent) {
        return;
    }
    Plan::Layer & own = planned(prefix);
    if (own.kv_heads > 0) {
        throw failure("two attentions in one layer");
    }
    own.kv_heads = kv_heads.integer();
    own.key = key.integer();
    own.value = value.integer();
    if (chunk) {
        own.chunk = window.integer();
    } else if (window) {
        own.window = window.integer();
    }
    const float cap = softcap ? softcap.number() : 0.0f;
    float & known = prefix.loading->plan.softcap;
    if (known >= 0.0f && known != cap) {
        throw failure("layers whose scores have different caps");
    }
    known = cap;
}

void tie(const Prefix & prefix, const char * name, ggml_tensor *& weight, ggml_tensor * other) {
    weight = other;
    prefix.loading->missing.erase(prefix.path.empty() ? name : prefix.path + "." + name);
}

// rotary positions

Rotary::Rotary(const Value & dim, const Value & theta, const Value & parameters) :
    dim_given(dim),
    theta_given(theta),
    parameters_given(parameters) {
    make();
}
Rotary & Rotary::partial(const Value & value) { partial_given = value; make(); return *this; }
Rotary & Rotary::context(const Value & value) { context_given = value; make(); return *this; }
Rotary & Rotary::original(const Value & value) { original_given = value; make(); return *this; }

Rotary & Rotary::behind(const Value & value) {
    if (value) {
        throw failure("rotary positions that begin later");
    }
    return *this;
}

[[noreturn]] Rotary & Rotary::long_by_scale(const Value &) {
    throw failure("rotary tables that differ in scale alone");
}

void Rotary::make() {
    const Value & p = parameters_given;
    const std::string kind = read(p, {"rope_type", "type"}, "default").text;
    Value partial = partial_given;
    if (partial.is_null()) {
        partial = kind == "default" ? Value(1.0) : read(p, {"partial_rotary_factor"}, 1.0);
    }
    const int64_t head = dim_given.integer();
    const int64_t dim = kind == "proportional" ? head : (int64_t) (head * partial.x);
    const double theta = theta_given.x;
    periods.clear();
    long_periods.clear();
    scale = 1.0f;
    std::vector<float> steps;
    for (int64_t n = 0; n < dim; n += 2) {
        steps.push_back((float) n / (float) dim);
        periods.push_back(std::pow((float) theta, steps.back()));
    }
    double factor = read(p, {"factor"}, 0.0).x;
    Value first = original_given;
    if (!first) {
        first = either(read(p, {"original_max_position_embeddings"}), context_given);
    }
    if (kind == "default" || kind == "mrope") {
        return;
    }
    if (kind == "linear") {
        for (float & period : periods) {
            period *= (float) factor;
        }
        return;
    }
    if (kind == "llama3") {
        const float low = p["low_freq_factor"].number(), high = p["high_freq_factor"].number(), length = first.number();
        for (float & period : periods) {
            const float wave = 2.0f * (float) M_PI * period;
            if (wave > length / low) {
                period *= (float) factor;
            } else if (wave >= length / high) {
                const float smooth = (length / wave - low) / (high - low);
                period = 1.0f / ((1.0f - smooth) / period / (float) factor + smooth / period);
            }
        }
        return;
    }
    if (kind == "yarn") {
        if (factor == 0.0) {
            factor = context_given.x / first.x;
        }
        auto place = [&](double turns) {
            return dim * std::log(first.x / (turns * 2.0 * M_PI)) / (2.0 * std::log(theta));
        };
        auto grown = [&](double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
        double low = place(either(read(p, {"beta_fast"}), 32).x);
        double high = place(either(read(p, {"beta_slow"}), 1).x);
        if (read(p, {"truncate"}, true)) {
            low = std::floor(low);
            high = std::ceil(high);
        }
        low = std::max(low, 0.0);
        high = std::min(high, (double) dim - 1);
        if (low == high) {
            high += 0.001;
        }
        for (size_t n = 0; n < periods.size(); ++n) {
            const float ramp = ((float) n - (float) low) / (float) (high - low);
            const float keep = 1.0f - std::min(std::max(ramp, 0.0f), 1.0f);
            periods[n] = 1.0f / (1.0f / ((float) factor * periods[n]) * (1.0f - keep) + 1.0f / periods[n] * keep);
        }
        const Value m = read(p, {"mscale"}), all = read(p, {"mscale_all_dim"});
        scale = (float) (m && all ? grown(m.x) / grown(all.x) : grown(1.0));
        const Value given = read(p, {"attention_factor"});
        scale = given ? given.number() : scale;
        return;
    }
    if (kind == "longrope" || kind == "su") {
        if (factor == 0.0) {
            factor = context_given.x / first.x;
        }
        const Value given = read(p, {"attention_factor"});
        scale = given ? given.number() : (float) std::sqrt(1.0 + std::log(std::max(factor, 1.0)) / std::log(first.x));
        reach = first.integer();
        const Value brief = p["short_factor"], wide = p["long_factor"];
        long_periods = periods;
        for (size_t n = 0; n < periods.size(); ++n) {
            periods[n] *= brief[(int64_t) n].number();
            long_periods[n] *= wide[(int64_t) n].number();
        }
        return;
    }
    if (kind == "proportional") {
        const int64_t turned = std::min((int64_t) (partial.x * head / 2), head / 2);
        const double given = read(p, {"factor"}, 1.0).x;
        for (size_t n = 0; n < periods.size(); ++n) {
            periods[n] = (int64_t) n < turned ? periods[n] * (float) given : INFINITY;
        }
        return;
    }
    throw failure("rotary positions of kind `" + kind + "`");
}

static void fill(ggml_tensor * x, const std::vector<float> & values) {
    if (x && x->buffer) { // which it has if something reads it
        ggml_backend_tensor_set(x, values.data(), 0, ggml_nbytes(x));
    }
}

struct PeriodsInput : public llm_graph_input_i {
    const Rotary * table;
    Rope rope;

    explicit PeriodsInput(const Rotary * table) : table(table) {}

    void set_input(const llama_ubatch * ubatch) override {
        fill(rope.periods, table->periods);
        if (!rope.is_long || !ubatch->pos) {
            return;
        }
        // The length of a sequence chooses the table of its rows.
        std::map<llama_seq_id, llama_pos> last;
        for (uint32_t n = 0; n < ubatch->n_tokens; ++n) {
            llama_pos & pos = last[ubatch->seq_id[n][0]];
            pos = std::max(pos, ubatch->pos[n]);
        }
        std::vector<float> is_long;
        for (uint32_t n = 0; n < ubatch->n_tokens; ++n) {
            is_long.push_back(last[ubatch->seq_id[n][0]] + 1 > table->reach ? 1.0f : 0.0f);
        }
        fill(rope.long_periods, table->long_periods);
        fill(rope.is_long, is_long);
    }

    bool can_reuse(const llm_graph_params & params) override {
        return !rope.is_long || rope.is_long->ne[2] == params.ubatch.n_tokens;
    }
};

Rope Rotary::operator()(Graph & g) const {
    auto input = std::make_unique<PeriodsInput>(this);
    auto filled_later = [&](int64_t size, int64_t rows) {
        ggml_tensor * x = ggml_new_tensor_3d(g.ctx0, GGML_TYPE_F32, size, 1, rows);
        ggml_set_input(x);
        return x;
    };
    Rope & rope = input->rope;
    rope.table = this;
    rope.factor = scale;
    rope.periods = filled_later(periods.size(), 1);
    if (reach > 0) {
        rope.long_periods = filled_later(periods.size(), 1);
        rope.is_long = filled_later(1, g.n_tokens);
    }
    const Rope result = rope;
    g.res->add_input(std::move(input));
    return result;
}

// graphs

Graph::Graph(const llm_graph_params & params) : llm_graph_context(params) {}

struct TokensInput : public llm_graph_input_i {
    ggml_tensor * x = nullptr;

    void set_input(const llama_ubatch * ubatch) override {
        if (!x->buffer) {
            return; // nothing reads it
        }
        if (!ubatch->token) {
            throw failure("embeddings in place of tokens");
        }
        ggml_backend_tensor_set(x, ubatch->token, 0, ggml_nbytes(x));
    }

    bool can_reuse(const llm_graph_params & params) override { return x->ne[0] == params.ubatch.n_tokens; }
};

ggml_tensor * Graph::tokens() {
    if (!tokens_in) {
        auto input = std::make_unique<TokensInput>();
        tokens_in = input->x = ggml_new_tensor_1d(ctx0, GGML_TYPE_I32, n_tokens);
        ggml_set_input(input->x);
        res->t_inp_tokens = input->x;
        res->add_input(std::move(input));
    }
    return tokens_in;
}

ggml_tensor * Graph::positions() {
    if (!positions_in) {
        positions_in = build_inp_pos();
    }
    return positions_in;
}

ggml_tensor * Graph::rows(ggml_tensor * x) {
    if (few_rows || x->ne[1] != n_tokens || x->ne[2] != 1 || x->ne[3] != 1) {
        return x;
    }
    few_rows = true;
    ggml_tensor * ids = build_inp_out_ids();
    return ids ? ggml_get_rows(ctx0, cont(x), ids) : x;
}

ggml_tensor * Graph::result(ggml_tensor * x) {
    res->t_embd = rows(x);
    cb(res->t_embd, "result_norm", -1);
    return res->t_embd;
}

ggml_tensor * Graph::logits(ggml_tensor * x, int64_t vocabulary) {
    x = rows(x);
    // Tokens that the head has no rows for, and rows that no tokens have.
    if (x->ne[0] < vocabulary) {
        ggml_tensor * none = ggml_new_tensor_2d(ctx0, x->type, vocabulary - x->ne[0], x->ne[1]);
        x = ggml_concat(ctx0, cont(x), ggml_fill(ctx0, none, -INFINITY), 0);
    } else if (x->ne[0] > vocabulary) {
        x = ggml_cont(ctx0, part(x, 0, vocabulary));
    }
    res->t_logits = x;
    cb(res->t_logits, "result_output", -1);
    return res->t_logits;
}

ggml_tensor * Graph::layer_output(ggml_tensor * x, int layer) {
    x = build_cvec(x, layer);
    cb(x, "l_out", layer);
    return x;
}

ggml_tensor * Graph::named(const Named & module, ggml_tensor * x) {
    cb(x, module.name.c_str(), module.layer);
    return x;
}

ggml_tensor * Graph::cont(ggml_tensor * x) { return ggml_is_contiguous(x) ? x : ggml_cont(ctx0, x); }

ggml_tensor * Graph::embed(const Embedding & w, ggml_tensor * tokens) {
    return named(w, ggml_get_rows(ctx0, w.weight, tokens));
}

ggml_tensor * Graph::product(ggml_tensor * w, ggml_tensor * x) { return build_lora_mm(w, cont(x)); }

ggml_tensor * Graph::linear(const Linear & w, ggml_tensor * x) {
    ggml_tensor * y = product(w.weight, x);
    return named(w, w.bias ? ggml_add(ctx0, y, w.bias) : y);
}

ggml_tensor * Graph::with(char op, ggml_tensor * x, ggml_tensor * p) {
    // A parameter of several axes for rows that have as many.
    if (p->ne[0] != x->ne[0] && p->ne[0] == x->ne[0] * x->ne[1]) {
        p = ggml_reshape_2d(ctx0, p, x->ne[0], x->ne[1]);
    }
    switch (op) {
        case '+': return ggml_add(ctx0, x, p);
        default:  return ggml_mul(ctx0, x, p);
    }
}

ggml_tensor * Graph::plus(ggml_tensor * x, ggml_tensor * p) { return with('+', cont(x), p); }
ggml_tensor * Graph::times(ggml_tensor * x, ggml_tensor * p) { return with('*', cont(x), p); }

ggml_tensor * Graph::rms_norm(ggml_tensor * x, const Value & eps) { return ggml_rms_norm(ctx0, cont(x), eps.number()); }

ggml_tensor * Graph::weighted(const Norm & w, ggml_tensor * y) {
    cb(y, "norm", w.layer);
    ggml_tensor * scaled = with('*', y, w.weight);
    if (w.plus_one) {
        scaled = ggml_add(ctx0, y, scaled);
    }
    return named(w, w.bias ? with('+', scaled, w.bias) : scaled);
}

ggml_tensor * Graph::rms_norm(const Norm & w, ggml_tensor * x) {
    return weighted(w, ggml_rms_norm(ctx0, cont(x), w.eps));
}
ggml_tensor * Graph::layer_norm(ggml_tensor * x, const Value & eps) { return ggml_norm(ctx0, cont(x), eps.number()); }
ggml_tensor * Graph::layer_norm(const Norm & w, ggml_tensor * x) {
    return weighted(w, ggml_norm(ctx0, cont(x), w.eps));
}

ggml_tensor * Graph::gated_norm(const Norm & w, ggml_tensor * x, ggml_tensor * gate, bool gate_first, bool silu) {
    x = cont(x);
    gate = cont(gate);
    gate = silu ? ggml_silu(ctx0, gate) : ggml_sigmoid(ctx0, gate);
    if (gate_first) {
        x = ggml_mul(ctx0, x, gate);
    }
    ggml_tensor * y = x;
    if (w.groups > 1) {
        y = ggml_reshape_3d(ctx0, y, x->ne[0] / w.groups, w.groups, ggml_nelements(x) / x->ne[0]);
    }
    y = ggml_rms_norm(ctx0, y, w.eps);
    y = ggml_reshape_4d(ctx0, y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    y = with('*', y, w.weight);
    return named(w, gate_first ? y : ggml_mul(ctx0, y, gate));
}

ggml_tensor * Graph::act(const Value & name, ggml_tensor * x) {
    x = cont(x);
    const std::string & word = name.text;
    if (word == "silu" || word == "swish") { return ggml_silu(ctx0, x); }
    if (word == "gelu") { return ggml_gelu_erf(ctx0, x); }
    if (word == "gelu_pytorch_tanh" || word == "gelu_tanh" || word == "gelu_new" || word == "gelu_fast") {
        // ggml's own reads a table of f16.
        ggml_tensor * cube = ggml_mul(ctx0, ggml_mul(ctx0, x, x), x);
        ggml_tensor * inner =
                ggml_scale(ctx0, ggml_add(ctx0, x, ggml_scale(ctx0, cube, 0.044715f)), 0.79788456080286535588f);
        return ggml_scale(ctx0, ggml_mul(ctx0, x, ggml_scale_bias(ctx0, ggml_tanh(ctx0, inner), 1.0f, 1.0f)), 0.5f);
    }
    if (word == "quick_gelu") { return ggml_mul(ctx0, x, ggml_sigmoid(ctx0, ggml_scale(ctx0, x, 1.702f))); }
    if (word == "relu") { return ggml_relu(ctx0, x); }
    if (word == "relu2") { return ggml_sqr(ctx0, ggml_relu(ctx0, x)); }
    if (word == "sigmoid") { return ggml_sigmoid(ctx0, x); }
    if (word == "tanh") { return ggml_tanh(ctx0, x); }
    if (word == "softplus") { return ggml_softplus(ctx0, x); }
    if (word == "softmax") { return ggml_soft_max(ctx0, x); }
    if (word == "square_root") { return ggml_sqrt(ctx0, x); }
    if (word == "exp") { return ggml_exp(ctx0, x); }
    if (word == "sign") { return ggml_sgn(ctx0, x); }
    throw failure("the activation `" + word + "`");
}

ggml_tensor * Graph::scale(ggml_tensor * x, const Value & s, const Value & shift) {
    return ggml_scale_bias(ctx0, cont(x), s.number(), shift.number());
}

ggml_tensor * Graph::sum(ggml_tensor * x) { return ggml_sum_rows(ctx0, cont(x)); }
ggml_tensor * Graph::mean(ggml_tensor * x) { return ggml_mean(ctx0, cont(x)); }

// Puts axes of one before the first axes of rows that have more.
static ggml_tensor * lifted(ggml_context * ctx, ggml_tensor * x, int rank, int wanted) {
    int64_t ne[4] = {1, 1, 1, 1};
    for (int n = 0; n < rank; ++n) {
        ne[n] = x->ne[n];
    }
    ne[wanted] = x->ne[rank];
    return ggml_reshape_4d(ctx, x, ne[0], ne[1], ne[2], ne[3]);
}

ggml_tensor * Graph::binary(char op, ggml_tensor * x, ggml_tensor * y, int rank, int other) {
    x = cont(x);
    y = cont(y);
    if (rank < other) {
        x = lifted(ctx0, x, rank, other);
    } else if (other < rank) {
        y = lifted(ctx0, y, other, rank);
    }
    int64_t ne[4];
    for (int n = 0; n < 4; ++n) {
        ne[n] = std::max(x->ne[n], y->ne[n]);
    }
    if (x->ne[0] != ne[0] || x->ne[1] != ne[1] || x->ne[2] != ne[2] || x->ne[3] != ne[3]) {
        x = ggml_repeat_4d(ctx0, x, ne[0], ne[1], ne[2], ne[3]);
    }
    switch (op) {
        case '+': return ggml_add(ctx0, x, y);
        case '-': return ggml_sub(ctx0, x, y);
        case '*': return ggml_mul(ctx0, x, y);
        default:  return ggml_div(ctx0, x, y);
    }
}

ggml_tensor * Graph::add(ggml_tensor * x, ggml_tensor * y, int rank, int other) {
    return binary('+', x, y, rank, other);
}
ggml_tensor * Graph::sub(ggml_tensor * x, ggml_tensor * y, int rank, int other) {
    return binary('-', x, y, rank, other);
}
ggml_tensor * Graph::mul(ggml_tensor * x, ggml_tensor * y, int rank, int other) {
    return binary('*', x, y, rank, other);
}
ggml_tensor * Graph::div(ggml_tensor * x, ggml_tensor * y, int rank, int other) {
    return binary('/', x, y, rank, other);
}

ggml_tensor * Graph::clamp(ggml_tensor * x, const Value & low, const Value & high) {
    if (low.is_null() && high.is_null()) {
        return x;
    }
    return ggml_clamp(
            ctx0, cont(x), low.is_null() ? -INFINITY : low.number(), high.is_null() ? INFINITY : high.number());
}

ggml_tensor * Graph::heads(ggml_tensor * x, const Value & count, int rank) {
    x = cont(x);
    const int64_t n = count.integer();
    if (rank == 1) {
        return ggml_reshape_3d(ctx0, x, x->ne[0] / n, n, x->ne[1]);
    }
    return ggml_reshape_4d(ctx0, x, x->ne[0] / n, n, x->ne[1], x->ne[2]);
}

ggml_tensor * Graph::flat(ggml_tensor * x, int rank) {
    x = cont(x);
    return ggml_reshape_2d(ctx0, x, ggml_nelements(x) / x->ne[rank], x->ne[rank]);
}

ggml_tensor * Graph::merge(ggml_tensor * x, int rank) {
    x = cont(x);
    if (rank == 2) {
        return ggml_reshape_2d(ctx0, x, x->ne[0] * x->ne[1], x->ne[2]);
    }
    return ggml_reshape_3d(ctx0, x, x->ne[0] * x->ne[1], x->ne[2], x->ne[3]);
}

ggml_tensor * Graph::part(ggml_tensor * x, const Value & from, const Value & to) {
    const int64_t start = from.integer(), size = to.integer() - start;
    return ggml_view_4d(ctx0, x, size, x->ne[1], x->ne[2], x->ne[3], x->nb[1], x->nb[2], x->nb[3], start * x->nb[0]);
}

tensors Graph::split(ggml_tensor * x, const Value & sizes) {
    tensors parts;
    int64_t at = 0;
    const bool is_list = sizes.kind == Value::LIST;
    const int64_t count = is_list ? sizes.items.size() : sizes.integer();
    for (int64_t n = 0; n < count; ++n) {
        const int64_t size = is_list ? sizes.items[n].integer() : x->ne[0] / count;
        parts.push_back(part(x, at, at + size));
        at += size;
    }
    return parts;
}

ggml_tensor * Graph::concat(const tensors & parts) {
    ggml_tensor * all = cont(parts[0]);
    for (size_t n = 1; n < parts.size(); ++n) {
        ggml_tensor * next = cont(parts[n]);
        // A part that all heads share.
        if (next->ne[1] == 1 && all->ne[1] > 1) {
            next = ggml_repeat_4d(ctx0, next, next->ne[0], all->ne[1], next->ne[2], next->ne[3]);
        }
        all = ggml_concat(ctx0, all, next, 0);
    }
    return all;
}

ggml_tensor * Graph::rotate(ggml_tensor * x, const Rope & rope, bool interleaved) {
    const int mode = interleaved ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
    const int size = 2 * rope.periods->ne[0];
    x = cont(x);
    auto rotated = [&](ggml_tensor * periods) {
        return ggml_rope_ext(ctx0, x, positions(), periods, size, mode, 0, 1.0f, 1.0f, 0.0f, rope.factor, 0.0f, 0.0f);
    };
    ggml_tensor * y = rotated(rope.periods);
    if (!rope.is_long) {
        return y;
    }
    return ggml_add(ctx0, y, ggml_mul(ctx0, ggml_sub(ctx0, rotated(rope.long_periods), y), rope.is_long));
}

void Graph::inputs() {
    if (attn || attn_iswa || recurrent) {
        return;
    }
    const bool windows = hparams.swa_type != LLAMA_SWA_TYPE_NONE;
    if (arch == LLM_ARCH_ONBOARD_RECURRENT) {
        recurrent = build_rs_inp();
        recurrent_context = static_cast<const llama_memory_recurrent_context *>(mctx);
    } else if (arch == LLM_ARCH_ONBOARD_HYBRID && windows) {
        auto * all = build_inp_mem_hybrid_iswa();
        attn_iswa = all->get_attn();
        recurrent = all->get_recr();
        recurrent_context = static_cast<const llama_memory_hybrid_iswa_context *>(mctx)->get_recr();
    } else if (arch == LLM_ARCH_ONBOARD_HYBRID) {
        auto * all = build_inp_mem_hybrid();
        attn = all->get_attn();
        recurrent = all->get_recr();
        recurrent_context = static_cast<const llama_memory_hybrid_context *>(mctx)->get_recr();
    } else if (windows) {
        attn_iswa = build_attn_inp_kv_iswa();
    } else {
        attn = build_attn_inp_kv();
    }
}

ggml_tensor * Graph::attend(const Attend & state, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
        const Value & scale, ggml_tensor * sinks) {
    inputs();
    q = cont(q);
    // Rows of one head count as contiguous wherever they lie.
    k = k->ne[1] == 1 ? ggml_cont(ctx0, k) : cont(k);
    v = v->ne[1] == 1 ? ggml_cont(ctx0, v) : cont(v);
    float s = scale.number();
    if (hparams.attn_soft_cap) {
        // Caps are those of scaled scores.
        q = ggml_scale(ctx0, q, s);
        s = 1.0f;
    }
    if (attn_iswa) {
        return build_attn(attn_iswa, nullptr, nullptr, nullptr, q, k, v, nullptr, sinks, nullptr, s, state.layer);
    }
    return build_attn(attn, nullptr, nullptr, nullptr, q, k, v, nullptr, sinks, nullptr, s, state.layer);
}

ggml_tensor * Graph::latent(const Attend & state, const Linear & w, ggml_tensor * q, ggml_tensor * c, ggml_tensor * r,
        const Value & v_dim, const Value & scale, ggml_tensor * sinks) {
    ggml_tensor * x = linear(w, ggml_reshape_2d(ctx0, cont(c), ggml_nelements(c) / n_tokens, n_tokens));
    const int64_t count = q->ne[1], size = x->ne[0] / count, values = v_dim.integer();
    x = ggml_reshape_3d(ctx0, x, size, count, n_tokens);
    ggml_tensor * turned = ggml_reshape_3d(ctx0, cont(r), ggml_nelements(r) / n_tokens, 1, n_tokens);
    ggml_tensor * k = concat({part(x, 0, size - values), turned});
    return attend(state, q, k, part(x, size - values, size), scale, sinks);
}

// Numbers that follow from the positions of rows.
struct PositionInput : public llm_graph_input_i {
    std::function<std::vector<float>(int64_t)> row;
    int64_t offset = 0;
    ggml_tensor * x = nullptr;

    void set_input(const llama_ubatch * ubatch) override {
        if (!x->buffer) {
            return; // nothing reads it
        }
        std::vector<float> all;
        std::vector<int32_t> places;
        for (uint32_t n = 0; n < ubatch->n_tokens; ++n) {
            if (row) {
                const std::vector<float> one = row(ubatch->pos[n]);
                all.insert(all.end(), one.begin(), one.end());
            } else {
                places.push_back(ubatch->pos[n] + offset);
            }
        }
        ggml_backend_tensor_set(x, row ? (const void *) all.data() : places.data(), 0, ggml_nbytes(x));
    }

    bool can_reuse(const llm_graph_params & params) override {
        return x->ne[x->ne[1] > 1 || row ? 1 : 0] == params.ubatch.n_tokens;
    }
};

ggml_tensor * Graph::places(const Value & offset) {
    auto input = std::make_unique<PositionInput>();
    input->offset = offset.integer();
    ggml_tensor * x = input->x = ggml_new_tensor_1d(ctx0, GGML_TYPE_I32, n_tokens);
    ggml_set_input(x);
    res->add_input(std::move(input));
    return x;
}

ggml_tensor * Graph::by_position(const std::function<std::vector<float>(int64_t)> & row) {
    auto input = std::make_unique<PositionInput>();
    input->row = row;
    ggml_tensor * x = input->x = ggml_new_tensor_2d(ctx0, GGML_TYPE_F32, row(0).size(), n_tokens);
    ggml_set_input(x);
    res->add_input(std::move(input));
    return x;
}

ggml_tensor * Graph::temperature(
        ggml_tensor * x, const Value & factor, const Value & every, const Value & shift, const char * form, int rank) {
    const float s = factor.number(), e = every.number(), d = shift.number();
    const std::string word = form;
    ggml_tensor * grown = by_position([=](int64_t at) -> std::vector<float> {
        const float place = ((float) at + d) / e;
        if (word == "power") {
            return {std::pow(1.0f + place, s)};
        }
        if (word == "log_ratio") {
            return {1.0f + s * std::log(std::max(place, 1.0f))};
        }
        return {1.0f + s * std::log(1.0f + std::floor(place))};
    });
    return mul(x, grown, rank, 1);
}

ggml_tensor * Graph::sinusoid(const Value & frequencies, const Value & offset) {
    const int64_t shift = offset.integer();
    const std::vector<Value> all = frequencies.items;
    return by_position([=](int64_t at) {
        std::vector<float> row;
        for (const bool sine : {true, false}) {
            for (const Value & frequency : all) {
                const float angle = (float) (at + shift) * frequency.number();
                row.push_back(sine ? std::sin(angle) : std::cos(angle));
            }
        }
        return row;
    });
}

ggml_tensor * Graph::copies(ggml_tensor * x, const Value & count) {
    x = cont(x);
    x = ggml_reshape_3d(ctx0, x, x->ne[0], 1, x->ne[1]);
    return ggml_repeat_4d(ctx0, x, x->ne[0], count.integer(), x->ne[2], 1);
}

ggml_tensor * Graph::parameter(ggml_tensor * w, int axes, ggml_tensor * x, int x_axes) {
    int64_t sizes[GGML_MAX_DIMS] = { 1, 1, 1, 1 };
    std::copy(w->ne, w->ne + axes, sizes);
    sizes[axes] = x->ne[x_axes];
    return ggml_repeat_4d(ctx0, w, sizes[0], sizes[1], sizes[2], sizes[3]);
}

ggml_tensor * Graph::heads_linear(ggml_tensor * w, ggml_tensor * x, bool in_out, bool shared) {
    x = cont(x);
    if (in_out) {
        w = ggml_cont(ctx0, ggml_transpose(ctx0, w));
    }
    if (shared) {
        return ggml_mul_mat(ctx0, w, x);
    }
    ggml_tensor * y = ggml_mul_mat(ctx0, w, ggml_cont(ctx0, ggml_permute(ctx0, x, 0, 2, 1, 3)));
    return ggml_cont(ctx0, ggml_permute(ctx0, y, 0, 2, 1, 3));
}

ggml_tensor * Graph::xielu(ggml_tensor * x, ggml_tensor * p, ggml_tensor * n, ggml_tensor * beta, ggml_tensor * eps) {
    x = cont(x);
    p = ggml_softplus(ctx0, p);
    n = ggml_add(ctx0, ggml_softplus(ctx0, n), beta);
    ggml_tensor * linear = ggml_mul(ctx0, x, beta);
    ggml_tensor * above = ggml_add(ctx0, ggml_mul(ctx0, ggml_sqr(ctx0, x), p), linear);
    ggml_tensor * least = ggml_sub(ctx0, x, ggml_relu(ctx0, ggml_sub(ctx0, x, eps)));
    ggml_tensor * below = ggml_add(ctx0, ggml_mul(ctx0, ggml_sub(ctx0, ggml_expm1(ctx0, least), x), n), linear);
    ggml_tensor * is_above = ggml_step(ctx0, x);
    return ggml_add(ctx0, below, ggml_mul(ctx0, is_above, ggml_sub(ctx0, above, below)));
}

// mixtures

ggml_tensor * Graph::topk(ggml_tensor * x, const Value & count) {
    return ggml_argsort_top_k(ctx0, cont(x), count.integer());
}

ggml_tensor * Graph::pick(ggml_tensor * x, ggml_tensor * chosen) {
    x = cont(x);
    ggml_tensor * rows = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, x, 1, x->ne[0], x->ne[1]), chosen);
    return ggml_reshape_2d(ctx0, rows, chosen->ne[0], chosen->ne[1]);
}

ggml_tensor * Graph::group_mask(ggml_tensor * x, const Value & groups, const Value & keep, bool by_max, bool zero) {
    x = cont(x);
    if (groups.is_null() || groups.integer() <= 1) {
        return x;
    }
    const int64_t n = groups.integer(), size = x->ne[0] / n, rows = x->ne[1];
    ggml_tensor * parts = ggml_reshape_3d(ctx0, x, size, n, rows);
    const int64_t best = by_max ? 1 : std::min<int64_t>(2, size);
    ggml_tensor * places = cont(ggml_argsort_top_k(ctx0, parts, best));
    ggml_tensor * tops = ggml_get_rows(ctx0, ggml_reshape_4d(ctx0, parts, 1, size, n, rows), places);
    ggml_tensor * scores = ggml_sum_rows(ctx0, ggml_reshape_3d(ctx0, tops, best, n, rows));
    scores = ggml_reshape_2d(ctx0, scores, n, rows);
    ggml_tensor * kept = cont(ggml_argsort_top_k(ctx0, scores, keep.integer()));
    ggml_tensor * empty = ggml_fill(ctx0, parts, zero ? 0.0f : -INFINITY);
    ggml_tensor * taken = ggml_get_rows(ctx0, parts, kept);
    return ggml_reshape_2d(ctx0, ggml_set_rows(ctx0, empty, taken, kept), x->ne[0], rows);
}

ggml_tensor * Graph::mixture(const Experts & w, ggml_tensor * x, ggml_tensor * chosen, ggml_tensor * weights,
        const Value & name, bool on_input, const Value & limit, const Value & alpha) {
    x = cont(x);
    const int64_t count = chosen->ne[0], rows = x->ne[1];
    ggml_tensor * shares = ggml_reshape_3d(ctx0, cont(weights), 1, count, rows);
    ggml_tensor * in = ggml_reshape_3d(ctx0, x, x->ne[0], 1, rows);
    if (on_input) {
        in = ggml_mul(ctx0, ggml_repeat_4d(ctx0, in, x->ne[0], count, rows, 1), shares);
    }
    auto linear = [&](ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x) {
        ggml_tensor * y = build_lora_mm_id(weight, x, chosen);
        return bias ? ggml_add_id(ctx0, y, bias, chosen) : y;
    };
    ggml_tensor * up = linear(w.up, w.up_bias, in);
    if (w.gate) {
        ggml_tensor * gate = linear(w.gate, w.gate_bias, in);
        if (!limit.is_null()) {
            gate = clamp(gate, nullptr, limit);
            up = clamp(up, -limit, limit);
        }
        if (!alpha.is_null()) {
            gate = ggml_mul(ctx0, gate, ggml_sigmoid(ctx0, ggml_scale(ctx0, gate, alpha.number())));
            up = ggml_mul(ctx0, ggml_scale_bias(ctx0, up, 1.0f, 1.0f), gate);
        } else {
            up = ggml_mul(ctx0, act(name, gate), up);
        }
    } else {
        up = act(name, up);
    }
    ggml_tensor * down = linear(w.down, w.down_bias, up);
    if (!on_input) {
        down = ggml_mul(ctx0, down, shares);
    }
    ggml_tensor * sum = nullptr;
    for (int64_t n = 0; n < count; ++n) {
        ggml_tensor * one = ggml_view_2d(ctx0, down, down->ne[0], rows, down->nb[2], n * down->nb[1]);
        sum = sum ? ggml_add(ctx0, sum, one) : count == 1 ? ggml_cont(ctx0, one) : one;
    }
    return named(w, sum);
}

// recurrent states

ggml_tensor * Graph::kept(int layer, int64_t offset, int64_t size) {
    inputs();
    ggml_tensor *& all = states[layer];
    if (!all) {
        all = build_rs(recurrent, recurrent_context->get_r_l(layer), hparams.n_embd_r(), ubatch.n_seqs);
        all = ggml_reshape_2d(ctx0, all, hparams.n_embd_r(), ubatch.n_seqs);
    }
    ggml_tensor * own = ggml_view_2d(ctx0, all, size, ubatch.n_seqs, all->nb[1], offset * all->nb[0]);
    return ggml_cont(ctx0, own);
}

void Graph::keep(int layer, int64_t offset, ggml_tensor * x, int64_t size) {
    ggml_tensor * all = recurrent_context->get_r_l(layer);
    const size_t row = hparams.n_embd_r() * ggml_element_size(all);
    ggml_tensor * place = ggml_view_2d(
            ctx0, all, size, ubatch.n_seqs, row, recurrent_context->get_head() * row + offset * ggml_element_size(all));
    ggml_build_forward_expand(gf, ggml_cpy(ctx0, ggml_reshape_2d(ctx0, cont(x), size, ubatch.n_seqs), place));
}

ggml_tensor * Graph::conv(const Conv & w, ggml_tensor * x) {
    const int64_t seqs = ubatch.n_seqs, rows = ubatch.n_seq_tokens, before = w.width - 1;
    ggml_tensor * past = ggml_reshape_3d(ctx0, kept(w.layer, w.offset, w.channels * before), before, w.channels, seqs);
    ggml_tensor * now = ggml_reshape_3d(ctx0, cont(x), w.channels, rows, seqs);
    ggml_tensor * all = ggml_concat(ctx0, past, ggml_cont(ctx0, ggml_transpose(ctx0, now)), 0);
    ggml_tensor * last = ggml_view_3d(ctx0, all, before, w.channels, seqs, all->nb[1], all->nb[2], rows * all->nb[0]);
    keep(w.layer, w.offset, ggml_cont(ctx0, last), w.channels * before);
    ggml_tensor * weight = ggml_reshape_2d(ctx0, w.weight, w.width, w.channels);
    ggml_tensor * y = ggml_reshape_2d(ctx0, ggml_ssm_conv(ctx0, all, weight), w.channels, rows * seqs);
    return named(w, w.bias ? ggml_add(ctx0, y, w.bias) : y);
}

ggml_tensor * Graph::previous(const State & state, ggml_tensor * x) {
    const int64_t seqs = ubatch.n_seqs, rows = ubatch.n_seq_tokens, size = state.size;
    ggml_tensor * past = ggml_reshape_3d(ctx0, kept(state.layer, state.offset, size), size, 1, seqs);
    ggml_tensor * now = ggml_reshape_3d(ctx0, cont(x), size, rows, seqs);
    ggml_tensor * all = ggml_concat(ctx0, past, now, 1);
    ggml_tensor * last = ggml_view_3d(ctx0, all, size, 1, seqs, all->nb[1], all->nb[2], rows * all->nb[1]);
    keep(state.layer, state.offset, ggml_cont(ctx0, last), size);
    ggml_tensor * before = ggml_view_3d(ctx0, all, size, rows, seqs, all->nb[1], all->nb[2], 0);
    return ggml_reshape_2d(ctx0, ggml_cont(ctx0, before), size, rows * seqs);
}

ggml_tensor * Graph::ssd(const State & state, ggml_tensor * x, ggml_tensor * dt, ggml_tensor * b, ggml_tensor * c,
        ggml_tensor * a_log, ggml_tensor * d, bool per_channel) {
    const int64_t seqs = ubatch.n_seqs, rows = ubatch.n_seq_tokens;
    x = cont(x);
    b = cont(b);
    c = cont(c);
    const int64_t size = per_channel ? 1 : x->ne[0], heads = per_channel ? x->ne[0] : x->ne[1];
    const int64_t inner = b->ne[0], groups = per_channel ? 1 : b->ne[1];
    ggml_tensor * past = ggml_reshape_4d(ctx0, kept(state.layer, state.offset, state.size), inner, size, heads, seqs);
    // The scan of ggml takes the softplus itself, so it is given the inverse: log(exp(dt) - 1) = dt + log(1 - exp(-dt)).
    ggml_tensor * steps = ggml_reshape_3d(ctx0, cont(dt), heads, rows, seqs);
    steps = ggml_add(
            ctx0, steps, ggml_log(ctx0, ggml_scale(ctx0, ggml_expm1(ctx0, ggml_scale(ctx0, steps, -1.0f)), -1.0f)));
    ggml_tensor * rate = ggml_scale(ctx0, ggml_exp(ctx0, a_log), -1.0f);
    rate = per_channel ? ggml_reshape_2d(ctx0, rate, inner, heads) : ggml_reshape_2d(ctx0, rate, 1, heads);
    ggml_tensor * rows_in = ggml_reshape_4d(ctx0, x, size, heads, rows, seqs);
    ggml_tensor * ids = ggml_cast(ctx0, ggml_arange(ctx0, 0.0f, (float) seqs, 1.0f), GGML_TYPE_I32);
    ggml_tensor * all =
            ggml_ssm_scan(ctx0, past, rows_in, steps, rate, ggml_reshape_4d(ctx0, b, inner, groups, rows, seqs),
                    ggml_reshape_4d(ctx0, c, inner, groups, rows, seqs), ids, 1);
    const int64_t count = ggml_nelements(x);
    keep(state.layer, state.offset, ggml_view_1d(ctx0, all, state.size * seqs, count * ggml_element_size(all)),
            state.size);
    ggml_tensor * y =
            ggml_view_3d(ctx0, all, size, heads, rows * seqs, size * all->nb[0], size * heads * all->nb[0], 0);
    y = ggml_add(ctx0, y,
            ggml_mul(ctx0, ggml_reshape_3d(ctx0, x, size, heads, rows * seqs), ggml_reshape_2d(ctx0, d, 1, heads)));
    return named(state, ggml_reshape_2d(ctx0, y, size * heads, rows * seqs));
}

ggml_tensor * Graph::log_decay(
        ggml_tensor * x, ggml_tensor * a_log, ggml_tensor * bias, int rank, const Value & floor) {
    x = plus(x, bias);
    ggml_tensor * rate = ggml_exp(ctx0, a_log);
    if (rank > 1) {
        rate = ggml_reshape_2d(ctx0, rate, 1, ggml_nelements(rate));
    }
    if (!floor.is_null()) {
        return ggml_scale(ctx0, ggml_sigmoid(ctx0, ggml_mul(ctx0, x, rate)), floor.number());
    }
    return ggml_scale(ctx0, ggml_mul(ctx0, ggml_softplus(ctx0, x), rate), -1.0f);
}

ggml_tensor * Graph::delta(const State & state, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
        ggml_tensor * beta, const Value & scale, const Value & eps) {
    const int64_t seqs = ubatch.n_seqs, rows = ubatch.n_seq_tokens;
    q = cont(q);
    k = cont(k);
    v = cont(v);
    const int64_t key = k->ne[0], value = v->ne[0], heads = v->ne[1], keys = k->ne[1];
    // The rule of ggml has keys and values of one size; zeros behind the shorter ones change nothing.
    const int64_t size = std::max(key, value);
    if (!eps.is_null()) {
        // x / sqrt(sum + eps) by the mean: rms_norm(x, eps / n) / sqrt(n).
        const float n = (float) key;
        q = ggml_scale(ctx0, ggml_rms_norm(ctx0, q, eps.number() / n), 1.0f / std::sqrt(n));
        k = ggml_scale(ctx0, ggml_rms_norm(ctx0, k, eps.number() / n), 1.0f / std::sqrt(n));
    }
    auto padded = [&](ggml_tensor * x) { return x->ne[0] == size ? x : ggml_pad(ctx0, x, size - x->ne[0], 0, 0, 0); };
    auto spread = [&](ggml_tensor * x) {
        x = padded(x);
        if (keys == heads) {
            return ggml_reshape_4d(ctx0, x, size, heads, rows, seqs);
        }
        x = ggml_reshape_4d(ctx0, x, size, 1, keys, rows * seqs);
        x = ggml_repeat_4d(ctx0, x, size, heads / keys, keys, rows * seqs);
        return ggml_reshape_4d(ctx0, x, size, heads, rows, seqs);
    };
    // The rule of ggml divides queries by the root of their size.
    q = ggml_scale(ctx0, spread(q), scale.number() * std::sqrt((float) size));
    g = cont(g);
    const bool each = ggml_nelements(g) == key * heads * rows * seqs;
    g = ggml_reshape_4d(ctx0, g, each ? key : 1, heads, rows, seqs);
    g = each ? padded(g) : g;
    v = padded(ggml_reshape_4d(ctx0, v, value, heads, rows, seqs));
    ggml_tensor * past = ggml_reshape_4d(ctx0, kept(state.layer, state.offset, state.size), size, size, heads, seqs);
    ggml_tensor * all = ggml_gated_delta_net(ctx0, q, spread(k), v, g,
            ggml_reshape_4d(ctx0, cont(beta), 1, heads, rows, seqs), past, 1);
    const int64_t count = size * heads * rows * seqs;
    keep(state.layer, state.offset, ggml_view_1d(ctx0, all, state.size * seqs, count * ggml_element_size(all)),
            state.size);
    ggml_tensor * y =
            ggml_view_3d(ctx0, all, value, heads, rows * seqs, size * all->nb[0], size * heads * all->nb[0], 0);
    return named(state, ggml_cont(ctx0, y));
}

// families

static std::map<std::string, Maker> & families() {
    static std::map<std::string, Maker> all;
    return all;
}

Family::Family(const char * name, Maker maker) { families()[name] = std::move(maker); }

struct FamilyModel : public llama_model_base {
    Value config;
    std::string family;
    std::unique_ptr<Model> own;

    explicit FamilyModel(const llama_model_params & params) : llama_model_base(params) {}

    std::unique_ptr<Model> make(Loading & loading) const {
        auto maker = families().find(family);
        if (maker == families().end()) {
            throw failure("this build has no family `" + family + "`");
        }
        Prefix prefix;
        prefix.loading = &loading;
        return maker->second(config, prefix);
    }

    void load_hparams(llama_model_loader & ml) override {
        const gguf_context * ctx = ml.metadata;
        for (int n = 0; n < gguf_get_n_kv(ctx); n++) {
            if (gguf_get_kv_type(ctx, n) == GGUF_TYPE_STRING) {
                gguf_kv.emplace(gguf_get_key(ctx, n), gguf_get_val_str(ctx, n));
            }
        }
        ml.get_key(LLM_KV_GENERAL_NAME, name, false);
        load_arch_hparams(ml);
    }

    void load_arch_hparams(llama_model_loader & ml) override {
        ml.get_key("onboard.family", family);
        std::string text;
        ml.get_key("onboard.config", text);
        config = value_of(nlohmann::json::parse(text));
        Loading loading;
        loading.model = this;
        make(loading);
        const Plan & plan = loading.plan;
        hparams.n_layer_all = loading.layers;
        hparams.n_ctx_train =
                read(config, {"max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"}, 2048).i;
        hparams.n_embd = read(config, {"hidden_size", "n_embd", "d_model", "dim"}).integer();
        hparams.n_head_arr.fill(1);
        hparams.n_head_kv_arr.fill(0);
        hparams.n_ff_arr.fill(1);
        hparams.n_ff_exp_arr.fill(0);
        hparams.n_expert_used_arr.fill(1);
        hparams.rope_sections.fill(0);
        hparams.rope_pattern.fill(0);
        hparams.is_swa_impl.fill(0);
        hparams.is_recr_impl.fill(0);
        hparams.is_indexer_full_impl.fill(0);
        hparams.deepstack_mapping_arr.fill(-1);
        hparams.rope_freq_base_train = 10000.0f;
        hparams.rope_freq_scale_train = 1.0f;
        hparams.n_ctx_orig_yarn = hparams.n_ctx_train;
        hparams.f_norm_eps = hparams.f_norm_rms_eps = 1e-6f;
        hparams.n_rot_full = hparams.n_rot_swa = 0;
        hparams.attn_soft_cap = plan.softcap > 0.0f;
        hparams.f_attn_logit_softcapping = std::max(plan.softcap, 0.0f);
        bool attends = false, recurs = false;
        int64_t full[2] = {0, 0}, near[2] = {0, 0}, window = 0;
        for (size_t n = 0; n < plan.layers.size(); ++n) {
            const Plan::Layer & layer = plan.layers[n];
            recurs |= layer.kept > 0;
            hparams.is_recr_impl[n] = layer.kept > 0;
            hparams.n_state_r = std::max<uint32_t>(hparams.n_state_r, layer.kept);
            if (layer.kv_heads == 0) {
                continue;
            }
            attends = true;
            hparams.n_head_kv_arr[n] = layer.kv_heads;
            const int64_t reach = std::max(layer.window, layer.chunk);
            int64_t * sizes = reach ? near : full;
            if (sizes[0] && (sizes[0] != layer.key || sizes[1] != layer.value)) {
                throw failure("heads of more than two sizes");
            }
            sizes[0] = layer.key;
            sizes[1] = layer.value;
            if (reach) {
                if (window && window != reach) {
                    throw failure("windows of several sizes");
                }
                window = reach;
                hparams.is_swa_impl[n] = 1;
                hparams.swa_type = layer.chunk ? LLAMA_SWA_TYPE_CHUNKED : LLAMA_SWA_TYPE_STANDARD;
            }
        }
        hparams.n_swa = window;
        hparams.n_embd_head_k_full = full[0] ? full[0] : near[0];
        hparams.n_embd_head_v_full = full[0] ? full[1] : near[1];
        hparams.n_embd_head_k_swa = near[0] ? near[0] : full[0];
        hparams.n_embd_head_v_swa = near[0] ? near[1] : full[1];
        hparams.n_state_s = 1;
        arch = recurs && attends ? LLM_ARCH_ONBOARD_HYBRID : recurs ? LLM_ARCH_ONBOARD_RECURRENT : LLM_ARCH_ONBOARD;
    }

    void load_arch_tensors(llama_model_loader & ml) override {
        Loading loading;
        loading.model = this;
        loading.loader = &ml;
        own = make(loading);
        std::string lacking;
        for (const std::string & name : loading.missing) {
            lacking += " " + name;
        }
        if (!lacking.empty()) {
            throw failure("the file lacks tensors:" + lacking.substr(0, 300));
        }
        for (const auto & [name, weight] : ml.weights_map) {
            if (loading.names.count(name) == 0) {
                const auto & ne = weight.tensor->ne;
                create_tensor(ml, LLM_TN_IMPL(LLM_TENSOR_OUTPUT_NORM, name, "weight", -1), {ne[0], ne[1], ne[2], ne[3]},
                        TENSOR_SKIP);
            }
        }
    }

    std::unique_ptr<llm_graph_context> build_arch_graph(const llm_graph_params & params) const override {
        auto g = std::make_unique<Graph>(params);
        ggml_tensor * logits = g->logits((*own)(g->tokens(), *g), vocab.n_tokens());
        ggml_build_forward_expand(g->gf, logits);
        return g;
    }
};

}

llama_model * llama_model_onboard_new(const llama_model_params & params) {
    return new onboard::FamilyModel(params);
}
