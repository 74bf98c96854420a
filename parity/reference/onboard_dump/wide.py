"""A model computed in f64 throughout: its weights, and numbers that its code makes in f32 or 16 bits by name."""
from __future__ import annotations

import contextlib

from .members import in_f64


def widened(value):
    """f64 in place of a shorter dtype."""
    import torch

    return torch.float64 if isinstance(value, torch.dtype) and value in (torch.float32, torch.bfloat16, torch.float16) else value


def widening():
    """A mode in which code that asks for f32 or 16 bits gets f64: norms and rotary tables do so, whatever the dtype of the weights."""
    import torch
    from torch.overrides import TorchFunctionMode

    names = dict.fromkeys((torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16), torch.Tensor.double)

    class Widening(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = {key: widened(value) for key, value in (kwargs or {}).items()}
            return names.get(function, function)(*(widened(value) for value in args), **kwargs)

    return Widening()


@contextlib.contextmanager
def wide(model):
    """Computes in f64 while this lasts. `in_f64` of the ensemble leaves those parts in f32 that the code of a class puts there."""
    import torch

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with in_f64(model), widening():
            yield
    finally:
        torch.set_default_dtype(default)
