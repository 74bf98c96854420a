"""Runs a model whose weights are read from the checkpoint when a layer multiplies by them, and dropped afterwards: `dump.py --layerwise` and `--layers`.

`Store.loading` lets transformers load a checkpoint without its bytes: names, dtypes and conversions are those of `from_pretrained`, on the meta device.
A `Weight` stands where a parameter would. Whatever is computed with it is computed with the numbers, which are read and converted then.
Of a table of embeddings and of stacked experts only the rows in use are read. A `Lockstep` carries several forwards through one layer before the next.
"""
from __future__ import annotations

import collections
import contextlib
import copy
import math
import mmap
import threading
import time
from pathlib import Path

import torch

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
          "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
# What is known of a weight without its numbers: attributes and methods of a tensor.
KNOWN = {"shape", "ndim", "layout", "names", "requires_grad", "is_leaf", "grad", "grad_fn", "itemsize", "nbytes", "is_meta", "is_sparse", "is_quantized", "is_nested",
         "is_cuda", "is_mps", "size", "dim", "numel", "nelement", "ndimension", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size",
         "requires_grad_", "__len__", "__hash__", "_version", "output_nr", "retains_grad", "_backward_hooks", "_is_view"}
# Bytes at a multiple of which torch puts tensors.
ALIGNED = 64
# Numbers that are moved at a time.
CHUNK = 1 << 22
# Seconds between lines of progress.
PACE = 15.0


class Missing(Exception):
    """A part of the checkpoint that a forward needs and that is not there."""


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


def return_memory() -> None:
    """Has glibc give large tensors back to the system when they are freed. It would keep them for the thread that freed them, and there are many threads."""
    import ctypes

    arenas, from_map, most = -8, -3, 1 << 20
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(arenas, 1)
        mallopt(from_map, most)


