"""Taps: the outputs of modules, and the choices of routers."""
from __future__ import annotations

import threading

from .classes import text_part
from .runner import Runner
from .work import Work


def first_float(value):
    """The first floating-point tensor of an output, whatever it is wrapped in."""
    import torch

    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if (found := first_float(item)) is not None:
                return found
    return None


class Taps:
    """Forward hooks on every module that computes something, and the token axis of each output."""

    def __init__(self, runner: Runner, too_wide: int | None):
        """`too_wide`: the width of outputs to leave out, the logits of a large vocabulary."""
        import torch

        # Sequences that go through the layers in step have a thread each.
        self.now = threading.local()
        self.axes, self.shared, self.handles = {}, {}, []
        self.modules, self.routers = {}, None
        skip = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Dropout, torch.nn.Identity)
        part = text_part(runner.model)
        for path, module in runner.model.named_modules():
            name = self.name_of(path, part)
            # Rotary tables depend on positions only, and are not values of the token stream.
            if name and not isinstance(module, skip) and not hasattr(module, "stood_for") and "rotary" not in type(module).__name__.lower():
                self.modules[name] = module
                self.handles.append(module.register_forward_hook(self.hook(name)))
                self.handles.append(module.register_forward_pre_hook(self.choice(name), with_kwargs=True))
        self.too_wide = too_wide

    def name_of(self, path: str, part: tuple[str, str] | None) -> str | None:
        """The name of a module. Modules of the text model go by the names that they have without a wrapper; what holds them is no tap."""
        if part is None or path == "lm_head":
            return path
        outer, inner = part
        return (inner + path[len(outer) :]).removeprefix(".") if path == outer or path.startswith(f"{outer}.") else None

    def hook(self, name):
        def record(_module, _inputs, output):
            seen = getattr(self.now, "seen", None)
            if seen is not None and (tensor := first_float(output)) is not None:
                self.now.calls[name] = self.now.calls.get(name, 0) + 1
                if self.now.keep:
                    seen[name] = tensor.detach().clone()

        return record

    def choice(self, name):
        """Which experts rows were sent to, and with what weight: the module that takes both runs them."""

        def record(_module, args, kwargs):
            import torch

            if getattr(self.now, "seen", None) is None or self.routers is not None and name not in self.routers:
                return
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim == 2]
            for index in tensors:
                if index.dtype == torch.int64 and any(t.is_floating_point() and t.shape == index.shape for t in tensors):
                    self.now.chosen[name] = index.detach().to(torch.int32)

        return record

    def close(self):
        for handle in self.handles:
            handle.remove()

    @property
    def chosen(self) -> dict:
        """What routers chose in this thread's last call."""
        return getattr(self.now, "chosen", {})

    def during(self, call, keep=True):
        """`keep`: what modules give is wanted, and not routers' choices alone."""
        self.now.seen, self.now.calls, self.now.chosen, self.now.keep = {}, {}, {}, keep
        try:
            result = call()
        finally:
            seen, self.now.seen = self.now.seen, None
        for name, count in self.now.calls.items():
            if count > 1:
                self.shared[name] = count
        return seen, result

    def probe(self, runner: Runner, tokens):
        """Two lengths tell the token axis: it is the one that grows with the prompt, by as much as the prompt does."""
        short, long = (2, 5) if len(tokens) >= 5 else (1, len(tokens))
        if long == short:
            return
        def seen(count):
            return self.during(lambda: runner.forward(tokens[:count], 0, runner.fresh()))[0], self.chosen

        work = Work(runner, {count: lambda count=count: seen(count) for count in (short, long)}, "probe")
        (a, _), (b, found) = work[short], work[long]
        # A mask and the positions that follow from it look like choices too, but have an axis of sequences where those have one of tokens.
        # Of experts that run several times in a forward only the last choice would be known.
        self.routers = {name for name, chosen in found.items() if chosen.shape[0] == long and name not in self.shared}
        for name in a.keys() & b.keys():
            one, two = a[name].shape, b[name].shape
            # One number for each token is no row: experts with one token each give their weights so, in an order of their own.
            if len(one) != len(two) or len(one) < 2 or one[-1] == self.too_wide:
                continue
            axes = [axis for axis in range(len(one)) if two[axis] - one[axis] == long - short and one[axis] >= short]
            # Rows that grow with the prompt, such as scores of what a cache keeps, are no values of single tokens.
            if len(axes) == 1 and all(one[axis] == two[axis] for axis in range(len(one)) if axis not in axes):
                self.axes[name] = (axes[0], one[axes[0]] - short)

    def rows(self, name, tensor, count):
        """The tensor as `[count, ...]`, or None when this call's shape does not allow it."""
        axis, padding = self.axes.get(name, (None, 0))
        if axis is None or tensor.ndim <= axis or tensor.numel() == 0:
            return None
        if tensor.shape[axis] != count:
            if tensor.shape[axis] != count + padding:
                return None
            tensor = tensor.narrow(axis, 0, count)
        if axis > 0:
            if tensor.shape[0] != 1:
                return None
            tensor, axis = tensor[0], axis - 1
        return tensor.movedim(axis, 0).contiguous()
