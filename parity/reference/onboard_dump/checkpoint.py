"""The checkpoint on disk: its config, its files of weights, and their hashes."""
from __future__ import annotations

import hashlib
import json
import mmap
import struct
import time
from pathlib import Path

from .failures import Fail, say

# Bytes of a tensor up to which all of them are hashed; seconds between lines of progress meanwhile.
WHOLE, PACE = 4 << 20, 15.0


def read_config(folder: Path) -> tuple[bytes, dict]:
    if not folder.is_dir():
        raise Fail(f"{folder}: not a folder; give the folder that holds config.json and the safetensors files")
    path = folder / "config.json"
    if not path.is_file():
        raise Fail(f"{path}: not found; a Hugging Face checkpoint folder has one")
    raw = path.read_bytes()
    try:
        config = json.loads(raw)
    except ValueError as error:
        raise Fail(f"{path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise Fail(f"{path}: expected a JSON object, found {type(config).__name__}")
    return raw, config


def weight_map(folder: Path) -> dict | None:
    """File names by tensor, where the checkpoint has several files."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return None
    try:
        found = dict(json.loads(index.read_bytes())["weight_map"])
        sorted(found.values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise Fail(f"{index}: expected an object with a `weight_map` from tensor names to file names") from None
    return found


def weight_files(folder: Path, wanted=None) -> list[Path]:
    """The files of a checkpoint; with `wanted`, those that have tensors with a name that it accepts."""
    if (found := weight_map(folder)) is not None:
        index = folder / "model.safetensors.index.json"
        files = [folder / name for name in sorted({file for name, file in found.items() if wanted is None or wanted(name)})]
        for path in files:
            if path.parent.resolve() != folder.resolve() or not path.is_file():
                raise Fail(f"{index}: names {path.name}, which is not a file of {folder}")
        return files
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise Fail(f"{folder}: no *.safetensors files; other weight formats are not supported, save the model with save_pretrained first")
    return files


def safetensors_entries(path: Path) -> list[tuple[str, str, list[int], int, int]]:
    """(name, dtype, shape, begin, end) with offsets into the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8 or (length := struct.unpack("<Q", head)[0]) > size - 8:
            raise Fail(f"{path}: not a safetensors file, or cut short")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            entries = [
                (name, entry["dtype"], entry["shape"], 8 + length + entry["data_offsets"][0], 8 + length + entry["data_offsets"][1])
                for name, entry in header.items()
            ]
        except (ValueError, KeyError, AttributeError, TypeError, IndexError):
            raise Fail(f"{path}: the header is not that of a safetensors file") from None
    for name, _, _, begin, end in entries:
        if not 0 <= begin <= end <= size:
            raise Fail(f"{path}: tensor {name} lies outside the file; it was cut short")
    return entries


def entries_of(files: list[Path], wanted=None) -> dict[str, tuple]:
    """(file, dtype, shape, begin) of every tensor, by name."""
    return {name: (path, dtype, shape, begin) for path in files for name, dtype, shape, begin, _ in safetensors_entries(path) if wanted is None or wanted(name)}


def hash_weights(files: list[Path], wanted=None) -> tuple[str, str, dict[str, str]]:
    """The weights' hash as docs/dump.md defines it, the dtype that most bytes are stored in, and the first digits of the hash of each tensor. With
    `wanted`, of tensors with a name that it accepts."""
    entries = [(entry[0].encode(), entry, path) for path in files for entry in safetensors_entries(path) if wanted is None or wanted(entry[0])]
    entries.sort(key=lambda item: item[0])
    for before, after in zip(entries, entries[1:]):
        if before[0] == after[0]:
            raise Fail(f"tensor {before[1][0]} is both in {before[2].name} and in {after[2].name}")
    digest, by_dtype, tensors = hashlib.sha256(), {}, {}
    maps, done, said = {}, 0, time.monotonic()
    total = sum(min(end - begin, WHOLE) for _, (*_, begin, end), _ in entries)
    for path in files:
        with path.open("rb") as file:
            maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for raw, (name, dtype, shape, begin, end), path in entries:
        data, length = maps[path], end - begin
        by_dtype[dtype] = by_dtype.get(dtype, 0) + length
        head = dtype.encode() + b"\0" + ",".join(map(str, shape)).encode() + b"\0"
        digest.update(raw + b"\0" + head)
        of_tensor = hashlib.sha256(head)
        done += min(length, WHOLE)
        if time.monotonic() - said > PACE:
            said = time.monotonic()
            say(f"{path.parent.name}: hash of the weights: {done / 1e9:.1f} of {total / 1e9:.1f} GB")
        starts = [begin + window * (length - 4096) // 63 for window in range(64)]
        pieces = [(begin, end)] if length <= WHOLE else [(start, start + 4096) for start in starts]
        for first, last in pieces:
            for hash_of in (digest, of_tensor):
                hash_of.update(memoryview(data)[first:last])
        tensors[name] = of_tensor.hexdigest()[:16]
    most = max(by_dtype, key=by_dtype.get) if by_dtype else "F32"
    return digest.hexdigest(), {"F32": "f32", "BF16": "bf16", "F16": "f16"}.get(most, most.lower()), tensors


def check_layer_count(path: Path, config: dict, tensors: int) -> None:
    """transformers builds as many layers as the config says before it looks at the weights, so an absurd count would fill the memory."""
    for values in (config, config.get("text_config")):
        for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            count = values.get(key) if isinstance(values, dict) else None
            if isinstance(count, int) and count > tensors:
                raise Fail(f"{path}: {key} is {count}, but the checkpoint has only {tensors} tensors")
