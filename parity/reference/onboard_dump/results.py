"""What the runs of a dump gave, and the files that are written of it."""
from __future__ import annotations

from .distances import AUDIT_TOLERANCE
from .ensemble import put_spread
from .failures import Fail, say
from .files import write
from .manifest import head_files, listed_states, manifest_of, settle_taps
from .nextn import HeadMeasure
from .prompts import decode_rows


class Results:
    """What all runs gave."""

    def __init__(self, args, notes: list[str]):
        self.notes = notes
        # The dtypes that were run, and their tensors with the states and shared modules that were met.
        self.runs: list[str] = []
        self.tensors, self.kinds, self.shared = {}, {}, {}
        # By dtype: the audit, greedy tokens, the members of the ensemble and their largest distances.
        self.audit, self.greedy, self.members, self.spread = {}, {}, {}, {}
        self.ensemble, self.tolerance = None, AUDIT_TOLERANCE
        # Of a head, by dtype.
        self.heads, self.head_tensors, self.head_measure = {}, {}, HeadMeasure(not args.no_members)
        self.patched = {"topk_first_of_equals"}
        # Of `--judge`.
        self.verdicts = None
        # Of the first model that is loaded.
        self.chosen = self.architecture = None
        self.rounded_rows = self.rounded_caches = "none"

    @property
    def agrees(self) -> bool:
        """The reference's decode agrees with its own prefill."""
        return self.audit[self.runs[0]]["decode_vs_prefill"] <= self.tolerance or self.runs[0] != "f32"


def write_dump(inputs, results: Results) -> None:
    """Writes the dump of all runs."""
    chosen, tensors = results.chosen, results.tensors
    listed = settle_taps(tensors, results.runs, chosen.prompts, results.shared, results.notes)
    states = listed_states(results.kinds)
    stepped = any("decode" in prompt["taps"] and decode_rows(prompt) for prompt in chosen.prompts)
    if stepped and listed and not any("decode" in tap["phases"] for tap in listed.values()):
        raise Fail(f"{inputs.folder}: the class {results.architecture} goes on from a cache, but no output of a module was recorded in its steps, so the dump would prove nothing of "
                   "decode; give --no-taps for a dump of log-probabilities alone")
    for run, most in results.spread.items():
        put_spread(tensors, run, chosen.prompts, most, list(listed), states)
    agrees, first = results.agrees, results.audit[results.runs[0]]
    if not agrees:
        results.notes.append("the reference's decode does not agree with its own prefill: the prefill rows are the truth")
    if first["chunked_vs_prefill"] > results.tolerance and results.runs[0] == "f32":
        results.notes.append("the reference continues a cache by several tokens differently from one forward: chunked schedules are compared with the prefill rows")
    manifest = manifest_of(inputs, results, listed, states, agrees)
    write(inputs.target, tensors, manifest, head_files(results.heads, results.head_tensors, manifest))
    say(f"{inputs.target}: {len(tensors)} tensors, {len(listed)} taps, {len(states)} states, truth {manifest['audit']['truth']}")
