"""What ends a dump, the lines that it says meanwhile, and how an error is told."""
from __future__ import annotations

import sys
import traceback
from pathlib import Path

# The folder of this package, and the program: one file that has the package in it, or `dump.py` beside the folder.
PACKAGE = Path(__file__).parent
PROGRAM = PACKAGE.parent if PACKAGE.parent.is_file() else PACKAGE.with_name("dump.py")


class Fail(Exception):
    """A problem the caller can act on; printed without a traceback."""


class Unusable(BaseException):
    """A folder of parts that cannot be used. No failure of a job, which may be a result: it ends the dump from wherever it is found."""


class Missing(Exception):
    """A part of the checkpoint that a forward needs and that is not there."""


def say(text: str) -> None:
    print(f"dump: {text}", file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text[:300]}"


def at(error: BaseException) -> str:
    """The last place in code that is not an installed package, where an error passed one."""
    if (place := getattr(error, "place", None)) is not None:
        # Of a failure that an earlier process kept.
        return place
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<") and not is_own(f.filename)]
    return f" ({Path(ours[-1].filename).name}, line {ours[-1].lineno})" if ours else ""


def is_own(file) -> bool:
    """True for a file of this program."""
    return Path(file).parent == PACKAGE or Path(file).name == PROGRAM.name
