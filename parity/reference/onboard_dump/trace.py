"""Records what a class computes: each call of torch with its operands, the modules and functions around it, and the calls of the cache.

The record is a program for one run of a few tokens. Numbers that the class read from its config keep the keys they came from.
"""
from __future__ import annotations

import contextlib
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from . import symbols
from .symbols import expression, plain, symbol
from .trace_configs import kinds_as_dtypes, layer_configs, note_truth, tests_identity
from .trace_facts import attribute_map, defaults, derived_defaults, disk_tensors, has_symbol, kept_in_half, modeling_module, module_facts, numbers, output_module, plain_json, sources, unique, with_aliases

# Reads of a tensor's properties, which compute nothing.
PROPERTIES = {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout", "data", "grad", "is_sparse", "names", "is_leaf", "grad_fn"}
SILENT = {"size", "dim", "stride", "numel", "is_floating_point", "__len__", "is_contiguous", "get_device", "storage_offset", "data_ptr", "element_size",
          "is_complex", "__hash__", "requires_grad_", "__repr__", "__format__", "untyped_storage", "_is_view", "record_stream", "nelement",
          "set_grad_enabled", "is_nested", "is_quantized", "is_mkldnn"}


# Kinds of numbers that a class passes to torch as dtypes.
KINDS = {symbols.integers: int, symbols.reals: float}


class Recorder(TorchFunctionMode):
    """Notes each call of a torch function, unless a call around it is noted as a whole."""

    def __init__(self, model):
        super().__init__()
        self.events: list[dict] = []
        self.values: dict[int, int] = {}
        self.kept: list[torch.Tensor] = []
        self.shapes: list[dict] = []
        self.depth = 0
        self.weights: dict[int, str] = {}
        self.paths: dict[int, str] = {}
        if model is not None:
            self.know(model)

    def know(self, model) -> None:
        for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
            self.weights.setdefault(id(tensor), name)
        self.paths = {id(module): path for path, module in model.named_modules()}

    def value(self, tensor: torch.Tensor, made: bool = False) -> int:
        """The number of a tensor's value; a tensor that no noted call gave gets one as a constant or weight."""
        if made or id(tensor) not in self.values:
            number = len(self.shapes)
            self.values[id(tensor)] = number
            self.kept.append(tensor)
            entry = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            if not made:
                name = self.weights.get(id(tensor))
                if name is not None:
                    entry["weight"] = name
                else:
                    entry["constant"] = numbers(tensor)
            self.shapes.append(entry)
        return self.values[id(tensor)]

    def operand(self, value):
        """An argument in JSON: `{"v": number of a value}`, a list, or an expression."""
        if isinstance(value, torch.Tensor):
            return {"v": self.value(value)}
        if isinstance(value, (list, tuple)) and not isinstance(value, symbols.Symbol):
            return [self.operand(item) for item in value]
        if isinstance(value, slice):
            return {"slice": [self.operand(value.start), self.operand(value.stop), self.operand(value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, dict) and not isinstance(value, symbols.Symbol):
            return {"map": {str(key): self.operand(item) for key, item in value.items()}}
        if callable(value) and hasattr(value, "onboard_window"):
            return {"window": value.onboard_window}
        if isinstance(value, float) and not math.isfinite(value):
            return {"e": ["value", str(float(value))]}
        return {"e": expression(value)}

    def results(self, value):
        """Numbers of the tensors that a call gave, in its order."""
        if isinstance(value, dict):
            return {"map": {str(key): self.results(item) for key, item in value.items()}}
        if isinstance(value, torch.Tensor):
            return {"v": self.value(value, made=True)}
        if isinstance(value, (list, tuple)):
            return [self.results(item) for item in value]
        return None

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        kwargs = {key: KINDS.get(value, value) if isinstance(value, type) else value for key, value in (kwargs or {}).items()}
        name = getattr(function, "__name__", str(function))
        if name == "__get__" and getattr(function, "__self__", None) is not None:
            name = getattr(function.__self__, "__name__", name)
            if name not in ("T", "mT", "real", "H"):
                return function(*args, **kwargs)
        if self.depth or name in PROPERTIES or name in SILENT or name == "__set__":
            return function(*args, **kwargs)
        operands = [self.operand(argument) for argument in args]
        named = {key: self.operand(argument) for key, argument in kwargs.items() if argument is not None}
        self.depth += 1
        try:
            value = function(*args, **kwargs)
        finally:
            self.depth -= 1
        event = {"call": name, "args": operands, "at": caller()}
        if named:
            event["named"] = named
        if name == "__setitem__":
            event["out"] = {"v": self.value(args[0], made=True)}
        elif isinstance(value, torch.Tensor) and args and value is args[0] and not name.rstrip("_") == name:
            event["out"] = {"v": self.value(value, made=True)}
        elif isinstance(value, torch.Tensor) and id(value) in self.values and any(value is argument for argument in args):
            return value
        else:
            event["out"] = self.results(value)
        self.events.append(event)
        return value

    def whole(self, name: str, call: Callable, note: dict | None = None, form: Callable | None = None):
        """A function that is noted as one call, whatever it does inside."""

        def noted(*args, **kwargs):
            if self.depth:
                return call(*args, **kwargs)
            event = {"call": name, "args": [self.operand(item) for item in args], "at": caller(), **(note or {})}
            event["named"] = {key: self.operand(item) for key, item in kwargs.items() if item is not None}
            self.depth += 1
            try:
                value = call(*args, **kwargs)
            finally:
                self.depth -= 1
            event["out"] = self.results(value if form is None else form(value))
            self.events.append(event)
            return value

        return noted

    def framed(self, name: str, call: Callable):
        """A function whose begin and end are noted around the calls inside."""

        def noted(*args, **kwargs):
            if self.depth:
                return call(*args, **kwargs)
            self.events.append({"enter": name, "args": [self.operand(item) for item in args],
                                "named": {key: self.operand(item) for key, item in kwargs.items() if item is not None}})
            value = call(*args, **kwargs)
            self.events.append({"leave": name, "out": self.known_results(value)})
            return value

        return noted

    def known_results(self, value):
        if isinstance(value, torch.Tensor):
            return {"v": self.value(value)}
        if isinstance(value, (list, tuple)):
            return [self.known_results(item) for item in value]
        return None

    def before(self, module, args, kwargs):
        if not self.depth and id(module) in self.paths:
            self.events.append({"enter": self.paths[id(module)], "module": type(module).__name__, "args": [self.operand(item) for item in args],
                                "named": {key: self.operand(item) for key, item in kwargs.items() if isinstance(item, (torch.Tensor, tuple, str))}})

    def behind(self, module, args, kwargs, value):
        if not self.depth and id(module) in self.paths:
            self.events.append({"leave": self.paths[id(module)], "out": self.known_results(value)})


def calling_frame(depth: int) -> types.FrameType | None:
    """Frame of the class's code whose call runs: the nearest that is neither torch's nor of these modules."""
    frame = sys._getframe(depth + 1)
    while frame is not None and (frame.f_code.co_filename.startswith("<") or "/torch/" in frame.f_code.co_filename or "onboard_dump" in frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def caller() -> str:
    """Place in the class's code of the call that runs."""
    frame = calling_frame(2)
    return "" if frame is None else f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


def caller_name() -> str:
    """Function of the class's code whose call runs."""
    frame = calling_frame(2)
    while frame is not None and frame.f_code.co_filename.endswith("modeling_rope_utils.py"):
        frame = frame.f_back
    return "" if frame is None else getattr(frame.f_code, "co_qualname", frame.f_code.co_name)


class Construction(TorchFunctionMode):
    """Notes the calls of torch in which a class, while it is built, uses numbers of its config."""

    def __init__(self):
        super().__init__()
        self.calls: list[dict] = []

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        written = [expression(item) for item in args if not isinstance(item, torch.Tensor)]
        if has_symbol(written):
            self.calls.append({"call": getattr(function, "__name__", ""), "args": written, "at": caller(), "in": caller_name()})
        return function(*args, **{key: KINDS.get(value, value) if isinstance(value, type) else value for key, value in (kwargs or {}).items()})


def is_modeling(name: str) -> bool:
    return ".modeling_" in name or name.startswith("modeling_") or name == "masking_utils"


@contextlib.contextmanager
def bias_switches():
    """Keeps on each module of torch the expressions of its arguments `bias` and `elementwise_affine`."""
    kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.LayerNorm)
    former = {kind: kind.__init__ for kind in kinds}

    def noting(kind):
        def build(self, *args, **kwargs):
            former[kind](self, *args, **kwargs)
            at = {torch.nn.Linear: 2, torch.nn.Conv1d: 7, torch.nn.LayerNorm: 3}[kind]
            bias = kwargs["bias"] if "bias" in kwargs else args[at] if len(args) > at else True
            self.bias_switch = written_expression(bias)
            if kind is torch.nn.Conv1d:
                self.kernel_width = kwargs["kernel_size"] if "kernel_size" in kwargs else args[2]

        return build

    for kind in kinds:
        kind.__init__ = noting(kind)
    try:
        yield
    finally:
        for kind in kinds:
            kind.__init__ = former[kind]


def written_expression(value) -> str:
    return json.dumps(expression(value), default=plain_json)


class Reads:
    """Has a config give symbols to the code of classes, and to nobody else."""

    def __init__(self, kind: type, extra: set[str]):
        self.kind, self.extra = kind, extra
        self.keys: set[str] = set()
        self.inside = 0

    def __enter__(self):
        base = self.kind.__mro__[-2]
        for candidate in self.kind.__mro__:
            if candidate.__name__ in ("PreTrainedConfig", "PretrainedConfig"):
                base = candidate
        self.base, self.former = base, base.__getattribute__
        former, reads = base.__getattribute__, self

        def read(config, key):
            computed = isinstance(getattr(type(config), key, None), property) and reads.is_reader(sys._getframe(1))
            reads.inside += computed
            try:
                value = former(config, key)
            finally:
                reads.inside -= computed
            if key.startswith("_") or callable(value):
                return value
            if not reads.is_reader(sys._getframe(1)):
                return value
            reads.keys.add(key)
            own = former(config, "__dict__")
            known = own.get("_onboard_path", "")
            if key in own.get("_onboard_layer", {}):
                known += f"per_layer_config.{own['_onboard_layer'][key]}."
            if isinstance(value, bool) and tests_identity(sys._getframe(1)):
                return note_truth(["config", f"{known}{key}"], value, sys._getframe(1))
            if type(value).__name__.endswith("Config"):
                with contextlib.suppress(Exception):
                    object.__setattr__(value, "_onboard_path", f"{known}{key}.")
                return value
            return symbol(value, ["config", f"{known}{key}"])

        base.__getattribute__ = read
        return self

    def is_reader(self, frame) -> bool:
        """Whether the code that reads is a class's, or computes a property that such code reads."""
        while frame.f_back is not None and frame.f_globals.get("__name__", "") == __name__:
            frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
        return is_modeling(name) or name in self.extra or (self.inside > 0 and "configuration_" in name)

    def __exit__(self, *_):
        self.base.__getattribute__ = self.former


# Config keys that a config lacks and a class reads with a default: the value, and its expression.
MISSING: dict[str, tuple[object, list]] = {}


def attribute(owner, name, *default):
    """`getattr` that notes which key of a config the default stands in for."""
    if not default or not type(owner).__name__.endswith("Config") or hasattr(owner, name):
        return getattr(owner, name, *default)
    value, path = plain(default[0]), vars(owner).get("_onboard_path", "").removeprefix("text_config.")
    if isinstance(value, (bool, int, float, str)) and not path:
        MISSING.setdefault(name, (value, expression(default[0])))
        return symbol(value, ["config", name])
    return default[0]


def sliding_overlay(make: Callable) -> Callable:
    """A maker of mask functions whose functions remember their window."""

    def noted(window, *args, **kwargs):
        function = make(window, *args, **kwargs)
        function.onboard_window = expression(window)
        return function

    return noted


def keep_expressions(module: types.ModuleType) -> None:
    """Lets numbers keep their expressions in the functions of Python that the code of a file calls."""
    names = vars(module)
    names["int"], names["float"], names["getattr"] = symbols.integers, symbols.reals, attribute
    names["min"], names["max"] = symbols.extreme("min"), symbols.extreme("max")
    if "math" in names:
        names["math"] = types.SimpleNamespace(**{**vars(math), "sqrt": symbols.root, "log": symbols.logarithm})


def patch_modeling(module: types.ModuleType, recorder: Recorder) -> None:
    """Frames the functions of a class's file, and lets its numbers keep their expressions."""
    keep_expressions(module)
    names = vars(module)
    for name, value in list(names.items()):
        if not isinstance(value, types.FunctionType):
            continue
        if name in ("sliding_window_overlay", "sliding_window_causal_mask_function"):
            names[name] = sliding_overlay(value)
            continue
        if name.startswith("create_") and "mask" in name:
            names[name] = recorder.whole(name, value)
        elif value.__module__ == module.__name__:
            names[name] = recorder.framed(name, value)


def patch_cache(recorder: Recorder) -> None:
    """Notes calls of the cache as wholes."""
    from transformers import cache_utils

    for name in ("update", "update_conv_state", "update_recurrent_state"):
        for kind in vars(cache_utils).values():
            if isinstance(kind, type) and kind.__name__.endswith("Cache") and name in vars(kind):
                setattr(kind, name, noted_update(recorder, name, vars(kind)[name]))


def noted_update(recorder: Recorder, name: str, former: Callable) -> Callable:
    def update(self, *args, **kwargs):
        def call(*operands, **named):
            return former(self, *operands, **named)

        return recorder.whole(f"cache.{name}", call)(*args, **kwargs)

    return update


def load_class(folder: Path, dtype: torch.dtype, reader: Callable, trust: bool):
    return reader(folder, dtype=dtype, local_files_only=True, trust_remote_code=trust, attn_implementation="eager", experts_implementation="eager",
                  ignore_mismatched_sizes=True)


def trace(folder: Path, out: Path, tokens: int, trust: bool) -> None:
    """Loads the class of a folder and writes the record of one prefill and one step."""
    import importlib

    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING, AutoConfig

    from .classes import reader

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    load = reader(config)
    recorder = Recorder(None)
    modeling = modeling_module(config, folder, trust)
    files = {modeling.__name__: modeling}
    for inner in (config.get_text_config(decoder=True), *(value for value in vars(config).values() if type(value).__name__.endswith("Config"))):
        for mapping in (MODEL_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):
            if type(inner) in mapping:
                origin = mapping[type(inner)].__module__
                files[origin] = importlib.import_module(origin)
    for value in [value for module in list(files.values()) for value in vars(module).values()]:
        origin = getattr(value, "__module__", "") or ""
        if is_modeling(origin) and "models" in origin and origin not in files:
            files[origin] = importlib.import_module(origin)
    for module in files.values():
        patch_modeling(module, recorder)
    keep_expressions(importlib.import_module("transformers.modeling_rope_utils"))
    patch_cache(recorder)
    with Reads(type(config), {"transformers.modeling_rope_utils", "transformers.masking_utils", *files}) as reads, torch.no_grad():
        with Construction() as construction, bias_switches(), layer_configs():
            model = load_class(folder, torch.bfloat16, load, trust).eval()
        recorder.know(model)
        for module in model.modules():
            module.register_forward_pre_hook(recorder.before, with_kwargs=True)
            module.register_forward_hook(recorder.behind, with_kwargs=True)
        ids = torch.arange(3, 3 + 2 * tokens).reshape(2, tokens)
        runs = []
        with recorder, layer_configs(), kinds_as_dtypes(KINDS):
            start = len(recorder.events)
            # Classes that keep their tokens may write them anew, which gives them another number.
            tokens_value = recorder.value(ids)
            result = model(input_ids=ids, use_cache=True)
            runs.append({"ids": tokens_value, "events": recorder.events[start:], "logits": recorder.value(result.logits)})
            recorder.events = []
            step = torch.tensor([[5], [7]])
            recorder.value(step)
            try:
                result = model(input_ids=step, past_key_values=result.past_key_values, use_cache=True)
                runs.append({"ids": recorder.value(step), "events": recorder.events, "logits": recorder.value(result.logits)})
            except Exception as error:  # a class whose steps need more than a cache is traced by its prefill
                runs.append({"error": f"{type(error).__name__}: {error}"})
    weights = {name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")} for name, tensor in model.named_parameters(remove_duplicate=False)}
    buffers = {name: {"shape": list(tensor.shape), "numbers": numbers(tensor)} for name, tensor in model.named_buffers()}
    record = {
        "class": type(model).__name__, "model_type": config.model_type, "file": modeling.__name__, "tokens": tokens,
        "config": with_aliases(config, json.loads(config.to_json_string(use_diff=False))), "defaults": with_aliases(config, defaults(type(config))),
        "output": output_module(model), "sources": sources(folder, model), "kept_in_half": kept_in_half(model), "derived": derived_defaults(type(config)),
        "attribute_map": attribute_map(config), "disk": disk_tensors(folder), "reads": sorted(reads.keys),
        "decisions": [{"test": test, "outcome": bool(outcome), "at": at} for test, outcome, at in unique(symbols.DECISIONS)],
        "module_order": [path for path, _ in model.named_modules()], "modules": module_facts(model), "weights": weights, "buffers": buffers, "built": construction.calls, "values": recorder.shapes, "runs": runs,
    }
    for key, (value, written) in MISSING.items():
        record["config"].setdefault(key, value)
        record["derived"].setdefault(key, written)
    out.write_text(json.dumps(record, default=plain_json))
