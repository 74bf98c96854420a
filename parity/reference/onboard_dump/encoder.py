"""The encoder of a class that takes images, as a model of its own: patches go in, and the rows that enter the text model come out.

One prompt is one image. Its tokens are places in a table of learned positions, all of them see each other, and the rows of the encoder's output stand in the place of logits
([decision 118](../../../docs/decisions/0118-encoders-are-models.md)).
"""
from __future__ import annotations

import json
from pathlib import Path

from .classes import text_part
from .failures import Fail
from .given_prompts import given_inputs
from .taps import Taps


class EncoderChosen:
    """The prompts of all runs, each of which is an image."""

    settled, derived, topk = True, False, None

    def __init__(self, args):
        self.prompts = encoder_prompts(args)
        # By prompt: the arguments of the class, and what its rows are.
        self.inputs = {prompt["name"]: prompt.pop("inputs")[0] for prompt in self.prompts}
        self.orders = {prompt["name"]: Order(prompt) for prompt in self.prompts}
        self.known = 1 + max(max(prompt["tokens"]) for prompt in self.prompts)
        self.images, self.vocab = {}, None

    def settle(self, _inputs, runner, *_) -> None:
        """Learns the width of a row from the first model."""
        if self.vocab is None:
            self.vocab = runner.forward(None, prompt=self.prompts[0])[0].shape[-1]


class Order:
    """The rows of the class that the rows of a prompt are."""

    def __init__(self, prompt: dict):
        """Takes what says so out of the prompt."""
        count = len(prompt["tokens"])
        # Of patches, and of what comes out of modules behind the first: some classes put rows into another order themselves.
        self.patches = prompt.pop("order", None) or list(range(count))
        self.inner = prompt.pop("inner", None) or self.patches
        # So many rows come out as one, and the row that comes out of the class for each group.
        self.group, self.groups = prompt.pop("group", 1), prompt.pop("groups", None)

    def spread(self, rows, prompt: dict):
        """The rows of groups, each at all rows of its group; zeros in a row that belongs to none."""
        import torch

        if len(prompt["rows"]) != rows.shape[0] * self.group:
            raise Fail(f"prompt {prompt['name']}: {rows.shape[0]} rows come out, and `rows` has {len(prompt['rows'])} in groups of {self.group}")
        first = rows.new_zeros((len(prompt["tokens"]) - len(prompt["rows"]), *rows.shape[1:]))
        return torch.cat([first, rows.repeat_interleave(self.group, 0)]).contiguous()


def encoder_prompts(args) -> list[dict]:
    """The images of `--prompts`, as prompts whose rows all see each other."""
    if args.prompts is None:
        raise Fail("--encoder takes its images from --prompts FILE.json")
    try:
        listed = json.loads(Path(args.prompts).read_bytes())
    except (OSError, ValueError) as error:
        raise Fail(f"{args.prompts}: {error}") from None
    prompts = []
    for number, prompt in enumerate(listed):
        where, tokens = f"prompt {prompt.get('name', number)!r}", prompt.get("tokens")
        if not isinstance(tokens, list) or len(tokens) < 2 or not isinstance(prompt.get("inputs"), str):
            raise Fail(f"{where}: an image has `tokens`, the place of each of its rows, and `inputs`, a safetensors file")
        count = len(tokens)
        prompts.append({
            "name": str(prompt.get("name", f"image{number}")), "tokens": tokens, "split": count, "prefix": count, "taps": ["prefill"], "rows": prompt.get("rows", list(range(count))),
            "inputs": given_inputs(where, {"inputs": prompt["inputs"]}, Path(args.prompts).parent),
        } | {key: prompt[key] for key in ("positions", "spans", "order", "inner", "group", "groups") if key in prompt})
    if not prompts:
        raise Fail("no prompts given")
    return prompts


class EncoderRunner:
    """An encoder that runs one image at a time. It keeps nothing from call to call, as a class without a cache."""

    cache_key = images = parts = None
    takes_positions = False

    def __init__(self, model, chosen: EncoderChosen):
        # `patches`: what the first matrix was given, by prompt. `now`: the prompt of the last call. `first`: the module of that matrix.
        self.model, self.chosen, self.patches, self.now, self.first = model, chosen, {}, None, None
        holders = [module for module in (model, getattr(model, "model", None)) if hasattr(module, "get_image_features")]
        if not holders:
            raise Fail(f"the class {type(model).__name__} has no `get_image_features`, which runs its encoder")
        self.encode = holders[0].get_image_features

    def begin(self, prompt: dict) -> None:
        """Called before a prompt is run again."""

    def prefix_type(self) -> None:
        """The rows of an image see each other without a type."""

    def fresh(self):
        return []

    def forward(self, _tokens, _start=0, _cache=None, prompt=None):
        """The rows of a prompt's image as numbers in the place of logits, zeros where the encoder gives none, and no cache."""
        import torch

        self.now = prompt
        inputs = {name: value.to(self.model.dtype) if value.is_floating_point() else value for name, value in self.chosen.inputs[prompt["name"]].items()}
        seen = FirstInput(self.model)
        try:
            with torch.no_grad():
                features = joined(self.encode(**inputs))
        finally:
            seen.close()
        count = len(prompt["tokens"])
        if prompt["name"] not in self.patches:
            # Those of the run itself, which comes before the members of its ensemble.
            self.patches[prompt["name"]] = behind_first(seen.patches(), count)[self.chosen.orders[prompt["name"]].patches].contiguous()
            self.first = seen.module
        order = self.chosen.orders[prompt["name"]]
        return order.spread(features if order.groups is None else features[order.groups], prompt), None

    def tensors(self, run: str) -> dict:
        """The patches of all prompts, for the dump."""
        return {f"{run}/{name}/patches": patches for name, patches in self.patches.items()}


