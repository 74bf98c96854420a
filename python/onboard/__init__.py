"""Checks, converts and adds language models with the `onboard` program of this package.

    import onboard

    report = onboard.check("checkpoints/mine", dtypes=["f32", "bf16"])
    assert report.agrees, report.summary
    onboard.convert("checkpoints/mine", "gguf:q4_k_m", "mine.gguf")

Results are those of the commands' JSON. A command that could not run raises `OnboardError` with its message.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Union

__all__ = [
    "AddedModel", "CheckReport", "Converted", "OnboardError", "Run", "add_model", "check", "convert", "program", "verify",
]

StrPath = Union[str, "os.PathLike[str]"]


class OnboardError(Exception):
    """A command that could not run. Its text is what the command wrote."""

    def __init__(self, message: str, command: Sequence[str], code: int):
        super().__init__(message)
        self.command = list(command)
        self.code = code


@dataclass(frozen=True)
class Run:
    """The comparison of one dtype."""

    dtype: str
    agrees: bool
    phases: list[dict[str, Any]]
    first_divergence: Optional[dict[str, Any]]


@dataclass(frozen=True)
class CheckReport:
    """A report of `onboard parity check`; `summary` is the text that the command prints."""

    verdict: str
    agrees: bool
    runs: list[Run]
    summary: str
    json: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class AddedModel:
    """A card of `onboard add-model`."""

    verdict: str
    proven: bool
    spec: Optional[str]
    architecture: Optional[str]
    json: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Converted:
    """A file or folder that `onboard convert` wrote."""

    output: str
    summary: str


def program() -> str:
    """Returns the path of `onboard`: in the folder ONBOARD_BIN, else in those of this Python, else on PATH."""
    schemes = {sysconfig.get_default_scheme(), f"{os.name}_user"}.intersection(sysconfig.get_scheme_names())
    folders = [os.environ.get("ONBOARD_BIN"), os.path.dirname(sys.executable)]
    folders += [sysconfig.get_path("scripts", scheme) for scheme in sorted(schemes)]
    path = shutil.which("onboard", path=os.pathsep.join(filter(None, folders))) or shutil.which("onboard")
    if path is None:
        raise OnboardError("there is no program `onboard`: reinstall the package, or set ONBOARD_BIN to its folder", ["onboard"], 127)
    return path


def add_model(
    model: StrPath, *, reference: Optional[StrPath] = None, out: Optional[StrPath] = None, options: Sequence[str] = (),
) -> AddedModel:
    """Matches or drafts a spec for a checkpoint, runs it, and proves it against its reference."""
    command = ["add-model", os.fspath(model), "--json"]
    command += ["--reference", os.fspath(reference)] if reference is not None else []
    command += ["--out", os.fspath(out)] if out is not None else []
    ran = _run([*command, *options])
    try:
        card = json.loads(ran.stdout)
    except ValueError:
        raise _error(ran) from None
    spec = card["model"].get("spec") or {}
    return AddedModel(card["verdict"], ran.returncode == 0, spec.get("name"), card["model"].get("architecture"), card)


def check(
    model: StrPath,
    *,
    reference: Optional[StrPath] = None,
    dtypes: Sequence[str] = (),
    engine: Optional[str] = None,
    source: Optional[StrPath] = None,
    schedules: bool = True,
    options: Sequence[str] = (),
) -> CheckReport:
    """Compares an engine with a reference dump, as `onboard parity check` does."""
    command = ["parity", "check", os.fspath(model)]
    command += ["--reference", os.fspath(reference)] if reference is not None else []
    command += ["--source", os.fspath(source)] if source is not None else []
    command += ["--dtype", ",".join(dtypes)] if dtypes else []
    command += ["--engine", engine] if engine is not None else []
    command += [] if schedules else ["--no-schedules"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        ran = _run([*command, *options, "--json", path])
        if not os.path.exists(path):
            raise _error(ran)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    runs = [Run(run["dtype"], _agrees(run), run["phases"], run["first"]) for run in report["runs"]]
    return CheckReport(report["verdict"], ran.returncode == 0, runs, ran.stdout.strip(), report)


def convert(
    model: StrPath, to: str, output: StrPath, *, force: bool = False, imatrix: Optional[StrPath] = None, options: Sequence[str] = (),
) -> Converted:
    """Writes a checkpoint in another format: `gguf:q4_k_m`, `fp8`, `nvfp4`, `bf16`, ..."""
    command = ["convert", os.fspath(model), "--to", to, "-o", os.fspath(output)]
    command += ["--imatrix", os.fspath(imatrix)] if imatrix is not None else []
    command += ["--force"] if force else []
    ran = _run([*command, *options])
    if ran.returncode != 0:
        raise _error(ran)
    return Converted(os.fspath(output), ran.stdout.strip())


def verify(output: StrPath) -> bool:
    """True if a converted file or folder has the bytes that were written; false if any is damaged."""
    ran = _run(["verify", os.fspath(output)])
    if ran.returncode not in (0, 1):
        raise _error(ran)
    return ran.returncode == 0


def _agrees(run: dict[str, Any]) -> bool:
    return run["first"] is None and all(phase["verdict"] != "fail" for phase in run["phases"])


def _run(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    command = [program(), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace")


def _error(ran: "subprocess.CompletedProcess[str]") -> OnboardError:
    message = ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}"
    return OnboardError(message, ran.args, ran.returncode)
