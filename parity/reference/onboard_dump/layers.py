"""The layers of a model, and modules that take the place of those that are left out."""
from __future__ import annotations

import torch

from .failures import Missing


def decoder_layers(model):
    """The list of the model's layers: the first in its decoder with as many modules as the config says; empty where there is none."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    for within in (decoder, model):
        lists = [module for module in within.modules() if isinstance(module, torch.nn.ModuleList)] if isinstance(within, torch.nn.Module) else []
        if exact := [found for found in lists if len(found) == count]:
            return exact[0]
    return torch.nn.ModuleList()


def owners(model, layers: list) -> list:
    """Modules outside of the layers that have parameters of their own."""
    inside = {id(module) for layer in layers for module in layer.modules()}
    return [module for module in model.modules() if id(module) not in inside and any(True for _ in module.parameters(recurse=False))]


class Rows(torch.Tensor):
    """Hidden rows that a class may take for the result of a layer, whether its layers return rows or a tuple that begins with them."""

    def __getitem__(self, index):
        return (plain_rows(self) if index == 0 else None) if isinstance(index, int) else plain_rows(self)[index]

    def __iter__(self):
        return iter((plain_rows(self), None))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*[plain_rows(value) for value in args], **{key: plain_rows(value) for key, value in (kwargs or {}).items()})


def plain_rows(value):
    if isinstance(value, (list, tuple)):
        return type(value)(plain_rows(item) for item in value)
    if not isinstance(value, Rows):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


class Skipped(torch.nn.Module):
    """A layer that is left out: gives the hidden rows on as they are, and counts the tokens in its part of a cache."""

    def __init__(self, layer, number: int):
        super().__init__()
        # In a tuple, so that it is no module of this one.
        self.number, self.stood_for = number, (layer,)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["stood_for"][0], name)

    def forward(self, *args, **kwargs):
        hidden = plain_rows(args[0] if args else kwargs["hidden_states"])
        for value in (*args, *kwargs.values()):
            if hasattr(value, "get_seq_length"):
                self.count(value, hidden)
        return hidden.as_subclass(Rows)

    def count(self, cache, hidden) -> None:
        layer = cache.layers[self.number] if self.number < len(cache.layers) else None
        if layer is None or hasattr(layer, "get_seq_length"):
            row = hidden.new_zeros((hidden.shape[0], 1, hidden.shape[-2], 1))
            cache.update(row, row, self.number)
        if layer is not None and hasattr(layer, "has_previous_state"):
            layer.has_previous_state = dict.fromkeys(layer.has_previous_state, True)


def leave_out(model, chosen: list[int]) -> None:
    """Takes all layers but these out of a model."""
    layers = decoder_layers(model)
    if not len(layers):
        raise Missing(f"the class {type(model).__name__} has no list of as many modules as its config has layers; --layers cannot tell them apart")
    model.left_out = {number for number in range(len(layers)) if number not in chosen}
    for number in model.left_out:
        layers[number] = Skipped(layers[number], number)