def joined(output):
    """The rows of an image, and behind each its rows for layers of the text model."""
    import torch

    parts = [getattr(output, "pooler_output", output), *(getattr(output, "deepstack_features", None) or [])]
    return torch.cat([flat(part) for part in parts], -1)


def flat(rows):
    """Rows of several pictures, one after another."""
    import torch

    parts = rows if isinstance(rows, (list, tuple)) else [rows]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def behind_first(rows, count: int):
    """Rows with one of zeros before them, if an encoder has one row more than patches."""
    import torch

    return rows if rows.shape[0] != count - 1 else torch.cat([torch.zeros_like(rows[:1]), rows])


class FirstInput:
    """What the first matrix of an encoder is given: patches, or pictures that it divides into them."""

    def __init__(self, model):
        import torch

        self.module, self.value, self.handles = None, None, []
        for module in model.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Conv3d)):
                self.handles.append(module.register_forward_pre_hook(self.see))

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()

    def see(self, module, args):
        if self.module is None:
            self.module, self.value = module, args[0].detach()

    def patches(self):
        """One row for each patch, in the order of the matrix's weight."""
        kernel = getattr(self.module, "kernel_size", None)
        if kernel is None:
            return self.value.reshape(-1, self.value.shape[-1])
        if tuple(self.module.stride) != tuple(kernel):
            raise Fail(f"the first convolution has steps of {tuple(self.module.stride)} and a kernel of {tuple(kernel)}, so that patches overlap")
        value = self.value
        for axis, size in enumerate(kernel):
            value = value.unfold(2 + axis, size, size)
        # Pictures, channels, steps of each axis, and the sizes of a patch.
        axes = len(kernel)
        value = value.movedim(1, 1 + axes)
        return value.reshape(-1, value[(0,) * (1 + axes)].numel())


class EncoderTaps(Taps):
    """Hooks on the modules of an encoder, whose outputs have a row for each row of the image, for each patch, or for each row that comes out."""

    def __init__(self, runner, too_wide: int | None):
        super().__init__(runner, too_wide)
        self.runner, self.routers = runner, set()

    def name_of(self, path: str, part: tuple[str, str] | None) -> str | None:
        return path if part is None or path != "lm_head" and path != part[0] and not path.startswith(f"{part[0]}.") else None

    def probe(self, _runner, _tokens) -> None:
        """The rows of an image are known by their number."""

    def rows(self, name, tensor, count):
        prompt = self.runner.now
        order = self.runner.chosen.orders[prompt["name"]]
        rows = order.patches if self.runner.first in self.modules[name].modules() and not self.has_layers(name) else order.inner
        for expected in dict.fromkeys((count, count - 1)):
            if (found := by_row(tensor, expected)) is not None:
                return behind_first(found, count)[rows].contiguous()
        found = by_row(tensor, len(prompt["rows"]) // order.group)
        return None if found is None else order.spread(found, prompt)

    def has_layers(self, name: str) -> bool:
        """True for a module that holds layers, and so comes behind the first matrix."""
        import torch

        return any(isinstance(module, torch.nn.ModuleList) for module in self.modules[name].modules())


def by_row(tensor, count: int):
    """A tensor with its axis of rows first; that of a picture in two axes is one. None if no axis or more than one could be it."""
    if tensor.ndim == 5 and tensor.shape[0] == count:
        return tensor.flatten(1)
    if tensor.ndim > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim == 3 and tensor.shape[1] * tensor.shape[2] == count:
        return tensor.flatten(1).T
    if tensor.ndim == 3 and tensor.shape[0] * tensor.shape[1] == count:
        return tensor.flatten(0, 1)
    axes = [axis for axis in range(tensor.ndim - 1) if tensor.shape[axis] == count]
    return tensor.movedim(axes[0], 0) if len(axes) == 1 else None
