"""A cache that several steps share, each of which goes on from the one before as soon as a layer has left it.

A layer is then read once for many steps ([decision 74](../../../docs/decisions/0074-steps-behind-each-other.md)).
"""
from __future__ import annotations

import copy

import torch

# Layers of a cache whose lengths are known without running them, by the name of their class in transformers.
SEPARABLE = {"DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer",
             "LinearAttentionAndSlidingWindowAttentionLayer"}
UPDATES = ("update", "update_indexer", "update_conv_state", "update_recurrent_state")


class Early(Exception):
    """A step touched a layer of its cache that the step before it has not left: the class does not let its steps follow each other layer by layer."""


def separable(cache, layers) -> bool:
    """True for a cache with a part for each layer of the model and nothing else that a step changes."""
    own = getattr(cache, "layers", None)
    if type(cache).__name__ != "DynamicCache" or not isinstance(own, list) or len(own) != len(layers):
        return False
    if any(isinstance(value, (torch.Tensor, dict)) for value in vars(cache).values()):
        return False
    return all(type(layer).__name__ in SEPARABLE and type(layer).__module__ == "transformers.cache_utils" for layer in own)


def expected(layer, added: int):
    """A part of a cache as its layer will leave it after so many more tokens, for those who ask for lengths. Whoever changes it is too early."""
    made = copy.copy(layer)
    if hasattr(layer, "cumulative_length"):
        made.cumulative_length += added
    for name, axis in (("keys", -2), ("values", -2), ("indexer_keys", 1)):
        value = getattr(layer, name, None)
        if isinstance(value, torch.Tensor) and value.numel():
            shape = list(value.shape)
            shape[axis] += added
            if (window := getattr(layer, "sliding_window", None)) is not None and hasattr(layer, "cumulative_length"):
                shape[axis] = min(shape[axis], window - 1)
            setattr(made, name, value.new_zeros(()).expand(shape))

    def early(*_args, **_kwargs):
        raise Early(f"a step changes a {type(layer).__name__} of its cache before its layer runs")

    for name in UPDATES:
        if hasattr(layer, name):
            setattr(made, name, early)
    return made


def handed_on(layer):
    """A part of a cache for the next step. Keys and values are put together anew by each step, and other states are written over."""
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(made, name, {key: item.clone() if isinstance(item, torch.Tensor) else item for key, item in value.items()})
    return made


def shortened(layer):
    """A part of a cache whose rows are not read again, but the newest: the same lengths, and memory for one row."""
    made = copy.copy(layer)
    for name, axis in (("keys", -2), ("values", -2), ("indexer_keys", 1)):
        value = getattr(layer, name, None)
        if isinstance(value, torch.Tensor) and value.numel():
            setattr(made, name, value.narrow(axis, value.shape[axis] - 1, 1).clone().expand(value.shape))
    return made


class Step:
    """A forward that goes on from the cache of another, layer by layer behind it."""

    def __init__(self, cache, before: Step | None, added: int):
        """`added`: tokens that are in the cache when the step begins and are not in that of the step before which all of them go on from."""
        self.before, self.cache, self.entered, self.ended, self.thread = before, cache, set(), False, None
        if before is not None:
            self.cache = copy.copy(cache)
            self.cache.layers = [expected(layer, added) for layer in cache.layers]
