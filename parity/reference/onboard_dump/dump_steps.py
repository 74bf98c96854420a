"""The steps of a dump, or of a piece of one, from the options to the files."""
from __future__ import annotations

from .failures import say
from .inputs import Inputs
from .judge import judge_reference
from .patches import break_ties
from .results import Results, write_dump
from .run import make_run
from .units import inputs_of, open_parts


def dump(args) -> None:
    """Writes the dump that the options ask for, or makes or plans its pieces, or judges the reference."""
    settle_torch(args.threads)
    notes: list[str] = []
    inputs = Inputs(args, notes)
    if args.pieces is not None and not take_parts(inputs):
        return
    results = Results(args, notes)
    for name in args.dtypes if args.out is not None else ():
        if inputs.parts is None or inputs.parts.wants(name, name == args.dtypes[0]):
            make_run(inputs, results, name)
    if inputs.is_piece:
        inputs.parts.finish()
        say(f"{args.pieces}: piece {args.piece[0] + 1}/{args.piece[1]} is finished")
        return
    if args.judge:
        judge_reference(inputs, results)
    if args.out is not None:
        write_dump(inputs, results)


def settle_torch(threads: int) -> None:
    """The same numbers each time, and no words of transformers."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    break_ties()


def take_parts(inputs) -> bool:
    """Opens the folder of parts. False if nothing is left to be made."""
    args = inputs.args
    parts = open_parts(args, inputs.config, inputs.facts, inputs_of(args, inputs.raw, inputs.weights_hash), inputs.has_head)
    if args.plan:
        print(parts.lines(args.piece[1] if args.piece else 1))
        return False
    if args.merge:
        parts.require_all()
    if parts.piece is not None and parts.finished():
        say(f"{args.pieces}: piece {args.piece[0] + 1}/{args.piece[1]} is made already")
        return False
    inputs.parts = parts
    return True
