"""The steps of a record of what a class computes, from the options to the file."""
from __future__ import annotations

import traceback
from pathlib import Path

from .checkpoint import read_config
from .classes import import_files, load_config
from .failures import Fail, Missing, at, first_line

# Tokens of a sequence: fewer than the sizes of most axes, so that an axis tells by its size what it is.
TOKENS = 5


def write_trace(args) -> None:
    """Writes the record that the options ask for, or tells in one line what hinders it."""
    import torch
    import transformers

    from .trace import trace

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    folder, target = Path(args.model), Path(args.trace)
    _, plain = read_config(folder)
    import_files(args.imports, plain)
    load_config(folder, plain, args.trust_remote_code)
    try:
        trace(folder, target, TOKENS, args.trust_remote_code)
    except (Fail, Missing):
        raise
    except Exception as error:
        name = next(iter(plain.get("architectures") or []), "that the config names")
        raise Fail(f"{folder}: what the class {name} computes cannot be recorded: {first_line(error)}{at(error) or in_class(error)}") from None


def in_class(error: BaseException) -> str:
    """The last place in the file of a class that an error passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name.startswith("modeling_")]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
