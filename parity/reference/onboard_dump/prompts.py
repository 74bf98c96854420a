"""The prompts that are derived from a config, and the rows of a prompt that are recorded."""
from __future__ import annotations

import hashlib

PHASES = ("prefill", "decode")
# Lengths of derived prompts: of `long`, of any that has to pass a window, and of `main` where no prompt can pass it.
LONG_LENGTH, PROMPT_CAP, MAIN_CAP = 134, 160, 96


def rows_of(prompt: dict) -> list[int]:
    """Positions at which rows of logits and taps are recorded."""
    return prompt["rows"] if "rows" in prompt else list(range(len(prompt["tokens"])))


def decode_rows(prompt: dict) -> list[int]:
    """Those of them that decode records."""
    return [row for row in rows_of(prompt) if row >= prompt["split"]]


def snapshots_of(prompt: dict) -> list[int]:
    """Sequence lengths at which decode records the states of convolutions and recurrences."""
    if "rows" not in prompt:
        return list(range(prompt["split"], len(prompt["tokens"]) + 1))
    rows = set(decode_rows(prompt))
    return sorted({row for row in rows if row - 1 not in rows} | {row + 1 for row in rows if row + 1 not in rows})


def numbers_of(config) -> dict:
    text = config.get_text_config(decoder=True)
    values = text.to_dict()
    windows = [
        value
        for key, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
        and key in ("sliding_window", "attention_window_size", "window_size", "local_attention", "attention_chunk_size", "sliding_window_size")
    ]
    limit = next((values[key] for key in ("max_position_embeddings", "model_max_length", "n_positions", "max_seq_len", "n_ctx") if isinstance(values.get(key), int)), None)
    sizes = {value for value in values.values() if isinstance(value, int) and not isinstance(value, bool)}
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    switch = None
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) == "longrope":
        switch = rope.get("original_max_position_embeddings") or values.get("original_max_position_embeddings")
    heads = next((values[key] for key in ("num_attention_heads", "n_head", "n_heads") if isinstance(values.get(key), int)), None)
    if heads and isinstance(values.get("hidden_size"), int):
        sizes.add(values["hidden_size"] // heads)
    return {"windows": windows, "limit": limit or 1 << 30, "sizes": sizes, "switch": switch, "vocab": getattr(text, "vocab_size", None)}


def token_stream(seed: bytes, name: str, count: int, vocab: int) -> list[int]:
    """Tokens from a hash, so that they are the same in every version of Python."""
    return [int.from_bytes(hashlib.sha256(seed + f"/{name}/{index}".encode()).digest()[:8], "little") % vocab for index in range(count)]


def halved(length: int) -> int:
    """Where decode begins in a short prompt: half-way, and at most five tokens before the end."""
    return max((length + 1) // 2, length - 5)


def derive_prompts(seed: bytes, facts: dict, vocab: int, notes: list[str]) -> list[dict]:
    window, limit, switch = max(facts["windows"], default=0), facts["limit"], facts["switch"]
    length = max(11, window + 6)
    if length > PROMPT_CAP:
        notes.append(f"the main prompt is capped at {MAIN_CAP} tokens, shorter than the window of {window}: masked keys are not exercised")
        length = MAIN_CAP
    if switch and switch >= 8:
        length = min(length, switch - 1)
    length = min(length, limit)
    while length in facts["sizes"] and 4 < length < limit:
        length += 1 if not switch or length + 1 < switch else -1
    passed = [w + 6 for w in facts["windows"] if LONG_LENGTH < w and w + 6 <= PROMPT_CAP]
    long = min(max(passed, default=LONG_LENGTH), limit)
    if switch and switch + 8 > PROMPT_CAP:
        long = min(long, switch - 1)
        notes.append(f"no prompt passes original_max_position_embeddings ({switch}): the long rotary table is not exercised")
    elif switch:
        long = min(max(long, switch + 8), limit)
    up = long < limit and not switch
    while long in facts["sizes"] and 4 < long:
        long, up = (long + 1, up) if up and long < limit else (long - 1, False)
    split = max(1, min(long // 5, window - 1 if window > 1 else long // 5))
    if switch and switch + 8 <= PROMPT_CAP:
        # Above the switch the rotary tables are others; a decode that begins above it stays consistent with its prefill.
        split = switch + 3
    split = min(split, long - 1)
    # The last border of a block of 64.
    border = (long - 1) // 64 * 64
    late = {near for w in facts["windows"] for near in (w - 1, w, w + 1)} | {border, border + 1} | set(range(long - 4, long))
    prompts = [
        {"name": "one", "tokens": token_stream(seed, "one", 1, vocab), "split": 1, "taps": []},
        {"name": "two", "tokens": token_stream(seed, "two", 2, vocab), "split": 1, "taps": []},
        {"name": "main", "tokens": token_stream(seed, "main", length, vocab), "split": halved(length), "taps": ["prefill", "decode"]},
        {"name": "long", "tokens": token_stream(seed, "long", long, vocab), "split": split, "taps": ["decode"],
         "rows": sorted(row for row in late if split <= row < long)},
    ]
    return [prompt for prompt in prompts if len(prompt["tokens"]) <= limit and prompt["split"] >= 1]


def masked_prompts(seed: bytes, facts: dict, vocab: int, kinds: list[str]) -> list[dict]:
    """Prompts with a prefix, and with documents, that pass the windows; with taps in both phases."""
    window = max((w for w in facts["windows"] if w + 8 <= PROMPT_CAP), default=0)
    long, prompts = max(7, window + 2), []
    if "prefix" in kinds and long + 6 <= facts["limit"]:
        prompts.append({"name": "prefix", "tokens": token_stream(seed, "prefix", long + 6, vocab), "split": long + 2, "taps": list(PHASES), "prefix": long})
    if "documents" in kinds and 2 * long + 4 <= facts["limit"]:
        prompts.append({"name": "documents", "tokens": token_stream(seed, "documents", 2 * long + 4, vocab), "split": 2 * long, "taps": list(PHASES),
                        "documents": [0, 3, long + 3]})
    for prompt in prompts:
        # A length that is also a size of the model would hide the axis of tokens.
        while len(prompt["tokens"]) in facts["sizes"]:
            prompt["tokens"] += token_stream(seed, "more", 1, vocab)
    return prompts
