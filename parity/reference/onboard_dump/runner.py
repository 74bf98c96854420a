"""One model, stepped chunk by chunk, and the argument by which its class takes a cache."""
from __future__ import annotations

import inspect
import re

from .failures import Fail
from .masks import spans_of
from .work import Work

# Arguments of forwards that are known to take no cache.
OTHER_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds", "labels", "use_cache", "logits_to_keep")


def is_cache(value) -> bool:
    """True for an object that holds what a model carries from step to step: `Cache` of transformers and those of classes of their own."""
    return value is not None and any("Cache" in kind.__name__ for kind in type(value).__mro__)


def returned_cache(out):
    """The cache in an output, whatever the class calls it; None without one."""
    values = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return next((value for value in values if is_cache(value)), None)


def cache_argument(function) -> str | None:
    """The parameter of a function that is declared to take a cache, whatever its name: releases of transformers call it `past_key_values`, `cache_params` and
    `cache`. None if no annotation tells, or several do."""
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if re.search(r"\w*Cache\b", str(parameter.annotation))]
    return names[0] if len(names) == 1 else None


def fed_back(model) -> str | None:
    """The argument by which a class whose forward declares no cache goes on from the one that it returns; None for a class that returns none. A class that returns
    a cache and takes it back by no argument would be dumped without its steps, so it is refused."""
    import torch

    def run(token: int, **cache):
        with torch.no_grad():
            return model(input_ids=torch.tensor([[token]]), use_cache=True, **cache)

    def seen(cache) -> int | None:
        length = getattr(cache, "get_seq_length", None)
        return length() if length is not None else None

    try:
        out = run(0)
    except (TypeError, ValueError):
        return None
    if returned_cache(out) is None:
        return None
    inner = getattr(model, model.base_model_prefix, model)
    named = [key for key, value in out.items() if is_cache(value)] if isinstance(out, dict) else []
    declared = [cache_argument(model.forward), cache_argument(inner.forward)]
    others = [name for function in (model.forward, inner.forward) for name, parameter in inspect.signature(function).parameters.items()
              if parameter.default is None and name not in OTHER_ARGUMENTS]
    for name in dict.fromkeys(name for name in [*named, *declared, *others] if name):
        cache = returned_cache(run(0))
        before = seen(cache)
        try:
            after = returned_cache(run(0, **{name: cache}))
        except Exception:  # noqa: BLE001
            continue
        # A class that ignores the argument begins again, with a cache of one token.
        if seen(after) == before + 1 if before is not None else after is cache:
            return name
    raise Fail(f"the forward of {type(model).__name__} returns a cache ({type(returned_cache(out)).__name__}) and takes it back by none of its arguments, so its "
               "decode would not be recorded: give its forward a parameter for the cache, annotated as `Cache | None`, and hand it to the layers")


def made(kind, model):
    """An empty cache of a class, whose constructor may ask for the config and the size of a batch."""
    try:
        return kind()
    except TypeError:
        return kind(config=model.config, max_batch_size=1, dtype=model.dtype, device=model.device)


