"""The recording of one prompt: both phases with their taps and states, and the greedy tokens that follow a prompt."""
from __future__ import annotations

from .masks import check_apart, forward_whole, given_of, mask_of, rows_before, states_after
from .prompts import decode_rows, rows_of
from .runner import Runner
from .states import newest_rows, read_states
from .taps import Taps
from .work import Work, steps_of


def put_logits(out: dict, prefix: str, logits, targets: list[int | None], topk: int | None) -> None:
    import torch

    if topk is None:
        out[f"{prefix}/logits"] = logits.contiguous()
        return
    logits = logits.float()
    logprobs = torch.log_softmax(logits, dim=-1)
    values, ids = torch.topk(logprobs, topk, dim=-1)
    out[f"{prefix}/top_ids"] = ids.to(torch.int32).contiguous()
    out[f"{prefix}/top_logprobs"] = values.contiguous()
    out[f"{prefix}/logsumexp"] = torch.logsumexp(logits, dim=-1).contiguous()
    # A head with fewer rows than the embedding has no logit for some tokens.
    picked = [float("nan") if target is None or target >= logits.shape[-1] else float(logprobs[row, target]) for row, target in enumerate(targets)]
    out[f"{prefix}/target_logprobs"] = torch.tensor(picked, dtype=torch.float32)


def put_chosen(out: dict, prefix: str, steps: list[dict], rows: int) -> None:
    """The choices of every router, one row per token."""
    import torch

    for name in steps[0] if steps else ():
        parts = [step[name] for step in steps if name in step]
        if sum(part.shape[0] for part in parts) == rows:
            out[f"{prefix}/chosen/{name}"] = torch.cat(parts).contiguous()


class Recorded:
    """Logits and module outputs of one prompt: `full` of every position, the others at the prompt's rows; and the states after the prefill."""

    def __init__(self, full, prefill_taps: dict):
        self.full, self.prefill_taps, self.states = full, prefill_taps, {}
        self.decoded, self.decode_taps = full[:0], {}


def record_prompt(out, kinds, runner, taps, run, prompt, topk, widths, notes) -> Recorded:
    """Runs both phases of one prompt and puts what they gave into `out`."""
    recording = Recording(out, kinds, runner, taps, run, prompt, topk, widths, notes)
    found = recording.prefill()
    recording.decode(found)
    return found


class Recording:
    """The recording of one prompt in one dtype."""

    def __init__(self, out, kinds, runner, taps, run, prompt, topk, widths, notes):
        self.out, self.kinds, self.runner, self.taps = out, kinds, runner, taps
        self.run, self.prompt, self.topk, self.widths, self.notes = run, prompt, topk, widths, notes
        self.base = f"{run}/{prompt['name']}"
        self.tokens, self.split, self.length = prompt["tokens"], prompt["split"], len(prompt["tokens"])
        self.targets = self.tokens[1:] + [None]
        self.late, self.lengths = decode_rows(prompt), prompt.get("snapshots", [])
        self.tapped, self.stepped = "prefill" in prompt["taps"], "decode" in prompt["taps"]
        # Decode continues the last document, which knows nothing of the others.
        self.packed, self.begin = "documents" in prompt, prompt.get("documents", [0])[-1]

    def prefill(self) -> Recorded:
        """One forward over the whole prompt."""
        rows = rows_of(self.prompt)
        seen, (full, cache) = self.taps.during(lambda: forward_whole(self.runner, self.prompt), keep=self.tapped)
        if self.packed and self.run == "f32":
            check_apart(self.runner, self.prompt, full)
        self.put_rows("prefill", full[rows], rows, [self.taps.chosen], self.length)
        found = Recorded(full, {})
        if not self.tapped:
            return found
        for name, tensor in seen.items():
            if (values := self.taps.rows(name, tensor, self.length)) is not None:
                found.prefill_taps[name] = self.out[f"{self.base}/prefill/tap/{name}"] = values if len(rows) == self.length else values[rows].contiguous()
        for layer, kind, part, tensor in states_after(self.runner, self.prompt, cache, self.widths):
            found.states[layer, part] = tensor
            self.put_state("prefill", layer, kind, part, tensor)
        return found

    def decode(self, found: Recorded) -> None:
        """One forward up to the split, then one token at a time."""
        import torch

        _, cache = self.runner.forward(self.tokens[self.begin : self.split], 0, self.runner.fresh(), **({} if self.packed else mask_of(self.prompt)))
        steps = Steps(self.states_at_split(cache), self.lengths)
        for result in steps_of(self.runner, cache, [1] * (self.length - self.split), self.step):
            steps.add(result, self.length if self.stepped else None)
        if steps.logits:
            found.decoded = torch.cat(steps.logits)
        self.put_rows("decode", found.decoded, self.late, steps.chosen, self.length - self.split)
        for name, values in steps.taps.items():
            if len(values) == len(self.late):
                found.decode_taps[name] = self.out[f"{self.base}/decode/tap/{name}"] = torch.cat(values).contiguous()
        for state in steps.last:
            self.put_decoded_state(steps, *state)

    def states_at_split(self, cache) -> tuple[list, dict, dict]:
        """The states after the forward up to the split, with keys and values as the beginnings of streams, and others as snapshots."""
        if not self.stepped:
            return [], {}, {}
        states, streams, snapshots = read_states(self.runner.model, cache, self.widths), {}, {}
        before = rows_before(self.runner, self.prompt, self.widths) if self.packed else {}
        for layer, kind, part, tensor in states:
            if kind == "attention":
                dropped = tensor.new_zeros((max(0, self.split - self.begin - tensor.shape[0]), *tensor.shape[1:]))
                streams[layer, part] = [*before.get((layer, part), []), dropped, tensor]
            elif self.split in self.lengths:
                snapshots[layer, part] = [tensor]
        return states, streams, snapshots

    def step(self, number: int, cache) -> tuple:
        """What the step `number` gives, with the cache last."""
        at, model = self.split + number, self.runner.model
        wanted = self.stepped and at in self.late
        seen, (row, cache) = self.taps.during(lambda: self.runner.forward(self.tokens[at : at + 1], at - self.begin, cache, **given_of(self.prompt)), keep=wanted)
        newest = newest_rows(cache, getattr(model, "left_out", ())) if self.stepped else {}
        states = read_states(model, cache, self.widths) if self.stepped and (at + 1 in self.lengths or at + 1 == self.length) else []
        if at + 1 < self.length:
            # Keys and values are read at the end.
            states = [state for state in states if state[1] != "attention"]
        tapped = {name: values for name, tensor in seen.items() if (values := self.taps.rows(name, tensor, 1)) is not None} if wanted else {}
        return at, row if at in self.late else None, self.taps.chosen, tapped, newest, states, cache

    def put_rows(self, phase: str, logits, rows: list[int], chosen: list[dict], count: int) -> None:
        put_logits(self.out, f"{self.base}/{phase}", logits, [self.targets[row] for row in rows], self.topk)
        put_chosen(self.out, f"{self.base}/{phase}", chosen, count)

    def put_state(self, phase: str, layer: int, kind: str, part: str, tensor) -> None:
        self.out[f"{self.base}/{phase}/state/{layer}/{part}"] = tensor
        self.kinds.setdefault((layer, kind), []).append(part)

    def put_decoded_state(self, steps: Steps, layer: int, kind: str, part: str, last) -> None:
        """The rows of keys and values that all steps left, or the snapshots of another state. `last`: the state after the last step."""
        import torch

        if kind == "attention":
            tensor = torch.cat(steps.streams[layer, part]).contiguous()
            if tensor.shape[0] != self.length or not torch.equal(tensor[self.length - last.shape[0] :], last):
                self.notes.append(f"{self.base}: the cache of layer {layer} does not add one row of {part} per step; its decode state is left out")
                return
        elif len(steps.snapshots.get((layer, part), [])) == len(self.lengths):
            tensor = torch.stack(steps.snapshots[layer, part]).contiguous()
        else:
            self.notes.append(f"{self.base}: layer {layer} lacks {part} at some lengths; its decode state is left out")
            return
        self.put_state("decode", layer, kind, part, tensor)


