"""Runs generated files in vLLM against the dumps of fixtures: `check_vllm.py FIXTURES OUT [NAME...]`.

For each fixture that OUT has a file of, the two longest prompts of the dump are run in f32 by `vllm.LLM` with all
log-probabilities: the rows of the prompt, and rows of tokens that are generated one by one, which are compared with those of one prompt that has all
of them. This is done with each prompt alone, and again with both at once in pieces of 24 rows (chunked prefill). A line shows the largest root mean
square difference of a row. vLLM's kernels for a CPU lack small heads, so the heads of fixtures and the rows of their mixtures are filled up with
zeros (`vllm_padded.py`).
"""

import gc
import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_ALLOW_LONG_MAX_MODEL_LEN="1",
    VLLM_MLA_DISABLE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import numpy as np
import torch
from check import check_all, difference, load, longest, reach, recorded
from transformers import AutoConfig, PretrainedConfig
from vllm import LLM, ModelRegistry, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm_padded import register

STEPS = 6
# Rows that vLLM computes at once where it divides prompts.
CHUNK = 24


class Vllm:
    """One model in vLLM."""

    def __init__(self, folder, module, tokens, **given):
        model = model_class(module)
        architecture = f"Generated{model.__name__}"
        ModelRegistry.register_model(architecture, model)
        known(folder)
        self.model = LLM(
            str(folder),
            dtype="float32",
            max_model_len=tokens,
            max_logprobs=-1,
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=given.pop("enable_prefix_caching", False),
            disable_log_stats=True,
            num_gpu_blocks_override=32,
            seed=0,
            hf_overrides={"architectures": [architecture]},
            **given,
        )

    def run(self, prompts, count):
        """Runs prompts at once. Gives for each the rows of the prompt, generated tokens, and their rows."""
        params = SamplingParams(temperature=0.0, detokenize=False, ignore_eos=True, max_tokens=count, prompt_logprobs=-1, logprobs=-1)
        outs = self.model.generate([{"prompt_token_ids": tokens} for tokens in prompts], params, use_tqdm=False)
        return [self.answer(out) for out in outs]

    def answer(self, out):
        made = out.outputs[0]
        prompt = [row(found) for found in out.prompt_logprobs[1:]]
        return np.array([*prompt, row(made.logprobs[0])]), list(made.token_ids), np.array([row(found) for found in made.logprobs])

    def close(self):
        self.model.llm_engine.engine_core.shutdown()
        self.model = None
        gc.collect()
        cleanup_dist_env_and_memory()


def model_class(module):
    """Gives the class of the model in a file."""
    classes = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
    return next(one for one in classes if hasattr(one, "compute_logits"))


def known(folder):
    """Registers a config class for a type of model that the installed transformers lack."""
    word = json.loads((folder / "config.json").read_text())["model_type"]
    try:
        AutoConfig.for_model(word)
    except ValueError:
        AutoConfig.register(word, type("Config", (PretrainedConfig,), {"model_type": word}))


def row(found):
    values = np.full(max(found) + 1, -np.inf)
    for token, value in found.items():
        values[token] = value.logprob
    return values


def check(folder, module):
    dump, prompts = longest(folder)
    near = [one for one in prompts if len(one["tokens"]) < reach(folder)]
    far = [one for one in prompts if one not in near]
    worst = {"prefill": 0.0, "decode": 0.0}
    for part in (near, far):
        if not part:
            continue
        length = reach(folder) if part is near else max(len(one["tokens"]) for one in part) + STEPS + 2
        # Each prompt alone and as a whole, then all at once and in pieces.
        for given in ({}, {"max_num_batched_tokens": CHUNK, "max_num_seqs": 4}):
            model = Vllm(folder, module, length, **given)
            steps = max(1, min(STEPS, length - max(len(one["tokens"]) for one in part) - 1))
            prompts = [one["tokens"] for one in part]
            answers = model.run(prompts, steps) if given else [model.run([tokens], steps)[0] for tokens in prompts]
            for prompt, (rows, made, later) in zip(part, answers):
                theirs = dump[f"f32/{prompt['name']}/prefill/logits"].float().numpy()
                worst["prefill"] = max(worst["prefill"], difference(recorded(rows, prompt, theirs), theirs))
                tokens = prompt["tokens"]
                if length - len(tokens) > 1:
                    again = model.run([tokens + made], 1)[0][0]
                    worst["decode"] = max(worst["decode"], difference(later, again[len(tokens) - 1 : -1]))
            model.close()
    return worst


def main():
    fixtures, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    register()
    names = names or sorted(path.stem for path in out.glob("*.py"))
    return check_all(names, lambda name: check(fixtures / name, load(out / f"{name}.py", f"generated_{name}")))


if __name__ == "__main__":
    sys.exit(main())
