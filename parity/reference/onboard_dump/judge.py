"""The reference on trial: its class is compared with itself, in ways that are equal in exact arithmetic.

Every check runs in f64, where rounding is far smaller than in f32. A difference there that is larger than the rounding error that f32 has in the same model is a fault of the
class, not of its arithmetic.
"""
from __future__ import annotations

import contextlib

from . import loading
from .audit import STEPWISE_LIMIT, chunk_sizes
from .chosen import Chosen
from .distances import AUDIT_FACTOR, exact_gap
from .failures import Fail, say
from .generated import STEPS, generate, sequences_of
from .masks import fed_in_chunks
from .members import shaken, with_sdpa
from .patches import attention_in_f32, contiguous_inputs, round_rows_alone
from .prompts import PROMPT_CAP
from .runner import Runner
from .verdicts import DIFFERS, HOLDS, IMPOSSIBLE, Noise, Verdict, attempt, reason
from .watch import Watch, first_apart, watched
from .wide import wide

# Perturbations of weights that measure what one unit in their last place does.
SHAKES = 3
SEVERAL_UNITS = f"{AUDIT_FACTOR} units in the last place of the weights do"
# Steps at the end of a prompt that is too long to be fed token by token.
LAST_STEPS = 8


def judge_reference(inputs, results) -> None:
    """Loads the model in f32, judges it, and prints a line for each verdict."""
    say(f"{inputs.folder.name}: judging the reference")
    model, remarks = loading.load_model(inputs.folder, "f32", inputs.args.trust_remote_code, results.patched)
    round_rows_alone(model, results.patched)
    contiguous_inputs(model, results.patched)
    attention_in_f32(results.patched)
    chosen = results.chosen or Chosen(inputs, Runner(model), results.notes)
    results.verdicts = Judge(model, chosen.prompts, inputs.facts, remarks).verdicts()
    for verdict in results.verdicts:
        print(f"{inputs.folder.name}: {verdict.line()}", flush=True)


@contextlib.contextmanager
def with_experts(model, name: str):
    """Computes experts by another implementation of transformers while this lasts."""
    model.set_experts_implementation(name)
    try:
        yield
    finally:
        model.set_experts_implementation("eager")


