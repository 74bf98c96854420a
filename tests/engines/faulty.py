"""The plain engine with a fault that keeps the protocol and breaks its meaning: `--engine-option fault=NAME`."""

from onboard_engine import Engine
from plain import Plain


class Faulty(Plain):
    options = {**Plain.options, "fault": ""}

    def has(self, fault):
        return self.options["fault"] == fault

    def feed(self, slot, at, tokens, taps):
        if self.has("release") and not at and slot in self.slots:
            cache = self.slots[slot]
            return [self.row(token, at + n, cache) for n, token in enumerate(tokens)], {}
        if self.has("position") and at:
            at += 1
        rows, seen = super().feed(slot, at, tokens, taps)
        return rows[::-1] if self.has("order") else [[0.0] * len(row) for row in rows] if self.has("flat") else rows, seen

    def step(self, chunks, taps):
        if self.has("batch") and len(chunks) > 1:
            width = max(len(chunk.tokens) for chunk in chunks)
            for chunk in chunks[1:]:
                super().step([type(chunk)(chunk.slot, chunk.at, [0] * (width - len(chunk.tokens)), "none")], taps)
                chunk.at += width - len(chunk.tokens)
        return super().step(chunks, taps)

    def score(self, tokens):
        if not self.has("stale"):
            return super().score(tokens)
        self.kept = getattr(self, "kept", {})
        return [self.row(token, at, self.kept) for at, token in enumerate(tokens)]

    def generate(self, tokens, count):
        chosen = super().generate(tokens, count)
        return [(token + 1) % self.c["vocab_size"] for token in chosen] if self.has("sampling") else chosen

    def fork(self, slot, to):
        if self.has("fork"):
            self.slots[to] = self.slots[slot]
        else:
            super().fork(slot, to)

    def truncate(self, slot, length):
        if not self.has("truncate"):
            super().truncate(slot, length)

    def release(self, slot):
        if not self.has("release"):
            super().release(slot)

    def _room(self, wanted):
        if not self.has("room"):
            super()._room(wanted)

    def _answer(self, verb, ask):
        return ({}, []) if self.has("unknown") and verb == "no_such_verb" else super()._answer(verb, ask)


if __name__ == "__main__":
    Faulty().serve()
