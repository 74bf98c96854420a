"""Jobs whose results are kept for other processes, and run in step where layers are read one at a time."""
from __future__ import annotations


class Work:
    """Jobs by key, each of which is run when its result is asked for. Where the model is read layer by layer all are run at the first, in step, so that a
    layer is read once for all of them. What they give is kept for other processes where there is a folder for that, and taken from there."""

    def __init__(self, runner, jobs: dict, stage: str | None = None):
        """`stage`: the name of these jobs among those of the run; without it nothing is kept."""
        self.lockstep, self.jobs, self.done = getattr(runner, "lockstep", None), jobs, {}
        self.parts, self.stage = getattr(runner, "parts", None) if stage is not None else None, stage

    def __getitem__(self, key):
        if key not in self.done:
            self.make([key] if self.lockstep is None else [other for other in self.jobs if other not in self.done])
        value, error = self.done.pop(key)
        if error is not None:
            raise error
        return value

    def make(self, keys: list) -> None:
        """Runs jobs that no process has run before."""
        kept = {key: self.parts.get(self.stage, key) for key in keys} if self.parts is not None else {}
        self.done.update({key: outcome for key, outcome in kept.items() if outcome is not None})
        left = {key: self.jobs[key] for key in keys if kept.get(key) is None}
        for batch in [left] if self.lockstep is not None and left else [{key: job} for key, job in left.items()]:
            found = self.lockstep.run(batch) if self.lockstep is not None else {key: attempt(job) for key, job in batch.items()}
            for key, outcome in found.items():
                self.done[key] = outcome
                if self.parts is not None:
                    self.parts.put(self.stage, key, outcome)

    def make_mine(self) -> None:
        """Runs those of the jobs that the piece of this process has, and that are not there yet."""
        for batch in [list(self.jobs)] if self.lockstep is not None else [[key] for key in self.jobs]:
            if mine := [key for key in batch if self.parts.is_mine(self.stage, key) and not self.parts.has(self.stage, key)]:
                self.make(mine)
                lost = [error for _, error in self.done.values() if error is not None]
                missing = [key for key in mine if not self.parts.has(self.stage, key)]
                self.done.clear()
                if missing:
                    raise lost[0]

    def is_kept(self, keys=None) -> bool:
        """True if nothing of all jobs, or of these, has to be run."""
        return self.parts is not None and all(self.parts.has(self.stage, key) for key in (self.jobs if keys is None else keys))


def attempt(job) -> tuple:
    """What a job gave, or the error that ended it."""
    try:
        return job(), None
    except Exception as error:
        return None, error


def steps_of(runner, cache, counts: list[int], call) -> list:
    """What `call(number, cache)` gives, with the cache last, for forwards of so many tokens, each of which goes on from the cache of the one before."""
    lockstep = getattr(runner, "lockstep", None)
    if lockstep is not None and (found := lockstep.chain(cache, counts, call)) is not None:
        return found
    found = []
    for number in range(len(counts)):
        found.append(call(number, cache))
        cache = found[-1][-1]
    return found
