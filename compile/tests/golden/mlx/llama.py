"""Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU.
Source: transformers models/llama. Most dense families extend this file.

Written from the spec `llama` of onboard.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .base import (
    BaseModelArgs,
    create_attention_mask,
    create_causal_mask,
    scaled_dot_product_attention,
)
from .cache import KVCache
from .rope_utils import initialize_rope

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


def read(config: dict[str, Any], *keys: str, default: Any = None) -> Any:
    """Gives the first of some keys that is there and not null."""
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return default


class ModelArgs(BaseModelArgs):
    """Sizes and settings, read from `config.json`."""

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> "ModelArgs":
        return cls(params)

    def __init__(self, config: dict[str, Any]) -> None:
        self.model_type = config.get("model_type")
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


Rope = Callable[[mx.array], mx.array]


def times(x: mx.array, s: float) -> mx.array:
    """Multiplies by a number that is not rounded."""
    return (x.astype(mx.float32) * s).astype(x.dtype)


def rotary(
    dim: int,
    theta: float,
    parameters: dict[str, Any] | None = None,
    partial: float = 1.0,
    context: int = 0,
) -> nn.Module:
    dim = int(dim * partial)
    # Pairs have the same periods if their number is odd.
    even = dim + dim % 2
    base = theta ** (even / dim)
    return initialize_rope(even, base, False, parameters, context)


def rotate(x: mx.array, rope: Rope) -> mx.array:
    """Rotates pairs of the first numbers of each head."""
    return rope(x.swapaxes(1, 2)).swapaxes(1, 2)


def precise(function: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
    """Computes a function in f32, and rounds its result."""

    @partial(mx.compile, shapeless=True)
    def rounded(x: mx.array) -> mx.array:
        return function(x.astype(mx.float32)).astype(x.dtype)

    return rounded


def sdpa(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
) -> mx.array:
    """Attention by the kernel of a GPU, or with the roundings of the reference."""
    if mx.default_device() == mx.gpu:
        y = scaled_dot_product_attention(q, k, v, cache=cache, scale=scale, mask=mask)
        return y.swapaxes(1, 2).flatten(2)
    rows, total = q.shape[2], k.shape[2]
    k, v = (mx.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = times(q @ k.swapaxes(2, 3), scale)
    if isinstance(mask, str):
        mask = create_causal_mask(rows, total - rows)
    if mask is not None:
        scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
    weights = mx.softmax(scores, axis=-1, precise=True)
    return (weights[..., :total].astype(v.dtype) @ v).swapaxes(1, 2).flatten(2)


def attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    cache: Any,
    scale: float,
) -> mx.array:
    """Causal attention to the rows of earlier calls and these."""
    mask = create_attention_mask(q, cache)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    k, v = cache.update_and_fetch(k, v)
    return sdpa(q, k, v, cache, scale, mask)


ACTIVATIONS = {
    "silu": precise(nn.silu),
}


class Attention(nn.Module):
    def __init__(self, config: ModelArgs) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.scale = config.scale
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

    def __call__(self, x: mx.array, cache: Any, rope: Rope) -> mx.array:
        q = rotate(mx.unflatten(self.q_proj(x), -1, (self.heads, -1)), rope)
        k = rotate(mx.unflatten(self.k_proj(x), -1, (self.kv_heads, -1)), rope)
        v = mx.unflatten(self.v_proj(x), -1, (self.kv_heads, -1))
        return self.o_proj(attend(q, k, v, cache, self.scale))


class Mlp(nn.Module):
    def __init__(self, config: ModelArgs) -> None:
        super().__init__()
        self.act = config.act
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        gate = ACTIVATIONS[self.act](self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, config: ModelArgs) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)

    def make_cache(self) -> Any:
        return KVCache()

    def __call__(self, x: mx.array, cache: Any, rope: Rope) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), cache, rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, config: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.layers = [LlamaLayer(config) for _ in range(config.layers)]
        self.rope = rotary(
            config.head_dim,
            config.rope_theta,
            config.rope_parameters,
            context=config.context,
        )

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        rope = partial(self.rope, offset=cache[0].offset)
        x = self.embed_tokens(inputs)
        for layer, c in zip(self.layers, cache):
            x = layer(x, c, rope)
        return self.norm(x)


class Model(nn.Module):
    """The model: from token ids to logits."""

    def __init__(self, config: ModelArgs) -> None:
        super().__init__()
        self.args = config
        self.model_type = config.model_type
        self.tied = config.tied
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.model = LlamaModel(config)

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Gives logits for each of `inputs`, which continue those in the cache."""
        cache = self.make_cache() if cache is None else cache
        x = self.model(inputs, cache)
        logits = self.model.embed_tokens.as_linear(x) if self.tied else self.lm_head(x)
        return logits

    @property
    def layers(self) -> list[nn.Module]:
        return self.model.layers

    def make_cache(self) -> list[Any]:
        return [layer.make_cache() for layer in self.layers]

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Gives tensors of a checkpoint the names and shapes of this file."""
        if any(name.endswith(".scales") for name in weights):
            # They are quantized, so this was done before.
            return weights
        for outer, inner in PREFIXES.items():
            weights = {
                inner + name.removeprefix(outer) if name.startswith(outer) else name: x
                for name, x in weights.items()
            }
        known = {name: x.shape for name, x in tree_flatten(self.parameters())}
        found: dict[str, mx.array] = {}

        def add(name: str, x: mx.array) -> None:
            shape = known.get(name)
            if x.shape == shape:
                found.setdefault(name, x)

        for name, x in weights.items():
            add(name, x)
            add(f"model.{name}", x)
        return found
