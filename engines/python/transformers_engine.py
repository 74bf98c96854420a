"""Hugging Face transformers as an engine: `onboard parity check MODEL --engine transformers`.

Taps are module outputs under the names of the modules, and states are read from the cache, both by the reader of
`parity dump` (the package onboard_dump). Numbers come from the model as it is configured here.
"""

import copy
from pathlib import Path

from onboard_engine import Engine, Refused

import torch
import transformers
import onboard_dump as reader


class Transformers(Engine):
    name, version = "transformers", transformers.__version__
    options = {"attention": "eager", "experts": "eager", "device": "cpu", "compile": "false", "trust_remote_code": "false"}

    def open(self, model, dtype, tokens):
        trust, folder = self.flag("trust_remote_code"), Path(model)
        self.device = self.options["device"]
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
        loader = reader.wrapper(config) or transformers.AutoModelForCausalLM
        self.model, info = loader.from_pretrained(
            folder, dtype=reader.torch_dtype(dtype), local_files_only=True, trust_remote_code=trust, output_loading_info=True,
            attn_implementation=self.options["attention"], experts_implementation=self.options["experts"])
        if info.get("missing_keys"):
            raise Refused(f"the checkpoint lacks tensors, which would be random: {', '.join(sorted(map(str, info['missing_keys']))[:4])}")
        self.model = self.model.to(self.device).eval()
        text = config.get_text_config(decoder=True)
        self.runner, self.slots = reader.Runner(self.model), {}
        self.hooks = None if self.flag("compile") else reader.Taps(self.runner, None)
        with torch.no_grad():
            self.vocab = self.runner.forward([0], 0, self.runner.fresh())[0].shape[-1]
        if self.flag("compile"):
            self.model.forward = torch.compile(self.model.forward)
        else:
            self.hooks.probe(self.runner, list(range(min(8, self.vocab))))
            self.taps = sorted(name for name, (axis, _) in self.hooks.axes.items() if self.hooks.now.calls.get(name) == 1)
        self.widths = reader.conv_widths(self.model, getattr(text, "num_hidden_layers", 0))
        cache = self.runner.forward([0, 1], 0, self.runner.fresh())[1]
        found = reader.read_states(self.model, cache, self.widths)
        self.parts = sorted({part for _, _, part, _ in found})
        # Classes that keep states in their modules have one sequence at a time.
        kept = ("conv1d_state", "recurrent_states")
        self.single = any(isinstance(getattr(module, name, None), torch.Tensor) for module in self.model.modules() for name in kept)
        self.last = None
        most = getattr(text, "max_position_embeddings", None) or tokens
        return {"vocab": self.vocab, "tokens": min(tokens, most)}

    def settings(self):
        return {**self.options, "torch": torch.__version__}

    def flag(self, name):
        if self.options[name] not in ("true", "false"):
            raise Refused(f"option {name} is {self.options[name]!r}; expected true or false")
        return self.options[name] == "true"

    def feed(self, slot, at, tokens, taps):
        if at:
            self.alone(slot)
        self.last = slot
        cache = self.slots[slot] if at else self.runner.fresh()
        if not taps:
            rows, cache = self.runner.forward(tokens, at, cache)
            seen = {}
        else:
            found, (rows, cache) = self.hooks.during(lambda: self.runner.forward(tokens, at, cache))
            seen = {tap: self.hooks.rows(tap, found[tap], len(tokens)) for tap in taps}
            lost = [tap for tap, value in seen.items() if value is None]
            if lost:
                raise Refused(f"the output of module {lost[0]} has no axis of tokens in this step")
        self.slots[slot] = cache
        return rows, seen

    def alone(self, slot):
        if self.single and slot != self.last:
            raise Refused("this class keeps states in its modules: one slot at a time")

    def score(self, tokens):
        self.last = None
        return self.runner.forward(tokens, 0, self.runner.fresh() if self.single else None)[0]

    def generate(self, tokens, count):
        self.last = None
        ids = torch.tensor([tokens], device=self.model.device)
        with torch.no_grad():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        return out[0, len(tokens) :].tolist()

    def fork(self, slot, to):
        if self.single:
            raise Refused("this class keeps states in its modules, which cannot be copied")
        self.slots[to] = copy.deepcopy(self.slots[slot])

    def truncate(self, slot, length):
        cache = self.slots[slot]
        if isinstance(cache, list):
            self.slots[slot] = cache[:length]
            return
        layers = getattr(cache, "layers", None)
        if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
            raise Refused("a window or a recurrent state cannot go back; fork before the tokens that are to be forgotten")
        cache.crop(length - cache.get_seq_length())

    def release(self, slot):
        self.slots.pop(slot, None)

    def states(self, slot):
        self.alone(slot)
        return [(layer, part, tensor) for layer, _, part, tensor in reader.read_states(self.model, self.slots[slot], self.widths)]

    def close(self):
        self.model, self.runner, self.slots = None, None, {}


if __name__ == "__main__":
    Transformers().serve()
