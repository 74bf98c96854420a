"""Runs a model whose weights are read from the checkpoint when a layer multiplies by them, and dropped afterwards: `--layerwise` and `--layers`.

`Store.loading` lets transformers load a checkpoint without its bytes: names, dtypes and conversions are those of `from_pretrained`, on the meta device.
A `Weight` is put in the place of a parameter. Whatever is computed with it is computed with the numbers, which are read and converted then.
Of a table of embeddings and of stacked experts only the rows in use are read. A `Lockstep` carries several forwards through one layer before the next.
No forward of a class is taken apart for this ([decision 63](../../../docs/decisions/0063-weights-read-when-used.md)).
"""
from __future__ import annotations

import collections
import contextlib
import functools
import mmap
import warnings
from pathlib import Path

import torch

from .failures import Missing
from .layers import decoder_layers
from .weights import Piece, Plan, Slice, Weight, placed

# Numbers that are moved at a time.
CHUNK = 1 << 22


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
        core, utils = loading_modules()
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        kinds = (core.WeightRenaming, core.WeightConverter)
        places = [(utils, "convert_and_load_state_dict_in_model"), (core, "spawn_materialize"), (utils, "_get_resolved_checkpoint_files"), *((kind, "convert") for kind in kinds)]
        before = [(place, name, getattr(place, name)) for place, name in places]
        utils.convert_and_load_state_dict_in_model = functools.partial(self.load_shapes, utils.convert_and_load_state_dict_in_model, chosen)
        core.spawn_materialize = lambda _pool, tensor, _device=None, dtype=None, **_: Piece(tensor, dtype)
        for kind, convert in [(kind, kind.convert) for kind in kinds]:
            kind.convert = self.planned(convert)
        utils._get_resolved_checkpoint_files = lambda *_, **__: (list(files), None)
        self.planning = True
        try:
            yield
        finally:
            self.planning = False
            for place, name, value in before:
                setattr(place, name, value)

    def planned(self, convert):
        """The conversion of transformers, which is kept as a plan when it is run."""
        def convert_and_plan(conversion, name, *args, **kwargs):
            pieces = {pattern: list(found) for pattern, found in conversion.collected_tensors.items()}
            made = convert(conversion, name, *args, **kwargs)
            self.plans.append((Plan(conversion, convert, name, pieces, {key: value for key, value in kwargs.items() if key != "loading_info"}), list(made)))
            return made

        return convert_and_plan

    def load_shapes(self, load, chosen: list[int] | None, model, state_dict, load_config, disk_offload_index=None, **kwargs):
        """In the place of a function of transformers, `load`: loads the slices of this store, and lets layers that are not chosen lack theirs."""
        info, index = load(model=model, state_dict=dict(self.slices), load_config=load_config, disk_offload_index=disk_offload_index, **kwargs)
        if chosen is not None:
            idle = {id(value) for number, layer in enumerate(decoder_layers(model)) if number not in chosen for value in layer.state_dict(keep_vars=True).values()}
            for name, value in model.state_dict(keep_vars=True).items():
                if id(value) in idle and name in info.missing_keys:
                    info.missing_keys.discard(name)
                    value._is_hf_initialized = True
        return info, index

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
            for tensors in (module._parameters, module._buffers):
                for leaf, value in tensors.items():
                    if value is None or not value.is_meta:
                        continue
                    if id(value) in made:
                        tensors[leaf] = made[id(value)]
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
                # `patches.cast` gave a dtype to what transformers dequantized.
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
        """As `members.shake` of these parameters: weights are moved as they are read."""
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
            # As `members.shake`, a part at a time.
            moves = torch.randint(-1, 2, piece.shape, generator=generator, dtype=torch.int32) * (piece.abs() > 1e-37)
            piece.view(torch.int32).add_(moves)
        last = row is None or row + 1 == weight.shape[0]
        self.states[(index + 1, 0) if last else (index, row + 1)] = generator.get_state()
        return value

    def generator(self, index: int, row: int):
        """The generator as it is when `members.shake` reaches a row of a parameter."""
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


def return_memory() -> None:
    """Has glibc give large tensors back to the system when they are freed. It would keep them for the thread that freed them, and there are many threads."""
    import ctypes

    arenas, from_map, most = -8, -3, 1 << 20
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(arenas, 1)
        mallopt(from_map, most)


def loading_modules() -> tuple:
    """The two modules of transformers that load weights, if they are those that this program knows."""
    import transformers

    try:
        from transformers import core_model_loading, modeling_utils

        known = [(core_model_loading, "spawn_materialize"), (modeling_utils, "convert_and_load_state_dict_in_model"), (modeling_utils, "_get_resolved_checkpoint_files")]
        lacks = [name for module, name in known if not hasattr(module, name)]
    except ImportError:
        lacks = ["core_model_loading"]
    if lacks:
        raise Missing(f"transformers {transformers.__version__} loads weights in another way than this script knows (no {lacks[0]}); install transformers 5.23")
    return core_model_loading, modeling_utils
