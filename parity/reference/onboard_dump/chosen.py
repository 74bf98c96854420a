"""The prompts of a dump, which are chosen with the first model that is loaded."""
from __future__ import annotations

from .classes import embedding_rows
from .experts import reach_experts
from .failures import Fail
from .given_prompts import given_prompts
from .prompts import PHASES, derive_prompts, masked_prompts


class Chosen:
    """The prompts of all runs, and the vocabulary that is stored of their rows."""

    def __init__(self, inputs, runner, notes: list[str]):
        facts, rows = inputs.facts, embedding_rows(runner.model, inputs.facts["vocab"], notes)
        # Tokens that the model and its config know.
        self.known = min(facts["vocab"] or rows, rows)
        prompts = given_prompts(inputs.args, self.known, facts["limit"])
        # What the class takes beside tokens, and changes of its config, by prompt.
        self.images = {prompt["name"]: prompt.pop("inputs") for prompt in prompts or () if "inputs" in prompt}
        refuse_images(inputs.args, self.images)
        self.derived = prompts is None
        self.prompts = derived(inputs, self.known, notes) if prompts is None else prompts
        for prompt in self.prompts:
            # A class without a cache has no states, and a step of it is a forward over everything.
            lost = PHASES if inputs.args.no_taps else () if runner.cache_key else ("decode",)
            prompt["taps"] = [phase for phase in prompt["taps"] if phase not in lost]
        earlier = inputs.parts.get(("", "prompts")) if inputs.parts is not None else None
        # True once no model changes the prompts.
        self.settled = earlier is not None
        if earlier is not None:
            self.prompts, self.vocab = earlier["value"]
        else:
            self.vocab = runner.forward(self.prompts[0]["tokens"][:1])[0].shape[-1]
        self.topk = None if self.vocab <= inputs.args.full_vocab_limit else min(inputs.args.topk, self.vocab)

    def settle(self, inputs, runner, taps, first: bool) -> None:
        """Has derived prompts reach the experts of the first run that is made, and keeps the choice for other processes."""
        if self.settled:
            return
        if self.derived and first:
            reach_experts(runner, taps, self.prompts, inputs.facts, inputs.seed, self.known)
        if inputs.parts is not None:
            inputs.parts.put(("", "prompts"), {"value": (self.prompts, self.vocab)})
            self.settled = True


def refuse_images(args, images: dict) -> None:
    """Refuses options that run a model in pieces, for prompts whose rows come from an encoder."""
    if images and (args.layerwise or args.pieces is not None or args.judge):
        raise Fail(f"prompt {next(iter(images))!r} has `inputs`, for which a whole model is run: give it without --layerwise, --layers, --pieces and --judge")


def derived(inputs, known: int, notes: list[str]) -> list[dict]:
    """The prompts that follow from the config and the options."""
    prompts = derive_prompts(inputs.seed, inputs.facts, known, notes)
    # A config that declares a prefix has it run.
    declared = ["prefix"] if getattr(inputs.config.get_text_config(decoder=True), "prefix_lm", False) else []
    return prompts + masked_prompts(inputs.seed, inputs.facts, known, [*declared, *inputs.args.masks])
