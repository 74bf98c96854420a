"""LFM2 and LFM2.5: gated short convolutions, with attention in some layers. Source:
transformers models/lfm2.

Written from the spec `lfm2` of onboard.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Values of keys that the config of a model with encoders leaves out.
DEFAULTS = {
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 65536,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-05,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "tie_word_embeddings": True,
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
MODEL = "Lfm2ForCausalLM"


def read(config: dict[str, Any], *keys: str, default: Any = None) -> Any:
    """Gives the first of some keys that is there and not null."""
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return default


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
        self.eps = read(config, "norm_eps", default=1e-05)
        self.width = read(config, "conv_L_cache", default=3)
        self.bias = read(config, "conv_bias", default=False)
        self.tied = read(config, "tie_embedding", "tie_word_embeddings", default=True)
        self.context = read(config, "max_position_embeddings", default=128000)
        self.factor = read(config, "block_ffn_dim_multiplier", default=1.0)
        self.ff_dim = read(config, "block_ff_dim", "intermediate_size")
        self.multiple = read(config, "block_multiple_of", default=256)
        self.adjust = read(config, "block_auto_adjust_ff_dim", default=True)
        self.ffn = (
            -(-int(self.factor * (2 * self.ff_dim // 3)) // self.multiple)
            * self.multiple
            if self.adjust
            else self.ff_dim
        )
        self.attention_layers = read(
            config, "full_attn_idxs", default=range(self.layers)
        )
        self.layer_types = read(config, "layer_types")
        if self.layer_types is None:
            self.layer_types = [
                "full_attention" if i in self.attention_layers else "conv"
                for i in range(self.layers)
            ]
        self.rope_theta = read(
            config, "rope_parameters.rope_theta", "rope_theta", default=1000000.0
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

    def last(self, layer: int, name: str, rows: Tensor, count: int) -> Tensor:
        """Puts the last rows of earlier calls before these, and keeps the last of all."""
        kept = self.states.get((layer, name))
        if kept is None:
            kept = [rows.new_zeros(rows.shape[0], count, *rows.shape[2:])]
        rows = torch.cat([kept[0], rows], dim=1)
        self.states[layer, name] = [rows[:, rows.shape[1] - count :]]
        return rows


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


def causal_conv(conv: nn.Conv1d, rows: Tensor) -> Tensor:
    """Convolves rows with those before them, channel by channel."""
    return conv(rows.to(conv.weight.dtype).transpose(1, 2)).transpose(1, 2)


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


class ShortConv(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.width = config.width
        self.layer = layer
        self.in_proj = nn.Linear(config.hidden, 3 * config.hidden, bias=config.bias)
        self.conv = nn.Conv1d(
            config.hidden,
            config.hidden,
            config.width,
            groups=config.hidden,
            bias=config.bias,
        )
        self.out_proj = nn.Linear(config.hidden, config.hidden, bias=config.bias)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        b, c, u = self.in_proj(x).chunk(3, dim=-1)
        rows = cache.last(self.layer, "conv", b * u, self.width - 1)
        y = causal_conv(self.conv, rows)
        return self.out_proj(c * y)


class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden, config.ffn, bias=False)
        self.w3 = nn.Linear(config.hidden, config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.w1(x))
        return self.w2(gate * self.w3(x))


class Attention(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.layer = layer
        self.q_proj = nn.Linear(
            config.hidden, config.heads * config.head_dim, bias=False
        )
        self.k_proj = nn.Linear(
            config.hidden, config.kv_heads * config.head_dim, bias=False
        )
        self.v_proj = nn.Linear(
            config.hidden, config.kv_heads * config.head_dim, bias=False
        )
        self.q_layernorm = RMSNorm(config.head_dim, config.eps)
        self.k_layernorm = RMSNorm(config.head_dim, config.eps)
        self.out_proj = nn.Linear(
            config.heads * config.head_dim, config.hidden, bias=False
        )

    def forward(self, x: Tensor, cache: Cache, rope: Rope) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads, -1))
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, -1))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1))
        q = rotate(self.q_layernorm(q), rope)
        k = rotate(self.k_layernorm(k), rope)
        keys, rows = cache.extend(self.layer, "kv", k, v)
        return self.out_proj(attend(q, keys, rows, self.head_dim**-0.5))


class Lfm2ConvLayer(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(config.hidden, config.eps)
        self.ffn_norm = RMSNorm(config.hidden, config.eps)
        self.conv = ShortConv(config, layer)
        self.feed_forward = Mlp(config)

    def forward(self, x: Tensor, cache: Cache, rope: Rope) -> Tensor:
        x = x + self.conv(self.operator_norm(x), cache)
        return x + self.feed_forward(self.ffn_norm(x))


class Lfm2FullAttentionLayer(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(config.hidden, config.eps)
        self.ffn_norm = RMSNorm(config.hidden, config.eps)
        self.self_attn = Attention(config, layer)
        self.feed_forward = Mlp(config)

    def forward(self, x: Tensor, cache: Cache, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.operator_norm(x), cache, rope)
        return x + self.feed_forward(self.ffn_norm(x))


class Lfm2Model(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.embedding_norm = RMSNorm(config.hidden, config.eps)
        kinds = {"conv": Lfm2ConvLayer, "full_attention": Lfm2FullAttentionLayer}
        self.layers = nn.ModuleList(
            [
                kinds[kind](config, layer)
                for layer, kind in enumerate(config.layer_types[: config.layers])
            ]
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
        return self.embedding_norm(x)


class Lfm2ForCausalLM(nn.Module):
    """The model: from token ids to logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.model = Lfm2Model(config)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Gives logits for each of `tokens`, which continue those in the cache."""
        cache = Cache() if cache is None else cache
        x = self.model(tokens, cache)
        # `embedding_norm` is the final norm, despite its name.
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
