// Runs prompts of token ids through a model, and writes log-odds of all rows: `run MODEL.gguf PROMPTS OUT`.
// Each line of PROMPTS has the number of tokens before those that come one by one, and the tokens. For each line, OUT gets the rows
// of all tokens at once, and those of the same tokens in steps, as f32. Behind these are the rows of all lines in one batch.

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static void add(llama_batch & batch, llama_token token, llama_pos pos, llama_seq_id seq) {
    batch.token[batch.n_tokens] = token;
    batch.pos[batch.n_tokens] = pos;
    batch.n_seq_id[batch.n_tokens] = 1;
    batch.seq_id[batch.n_tokens][0] = seq;
    batch.logits[batch.n_tokens++] = true;
}

static bool written(llama_context * ctx, const llama_batch & batch, int width, FILE * out) {
    const bool good = llama_decode(ctx, batch) == 0;
    for (int n = 0; good && n < batch.n_tokens; ++n) {
        std::fwrite(llama_get_logits_ith(ctx, n), sizeof(float), width, out);
    }
    llama_batch_free(batch);
    return good;
}

static bool rows(
        llama_context * ctx, const std::vector<llama_token> & tokens, size_t from, size_t to, int width, FILE * out) {
    llama_batch batch = llama_batch_init(to - from, 0, 1);
    for (size_t n = from; n < to; ++n) {
        add(batch, tokens[n], n, 0);
    }
    return written(ctx, batch, width, out);
}

int main(int argc, char ** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "run MODEL.gguf PROMPTS OUT\n");
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) {
            std::fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        return 1;
    }
    const int width = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<std::pair<size_t, std::vector<llama_token>>> prompts;
    std::ifstream in(argv[2]);
    std::string line;
    size_t longest = 64, all = 0;
    while (std::getline(in, line)) {
        std::istringstream words(line);
        size_t split;
        words >> split;
        std::vector<llama_token> tokens;
        for (llama_token token; words >> token;) {
            tokens.push_back(token);
        }
        longest = std::max(longest, tokens.size());
        all += tokens.size();
        prompts.push_back({split, tokens});
    }
    llama_context_params params = llama_context_default_params();
    params.n_seq_max = std::max<size_t>(1, prompts.size());
    params.kv_unified = true; // or long prompts come in parts
    params.n_ctx = longest * params.n_seq_max;
    params.n_batch = params.n_ubatch = std::max(longest, all);
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.no_perf = true;
    FILE * out = std::fopen(argv[3], "wb");
    llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx || !out) {
        return 1;
    }
    for (const auto & [split, tokens] : prompts) {
        llama_memory_clear(llama_get_memory(ctx), true);
        if (!rows(ctx, tokens, 0, tokens.size(), width, out)) {
            return 1;
        }
        llama_memory_clear(llama_get_memory(ctx), true);
        if (!rows(ctx, tokens, 0, split, width, out)) {
            return 1;
        }
        for (size_t n = split; n < tokens.size(); ++n) {
            if (!rows(ctx, tokens, n, n + 1, width, out)) {
                return 1;
            }
        }
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_batch batch = llama_batch_init(all, 0, 1);
    for (size_t seq = 0; seq < prompts.size(); ++seq) {
        const auto & tokens = prompts[seq].second;
        for (size_t n = 0; n < tokens.size(); ++n) {
            add(batch, tokens[n], n, seq);
        }
    }
    if (!written(ctx, batch, width, out)) {
        return 1;
    }
    std::fclose(out);
    std::fprintf(stderr, "width %d\n", width);
    return 0;
}
