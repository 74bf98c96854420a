"""Runs generated files against the dumps of fixtures: `check.py [--judge ONBOARD] FIXTURES OUT [NAME...]`.

For each fixture that OUT has a file of, the prompts of the dump are run in f32 and bf16: prefill, and decode token by token. The table
shows the largest root mean square difference of the log-probabilities of a row in each, and in bf16 also that of the reference to its own f32,
which a difference must not exceed. A proof is `onboard compile --prove`; this is a filter at a fraction of the time. What it does not let pass is
judged by the rule itself with `--judge`: `ONBOARD parity check` with the file as an engine.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np

F32, SHARE = 2e-4, 1.0


class Torch:
    """Files of the target `torch`."""

    def __init__(self):
        import torch

        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        self.lib, self.dtypes = torch, {"f32": torch.float32, "bf16": torch.bfloat16}

    def module(self, path):
        return load(path, path.stem)

    def tensors(self, path):
        from safetensors.torch import load_file

        return load_file(path)

    def numbers(self, x):
        return x.float().numpy()

    def open(self, module, config, tensors, dtype):
        self.code = module
        self.model = getattr(module, module.MODEL)(module.Config(config, self.dtypes[dtype])).eval()
        self.model.load(tensors)

    def cache(self):
        return self.code.Cache()

    def run(self, tokens, cache=None):
        return self.numbers(self.model(self.lib.tensor([tokens]), cache)[0])


class Mlx:
    """Files of the target `mlx`, which are modules of mlx-lm."""

    def __init__(self):
        import mlx.core

        self.lib = mlx.core
        self.dtypes = {"f32": mlx.core.float32, "bf16": mlx.core.bfloat16}
        gather = mlx.core.gather_mm

        def gather_mm(x, w, **places):
            # On a CPU mlx has it in f32 alone.
            y = gather(x.astype(mlx.core.float32), w.astype(mlx.core.float32), **places)
            return y.astype(x.dtype)

        mlx.core.gather_mm = gather_mm

    def module(self, path):
        return load(path, f"mlx_lm.models.{path.stem}")

    def tensors(self, path):
        return self.lib.load(str(path))

    def numbers(self, x):
        return np.array(x.astype(self.lib.float32))

    def open(self, module, config, tensors, dtype):
        config = {**config, "dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype]}
        self.model = module.Model(module.ModelArgs.from_dict(config))
        tensors = self.model.sanitize(tensors)
        keeps = getattr(self.model, "cast_predicate", lambda name: True)
        tensors = [(name, x.astype(self.dtypes[dtype]) if keeps(name) else x) for name, x in tensors.items()]
        self.model.load_weights(tensors, strict=True)
        self.model.eval()

    def cache(self):
        return self.model.make_cache()

    def run(self, tokens, cache=None):
        return self.numbers(self.model(self.lib.array([tokens]), cache=cache)[0])


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def number(entry):
    """Numbers that JSON lacks are objects in configs of transformers."""
    return float(entry["__float__"]) if "__float__" in entry else entry


def log_shares(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def difference(ours, theirs):
    width = min(ours.shape[-1], theirs.shape[-1])
    if not ours.size:
        return 0.0
    apart = log_shares(ours[..., :width]) - log_shares(theirs[..., :width])
    return float(np.sqrt(np.square(apart).mean(-1)).max())


def run(target, dump, manifest, name):
    worst, own = {}, 0.0
    for prompt in manifest["prompts"]:
        if prompt.get("prefix") or prompt.get("documents"):
            continue
        tokens = prompt["tokens"]
        key = f"{name}/{prompt['name']}"
        if f"{key}/prefill/logits" not in dump:
            continue
        prefill = target.run(tokens)
        theirs = dump[f"{key}/prefill/logits"]
        shown = recorded(prefill, prompt, theirs)
        worst["prefill"] = max(worst.get("prefill", 0.0), difference(shown, theirs))
        exact = dump.get(f"f32/{prompt['name']}/prefill/logits")
        if exact is not None:
            own = max(own, difference(exact, theirs))
        split, theirs = prompt["split"], dump.get(f"{key}/decode/logits")
        own_steps, whole = dump.get(f"f32/{prompt['name']}/decode/logits"), dump.get(f"f32/{prompt['name']}/prefill/logits")
        if own_steps is not None and len(own_steps) and difference(own_steps, whole[-len(own_steps) :]) > 1e-2:
            # The reference's steps do not agree with its own prefill.
            theirs = dump[f"{key}/prefill/logits"][-len(theirs) :]
        if theirs is None or split >= len(tokens):
            continue
        cache = target.cache()
        out = [target.run(tokens[:split], cache)]
        out += [target.run(tokens[n : n + 1], cache) for n in range(split, len(tokens))]
        decoded = np.concatenate(out)
        shown = recorded(decoded, prompt, theirs)
        worst["decode"] = max(worst.get("decode", 0.0), difference(shown, theirs))
    return worst, own


def judged(program, folder, path, target):
    """Returns True if the rule of `parity check` lets the file pass, without schedules."""
    engine = Path(__file__).parent.parent / "registry/targets" / type(target).__name__.lower() / "engine.py"
    command = [program, "parity", "check", folder, "--dtype", "f32,bf16", "--no-schedules", "--engine", engine.resolve(), "--engine-option", f"file={path.resolve()}"]
    return subprocess.run(command, env={**os.environ, "ONBOARD_PYTHON": sys.executable}, stdout=subprocess.DEVNULL).returncode == 0


def longest(folder):
    """Returns the dump of a fixture, and the two longest of its prompts that have rows in f32."""
    from safetensors.torch import load_file

    manifest = json.loads((folder / "reference/manifest.json").read_text())
    dump = load_file(folder / "reference/reference.safetensors")
    prompts = [one for one in manifest["prompts"] if not one.get("prefix") and not one.get("documents")]
    prompts = [one for one in prompts if f"f32/{one['name']}/prefill/logits" in dump]
    return dump, sorted(prompts, key=lambda one: len(one["tokens"]))[-2:]


def recorded(rows, prompt, theirs):
    """Returns those rows of a run that the dump has, too."""
    return rows[prompt["rows"]] if prompt.get("rows") else rows[-len(theirs) :]


def check_all(names, check):
    """Runs the check of each fixture and prints a line for each; returns True if one failed."""
    agreeing, failed = [], []
    for name in names:
        start = time.time()
        try:
            worst = check(name)
            agrees = max(worst.values()) <= F32
            text = " ".join(f"{key} {value:.2g}" for key, value in worst.items())
        except Exception as error:
            agrees = False
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} {str(error)[:400]!r} {Path(place.filename).name}:{place.lineno}"
        (agreeing if agrees else failed).append(name)
        print("ok  " if agrees else "FAIL", name, text, f"{time.time() - start:.1f}s", flush=True)
    print(f"{len(agreeing)} agree, {len(failed)} failed: {' '.join(failed)}")
    return bool(failed)


def reach(folder):
    """Gives the length up to which the short table of rotary factors holds; vLLM decides for one by the longest sequence that it takes."""
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    return original if "long_factor" in text and original else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--judge", metavar="ONBOARD")
    parser.add_argument("fixtures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    fixtures, out, names = args.fixtures, args.out, args.names
    failed, target = [], None
    for path in sorted(out.glob("*.py")):
        name = path.stem
        if names and name not in names:
            continue
        folder, start = fixtures / name, time.time()
        manifest = json.loads((folder / "reference/manifest.json").read_text())
        target = target or (Torch() if "import torch" in path.read_text() else Mlx())
        dump = target.tensors(folder / "reference/reference.safetensors")
        dump = {name: target.numbers(x) for name, x in dump.items() if "logits" in name}
        try:
            module = target.module(path)
            config = json.loads((folder / "config.json").read_text(), object_hook=number)
            parts, good = [], True
            for word in ("f32", "bf16"):
                if word not in manifest["runs"]:
                    continue
                tensors = {}
                for shard in sorted(folder.glob("*.safetensors")):
                    tensors.update(target.tensors(shard))
                target.open(module, config, tensors, word)
                worst, own = run(target, dump, manifest, word)
                most = max(worst.values(), default=0.0)
                good &= most <= (F32 if word == "f32" else max(SHARE * own, 1e-6))
                parts.append(word + " " + " ".join(f"{key} {value:.2g}" for key, value in worst.items()) + (f" (own {own:.2g})" if word != "f32" else ""))
            print("ok  " if good else "FAIL", name, "; ".join(parts), f"{time.time() - start:.1f}s", flush=True)
        except Exception as error:
            good = False
            place = traceback.extract_tb(error.__traceback__)[-1]
            print("FAIL", name, type(error).__name__, str(error).replace("\n", " ")[:300], f"{Path(place.filename).name}:{place.lineno}", flush=True)
        if not good and args.judge:
            good = judged(args.judge, folder, path, target)
            print("    by the rule of `parity check`:", "ok" if good else "FAIL", flush=True)
        if not good:
            failed.append(name)
    print(f"{len(failed)} failed: {' '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
