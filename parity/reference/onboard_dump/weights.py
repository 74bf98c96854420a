"""Weights whose numbers are read from the checkpoint when something is computed with them."""
from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .failures import Missing

if TYPE_CHECKING:
    from .store import Store

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
          "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
# What is known of a weight without its numbers: attributes and methods of a tensor.
KNOWN = {"shape", "ndim", "layout", "names", "requires_grad", "is_leaf", "grad", "grad_fn", "itemsize", "nbytes", "is_meta", "is_sparse", "is_quantized", "is_nested",
         "is_cuda", "is_mps", "size", "dim", "numel", "nelement", "ndimension", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size",
         "requires_grad_", "__len__", "__hash__", "_version", "output_nr", "retains_grad", "_backward_hooks", "_is_view"}
# Bytes at a multiple of which torch puts tensors.
ALIGNED = 64


class Slice:
    """One tensor of the checkpoint, as transformers is given it."""

    def __init__(self, store: Store, name: str, path: Path, dtype: str, shape: list[int], begin: int):
        self.store, self.name, self.path, self.stored, self.shape, self.begin = store, name, path, dtype, tuple(shape), begin

    def get_dtype(self) -> str:
        return self.stored

    def get_shape(self) -> list[int]:
        return list(self.shape)


class Piece:
    """A tensor of the checkpoint in the dtype of the run. Called, it gives its numbers, or while a model is planned its shape alone."""

    def __init__(self, slice_: Slice, dtype, row: int | None = None):
        self.slice, self.dtype, self.row = slice_, dtype, row

    def __call__(self):
        one, store = self.slice, self.slice.store
        if one.stored not in STORED:
            raise Missing(f"{one.path}: tensor {one.name} has dtype {one.stored}, which is not read layer by layer")
        shape = one.shape if self.row is None else (1, *one.shape[1:])
        kind = STORED[one.stored]
        if store.planning:
            return torch.empty(shape, dtype=self.dtype or kind, device="meta")
        count = math.prod(shape)
        offset = one.begin + (0 if self.row is None else self.row * count * kind.itemsize)
        store.note_read((one.name, self.row), count * kind.itemsize)
        values = torch.frombuffer(store.map(one.path), dtype=kind, count=count, offset=offset).reshape(shape) if count else torch.empty(shape, dtype=kind)
        wanted = torch.float64 if store.double and self.dtype == torch.float32 and kind.itemsize <= 4 else self.dtype or kind
        if wanted == kind:
            # The file itself, as transformers has it: where it begins in memory moves the last bits of products.
            values.mapped = True
            return values
        return values.to(wanted)

    def at(self, row: int) -> Piece:
        return Piece(self.slice, self.dtype, row)


class Plan:
    """How transformers makes some parameters from tensors of the checkpoint: its own conversion, kept to be run when a parameter is used."""

    def __init__(self, conversion, convert, name: str, pieces: dict[str, list[Piece]], arguments: dict):
        self.conversion, self.convert, self.name, self.pieces, self.arguments = conversion, convert, name, pieces, arguments

    def run(self, row: int | None = None) -> dict:
        """The parameters by name; with `row`, only that of the first axis."""
        pieces = self.pieces
        if row is not None:
            merged = self.merges()
            pieces = {pattern: [found[row]] if merged else [found[0].at(row)] for pattern, found in pieces.items()}
        self.conversion.collected_tensors.clear()
        self.conversion.collected_tensors.update({pattern: list(found) for pattern, found in pieces.items()})
        made = self.convert(self.conversion, self.name, **self.arguments)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def merges(self) -> bool:
        """Stacks tensors of the checkpoint, one for each row."""
        operations = getattr(self.conversion, "operations", ())
        return bool(operations) and type(operations[0]).__name__ == "MergeModulelist"

    def by_rows(self, shape) -> bool:
        """Each row of the first axis comes from a part of the checkpoint of its own."""
        operations = list(getattr(self.conversion, "operations", ()))
        if self.conversion.quantization_operation is not None or not shape:
            return False
        if self.merges():
            if operations.pop(0).dim != 0 or any(len(found) != shape[0] for found in self.pieces.values()):
                return False
        elif any(len(found) != 1 or found[0].slice.shape[:1] != shape[:1] for found in self.pieces.values()):
            return False
        axes = {"Concatenate": ("dim",), "Chunk": ("dim",), "Transpose": ("dim0", "dim1")}
        known = all(type(one).__name__ in axes and all(getattr(one, axis) > 0 for axis in axes[type(one).__name__]) for one in operations)
        return known and all(value.shape[:1] == (1,) for value in self.run(0).values())


class Weight(torch.Tensor):
    """A parameter whose numbers are read when something is computed with them."""

    @staticmethod
    def of(store: Store, plan: Plan, name: str, meta) -> Weight:
        self = torch.Tensor._make_subclass(Weight, meta.detach(), False)
        self._is_param, self._is_hf_initialized = True, True
        self.store, self.plan, self.name_of = store, plan, name
        self.rows = plan.by_rows(tuple(meta.shape))
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.__name__
        first = args[0] if args and isinstance(args[0], Weight) else None
        if name in ("__get__", "__set__") and first is not None:
            owner = getattr(getattr(func, "__self__", None), "__name__", name)
            if name == "__set__":
                if owner == "requires_grad":
                    return None
                raise Missing(f"the class sets `{owner}` of {first.name_of}, which is read from the checkpoint whenever it is used")
            name = owner
        if first is not None:
            with torch._C.DisableTorchFunctionSubclass():
                if name == "device":
                    return torch.device("cpu")
                if name == "dtype":
                    return torch.float64 if first.store.double and first.dtype == torch.float32 else first.dtype
                if name in KNOWN:
                    return func(*args, **kwargs)
        if first is not None and name == "__getitem__" and first.rows and (row := one_row(args[1], first)) is not None:
            return first.store.row(first, row)
        if func is torch.nn.functional.embedding and len(args) > 1 and isinstance(args[1], Weight) and args[1].rows:
            ids, table, *others = args
            used, inverse = ids.unique(return_inverse=True)
            rows = torch.stack([table.store.row(table, int(row)) for row in used]) if used.numel() else torch.empty(0, *table.shape[1:], dtype=table.dtype)
            # A row for padding matters to gradients alone.
            return func(inverse, rows, None, *others[1:], **{key: value for key, value in kwargs.items() if key != "padding_idx"})
        return func(*[plain(value) for value in args], **{key: plain(value) for key, value in kwargs.items()})


def placed(value, address: int, copy: bool = False):
    """The tensor at a place in memory that is as far from a multiple of ALIGNED as an address is: the same numbers in the same places give the same bits."""
    if not copy and value.data_ptr() % ALIGNED == address % ALIGNED:
        return value
    room = torch.empty(value.numel() * value.element_size() + ALIGNED, dtype=torch.uint8)
    first = (address - room.data_ptr()) % ALIGNED
    made = room[first : first + value.numel() * value.element_size()].view(value.dtype).reshape(value.shape)
    made.copy_(value)
    return made


def one_row(index, weight: Weight) -> int | None:
    if isinstance(index, torch.Tensor):
        if index.numel() != 1 or index.ndim or index.dtype == torch.bool:
            return None
    elif not isinstance(index, int) or isinstance(index, bool):
        return None
    row = int(index)
    count = weight.shape[0]
    return row + count if row < 0 else row


def plain(value):
    if isinstance(value, Weight):
        return value.store.whole(value)
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value
