"""Prompts of the user, in place of the derived ones."""
from __future__ import annotations

import json
from pathlib import Path

from .failures import Fail
from .prompts import PHASES


def given_prompts(args, vocab: int, limit: int) -> list[dict] | None:
    if args.tokens is not None:
        try:
            tokens = [int(piece) for piece in args.tokens.split(",")]
        except ValueError:
            raise Fail(f"--tokens {args.tokens}: expected numbers separated by commas") from None
        prompts = [{"name": "main", "tokens": tokens, "taps": True}]
    elif args.prompts is not None:
        try:
            prompts = json.loads(Path(args.prompts).read_bytes())
        except (OSError, ValueError) as error:
            raise Fail(f"{args.prompts}: {error}") from None
        if isinstance(prompts, dict):
            prompts = prompts.get("prompts")
        if not isinstance(prompts, list) or not all(isinstance(item, dict) for item in prompts):
            raise Fail(f"{args.prompts}: expected a list of objects with `name` and `tokens`")
    else:
        return None
    names, clean = set(), []
    for index, prompt in enumerate(prompts):
        where = f"prompt {prompt.get('name', index)!r}"
        tokens = prompt.get("tokens")
        if not isinstance(tokens, list) or not tokens or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
            raise Fail(f"{where}: `tokens` must be a list of at least one number")
        if bad := [t for t in tokens if not 0 <= t < vocab]:
            raise Fail(f"{where}: token {bad[0]} is outside the vocabulary of {vocab}")
        if len(tokens) > limit:
            raise Fail(f"{where}: {len(tokens)} tokens, but the model's positions end at {limit}")
        name = str(prompt.get("name", f"prompt{index}"))
        if name in names or "/" in name:
            raise Fail(f"{where}: names must differ and hold no slash")
        names.add(name)
        split = prompt.get("split", (len(tokens) + 1) // 2)
        if not isinstance(split, int) or not (1 <= split < len(tokens) or split == len(tokens) == 1):
            raise Fail(f"{where}: split {split!r} must be at least 1 and below the length {len(tokens)}")
        clean.append({"name": name, "tokens": tokens, "split": split, "taps": given_phases(where, prompt.get("taps", index == 0))})
        clean[-1] |= given_mask(where, prompt, clean[-1]["split"])
        if "inputs" in prompt:
            clean[-1]["inputs"] = given_inputs(where, prompt, Path(args.prompts).parent)
        rows = prompt.get("rows")
        if rows is not None:
            if not isinstance(rows, list) or not rows or not all(isinstance(row, int) and 0 <= row < len(tokens) for row in rows) or sorted(set(rows)) != rows:
                raise Fail(f"{where}: `rows` must be ascending positions below the length {len(tokens)}")
            clean[-1]["rows"] = rows
    if not clean:
        raise Fail("no prompts given")
    return clean


def given_mask(where: str, prompt: dict, split: int) -> dict:
    """The `prefix` or the `documents` of a given prompt."""
    whole = lambda x: isinstance(x, int) and not isinstance(x, bool)  # noqa: E731
    prefix, documents = prompt.get("prefix"), prompt.get("documents")
    if prefix is not None and documents is not None:
        raise Fail(f"{where}: `prefix` and `documents` are in one prompt, and no class runs both; give two prompts")
    if prefix is not None:
        if not whole(prefix) or not 1 <= prefix <= split:
            raise Fail(f"{where}: `prefix` {prefix!r} must be a number of tokens from 1 to the split {split}")
        return {"prefix": prefix}
    if documents is not None:
        if not isinstance(documents, list) or not documents or not all(whole(start) for start in documents) or documents != sorted(set(documents)) or documents[0] != 0 \
                or documents[-1] >= split:
            raise Fail(f"{where}: `documents` must be ascending positions that begin with 0, all below the split {split}")
        return {"documents": documents}
    return {}


def given_inputs(where: str, prompt: dict, folder: Path) -> tuple[dict, dict]:
    """The arguments of the class besides tokens that a given prompt has, and the settings of the config that it changes."""
    from safetensors.torch import load_file

    changes = prompt.get("config", {})
    if {"prefix", "documents"} & prompt.keys() or not isinstance(prompt["inputs"], str) or not isinstance(changes, dict):
        raise Fail(f"{where}: `inputs` must name a safetensors file and `config` be an object, in a prompt without `prefix` and `documents`")
    path = folder / prompt["inputs"]
    try:
        return load_file(path), changes
    except Exception as error:  # noqa: BLE001
        raise Fail(f"{path}: {error}") from None


def given_phases(where: str, taps) -> list[str]:
    """The phases that `taps` of a given prompt names; true means both."""
    if isinstance(taps, bool):
        return list(PHASES) if taps else []
    if not isinstance(taps, list) or any(phase not in PHASES for phase in taps):
        raise Fail(f"{where}: `taps` must be true, false or a list of {' and '.join(PHASES)}")
    return [phase for phase in PHASES if phase in taps]
