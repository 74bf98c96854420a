"""Connects an inference engine to `onboard`: override the methods of `Engine` that the engine can do, and call `serve()`.

    from onboard_engine import Engine

    class Mine(Engine):
        name, version = "mine", "1.0"

        def open(self, model, dtype, tokens):
            self.model = load(model, dtype)
            return {"vocab": self.model.vocab_size, "tokens": 4096}

        def score(self, tokens):
            return self.model.logits(tokens)     # [len(tokens), vocab]: logits or log-probabilities

    Mine().serve()

Numbers may be lists of lists, arrays of the `array` module, numpy arrays or torch tensors. Raise `Refused` for what the
engine does not do. The protocol is docs/engine-protocol.md (`onboard help engine-protocol`). Needs Python 3.9, no packages.
"""

import array
import json
import os
import sys
import traceback

# The protocol has the real standard output for itself: whatever a library prints goes to standard error.
_input, _output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)

PROTOCOL = 1


class Refused(Exception):
    """The engine does not do this; the message says why."""


class Chunk:
    """Tokens for one slot: `at` is how many it has seen, `rows` is "all", "last" or "none"."""

    def __init__(self, slot, at, tokens, rows):
        self.slot, self.at, self.tokens, self.rows = slot, at, tokens, rows


class Engine:
    """An engine. A verb is offered if its method is overridden; `open` and one of `score`, `step` and `feed` are needed."""

    name, version, device = "unnamed", "0", "cpu"
    options = {}  # settings that --engine-option can change, with their defaults
    taps = ()  # names of taps that `step` or `feed` can show; may be set by `open`
    parts = ()  # parts of states that `states` gives; may be set by `open`
    limit = 0  # tokens that a slot has room for, once a model is open

    def open(self, model, dtype, tokens):
        """Loads a model folder in f32, bf16 or f16, with room for `tokens` tokens. Returns at least {"vocab": N, "tokens": N}."""
        raise NotImplementedError

    def score(self, tokens):
        """Rows `[len(tokens), vocab]`: row i holds the logits or log-probabilities of the token after tokens[: i + 1]."""
        raise NotImplementedError

    def feed(self, slot, at, tokens, taps):
        """Continues a slot that has seen `at` tokens. Returns rows for all of `tokens`, and a dict of taps (or None)."""
        raise NotImplementedError

    def step(self, chunks, taps):
        """Continues several slots at once. Returns the rows that chunks ask for, one after the other, and a dict of taps."""
        rows, seen = [], {}
        for chunk in chunks:
            values, shown = self.feed(chunk.slot, chunk.at, chunk.tokens, taps)
            rows.append(values if chunk.rows == "all" else values[len(chunk.tokens) - 1 :] if chunk.rows == "last" else values[:0])
            for tap in taps:
                seen.setdefault(tap, []).append(shown[tap])
        return rows, seen

    def generate(self, tokens, count):
        """The `count` tokens that greedy decoding gives after a prompt."""
        raise NotImplementedError

    def fork(self, slot, to):
        """Makes slot `to` a copy of `slot`."""
        raise NotImplementedError

    def truncate(self, slot, length):
        """Forgets all but the first `length` tokens of a slot."""
        raise NotImplementedError

    def release(self, slot):
        """Forgets a slot. One that is not known is no error."""

    def states(self, slot):
        """A list of (layer, part, array): keys and values as [kept, heads, dim], a convolution as [channels, width - 1]."""
        raise NotImplementedError

    def close(self):
        """Frees the model."""

    def settings(self):
        """Settings in force, for reports."""
        return dict(self.options)

    def can(self):
        own = [verb for verb in ("score", "step", "generate", "fork", "truncate", "states") if getattr(type(self), verb) is not getattr(Engine, verb)]
        if "step" in own or type(self).feed is not Engine.feed:
            own = [verb for verb in own if verb != "step"] + ["step", "release", "taps"]
        return ["open", *own, "close"]

    def serve(self):
        """Answers verbs until standard input ends."""
        while line := _input.readline():
            ask = json.loads(line)
            try:
                body, frames = self._answer(ask.get("verb"), ask)
                heads = [{"name": name, "shape": shape, "bytes": len(data), **more} for name, shape, data, more in frames]
                answer = {"id": ask["id"], "ok": body, "frames": heads}
            except Refused as error:
                answer, frames = {"id": ask["id"], "error": str(error)}, []
            except Exception as error:
                traceback.print_exc()
                place = traceback.extract_tb(error.__traceback__)[-1]
                words = f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}, line {place.lineno})"
                answer, frames = {"id": ask["id"], "error": words, "failed": True}, []
            _output.write(json.dumps(answer).encode() + b"\n")
            for _, _, data, _ in frames:
                _output.write(data)
            _output.flush()

    def _answer(self, verb, ask):
        if verb == "hello":
            unknown = sorted(set(ask.get("options", {})) - set(self.options))
            if unknown:
                raise Refused(f"no option {', '.join(unknown)}; there are: {', '.join(sorted(self.options)) or 'none'}")
            self.options = {**self.options, **ask.get("options", {})}
            return {"protocol": PROTOCOL, "engine": self.name, "version": self.version, "device": self.device, "settings": self.settings(), "can": self.can()}, []
        if verb not in self.can():
            raise Refused(f"no verb {verb!r}")
        if verb == "open":
            opened = self.open(ask["model"], ask["dtype"], ask["tokens"]) or {}
            self.limit = opened.setdefault("tokens", ask["tokens"])
            return {"dtype": ask["dtype"], "device": self.device, "settings": self.settings(), "taps": list(self.taps), "states": list(self.parts), **opened}, []
        if verb == "score":
            self._room(len(ask["tokens"]))
            return {}, [frame("rows", self.score(ask["tokens"]))]
        if verb == "step":
            chunks = [Chunk(one["slot"], one["at"], one["tokens"], one["rows"]) for one in ask["chunks"]]
            for chunk in chunks:
                self._room(chunk.at + len(chunk.tokens))
            rows, taps = self.step(chunks, ask["taps"])
            return {}, [joined("rows", rows), *(joined(tap, taps[tap]) for tap in ask["taps"])]
        if verb == "generate":
            self._room(len(ask["tokens"]) + ask["count"])
            return {"tokens": [int(token) for token in self.generate(ask["tokens"], ask["count"])]}, []
        if verb == "fork":
            return self.fork(ask["slot"], ask["to"]) or {}, []
        if verb == "truncate":
            return self.truncate(ask["slot"], ask["length"]) or {}, []
        if verb == "release":
            return self.release(ask["slot"]) or {}, []
        if verb == "states":
            return {}, [frame(part, value, layer=layer) for layer, part, value in self.states(ask["slot"])]
        return self.close() or {}, []

    def _room(self, wanted):
        if wanted > self.limit:
            raise Refused(f"{wanted} tokens; a slot has room for {self.limit}" if self.limit else "no model is open")


def shape_of(value):
    """The shape of an array or of nested lists."""
    if hasattr(value, "shape"):
        return [int(axis) for axis in value.shape]
    if isinstance(value, (list, tuple)):
        return [len(value), *(shape_of(value[0]) if len(value) else [])]
    return [len(value)] if isinstance(value, array.array) else []


def raw(value):
    """Little-endian f32 bytes of an array or of nested lists."""
    if hasattr(value, "detach"):  # torch
        value = value.detach().float().cpu().contiguous().numpy()
    if hasattr(value, "astype"):  # numpy
        return value.astype("<f4").tobytes()
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
        return b"".join(map(raw, value))
    numbers = array.array("f", value)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def frame(name, value, **more):
    return name, shape_of(value), raw(value), more


def joined(name, values):
    """One frame of arrays that lie one behind the other."""
    shapes = [shape_of(value) for value in values]
    width = next((shape[1:] for shape in shapes if shape[0]), shapes[0][1:])
    return name, [sum(shape[0] for shape in shapes), *width], b"".join(map(raw, values)), {}
