"""Prompts with rows in the place of embeddings: what enters the text model of a class that was given an image.

The class runs once with its own encoder. What its text model was given is kept and given again in every other forward, without the encoder
([decision 116](../../../docs/decisions/0116-rows-in-the-place-of-embeddings.md)).
"""
from __future__ import annotations

import contextlib
import hashlib

from .classes import text_part
from .failures import Fail

# Arguments of text models in transformers: where rows are added behind layers, and the rows.
ADDED_AT, ADDED = "visual_pos_masks", "deepstack_visual_embeds"


class Given:
    """What entered the text model with one prompt."""

    def __init__(self, at, rows, arguments: dict, types: dict):
        """`at`: true for tokens whose embedding is a row that was given. `rows`: those rows. `arguments`: of the text model. `types`: arguments of the class with a number for each token."""
        self.at, self.rows, self.arguments, self.types = at, rows, arguments, types

    def outer(self, start: int, end: int) -> dict:
        """The arguments of the class for some of the tokens."""
        # As `generate` does, which gives types only with images.
        outer = {name: value[:, start:end] for name, value in self.types.items()} if bool(self.at[start:end].any()) else {}
        if (positions := self.arguments.get("position_ids")) is not None:
            outer["position_ids"] = positions[..., start:end]
        return outer

    def inner(self, start: int, end: int) -> dict:
        """The arguments that the text model is given besides, for some of the tokens."""
        if (mask := self.arguments.get(ADDED_AT)) is None or not bool(mask[:, start:end].any()):
            return {}
        first, last = int(mask[0, :start].sum()), int(mask[0, :end].sum())
        return {ADDED_AT: mask[:, start:end], ADDED: [rows[first:last] for rows in self.arguments[ADDED]]}


