"""Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU.
Source: transformers models/llama. Most dense families extend this file.

Written from the spec `llama` of onboard.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Values of keys that the config of a model with encoders leaves out.
DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
# Where the tensors of a model with encoders lie.
PREFIXES = {
    "language_model.model.encoder.layers.": "model.layers.",
    "language_model.model.blocks.": "model.layers.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.": "",
    "text_model.": "",
    "thinker.": "",
    "llm.": "",
}
MODEL = "LlamaForCausalLM"


def read(config: dict[str, Any], *keys: str, default: Any = None) -> Any:
    """Gives the first of some keys that is there and not null."""
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return default


@dataclass
class Rule:
    """Tensors of a checkpoint that lie under other names, or in other shapes."""

    disk: str
    weight: str
    words: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    gathered: list[int] = field(default_factory=list)
    change: Callable[[Any], list[Tensor]] = lambda x: [x]

    def apply(self, tensors: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
        groups: dict[tuple[str, ...], list[tuple[tuple[str, ...], Tensor]]] = {}
        for name, x in tensors.items():
            if match := re.fullmatch(self.disk, name):
                holes = match.groups()
                taken = tuple(holes[n] for n in self.gathered)
                key = [h for n, h in enumerate(holes) if n not in self.gathered]
                groups.setdefault(tuple(key), []).append((taken, x))
        results = []
        for holes, members in groups.items():
            if self.gathered:
                members.sort(key=lambda one: [self.place(hole) for hole in one[0]])
            xs = [x for _, x in members]
            parts = self.change(xs if self.gathered else xs[0])
            renamed = [self.renamed[hole] for hole in holes if hole in self.renamed]
            words = self.words or renamed or [""]
            for n, part in enumerate(parts):
                word = words[n % len(words)]
                name = self.weight.format(*holes, n=n // len(words), word=word)
                results.append((name, part))
        return results

    def place(self, hole: str) -> int:
        return int(hole) if hole.isdigit() else self.disk.index(hole)


class Config:
    """Sizes and settings, read from `config.json`."""

    def __init__(
        self, config: dict[str, Any], dtype: torch.dtype = torch.float32
    ) -> None:
        inner = read(
            config,
            "text_config",
            "thinker_config.text_config",
            "llm_config",
            "language_config",
        )
        if inner is not None:
            tied = config.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
            config = {**DEFAULTS, **config, **inner}
            if tied is not None:
                config["tie_word_embeddings"] = tied
        self.dtype = dtype
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.vocab = config["vocab_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = read(config, "num_key_value_heads", default=self.heads)
        self.head_dim = read(config, "head_dim", default=self.hidden // self.heads)
        self.ffn = config["intermediate_size"]
        self.eps = read(config, "rms_norm_eps", default=1e-06)
        self.act = read(config, "hidden_act", default="silu")
        self.tied = read(config, "tie_word_embeddings", default=False)
        self.context = read(config, "max_position_embeddings", default=2048)
        self.scale = self.head_dim**-0.5
        self.qkv_bias = read(config, "attention_bias", default=False)
        self.mlp_bias = read(config, "mlp_bias", default=False)
        self.rope_theta = read(
            config, "rope_parameters.rope_theta", "rope_theta", default=10000.0
        )
        self.rope_parameters = read(config, "rope_parameters", "rope_scaling")


class Cache:
    """What layers keep between calls, by layer and name."""

    def __init__(self) -> None:
        self.length = 0
        self.states: dict[tuple[int, str], list[Tensor]] = {}

    def extend(self, layer: int, name: str, *rows: Tensor) -> list[Tensor]:
        """Appends rows to those of earlier calls, and gives all of them."""
        kept = self.states.get((layer, name))
        if kept is None:
            kept = [row[:, :0] for row in rows]
        kept = [torch.cat(pair, dim=1) for pair in zip(kept, rows, strict=True)]
        self.states[layer, name] = kept
        return kept


Rope = tuple[Tensor, Tensor]


class Rotary:
    """Cosines and sines of rotary positions."""

    def __init__(
        self,
        dim: int,
        theta: float,
        parameters: dict[str, Any] | None = None,
        partial: float | None = None,
        context: int = 0,
        original: int | None = None,
    ) -> None:
        parameters = parameters or {}
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if partial is None:
            partial = parameters.get("partial_rotary_factor", 1.0)
            partial = 1.0 if kind == "default" else partial
        dim = int(dim * partial)
        steps = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self.frequencies = 1.0 / theta**steps
        self.factor = 1.0
        if kind in ("default", "mrope"):
            return
        raise ValueError(f"rotary positions of kind {kind!r} are not in this file")

    def __call__(self, start: int, rows: int, device: torch.device) -> Rope:
        frequencies, factor = self.frequencies, self.factor
        positions = torch.arange(start, start + rows, device=device)
        angles = positions[:, None].float() * frequencies.to(device)
        return angles.cos() * factor, angles.sin() * factor


class RMSNorm(nn.Module):
    """A norm by the root of the mean square, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates pairs of the first numbers of each head."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rope)
    turned, rest = x.tensor_split([2 * cos.shape[-1]], dim=-1)
    a, b = turned.chunk(2, dim=-1)
    a, b = a * cos - b * sin, b * cos + a * sin
    return torch.cat([a, b, rest], dim=-1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention: rows of `q` are the last of those in `k` and `v`."""
    rows, total = q.shape[1], k.shape[1]
    groups = q.shape[2] // k.shape[2]
    q = q.transpose(1, 2)
    k = k.repeat_interleave(groups, dim=2).transpose(1, 2)
    v = v.repeat_interleave(groups, dim=2).transpose(1, 2)
    scores = q @ k.transpose(2, 3) * scale
    at = torch.arange(total, device=q.device)
    now = at[total - rows :, None]
    seen = at <= now
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(dim=-1, dtype=torch.float32)[..., :total].to(v.dtype)
    return (weights @ v).transpose(1, 2).flatten(2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class Attention(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.scale = config.scale
        self.layer = layer
        self.q_proj = nn.Linear(
            config.hidden, config.heads * config.head_dim, bias=config.qkv_bias
        )
        self.k_proj = nn.Linear(
            config.hidden, config.kv_heads * config.head_dim, bias=config.qkv_bias
        )
        self.v_proj = nn.Linear(
            config.hidden, config.kv_heads * config.head_dim, bias=config.qkv_bias
        )
        self.o_proj = nn.Linear(
            config.heads * config.head_dim, config.hidden, bias=config.qkv_bias
        )

    def forward(self, x: Tensor, cache: Cache, rope: Rope) -> Tensor:
        q = rotate(self.q_proj(x).unflatten(-1, (self.heads, -1)), rope)
        k = rotate(self.k_proj(x).unflatten(-1, (self.kv_heads, -1)), rope)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1))
        keys, rows = cache.extend(self.layer, "kv", k, v)
        return self.o_proj(attend(q, keys, rows, self.scale))


class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.act = config.act
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = ACTIVATIONS[self.act](self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.self_attn = Attention(config, layer)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, cache: Cache, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cache, rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.norm = RMSNorm(config.hidden, config.eps)
        self.layers = nn.ModuleList(
            [LlamaLayer(config, layer) for layer in range(config.layers)]
        )
        self.rope = Rotary(
            config.head_dim,
            config.rope_theta,
            config.rope_parameters,
            context=config.context,
        )

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        rope = self.rope(cache.length, tokens.shape[1], tokens.device)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cache, rope)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The model: from token ids to logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.model = LlamaModel(config)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Gives logits for each of `tokens`, which continue those in the cache."""
        cache = Cache() if cache is None else cache
        x = self.model(tokens, cache)
        logits = self.lm_head(x)
        cache.length += tokens.shape[1]
        return logits

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Loads the tensors of a checkpoint, rounded to the dtype of the model."""
        for outer, inner in PREFIXES.items():
            tensors = {
                inner + name.removeprefix(outer) if name.startswith(outer) else name: x
                for name, x in tensors.items()
            }
        known = self.state_dict()
        found: dict[str, Tensor] = {}
        rules = [
            Rule(r"embed_tokens\.weight", "model.embed_tokens.weight"),
            Rule(r"layers\.(.*)", "model.layers.{0}"),
            Rule(r"norm\.weight", "model.norm.weight"),
        ]
        for rule in rules:
            for name, x in rule.apply(tensors):
                if name in known and known[name].shape == x.shape:
                    found.setdefault(name, x)
        for name, x in tensors.items():
            name = name if name in known else f"model.{name}"
            if name in known:
                found.setdefault(name, x)
        if self.config.tied:
            found["lm_head.weight"] = found["model.embed_tokens.weight"]
        parameters = dict(self.named_parameters())
        if missing := sorted(parameters.keys() - found.keys()):
            raise ValueError(f"the checkpoint lacks tensors: {missing[:4]}")
        for name, parameter in parameters.items():
            parameter.data = found[name].to(self.config.dtype)
