"""Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU.
Source: transformers models/llama. Most dense families extend this file.

Written from the spec `llama` of onboard. The class is registered by a plugin:
`ModelRegistry.register_model("LlamaForCausalLM", "MODULE:LlamaForCausalLM")`.
"""

import copy
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import divide
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors

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
    """Sizes and settings: those of the checkpoint's `config.json`, and those of the engine."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        config = vllm_config.model_config.hf_config.to_dict()
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
        self.dtype = vllm_config.model_config.dtype
        self.quant_config = vllm_config.quant_config
        # Heads and columns of matrices are divided among ranks.
        self.ranks = vllm_config.parallel_config.tensor_parallel_size
        # Layers say by themselves which window they have.
        self.cache_config = copy.copy(vllm_config.cache_config)
        self.cache_config.sliding_window = None
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

    def __call__(self, positions: Tensor) -> Rope:
        angles = positions[:, None].float() * self.frequencies.to(positions.device)
        return angles.cos() * self.factor, angles.sin() * self.factor


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates pairs of the first numbers of each head."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rope)
    turned, rest = x.tensor_split([2 * cos.shape[-1]], dim=-1)
    a, b = turned.chunk(2, dim=-1)
    a, b = a * cos - b * sin, b * cos + a * sin
    return torch.cat([a, b, rest], dim=-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class LlamaAttention(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.ranks = config.ranks
        self.q_proj = ColumnParallelLinear(
            config.hidden,
            config.heads * config.head_dim,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "q_proj"),
        )
        self.k_proj = ColumnParallelLinear(
            config.hidden,
            config.kv_heads * config.head_dim,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "k_proj"),
        )
        self.v_proj = ColumnParallelLinear(
            config.hidden,
            config.kv_heads * config.head_dim,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "v_proj"),
        )
        self.attn = Attention(
            divide(config.heads, config.ranks),
            config.head_dim,
            config.scale,
            num_kv_heads=divide(config.kv_heads, config.ranks),
            cache_config=config.cache_config,
            quant_config=config.quant_config,
            prefix=maybe_prefix(prefix, "attn"),
        )
        self.o_proj = RowParallelLinear(
            config.heads * config.head_dim,
            config.hidden,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "o_proj"),
        )

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        q = rotate(self.q_proj(x).unflatten(-1, (self.heads // self.ranks, -1)), rope)
        k = rotate(
            self.k_proj(x).unflatten(-1, (self.kv_heads // self.ranks, -1)), rope
        )
        v = self.v_proj(x).unflatten(-1, (self.kv_heads // self.ranks, -1))
        return self.o_proj(self.attn(q.flatten(1), k.flatten(1), v.flatten(1)))


class LlamaMlp(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.act = config.act
        self.gate_proj = ColumnParallelLinear(
            config.hidden,
            config.ffn,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "gate_proj"),
        )
        self.up_proj = ColumnParallelLinear(
            config.hidden,
            config.ffn,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "up_proj"),
        )
        self.down_proj = RowParallelLinear(
            config.ffn,
            config.hidden,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "down_proj"),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate = ACTIVATIONS[self.act](self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, eps=config.eps)
        self.post_attention_layernorm = RMSNorm(config.hidden, eps=config.eps)
        self.self_attn = LlamaAttention(config, maybe_prefix(prefix, "self_attn"))
        self.mlp = LlamaMlp(config, maybe_prefix(prefix, "mlp"))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab,
            config.hidden,
            quant_config=config.quant_config,
            prefix=maybe_prefix(prefix, "embed_tokens"),
        )
        self.norm = RMSNorm(config.hidden, eps=config.eps)
        self.layers = nn.ModuleList(
            [
                LlamaLayer(config, maybe_prefix(prefix, f"layers.{layer}"))
                for layer in range(config.layers)
            ]
        )
        self.rope = Rotary(
            config.head_dim,
            config.rope_theta,
            config.rope_parameters,
            context=config.context,
        )

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        rope = self.rope(positions)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The model: hidden states of tokens, and their logits."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = Config(vllm_config)
        self.config = config
        self.lm_head = ParallelLMHead(
            config.vocab,
            config.hidden,
            quant_config=config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.model = LlamaModel(config, maybe_prefix(prefix, "model"))
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.logits_processor = LogitsProcessor(config.vocab)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        raise NotImplementedError("this model takes ids of tokens alone")

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        if intermediate_tensors is not None or inputs_embeds is not None:
            raise NotImplementedError("this model takes ids of tokens alone")
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Loads the tensors of a checkpoint, and gives the names of those that were loaded."""
        tensors = dict(weights)
        for outer, inner in PREFIXES.items():
            tensors = {
                inner + name.removeprefix(outer) if name.startswith(outer) else name: x
                for name, x in tensors.items()
            }
        known = dict(self.named_parameters(remove_duplicate=False))
        found: dict[str, Tensor] = {}

        def add(name: str, x: Tensor) -> None:
            if name in found:
                return
            parameter = known.get(name)
            if parameter is None:
                return
            # Those that are divided or padded are loaded by their own function.
            if parameter.shape == x.shape or hasattr(parameter, "weight_loader"):
                found[name] = x

        rules = [
            Rule(r"embed_tokens\.weight", "model.embed_tokens.weight"),
            Rule(r"layers\.(.*)", "model.layers.{0}"),
            Rule(r"norm\.weight", "model.norm.weight"),
        ]
        for rule in rules:
            for name, x in rule.apply(tensors):
                add(name, x)
        for name, x in tensors.items():
            add(name, x)
            add(f"model.{name}", x)
        if self.config.tied:
            found.pop("lm_head.weight", None)
        loaded: set[int] = set()
        for name, x in found.items():
            parameter = known[name]
            loaded.add(id(parameter))
            load = getattr(parameter, "weight_loader", default_weight_loader)
            load(parameter, x)
        return {name for name, parameter in known.items() if id(parameter) in loaded}
