"""What a dump is made of: the options, the checkpoint, and the parts that earlier processes kept."""
from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

from .checkpoint import check_layer_count, hash_weights, read_config, weight_files
from .classes import import_files, load_config
from .failures import Fail, say
from .layer_choice import belongs, chosen_layers
from .prompts import numbers_of

# Packages that replace parts of a forward pass with kernels of their own: their presence changes what "the reference" is.
KERNEL_PACKAGES = ("fla", "flash_linear_attention", "mamba_ssm", "causal_conv1d", "flash_attn", "kernels", "liger_kernel", "tilelang")


class Inputs:
    """The options of a dump and its checkpoint, before a model is loaded."""

    def __init__(self, args, notes: list[str]):
        self.args, self.folder, self.target = args, Path(args.model), None if args.out is None else Path(args.out)
        if self.target is not None:
            check_target(args, self.target)
        self.raw, self.plain = read_config(self.folder)
        import_files(args.imports, self.plain)
        self.config = load_config(self.folder, self.plain, args.trust_remote_code)
        self.facts = numbers_of(self.config)
        # The manifest's entry on a choice of layers.
        self.choice = chosen_layers(args, self.folder, self.config, notes) if args.layers else None
        self.files = weight_files(self.folder, self.wanted)
        self.weights_hash, self.stored, self.tensors = hash_weights(self.files, self.wanted)
        if self.choice is None:
            check_layer_count(self.folder / "config.json", self.plain, len(self.tensors))
        self.kernels = installed_kernels()
        if self.kernels:
            say(f"warning: kernel packages are installed and may replace parts of the reference: {', '.join(self.kernels)}")
            notes.append(f"kernel packages present: {', '.join(self.kernels)}")
        self.config_hash = hashlib.sha256(self.raw)
        self.seed = self.config_hash.digest()
        # The parts that are kept, if they are.
        self.parts = None

    @property
    def wanted(self):
        """Tells by the name of a tensor that it is read; None where all are."""
        if self.choice is None:
            return None
        return lambda name: belongs(name, self.choice["prefix"], self.choice["chosen"])

    @property
    def is_piece(self) -> bool:
        """True for a process that makes a piece, and no dump."""
        return self.parts is not None and self.parts.piece is not None

    @property
    def has_head(self) -> bool:
        """True if a head of the model is dumped too. With a choice of layers, and with an encoder, it is not."""
        return self.choice is None and not self.args.encoder


def check_target(args, target: Path) -> None:
    """Refuses a folder to write that would be lost, or that would lose its parts."""
    if args.pieces is not None and target.resolve() in (Path(args.pieces).resolve(), *Path(args.pieces).resolve().parents):
        raise Fail(f"--pieces {args.pieces}: lies in the dump's own folder, which is replaced when the dump is written; give another folder")
    if args.piece is None and target.exists() and not ((target / "manifest.json").is_file() or (target.is_dir() and not any(target.iterdir()))):
        raise Fail(f"{target}: exists and is not a dump; choose another folder")
    if args.merge and (target / "manifest.json").is_file():
        raise Fail(f"{target}: is a dump already, and the merge would replace it; remove it, or choose another folder")


def installed_kernels() -> list[str]:
    """The packages of kernels that are installed, with their versions."""
    found = []
    for package in KERNEL_PACKAGES:
        if importlib.util.find_spec(package) is not None:
            try:
                found.append(f"{package} {importlib.metadata.version(package.replace('_', '-'))}")
            except importlib.metadata.PackageNotFoundError:
                found.append(package)
    return found