class Steps:
    """What the steps of a decode gave, one after another."""

    def __init__(self, begun: tuple[list, dict, dict], lengths: list[int]):
        """`begun`: the states at the split, and the beginnings of streams and snapshots. `lengths`: those at which snapshots are taken."""
        self.last, self.streams, self.snapshots = begun
        self.lengths, self.logits, self.taps, self.chosen = lengths, [], {}, []

    def add(self, result: tuple, length: int | None) -> None:
        """One result of `Recording.step`. `length`: that of the prompt whose last states are wanted."""
        at, row, routed, tapped, newest, states, _ = result
        self.chosen.append(routed)
        if row is not None:
            self.logits.append(row)
        for name, values in tapped.items():
            self.taps.setdefault(name, []).append(values)
        for key, rows in newest.items():
            self.streams.setdefault(key, [rows.new_zeros((at, *rows.shape[1:]))]).append(rows)
        if at + 1 == length:
            self.last = states
        if at + 1 in self.lengths:
            for layer, kind, part, tensor in states:
                if kind != "attention":
                    self.snapshots.setdefault((layer, part), []).append(tensor)


def greedy_count(args, prompts: list[dict], facts: dict) -> tuple[dict, int]:
    """The prompt that greedy tokens follow, and their number."""
    text = [prompt for prompt in prompts if "given" not in prompt]
    if not text or args.encoder:
        # No token behind an image is known to have positions that count on, and an encoder has no tokens.
        return prompts[0], 0
    main = next((prompt for prompt in text if prompt["taps"]), text[0])
    count = min(args.greedy, facts["limit"] - len(main["tokens"]))
    if facts["switch"] and len(main["tokens"]) <= facts["switch"]:
        # Past the switch `generate` would drop the cache and begin again, which no plain loop does.
        count = min(count, facts["switch"] + 1 - len(main["tokens"]))
    return main, count


def greedy_tokens(runner: Runner, taps: Taps, tokens: list[int], count: int, whole: bool) -> tuple[list[int], list[dict]]:
    """The tokens, and what routers chose while each but the first was made. `whole`: by one forward over everything for
    each token, where a cache is not to be believed; what routers chose is then not compared."""
    if whole:
        made = []
        for _ in range(count):
            made.append(int(runner.forward(tokens + made)[0][-1].argmax()))
        return made, []
    rows, cache = runner.forward(tokens, 0, runner.fresh())
    made, chosen = [], []
    for step in range(count):
        made.append(int(rows[-1].argmax()))
        if step + 1 < count:
            _, (rows, cache) = taps.during(lambda step=step, cache=cache: runner.forward(made[-1:], len(tokens) + step, cache), keep=False)
            chosen.append(taps.chosen)
    return made, chosen


def greedy_work(runner, taps, main: dict, count: int, whole: bool) -> Work:
    return Work(runner, {"whole" if whole else "cached": lambda: greedy_tokens(runner, taps, main["tokens"], count, whole)}, "greedy")
