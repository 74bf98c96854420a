"""Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU.
Source: transformers models/llama. Most dense families extend this file.

Written from the spec `llama` of onboard. The class is registered by a plugin:
`ModelRegistry.register_model("LlamaForCausalLM", "MODULE:LlamaForCausalLM")`.
"""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import get_rope
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

# Matrices that are joined with others, and what their loader calls them.
JOINED = [
    ("qkv_proj", "q_proj", "q"),
    ("qkv_proj", "k_proj", "k"),
    ("qkv_proj", "v_proj", "v"),
    ("gate_up_proj", "gate_proj", 0),
    ("gate_up_proj", "up_proj", 1),
]


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


Rope = functools.partial


def rotary(
    dim: int,
    theta: float,
    parameters: dict[str, Any] | None = None,
    partial: float | None = None,
    context: int = 0,
    original: int | None = None,
) -> nn.Module:
    """Gives the rotary positions of vLLM, as many as it takes."""
    parameters = parameters or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise ValueError(f"rotary positions of kind {kind!r} are not in this file")
    dim = int(dim * (partial or 1.0))
    # Pairs have the same periods if their number is odd.
    even = dim + dim % 2
    given = {"rope_theta": theta ** (even / dim), "rope_dim": even}
    positions = get_current_vllm_config().model_config.max_model_len
    neox = True
    return get_rope(even, positions, is_neox_style=neox, rope_parameters=given)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates pairs of the first numbers of each head."""
    turned, rest = x.tensor_split([rope.func.rotary_dim], dim=-1)
    # The kernel writes into its argument, and on a CPU takes no axis of heads.
    rows = turned.clone(memory_format=torch.contiguous_format).flatten(1)
    turned = rope(rows)[0].view_as(turned)
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


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
        self.qkv_proj = QKVParallelLinear(
            config.hidden,
            config.head_dim,
            config.heads,
            config.kv_heads,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "qkv_proj"),
        )
        self.attn = Attention(
            self.qkv_proj.num_heads,
            config.head_dim,
            config.scale,
            num_kv_heads=self.qkv_proj.num_kv_heads,
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
        q_proj, k_proj, v_proj = self.qkv_proj(x).split(
            self.qkv_proj.output_partition_sizes, dim=-1
        )
        q = rotate(q_proj.unflatten(-1, (self.qkv_proj.num_heads, -1)), rope)
        k = rotate(k_proj.unflatten(-1, (self.qkv_proj.num_kv_heads, -1)), rope)
        v = v_proj.unflatten(-1, (self.qkv_proj.num_kv_heads, -1))
        return self.o_proj(self.attn(q.flatten(1), k.flatten(1), v.flatten(1)))


class LlamaMlp(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.act = config.act
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden,
            [config.ffn, config.ffn],
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "gate_up_proj"),
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
        gate_proj, up_proj = self.gate_up_proj(x).split(
            self.gate_up_proj.output_partition_sizes, dim=-1
        )
        gate = ACTIVATIONS[self.act](gate_proj)
        return self.down_proj(gate * up_proj)


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


@support_torch_compile
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
        self.rope = rotary(
            config.head_dim,
            config.rope_theta,
            config.rope_parameters,
            context=config.context,
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        rope = functools.partial(self.rope, positions)
        x = inputs_embeds
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The model: hidden states of tokens, and their logits."""

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

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
        self.model = LlamaModel(config, prefix=maybe_prefix(prefix, "model"))
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.logits_processor = LogitsProcessor(config.vocab)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        if intermediate_tensors is not None:
            raise NotImplementedError("all layers of this model run in one process")
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Loads the tensors of a checkpoint, and gives the names of those that were loaded."""
        known = dict(self.named_parameters(remove_duplicate=False))
        if self.config.tied:
            known.pop("lm_head.weight", None)
        loaded: set[str] = set()

        def load(name: str, x: Tensor) -> None:
            if name in loaded:
                return
            for joined, part, shard in JOINED:
                whole = name.replace(f".{part}.", f".{joined}.")
                if whole != name and whole in known:
                    known[whole].weight_loader(known[whole], x, shard)
                    loaded.update((name, whole))
                    return
            parameter = known.get(name)
            if parameter is None:
                return
            loader = getattr(parameter, "weight_loader", None)
            # Those that are divided or padded are loaded by their own function.
            if loader is None and parameter.shape != x.shape:
                return
            (loader or default_weight_loader)(parameter, x)
            loaded.add(name)

        for name, x in weights:
            for outer, inner in PREFIXES.items():
                if name.startswith(outer):
                    name = inner + name.removeprefix(outer)
            load(name, x)
            load(f"model.{name}", x)
        ids = {id(known[name]) for name in loaded if name in known}
        known = dict(self.named_parameters(remove_duplicate=False))
        return {name for name, parameter in known.items() if id(parameter) in ids}
