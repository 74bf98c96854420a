"""Facts of a record beside the calls: the config with its defaults, modules, and where the checkpoint has each weight."""
from __future__ import annotations

import contextlib
import hashlib
import json
import math
import types
from pathlib import Path

import torch

from . import symbols
from .symbols import expression, plain


def numbers(tensor: torch.Tensor):
    """The numbers of a small constant."""
    if tensor.numel() > 64 or tensor.is_meta or tensor.is_complex():
        return None
    with torch._C.DisableTorchFunction():
        return [str(number) if not math.isfinite(number) else number for number in tensor.detach().to(torch.float64).flatten().tolist()]


def module_facts(model) -> dict:
    """Class, numbers and words of each module."""
    facts = {}
    for path, module in model.named_modules():
        values = {key: expression(value) for key, value in vars(module).items()
                  if not key.startswith("_") and key != "training" and (value is None or isinstance(value, (bool, int, float, str)))}
        facts[path] = {"class": type(module).__name__, "values": values, "children": [name for name, _ in module.named_children()]}
        functions = {key: getattr(value, "__name__", type(value).__name__) for key, value in vars(module).items() if isinstance(value, types.FunctionType)}
        if functions:
            facts[path]["functions"] = functions
    return facts


def has_symbol(item) -> bool:
    text = json.dumps(item, default=plain_json)
    return '"config"' in text


def plain_json(value):
    return plain(value) if isinstance(value, symbols.Symbol) else str(value)


def unique(decisions: list) -> list:
    seen, kept = set(), []
    for test, outcome, at in decisions:
        key = json.dumps([test, bool(outcome), at], default=plain_json)
        if key not in seen:
            seen.add(key)
            kept.append((test, outcome, at))
    return kept


def defaults(kind: type) -> dict:
    """Defaults of the config class; empty where it cannot be built alone."""
    try:
        return json.loads(kind().to_json_string(use_diff=False))
    except Exception:  # classes that require arguments have none
        return {}


def with_aliases(config, keys: dict) -> dict:
    """Keys under the names that the class uses too."""
    for name, part in list(keys.items()):
        if isinstance(part, dict) and hasattr(getattr(config, name, None), "attribute_map"):
            with_aliases(getattr(config, name), part)
    for alias, key in (getattr(type(config), "attribute_map", None) or {}).items():
        if key in keys:
            keys.setdefault(alias, keys[key])
    return keys


def attribute_map(config) -> dict[str, str]:
    """Names of keys that the class uses, and those under which configs save them: of the text model, where it has a config of its own."""
    kinds = (type(config), type(config.get_text_config()))
    return {alias: key for kind in kinds for alias, key in (getattr(kind, "attribute_map", None) or {}).items()}


def output_module(model) -> str:
    """Path of the module that gives the logits."""
    with contextlib.suppress(Exception):
        head = model.get_output_embeddings()
        return next((path for path, module in model.named_modules() if module is head), "")
    return ""


def kept_in_half(model) -> list[str]:
    """Weights that the class keeps in f32 if the run is in f16."""
    words = list(getattr(model, "_keep_in_fp32_modules", None) or [])
    return [name for name, _ in model.named_parameters() if any(f".{word}." in f".{name}." for word in words)]


def sources(folder: Path, model) -> dict[str, list]:
    """For weights that the checkpoint has under other names or in parts: the tensors that hold the same numbers."""
    from safetensors import safe_open

    by_numbers: dict[tuple, str] = {}
    names = set()
    larger: dict[str, torch.Tensor] = {}
    open_weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                names.add(name)
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point():
                    if tensor.dim() and tensor.numel() < 1 << 20:
                        larger[name] = tensor.to(torch.bfloat16)
                    by_numbers.setdefault(fingerprint(tensor), name)
    found = {}
    for name, weight in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        if weight.is_floating_point() and (name not in names or by_numbers.get(fingerprint(weight)) is None):
            parts = [{"disk": by_numbers[print_], **how} for how, part in parts_of(weight.detach()) if (print_ := fingerprint(part)) in by_numbers]
            if parts:
                found[name] = parts
            else:
                open_weights[name] = weight
    for name, weight in open_weights.items():
        rows = [{"disk": disk, "part": "rows", "from": start, "to": start + weight.shape[0]} for disk, tensor in larger.items()
                if weight.dim() and tensor.shape[1:] == weight.shape[1:] and tensor.shape[0] > weight.shape[0]
                for start in range(tensor.shape[0] - weight.shape[0] + 1) if torch.equal(tensor[start:start + weight.shape[0]], weight.detach().to(tensor.dtype))]
        pieces = pieces_of(weight.detach(), larger)
        if rows:
            found[name] = rows[:1]
        elif pieces:
            found[name] = pieces
    return found


