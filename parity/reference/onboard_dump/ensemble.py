"""The ensemble of a run: the largest distances of its members from the f32 run.

One run says little about another ([decision 8](../../../docs/decisions/0008-reference-ensemble.md)).
"""
from __future__ import annotations

import contextlib

from .distances import AUDIT_FACTOR, AUDIT_TOLERANCE, logit_distances, relative, state_distance, tap_distances
from .failures import Fail, first_line
from .members import forward_members, has_members, member_work
from .prompts import decode_rows, rows_of
from .record import Recorded


class Ensemble:
    """How far runs that differ by rounding alone are from the f32 run's prefill, by prompt: rows of logits and of each tap, and states."""

    def __init__(self, prompts: list[dict], recorded: list[Recorded], widths: dict[int, dict[int, int]], only: tuple = ()):
        """`only`: the beginnings of the names of members that are made, where not all are."""
        import torch

        self.prompts = [prompt for prompt in prompts if has_members(prompt)]
        found = {prompt["name"]: one for prompt, one in zip(prompts, recorded)}
        self.logits = {prompt["name"]: torch.log_softmax(found[prompt["name"]].full[rows_of(prompt)].double(), -1) for prompt in self.prompts}
        self.taps = {prompt["name"]: found[prompt["name"]].prefill_taps for prompt in self.prompts}
        self.full = {prompt["name"]: found[prompt["name"]].full for prompt in self.prompts}
        self.states = {prompt["name"]: found[prompt["name"]].states for prompt in self.prompts}
        self.widths, self.only = widths, only
        # The largest relative error of logits that weights moved by a unit in the last place make.
        self.shaken = 0.0

    def tolerance(self) -> float:
        return max(AUDIT_TOLERANCE, AUDIT_FACTOR * self.shaken)

    def distances(self, prompt: dict, logits, taps: dict, states: dict, first=0) -> tuple:
        """Of one member on one prompt, whose tensors hold the prompt's rows from `first` on. `states` are those after a prefill."""
        import torch

        def whole(values):
            return torch.cat([values.new_zeros((*values.shape[:-1], first)), values], -1)

        base = self.taps[prompt["name"]]
        near = {key: whole(tap_distances(base[key], values, first)) for key, values in taps.items() if key in base and values.shape[1:] == base[key].shape[1:]}
        kept = self.states[prompt["name"]]
        far = {key: state_distance(kept[key], values) for key, values in states.items() if key in kept and values.shape == kept[key].shape}
        return whole(logit_distances(self.logits[prompt["name"]][first:], logits)), near, far

    def forward_distances(self, prompt: dict, found: tuple, member: str) -> tuple:
        """Of a member that ran one forward over a prompt (`member_forward`)."""
        logits, taps, states = found
        if member.startswith("shaken"):
            self.shaken = max(self.shaken, relative(logits, self.full[prompt["name"]]))
        return self.distances(prompt, logits[rows_of(prompt)], taps, states)

    def run(self, runner, taps, run: str, recorded: dict, pieces: dict, barred) -> tuple[dict, dict]:
        """All members of one run, without those that `barred` gives a reason for. Returns the manifest's entry, and the largest distances by prompt."""
        made, ran, failed, most = MadeMembers(self, runner, taps, recorded, pieces), [], {}, {}
        for member, context in self.members(run, runner.model):
            try:
                if (why := barred(member)) is not None:
                    raise Fail(why)
                found = made.of(member, context)
            except Exception as error:
                failed[member] = str(error) if isinstance(error, Fail) else first_line(error).split(". ")[0]
                continue
            ran.append(member)
            keep_largest(most, found)
        return {"ran": ran, "failed": failed}, most

    def members(self, run: str, model) -> list[tuple]:
        """The names of members, in the order of the manifest, and the contexts that they run in: None for those that a run has made already."""
        forwards = forward_members(run, model)
        if run == "f32":
            members = [*forwards, ("decode", None)]
        else:
            first, *others = forwards
            members = [("own", None), ("decode", None), first, ("chunks", None), *others]
        return [member for member in members if not self.only or member[0].startswith(self.only)]


class MadeMembers:
    """The distances of the members of one run, by prompt."""

    def __init__(self, ensemble: Ensemble, runner, taps, recorded: dict, pieces: dict):
        """`recorded`: what the run gave, and `pieces`: what chunks gave, by prompt."""
        self.ensemble, self.runner, self.taps, self.recorded, self.pieces = ensemble, runner, taps, recorded, pieces

    def of(self, member: str, context) -> dict:
        prompts = self.ensemble.prompts
        if context is None:
            return {prompt["name"]: getattr(self, member)(prompt) for prompt in prompts if member != "chunks" or "documents" not in prompt}
        work = member_work(self.runner, self.taps, prompts, self.ensemble.widths, member)
        with contextlib.nullcontext() if work.is_kept() else context:
            return {prompt["name"]: self.ensemble.forward_distances(prompt, work[prompt["name"]], member) for prompt in prompts}

    def own(self, prompt: dict) -> tuple:
        """A 16-bit run is a member itself."""
        found = self.recorded[prompt["name"]]
        return self.ensemble.distances(prompt, found.full[rows_of(prompt)], found.prefill_taps, found.states)

    def decode(self, prompt: dict) -> tuple:
        found = self.recorded[prompt["name"]]
        return self.ensemble.distances(prompt, found.decoded, found.decode_taps, {}, len(rows_of(prompt)) - len(decode_rows(prompt)))

    def chunks(self, prompt: dict) -> tuple:
        """No cache continues several documents, so prompts with them are left out."""
        rows, (logits, taps) = rows_of(prompt), self.pieces[prompt["name"]]
        return self.ensemble.distances(prompt, logits[rows], {key: values[rows] for key, values in taps.items()}, {})


def keep_largest(most: dict, found: dict) -> None:
    """Raises the distances in `most` to those of one member, by prompt."""
    import torch

    for name, (logits, near, far) in found.items():
        old, taps, states = most.setdefault(name, (logits, {}, {}))
        most[name] = torch.maximum(old, logits), taps, states
        for key, values in near.items():
            taps[key] = torch.maximum(taps[key], values) if key in taps else values
        for key, value in far.items():
            states[key] = max(value, states.get(key, 0.0))


def put_spread(out: dict, run: str, prompts: list[dict], most: dict, taps: list[str], states: list[dict]) -> None:
    """The largest distances of a run's members; taps and states are those of the manifest, and -1 means one that prefill does not have."""
    import torch

    for prompt in prompts:
        if prompt["name"] not in most:
            continue
        logits, near, far = most[prompt["name"]]
        out[f"{run}/{prompt['name']}/spread/logits"] = logits.float().contiguous()
        if "prefill" in prompt["taps"]:
            none = torch.full((len(rows_of(prompt)),), -1.0, dtype=torch.float64)
            out[f"{run}/{prompt['name']}/spread/taps"] = torch.stack([near.get(name, none) for name in taps]).float().contiguous()
        if far:
            ordered = [far.get((entry["layer"], part), -1.0) for entry in states for part in entry["parts"]]
            out[f"{run}/{prompt['name']}/spread/states"] = torch.tensor(ordered, dtype=torch.float32)
