"""Writes a dump, complete or not at all, with its checksums."""
from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path


def write(target: Path, tensors: dict, manifest: dict, head: tuple[dict, dict] | None = None) -> None:
    """Complete or not at all: a folder under a temporary name, renamed at the end."""
    from safetensors.torch import save_file

    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for folder, (tensors, manifest) in {part: (tensors, manifest), part / "nextn": head or ({}, {})}.items():
            if not manifest:
                continue
            folder.mkdir(exist_ok=True)
            save_file(tensors, str(folder / "reference.safetensors"))
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            (folder / "manifest.json").write_text(sealed(compact_lists(text), folder / "reference.safetensors"), encoding="utf-8")
            os.chmod(folder / "reference.safetensors", 0o644)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def sealed(text: str, tensors: Path) -> str:
    """The text of a manifest with the hashes of its dump's files. That of the manifest is of the text with zeros in place of its own digits; an older entry
    is replaced."""
    body = re.sub(r',\s*"sha256": \{[^{}]*\}\s*\}\s*$', "\n}", text).rstrip().removesuffix("}").rstrip()
    digest = hashlib.sha256()
    with tensors.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    stored = digest.hexdigest()

    def entry(own: str) -> str:
        return f'{body},\n "sha256": {{"reference.safetensors": "{stored}", "manifest.json": "{own}"}}\n}}\n'

    return entry(hashlib.sha256(entry("0" * 64).encode()).hexdigest())


def compact_lists(text: str) -> str:
    """Innermost lists and objects on one line: a manifest is read by people too."""
    def join(match):
        return match[1] + re.sub(r"\s*\n\s*", " ", match[2]) + match[3]

    text = re.sub(r"(\[)\s+([^\[\]{}]*?)\s+(\])", join, text)
    return re.sub(r"(\{)\s+([^{}]*?)\s+(\})", join, text)
