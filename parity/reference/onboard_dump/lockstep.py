"""Forwards that go through the layers of a model in step, so that a layer is read once for all of them."""
from __future__ import annotations

import threading
import time

import torch

from .cache_steps import Early, Step, handed_on, separable, shortened
from .checkpoint import PACE
from .layers import decoder_layers, owners
from .store import Store


class Stopped(BaseException):
    """Ends a thread whose work is no longer wanted."""


class Lockstep:
    """Runs jobs that call one model, each in a thread of its own, of which one runs at a time. A job that reaches a module with weights of its own, a layer,
    waits until all the others have come there too: a layer is read once for all jobs, and not once for each."""

    def __init__(self, model, store: Store, label: str):
        self.store, self.label = store, label
        self.turn, self.ranks, self.waiting = threading.Condition(), {}, {}
        self.running = self.current = None
        self.stopped, self.told, self.passes, self.said = False, False, 0, time.monotonic()
        # Times that a layer became the one that runs.
        self.loads = 0
        self.layers = decoder_layers(model)
        self.steps: dict[int, Step] = {}
        # Layers that read the keys of others have no part of a cache of their own.
        self.shares = bool(getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", None))
        # Of sequences in step each would go on from what another left in a module.
        # Classes that keep states in their modules and not in a cache.
        self.alone = any(isinstance(value, torch.Tensor) for layer in self.layers for module in layer.modules() for value in vars(module).values())
        self.units = list(self.layers) + [module for module in owners(model, self.layers)]
        for number, unit in enumerate(self.units):
            unit.register_forward_pre_hook(lambda _module, _args, number=number: self.reach(number))

    def reach(self, unit: int) -> None:
        """Called by a job before a module runs."""
        self.ranks.setdefault(unit, len(self.ranks))
        me = threading.get_ident()
        if me not in self.waiting:
            self.store.layer += 1
            self.loads += unit < len(self.layers)
            return
        with self.turn:
            if unit != self.current:
                self.waiting[me] = unit
                self.pass_on()
                self.wait_for_turn(me)
                if self.stopped:
                    raise Stopped
                self.waiting[me] = None
        self.enter(self.steps.get(me), unit)

    def enter(self, step: Step | None, unit: int) -> None:
        """Gives a step its part of the cache as the step before left it."""
        if step is None or step.before is None or unit >= len(self.layers):
            return
        if unit in step.entered:
            raise Early("a layer runs more than once in a step")
        before = step.before
        at = None if before.ended else self.waiting.get(before.thread)
        if not before.ended and (at is None or self.ranks[at] <= self.ranks[unit]) or before.before is not None and unit not in before.entered:
            raise Early("a step reaches a layer that the step before it has not left")
        step.cache.layers[unit] = handed_on(before.cache.layers[unit])
        step.entered.add(unit)
        if before.before is not None:
            before.cache.layers[unit] = shortened(before.cache.layers[unit])

    def chain(self, cache, counts: list[int], call) -> list | None:
        """What `call(number, cache)` gives for steps of so many tokens, each of which goes on from the one before: a step enters a layer once the one before
        has left it, so that a layer is read once for all steps. None where they have to run one after another."""
        me = threading.get_ident()
        if me not in self.waiting or self.alone or self.shares or len(counts) < 2 or not separable(cache, self.layers):
            return None
        chain = Chain(call, len(counts), me)
        threads = self.start_steps(chain, cache, counts)
        with self.turn:
            self.pass_on()
            self.wait_for_turn(me)
            if self.stopped:
                raise Stopped
            self.waiting[me] = None
        for thread in threads:
            thread.join()
        errors = [error for _, (_, error) in sorted(chain.results.items()) if error is not None]
        if early := [error for error in errors if isinstance(error, Early)]:
            self.tell(f"steps run one after another: {early[0]}")
            return None
        if errors:
            raise errors[0]
        return [chain.results[number][0] for number in range(len(counts))]

    def start_steps(self, chain: Chain, cache, counts: list[int]) -> list[threading.Thread]:
        """A waiting thread for each step. The first goes on from the cache, and each other from the step before it."""
        before, added, threads = Step(cache, None, 0), 0, []
        before.ended = True
        for number, size in enumerate(counts):
            step = Step(cache, before, added)
            thread = threading.Thread(target=self.run_step, args=(chain, number, step), daemon=True)
            with self.turn:
                thread.start()
                threads.append(thread)
                self.turn.wait_for(lambda step=step: step.thread is not None)
            before, added = step, added + size
        return threads

    def run_step(self, chain: Chain, number: int, step: Step) -> None:
        """The work of a step's thread."""
        me = threading.get_ident()
        with self.turn:
            step.thread, self.waiting[me], self.steps[me] = me, -1, step
            self.turn.notify_all()
            self.wait_for_turn(me)
            self.waiting[me] = None
        try:
            if not self.stopped and (number == 0 or chain.results.get(number - 1, (None, None))[1] is None):
                torch.set_num_threads(chain.torch_threads)
                chain.results[number] = (chain.call(number, step.cache), None)
                if lost := [unit for unit in range(len(self.layers)) if unit not in step.entered]:
                    raise Early(f"layer {lost[0]} did not run in a step")
        except Stopped:
            pass
        except Exception as error:
            chain.results[number] = (None, error)
        finally:
            with self.turn:
                step.ended = True
                del self.waiting[me], self.steps[me]
                chain.left -= 1
                if not chain.left:
                    self.waiting[chain.job] = -1
                self.pass_on()

    def wait_for_turn(self, me: int) -> None:
        """Waits until a thread may run, or all are stopped. The condition is held."""
        self.turn.wait_for(lambda: self.running == me or self.stopped)

    def tell(self, text: str) -> None:
        """Says once why sequences or steps do not go in step."""
        if not self.told:
            self.told = True
            self.store.say(f"note: {self.label}: {text}")

    def pass_on(self) -> None:
        """Lets the next job run: one that needs what is loaded, else one that is least far."""
        ready = [(job, unit) for job, unit in self.waiting.items() if unit is not None]
        if not ready:
            self.running = None
        else:
            same = [job for job, unit in ready if unit == self.current]
            if same:
                self.running = same[0]
            else:
                self.running, unit = min(ready, key=lambda item: self.ranks[item[1]])
                if self.current is None or self.ranks[unit] < self.ranks[self.current]:
                    self.passes += 1
                self.current = unit
                self.store.layer += 1
                self.loads += 0 <= unit < len(self.layers)
                self.progress()
        self.turn.notify_all()

    def progress(self) -> None:
        if time.monotonic() - self.said < PACE or self.current < 0:
            return
        self.said = time.monotonic()
        layer = f"layer {self.current} of {len(self.layers)}" if self.current < len(self.layers) else "embedding and head"
        self.store.say(f"{self.label}: pass {self.passes}, {layer}, {sum(unit is not None for unit in self.waiting.values())} sequences in step, "
                       f"{self.store.read_bytes / 1e9:.1f} GB read")

    def run(self, jobs: dict) -> dict:
        """What each job gave, or the error that ended it: `(value, None)` or `(None, error)`."""
        done, threads = {}, []
        if self.alone and len(jobs) > 1:
            self.tell("the class keeps states in its modules, so sequences are run one after another, and layers are read for each")
            return {name: outcome for key, job in jobs.items() for name, outcome in self.run({key: job}).items()}
        count = torch.get_num_threads()
        self.ranks[-1], self.current, self.stopped = -1, None, False
        try:
            for key, job in jobs.items():
                thread = threading.Thread(target=self.run_job, args=(done, key, job, count), daemon=True)
                with self.turn:
                    thread.start()
                    threads.append(thread)
                    self.turn.wait_for(lambda thread=thread: thread.ident in self.waiting)
            with self.turn:
                self.pass_on()
            for thread in threads:
                thread.join()
        except BaseException:
            with self.turn:
                self.stopped = True
                self.turn.notify_all()
            raise
        return done

    def run_job(self, done: dict, key, job, torch_threads: int) -> None:
        """The work of a job's thread."""
        me = threading.get_ident()
        with self.turn:
            self.waiting[me] = -1
            self.turn.notify_all()
            self.wait_for_turn(me)
            self.waiting[me] = None
        try:
            if not self.stopped:
                torch.set_num_threads(torch_threads)
                done[key] = (job(), None)
        except Stopped:
            pass
        except Exception as error:
            done[key] = (None, error)
        finally:
            with self.turn:
                del self.waiting[me]
                self.pass_on()


class Chain:
    """The steps of one job."""

    def __init__(self, call, count: int, job: int):
        """`job`: the thread that waits for them."""
        self.call, self.left, self.job, self.results = call, count, job, {}
        self.torch_threads = torch.get_num_threads()
