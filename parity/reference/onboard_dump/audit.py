"""The audit of a run: decode, chunks and single tokens are compared with one forward."""
from __future__ import annotations

from .distances import AUDIT_TOLERANCE, relative
from .failures import first_line
from .masks import fed_in_chunks, mask_of
from .prompts import decode_rows

# Prompts of up to this many tokens are also fed token by token for the audit.
STEPWISE_LIMIT = 40
CHUNKS = (3, 1, 4, 2, 5)


def chunk_sizes(prompt: dict, switch) -> list[int]:
    """Sizes of chunks that cover a prompt; none of them crosses a switch of rotary tables."""
    length = len(prompt["tokens"])
    sizes = [prompt["split"]] if switch is not None and length > switch < prompt["split"] else [seen_both_ways(prompt)] if seen_both_ways(prompt) else []
    while sum(sizes) < length:
        sizes += CHUNKS
    return sizes


def seen_both_ways(prompt: dict) -> int:
    """The length up to the last token that sees one behind it; such tokens are fed in the first forward, since classes go on from a cache causally."""
    return max(prompt.get("prefix", 0), *(end for _, end in prompt.get("spans", [[0, 0]])))


def audit_jobs(runner, taps, prompts: list[dict], switch, run: str) -> dict:
    """What `audit_run` compares, by prompt and kind: a pass without a cache, chunks, and single tokens."""
    jobs = {}
    for prompt in prompts:
        name, tokens = prompt["name"], prompt["tokens"]
        if "documents" in prompt:
            # No cache continues several documents, and `check_apart` compares them with each alone.
            continue
        mask = mask_of(prompt)
        if run == "f32":
            jobs[name, "plain"] = lambda tokens=tokens, mask=mask: runner.forward(tokens, 0, None, **mask)[0]
        if len(tokens) > 1:
            tapped, sizes = taps if "prefill" in prompt["taps"] else None, chunk_sizes(prompt, switch)
            jobs[name, "chunks"] = lambda tapped=tapped, tokens=tokens, sizes=sizes, prompt=prompt: fed_in_chunks(runner, tapped, tokens, sizes, prompt)
        if 1 < len(tokens) <= STEPWISE_LIMIT:
            jobs[name, "steps"] = lambda tokens=tokens, prompt=prompt: fed_in_chunks(runner, None, tokens, [max(1, seen_both_ways(prompt))] + [1] * len(tokens), prompt)[0]
    return jobs


def audit_run(prompts, recorded, work, switch, run: str, notes: list[str]) -> tuple[dict, dict, str | None]:
    """Compares decode, chunks and single tokens with one forward. Returns the largest relative errors, what chunks gave per prompt, and why that
    is not complete."""
    decode = chunked = 0.0
    pieces, why = {}, None
    for prompt, found in zip(prompts, recorded):
        tokens, split, full = prompt["tokens"], prompt["split"], found.full
        crossing = switch is not None and len(tokens) > switch
        decode = max(decode, relative(found.decoded, full[decode_rows(prompt)]))
        if "documents" in prompt:
            continue
        if run == "f32":
            if (gap := relative(work[prompt["name"], "plain"], full)) > AUDIT_TOLERANCE:
                notes.append(f"{run}/{prompt['name']}: a pass without a cache differs from a pass with an empty one by {gap:.1e} of the largest logit")
        if len(tokens) < 2:
            continue
        if why is None:
            try:
                pieces[prompt["name"]] = work[prompt["name"], "chunks"]
                chunked = max(chunked, relative(pieces[prompt["name"]][0], full))
            except Exception as error:
                why = first_line(error)
                if run == "f32":
                    notes.append(f"f32/{prompt['name']}: several tokens on a cache that is not empty fail: {why}")
        stepwise = relative(work[prompt["name"], "steps"], full) if len(tokens) <= STEPWISE_LIMIT else None
        if crossing and split > switch:
            if run == "f32":
                apart = "" if stepwise is None else f" by {stepwise:.1e} of the largest logit"
                notes.append(
                    f"f32/{prompt['name']}: the rotary tables switch at position {switch} per forward and cached keys are not rotated again, so a "
                    f"sequence decoded across it differs from its prefill{apart}; this prompt's decode starts above it"
                )
        elif stepwise is not None:
            decode = max(decode, stepwise)
    return {"decode_vs_prefill": float(f"{decode:.3g}"), "chunked_vs_prefill": float(f"{chunked:.3g}")}, pieces, why
