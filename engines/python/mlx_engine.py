"""mlx-lm as an engine: `onboard parity check MODEL --engine mlx`. All rows have the whole vocabulary."""

import copy
import dataclasses
import sys
from pathlib import Path

from onboard_engine import Engine, Refused

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache
from mlx_lm.utils import load_model

# Config keys that change no number of a forward pass.
IDLE = {"architectures", "transformers_version", "dtype", "torch_dtype", "use_cache", "initializer_range", "pretraining_tp", "is_decoder",
        "output_router_logits", "router_aux_loss_coef", "return_dict", "max_position_embeddings", "tokenizer_class", "auto_map"}

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}


class Mlx(Engine):
    name, version = "mlx", mlx_lm.__version__
    options = {"device": "cpu"}

    def open(self, model, dtype, tokens):
        self.device = self.options["device"]
        if self.device not in ("cpu", "gpu"):
            raise Refused(f"option device is {self.device!r}; expected cpu or gpu")
        mx.set_default_device(mx.cpu if self.device == "cpu" else mx.gpu)
        self.model, config = load_model(Path(model), lazy=False, strict=True)
        self.model.set_dtype(DTYPES[dtype])
        mx.eval(self.model.parameters())
        self.slots, self.unread = {}, unread(self.model, config)
        text = config.get("text_config") or config
        most = text.get("max_position_embeddings") or tokens
        vocab = self.run([0], self.cache()).shape[-1]
        return {"vocab": vocab, "tokens": min(tokens, most)}

    def settings(self):
        found = {**self.options, "mlx": mx.__version__}
        return found | {"config keys it does not read": " ".join(self.unread)} if getattr(self, "unread", None) else found

    def cache(self):
        return make_prompt_cache(self.model)

    def run(self, tokens, cache):
        rows = self.model(mx.array([tokens]), cache=cache)[0].astype(mx.float32)
        mx.eval(rows)
        return np.array(rows)

    def feed(self, slot, at, tokens, taps):
        if not at:
            self.slots[slot] = self.cache()
        return self.run(tokens, self.slots[slot]), {}

    def score(self, tokens):
        return self.run(tokens, self.cache())

    def generate(self, tokens, count):
        from mlx_lm.generate import generate_step

        steps = generate_step(mx.array(tokens), self.model, max_tokens=count)
        return [int(token) for token, _ in steps][:count]

    def fork(self, slot, to):
        self.slots[to] = duplicate(self.slots[slot])

    def truncate(self, slot, length):
        cache = self.slots[slot]
        seen = max((layer.offset for layer in cache if hasattr(layer, "offset")), default=0)
        if not can_trim_prompt_cache(cache):
            raise Refused("a window or a recurrent state cannot go back; fork before the tokens that are to be forgotten")
        trim_prompt_cache(cache, seen - length)

    def release(self, slot):
        self.slots.pop(slot, None)

    def close(self):
        self.model, self.slots = None, {}


def unread(model, config):
    """Keys of config.json that mlx-lm drops without a word: a model that needs them runs as another one."""
    arguments = getattr(sys.modules[type(model).__module__], "ModelArgs", None)
    if not dataclasses.is_dataclass(arguments):
        return []
    known = {field.name for field in dataclasses.fields(arguments)} | IDLE
    return sorted(key for key, value in config.items() if key not in known and value and not key.endswith(("_token_id", "dropout")))


def duplicate(value):
    """A copy of caches and of their arrays, into which they write."""
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, (list, tuple)):
        return type(value)(duplicate(item) for item in value)
    if hasattr(value, "state"):
        twin = copy.copy(value)
        vars(twin).update({name: duplicate(item) for name, item in vars(value).items()})
        return twin
    return value


if __name__ == "__main__":
    Mlx().serve()
