"""Sequences run by `generate` of transformers with given tokens: alone, in a batch, and behind padding, with the masks and positions that `generate` makes."""
from __future__ import annotations

import contextlib

from .failures import Fail
from .watch import Watch, watched

# Tokens that are generated after each sequence, and the most that a sequence of these checks has in all.
STEPS, LONGEST = 4, 24
# Tokens of the shortest head: some classes take a forward over one token for a step.
SHORTEST = 3


@contextlib.contextmanager
def without_end(model):
    """No token ends a sequence while this lasts: the tokens are given."""
    settings = model.generation_config
    kept = settings.eos_token_id
    settings.eos_token_id = None
    try:
        yield
    finally:
        settings.eos_token_id = kept


def given_tokens(rows: list[list[int]], start: int):
    """Has `generate` choose the tokens of these rows from position `start` on."""
    import torch
    from transformers import LogitsProcessor

    class Given(LogitsProcessor):
        def __call__(self, input_ids, scores):
            number = input_ids.shape[1] - start
            only = torch.full_like(scores, float("-inf"))
            for row, tokens in enumerate(rows):
                # A head with fewer rows than the embedding cannot choose the last tokens.
                only[row, tokens[number] % only.shape[-1]] = 0.0
            return only

    return [Given()]


def generate(model, sequences: list[list[int]], use_cache: bool = True, pad: int = 0, watch: Watch | None = None):
    """The logits `[sequences, STEPS, vocab]` that choose the last STEPS tokens of each sequence. Shorter sequences are padded on the left."""
    import torch

    if not hasattr(model, "generate") or getattr(model, "generation_config", None) is None:
        raise Fail(f"the class {type(model).__name__} has no `generate`")
    heads = [tokens[:-STEPS] for tokens in sequences]
    width = max(map(len, heads))
    ids = torch.tensor([[pad] * (width - len(head)) + head for head in heads])
    mask = torch.tensor([[0] * (width - len(head)) + [1] * len(head) for head in heads])
    forced = given_tokens([tokens[-STEPS:] for tokens in sequences], width)
    with torch.no_grad(), without_end(model), watched(model, watch) if watch is not None else contextlib.nullcontext():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, num_beams=1, use_cache=use_cache, logits_processor=forced,
                             output_logits=True, return_dict_in_generate=True, pad_token_id=pad)
    return torch.stack(out.logits, 1)


def sequences_of(prompts: list[dict], most: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sequences of equal length, and of three lengths, made of the prompts' tokens."""
    tokens = [token for prompt in prompts for token in prompt["tokens"]]
    length = min(LONGEST, most, len(tokens))
    if length < STEPS + SHORTEST + 1:
        raise Fail(f"the prompts and the model's positions allow {length} tokens, and a batch with padding needs {STEPS + SHORTEST + 1}")
    shifted = [tokens[-length:][::-1], tokens[:length]]
    middle = max(SHORTEST, (length - STEPS) * 2 // 3)
    return shifted, [tokens[:length], tokens[length - middle - STEPS : length], tokens[length - SHORTEST - STEPS : length]]