class Judge:
    """All checks of one model."""

    def __init__(self, model, prompts: list[dict], facts: dict, remarks: list[str]):
        """`remarks`: those of loading."""
        self.model, self.facts, self.remarks, self.runner = model, facts, remarks, Runner(model)
        # A prefix and documents have masks of their own, which `audit` covers.
        self.prompts = [prompt for prompt in prompts if 2 < len(prompt["tokens"]) <= PROMPT_CAP and not {"prefix", "documents"} & prompt.keys()]
        self.truth, self.noise, self.several_units, self.alone = {}, None, None, {}

    def verdicts(self) -> list[Verdict]:
        if not self.prompts:
            return [Verdict("f64", IMPOSSIBLE, note=f"no prompt has from 3 to {PROMPT_CAP} tokens without a mask of its own")]
        error, found = self.measure()
        checks = {"cache": self.cache, "steps": self.steps, "chunks": self.chunks, "batch": self.batch, "padding": self.padding, "sdpa": self.sdpa,
                  "padding under sdpa": self.padding_under_sdpa, "idle": self.idle}
        with wide(self.model) if error is None else contextlib.nullcontext():
            self.truth = self.logits()
            verdicts = [found, self.unread(), *(attempt(check, job) for check, job in checks.items())]
        # torch multiplies groups of matrices in f32 and 16 bits only.
        self.noise = Noise(self.several_units, SEVERAL_UNITS)
        return [*verdicts, attempt("experts", self.experts)]

    # ---------------------------------------------------------------- noise

    def full(self, prompt: dict):
        return self.runner.forward(prompt["tokens"], 0, self.runner.fresh())[0]

    def logits(self) -> dict:
        return {prompt["name"]: self.full(prompt) for prompt in self.prompts}

    def shaken_gap(self, truth: dict, context) -> float:
        """The largest change that a unit in the last place of all weights makes."""
        gaps = []
        for seed in range(SHAKES):
            with shaken(self.model, seed), context():
                gaps += [exact_gap(logits, truth[name]) for name, logits in self.logits().items()]
        return max(gaps)

    def measure(self) -> tuple[str | None, Verdict]:
        """Measures the rounding of f32. Returns why f64 is not possible, and the verdict on f32."""
        plain = self.logits()
        try:
            with wide(self.model):
                exact = self.logits()
            if not all(bool(logits.isfinite().all()) for logits in exact.values()):
                raise Fail("its logits are not finite")
        except Exception as error:  # noqa: BLE001
            self.several_units = AUDIT_FACTOR * self.shaken_gap(plain, contextlib.nullcontext)
            self.noise = Noise(self.several_units, SEVERAL_UNITS)
            return reason(error), Verdict("f64", IMPOSSIBLE, note=reason(error))
        gap = max(exact_gap(logits, exact[name]) for name, logits in plain.items())
        self.noise = Noise(gap, "f32 rounds by")
        unit = self.shaken_gap(exact, lambda: wide(self.model))
        self.several_units = AUDIT_FACTOR * unit
        sizes = f"f32 errs by {gap:.1e} of the largest logit"
        explained = f"{gap / unit:.1f} times what one unit in the last place of the weights does"
        if gap <= self.several_units:
            return None, Verdict("f64", HOLDS, note=f"{sizes}, {explained}")
        return None, Verdict("f64", DIFFERS, by=f"{gap:.1e} of the largest logit", at=self.first_coarse(), note=explained)

    def first_coarse(self) -> str:
        """The first module whose f32 error is more than a unit in the last place of all weights explains."""
        rows = []
        for context in (contextlib.nullcontext(), wide(self.model), self.shaken_wide()):
            with context, watched(self.model, Watch()) as watch:
                self.full(self.prompts[0])
            rows.append(watch.joined())
        plain, exact, moved = rows
        for name, values in exact.items():
            if name in plain and name in moved and plain[name].shape == values.shape == moved[name].shape:
                error, unit = exact_gap(plain[name], values), exact_gap(moved[name], values)
                if unit > 0 and error > AUDIT_FACTOR * unit:
                    return f"`{name}`, prompt {self.prompts[0]['name']}"
        return "the logits, as no module errs by more"

    @contextlib.contextmanager
    def shaken_wide(self):
        with shaken(self.model, 0), wide(self.model):
            yield

    # ---------------------------------------------------------------- one sequence

    def compare(self, check: str, runs: dict, whole=None) -> Verdict:
        """The worst prompt of those that `runs` has a job for. `whole`: what else the job is compared with, in place of the prefill."""
        if not runs:
            raise Fail("no prompt can be run in this way")
        gaps = {name: exact_gap(job(), self.truth[name]) for name, job in runs.items()}
        worst = max(gaps, key=lambda name: (gaps[name] > self.noise.limit, gaps[name]))
        return self.noise.judge(check, gaps[worst], lambda: f"{self.place(runs[worst], whole or self.whole(worst))}, prompt {worst}")

    def whole(self, name: str):
        return lambda: self.full(next(prompt for prompt in self.prompts if prompt["name"] == name))

    def place(self, one, two) -> str:
        """The first module whose rows differ between two computations of a sequence."""
        rows = []
        for job in (two, one):
            with watched(self.model, Watch()) as watch:
                job()
            rows.append(watch.joined())
        return first_apart(*rows, self.noise.limit)

    def cache(self) -> Verdict:
        """A pass without a cache; then `generate` without one."""
        if self.runner.cache_key is None:
            raise Fail("the class has no cache")
        verdict = self.compare("cache", {prompt["name"]: lambda prompt=prompt: self.runner.forward(prompt["tokens"], 0, None)[0] for prompt in self.prompts})
        if verdict.outcome == DIFFERS:
            return verdict
        _, sequences = self.sequences()
        gap = exact_gap(generate(self.model, sequences[:1], use_cache=False), self.generated_alone(sequences[0]))
        return self.noise.judge("cache", gap, lambda: "`generate` with use_cache=False") if gap > self.noise.limit else verdict

    def fed(self, sizes) -> dict:
        """Jobs that feed each prompt in chunks. `sizes`: the sizes of a prompt's chunks, None to leave it out."""
        if self.runner.cache_key is None:
            raise Fail("the class has no cache")
        return {prompt["name"]: lambda prompt=prompt, found=found: fed_in_chunks(self.runner, None, prompt["tokens"], found)[0]
                for prompt in self.prompts if (found := sizes(prompt)) is not None}

    def crosses(self, prompt: dict) -> bool:
        """Rotary tables switch within the prompt's steps, which no class computes as one forward does."""
        switch = self.facts["switch"]
        return bool(switch) and prompt["split"] <= switch < len(prompt["tokens"])

    def steps(self) -> Verdict:
        def sizes(prompt):
            length, switch = len(prompt["tokens"]), self.facts["switch"]
            if self.crosses(prompt):
                return None
            first = length - LAST_STEPS if length > STEPWISE_LIMIT else prompt["split"] if switch and length > switch else 1
            return [first] + [1] * length

        return self.compare("steps", self.fed(sizes))

    def chunks(self) -> Verdict:
        def sizes(prompt):
            length = len(prompt["tokens"])
            if self.crosses(prompt):
                return None
            return [length // 2, length // 3] + [1] * 2 if length > STEPWISE_LIMIT else chunk_sizes(prompt, self.facts["switch"])

        return self.compare("chunks", self.fed(sizes))

    # ---------------------------------------------------------------- several sequences

    def sequences(self) -> tuple:
        return sequences_of(self.prompts, min(self.facts["limit"], self.facts["switch"] or self.facts["limit"]))

    def generated_alone(self, sequence: list[int]):
        key = tuple(sequence)
        if key not in self.alone:
            self.alone[key] = generate(self.model, [sequence])
        return self.alone[key]

    def compare_batch(self, check: str, sequences: list[list[int]], context=contextlib.nullcontext) -> Verdict:
        """A batch against its sequences alone. Rows that differ are compared module by module."""
        alone = [self.generated_alone(sequence)[0] for sequence in sequences]
        with context():
            together = generate(self.model, sequences)
        gaps = [exact_gap(one, other) for one, other in zip(together, alone)]
        worst = max(range(len(gaps)), key=lambda row: gaps[row])

        def place() -> str:
            real, width = len(sequences[worst]) - STEPS, max(map(len, sequences)) - STEPS
            own, batched = Watch(), Watch(worst, len(sequences), real)
            generate(self.model, [sequences[worst]], watch=own)
            with context():
                generate(self.model, sequences, watch=batched)
            return f"{first_apart(own.joined(), batched.joined(), self.noise.limit)}, row {worst} with {width - real} of {width} tokens as padding"

        return self.noise.judge(check, gaps[worst], place)

    def batch(self) -> Verdict:
        return self.compare_batch("batch", self.sequences()[0])

    def padding(self) -> Verdict:
        return self.compare_batch("padding", self.sequences()[1])

    def padding_under_sdpa(self) -> Verdict:
        return self.compare_batch("padding under sdpa", self.sequences()[1], lambda: with_sdpa(self.model))

    # ---------------------------------------------------------------- other implementations

    def compare_under(self, check: str, context) -> Verdict:
        def under(prompt):
            with context():
                return self.full(prompt)

        return self.compare(check, {prompt["name"]: lambda prompt=prompt: under(prompt) for prompt in self.prompts})

    def sdpa(self) -> Verdict:
        return self.compare_under("sdpa", lambda: with_sdpa(self.model))

    def experts(self) -> Verdict:
        """The implementation that transformers takes by default, against the eager one of dumps."""
        # transformers gives this function to classes of experts that have several implementations.
        if not any(hasattr(type(module), "_apply_gate") for module in self.model.modules()):
            raise Fail("the model has no experts with several implementations")
        return self.compare_under("experts", lambda: with_experts(self.model, "grouped_mm"))

    # ---------------------------------------------------------------- weights

    def idle(self) -> Verdict:
        from .idle import idle_verdict

        return idle_verdict(self.model, self.logits_with_gradients, self.noise.limit)

    def logits_with_gradients(self):
        """The logits of all prompts, one after another."""
        import torch

        found = []
        for prompt in self.prompts:
            ids = torch.tensor([prompt["tokens"]])
            positions = {"position_ids": torch.arange(ids.shape[1])[None]} if self.runner.takes_positions else {}
            plain = {"use_cache": False} if self.runner.cache_key is not None else {}
            found.append(self.model(input_ids=ids, **positions, **plain).logits[0])
        return torch.cat(found)

    def unread(self) -> Verdict:
        """Tensors of the checkpoint that the class does not read."""
        unread = next((remark for remark in self.remarks if "this class does not read" in remark), None)
        if unread is None:
            return Verdict("unread", HOLDS)
        count, names = unread.partition(" has ")[2].partition(" tensors")[0], unread.partition(": ")[2]
        return Verdict("unread", DIFFERS, by=f"{count} tensors of the checkpoint that the class does not read", at=names)
