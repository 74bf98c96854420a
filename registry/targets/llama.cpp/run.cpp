// Runs prompts of token ids through a model, and writes log-odds of all rows: `run MODEL.gguf PROMPTS OUT`.
// Each line of PROMPTS has the number of tokens before those that come one by one, and the tokens. For each line, OUT gets the rows
// of all tokens at once, and those of the same tokens in steps, as f32.

#include "llama.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static bool rows(llama_context * ctx, const std::vector<llama_token> & tokens, size_t from, size_t to, int width, FILE * out) {
    llama_batch batch = llama_batch_init(to - from, 0, 1);
    for (size_t n = from; n < to; ++n) {
        batch.token[batch.n_tokens] = tokens[n];
        batch.pos[batch.n_tokens] = n;
        batch.n_seq_id[batch.n_tokens] = 1;
        batch.seq_id[batch.n_tokens][0] = 0;
        batch.logits[batch.n_tokens++] = true;
    }
    const bool good = llama_decode(ctx, batch) == 0;
    for (size_t n = from; good && n < to; ++n) {
        std::fwrite(llama_get_logits_ith(ctx, n - from), sizeof(float), width, out);
    }
    llama_batch_free(batch);
    return good;
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
    size_t longest = 64;
    while (std::getline(in, line)) {
        std::istringstream words(line);
        size_t split;
        words >> split;
        std::vector<llama_token> tokens;
        for (llama_token token; words >> token;) {
            tokens.push_back(token);
        }
        longest = std::max(longest, tokens.size());
        prompts.push_back({split, tokens});
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = longest;
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
    std::fclose(out);
    std::fprintf(stderr, "width %d\n", width);
    return 0;
}
