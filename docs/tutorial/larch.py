"""Larch: Llama with normalized queries and keys, and scaled residual branches.

`python larch.py FOLDER` writes a tiny checkpoint with random weights.
"""

import sys

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


class LarchConfig(LlamaConfig):
    model_type = "larch"
    residual_scale: float = 0.5


class LarchAttention(LlamaAttention):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.q_norm = LlamaRMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = LlamaRMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(hidden_states).view(heads)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(heads)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, weights = attend(self, q, k, v, attention_mask, scaling=self.scaling)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights


class LarchDecoderLayer(LlamaDecoderLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.self_attn = LarchAttention(config, layer_idx)
        self.residual_scale = config.residual_scale

    def forward(self, hidden_states, **kwargs):
        out, _ = self.self_attn(self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + out * self.residual_scale
        out = self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states + out * self.residual_scale


class LarchForCausalLM(LlamaForCausalLM):
    config_class = LarchConfig

    def __init__(self, config):
        super().__init__(config)
        layers = [LarchDecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        self.model.layers = nn.ModuleList(layers)
        self.post_init()


if __name__ == "__main__":
    torch.manual_seed(0)
    config = LarchConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        residual_scale=0.4, architectures=["LarchForCausalLM"], initializer_range=0.2,
    )
    model = LarchForCausalLM(config)
    # Norm weights of 1 would hide an error in the norms.
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(sys.argv[1])
