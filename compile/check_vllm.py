"""Runs generated files in vLLM against the dumps of fixtures: `check_vllm.py FIXTURES OUT [NAME...]`.

For each fixture that OUT has a file of, the last two prompts of the dump, which are the longest, are run in f32 by `vllm.LLM` with all
log-probabilities: the rows of the prompt, and rows of tokens that are generated one by one, which are compared with those of one prompt that has all
of them. A line shows the largest root mean square difference of a row. vLLM's kernels for a CPU lack small heads, so the heads of fixtures and
the rows of their mixtures are filled up with zeros.
"""

import gc
import json
import os
import sys
import time
import traceback
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
import torch.nn.functional as F
from check import F32, difference, load
from safetensors.torch import load_file
from transformers import AutoConfig, PretrainedConfig
from vllm import LLM, ModelRegistry, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe import FusedMoEFactory

SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
STEPS = 6


class Padded(Attention):
    """Attention whose heads are filled up with zeros to a size that the kernels have."""

    def __init__(self, heads, size, scale, head_size_v=None, **given):
        self.sizes = size, head_size_v or size
        wide = next(one for one in SIZES if one >= max(self.sizes))
        super().__init__(heads, wide, scale, **given)

    def forward(self, q, k, v):
        q, k, v = (self.wide(x, heads) for x, heads in ((q, self.num_heads), (k, self.num_kv_heads), (v, self.num_kv_heads)))
        y = super().forward(q, k, v).unflatten(-1, (self.num_heads, -1))
        return y[..., : self.sizes[1]].flatten(1)

    def wide(self, x, heads):
        x = x.unflatten(-1, (heads, -1))
        return F.pad(x, (0, self.head_size - x.shape[-1])).flatten(1)


def padded_mixture(hidden_size, **given):
    """Makes a mixture whose rows are filled up with zeros to a size that the kernel has."""
    moe = FusedMoEFactory(hidden_size=-(-hidden_size // 32) * 32, **given)
    for parameter in moe.parameters():
        parameter.data.zero_()
    return moe


class Vllm:
    """One model in vLLM."""

    def __init__(self, folder, module, tokens):
        architecture = f"Generated{module.MODEL}"
        module.Attention, module.FusedMoEFactory = Padded, padded_mixture
        ModelRegistry.register_model(architecture, getattr(module, module.MODEL))
        known(folder)
        self.model = LLM(
            str(folder),
            dtype="float32",
            max_model_len=tokens,
            max_logprobs=-1,
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
            num_gpu_blocks_override=32,
            seed=0,
            hf_overrides={"architectures": [architecture]},
        )

    def run(self, tokens, count):
        params = SamplingParams(temperature=0.0, detokenize=False, ignore_eos=True, max_tokens=count, prompt_logprobs=-1, logprobs=-1)
        out = self.model.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)[0]
        made = out.outputs[0]
        prompt = [row(found) for found in out.prompt_logprobs[1:]]
        return np.array([*prompt, row(made.logprobs[0])]), list(made.token_ids), np.array([row(found) for found in made.logprobs])

    def close(self):
        self.model.llm_engine.engine_core.shutdown()
        self.model = None
        gc.collect()
        cleanup_dist_env_and_memory()


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


def reach(folder):
    """Gives the length up to which the short table of rotary factors holds; vLLM decides for one by the longest sequence that it takes."""
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    return original if "long_factor" in text and original else 0


def check(folder, module):
    manifest = json.loads((folder / "reference/manifest.json").read_text())
    dump = load_file(folder / "reference/reference.safetensors")
    prompts = [one for one in manifest["prompts"] if not one.get("prefix") and not one.get("documents")]
    prompts = [one for one in prompts if f"f32/{one['name']}/prefill/logits" in dump][-2:]
    near = [one for one in prompts if len(one["tokens"]) < reach(folder)]
    far = [one for one in prompts if one not in near]
    worst = {"prefill": 0.0, "decode": 0.0}
    for part in (near, far):
        if not part:
            continue
        longest = reach(folder) if part is near else max(len(one["tokens"]) for one in part) + STEPS + 2
        model = Vllm(folder, module, longest)
        for prompt in part:
            theirs = dump[f"f32/{prompt['name']}/prefill/logits"].float().numpy()
            tokens, rest = prompt["tokens"], longest - len(prompt["tokens"]) - 1
            rows, made, steps = model.run(tokens, max(1, min(STEPS, rest)))
            shown = rows[prompt["rows"]] if prompt.get("rows") else rows[-len(theirs) :]
            worst["prefill"] = max(worst["prefill"], difference(shown, theirs))
            if rest < 1:
                continue
            again = model.run(tokens + made, 1)[0]
            worst["decode"] = max(worst["decode"], difference(steps, again[len(tokens) - 1 : -1]))
        model.close()
    return worst


def main():
    fixtures, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    failed, good = [], []
    for name in names or sorted(path.stem for path in out.glob("*.py")):
        path, start = out / f"{name}.py", time.time()
        try:
            worst = check(fixtures / name, load(path, f"generated_{name}"))
            agrees = max(worst.values()) <= F32
            said = " ".join(f"{key} {value:.2g}" for key, value in worst.items())
        except Exception as error:
            agrees = False
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__} {str(error)[:300]!r} {Path(place.filename).name}:{place.lineno}"
        (good if agrees else failed).append(name)
        print("ok  " if agrees else "FAIL", name, said, f"{time.time() - start:.1f}s", flush=True)
    print(f"{len(good)} agree, {len(failed)} failed: {' '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
