"""Reads of a config that need more than the key: truth values that a class tests by identity, and configs of single layers."""
import contextlib
import importlib
import linecache
import re

import torch

from . import symbols

# A test by identity, which a symbol in the place of a truth value would not pass.
IDENTITY = re.compile(r"\bis (not )?(True|False)\b")


def tests_identity(frame) -> bool:
    """Whether the line that reads a key tests a value by identity with a truth value."""
    return bool(IDENTITY.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)))


def note_truth(path: list, value: bool, frame) -> bool:
    """Notes a truth value as a decision, and gives it as it is."""
    place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
    symbols.DECISIONS.append((path, value, place))
    return value


@contextlib.contextmanager
def layer_configs():
    """Has configs of single layers remember the layer of each key that they override."""
    try:
        module = importlib.import_module("transformers.integrations.heterogeneity.configuration_utils")
    except ImportError:
        yield
        return
    former = module._get_layer_config

    def noted(config, overrides):
        made = former(config, overrides)
        layers = config._heterogeneity_spec.per_layer_overrides
        layer = next((number for number, known in layers.items() if known == overrides), None)
        if layer is not None:
            object.__setattr__(made, "_onboard_layer", {key: layer for key in overrides})
        return made

    module._get_layer_config = noted
    try:
        yield
    finally:
        module._get_layer_config = former


@contextlib.contextmanager
def kinds_as_dtypes(kinds: dict):
    """Lets `torch.tensor` take the kinds of numbers of a class, which it refuses before a mode sees the call."""
    former = torch.tensor

    def tensor(*args, **named):
        return former(*args, **{key: kinds.get(value, value) if isinstance(value, type) else value for key, value in named.items()})

    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = former
