"""The choice of a prompt whose tokens reach all experts."""
from __future__ import annotations

from .prompts import halved, token_stream
from .work import Work

# Token streams that are tried for a `main` prompt that reaches all experts, and tokens that it may have more for that.
STREAMS, EXTRA = 16, 4


def reach_experts(runner, taps, prompts: list[dict], facts: dict, seed: bytes, vocab: int) -> None:
    """Gives `main` the token stream that sends two tokens to most experts, and up to EXTRA tokens more until each has two."""
    main = next((prompt for prompt in prompts if prompt["name"] == "main"), None)
    if main is None:
        return
    length, switch = len(main["tokens"]), facts["switch"]
    most = min(length + EXTRA, facts["limit"], switch - 1 if switch and switch >= 8 else length + EXTRA)

    def choices(name: str, length: int) -> dict:
        taps.during(lambda: runner.forward(token_stream(seed, name, length, vocab), 0, runner.fresh()), keep=False)
        return taps.chosen

    def served(chosen: dict) -> int:
        """Tokens that experts get, two of each expert at most."""
        return sum(int(one.flatten().bincount().clamp(max=2).sum()) for one in chosen.values())

    best = name = None
    streams = [f"main{index}" if index else "main" for index in range(STREAMS)]
    work = Work(runner, {stream: lambda stream=stream: choices(stream, length) for stream in streams if taps.routers})
    for stream in streams:
        chosen = work[stream] if taps.routers else {}
        if not chosen:
            return
        found = served(chosen)
        wanted = sum(2 * expert_count(taps.modules[module]) for module in chosen)
        if best is None or found > best:
            best, name = found, stream
        if best == wanted:
            break
    rows = sum(one.shape[-1] for one in chosen.values())
    # More tokens are of use where they can be enough.
    while best < wanted <= most * rows and length < most:
        length += 1
        if length not in facts["sizes"]:
            best = served(choices(name, length))
    while length in facts["sizes"]:
        length -= 1
    main["tokens"], main["split"] = token_stream(seed, name, length, vocab), halved(length)


def expert_count(module) -> int:
    """How many experts a module holds: the first axis of its stacked weights, or its children; 0 where neither tells."""
    stacked = [parameter.shape[0] for parameter in module.parameters(recurse=False) if parameter.ndim == 3]
    return stacked[0] if stacked else getattr(module, "num_experts", 0) or len(getattr(module, "experts", ()) or ())