def pieces_of(weight: torch.Tensor, tensors: dict[str, torch.Tensor]) -> list[dict]:
    """Tensors that, one below the other, are the weight; empty if there are none."""
    pieces, row = [], 0
    while weight.dim() and row < weight.shape[0]:
        fitting = [(name, tensor) for name, tensor in tensors.items() if tensor.dim() == weight.dim() and tensor.shape[1:] == weight.shape[1:]
                   and 0 < tensor.shape[0] <= weight.shape[0] - row and torch.equal(tensor, weight[row:row + tensor.shape[0]].to(tensor.dtype))]
        if not fitting:
            return []
        name, tensor = fitting[0]
        pieces.append({"disk": name, "part": "piece", "from": row, "to": row + tensor.shape[0]})
        row += tensor.shape[0]
    return pieces if len(pieces) > 1 else []


def fingerprint(tensor: torch.Tensor) -> tuple:
    """Shape and hash of a tensor's numbers as a class in bf16 has them."""
    numbers_of_run = tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy()
    return (*tensor.shape, hashlib.blake2b(numbers_of_run, digest_size=16).digest())


def parts_of(weight: torch.Tensor):
    """The whole, and for stacks each matrix with its halves, straight and turned."""
    yield {"part": "whole"}, weight
    if weight.dim() == 2:
        yield {"part": "whole", "turned": True}, weight.T
        for parts in (2, 3):
            if weight.shape[0] % parts == 0:
                for number, piece in enumerate(weight.chunk(parts)):
                    yield {"part": "share", "number": number, "of": parts}, piece
    if weight.dim() != 3:
        return
    yield {"part": "whole", "turned": True}, weight.transpose(1, 2)
    for number, matrix in enumerate(weight):
        for turned, form in ((False, matrix), (True, matrix.T)):
            how = {"index": number, "turned": turned}
            yield {"part": "matrix", **how}, form
            half = form.shape[0] // 2
            yield {"part": "first", **how}, form[:half]
            yield {"part": "second", **how}, form[half:]
            yield {"part": "even", **how}, form[::2]
            yield {"part": "odd", **how}, form[1::2]


def disk_tensors(folder: Path) -> dict[str, list[int]]:
    """Names and shapes of the checkpoint's tensors."""
    from safetensors import safe_open

    shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            shapes.update({name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()})
    return shapes


def derived_defaults(kind: type) -> dict[str, list]:
    """Keys whose default follows from other keys, as expressions: found by changing one key at a time."""
    try:
        base = plain_keys(kind())
    except Exception:
        return {}
    moved: dict[str, dict[str, dict]] = {}
    for key, value in base.items():
        if type(value) is int and 1 < value < 1 << 20 and not key.endswith("token_id"):
            for factor in (2, 4):
                with contextlib.suppress(Exception):
                    other = plain_keys(kind(**{key: value * factor}))
                    for name, result in other.items():
                        if name != key and result != base.get(name):
                            moved.setdefault(name, {}).setdefault(key, {"value": value * factor, "result": result})
    return {name: found for name, causes in moved.items() if (found := explained(name, base, causes)) is not None}


def plain_keys(config) -> dict:
    return {key: value for key, value in json.loads(config.to_json_string(use_diff=False)).items() if not isinstance(value, dict)}


def explained(name: str, base: dict, causes: dict[str, dict]) -> list | None:
    """An expression for a default that follows from one or two keys."""
    keys = list(causes)
    if type(base[name]) is not int:
        return None
    candidates = [(["config", key], lambda config, key=key: config[key]) for key in keys]
    candidates += [(["*", ["value", factor], ["config", key]], lambda config, key=key, factor=factor: factor * config[key]) for key in keys for factor in (2, 3, 4, 8)]
    for one in keys:
        for other in keys:
            candidates += [(["//", ["config", one], ["config", other]], lambda config, one=one, other=other: config[one] // config[other]),
                           (["*", ["config", one], ["config", other]], lambda config, one=one, other=other: config[one] * config[other])]
    for written, compute in candidates:
        fits = compute(base) == base[name] and all(compute({**base, key: cause["value"]}) == cause["result"] for key, cause in causes.items())
        if fits:
            return written
    return None


def modeling_module(config, folder: Path, trust: bool) -> types.ModuleType:
    """File of the class that reads this config."""
    import importlib

    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    remote = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if remote and trust:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return importlib.import_module(get_class_from_dynamic_module(remote, str(folder)).__module__)
    chosen = getattr(transformers, (config.architectures or [""])[0], None)
    if chosen is None and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        chosen = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return importlib.import_module((chosen or type(config)).__module__)
