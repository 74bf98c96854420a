"""Llama 1 to 3.x: pre-norm blocks, grouped attention with rotary positions, SwiGLU.
Source: transformers models/llama. Most dense families extend this file.

Written from the spec `llama` of onboard. SGLang finds it by the variable
`SGLANG_EXTERNAL_MODEL_PACKAGE`, which names the package.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.utils import add_prefix
from transformers import PretrainedConfig

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


class Config:
    """Sizes and settings: those of the checkpoint's `config.json`, and those of the engine."""

    def __init__(
        self, config: PretrainedConfig, quant_config: QuantizationConfig | None
    ) -> None:
        config = config.to_dict()
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
        # SGLang makes models under the dtype that they compute in.
        self.dtype = torch.get_default_dtype()
        self.quant_config = quant_config
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
        frequencies, factor = self.frequencies, self.factor
        angles = positions[:, None].float() * frequencies.to(positions.device)
        return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates pairs of the first numbers of each head."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rope)
    turned, rest = x.tensor_split([2 * cos.shape[-1]], dim=-1)
    a, b = turned.chunk(2, dim=-1)
    a, b = a * cos - b * sin, b * cos + a * sin
    return torch.cat([a, b, rest], dim=-1)


def layer_id(prefix: str) -> int:
    """Gives the number of the layer in which a module lies; each has one attention."""
    numbers = re.findall(r"\.(\d+)(?=\.|$)", prefix)
    if len(numbers) != 1:
        raise NotImplementedError(f"{prefix} is not the only attention of a layer")
    return int(numbers[0])


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
        self.q_proj = ReplicatedLinear(
            config.hidden,
            config.heads * config.head_dim,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("q_proj", prefix),
        )
        self.k_proj = ReplicatedLinear(
            config.hidden,
            config.kv_heads * config.head_dim,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("k_proj", prefix),
        )
        self.v_proj = ReplicatedLinear(
            config.hidden,
            config.kv_heads * config.head_dim,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("v_proj", prefix),
        )
        self.attn = RadixAttention(
            config.heads,
            config.head_dim,
            config.scale,
            num_kv_heads=config.kv_heads,
            layer_id=layer_id(prefix),
            quant_config=config.quant_config,
            prefix=add_prefix("attn", prefix),
        )
        self.o_proj = ReplicatedLinear(
            config.heads * config.head_dim,
            config.hidden,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("o_proj", prefix),
        )

    def forward(self, x: Tensor, forward_batch: ForwardBatch, rope: Rope) -> Tensor:
        q = rotate(self.q_proj(x)[0].unflatten(-1, (self.heads, -1)), rope)
        k = rotate(self.k_proj(x)[0].unflatten(-1, (self.kv_heads, -1)), rope)
        v = self.v_proj(x)[0].unflatten(-1, (self.kv_heads, -1))
        return self.o_proj(
            self.attn(q.flatten(1), k.flatten(1), v.flatten(1), forward_batch)
        )[0]


class LlamaMlp(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.act = config.act
        self.gate_proj = ReplicatedLinear(
            config.hidden,
            config.ffn,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("gate_proj", prefix),
        )
        self.up_proj = ReplicatedLinear(
            config.hidden,
            config.ffn,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("up_proj", prefix),
        )
        self.down_proj = ReplicatedLinear(
            config.ffn,
            config.hidden,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            prefix=add_prefix("down_proj", prefix),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate = ACTIVATIONS[self.act](self.gate_proj(x)[0])
        return self.down_proj(gate * self.up_proj(x)[0])[0]


class LlamaLayer(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, eps=config.eps)
        self.post_attention_layernorm = RMSNorm(config.hidden, eps=config.eps)
        self.self_attn = LlamaAttention(config, add_prefix("self_attn", prefix))
        self.mlp = LlamaMlp(config, add_prefix("mlp", prefix))

    def forward(self, x: Tensor, forward_batch: ForwardBatch, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), forward_batch, rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab,
            config.hidden,
            quant_config=config.quant_config,
            prefix=add_prefix("embed_tokens", prefix),
        )
        self.norm = RMSNorm(config.hidden, eps=config.eps)
        self.layers = nn.ModuleList(
            [
                LlamaLayer(config, add_prefix(f"layers.{layer}", prefix))
                for layer in range(config.layers)
            ]
        )
        self.rope = Rotary(
            config.head_dim,
            config.rope_theta,
            config.rope_parameters,
            context=config.context,
        )

    def forward(self, input_ids: Tensor, forward_batch: ForwardBatch) -> Tensor:
        rope = self.rope(forward_batch.positions)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, forward_batch, rope)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The model: hidden states of tokens, and their logits."""

    def __init__(
        self,
        config: PretrainedConfig,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        config = Config(config, quant_config)
        self.config = config
        self.lm_head = ParallelLMHead(
            config.vocab,
            config.hidden,
            quant_config=config.quant_config,
            prefix=add_prefix("lm_head", prefix),
        )
        self.model = LlamaModel(config, add_prefix("model", prefix))
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        config.vocab_size = config.vocab
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: ForwardBatch,
        input_embeds: Tensor | None = None,
    ) -> LogitsProcessorOutput:
        if input_embeds is not None:
            raise NotImplementedError("this model takes ids of tokens alone")
        x = self.model(input_ids, forward_batch)
        return self.logits_processor(input_ids, x, self.lm_head, forward_batch)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Loads the tensors of a checkpoint, and gives the names of those that were loaded."""
        known = dict(self.named_parameters(remove_duplicate=False))
        if self.config.tied:
            known.pop("lm_head.weight", None)
        loaded: set[str] = set()

        def load(name: str, x: Tensor) -> None:
            if name in loaded:
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
        missing = [name for name, x in known.items() if id(x) not in ids]
        if missing:
            raise ValueError(f"the checkpoint lacks tensors: {missing[:4]}")
        return set(known)


class LLaMAForCausalLM(LlamaForCausalLM):
    """The class by its name in configs."""


# SGLang finds classes by their names in configs.
EntryClass = [
    LlamaForCausalLM,
    LLaMAForCausalLM,
]