class Store:
    """The tensors of a checkpoint, and those parameters of one model that are in memory now."""

    def __init__(self, entries: dict[str, tuple], limit: int, say):
        """`entries`: by name, (file, dtype, shape, begin). `limit`: bytes of parameters that are kept for the next use."""
        self.slices = {name: Slice(self, name, *entry) for name, entry in entries.items()}
        self.limit, self.say = limit, say
        return_memory()
        self.planning, self.plans, self.maps, self.weights = False, [], {}, []
        self.kept: collections.OrderedDict = collections.OrderedDict()
        self.kept_bytes = self.read_bytes = 0
        self.seed, self.double, self.dtypes = None, False, {}
        # The module that runs now, counted anew for each forward; and that which a parameter was used in last.
        self.layer, self.layers_of, self.read_in = 0, {}, {}

    def map(self, path: Path):
        if path not in self.maps:
            if not path.is_file():
                raise Missing(f"{path}: not found; a layer that is run has weights there")
            with path.open("rb") as file:
                self.maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.maps[path]

    @contextlib.contextmanager
    def loading(self, files: list[str], chosen: list[int] | None = None):
        """While this lasts, `from_pretrained` loads shapes. With `chosen`, the other layers need no tensors."""
        import warnings

        import transformers

        try:
            from transformers import core_model_loading, modeling_utils

            known = [(core_model_loading, "spawn_materialize"), (modeling_utils, "convert_and_load_state_dict_in_model"), (modeling_utils, "_get_resolved_checkpoint_files")]
            lacks = [name for module, name in known if not hasattr(module, name)]
        except ImportError:
            lacks = ["core_model_loading"]
        if lacks:
            raise Missing(f"transformers {transformers.__version__} loads weights in another way than this script knows (no {lacks[0]}); install transformers 5.23")
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        kinds = (core_model_loading.WeightRenaming, core_model_loading.WeightConverter)
        load, spawn, converts = modeling_utils.convert_and_load_state_dict_in_model, core_model_loading.spawn_materialize, [kind.convert for kind in kinds]

        def kept(convert):
            def planned(conversion, name, *args, **kwargs):
                pieces = {pattern: list(found) for pattern, found in conversion.collected_tensors.items()}
                made = convert(conversion, name, *args, **kwargs)
                self.plans.append((Plan(conversion, convert, name, pieces, {key: value for key, value in kwargs.items() if key != "loading_info"}), list(made)))
                return made

            return planned

        def shapes(model, state_dict, load_config, disk_offload_index=None, **kwargs):
            info, index = load(model=model, state_dict=dict(self.slices), load_config=load_config, disk_offload_index=disk_offload_index, **kwargs)
            if chosen is not None:
                idle = {id(value) for number, layer in enumerate(decoder_layers(model)) if number not in chosen for value in layer.state_dict(keep_vars=True).values()}
                for name, value in model.state_dict(keep_vars=True).items():
                    if id(value) in idle and name in info.missing_keys:
                        info.missing_keys.discard(name)
                        value._is_hf_initialized = True
            return info, index

        modeling_utils.convert_and_load_state_dict_in_model = shapes
        core_model_loading.spawn_materialize = lambda _pool, tensor, _device=None, dtype=None, **_: Piece(tensor, dtype)
        for kind, convert in zip(kinds, converts):
            kind.convert = kept(convert)
        resolve = modeling_utils._get_resolved_checkpoint_files
        modeling_utils._get_resolved_checkpoint_files = lambda *_, **__: (list(files), None)
        self.planning = True
        try:
            yield
        finally:
            self.planning = False
            modeling_utils.convert_and_load_state_dict_in_model, core_model_loading.spawn_materialize = load, spawn
            modeling_utils._get_resolved_checkpoint_files = resolve
            for kind, convert in zip(kinds, converts):
                kind.convert = convert

    def plant(self, model) -> None:
        """Puts weights in the place of the parameters and buffers that were loaded as shapes."""
        made, self.planning = {}, True
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        for plan, names in self.plans:
            for name in names:
                path, _, leaf = name.rpartition(".")
                found = getattr(model.get_submodule(path), leaf, None)
                # Of two that are tied, the checkpoint may have both: the one that the other is tied to counts.
                if found is not None and found.is_meta:
                    self.dtypes[name] = found.dtype
                if found is not None and found.is_meta and not (id(found) in made and name in tied):
                    made[id(found)] = Weight.of(self, plan, name, found)
        self.planning, self.plans = False, []
        left = []
        for path, module in model.named_modules():
            for kept in (module._parameters, module._buffers):
                for leaf, value in kept.items():
                    if value is None or not value.is_meta:
                        continue
                    if id(value) in made:
                        kept[leaf] = made[id(value)]
                    else:
                        left.append(f"{path}.{leaf}")
        if left:
            raise Missing(f"parameters of the class come from no tensor of the checkpoint: {', '.join(left[:4])}")

    def holds(self, tensor) -> bool:
        return isinstance(tensor, Weight)

    # ---------------------------------------------------------------- numbers

    def whole(self, weight: Weight):
        return self.get((weight.name_of, None), weight)

    def row(self, weight: Weight, row: int):
        return self.get((weight.name_of, row), weight)

    def get(self, key: tuple, weight: Weight):
        if (found := self.kept.get(key)) is not None:
            self.kept.move_to_end(key)
            self.layers_of[key] = self.layer
            return found
        name, row = key
        if row is not None and (found := self.kept.get((name, None))) is not None:
            return found[row]
        self.make_room(weight, row)
        with torch.no_grad():
            made = weight.plan.run(row)
            wanted = None
            for other, value in made.items():
                mapped = hasattr(value, "mapped")
                value = value.detach()
                # `dump.cast` gave a dtype to what transformers dequantized.
                kind = self.dtypes.get(other, value.dtype)
                if value.dtype != kind and not (self.double and kind == torch.float32 and value.dtype == torch.float64):
                    value, mapped = value.to(kind), False
                if row is not None:
                    value = value[0]
                    if not mapped:
                        value = placed(value, row * value.numel() * value.element_size())
                value = self.altered(other, row, value)
                if other == name:
                    wanted = value
                # What is mapped takes no memory, and is not made again.
                if not mapped or self.seed is not None:
                    self.keep((other, row), value)
        if wanted is None:
            raise Missing(f"the conversion of {name} gives {', '.join(made)}")
        return wanted

    def keep(self, key: tuple, value) -> None:
        size = value.numel() * value.element_size()
        if key in self.kept or self.kept_bytes + size > self.limit:
            return
        self.kept[key], self.layers_of[key] = value, self.layer
        self.kept_bytes += size

    def make_room(self, weight: Weight, row: int | None) -> None:
        """Drops what was used longest ago, before a parameter is read that would exceed the limit with it. Small ones of the layer that runs now are not
        dropped for small ones: all sequences go through them in the same order, and each would find none of them."""
        count = weight.numel() if row is None else weight.numel() // weight.shape[0]
        size = count * weight.dtype.itemsize
        while self.kept and self.kept_bytes + size > self.limit:
            key = next(iter(self.kept))
            if size < self.limit // 8 and self.layers_of.get(key) == self.layer:
                return
            old = self.kept.pop(key)
            del self.layers_of[key]
            self.kept_bytes -= old.numel() * old.element_size()

    def note_read(self, key: tuple, size: int) -> None:
        """Counts bytes once for each time that their layer runs: what is mapped is not read again within it."""
        if self.read_in.get(key) != self.layer:
            self.read_in[key] = self.layer
            self.read_bytes += size

    def drop(self) -> None:
        self.kept.clear()
        self.layers_of.clear()
        self.kept_bytes = 0

    # ---------------------------------------------------------------- members

    @contextlib.contextmanager
    def shaken(self, seed: int, parameters: list):
        """As `dump.shake` of these parameters: weights are moved as they are read."""
        self.drop()
        self.weights = parameters
        self.seed, self.states = seed, {(0, 0): torch.Generator().manual_seed(seed).get_state()}
        self.by_name = {weight.name_of: (index, weight) for index, weight in enumerate(self.weights) if isinstance(weight, Weight)}
        # Parameters that the class makes up itself, as it does where none is in the checkpoint.
        own = [(index, weight, weight.data) for index, weight in enumerate(self.weights) if not isinstance(weight, Weight) and weight.dtype == torch.float32]
        try:
            for index, weight, data in own:
                moves = torch.randint(-1, 2, data.shape, generator=self.generator(index, 0), dtype=torch.int32) * (data.abs() > 1e-37)
                weight.data = (data.view(torch.int32) + moves).view(torch.float32)
            yield
        finally:
            for _, weight, data in own:
                weight.data = data
            self.seed = None
            self.drop()

    @contextlib.contextmanager
    def in_f64(self):
        self.drop()
        self.double = True
        try:
            yield
        finally:
            self.double = False
            self.drop()

    def altered(self, name: str, row: int | None, value):
        if self.double and value.dtype == torch.float32:
            return value.double()
        if self.seed is None or value.dtype != torch.float32 or name not in self.by_name:
            return value
        value = placed(value, value.data_ptr(), True)
        index, weight = self.by_name[name]
        generator = self.generator(index, row or 0)
        for piece in value.reshape(-1).split(CHUNK):
            # As `dump.shake`, a part at a time.
            moves = torch.randint(-1, 2, piece.shape, generator=generator, dtype=torch.int32) * (piece.abs() > 1e-37)
            piece.view(torch.int32).add_(moves)
        last = row is None or row + 1 == weight.shape[0]
        self.states[(index + 1, 0) if last else (index, row + 1)] = generator.get_state()
        return value

    def generator(self, index: int, row: int):
        """The generator as it is when `dump.shake` reaches a row of a parameter."""
        generator = torch.Generator()
        at = max(key for key in self.states if key <= (index, row))
        generator.set_state(self.states[at])
        while at != (index, row):
            other = self.weights[at[0]]
            rows, size = (other.shape[0], other.numel() // other.shape[0]) if other.ndim and other.numel() else (1, other.numel())
            until, after = (rows, (at[0] + 1, 0)) if at[0] < index else (row, (index, row))
            count = (until - at[1]) * size if other.dtype == torch.float32 else 0
            for begin in range(0, count, CHUNK):
                torch.randint(-1, 2, (min(CHUNK, count - begin),), generator=generator, dtype=torch.int32)
            at = after
            self.states[at] = generator.get_state()
        return generator


# ---------------------------------------------------------------- in step


class Stopped(BaseException):
    """Ends a thread whose work is no longer wanted."""


class Early(Exception):
    """A step touched a layer of its cache that the step before it has not left: the class does not let its steps follow each other layer by layer."""


# Layers of a cache whose lengths are known without running them, by the name of their class in transformers.
SEPARABLE = {"DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer",
             "LinearAttentionAndSlidingWindowAttentionLayer"}
UPDATES = ("update", "update_indexer", "update_conv_state", "update_recurrent_state")


def separable(cache, layers) -> bool:
    """True for a cache with a part for each layer of the model and nothing else that a step changes."""
    own = getattr(cache, "layers", None)
    if type(cache).__name__ != "DynamicCache" or not isinstance(own, list) or len(own) != len(layers):
        return False
    if any(isinstance(value, (torch.Tensor, dict)) for value in vars(cache).values()):
        return False
    return all(type(layer).__name__ in SEPARABLE and type(layer).__module__ == "transformers.cache_utils" for layer in own)


def expected(layer, added: int):
    """A part of a cache as its layer will leave it after so many more tokens, for those who ask for lengths. Whoever changes it is too early."""
    made = copy.copy(layer)
    if hasattr(layer, "cumulative_length"):
        made.cumulative_length += added
    for name, axis in (("keys", -2), ("values", -2), ("indexer_keys", 1)):
        value = getattr(layer, name, None)
        if isinstance(value, torch.Tensor) and value.numel():
            shape = list(value.shape)
            shape[axis] += added
            if (window := getattr(layer, "sliding_window", None)) is not None and hasattr(layer, "cumulative_length"):
                shape[axis] = min(shape[axis], window - 1)
            setattr(made, name, value.new_zeros(()).expand(shape))

    def early(*_args, **_kwargs):
        raise Early(f"a step changes a {type(layer).__name__} of its cache before its layer runs")

    for name in UPDATES:
        if hasattr(layer, name):
            setattr(made, name, early)
    return made


def handed_on(layer):
    """A part of a cache for the next step. Keys and values are put together anew by each step, and other states are written over."""
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(made, name, {key: item.clone() if isinstance(item, torch.Tensor) else item for key, item in value.items()})
    return made


def shortened(layer):
    """A part of a cache whose rows are not read again, but the newest: the same lengths, and memory for one row."""
    made = copy.copy(layer)
    for name, axis in (("keys", -2), ("values", -2), ("indexer_keys", 1)):
        value = getattr(layer, name, None)
        if isinstance(value, torch.Tensor) and value.numel():
            setattr(made, name, value.narrow(axis, value.shape[axis] - 1, 1).clone().expand(value.shape))
    return made


class Step:
    """A forward that goes on from the cache of another, layer by layer behind it."""

    def __init__(self, cache, before: Step | None, added: int):
        """`added`: tokens that are in the cache when the step begins and are not in that of the step before which all of them go on from."""
        self.before, self.cache, self.entered, self.ended, self.thread = before, cache, set(), False, None
        if before is not None:
            self.cache = copy.copy(cache)
            self.cache.layers = [expected(layer, added) for layer in cache.layers]


class Lockstep:
    """Runs jobs that call one model, each in a thread of its own, of which one runs at a time. A job that reaches a module with weights of its own, a layer,
    waits until all the others have come there too: a layer is read once for all jobs, and not once for each."""

    def __init__(self, model, store: Store, label: str):
        self.store, self.label = store, label
        self.turn, self.ranks, self.waiting = threading.Condition(), {}, {}
        self.running = self.current = None
        self.stopped, self.told, self.passes, self.said = False, False, 0, time.monotonic()
        # Times that a layer became the one that runs.
        self.loads = 0
        self.layers = decoder_layers(model)
        self.steps: dict[int, Step] = {}
        # Layers that read the keys of others have no part of a cache of their own.
        self.shares = bool(getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", None))
        # Of sequences in step each would go on from what another left in a module.
        # Classes that keep states in their modules and not in a cache.
        self.alone = any(isinstance(value, torch.Tensor) for layer in self.layers for module in layer.modules() for value in vars(module).values())
        self.units = list(self.layers) + [module for module in owners(model, self.layers)]
        for number, unit in enumerate(self.units):
            unit.register_forward_pre_hook(lambda _module, _args, number=number: self.reach(number))

    def reach(self, unit: int) -> None:
        """Called by a job before a module runs."""
        self.ranks.setdefault(unit, len(self.ranks))
        me = threading.get_ident()
        if me not in self.waiting:
            self.store.layer += 1
            self.loads += unit < len(self.layers)
            return
        with self.turn:
            if unit != self.current:
                self.waiting[me] = unit
                self.pass_on()
                self.turn.wait_for(lambda: self.running == me or self.stopped)
                if self.stopped:
                    raise Stopped
                self.waiting[me] = None
        self.enter(self.steps.get(me), unit)

    def enter(self, step: Step | None, unit: int) -> None:
        """Gives a step its part of the cache as the step before left it."""
        if step is None or step.before is None or unit >= len(self.layers):
            return
        if unit in step.entered:
            raise Early("a layer runs more than once in a step")
        before = step.before
        at = None if before.ended else self.waiting.get(before.thread)
        if not before.ended and (at is None or self.ranks[at] <= self.ranks[unit]) or before.before is not None and unit not in before.entered:
            raise Early("a step reaches a layer that the step before it has not left")
        step.cache.layers[unit] = handed_on(before.cache.layers[unit])
        step.entered.add(unit)
        if before.before is not None:
            before.cache.layers[unit] = shortened(before.cache.layers[unit])

    def chain(self, cache, counts: list[int], call) -> list | None:
        """What `call(number, cache)` gives for steps of so many tokens, each of which goes on from the one before: a step enters a layer once the one before
        has left it, so that a layer is read once for all steps. None where they have to run one after another."""
        me = threading.get_ident()
        if me not in self.waiting or self.alone or self.shares or len(counts) < 2 or not separable(cache, self.layers):
            return None
        first, threads, results = Step(cache, None, 0), [], {}
        first.ended, before, added, left, count = True, first, 0, len(counts), torch.get_num_threads()

        def work(number: int, step: Step) -> None:
            nonlocal left
            mine = threading.get_ident()
            with self.turn:
                step.thread, self.waiting[mine], self.steps[mine] = mine, -1, step
                self.turn.notify_all()
                self.turn.wait_for(lambda: self.running == mine or self.stopped)
                self.waiting[mine] = None
            try:
                if not self.stopped and (number == 0 or results.get(number - 1, (None, None))[1] is None):
                    torch.set_num_threads(count)
                    results[number] = (call(number, step.cache), None)
                    if lost := [unit for unit in range(len(self.layers)) if unit not in step.entered]:
                        raise Early(f"layer {lost[0]} did not run in a step")
            except Stopped:
                pass
            except Exception as error:
                results[number] = (None, error)
            finally:
                with self.turn:
                    step.ended = True
                    del self.waiting[mine], self.steps[mine]
                    left -= 1
                    if not left:
                        self.waiting[me] = -1
                    self.pass_on()

        for number, size in enumerate(counts):
            step = Step(cache, before, added)
            thread = threading.Thread(target=work, args=(number, step), daemon=True)
            with self.turn:
                thread.start()
                threads.append(thread)
                self.turn.wait_for(lambda step=step: step.thread is not None)
            before, added = step, added + size
        with self.turn:
            self.pass_on()
            self.turn.wait_for(lambda: self.running == me or self.stopped)
            if self.stopped:
                raise Stopped
            self.waiting[me] = None
        for thread in threads:
            thread.join()
        errors = [results[number][1] for number in sorted(results) if results[number][1] is not None]
        if any(isinstance(error, Early) for error in errors):
            if not self.told:
                self.told = True
                self.store.say(f"note: {self.label}: steps run one after another: {next(error for error in errors if isinstance(error, Early))}")
            return None
        if errors:
            raise errors[0]
        return [results[number][0] for number in range(len(counts))]

    def pass_on(self) -> None:
        """Lets the next job run: one that needs what is loaded, else one that is least far."""
        ready = [(job, unit) for job, unit in self.waiting.items() if unit is not None]
        if not ready:
            self.running = None
        else:
            same = [job for job, unit in ready if unit == self.current]
            if same:
                self.running = same[0]
            else:
                self.running, unit = min(ready, key=lambda item: self.ranks[item[1]])
                if self.current is None or self.ranks[unit] < self.ranks[self.current]:
                    self.passes += 1
                self.current = unit
                self.store.layer += 1
                self.loads += 0 <= unit < len(self.layers)
                self.progress()
        self.turn.notify_all()

    def progress(self) -> None:
        if time.monotonic() - self.said < PACE or self.current < 0:
            return
        self.said = time.monotonic()
        layer = f"layer {self.current} of {len(self.layers)}" if self.current < len(self.layers) else "embedding and head"
        self.store.say(f"{self.label}: pass {self.passes}, {layer}, {sum(unit is not None for unit in self.waiting.values())} sequences in step, "
                       f"{self.store.read_bytes / 1e9:.1f} GB read")

    def run(self, jobs: dict) -> dict:
        """What each job gave, or the error that ended it: `(value, None)` or `(None, error)`."""
        done, threads = {}, []
        if self.alone and len(jobs) > 1:
            if not self.told:
                self.told = True
                self.store.say(f"note: {self.label}: the class keeps states in its modules, so sequences are run one after another, and layers are read for each")
            return {name: outcome for key, job in jobs.items() for name, outcome in self.run({key: job}).items()}
        count = torch.get_num_threads()

        def work(key, job):
            me = threading.get_ident()
            with self.turn:
                self.waiting[me] = -1
                self.turn.notify_all()
                self.turn.wait_for(lambda: self.running == me or self.stopped)
                self.waiting[me] = None
            try:
                if not self.stopped:
                    torch.set_num_threads(count)
                    done[key] = (job(), None)
            except Stopped:
                pass
            except Exception as error:
                done[key] = (None, error)
            finally:
                with self.turn:
                    del self.waiting[me]
                    self.pass_on()

        self.ranks[-1], self.current, self.stopped = -1, None, False
        try:
            for key, job in jobs.items():
                thread = threading.Thread(target=work, args=(key, job), daemon=True)
                with self.turn:
                    thread.start()
                    threads.append(thread)
                    self.turn.wait_for(lambda: thread.ident in self.waiting)
            with self.turn:
                self.pass_on()
            for thread in threads:
                thread.join()
        except BaseException:
            with self.turn:
                self.stopped = True
                self.turn.notify_all()
            raise
        return done


def decoder_layers(model):
    """The list of the model's layers: the first in its decoder with as many modules as the config says; empty where there is none."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    for within in (decoder, model):
        lists = [module for module in within.modules() if isinstance(module, torch.nn.ModuleList)] if isinstance(within, torch.nn.Module) else []
        if exact := [found for found in lists if len(found) == count]:
            return exact[0]
    return torch.nn.ModuleList()


def owners(model, layers: list) -> list:
    """Modules outside of the layers that have parameters of their own."""
    inside = {id(module) for layer in layers for module in layer.modules()}
    return [module for module in model.modules() if id(module) not in inside and any(True for _ in module.parameters(recurse=False))]


# ---------------------------------------------------------------- a choice of layers


class Rows(torch.Tensor):
    """Hidden rows that a class may take for the result of a layer, whether its layers return rows or a tuple that begins with them."""

    def __getitem__(self, index):
        return (plain_rows(self) if index == 0 else None) if isinstance(index, int) else plain_rows(self)[index]

    def __iter__(self):
        return iter((plain_rows(self), None))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*[plain_rows(value) for value in args], **{key: plain_rows(value) for key, value in (kwargs or {}).items()})


def plain_rows(value):
    if isinstance(value, (list, tuple)):
        return type(value)(plain_rows(item) for item in value)
    if not isinstance(value, Rows):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


class Skipped(torch.nn.Module):
    """A layer that is left out: gives the hidden rows on as they are, and counts the tokens in its part of a cache."""

    def __init__(self, layer, number: int):
        super().__init__()
        # In a tuple, so that it is no module of this one.
        self.number, self.stood_for = number, (layer,)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["stood_for"][0], name)

    def forward(self, *args, **kwargs):
        hidden = plain_rows(args[0] if args else kwargs["hidden_states"])
        for value in (*args, *kwargs.values()):
            if hasattr(value, "get_seq_length"):
                self.count(value, hidden)
        return hidden.as_subclass(Rows)

    def count(self, cache, hidden) -> None:
        layer = cache.layers[self.number] if self.number < len(cache.layers) else None
        if layer is None or hasattr(layer, "get_seq_length"):
            row = hidden.new_zeros((hidden.shape[0], 1, hidden.shape[-2], 1))
            cache.update(row, row, self.number)
        if layer is not None and hasattr(layer, "has_previous_state"):
            layer.has_previous_state = dict.fromkeys(layer.has_previous_state, True)


def leave_out(model, chosen: list[int]) -> None:
    """Takes all layers but these out of a model."""
    layers = decoder_layers(model)
    if not len(layers):
        raise Missing(f"the class {type(model).__name__} has no list of as many modules as its config has layers; --layers cannot tell them apart")
    model.left_out = {number for number in range(len(layers)) if number not in chosen}
    for number in model.left_out:
        layers[number] = Skipped(layers[number], number)


def layer_prefix(names, count: int) -> str | None:
    """What stands before the number of a layer in the names of a checkpoint's tensors (`model.layers`)."""
    import re

    found: dict[str, collections.Counter] = {}
    for name in names:
        if (match := re.match(r"(.+?)\.(\d+)\.", name)) and int(match[2]) < count:
            found.setdefault(match[1], collections.Counter())[int(match[2])] += 1
    text = {prefix: met for prefix, met in found.items() if not re.search(r"vision|visual|audio|image|speech|mtp", prefix)} or found
    return max(text, key=lambda prefix: (len(text[prefix]), text[prefix].total()), default=None)


def belongs(name: str, prefix: str, chosen: list[int]) -> bool:
    """A tensor is of a chosen layer, or of none."""
    if not name.startswith(f"{prefix}."):
        return True
    number = name[len(prefix) + 1 :].split(".")[0]
    return not number.isdigit() or int(number) in chosen
