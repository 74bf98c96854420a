"""Rowan: Llama with a squared-ReLU MLP without a gate, and scaled logits.

`python rowan.py FOLDER` writes a tiny checkpoint with random weights.
"""

import sys

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class RowanConfig(LlamaConfig):
    model_type = "rowan"
    hidden_act: str = "relu2"
    logit_scale: float = 1.0


class RowanMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)).square())


class RowanForCausalLM(LlamaForCausalLM):
    config_class = RowanConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = RowanMLP(config)
        self.post_init()

    def forward(self, input_ids=None, past_key_values=None, position_ids=None, **kwargs):
        kwargs.update(past_key_values=past_key_values, position_ids=position_ids)
        out = super().forward(input_ids, **kwargs)
        out.logits = out.logits * self.config.logit_scale
        return out


if __name__ == "__main__":
    torch.manual_seed(0)
    config = RowanConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        logit_scale=0.25, architectures=["RowanForCausalLM"], initializer_range=0.2,
    )
    model = RowanForCausalLM(config)
    # Norm weights of 1 would hide an error in the norms.
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(sys.argv[1])
