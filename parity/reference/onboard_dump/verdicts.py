"""Verdicts on the reference: the outcome of one check, and its line and manifest entry."""
from __future__ import annotations

import dataclasses

from .failures import Fail, first_line

HOLDS, DIFFERS, IMPOSSIBLE = "holds", "differs", "not possible"


@dataclasses.dataclass
class Verdict:
    """The outcome of one check of the reference."""

    check: str
    outcome: str
    # The size of a difference in words, and the place where it is first seen.
    by: str = ""
    at: str = ""
    # The measured sizes of a check that holds, or the reason why it is not possible.
    note: str = ""

    def line(self) -> str:
        if self.outcome == DIFFERS:
            return f"{self.check}: differs by {self.by} at {self.at}" + (f" ({self.note})" if self.note else "")
        if self.outcome == IMPOSSIBLE:
            return f"{self.check}: not possible: {self.note}"
        return f"{self.check}: holds" + (f" ({self.note})" if self.note else "")

    def entry(self) -> dict:
        """The entry of the manifest: what a check does not have is left out."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value}


@dataclasses.dataclass
class Noise:
    """The rounding of f32 that was measured on a model: the limit of what a check calls equal."""

    # The largest error of an f32 logit, relative to the largest logit.
    limit: float
    # The measure, in words.
    how: str

    def judge(self, check: str, gap: float, place) -> Verdict:
        """`place`: finds where a difference begins; called for a difference only."""
        sizes, limit = f"{gap:.1e} of the largest logit", f"{self.how} {self.limit:.1e}"
        if gap <= self.limit:
            return Verdict(check, HOLDS, note=f"{sizes}, {limit}")
        return Verdict(check, DIFFERS, by=sizes, at=place(), note=limit)


def reason(error: Exception) -> str:
    """The first sentence of an error."""
    return str(error) if isinstance(error, Fail) else first_line(error).split(". ")[0]


def attempt(check: str, job) -> Verdict:
    """The verdict of a check. A check that the class cannot run has the reason for it."""
    try:
        return job()
    except Exception as error:  # noqa: BLE001
        return Verdict(check, IMPOSSIBLE, note=reason(error))
