"""One dtype of a dump: the model is loaded, and runs all prompts in every way that is recorded or compared."""
from __future__ import annotations

import functools
import types

from . import loading, nextn
from .audit import audit_jobs, audit_run
from .checkpoint import entries_of
from .chosen import Chosen
from .encoder import EncoderChosen, EncoderRunner, EncoderTaps
from .ensemble import Ensemble
from .failures import Fail, at, first_line, say
from .images import Images, draw_encoder
from .members import barred_member, forward_members, has_members, make_member, member_work
from .patches import attention_in_f32, contiguous_inputs, equal_dtypes, round_rows_alone, use_gelu_table
from .prompts import snapshots_of
from .record import Recorded, greedy_count, greedy_work, put_chosen, record_prompt
from .rounding import caches, rounds
from .runner import Runner
from .states import conv_widths
from .taps import Taps
from .work import Work


def make_run(inputs, results, name: str) -> None:
    """Adds one dtype to the results, or the parts that the piece of this process has of it. One that fails is left out, unless it is the first."""
    run = Run(inputs, results, name)
    try:
        run.measure()
    except Exception as error:
        run.refuse_or_note(error)
        return
    finally:
        run.close()
    if not inputs.is_piece:
        run.add_to_results()


class Run:
    """One dtype of a dump."""

    def __init__(self, inputs, results, name: str):
        self.inputs, self.results, self.name = inputs, results, name
        self.label, self.switch = f"{inputs.folder.name}: {name}", inputs.facts["switch"]
        say(f"{inputs.folder.name}: loading in {name}")
        # The weights of a model that is read layer by layer.
        self.store = None
        self.model, remarks = self.load()
        self.runner = self.make_runner()
        if results.architecture is None:
            self.describe(remarks)
        if results.chosen is None:
            results.chosen = Chosen(inputs, self.runner, results.notes)
        # Hooks that put rows in the place of embeddings come before those that record them.
        self.runner.images = Images(self.model, results.chosen.images, results.chosen.prompts)
        self.taps = (EncoderTaps if inputs.args.encoder else Taps)(self.runner, None if results.chosen.topk is None else results.chosen.vocab)
        if inputs.parts is not None:
            self.runner.parts.taps = self.taps
        # Tensors are gathered apart per run, so that a run that fails half-way leaves nothing behind.
        self.tensors, self.kinds = self.runner.images.tensors(name), {}
        self.widths = self.head = self.checked = self.members = None

    @property
    def prompts(self) -> list[dict]:
        return self.results.chosen.prompts

    # ---------------------------------------------------------------- the model

    def load(self) -> tuple:
        """The model, and remarks on it."""
        args, folder, patched = self.inputs.args, self.inputs.folder, self.results.patched
        try:
            if args.layerwise:
                model, remarks = self.load_without_weights()
            else:
                model, remarks = loading.load_model(folder, self.name, args.trust_remote_code, patched)
            round_rows_alone(model, patched)
            contiguous_inputs(model, patched)
            attention_in_f32(patched)
            equal_dtypes(model, patched)
            if args.random_encoder:
                remarks = [*remarks, *draw_encoder(model)]
            if args.gelu_table:
                remarks = [*remarks, use_gelu_table(model)]
                patched.add("gelu_table")
        except Fail:
            raise
        except Exception as error:
            raise Fail(f"{folder}: transformers cannot load it: {first_line(error)}{at(error)}") from None
        return model, remarks

    def load_without_weights(self) -> tuple:
        """The same of a model that reads its weights when it multiplies by them."""
        from .layers import leave_out
        from .store import Store

        inputs, chosen = self.inputs, self.inputs.choice and self.inputs.choice["chosen"]
        self.store = Store(entries_of(inputs.files, inputs.wanted), int(inputs.args.resident * 1e9), say)
        with self.store.loading([str(path) for path in inputs.files], chosen):
            model, remarks = loading.load_model(inputs.folder, self.name, inputs.args.trust_remote_code, self.results.patched)
        if chosen is not None:
            leave_out(model, chosen)
        self.store.plant(model)
        model.weight_store = self.store
        return model, remarks

    def make_runner(self) -> Runner | EncoderRunner:
        if self.inputs.args.encoder:
            self.results.chosen = self.results.chosen or EncoderChosen(self.inputs.args)
            return EncoderRunner(self.model, self.results.chosen)
        parts = self.inputs.parts
        try:
            runner = Runner(self.model, None if parts is None else parts.of_run(self.name, self.results.patched, at, {"recorded": Recorded}))
        except Exception as error:
            raise Fail(f"{self.inputs.folder}: the class {type(self.model).__name__} cannot be run with `input_ids` and a cache: {first_line(error)}{at(error)}") from None
        if self.store is not None:
            from .lockstep import Lockstep

            runner.lockstep = Lockstep(self.model, self.store, self.label)
        return runner

    def describe(self, remarks: list[str]) -> None:
        """The facts of the model for the manifest."""
        results, args = self.results, self.inputs.args
        results.notes += remarks
        results.architecture = type(self.model).__name__
        if self.runner.cache_key is None and (args.imports or args.trust_remote_code):
            results.notes.append(f"the forward of {results.architecture} takes no cache: every step runs the whole sequence again, and neither states nor ops of decode are recorded")
            say(f"note: {results.notes[-1]}")
        results.rounded_rows, results.rounded_caches = rounds(self.model), caches(self.model)

    # ---------------------------------------------------------------- what it runs

    def measure(self) -> None:
        """Runs all prompts, or the parts of them that the piece of this process has."""
        if any("prefix" in prompt and "given" not in prompt for prompt in self.prompts):
            # Here, since modules that run twice in one forward are not tapped.
            self.runner.prefix_type()
        self.taps.probe(self.runner, (max((prompt["tokens"] for prompt in self.prompts), key=len) * 5)[: min(5, self.inputs.facts["limit"])])
        self.results.chosen.settle(self.inputs, self.runner, self.taps, not self.results.runs)
        self.widths = conv_widths(self.model, len(getattr(self.runner.fresh(), "layers", [])))
        work = Work(self.runner, self.jobs(), "prompt")
        # A head's jobs are not those of the model's layers, which run in step.
        self.head = Work(types.SimpleNamespace(parts=self.runner.parts), {"all": self.run_head}, "head")
        if self.inputs.is_piece:
            self.make_piece(work)
        else:
            self.gather(work)

    def jobs(self) -> dict:
        """The recordings and audits of all prompts, by name and kind."""
        jobs = {}
        for prompt in self.prompts:
            if "decode" in prompt["taps"]:
                prompt["snapshots"] = snapshots_of(prompt)
            jobs[prompt["name"], "record"] = functools.partial(self.record, prompt)
        return jobs | audit_jobs(self.runner, self.taps, self.prompts, self.switch, self.name)

    def record(self, prompt: dict) -> tuple:
        say(f"{self.label}: prompt {prompt['name']} of {len(prompt['tokens'])} tokens")
        tensors, kinds, remarks = {}, {}, []
        found = record_prompt(tensors, kinds, self.runner, self.taps, self.name, prompt, self.results.chosen.topk, self.widths, remarks)
        return found, tensors, kinds, remarks

    def run_head(self) -> tuple:
        tensors, remarks = {}, []
        found = nextn.record(self.results.head_measure, self.model, self.inputs.files, self.name, self.prompts, self.switch, self.results.chosen.topk, tensors, remarks)
        return found, tensors, remarks

    def greedy_prompt(self) -> tuple[dict, int]:
        return greedy_count(self.inputs.args, self.prompts, self.inputs.facts)

    def make_piece(self, work: Work) -> None:
        """Makes the parts that the piece of this process has of this dtype."""
        main, count = self.greedy_prompt()
        work.make_mine()
        for member, context in forward_members(self.name, self.model):
            make_member(member_work(self.runner, self.taps, [prompt for prompt in self.prompts if has_members(prompt)], self.widths, member), context)
        if count > 0:
            greedy_work(self.runner, self.taps, main, count, False).make_mine()
        if self.inputs.has_head and self.inputs.parts.head_is_mine():
            self.head.make(["all"])
            self.head.done.clear()

    def gather(self, work: Work) -> None:
        """Takes what the jobs give, and compares it: the audit, the members of the ensemble, greedy tokens."""
        results = self.results
        recorded = {prompt["name"]: self.take_recorded(prompt, work) for prompt in self.prompts}
        self.checked, chunked, why = audit_run(self.prompts, list(recorded.values()), work, self.switch, self.name, results.notes)
        plainly = results.audit.get("f32", self.checked)
        if self.name == "f32" and not self.inputs.args.no_members:
            results.ensemble = Ensemble(self.prompts, list(recorded.values()), self.widths)
        if (ensemble := results.ensemble) is not None and ensemble.prompts:
            self.members = ensemble.run(self.runner, self.taps, self.name, recorded, chunked,
                                        lambda member: barred_member(member, self.runner, plainly, why, ensemble.tolerance()))
            results.tolerance = ensemble.tolerance()
        self.follow_greedily(whole=plainly["decode_vs_prefill"] > results.tolerance and self.inputs.args.dtypes[0] == "f32")

    def take_recorded(self, prompt: dict, work: Work) -> Recorded:
        """What one prompt gave."""
        found, tensors, kinds, remarks = work[prompt["name"], "record"]
        self.tensors.update(tensors)
        self.results.notes += remarks
        for key, parts in kinds.items():
            self.kinds.setdefault(key, []).extend(parts)
        if not bool(found.full.isfinite().all() and found.decoded.isfinite().all()):
            raise Fail(f"the logits of prompt {prompt['name']} are not finite: a weight is NaN or infinite, or {self.name} overflows")
        return found

    def follow_greedily(self, whole: bool) -> None:
        """`whole`: the cache is not believed (`greedy_tokens`)."""
        main, count = self.greedy_prompt()
        if count > 0:
            made, chosen = greedy_work(self.runner, self.taps, main, count, whole)["whole" if whole else "cached"]
            self.results.greedy[self.name] = {main["name"]: made}
            put_chosen(self.tensors, f"{self.name}/{main['name']}/greedy", chosen, count - 1)

    # ---------------------------------------------------------------- the end

    def refuse_or_note(self, error: Exception) -> None:
        """Ends the dump with the failure of its first run, or of a part that another attempt may make; else the run is left out."""
        why = str(error) if isinstance(error, Fail) else first_line(error) + at(error)
        if self.name == self.inputs.args.dtypes[0] or self.inputs.is_piece and not self.runner.parts.put_failure(error):
            raise Fail(f"{self.inputs.folder}: the {self.name} run failed: {why}") from error
        say(f"warning: the {self.name} run failed and is left out: {why}")
        self.results.notes.append(f"the {self.name} run failed and is left out: {why}")

    def close(self) -> None:
        self.taps.close()
        self.runner.images.close()
        if self.store is not None and len(self.runner.lockstep.layers):
            lockstep = self.runner.lockstep
            say(f"{self.label}: each layer was loaded {lockstep.loads / len(lockstep.layers):.0f} times, {self.store.read_bytes / 1e9:.1f} GB read")
            # The model is in cycles and may live on beside that of the next run.
            self.store.drop()

    def add_to_results(self) -> None:
        """Adds what this run gave, and its head."""
        inputs, results, name = self.inputs, self.results, self.name
        if self.members is not None:
            results.members[name], results.spread[name] = self.members
        if inputs.has_head:
            found, tensors, remarks = self.head["all"]
            if found is not None:
                results.heads[name] = found | dict(notes=remarks)
                results.head_tensors.update(tensors)
                results.notes[:] = [note for note in results.notes if "this class does not read" not in note]
        results.tensors.update(self.tensors | (self.runner.tensors(name) if inputs.args.encoder else {}))
        results.runs.append(name)
        results.audit[name] = self.checked
        results.kinds.update(self.kinds)
        results.shared.update(self.taps.shared)
        if self.store is not None:
            self.store.drop()