class Runner:
    """One model, stepped chunk by chunk over one sequence with explicit positions."""

    def __init__(self, model, parts=None):
        """`parts`: keeps what jobs give, for other processes (`pieces.RunParts`)."""
        self.model, self.parts = model, parts
        self.params = inspect.signature(model.forward).parameters
        inner = inspect.signature(getattr(model, model.base_model_prefix, model).forward).parameters
        # A class without a cache decodes by running the whole sequence again: the tokens so far are its cache.
        self.cache_key = cache_argument(model.forward) or Work(self, {"name": lambda: fed_back(model)}, "cache-name")["name"]
        self.takes_positions = "position_ids" in self.params or "position_ids" in inner
        self.takes_types = "token_type_ids" in self.params or "token_type_ids" in inner
        self.found_type: int | None = None
        self.own_cache = None
        # Stands in for the encoder of prompts with images (`images.Images`).
        self.images = None

        def takes_given() -> bool:
            self.own_cache = self.cache_of_its_own()
            return not self.own_cache

        if not Work(self, {"given": takes_given}, "cache")["given"] and self.own_cache is None:
            self.own_cache = self.cache_of_its_own()

    def begin(self, prompt: dict) -> None:
        """Called before a prompt is run again."""

    def fresh(self):
        from transformers import DynamicCache

        if self.cache_key is None:
            return []
        # Some classes keep what recurrences carry in their modules, whatever cache they are given.
        inner = getattr(self.model, self.model.base_model_prefix, None)
        if hasattr(inner, "_setup_cache"):
            inner._setup_cache(self.model.config, 1, self.model.device, self.model.dtype)
        return made(self.own_cache, self.model) if self.own_cache else DynamicCache(config=self.model.config)

    def cache_of_its_own(self):
        """The class of cache that the model makes when it is given none, where it takes no other; else False."""
        import torch
        from transformers import DynamicCache

        if self.cache_key is None:
            return False
        tokens = torch.tensor([[0]], dtype=torch.long)
        try:
            with torch.no_grad():
                self.model(**{"input_ids": tokens, "use_cache": True, self.cache_key: DynamicCache(config=self.model.config)})
        except (ValueError, AttributeError):
            with torch.no_grad():
                out = self.model(input_ids=tokens, use_cache=True)
            return type(returned_cache(out))
        return False

    def prefix_type(self) -> int:
        """The `token_type_ids` of tokens that see each other: the value that makes a first token depend on those behind it."""
        import torch

        if self.found_type is None and self.takes_types:
            tokens = torch.tensor([[0, 1, 2, 3]], dtype=torch.long)
            run = lambda **types: self.model(input_ids=tokens, use_cache=False, **types).logits[0, 0]  # noqa: E731
            with torch.no_grad():
                plain = run()
                self.found_type = next((value for value in (0, 1) if not torch.equal(run(token_type_ids=torch.full_like(tokens, value)), plain)), None)
        if self.found_type is None:
            raise Fail(f"the class {type(self.model).__name__} has no bidirectional prefix: no `token_type_ids` let its first token see those behind it")
        return self.found_type

    def forward(self, tokens, start=0, cache=None, prompt=None):
        """Logits `[len, V]` as the model gives them, and the cache (None for a pass without one). `prompt`: the prompt that the tokens are the
        beginning of, where it has a prefix or documents."""
        import torch

        if prompt is not None and self.cache_key is None:
            raise Fail(f"the class {type(self.model).__name__} has no cache, so it runs no images, no prefix and no packed documents")
        if self.cache_key is None:
            seen = [*(cache or []), *tokens]
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([seen], dtype=torch.long)).logits[0]
            return logits[len(seen) - len(tokens) :].clone(), seen if cache is not None else None
        kwargs = {"input_ids": torch.tensor([tokens], dtype=torch.long), "use_cache": cache is not None}
        if self.takes_positions:
            kwargs["position_ids"] = torch.arange(start, start + len(tokens))[None]
        if cache is not None:
            kwargs[self.cache_key] = cache
        if prompt is not None and "given" in prompt:
            with self.images.during(prompt["name"], start, start + len(tokens)) as outer, torch.no_grad():
                out = self.model(**(kwargs | outer))
            return out.logits[0].clone(), cache if cache is None else returned_cache(out) or cache
        if (prefix := (prompt or {}).get("prefix")) is not None:
            own = self.prefix_type()
            kwargs["token_type_ids"] = torch.tensor([[own if at < prefix else 1 - own for at in range(len(tokens))]])
        if (documents := (prompt or {}).get("documents")) is not None:
            if not self.takes_positions:
                raise Fail(f"the class {type(self.model).__name__} takes no `position_ids`, by which it would know packed documents")
            kwargs["position_ids"] = torch.cat([torch.arange(to - start) for start, to in spans_of(documents, len(tokens))])[None]
        with torch.no_grad():
            out = self.model(**kwargs)
        if cache is not None:
            cache = returned_cache(out) or cache
        return out.logits[0].clone(), cache
