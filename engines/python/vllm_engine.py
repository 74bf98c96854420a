"""vLLM's `LLM` class as an engine: `onboard parity check MODEL --engine vllm`. Token ids go in, never text."""

from onboard_engine import Engine, Refused

import vllm
from vllm import LLM, SamplingParams

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# Options that are passed on, and how their text is read.
PASSED = {
    "enforce_eager": "flag", "enable_prefix_caching": "flag", "trust_remote_code": "flag", "tensor_parallel_size": int, "block_size": int,
    "gpu_memory_utilization": float, "kv_cache_dtype": str, "quantization": str, "load_format": str,
}


class Vllm(Engine):
    name, version = "vllm", vllm.__version__
    options = {"enforce_eager": "true", "enable_prefix_caching": "false"} | {key: "" for key in PASSED if key not in ("enforce_eager", "enable_prefix_caching")}

    def open(self, model, dtype, tokens):
        given = {key: self.read(key) for key in PASSED if self.options[key] != ""}
        self.model = LLM(model, dtype=DTYPES[dtype], max_model_len=tokens, max_logprobs=-1, skip_tokenizer_init=True, seed=0, **given)
        config = self.model.llm_engine.model_config
        return {"vocab": config.get_vocab_size(), "tokens": config.max_model_len - 1}

    def read(self, key):
        text, kind = self.options[key], PASSED[key]
        if kind == "flag":
            if text not in ("true", "false"):
                raise Refused(f"option {key} is {text!r}; expected true or false")
            return text == "true"
        return kind(text)

    def settings(self):
        return {key: value for key, value in self.options.items() if value != ""}

    def run(self, tokens, **params):
        params = SamplingParams(temperature=0.0, detokenize=False, **params)
        return self.model.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)[0]

    def score(self, tokens):
        # The prompt's own rows begin with the second token; that behind the last is of a token to generate.
        out = self.run(tokens, max_tokens=1, prompt_logprobs=-1, logprobs=-1)
        return [self.row(found) for found in [*out.prompt_logprobs[1:], out.outputs[0].logprobs[0]]]

    def row(self, found):
        row = [float("-inf")] * self.model.llm_engine.model_config.get_vocab_size()
        for token, value in found.items():
            row[token] = value.logprob
        return row

    def generate(self, tokens, count):
        return list(self.run(tokens, max_tokens=count, ignore_eos=True).outputs[0].token_ids)

    def close(self):
        self.model = None


if __name__ == "__main__":
    Vllm().serve()
