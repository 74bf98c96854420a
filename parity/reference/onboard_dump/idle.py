"""Weights that change nothing: tensors that can be perturbed without an effect on the logits."""
from __future__ import annotations

import torch

from .distances import exact_gap
from .verdicts import DIFFERS, HOLDS, Verdict


def weights_of(model) -> dict:
    """The floating-point tensors that a checkpoint gives a model, each once, by its first name."""
    found, seen = {}, set()
    kept = set(model.state_dict())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in kept and tensor.is_floating_point() and tensor.numel() and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            found[name] = tensor
    return found


def perturb(tensors: list, seed: int, least: float) -> list:
    """Adds random numbers as large as the tensors' own, or of the least size, whose sign it decides. Returns what was there."""
    generator = torch.Generator().manual_seed(seed)
    kept = [tensor.detach().clone() for tensor in tensors]
    for tensor in tensors:
        size = float(tensor.detach().to(torch.float64).square().mean().sqrt())
        tensor.data.add_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * (max(size, abs(least)) or 1.0) * (-1 if least < 0 else 1))
    return kept


class Idle:
    """The search for weights without an effect."""

    def __init__(self, weights: dict, logits, limit: float):
        """`logits`: computes them with the weights as they are. `limit`: a relative change up to this is rounding."""
        self.weights, self.logits, self.limit = weights, logits, limit
        self.truth, self.forwards = logits(), 1

    def changes(self, names: list[str], seed: int, least: float) -> bool:
        """True if a perturbation of these tensors changes the logits. `least`: its least size, negative for the other way."""
        tensors = [self.weights[name] for name in names]
        kept = perturb(tensors, seed, least)
        try:
            self.forwards += 1
            return exact_gap(self.logits(), self.truth) > self.limit
        finally:
            for tensor, old in zip(tensors, kept):
                tensor.data.copy_(old)

    def search(self, names: list[str]) -> list[str]:
        """Those of the names that have no effect, by halves: a group without an effect is not divided. Perturbations by 1, up and down, have to agree: a number such as an
        epsilon may be too small for one of its own size, and a border acts on one side."""
        if not names:
            return []
        if not any(self.changes(names, *way) for way in ((0, 0.0), (1, 1.0), (1, -1.0))):
            return list(names)
        if len(names) == 1:
            return []
        middle = len(names) // 2
        return self.search(names[:middle]) + self.search(names[middle:])


def moving(weights: dict, logits, limit: float) -> set[str]:
    """Names of weights that move the logits by their gradient: they need no perturbation. Empty for a class that has no gradients."""
    tensors = {name: tensor for name, tensor in weights.items() if isinstance(tensor, torch.nn.Parameter)}
    asked = {name: tensor.requires_grad for name, tensor in tensors.items()}
    try:
        for tensor in tensors.values():
            tensor.requires_grad_(True)
            tensor.grad = None
        with torch.enable_grad():
            found = logits()
            direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found.dtype)
            (found * direction).sum().backward()
        scale = float(found.detach().abs().max())
        return {name for name, tensor in tensors.items()
                if tensor.grad is not None and float(tensor.grad.norm() * tensor.detach().norm()) > 1e3 * limit * scale}
    except Exception:  # noqa: BLE001
        return set()
    finally:
        for name, tensor in tensors.items():
            tensor.requires_grad_(asked[name])
            tensor.grad = None


def ran(model, call) -> set[str]:
    """The modules that ran while something is called."""
    names, handles = set(), []
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(lambda _module, _inputs, _output, name=name: names.add(name)))
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return names


def idle_verdict(model, logits, limit: float) -> Verdict:
    """Lists the tensors of a model that change no logits. `logits`: computes them, with gradients where they are enabled."""
    weights = weights_of(model)
    reached = ran(model, logits)
    quick = moving(weights, logits, limit)
    with torch.no_grad():
        search = Idle(weights, logits, limit)
        found = search.search([name for name in weights if name not in quick])
    never = [name for name in found if name.rpartition(".")[0] not in reached]
    found = [name for name in found if name not in never]
    note = f"{len(weights)} tensors, {len(quick)} by one gradient and the others by {search.forwards} forwards"
    if never:
        note += f"; not judged are {len(never)} of modules that these tokens do not run: {listed(never, 2)}"
    if not found:
        return Verdict("idle", HOLDS, note=note)
    return Verdict("idle", DIFFERS, by=f"{len(found)} of {len(weights)} tensors, which change nothing,", at=listed(found), note=note)


def listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more
