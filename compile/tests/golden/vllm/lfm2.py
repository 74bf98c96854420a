"""LFM2 and LFM2.5: gated short convolutions, with attention in some layers. Source:
transformers models/lfm2.

Written from the spec `lfm2` of onboard. The class is registered by a plugin:
`ModelRegistry.register_model("Lfm2ForCausalLM", "MODULE:Lfm2ForCausalLM")`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import divide
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors
from vllm.v1.attention.backends.linear_attn import LinearAttentionMetadata
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import KVCacheSpec

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
        # Shapes and dtypes of the states of a sequence.
        self.states = {
            "conv": (
                (
                    self.hidden,
                    self.width - 1,
                ),
                self.dtype,
            ),
        }


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


class State(nn.Module, MambaBase):
    """States of a layer, which vLLM keeps for each sequence from step to step."""

    mamba_type = MambaAttentionBackendEnum.LINEAR

    def __init__(self, config: Config, names: list[str], prefix: str) -> None:
        super().__init__()
        self.names, self.prefix = names, prefix
        self.shapes = tuple(config.states[name][0] for name in names)
        self.dtypes = tuple(config.states[name][1] for name in names)
        self.kv_cache: tuple[Tensor, ...] = ()
        layers = get_current_vllm_config().compilation_config.static_forward_context
        layers[prefix] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return self.shapes

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return self.dtypes

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec | None:
        cache_config = vllm_config.cache_config
        # vLLM sets it for its own classes, and where a model also has attention.
        if cache_config.mamba_block_size is None:
            cache_config.mamba_block_size = vllm_config.model_config.max_model_len
        return super().get_kv_cache_spec(vllm_config)

    def run(
        self,
        name: str,
        step: Callable[..., tuple[Tensor, Tensor]],
        *rows: Tensor,
        **given: Any,
    ) -> Tensor:
        """Runs a function on the rows of each sequence, from the state that it left."""
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            # A run that measures memory.
            return step(None, *(x[None] for x in rows), **given)[0][0]
        kept = self.kv_cache[self.names.index(name)]
        results = []
        for slots, at, continued in self.sequences(metadata[self.prefix]):
            parts = [x[at].unflatten(0, (len(slots), -1)) for x in rows]
            state = kept[slots] if continued else None
            y, state = step(state, *parts, **given)
            kept[slots] = state.to(kept.dtype).reshape(-1, *kept.shape[1:])
            results.append(y.flatten(0, 1))
        return torch.cat(results)

    def sequences(
        self, metadata: LinearAttentionMetadata
    ) -> Iterator[tuple[list[int], slice, bool]]:
        """Gives places of states, rows, and whether there is a state, for each sequence.

        Neighbours that continue by one row are a batch.
        """
        starts = metadata.query_start_loc.tolist()
        lengths = metadata.seq_lens.tolist()
        slots = metadata.state_indices_tensor.tolist()
        single: list[int] = []
        for slot, length, start, end in zip(slots, lengths, starts, starts[1:]):
            if end - start == 1 and length > 1:
                single.append(slot)
                continue
            if single:
                yield single, slice(start - len(single), start), True
                single = []
            if end > start:
                yield [slot], slice(start, end), length > end - start
        if single:
            yield single, slice(starts[-1] - len(single), starts[-1]), True


def causal_conv(
    state: Tensor | None,
    rows: Tensor,
    *,
    conv: nn.Conv1d,
) -> tuple[Tensor, Tensor]:
    """Convolves rows with those before them, channel by channel."""
    count = (conv.kernel_size[0] - 1) * conv.dilation[0]
    if state is None:
        before = rows.new_zeros(len(rows), count, rows.shape[2])
    else:
        before = state.transpose(1, 2).to(rows.dtype)
    rows = torch.cat([before, rows], dim=1)
    kept = rows[:, rows.shape[1] - count :].transpose(1, 2)
    rows = rows.to(conv.weight.dtype)
    return conv(rows.transpose(1, 2)).transpose(1, 2), kept


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates pairs of the first numbers of each head."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rope)
    turned, rest = x.tensor_split([2 * cos.shape[-1]], dim=-1)
    a, b = turned.chunk(2, dim=-1)
    a, b = a * cos - b * sin, b * cos + a * sin
    return torch.cat([a, b, rest], dim=-1)


class Lfm2ShortConv(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.in_proj = ReplicatedLinear(
            config.hidden,
            3 * config.hidden,
            bias=config.bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "in_proj"),
        )
        self.conv = nn.Conv1d(
            config.hidden,
            config.hidden,
            config.width,
            groups=config.hidden,
            bias=config.bias,
        )
        self.state = State(config, ["conv"], maybe_prefix(prefix, "state"))
        self.out_proj = ReplicatedLinear(
            config.hidden,
            config.hidden,
            bias=config.bias,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "out_proj"),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, u = self.in_proj(x).chunk(3, dim=-1)
        y = self.state.run("conv", causal_conv, b * u, conv=self.conv)
        return self.out_proj(c * y)


class Lfm2Mlp(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.w1 = ColumnParallelLinear(
            config.hidden,
            config.ffn,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "w1"),
        )
        self.w3 = ColumnParallelLinear(
            config.hidden,
            config.ffn,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "w3"),
        )
        self.w2 = RowParallelLinear(
            config.ffn,
            config.hidden,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "w2"),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.w1(x))
        return self.w2(gate * self.w3(x))


class Lfm2Attention(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.ranks = config.ranks
        self.q_proj = ColumnParallelLinear(
            config.hidden,
            config.heads * config.head_dim,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "q_proj"),
        )
        self.k_proj = ColumnParallelLinear(
            config.hidden,
            config.kv_heads * config.head_dim,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "k_proj"),
        )
        self.v_proj = ColumnParallelLinear(
            config.hidden,
            config.kv_heads * config.head_dim,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "v_proj"),
        )
        self.q_layernorm = RMSNorm(config.head_dim, eps=config.eps)
        self.k_layernorm = RMSNorm(config.head_dim, eps=config.eps)
        self.attn = Attention(
            divide(config.heads, config.ranks),
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=divide(config.kv_heads, config.ranks),
            cache_config=config.cache_config,
            quant_config=config.quant_config,
            prefix=maybe_prefix(prefix, "attn"),
        )
        self.out_proj = RowParallelLinear(
            config.heads * config.head_dim,
            config.hidden,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "out_proj"),
        )

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads // self.ranks, -1))
        k = self.k_proj(x).unflatten(-1, (self.kv_heads // self.ranks, -1))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads // self.ranks, -1))
        q = rotate(self.q_layernorm(q), rope)
        k = rotate(self.k_layernorm(k), rope)
        return self.out_proj(self.attn(q.flatten(1), k.flatten(1), v.flatten(1)))


class Lfm2ConvLayer(nn.Module):
    def __init__(self, config: Config, prefix: str, layer: int) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(config.hidden, eps=config.eps)
        self.ffn_norm = RMSNorm(config.hidden, eps=config.eps)
        self.conv = Lfm2ShortConv(config, maybe_prefix(prefix, "conv"))
        self.feed_forward = Lfm2Mlp(config, maybe_prefix(prefix, "feed_forward"))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.conv(self.operator_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Lfm2FullAttentionLayer(nn.Module):
    def __init__(self, config: Config, prefix: str, layer: int) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(config.hidden, eps=config.eps)
        self.ffn_norm = RMSNorm(config.hidden, eps=config.eps)
        self.self_attn = Lfm2Attention(config, maybe_prefix(prefix, "self_attn"))
        self.feed_forward = Lfm2Mlp(config, maybe_prefix(prefix, "feed_forward"))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.operator_norm(x), rope)
        return x + self.feed_forward(self.ffn_norm(x))


class Lfm2Model(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab,
            config.hidden,
            quant_config=config.quant_config,
            prefix=maybe_prefix(prefix, "embed_tokens"),
        )
        self.embedding_norm = RMSNorm(config.hidden, eps=config.eps)
        kinds = {"conv": Lfm2ConvLayer, "full_attention": Lfm2FullAttentionLayer}
        self.layers = nn.ModuleList(
            [
                kinds[kind](config, maybe_prefix(prefix, f"layers.{layer}"), layer)
                for layer, kind in enumerate(config.layer_types[: config.layers])
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
        return self.embedding_norm(x)


class Lfm2ForCausalLM(nn.Module, HasInnerState, IsHybrid):
    """The model: hidden states of tokens, and their logits."""

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> Any:
        return tuple(shape for shape, _ in Config(vllm_config).states.values())

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> Any:
        return tuple(dtype for _, dtype in Config(vllm_config).states.values())

    @classmethod
    def get_mamba_state_copy_func(cls) -> Any:
        return (get_temporal_copy_spec,) * 1

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
        self.model = Lfm2Model(config, maybe_prefix(prefix, "model"))
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
        x = hidden_states
        # `embedding_norm` is the final norm, despite its name.
        logits = self.logits_processor(self.lm_head, x)
        return logits

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
