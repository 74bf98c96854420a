"""SGLang's `Engine` class as an engine: `onboard parity check MODEL --engine sglang`.

NOT RUN: written against the documented interface of SGLang 0.5 (`Engine.generate` with `input_ids`, `return_logprob`,
`logprob_start_len`, `top_logprobs_num`). Try it with `onboard engine test sglang` first.
"""

import json
from pathlib import Path

from onboard_engine import Engine, Refused

import sglang

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
PASSED = {
    "disable_cuda_graph": "flag", "disable_radix_cache": "flag", "trust_remote_code": "flag", "tp_size": int, "page_size": int,
    "mem_fraction_static": float, "attention_backend": str, "kv_cache_dtype": str, "device": str,
}


class Sglang(Engine):
    name, version = "sglang", sglang.__version__
    options = {"disable_radix_cache": "true"} | {key: "" for key in PASSED if key != "disable_radix_cache"}

    def open(self, model, dtype, tokens):
        given = {key: self.read(key) for key in PASSED if self.options[key] != ""}
        self.model = sglang.Engine(model_path=model, dtype=DTYPES[dtype], context_length=tokens, skip_tokenizer_init=True, random_seed=0, log_level="error", **given)
        config = json.loads((Path(model) / "config.json").read_text())
        self.vocab = (config.get("text_config") or config)["vocab_size"]
        return {"vocab": self.vocab, "tokens": tokens - 1}

    def read(self, key):
        text, kind = self.options[key], PASSED[key]
        if kind == "flag":
            if text not in ("true", "false"):
                raise Refused(f"option {key} is {text!r}; expected true or false")
            return text == "true"
        return kind(text)

    def settings(self):
        return {key: value for key, value in self.options.items() if value != ""}

    def run(self, tokens, count, **more):
        return self.model.generate(input_ids=tokens, sampling_params={"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True}, **more)

    def score(self, tokens):
        info = self.run(tokens, 1, return_logprob=True, logprob_start_len=0, top_logprobs_num=self.vocab)["meta_info"]
        # Entries are (log-probability, id, text); the first prompt position has none.
        found = [*info["input_top_logprobs"][1:], info["output_top_logprobs"][0]]
        return [self.row(entries) for entries in found]

    def row(self, entries):
        row = [float("-inf")] * self.vocab
        for logprob, token, *_ in entries:
            row[token] = logprob
        return row

    def generate(self, tokens, count):
        return self.run(tokens, count)["output_ids"]

    def close(self):
        self.model.shutdown()


if __name__ == "__main__":
    Sglang().serve()
