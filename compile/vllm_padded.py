"""Heads and mixtures that are filled up with zeros to sizes that vLLM's kernels for a CPU have, which changes no result.

The checks put these in place of vLLM's own: `check_vllm.py` in its process, `check_vllm_server.py` as a plugin of the servers that it starts.
"""

import torch.nn.functional as F
import vllm.model_executor.layers.attention as attention
import vllm.model_executor.layers.fused_moe as fused_moe
from vllm.config import ModelConfig

SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
Attention, FusedMoEFactory = attention.Attention, fused_moe.FusedMoEFactory


def wide(size):
    """Gives the size of a head in the kernels."""
    return next(one for one in SIZES if one >= size)


class Padded(Attention):
    """Attention whose heads are filled up with zeros to a size that the kernels have."""

    def __init__(self, heads, size, scale, head_size_v=None, **given):
        self.sizes = size, head_size_v or size
        super().__init__(heads, wide(max(self.sizes)), scale, **given)

    def forward(self, q, k, v):
        q, k, v = (self.wide(x, heads) for x, heads in ((q, self.num_heads), (k, self.num_kv_heads), (v, self.num_kv_heads)))
        y = super().forward(q, k, v).unflatten(-1, (self.num_heads, -1))
        return y[..., : self.sizes[1]].flatten(1)

    def wide(self, x, heads):
        x = x.unflatten(-1, (heads, -1))
        return F.pad(x, (0, self.head_size - x.shape[-1])).flatten(1)


def padded_mixture(hidden_size, **given):
    """Makes a mixture whose rows are filled up with zeros to a size that the kernel has."""
    moe = FusedMoEFactory(hidden_size=-(-hidden_size // 32) * 32, **given)
    for parameter in moe.parameters():
        parameter.data.zero_()
    return moe


def register():
    """Puts both in the modules from which generated code imports them."""
    attention.Attention, fused_moe.FusedMoEFactory = Padded, padded_mixture
    # Pages of states are as large as those of keys, whose size vLLM takes from the config.
    plain = ModelConfig.get_head_size
    ModelConfig.get_head_size = lambda config: wide(plain(config))
