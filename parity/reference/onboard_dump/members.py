"""Members of the ensemble: computations that differ from a run by rounding alone."""
from __future__ import annotations

import contextlib

from .failures import Fail
from .masks import forward_whole, states_after
from .prompts import rows_of
from .work import Work

# Members of the ensemble of an f32 run and of a 16-bit run.
SHAKES, PERMUTATIONS = 7, 6


def shake(model, sign: int, seed: int) -> None:
    """Moves about two thirds of all weights by one unit in the last place of f32, up or down; the same seed and the other sign take it back."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.dtype == torch.float32:
            # Bits count up with size. Zeros and subnormal numbers stay, so that what moved is known afterwards too.
            moves = torch.randint(-1, 2, p.shape, generator=generator, dtype=torch.int32) * (p.detach().abs() > 1e-37)
            p.data.view(torch.int32).add_(sign * moves)


@contextlib.contextmanager
def shaken(model, seed: int):
    if (store := getattr(model, "weight_store", None)) is not None:
        with store.shaken(seed, list(model.parameters())):
            yield
        return
    shake(model, 1, seed)
    try:
        yield
    finally:
        shake(model, -1, seed)


@contextlib.contextmanager
def in_f64(model):
    """Computes with weights of 64 bits while this lasts."""
    import torch

    store = getattr(model, "weight_store", None)
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if store is None or not store.holds(tensor)]
    kept = [(tensor, tensor.data) for tensor in own if tensor.dtype == torch.float32]
    try:
        for tensor, data in kept:
            tensor.data = data.double()
        with store.in_f64() if store is not None else contextlib.nullcontext():
            yield
    finally:
        for tensor, data in kept:
            tensor.data = data


@contextlib.contextmanager
def with_sdpa(model):
    """Computes attention by torch's `scaled_dot_product_attention`, in the form that torch prefers, while this lasts."""
    from torch.nn import functional

    attention = functional.scaled_dot_product_attention
    try:
        model.set_attn_implementation("sdpa")
        used = getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)
        if used != "sdpa" and not getattr(attention, "called", False):
            raise Fail(f"the class stays with {used}")
        if hasattr(attention, "fast"):
            attention.fast = True
        yield
    finally:
        if hasattr(attention, "fast"):
            attention.fast = False
        model.set_attn_implementation("eager")


@contextlib.contextmanager
def permuted(seed: int):
    """Sums every linear product in another order while this lasts: rows and the weight's columns are permuted alike."""
    import torch
    from torch.nn import functional

    real, orders = functional.linear, {}
    generator = torch.Generator().manual_seed(seed)

    def linear(x, weight, bias=None):
        if weight.ndim != 2:
            return real(x, weight, bias)
        if (width := weight.shape[-1]) not in orders:
            orders[width] = torch.randperm(width, generator=generator)
        return real(x[..., orders[width]], weight[:, orders[width]], bias)

    functional.linear = linear
    try:
        yield
    finally:
        functional.linear = real


def forward_members(run: str, model=None) -> list[tuple]:
    """The members that run one forward over each prompt, in the order of the manifest, and the contexts that they run in."""
    if run == "f32":
        return [*((f"shaken{seed}", shaken(model, seed)) for seed in range(SHAKES)), ("f64", in_f64(model))]
    return [("sdpa", with_sdpa(model)), *((f"permuted{seed}", permuted(seed)) for seed in range(PERMUTATIONS))]


def has_members(prompt: dict) -> bool:
    """Prompts of one or two tokens have no ensemble."""
    return len(prompt["tokens"]) > 2


def barred_member(member: str, runner, audit: dict, why: str | None, tolerance: float) -> str | None:
    """Why a member says nothing of rounding: it cannot be made, or in f32 the reference differs there from its own prefill by more than rounding."""
    if member == "decode":
        key, words = "decode_vs_prefill", "decode"
    elif member == "chunks":
        key, words = "chunked_vs_prefill", "continuation of a cache by several tokens"
    else:
        return None
    if runner.cache_key is None:
        return "the class has no cache"
    if member == "chunks" and why is not None:
        return why
    return f"the reference's {words} differs from its prefill in f32 by {audit[key]:.1e} of the largest logit" if audit[key] > tolerance else None


def member_forward(runner, taps, prompt: dict, widths: dict[int, dict[int, int]]) -> tuple:
    """The logits of all positions, and the rows of taps and the states after the prefill where the prompt has them."""
    tokens, rows, tapped = prompt["tokens"], rows_of(prompt), "prefill" in prompt["taps"]
    runner.begin(prompt)
    seen, (logits, cache) = taps.during(lambda: forward_whole(runner, prompt), keep=tapped)
    states = {(layer, part): tensor for layer, _, part, tensor in states_after(runner, prompt, cache, widths)} if tapped else {}
    found = {key: values[rows] for key in seen if (values := taps.rows(key, seen[key], len(tokens))) is not None} if tapped else {}
    return logits, found, states


def member_work(runner, taps, prompts: list[dict], widths: dict[int, dict[int, int]], member: str) -> Work:
    return Work(runner, {prompt["name"]: lambda prompt=prompt: member_forward(runner, taps, prompt, widths) for prompt in prompts}, member)


def make_member(work: Work, context) -> None:
    """Makes the parts of a member that this process has. A member that cannot be made is kept as such."""
    mine = [key for key in work.jobs if work.parts.is_mine(work.stage, key) and not work.parts.has(work.stage, key)]
    if not mine:
        return
    try:
        with context:
            work.make_mine()
    except Exception as error:
        for key in mine:
            if not work.parts.has(work.stage, key):
                work.parts.put(work.stage, key, (None, error))
        if not work.is_kept(mine):
            raise