class Images:
    """The prompts of a run that have images. Hooks stand in for the encoder in their forwards."""

    def __init__(self, model, wanted: dict, prompts: list[dict]):
        """`wanted`: the arguments of the class besides tokens, and changes of its config, by prompt."""
        self.model, self.given, self.now, self.handles = model, {}, None, []
        if not wanted:
            return
        part = text_part(model)
        if part is None:
            raise Fail(f"the class {type(model).__name__} has no text model beside an encoder, so it takes no images")
        self.text, self.embedding = model.get_submodule(part[0]), model.get_input_embeddings()
        self.handles = [self.embedding.register_forward_hook(self.put_rows), self.text.register_forward_pre_hook(self.put_arguments, with_kwargs=True)]
        for prompt in prompts:
            if prompt["name"] in wanted:
                inputs, changes = wanted[prompt["name"]]
                with changed(model, changes):
                    logits = self.observe(prompt, inputs)
                self.compare(prompt, logits)

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()

    # ---------------------------------------------------------------- the forwards without the encoder

    @contextlib.contextmanager
    def during(self, name: str, start: int, end: int):
        """Gives the arguments for a forward over some tokens of a prompt, and what the hooks need while it lasts."""
        self.now = self.given[name], start, end
        try:
            yield self.given[name].outer(start, end)
        finally:
            self.now = None

    def put_rows(self, _module, _inputs, output):
        if self.now is None:
            return None
        given, start, end = self.now
        at = given.at[start:end]
        if output.shape[-2] != at.shape[0] or not bool(at.any()):
            return None
        first = int(given.at[:start].sum())
        return output.masked_scatter(at[:, None], given.rows[first : first + int(at.sum())].to(output.dtype))

    def put_arguments(self, _module, args, kwargs):
        if self.now is None:
            return None
        given, start, end = self.now
        return args, kwargs | given.inner(start, end)

    # ---------------------------------------------------------------- the forward with the encoder

    def observe(self, prompt: dict, inputs: dict):
        """Runs the class with its encoder, and keeps what entered the text model; `prompt` is told where it differs from text. Gives the logits."""
        import torch

        tokens = torch.tensor([prompt["tokens"]], dtype=torch.long)
        inputs = {name: value.to(self.model.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        seen = Seen(self.text, self.embedding)
        try:
            with torch.no_grad():
                logits = self.model(input_ids=tokens, use_cache=False, **nested(inputs)).logits[0]
        finally:
            seen.close()
        if seen.embedded is None or seen.entered is None:
            raise Fail(f"prompt {prompt['name']}: the class {type(self.model).__name__} gives its text model no `inputs_embeds`, in which rows would be in the place of embeddings")
        length = len(prompt["tokens"])
        at = (seen.entered[0] != seen.embedded[0]).any(-1)
        if not bool(at.any()):
            raise Fail(f"prompt {prompt['name']}: no embedding was replaced; `inputs` has to hold what the class takes beside tokens, and `tokens` its placeholders")
        types = {name: value for name, value in inputs.items() if value.shape == tokens.shape and not value.is_floating_point()}
        self.given[prompt["name"]] = given = Given(at, seen.entered[0][at], seen.arguments, types)
        facts = {"given": at.nonzero()[:, 0].tolist()} | seen.positions_of(length) | seen.spans_of(length)
        if ADDED in given.arguments:
            added_at = given.arguments[ADDED_AT][0].nonzero()[:, 0].tolist()
            if added_at != facts["given"]:
                raise Fail(f"prompt {prompt['name']}: rows are added behind layers at {added_at}, and given in the place of embeddings at {facts['given']}")
            facts["beside"] = len(given.arguments[ADDED])
        if any(prompt.get(key, value) != value for key, value in facts.items()):
            raise Fail(f"prompt {prompt['name']}: the class places rows otherwise in this dtype")
        prompt |= facts
        return logits

    def compare(self, prompt: dict, logits) -> None:
        """Runs the class without its encoder and with its own config, as all other forwards do: the logits have to be equal."""
        import torch

        tokens = torch.tensor([prompt["tokens"]], dtype=torch.long)
        with torch.no_grad(), self.during(prompt["name"], 0, len(prompt["tokens"])) as outer:
            again = self.model(input_ids=tokens, use_cache=False, **outer).logits[0]
        if not torch.equal(again, logits):
            gap = (again.float() - logits.float()).abs().max().item()
            raise Fail(f"prompt {prompt['name']}: more enters the text model of {type(self.model).__name__} than rows, positions, a mask and rows behind layers: without its encoder the "
                       f"logits differ by {gap:.1e}")

    def tensors(self, run: str) -> dict:
        """The rows of all prompts, for the dump."""
        found = {}
        for name, given in self.given.items():
            found[f"{run}/{name}/given"] = given.rows.contiguous()
            for layer, rows in enumerate(given.arguments.get(ADDED, ())):
                found[f"{run}/{name}/beside/{layer}"] = rows.contiguous()
        return found


class Parts(dict):
    """Parts of an argument by name, as keys and as attributes: outputs of encoders are read in both ways, and have fields that are None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def to_tuple(self) -> tuple:
        return tuple(self.values())


def nested(inputs: dict) -> dict:
    """Arguments, of which names with dots are parts: `mm_encoder_outputs.image.pooler_output.0` is the first of a list in an object in a dict."""
    found = Parts()
    for name, value in inputs.items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, Parts())
        place[last] = value
    return {name: listed(value) for name, value in found.items()}


def listed(value):
    """The same with lists in the place of parts whose names are numbers."""
    if not isinstance(value, Parts):
        return value
    if all(name.isdecimal() for name in value):
        return [listed(value[name]) for name in sorted(value, key=int)]
    return Parts({name: listed(part) for name, part in value.items()})


class Seen:
    """Watches one forward of a class with an encoder."""

    def __init__(self, text, embedding):
        self.embedded = self.entered = self.positions = None
        self.arguments, self.masks, self.outputs = {}, [], []
        self.handles = [embedding.register_forward_hook(self.see_embedding), text.register_forward_pre_hook(self.see_text, with_kwargs=True)]
        for module in text.modules():
            if module is not text:
                self.handles.append(module.register_forward_pre_hook(self.see_module, with_kwargs=True))

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()

    def see_embedding(self, _module, _inputs, output):
        if self.entered is None:
            self.outputs.append(output.detach().clone())

    def see_text(self, _module, _args, kwargs):
        if (entered := kwargs.get("inputs_embeds")) is not None and self.entered is None:
            self.entered = entered.detach().clone()
            # A class may also embed tokens that encode an image.
            self.embedded = next((output for output in self.outputs if output.shape == entered.shape), None)
            self.arguments = {name: kwargs[name] for name in ("position_ids", ADDED_AT, ADDED) if kwargs.get(name) is not None}

    def see_module(self, module, args, kwargs):
        import torch

        mask = kwargs.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.ndim == 4:
            self.masks.append(mask if mask.dtype == torch.bool else mask == 0)
        if "rotary" in type(module).__name__.lower():
            self.positions = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and not value.is_floating_point()), self.positions)

    def positions_of(self, length: int) -> dict:
        """The positions by which the rotary tables turned, one list for each axis; nothing if they count the tokens."""
        if self.positions is None:
            return {}
        axes = self.positions.reshape(-1, length).tolist()
        return {} if all(axis == list(range(length)) for axis in axes) else {"positions": axes}

    def spans_of(self, length: int) -> dict:
        """The tokens that see each other, as the masks of all layers say."""
        until = list(range(1, length + 1))
        for mask in self.masks:
            if mask.shape[-2:] == (length, length):
                for at, row in enumerate(mask[0, 0]):
                    until[at] = max(until[at], int(row.nonzero()[-1]) + 1)
        spans, at = [], 0
        while at < length:
            if until[at] > at + 1:
                if any(until[token] != until[at] for token in range(at, until[at])):
                    raise Fail(f"the tokens from {at} to {until[at]} do not see each other alike")
                spans.append([at, until[at]])
            at = until[at]
        if spans and spans[0][0] == 0 and len(spans) == 1:
            return {"prefix": spans[0][1]}
        return {"spans": spans} if spans else {}


@contextlib.contextmanager
def changed(model, changes: dict):
    """Changes settings of a model's config while this lasts, also where its modules have copied them."""
    copies = [(module, name) for module in model.modules() for name in changes if name in vars(module)]
    kept = [(place, name, getattr(place, name)) for place, name in [*copies, *((model.config, name) for name in changes)]]
    try:
        for place, name, _ in kept:
            setattr(place, name, changes[name])
        yield
    finally:
        for place, name, value in kept:
            setattr(place, name, value)


def draw_encoder(model) -> list[str]:
    """Draws what is zero in all of an encoder at random: small checkpoints for tests of text have encoders of zeros. The same numbers in every dtype."""
    import torch

    part, drawn = text_part(model), []
    if part is None:
        return []
    for name, parameter in sorted(model.named_parameters()):
        if not name.startswith(f"{part[0]}.") and not name.startswith("lm_head") and not bool(parameter.any()):
            generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little"))
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            drawn.append(name)
    return [f"{len(drawn)} tensors of the encoder are zeros in the checkpoint, and were drawn at random: {drawn[0]}, ..."] if drawn else []
