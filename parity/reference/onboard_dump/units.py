"""The plan of a dump in pieces: the units of work, and everything that their results depend on."""
from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from .audit import STEPWISE_LIMIT
from .failures import PACKAGE, PROGRAM, Fail, Unusable
from .given_prompts import given_prompts
from .members import forward_members, has_members
from .nextn import places
from .pieces import GREEDY_COST, HEAD_COST, RECORD_COST, Parts
from .prompts import derive_prompts
from .record import greedy_count


def inputs_of(args, raw: bytes, weights_hash: str) -> dict:
    """Everything that the bytes of a dump depend on, by name."""
    import torch
    import transformers

    def digest(path) -> str | None:
        path = Path(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None

    options = {name: getattr(args, name) for name in ("dtypes", "tokens", "trust_remote_code", "full_vocab_limit", "topk", "no_taps", "no_members", "gelu_table", "layers",
                                                      "greedy", "threads", "layerwise")}
    return options | {
        "config": hashlib.sha256(raw).hexdigest()[:16],
        "weights": weights_hash[:16],
        "prompts": digest(args.prompts) if args.prompts is not None else None,
        "imports": [digest(path) for path in args.imports],
        "scripts": [digest(path) for path in [PROGRAM, *sorted(PACKAGE.glob("*.py"))]],
        "versions": f"transformers {transformers.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def open_parts(args, config, facts: dict, inputs: dict, has_head: bool) -> Parts:
    """The folder of parts, with the units of this dump. `has_head`: a head of the class is dumped too."""
    units = Units(args, facts)
    for run in args.dtypes:
        units.add_run(run)
    if has_head and places(config) is not None:
        units.add("", "head", HEAD_COST * len(args.dtypes), [(run, "head", "all") for run in args.dtypes])
    return Parts(Path(args.pieces), inputs, units.found, Fail, Unusable, args.piece if not args.plan else None, args.merge)


class Units:
    """The units of a dump: groups of parts that one process makes."""

    def __init__(self, args, facts: dict):
        many = 1 << 62
        self.args, self.facts, self.found = args, facts, []
        self.prompts = given_prompts(args, many, facts["limit"]) or derive_prompts(b"", facts, many, [])

    def add(self, run: str, name: str, cost: float, keys: list) -> None:
        self.found.append({"run": run, "name": name, "cost": cost, "parts": [tuple(part for part in key) for key in keys]})

    def add_grouped(self, run: str, name: str, cost: float, each: dict) -> None:
        """One unit for all prompts where they go through a layer together, else one for each. `each`: keys and cost by prompt."""
        if self.args.layerwise:
            self.add(run, name, cost, [key for keys, _ in each.values() for key in keys])
            return
        for prompt, (keys, own) in each.items():
            self.add(run, f"{name}/{prompt}", own, keys)

    def add_run(self, run: str) -> None:
        """The units of one dtype."""
        self.add_grouped(run, "prompts", RECORD_COST, {prompt["name"]: recorded(run, prompt) for prompt in self.prompts})
        if "f32" in self.args.dtypes and not self.args.no_members:
            for member, _ in forward_members(run):
                each = {prompt["name"]: ([(run, member, prompt["name"])], 1 + len(prompt["tokens"]) / 16) for prompt in self.prompts if has_members(prompt)}
                self.add_grouped(run, member, 1.0, each)
        tapped = [prompt | {"taps": [] if self.args.no_taps else prompt["taps"]} for prompt in self.prompts]
        if greedy_count(self.args, tapped, self.facts)[1] > 0:
            self.add(run, "greedy", GREEDY_COST, [(run, "greedy", "cached")])


def recorded(run: str, prompt: dict) -> tuple[list, float]:
    """The keys of the recording and the audit of one prompt, and their cost."""
    length = len(prompt["tokens"])
    costs = {"record": 2 + length - prompt["split"]}
    if run == "f32":
        costs["plain"] = 1
    if length > 1:
        costs["chunks"] = length / 3
    if 1 < length <= STEPWISE_LIMIT:
        costs["steps"] = length
    return [(run, "prompt", prompt["name"], stage) for stage in costs], sum(costs.values())
