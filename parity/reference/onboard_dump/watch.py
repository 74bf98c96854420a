"""The outputs of all modules while a sequence is computed, so that two computations of it can be compared module by module."""
from __future__ import annotations

import contextlib

from .distances import exact_gap
from .taps import first_float


class Watch:
    """The rows of one sequence in the output of each module, over one or several forwards."""

    def __init__(self, row: int = 0, batch: int = 1, real=None):
        """`row`: the sequence in a batch of so many. `real`: tokens of the first forward that are no padding; all by default."""
        self.row, self.batch, self.real = row, batch, real
        self.forward, self.width, self.rows = -1, None, {}

    def hooks(self, model):
        """Begins a forward when the model does, and keeps the rows of each module that ran once in it."""
        def begin(_module, args, kwargs):
            ids = kwargs.get("input_ids", args[0] if args else None)
            if ids is not None:
                self.forward, self.width = self.forward + 1, ids.shape[1]

        yield model.register_forward_pre_hook(begin, with_kwargs=True)
        for name, module in model.named_modules():
            if name:
                yield module.register_forward_hook(lambda _module, _inputs, output, name=name: self.keep(name, output))

    def keep(self, name: str, output) -> None:
        tensor = first_float(output)
        if tensor is None or self.width is None or (found := self.own_rows(tensor)) is None:
            return
        if self.forward == 0 and self.real is not None:
            found = found[found.shape[0] - self.real :]
        self.rows.setdefault(name, {}).setdefault(self.forward, []).append(found.detach().clone())

    def own_rows(self, tensor):
        """The rows of the sequence: of `[batch, tokens, ...]`, or of `[batch * tokens, ...]` as experts are given them."""
        if tensor.ndim > 2 and tuple(tensor.shape[:2]) == (self.batch, self.width):
            return tensor[self.row]
        if tensor.ndim > 1 and tensor.shape[0] == self.batch * self.width and tensor.shape[1] != self.width:
            return tensor.reshape(self.batch, self.width, *tensor.shape[1:])[self.row]
        return None

    def joined(self) -> dict:
        """The rows of all forwards, of modules that ran once in each."""
        import torch

        return {name: torch.cat([calls[number][0] for number in sorted(calls)]) for name, calls in self.rows.items()
                if all(len(found) == 1 for found in calls.values()) and len({found[0].shape[1:] for found in calls.values()}) == 1}


@contextlib.contextmanager
def watched(model, watch: Watch):
    handles = list(watch.hooks(model))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def first_apart(one: dict, two: dict, limit: float) -> str:
    """The first module, in the order of the computation, whose rows differ by more than the limit, and the first such position."""
    for name, rows in one.items():
        others = two.get(name)
        if others is None or others.shape != rows.shape or exact_gap(others, rows) <= limit:
            continue
        scale = rows.double().abs().max().clamp_min(1e-30)
        gaps = ((others.double() - rows.double()).abs().flatten(1).amax(1) / scale).nan_to_num(float("inf"))
        return f"`{name}`, position {int((gaps > limit).nonzero()[0])}"
    return "the logits, as no module's rows differ"
