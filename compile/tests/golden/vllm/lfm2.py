"""LFM2 and LFM2.5: gated short convolutions, with attention in some layers. Source:
transformers models/lfm2.

Written from the spec `lfm2` of onboard. The class is registered by a plugin:
`ModelRegistry.register_model("Lfm2ForCausalLM", "MODULE:Lfm2ForCausalLM")`.
"""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import get_conv_copy_spec
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadata
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

# Matrices that are joined with others, and what their loader calls them.
JOINED = [
    ("w13", "w1", 0),
    ("w13", "w3", 1),
    ("qkv_proj", "q_proj", "q"),
    ("qkv_proj", "k_proj", "k"),
    ("qkv_proj", "v_proj", "v"),
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
                    self.width - 1,
                    self.hidden,
                ),
                self.dtype,
            ),
        }


Rope = functools.partial


class Pieces:
    """Pieces of prompts as one batch, filled up with zeros behind their ends."""

    def __init__(self, metadata: ShortConvAttentionMetadata) -> None:
        starts = metadata.query_start_loc_p
        self.lengths = starts.diff()
        rows = torch.arange(int(self.lengths.max()), device=starts.device)
        self.inside = rows < self.lengths[:, None]
        self.at = torch.where(self.inside, starts[:-1, None] + rows, 0)
        # Those that continue no earlier piece.
        self.new = ~metadata.has_initial_states_p

    def fill(self, x: Tensor) -> Tensor:
        x = x[self.at]
        return torch.where(spread(self.inside, x), x, 0)


def spread(x: Tensor, like: Tensor) -> Tensor:
    """Adds axes, as many as another tensor has."""
    return x.view(*x.shape, *[1] * (like.ndim - x.ndim))


class State(nn.Module, MambaBase):
    """States of a layer, which vLLM keeps for each sequence from step to step."""

    mamba_type = MambaAttentionBackendEnum.SHORT_CONV

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
        """Runs a function on the rows of all sequences, from the states that they left.

        Sequences that continue by one row are one call, and pieces of prompts another.
        """
        number = self.names.index(name)
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            # A run that measures memory.
            shape, dtype = self.shapes[number], self.dtypes[number]
            state = rows[0].new_zeros(1, *shape, dtype=dtype)
            return step(state, None, *(x[None] for x in rows), **given)[0][0]
        metadata, kept = metadata[self.prefix], self.kv_cache[number]
        count, results = metadata.num_decodes, []
        if count:
            slots = metadata.state_indices_tensor_d[:, 0]
            steps = (x[:count, None] for x in rows)
            y, state = step(kept[slots], None, *steps, **given)
            kept[slots] = state.to(kept.dtype).view(-1, *kept.shape[1:])
            results.append(y[:, 0])
        if metadata.num_prefills:
            slots, pieces = metadata.state_indices_tensor_p, Pieces(metadata)
            filled = (pieces.fill(x[count:]) for x in rows)
            state = kept[slots]
            state = torch.where(spread(pieces.new, state), 0, state)
            y, state = step(state, pieces, *filled, **given)
            kept[slots] = state.to(kept.dtype).view(-1, *kept.shape[1:])
            results.append(y[pieces.inside])
        return torch.cat(results)


def last_rows(rows: Tensor, pieces: Pieces | None, count: int) -> Tensor:
    """Gives the last rows of each sequence, which has as many in front."""
    if pieces is None:
        return rows[:, -count:]
    at = pieces.lengths[:, None] + torch.arange(count, device=rows.device)
    return rows.take_along_dim(at[..., None], 1)


def causal_conv(
    state: Tensor,
    pieces: Pieces | None,
    rows: Tensor,
    *,
    conv: nn.Conv1d,
) -> tuple[Tensor, Tensor]:
    """Convolves rows with those before them, channel by channel."""
    rows = torch.cat([state.to(rows.dtype), rows], dim=1)
    kept = last_rows(rows, pieces, state.shape[1])
    rows = rows.to(conv.weight.dtype)
    return conv(rows.transpose(1, 2)).transpose(1, 2), kept


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
        self.w13 = MergedColumnParallelLinear(
            config.hidden,
            [config.ffn, config.ffn],
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "w13"),
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
        w1, w3 = self.w13(x).split(self.w13.output_partition_sizes, dim=-1)
        gate = F.silu(w1)
        return self.w2(gate * w3)


class Lfm2Attention(nn.Module):
    def __init__(self, config: Config, prefix: str) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            config.hidden,
            config.head_dim,
            config.heads,
            config.kv_heads,
            bias=False,
            quant_config=config.quant_config,
            return_bias=False,
            prefix=maybe_prefix(prefix, "qkv_proj"),
        )
        self.q_layernorm = RMSNorm(config.head_dim, eps=config.eps)
        self.k_layernorm = RMSNorm(config.head_dim, eps=config.eps)
        self.attn = Attention(
            self.qkv_proj.num_heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=self.qkv_proj.num_kv_heads,
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
        q_proj, k_proj, v_proj = self.qkv_proj(x).split(
            self.qkv_proj.output_partition_sizes, dim=-1
        )
        q = q_proj.unflatten(-1, (self.qkv_proj.num_heads, -1))
        k = k_proj.unflatten(-1, (self.qkv_proj.num_kv_heads, -1))
        v = v_proj.unflatten(-1, (self.qkv_proj.num_kv_heads, -1))
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
        return self.embedding_norm(x)


class Lfm2ForCausalLM(nn.Module, HasInnerState, IsHybrid):
    """The model: hidden states of tokens, and their logits."""

    packed_modules_mapping = {
        "w13": ["w1", "w3"],
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    }

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> Any:
        return tuple(shape for shape, _ in Config(vllm_config).states.values())

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> Any:
        return tuple(dtype for _, dtype in Config(vllm_config).states.values())

    @classmethod
    def get_mamba_state_copy_func(cls) -> Any:
        return (get_conv_copy_spec,)

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
        x = hidden_states
        # `embedding_norm` is the final norm, despite its name.
        logits = self.logits_processor(self.lm_head, x)
        return logits

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
