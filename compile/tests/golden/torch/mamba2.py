"""Mamba-2: state spaces only, the residual stream in f32. Source: transformers
models/mamba2.

Written from the spec `mamba2` of onboard.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODEL = "Mamba2ForCausalLM"


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
        self.dtype = dtype
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.vocab = config["vocab_size"]
        self.eps = read(config, "layer_norm_epsilon", default=1e-05)
        self.tied = read(config, "tie_word_embeddings", default=False)
        self.wide = read(config, "residual_in_fp32", default=True)
        self.ssm_heads = read(config, "num_heads", default=128)
        self.ssm_dim = read(config, "head_dim", default=64)
        self.ssm_inner = self.ssm_heads * self.ssm_dim
        self.ssm_groups = read(config, "n_groups", default=8)
        self.ssm_size = read(config, "state_size", default=128)
        self.ssm_act = read(config, "hidden_act", default="silu")
        self.conv_width = read(config, "conv_kernel", default=4)
        self.conv_bias = read(config, "use_conv_bias", default=True)
        self.ssm_bias = read(config, "use_bias", default=False)
        self.dt_limit = read(config, "time_step_limit")
        self.dt_min = self.dt_limit[0] if self.dt_limit else None
        self.dt_max = (
            (None if self.dt_limit[1] > 1e38 else self.dt_limit[1])
            if self.dt_limit
            else None
        )


class Cache:
    """What layers keep between calls, by layer and name."""

    def __init__(self) -> None:
        self.length = 0
        self.states: dict[tuple[int, str], list[Tensor]] = {}

    def last(self, layer: int, name: str, rows: Tensor, count: int) -> Tensor:
        """Puts the last rows of earlier calls before these, and keeps the last of all."""
        kept = self.states.get((layer, name))
        if kept is None:
            kept = [rows.new_zeros(rows.shape[0], count, *rows.shape[2:])]
        rows = torch.cat([kept[0], rows], dim=1)
        self.states[layer, name] = [rows[:, rows.shape[1] - count :]]
        return rows


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


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def causal_conv(conv: nn.Conv1d, rows: Tensor) -> Tensor:
    """Convolves rows with those before them, channel by channel."""
    return conv(rows.to(conv.weight.dtype).transpose(1, 2)).transpose(1, 2)


def limited(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """Bounds numbers on the sides that have a bound."""
    return x if low is None and high is None else x.clamp(low, high)


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    a_log: Tensor,
    d: Tensor,
    cache: Cache,
    layer: int,
    name: str,
) -> Tensor:
    """A state space whose states decay by one rate per head, one row after another."""
    groups = x.shape[2] // b.shape[2]
    b = b.repeat_interleave(groups, dim=2)
    c = c.repeat_interleave(groups, dim=2)
    decay = torch.exp(dt.float() * -a_log.float().exp())[..., None, None]
    kept = cache.states.get((layer, name))
    shape = (*x[:, 0].shape, b.shape[-1])
    state = kept[0] if kept else torch.zeros(shape, device=x.device)
    if kept:
        # Steps are rounded, the state is not.
        added = (dt[..., None] * b).unsqueeze(-2) * x.unsqueeze(-1)
        outputs = []
        for n in range(x.shape[1]):
            state = state * decay[:, n] + added[:, n]
            outputs.append((state.to(c.dtype) @ c[:, n].unsqueeze(-1)).squeeze(-1))
        cache.states[layer, name] = [state]
        return (torch.stack(outputs, dim=1) + x * d[:, None]).to(x.dtype)
    x, b, c = x.float(), b.float(), c.float()
    added = (x * dt[..., None].float()).unsqueeze(-1) * b.unsqueeze(-2)
    outputs = []
    for n in range(x.shape[1]):
        state = state * decay[:, n] + added[:, n]
        outputs.append((state @ c[:, n].unsqueeze(-1)).squeeze(-1))
    cache.states[layer, name] = [state]
    return torch.stack(outputs, dim=1) + x * d[:, None]


class GatedNorm(nn.Module):
    """A norm by the root of the mean square, with a gate before it."""

    def __init__(self, size: int, eps: float, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.groups = groups

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * F.silu(gate.float())
        wide = wide.unflatten(-1, (self.groups, -1))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        wide = wide.flatten(-2)
        y = self.weight * wide.to(x.dtype)
        return y.to(x.dtype)


class Mamba2(nn.Module):
    """`P` is the path of the mixer."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.conv_width = config.conv_width
        self.dt_max = config.dt_max
        self.dt_min = config.dt_min
        self.dtype = config.dtype
        self.ssm_act = config.ssm_act
        self.ssm_groups = config.ssm_groups
        self.ssm_heads = config.ssm_heads
        self.ssm_inner = config.ssm_inner
        self.ssm_size = config.ssm_size
        self.layer = layer
        self.in_proj = nn.Linear(
            config.hidden,
            2 * config.ssm_inner
            + 2 * config.ssm_groups * config.ssm_size
            + config.ssm_heads,
            bias=config.ssm_bias,
        )
        self.norm = GatedNorm(
            config.ssm_heads * (config.ssm_inner // config.ssm_heads),
            config.eps,
            config.ssm_groups,
        )
        self.out_proj = nn.Linear(
            config.ssm_heads * (config.ssm_inner // config.ssm_heads),
            config.hidden,
            bias=config.ssm_bias,
        )
        self.conv1d = nn.Conv1d(
            config.ssm_inner + 2 * config.ssm_groups * config.ssm_size,
            config.ssm_inner + 2 * config.ssm_groups * config.ssm_size,
            config.conv_width,
            groups=config.ssm_inner + 2 * config.ssm_groups * config.ssm_size,
            bias=config.conv_bias,
        )
        self.A_log = nn.Parameter(torch.empty(config.ssm_heads))
        self.D = nn.Parameter(torch.ones(config.ssm_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.ssm_heads))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """`P` is the path of the mixer."""
        gate, y = self.mamba2_scan(self.in_proj(x), cache)
        y = self.norm(y, gate)
        return self.out_proj(y.to(self.dtype))

    def mamba2_scan(self, x: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Returns the gate and the f32 output of the state space, given the projection."""
        gate, xbc, dt = x.split(
            [
                self.ssm_inner,
                self.ssm_inner + 2 * self.ssm_groups * self.ssm_size,
                self.ssm_heads,
            ],
            dim=-1,
        )
        rows = cache.last(self.layer, "conv", xbc, self.conv_width - 1)
        xbc = ACTIVATIONS[self.ssm_act](causal_conv(self.conv1d, rows))
        u, b, c = xbc.split(
            [
                self.ssm_inner,
                self.ssm_groups * self.ssm_size,
                self.ssm_groups * self.ssm_size,
            ],
            dim=-1,
        )
        steps = F.softplus(dt + self.dt_bias)
        steps = limited(steps, self.dt_min, self.dt_max)
        return gate, ssd_scan(
            u.unflatten(-1, (self.ssm_heads, -1)),
            steps,
            b.unflatten(-1, (self.ssm_groups, -1)),
            c.unflatten(-1, (self.ssm_groups, -1)),
            self.A_log,
            self.D,
            cache,
            self.layer,
            "recurrent",
        ).flatten(-2)


class Mamba2Layer(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.dtype = config.dtype
        self.norm = RMSNorm(config.hidden, config.eps)
        self.mixer = Mamba2(config, layer)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return x + self.mixer(self.norm(x.to(self.dtype)), cache)


class Mamba2Model(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dtype = config.dtype
        self.wide = config.wide
        self.embeddings = nn.Embedding(config.vocab, config.hidden)
        self.norm_f = RMSNorm(config.hidden, config.eps)
        self.layers = nn.ModuleList(
            [Mamba2Layer(config, layer) for layer in range(config.layers)]
        )

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        x = self.embeddings(tokens)
        x = x.float() if self.wide else x
        for layer in self.layers:
            x = layer(x, cache)
        return self.norm_f(x).to(self.dtype)


class Mamba2ForCausalLM(nn.Module):
    """The model: from token ids to logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.backbone = Mamba2Model(config)
        if config.tied:
            self.lm_head.weight = self.backbone.embeddings.weight

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Gives logits for each of `tokens`, which continue those in the cache."""
        cache = Cache() if cache is None else cache
        x = self.backbone(tokens, cache)
        logits = self.lm_head(x)
        cache.length += tokens.shape[1]
        return logits

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Loads the tensors of a checkpoint, rounded to the dtype of the model."""
        known = self.state_dict()
        found: dict[str, Tensor] = {}
        for name, x in tensors.items():
            name = name if name in known else f"backbone.{name}"
            if name in known:
                found.setdefault(name, x)
        if self.config.tied:
            found["lm_head.weight"] = found["backbone.embeddings.weight"]
        parameters = dict(self.named_parameters())
        if missing := sorted(parameters.keys() - found.keys()):
            raise ValueError(f"the checkpoint lacks tensors: {missing[:4]}")
        for name, parameter in parameters.items():
            parameter.data = found[name].to(self.config.dtype)
