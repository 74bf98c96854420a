"""A generated model as an engine: `parity check MODEL --engine ./engine.py`, with the model's file beside this one.

The file runs as a module of mlx-lm. Options: file (the model's file; default: the one other `*.py` beside this file), device (cpu, gpu).
"""

import copy
import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path

from onboard_engine import Engine, Refused

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

DTYPES = {"f32": ("float32", mx.float32), "bf16": ("bfloat16", mx.bfloat16)}


def number(entry):
    """Numbers that JSON lacks are objects in configs of transformers."""
    return float(entry["__float__"]) if "__float__" in entry else entry


def gather_wide():
    """Multiplies by gathered matrices in f32, as mlx has it on a CPU, and rounds the result."""
    gather = mx.gather_mm

    def gather_mm(x, w, **places):
        return gather(x.astype(mx.float32), w.astype(mx.float32), **places).astype(x.dtype)

    mx.gather_mm = gather_mm


def copied(cache):
    """Copies a cache; arrays are never changed in place by others."""
    fresh = copy.copy(cache)
    for name, value in vars(cache).items():
        if isinstance(value, tuple):
            setattr(fresh, name, tuple(copied(part) for part in value))
        elif isinstance(value, list):
            setattr(fresh, name, [None if part is None else mx.array(part) for part in value])
        elif isinstance(value, mx.array):
            setattr(fresh, name, mx.array(value))
    return fresh


class Generated(Engine):
    name, version = "mlx", version("mlx")
    options = {"file": "", "device": "cpu"}

    def open(self, model, dtype, tokens):
        if dtype not in DTYPES:
            raise Refused(f"generated code computes in f32 and bf16, not {dtype}")
        if self.options["device"] == "cpu":
            mx.set_default_device(mx.cpu)
            gather_wide()
        beside = [path for path in sorted(Path(__file__).parent.glob("*.py")) if path.name not in (Path(__file__).name, "onboard_engine.py")]
        files = [self.options["file"]] if self.options["file"] else beside
        if len(files) != 1:
            raise Refused(f"expected one file of a model beside {__file__}, found {len(files)}; name it with the option file")
        spec = importlib.util.spec_from_file_location("mlx_lm.models.generated", files[0])
        code = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = code
        spec.loader.exec_module(code)
        word, wanted = DTYPES[dtype]
        values = json.loads(Path(model, "config.json").read_text(), object_hook=number)
        self.model = code.Model(code.ModelArgs.from_dict({**values, "dtype": word}))
        tensors = {}
        for path in sorted(Path(model).glob("*.safetensors")):
            tensors.update(mx.load(str(path)))
        casts = getattr(self.model, "cast_predicate", lambda name: True)
        tensors = self.model.sanitize(tensors).items()
        tensors = [(name, x.astype(wanted) if casts(name) else x) for name, x in tensors]
        try:
            self.model.load_weights(tensors)
        except ValueError as error:
            raise Refused(str(error)) from error
        self.model.eval()
        self.slots, self.lengths = {}, {}
        return {"vocab": self.run([0], None).shape[-1], "tokens": tokens}

    def settings(self):
        return {"device": self.options["device"], "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}

    def run(self, tokens, cache):
        return np.array(self.model(mx.array([tokens]), cache=cache)[0].astype(mx.float32))

    def score(self, tokens):
        return self.run(tokens, None)

    def feed(self, slot, at, tokens, taps):
        if not at:
            self.slots[slot] = self.model.make_cache()
        self.lengths[slot] = at + len(tokens)
        return self.run(tokens, self.slots[slot]), {}

    def fork(self, slot, to):
        self.slots[to] = [copied(part) for part in self.slots[slot]]
        self.lengths[to] = self.lengths[slot]

    def truncate(self, slot, length):
        if not can_trim_prompt_cache(self.slots[slot]):
            raise Refused("caches of this kind cannot be cut")
        trim_prompt_cache(self.slots[slot], self.lengths[slot] - length)
        self.lengths[slot] = length

    def release(self, slot):
        self.slots.pop(slot, None)


if __name__ == "__main__":
    Generated().serve()
