"""Prompts whose first tokens see each other, or that hold several documents."""
from __future__ import annotations

from .distances import AUDIT_TOLERANCE, relative
from .failures import Fail
from .states import read_states, window_of
from .work import steps_of


def spans_of(documents: list[int], length: int) -> list[tuple[int, int]]:
    """The first position of each document and the one past its last."""
    inside = [start for start in documents if start < length]
    return list(zip(inside, [*inside[1:], length]))


def mask_of(prompt: dict) -> dict:
    """The argument of `Runner.forward` that gives the first tokens of a prompt their mask; nothing for a causal one."""
    return {"prompt": prompt} if {"prefix", "documents", "given"} & prompt.keys() else {}


def given_of(prompt: dict | None) -> dict:
    """The argument for a forward that continues a prompt: rows in the place of embeddings belong to its tokens wherever they stand."""
    return {"prompt": prompt} if prompt is not None and "given" in prompt else {}


def forward_whole(runner, prompt: dict) -> tuple:
    """One forward over a whole prompt. transformers tells packed documents apart only where there is no cache."""
    if "documents" in prompt:
        return runner.forward(prompt["tokens"], 0, None, prompt)[0], None
    return runner.forward(prompt["tokens"], 0, runner.fresh(), **mask_of(prompt))


def apart(runner, prompt: dict, length: int) -> list[tuple]:
    """The logits and the cache of each document before `length`, run alone."""
    return [runner.forward(prompt["tokens"][start:to], 0, runner.fresh()) for start, to in spans_of(prompt["documents"], length)]


def rows_before(runner, prompt: dict, widths: dict) -> dict:
    """Keys and values of all documents before the last, by layer and part, with zeros in place of rows that a sliding cache has dropped."""
    found = {}
    for (start, to), (_, cache) in list(zip(spans_of(prompt["documents"], len(prompt["tokens"])), apart(runner, prompt, len(prompt["tokens"]))))[:-1]:
        for layer, kind, part, tensor in read_states(runner.model, cache, widths):
            if kind == "attention":
                dropped = tensor.new_zeros((to - start - tensor.shape[0], *tensor.shape[1:]))
                found.setdefault((layer, part), []).extend([dropped, tensor])
    return found


def states_after(runner, prompt: dict, cache, widths: dict) -> list[tuple]:
    """The states after a whole prompt: those of its cache, or of the caches of its documents, which are run alone."""
    import torch

    if "documents" not in prompt:
        return read_states(runner.model, cache, widths)
    before, start = rows_before(runner, prompt, widths), prompt["documents"][-1]
    _, cache = runner.forward(prompt["tokens"][start:], 0, runner.fresh())
    states = []
    for layer, kind, part, tensor in read_states(runner.model, cache, widths):
        if kind == "attention":
            dropped = tensor.new_zeros((len(prompt["tokens"]) - start - tensor.shape[0], *tensor.shape[1:]))
            tensor = torch.cat([*before.get((layer, part), []), dropped, tensor])
            window = window_of(cache, layer)
            if window is not None:
                tensor = tensor[max(0, tensor.shape[0] - (window - 1)) :]
            tensor = tensor.contiguous()
        states.append((layer, kind, part, tensor))
    return states


def check_apart(runner, prompt: dict, full) -> None:
    """Fails where documents that are packed differ from the same documents alone by more than rounding."""
    import torch

    alone = torch.cat([logits for logits, _ in apart(runner, prompt, len(prompt["tokens"]))])
    if (gap := relative(full, alone)) > AUDIT_TOLERANCE:
        raise Fail(f"prompt {prompt['name']}: the class {type(runner.model).__name__} does not keep packed documents apart: its logits differ from those of the "
                   f"documents alone by {gap:.1e} of the largest; give each document as a prompt of its own")


def fed_in_chunks(runner, taps, tokens: list[int], sizes, prompt=None) -> tuple:
    """Logits of all rows and, with `taps`, the rows of every module output, from a sequence fed in chunks through one cache."""
    import torch

    left, starts = list(sizes), [0]
    while starts[-1] < len(tokens):
        size = left.pop(0) if left else len(tokens) - starts[-1]
        starts.append(starts[-1] + max(1, min(size, len(tokens) - starts[-1])))

    def chunk(number, cache):
        begin, end = starts[number], starts[number + 1]
        mask = mask_of(prompt) if prompt is not None and begin == 0 else given_of(prompt)
        step = lambda: runner.forward(tokens[begin:end], begin, cache, **mask)  # noqa: E731
        seen, (out, cache) = taps.during(step) if taps is not None else ({}, step())
        found = {name: rows for name, tensor in seen.items() if (rows := taps.rows(name, tensor, end - begin)) is not None}
        return out, found, cache

    # The first forward makes what a cache has for each layer, by which the others are known to fit.
    first = chunk(0, runner.fresh())
    sizes = [end - begin for begin, end in zip(starts[1:], starts[2:])]
    chunks = [first, *steps_of(runner, first[-1], sizes, lambda number, cache: chunk(number + 1, cache))]
    parts = {}
    for _, found, _ in chunks:
        for name, rows in found.items():
            parts.setdefault(name, []).append(rows)
    return torch.cat([out for out, _, _ in chunks]), {name: torch.cat(rows) for name, rows in parts.items() if len(rows) == len(chunks)}
