"""A generated model as an engine: `parity check MODEL --engine ./engine.py`, with the model's file beside this one.

Options: file (the model's file; default: the one `modeling_*.py` beside this file), device.
"""

import copy
import importlib.util
import json
import sys
from pathlib import Path

from onboard_engine import Engine, Refused

import torch
from safetensors.torch import load_file


def number(entry):
    """Numbers that JSON lacks are objects in configs of transformers."""
    return float(entry["__float__"]) if "__float__" in entry else entry


class Generated(Engine):
    name, version = "torch", torch.__version__
    options = {"file": "", "device": "cpu"}

    def open(self, model, dtype, tokens):
        if dtype not in ("f32", "bf16"):
            raise Refused(f"generated code computes in f32 and bf16, not {dtype}")
        found = [self.options["file"]] if self.options["file"] else sorted(Path(__file__).parent.glob("modeling_*.py"))
        if len(found) != 1:
            raise Refused(f"expected one modeling_*.py beside {__file__}, found {len(found)}; name it with the option file")
        spec = importlib.util.spec_from_file_location("generated", found[0])
        self.code = importlib.util.module_from_spec(spec)
        sys.modules["generated"] = self.code
        spec.loader.exec_module(self.code)
        values = json.loads(Path(model, "config.json").read_text(), object_hook=number)
        config = self.code.Config(values, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
        self.model = getattr(self.code, self.code.MODEL)(config).eval()
        tensors = {}
        for path in sorted(Path(model).glob("*.safetensors")):
            tensors.update(load_file(path))
        try:
            self.model.load(tensors)
        except ValueError as error:
            raise Refused(str(error)) from error
        self.model.to(self.options["device"])
        self.slots = {}
        return {"vocab": self.run([0], self.code.Cache()).shape[-1], "tokens": tokens}

    def settings(self):
        return {"device": self.options["device"], "torch": torch.__version__}

    def run(self, tokens, cache):
        with torch.no_grad():
            ids = torch.tensor([tokens], device=self.options["device"])
            return self.model(ids, cache)[0].float().cpu()

    def score(self, tokens):
        return self.run(tokens, self.code.Cache())

    def feed(self, slot, at, tokens, taps):
        if not at:
            self.slots[slot] = self.code.Cache()
        return self.run(tokens, self.slots[slot]), {}

    def fork(self, slot, to):
        self.slots[to] = copy.deepcopy(self.slots[slot])

    def release(self, slot):
        self.slots.pop(slot, None)


if __name__ == "__main__":
    Generated().serve()
