"""Keeps the parts of a dump that do not depend on each other as files, each of which appears whole or not at all: `dump.py --pieces DIR`.

A part is what one job gave, such as the recording of one prompt in one dtype. `Parts.get` and `Parts.put` read and write it by its key. A unit is a group of parts
that one process makes; `--piece I/N` makes a run of units, and `--merge` reads the parts of all of them.
"""
from __future__ import annotations

import hashlib
import io
import json
import os
import re
import socket
from pathlib import Path

FORMAT, ENDING = "onboard-dump-part/1", ".part-of-dump"
# Failures that another attempt may not have: they are not kept.
PASSING = ("MemoryError", "OSError", "IOError", "Missing", "OutOfMemoryError")
# Times a forward over all layers that a unit makes in step, for shares of about equal work.
GREEDY_COST, RECORD_COST, HEAD_COST = 16.0, 8.0, 4.0


class Remembered:
    """A failure that a part has in place of a value."""

    def __init__(self, error: BaseException, place: str, kind: type):
        self.fields = {"type": type(error).__name__, "text": str(error), "place": place, "plain": isinstance(error, kind)}


class Parts:
    """The parts of one dump in a folder."""

    def __init__(self, folder: Path, inputs: dict, units: list[dict], fail: type, unusable: type, piece: tuple[int, int] | None = None, merge: bool = False):
        """`fail` is the class of failures that a job may have, and `unusable` that of errors of this folder. `inputs`: everything that the bytes depend on, by name. `units`: objects with `run`, `name`, `cost` and `parts`, the keys that the unit makes."""
        self.folder, self.inputs, self.units, self.fail, self.unusable, self.piece, self.merge = folder, inputs, units, fail, unusable, piece, merge
        self.identity = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        self.stamps: dict[Path, tuple] = {}
        self.planned = [key for unit in units for key in unit["parts"]]
        self.mine = self.share(*piece) if piece is not None else []
        # A head of 16 bits is compared with that of f32, so all are made by one process.
        heads = [key for key in self.planned if key[1] == "head"]
        self.heads = bool(heads) and all(self.has(key) for key in heads)

    # ---------------------------------------------------------------- the plan

    def share(self, number: int, count: int) -> list[tuple]:
        """The keys of piece `number` (from 0) of `count`: a run of units with about a `count`th of the cost."""
        total, at, keys = sum(unit["cost"] for unit in self.units) or 1.0, 0.0, []
        for unit in self.units:
            middle = (at + unit["cost"] / 2) / total
            at += unit["cost"]
            if number <= middle * count < number + 1:
                keys += unit["parts"]
        return keys

    def wants(self, run: str, first: bool) -> bool:
        """True if this process has something to make in a run; the first run is also that which chooses prompts."""
        if self.piece is None:
            return True
        missing = [key for key in self.mine if not self.has(key)]
        if any(key[1] == "head" for key in missing) or first and not self.has(("", "prompts")):
            return True
        return any(key[0] == run for key in missing)

    def head_is_mine(self) -> bool:
        return not self.heads and any(key[1] == "head" for key in self.mine)

    def of_run(self, run: str, patched: set[str], place, kinds: dict) -> RunParts:
        return RunParts(self, run, patched, place, kinds)

    # ---------------------------------------------------------------- files

    def path(self, key: tuple) -> Path:
        text = ".".join(part for part in key if part)
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:80].lstrip(".")
        return self.folder / f"{plain}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}{ENDING}"

    def has(self, key: tuple) -> bool:
        """True if the part is there and whole. A damaged one is made again, as if it were missing."""
        path = self.path(key)
        try:
            state = path.stat()
            stamp = state.st_size, state.st_mtime_ns, state.st_ino
            if self.stamps.get(path) != stamp:
                with path.open("rb") as file:
                    head, made = file.readline(len(FORMAT) + 80), hashlib.sha256()
                    while block := file.read(1 << 20):
                        made.update(block)
                if head != f"{FORMAT} {made.hexdigest()}\n".encode():
                    return False
                self.stamps[path] = stamp
        except OSError:
            return False
        return True

    def get(self, key: tuple):
        """The part, or None if it is not there: `{"value" | "error", "shared", "patched"}`."""
        import torch

        if key[1] == "head" and not self.heads:
            return None
        if not self.has(key):
            return None
        path = self.path(key)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unusable(f"{path}: cannot be read: {error}") from None
        head, _, body = raw.partition(b"\n")
        if head != f"{FORMAT} {hashlib.sha256(body).hexdigest()}".encode():
            raise self.unusable(f"{path}: damaged, or no part of a dump; remove it, and its piece is made again")
        found = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        if found["identity"] != self.identity:
            raise self.unusable(f"{path}: of another dump: {self.difference(found['inputs'])}; remove it, or give another folder for pieces")
        if tuple(found["key"]) != key:
            raise self.unusable(f"{path}: holds {'/'.join(found['key'])}, a part that has another file; remove it, and its piece is made again")
        return found

    def difference(self, theirs: dict) -> str:
        names = [name for name in sorted({*theirs, *self.inputs}) if theirs.get(name) != self.inputs.get(name)]
        return ", ".join(f"{name} is {json.dumps(theirs.get(name))} there and {json.dumps(self.inputs.get(name))} here" for name in names[:3]) or "its inputs differ"

    def put(self, key: tuple, outcome: dict) -> None:
        import torch

        room = io.BytesIO()
        torch.save({"identity": self.identity, "inputs": self.inputs, "key": list(key), **outcome}, room)
        body = room.getvalue()
        self.write(self.path(key), f"{FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode() + body)

    def write(self, path: Path, raw: bytes) -> None:
        """Complete or not at all, also where several machines share the folder."""
        try:
            self.put_file(path, raw)
        except OSError as error:
            raise self.unusable(f"{path}: cannot be written: {error}") from None

    def put_file(self, path: Path, raw: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    # ---------------------------------------------------------------- pieces

    def marker(self, number: int, count: int) -> Path:
        """The file that says that a piece is finished."""
        return self.folder / f"piece-{number + 1}-of-{count}.json"

    def finished(self) -> bool:
        """True if the piece of this process was finished before."""
        path = self.marker(*self.piece)
        try:
            found = json.loads(path.read_bytes())
            same = found["identity"] == self.identity
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError):
            raise self.unusable(f"{path}: no record of a finished piece; remove it") from None
        if not same:
            raise self.unusable(f"{path}: of another dump: {self.difference(found.get('inputs') or {})}; remove it, or give another folder for pieces")
        return all(self.has(key) for key in self.mine)

    def finish(self) -> None:
        # Parts outside the plan, as the choice of prompts, are shared: each piece makes them, or takes those that are there.
        planned = {self.path(key).name for key in self.planned}
        shared = [path.name for path in self.folder.glob(f"*{ENDING}") if path.name not in planned]
        files = sorted({*shared, *(self.path(key).name for key in self.mine)})
        record = {"format": FORMAT, "identity": self.identity, "inputs": self.inputs, "parts": ["/".join(key) for key in self.mine], "files": files}
        self.write(self.marker(*self.piece), (json.dumps(record, indent=1) + "\n").encode())

    def require_all(self) -> None:
        """Refuses a folder that lacks a part, or has one of another dump."""
        expected = {self.path(key).name for key in self.planned}
        missing = [key for key in self.planned if not self.has(key)]
        if missing:
            shown = ", ".join("/".join(key) + (" (damaged)" if self.path(key).is_file() else "") for key in missing[:4])
            raise self.unusable(f"{self.folder}: {len(missing)} of {len(self.planned)} parts are missing or damaged: {shown}{', ...' if len(missing) > 4 else ''}; make them with --piece, "
                            "or all that are left without --merge")
        for path in sorted(self.folder.glob(f"*{ENDING}")):
            if path.name in expected:
                continue
            # Parts that every piece makes for itself, as the choice of prompts, are not in the plan.
            raw = path.read_bytes().partition(b"\n")[2]
            import torch

            try:
                found = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
                key = tuple(found["key"])
            except Exception:
                raise self.unusable(f"{path}: damaged, or no part of a dump; remove it") from None
            if found["identity"] != self.identity:
                raise self.unusable(f"{path}: of another dump: {self.difference(found['inputs'])}; remove it")
            if self.path(key) != path:
                raise self.unusable(f"{path}: holds {'/'.join(key)}, a part that has another file; remove one of the two")

    def lines(self, count: int) -> str:
        """The plan as text: what each of `count` pieces makes."""
        shown = []
        for number in range(count):
            keys = self.share(number, count)
            units = [unit for unit in self.units if any(key in keys for key in unit["parts"])]
            shown.append(f"piece {number + 1}/{count}: {', '.join(unit['run'] + '/' + unit['name'] if unit['run'] else unit['name'] for unit in units) or 'nothing'}")
        return "\n".join(shown)


class RunParts:
    """The parts of one run, as `Work` asks for them."""

    def __init__(self, parts: Parts, run: str, patched: set[str], place, kinds: dict):
        """`place` tells where an error came from. `kinds`: classes of values by the name that they have in files."""
        self.parts, self.run, self.patched, self.place, self.kinds = parts, run, patched, place, kinds
        self.taps = None

    def key(self, stage: str, name) -> tuple:
        return (self.run, stage, *(map(str, name) if isinstance(name, tuple) else [str(name)]))

    def has(self, stage: str, name) -> bool:
        return self.parts.has(self.key(stage, name))

    def is_mine(self, stage: str, name) -> bool:
        return self.key(stage, name) in self.parts.mine

    def get(self, stage: str, name):
        """What the job gave, or the error that ended it: `(value, None)` or `(None, error)`; None if it has not run."""
        found = self.parts.get(self.key(stage, name))
        if found is None:
            return None
        self.patched.update(found["patched"])
        if self.taps is not None:
            self.taps.shared.update(found["shared"])
        if (error := found.get("error")) is not None:
            kind = self.parts.fail if error["plain"] else type(error["type"], (Exception,), {})
            made = kind(error["text"])
            made.place = error["place"]
            return None, made
        return self.unpacked(found["value"]), None

    def put(self, stage: str, name, outcome: tuple) -> None:
        value, error = outcome
        if error is not None and (any(kind.__name__ in PASSING for kind in type(error).__mro__) or "out of memory" in str(error) or "allocate" in str(error)):
            return
        entry = {"error": Remembered(error, self.place(error), self.parts.fail).fields} if error is not None else {"value": self.packed(value)}
        shared = dict(self.taps.shared) if self.taps is not None else {}
        self.parts.put(self.key(stage, name), entry | {"shared": shared, "patched": sorted(self.patched)})

    def put_failure(self, error: Exception) -> bool:
        """Keeps an error in place of all parts of this run that the piece has and lacks. False for an error that another attempt may not have."""
        left = [key for key in self.parts.mine if key[0] == self.run and not self.parts.has(key)]
        for _, stage, *name in left:
            self.put(stage, tuple(name), (None, error))
        return all(self.parts.has(key) for key in left)

    def packed(self, value):
        for name, kind in self.kinds.items():
            if isinstance(value, kind):
                return {"\0kind": name, "fields": self.packed(vars(value))}
        if isinstance(value, dict):
            return {key: self.packed(item) for key, item in value.items()}
        return type(value)(map(self.packed, value)) if isinstance(value, (list, tuple)) else value

    def unpacked(self, value):
        if isinstance(value, dict):
            fields = {key: self.unpacked(item) for key, item in value.items()}
            if "\0kind" not in fields:
                return fields
            made = object.__new__(self.kinds[fields["\0kind"]])
            made.__dict__.update(fields["fields"])
            return made
        return type(value)(map(self.unpacked, value)) if isinstance(value, (list, tuple)) else value
