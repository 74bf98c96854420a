"""A generated model as an engine: `parity check MODEL --engine ./engine.py`, with the model's package beside this one.

vLLM runs it in this process, in place of the class that vLLM has for the architecture. Options: file (the model's file; default: that of the one
package beside this file), block_size, kv_cache_space (GiB, on a CPU).
"""

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
# Latents are expanded, and kept as keys and values.
os.environ.setdefault("VLLM_MLA_DISABLE", "1")

from onboard_engine import Engine, Refused

import vllm
from vllm import LLM, ModelRegistry, SamplingParams

DTYPES = {"f32": "float32", "bf16": "bfloat16"}
ARCHITECTURE = "GeneratedForCausalLM"


class Generated(Engine):
    name, version = "vllm", vllm.__version__
    options = {"file": "", "block_size": "", "kv_cache_space": "1"}

    def open(self, model, dtype, tokens):
        if dtype not in DTYPES:
            raise Refused(f"generated code computes in f32 and bf16, not {dtype}")
        beside = sorted(Path(__file__).parent.glob("onboard_*/[!_]*.py"))
        files = [self.options["file"]] if self.options["file"] else beside
        if len(files) != 1:
            raise Refused(f"expected one package of a model beside {__file__}, found {len(files)}; name it with the option file")
        spec = importlib.util.spec_from_file_location("generated", files[0])
        code = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = code
        spec.loader.exec_module(code)
        ModelRegistry.register_model(ARCHITECTURE, model_class(code))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = self.options["kv_cache_space"]
        given = {"block_size": int(self.options["block_size"])} if self.options["block_size"] else {}
        self.model = LLM(
            model,
            dtype=DTYPES[dtype],
            max_model_len=tokens,
            max_logprobs=-1,
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=False,
            seed=0,
            hf_overrides={"architectures": [ARCHITECTURE]},
            **given,
        )
        config = self.model.llm_engine.model_config
        return {"vocab": config.get_vocab_size(), "tokens": config.max_model_len - 1}

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


def model_class(code):
    """Gives the class of the model in a file."""
    classes = (value for value in vars(code).values() if getattr(value, "__module__", None) == code.__name__)
    return next(one for one in classes if hasattr(one, "compute_logits"))


if __name__ == "__main__":
    Generated().serve()
