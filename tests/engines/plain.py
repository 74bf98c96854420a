"""A dense decoder with rotary attention on the standard library alone: reads config.json and model.safetensors of a
small checkpoint and multiplies in Python floats. An example of an engine, and the stand-in of the tests."""

import json
import math
import struct
from pathlib import Path

from onboard_engine import Engine, Refused


def tensors(path):
    data = Path(path, "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, info in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in info["data_offsets"])
        wide = info["dtype"] == "F32"
        raw = data[begin:end] if wide else b"".join(b"\0\0" + data[at : at + 2] for at in range(begin, end, 2))
        flat, width = struct.unpack(f"<{len(raw) // 4}f", raw), info["shape"][-1]
        yield name, [flat[at : at + width] for at in range(0, len(flat), width)]


def times(matrix, row):
    return [sum(map(float.__mul__, weights, row)) for weights in matrix]


class Plain(Engine):
    name, version = "plain", "1"
    options = {"theta": "", "weights": ""}  # weights: the folder that a file stands for

    def open(self, model, dtype, tokens):
        if dtype != "f32":
            raise Refused(f"no {dtype}; it runs in f32")
        if Path(model).is_file():
            with open(model, "rb") as file:
                if file.read(4) != b"GGUF":
                    raise Refused(f"{model} is no GGUF file")
            model = self.options["weights"]
        self.c = json.loads(Path(model, "config.json").read_text())
        self.w, self.slots = dict(tensors(model)), {}
        theta = float(self.options["theta"] or self.c["rope_parameters"]["rope_theta"])
        size = self.c["head_dim"]
        self.angles = [theta ** (-2 * i / size) for i in range(size // 2)]
        return {"vocab": self.c["vocab_size"], "tokens": min(tokens, self.c["max_position_embeddings"])}

    def norm(self, name, row):
        scale = 1 / math.sqrt(sum(x * x for x in row) / len(row) + self.c["rms_norm_eps"])
        return [x * scale * w for x, w in zip(row, self.w[name + ".weight"][0])]

    def heads(self, name, row, at=None):
        flat, size = times(self.w[name + ".weight"], row), self.c["head_dim"]
        heads = [flat[i : i + size] for i in range(0, len(flat), size)]
        return heads if at is None else [self.turn(head, at) for head in heads]

    def turn(self, head, at):
        half = len(head) // 2
        pairs = [(head[i], head[i + half], math.cos(at * angle), math.sin(at * angle)) for i, angle in enumerate(self.angles)]
        return [a * c - b * s for a, b, c, s in pairs] + [b * c + a * s for a, b, c, s in pairs]

    def attend(self, queries, past):
        group, mixed = len(queries) // len(past[0][0]), []
        for n, query in enumerate(queries):
            scores = [sum(map(float.__mul__, query, keys[n // group])) / math.sqrt(len(query)) for keys, _ in past]
            weights = [math.exp(score - max(scores)) for score in scores]
            mixed += [sum(w * v[n // group][i] for w, (_, v) in zip(weights, past)) / sum(weights) for i in range(len(query))]
        return mixed

    def row(self, token, at, cache):
        x = list(self.w["model.embed_tokens.weight"][token])
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            y = self.norm(p + "input_layernorm", x)
            past = cache.setdefault(layer, [])
            past.append((self.heads(p + "self_attn.k_proj", y, at), self.heads(p + "self_attn.v_proj", y)))
            y = times(self.w[p + "self_attn.o_proj.weight"], self.attend(self.heads(p + "self_attn.q_proj", y, at), past))
            x = [a + b for a, b in zip(x, y)]
            y = self.norm(p + "post_attention_layernorm", x)
            gate, up = (times(self.w[f"{p}mlp.{name}_proj.weight"], y) for name in ("gate", "up"))
            y = times(self.w[p + "mlp.down_proj.weight"], [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])
            x = [a + b for a, b in zip(x, y)]
        return times(self.w["lm_head.weight"], self.norm("model.norm", x))

    def feed(self, slot, at, tokens, taps):
        cache = self.slots.setdefault(slot, {}) if at else self.slots.update({slot: {}}) or self.slots[slot]
        return [self.row(token, at + n, cache) for n, token in enumerate(tokens)], {}

    def score(self, tokens):
        cache = {}
        return [self.row(token, at, cache) for at, token in enumerate(tokens)]

    def generate(self, tokens, count):
        rows, chosen, cache = None, [], {}
        for at in range(len(tokens) + count - 1):
            rows = self.row((list(tokens) + chosen)[at], at, cache)
            if at >= len(tokens) - 1:
                chosen.append(max(range(len(rows)), key=rows.__getitem__))
        return chosen

    def fork(self, slot, to):
        self.slots[to] = {layer: list(past) for layer, past in self.slots[slot].items()}

    def truncate(self, slot, length):
        self.slots[slot] = {layer: past[:length] for layer, past in self.slots[slot].items()}

    def release(self, slot):
        self.slots.pop(slot, None)


if __name__ == "__main__":
    Plain().serve()
