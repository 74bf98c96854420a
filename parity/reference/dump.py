#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.4", "transformers>=5.0", "safetensors[torch]>=0.4"]
# ///
"""Write a reference dump (docs/dump.md, version 2) of a causal language model with Hugging Face code.

    dump.py MODEL_DIR -o DUMP                     f32, bf16 and f16 runs over derived prompts
    dump.py MODEL_DIR -o DUMP --dtypes f32,bf16   fewer runs
    dump.py MODEL_DIR -o DUMP --tokens 5,17,3,9   one prompt of your own
    dump.py MODEL_DIR -o DUMP --prompts P.json    [{"name": "main", "tokens": [...], "split": 4, "taps": ["prefill", "decode"]}, ...]
    dump.py MODEL_DIR -o DUMP --import my.py      classes of your own, registered or named in config.json
    dump.py MODEL_DIR -o DUMP --trust-remote-code the classes that the checkpoint brings (auto_map)

The model is read from a local folder and nothing is fetched. Code of the checkpoint is run only when asked for.
Exit codes: 0 written, 2 could not run.
"""
from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import shutil
import struct
import sys
import threading
import time
import types
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Large pages for tensors of 2 MB and more. A run of one layer at a time makes each weight anew, and most of its time was spent on page faults.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

FORMAT, VERSION = "onboard-dump", 2
DTYPES = ("f32", "bf16", "f16")
PHASES = ("prefill", "decode")
# Packages that replace parts of a forward pass with kernels of their own: their presence changes what "the reference" is.
KERNEL_PACKAGES = ("fla", "flash_linear_attention", "mamba_ssm", "causal_conv1d", "flash_attn", "kernels", "liger_kernel", "tilelang")
# Relative errors of f32 logits up to this, or up to so many times what units in the last place of weights make, are rounding.
AUDIT_TOLERANCE, AUDIT_FACTOR = 1e-4, 8
# Prompts of up to this many tokens are also fed token by token for the audit.
STEPWISE_LIMIT = 40
# Lengths of derived prompts: of `long`, of any that has to pass a window, and of `main` where no prompt can pass it.
LONG_LENGTH, PROMPT_CAP, MAIN_CAP = 134, 160, 96
# Token streams that are tried for a `main` prompt that reaches all experts, and tokens that it may have more for that.
STREAMS, EXTRA = 16, 4
# Members of the ensemble of an f32 run and of a 16-bit run.
SHAKES, PERMUTATIONS = 7, 6
CHUNKS = (3, 1, 4, 2, 5)
# Arguments of forwards that are known to take no cache.
OTHER_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds", "labels", "use_cache", "logits_to_keep")
# In place of a distance that is not finite.
FAR = 1e30
# Bytes of a tensor up to which all of them are hashed; seconds between lines of progress meanwhile.
WHOLE, PACE = 4 << 20, 15.0
# Larger configs, and checkpoints of more tensors, are recorded by their hash alone.
MOST_CONFIG, MOST_TENSORS = 1 << 20, 20_000


class Fail(Exception):
    """A problem the caller can act on; printed without a traceback."""


class Unusable(BaseException):
    """A folder of parts that cannot be used. No failure of a job, which may be a result: it ends the dump from wherever it is found."""


def say(text: str) -> None:
    print(f"dump: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the checkpoint on disk


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


# ---------------------------------------------------------------- the model


def torch_dtype(name: str):
    import torch

    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]


def load_config(folder: Path, raw: dict, trust: bool):
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    path = folder / "config.json"
    brings = raw.get("auto_map") if isinstance(raw.get("auto_map"), dict) else {}
    if brings and not trust:
        hint = ("; the checkpoint brings code of its own (auto_map): read it, and give --trust-remote-code to run it; or, if a class of transformers is its equal, copy the "
                "folder with that class's `model_type` in config.json and without `auto_map`, and dump the copy")
    elif brings and "AutoModelForCausalLM" not in brings:
        hint = "; its `auto_map` names no AutoModelForCausalLM: add the class, or give the file that has it with --import FILE.py"
    else:
        hint = "; if the class is one of your own, give the file that has it with --import FILE.py"
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    except Exception as error:
        raise Fail(f"{path}: transformers cannot read it: {first_line(error)}{hint}") from None
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or wrapper(config) is not None
    if not known and not (trust and "AutoModelForCausalLM" in brings):
        raise Fail(f"{path}: model_type {config.model_type!r} has no causal language model in transformers{hint}")
    return config


# ---------------------------------------------------------------- code that is not of transformers


def import_files(paths: list[str], raw: dict) -> None:
    """Imports files with classes of the user's. A class that config.json names and the file does not register is registered here."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

    for text in paths:
        path = Path(text).resolve()
        if not path.is_file() or path.suffix != ".py":
            raise Fail(f"--import {text}: expected a Python file")
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            continue
        if loaded is not None:
            raise Fail(f"--import {text}: a module `{path.stem}` is loaded already; give the file another name")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise Fail(f"--import {text}: the file cannot be imported: {first_line(error)}{at(error)}") from None
        for name in raw.get("architectures") or []:
            found = getattr(module, str(name), None)
            if not isinstance(found, type) or not issubclass(found, PreTrainedModel):
                continue
            config_class = found.config_class
            if not isinstance(config_class, type) or not issubclass(config_class, PreTrainedConfig):
                raise Fail(f"--import {text}: the class {name} has no `config_class`; set it to the class of its config")
            try:
                if config_class.__module__ == path.stem:
                    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
                AutoModelForCausalLM.register(config_class, found, exist_ok=True)
            except ValueError as error:
                raise Fail(f"--import {text}: {first_line(error)}") from None


def at(error: BaseException) -> str:
    """The last place in code that is not an installed package, where an error passed one."""
    import traceback

    if (place := getattr(error, "place", None)) is not None:
        # Of a failure that an earlier process kept.
        return place
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<") and Path(f.filename).name != "dump.py"]
    return f" ({Path(ours[-1].filename).name}, line {ours[-1].lineno})" if ours else ""


def own_code(imports: list[str], trust: bool) -> dict | None:
    """What of the reference is not transformers' own: the files that were imported, and those that the checkpoint brings, with their hashes."""
    if not imports and not trust:
        return None
    folders = {Path(text).resolve().parent for text in imports}
    paths = {Path(text).resolve() for text in imports}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # Some modules of torch have a relative name of a file that is not there.
        if not file or not file.endswith(".py") or not os.path.isabs(file) or not os.path.isfile(file):
            continue
        if name.startswith("transformers_modules.") or Path(file).resolve().parent in folders:
            paths.add(Path(file).resolve())
    paths -= {Path(__file__).resolve(), Path(__file__).resolve().with_name("nextn.py")}
    # Packages of remote code have empty `__init__.py`s.
    files = sorted({(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths if path.stat().st_size})
    return {"trust_remote_code": trust, "imports": [Path(text).name for text in imports], "files": [{"file": name, "sha256": digest} for name, digest in files]}


def embedding_rows(model, vocab: int | None, notes: list[str]) -> int:
    """How many tokens the model can embed. Classes may lack `get_input_embeddings`; then the config's vocabulary is believed."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except Exception as error:
        if vocab is None:
            raise Fail(f"the class {type(model).__name__} has no usable get_input_embeddings ({first_line(error)}) and its config no vocab_size; "
                       "give it one of them, so that prompts can be chosen") from None
        notes.append(f"the class {type(model).__name__} has no get_input_embeddings: prompts are chosen by vocab_size")
        return vocab


def wrapper(config):
    """The class that puts encoders beside a text model, if the config is of one. It computes text alone as the text model does."""
    import transformers

    if config.get_text_config(decoder=True) is config:
        return None
    return next((found for name in config.architectures or [] if (found := getattr(transformers, name, None)) is not None), None)


def text_part(model) -> tuple[str, str] | None:
    """The text model of a wrapper, and its name without the wrapper."""
    config = getattr(model, "config", None)
    if config is None or config.get_text_config(decoder=True) is config:
        return None
    for path in ("language_model", "text_model", "model.language_model", "model.text_model", "thinker.model"):
        try:
            module = model.get_submodule(path)
        except AttributeError:
            continue
        return (path, "") if hasattr(module, "lm_head") else (path, "model")
    return None


# Every place where this script alters the reference, with the version of the alteration. The manifest lists those that were in force.
PATCHES = {
    "topk_first_of_equals": 1,  # `break_ties`
    "compressed_tensors_products_in_f32": 1,  # `products_in_f32`
    "experts_global_scale": 1,  # `stack` in `products_in_f32`
    "cast_after_dequantization": 1,  # `cast`
    "rows_rounded_alone": 1,  # `round_rows_alone`
    "gelu_table": 1,  # `use_gelu_table`
    "linear_inputs_contiguous": 1,  # `contiguous_inputs`
}


def load_model(folder: Path, dtype: str, trust: bool, patched: set[str]):
    """Loads the model in one dtype and returns it with notes. A tensor that the checkpoint lacks is an error: it would be random."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    loader = wrapper(config) or AutoModelForCausalLM
    notes = []
    with products_in_f32(notes, patched):
        model, info = loader.from_pretrained(
            folder,
            dtype=torch_dtype(dtype),
            local_files_only=True,
            trust_remote_code=trust,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are listed, and refused below
        )
        decompress(model, torch_dtype(dtype))
    for kind in ("missing_keys", "mismatched_keys"):
        if info.get(kind):
            names = ", ".join(mismatch_text(key) for key in sorted(info[kind], key=str)[:4])
            what = "lacks" if kind == "missing_keys" else "has in another shape"
            raise Fail(f"{folder}: the checkpoint {what} tensors of the model, which transformers would make up: {names}")
    if info.get("unexpected_keys"):
        names = sorted(info["unexpected_keys"])
        refuse_codes(folder, names)
        notes.append(f"the checkpoint has {len(names)} tensors this class does not read: {', '.join(names[:6])}")
    if "quantization_config" in read_config(folder)[1]:
        cast(model, torch_dtype(dtype), patched)
    return model.eval(), notes


@contextlib.contextmanager
def products_in_f32(notes: list[str], patched: set[str]):
    """While this lasts, compressed-tensors multiplies codes of 4 bits with their scales in f32, and what comes out is rounded to the run's dtype as
    other weights are. By itself it rounds to bf16 whatever a model runs in, which then multiplies numbers of two dtypes and fails."""
    import torch

    try:
        from compressed_tensors.compressors.nvfp4 import base as codes
        from transformers.integrations.compressed_tensors import CompressedTensorsDequantize as Stacked
    except ImportError:
        yield
        return
    unpack, convert = codes.unpack_fp4_from_uint8, Stacked.convert

    def stack(self, parts, *args, full_layer_name=None, model=None, **kwargs):
        # transformers 5.23 leaves the scale of scales out where it makes one tensor of experts.
        for packed in [key for key in parts if "weight_packed" in key]:
            local, whole = (packed.replace("weight_packed", end) for end in ("weight_scale", "weight_global_scale"))
            if whole in parts and local in parts:
                parts = parts | {local: [one.float() / both.float() for one, both in zip(parts[local], parts[whole])]}
                del parts[whole]
                patched.add("experts_global_scale")
                if not notes:
                    notes.append("transformers leaves `weight_global_scale` of experts out when it stacks them; their scales are divided by it here")
        made = convert(self, parts, *args, full_layer_name=full_layer_name, model=model, **kwargs)
        dtype = model.get_parameter(full_layer_name).dtype
        return {key: value.to(dtype) if isinstance(value, torch.Tensor) else value for key, value in made.items()}

    def unpack_in_f32(packed, rows, columns, dtype=None):
        patched.add("compressed_tensors_products_in_f32")
        return unpack(packed, rows, columns, dtype=torch.float32)

    codes.unpack_fp4_from_uint8 = unpack_in_f32
    Stacked.convert = stack
    try:
        yield
    finally:
        codes.unpack_fp4_from_uint8, Stacked.convert = unpack, convert


def decompress(model, dtype) -> None:
    """Makes numbers of the codes that compressed-tensors keeps, as the model's first forward would, and of the run's dtype."""
    compressor = getattr(getattr(model, "hf_quantizer", None), "compressor", None)
    if compressor is None or not hasattr(model, "ct_decompress_hook"):
        return
    compressor.decompress_model(model)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if getattr(module, "quantization_scheme", None) is not None and weight is not None:
            weight.data = weight.data.to(dtype)


def refuse_codes(folder: Path, unread: list) -> None:
    """transformers takes codes for weights where it does not know what quantized them."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    said = read_config(folder)[1].get("quantization_config") or {}
    method = said.get("quant_method")
    if method in AUTO_QUANTIZATION_CONFIG_MAPPING:
        return
    weights = {name.partition(".weight_scale")[0] + ".weight": name for name in unread if ".weight_scale" in name}
    lone = sorted(name for weight, name in weights.items() if weight not in unread)
    if lone:
        how = f"`quant_method` is {method!r}, which transformers does not read" if method else "config.json has no `quantization_config` with a `quant_method`"
        raise Fail(f"{folder}: transformers would take codes for weights: it passes over {len(lone)} tensors of scales, as {lone[0]}, because {how}; "
                   f"undo the quantization first (convert {folder} --to bf16 -o DIR) and dump that")


def use_gelu_table(model) -> str:
    """Puts GELU by a table in place of the model's: f16 in, f16 out, by the formula with tanh (ggml_vec_gelu_f32 in ggml-cpu/vec.h).
    llama.cpp computes it so on a CPU, and so a reference says whether it does anything else otherwise."""
    import torch

    class TableGelu(torch.nn.Module):
        def forward(self, x):
            wide = x.to(torch.float32)
            rounded = wide.half().to(torch.float32)
            inner = 0.79788456080286535587989211986876 * rounded * (1.0 + 0.044715 * rounded * rounded)
            y = (0.5 * rounded * (1.0 + torch.tanh(inner))).half().to(torch.float32)
            return torch.where(wide <= -10.0, torch.zeros_like(y), torch.where(wide >= 10.0, wide, y)).to(x.dtype)

    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            kind = type(child).__name__.lower()
            if "gelu" in kind and "quick" not in kind:
                setattr(module, name, TableGelu())
                count += 1
    if not count:
        raise Fail("--gelu-table: no module of the model is a GELU")
    return f"GELU is that of a table of f16, as llama.cpp has it, in {count} modules"


def break_ties() -> None:
    """Of equal numbers `torch.topk` takes any, which differs by length and machine. Where the last that is taken equals one that is not, the first of them are taken.
    Scores of a sparse attention's index are 0 for every key that none of its heads likes, so that this is no rare case."""
    import torch

    real = torch.topk
    if hasattr(real, "first_of_equals"):
        return

    def topk(input, k, dim=-1, largest=True, sorted=True, *, out=None):
        chosen = real(input, k, dim, largest, sorted)
        if out is not None or input.ndim == 0 or not 0 < k < input.shape[dim]:
            return chosen
        border = (chosen.values.amin if largest else chosen.values.amax)(dim, keepdim=True)
        if bool(((input == border).sum(dim) == (chosen.values == border).sum(dim)).all()):
            return chosen
        values, indices = torch.sort(input, dim=dim, descending=largest, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    topk.first_of_equals = True
    torch.topk = torch.Tensor.topk = topk


def cast(model, dtype, patched: set[str]) -> None:
    """Where transformers dequantizes while it loads, what was not quantized keeps the checkpoint's dtype, whatever was asked for. What classes keep in f32
    stays in it."""
    import torch

    if getattr(model.config, "quantization_config", None) is not None:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dtype in (torch.float16, torch.bfloat16) and tensor.dtype != dtype:
            tensor.data = tensor.data.to(dtype)
            patched.add("cast_after_dequantization")


def mismatch_text(key) -> str:
    if isinstance(key, tuple) and len(key) == 3:
        return f"{key[0]} (found {list(key[1])}, expected {list(key[2])})"
    return str(key)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text[:300]}"


def round_rows_alone(model, patched: set[str]) -> None:
    """compressed-tensors finds a scale for each place of the first two axes of what a module multiplies: that is a token where there are three axes,
    but all tokens at once where a class calls the module with two (a shared expert behind a router), and more than one in four. Engines round each
    row alone, so every such module is given three axes."""
    import torch

    def three(module, args):
        x, *others = args
        module.given = x.shape
        return (x.reshape(1, -1, x.shape[-1]), *others) if x.ndim != 3 else None

    def back(module, args, y):
        return y.reshape(*module.given[:-1], y.shape[-1]) if len(module.given) != 3 else None

    for module in model.modules():
        inputs = getattr(getattr(module, "quantization_scheme", None), "input_activations", None)
        if isinstance(module, torch.nn.Linear) and getattr(inputs, "dynamic", False):
            module.register_forward_pre_hook(three)
            module.register_forward_hook(back)
            patched.add("rows_rounded_alone")


def contiguous_inputs(model, patched: set[str]) -> None:
    """torch adds the bias of a Linear after a rounding where the input is not contiguous in memory, and before it where it is. Every input is made
    contiguous, so that results do not depend on the layout."""
    import torch

    def straight(module, args):
        x, *others = args
        if not isinstance(x, torch.Tensor) or x.is_contiguous():
            return None
        patched.add("linear_inputs_contiguous")
        return (x.contiguous(), *others)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            module.register_forward_pre_hook(straight)


def rounds(model) -> str:
    """Which matrices multiply rows that are rounded before, as a quantized checkpoint's config has them: `none`, `linear` (modules of their own, and
    not experts that the class keeps in one tensor, which are dequantized when they are loaded), or `all`."""
    import torch

    rounded = stacked = 0
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if isinstance(module, torch.nn.Linear) and getattr(scheme, "input_activations", None) is not None:
            rounded += getattr(module, "quantization_enabled", True)
        # Experts are rows of one parameter: [experts, outputs, inputs].
        own = dict(module.named_parameters(recurse=False))
        stacked += any(parameter.ndim == 3 for name, parameter in own.items() if name.endswith(("up_proj", "down_proj", "experts")))
    return "none" if not rounded else "linear" if stacked else "all"


def caches(model) -> str:
    """What keys and values are rounded to before attention sees them, with scales that are stored (`kv_cache_scheme`): `none`, `f8_e4m3`, or the
    scheme's words where it is another one."""
    found = set()
    for module in model.modules():
        args = getattr(getattr(module, "quantization_scheme", None), "input_activations", None)
        if not hasattr(module, "kv_cache") or args is None or not getattr(module, "quantization_enabled", True):
            continue
        kind, strategy = (getattr(word, "value", word) for word in (args.type, args.strategy))
        fits = (kind, args.num_bits, strategy, args.dynamic, args.symmetric) == ("float", 8, "tensor", False, True)
        symmetry = "symmetric" if args.symmetric else "asymmetric"
        found.add("f8_e4m3" if fits else f"{kind} of {args.num_bits} bits, {symmetry}, strategy {strategy}, dynamic {args.dynamic}")
    return " and ".join(sorted(found)) or "none"


def is_cache(value) -> bool:
    """True for an object that holds what a model carries from step to step: `Cache` of transformers and those of classes of their own."""
    return value is not None and any("Cache" in kind.__name__ for kind in type(value).__mro__)


def returned_cache(out):
    """The cache in an output, whatever the class calls it; None without one."""
    values = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return next((value for value in values if is_cache(value)), None)


def cache_argument(function) -> str | None:
    """The parameter of a function that is declared to take a cache, whatever its name: releases of transformers call it `past_key_values`, `cache_params` and
    `cache`. None if no annotation tells, or several do."""
    import inspect
    import re

    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if re.search(r"\w*Cache\b", str(parameter.annotation))]
    return names[0] if len(names) == 1 else None


def fed_back(model) -> str | None:
    """The argument by which a class whose forward declares no cache goes on from the one that it returns; None for a class that returns none. A class that returns
    a cache and takes it back by no argument would be dumped without its steps, so it is refused."""
    import inspect

    import torch

    def run(token: int, **cache):
        with torch.no_grad():
            return model(input_ids=torch.tensor([[token]]), use_cache=True, **cache)

    def seen(cache) -> int | None:
        length = getattr(cache, "get_seq_length", None)
        return length() if length is not None else None

    try:
        out = run(0)
    except (TypeError, ValueError):
        return None
    if returned_cache(out) is None:
        return None
    inner = getattr(model, model.base_model_prefix, model)
    named = [key for key, value in out.items() if is_cache(value)] if isinstance(out, dict) else []
    declared = [cache_argument(model.forward), cache_argument(inner.forward)]
    others = [name for function in (model.forward, inner.forward) for name, parameter in inspect.signature(function).parameters.items()
              if parameter.default is None and name not in OTHER_ARGUMENTS]
    for name in dict.fromkeys(name for name in [*named, *declared, *others] if name):
        cache = returned_cache(run(0))
        before = seen(cache)
        try:
            after = returned_cache(run(0, **{name: cache}))
        except Exception:  # noqa: BLE001
            continue
        # A class that ignores the argument begins again, with a cache of one token.
        if seen(after) == before + 1 if before is not None else after is cache:
            return name
    raise Fail(f"the forward of {type(model).__name__} returns a cache ({type(returned_cache(out)).__name__}) and takes it back by none of its arguments, so its "
               "decode would not be recorded: give its forward a parameter for the cache, annotated as `Cache | None`, and hand it to the layers")


class Runner:
    """One model, stepped chunk by chunk over one sequence with explicit positions."""

    def __init__(self, model, parts=None):
        """`parts`: keeps what jobs give, for other processes (`pieces.RunParts`)."""
        import inspect

        self.model, self.parts = model, parts
        self.params = inspect.signature(model.forward).parameters
        inner = inspect.signature(getattr(model, model.base_model_prefix, model).forward).parameters
        # A class without a cache decodes by running the whole sequence again: the tokens so far are its cache.
        self.cache_key = cache_argument(model.forward) or Work(self, {"name": lambda: fed_back(model)}, "cache-name")["name"]
        self.takes_positions = "position_ids" in self.params or "position_ids" in inner
        self.takes_types = "token_type_ids" in self.params or "token_type_ids" in inner
        self.found_type: int | None = None
        self.own_cache = None

        def takes_given() -> bool:
            self.own_cache = self.cache_of_its_own()
            return not self.own_cache

        if not Work(self, {"given": takes_given}, "cache")["given"] and self.own_cache is None:
            self.own_cache = self.cache_of_its_own()

    def begin(self, prompt: dict) -> None:
        """Called before a prompt is run again."""

    def fresh(self):
        from transformers import DynamicCache

        if self.cache_key is None:
            return []
        # Some classes keep what recurrences carry in their modules, whatever cache they are given.
        inner = getattr(self.model, self.model.base_model_prefix, None)
        if hasattr(inner, "_setup_cache"):
            inner._setup_cache(self.model.config, 1, self.model.device, self.model.dtype)
        return self.own_cache() if self.own_cache else DynamicCache(config=self.model.config)

    def cache_of_its_own(self):
        """The class of cache that the model makes when it is given none, where it takes no other; else False."""
        import torch
        from transformers import DynamicCache

        if self.cache_key is None:
            return False
        tokens = torch.tensor([[0]], dtype=torch.long)
        try:
            with torch.no_grad():
                self.model(**{"input_ids": tokens, "use_cache": True, self.cache_key: DynamicCache(config=self.model.config)})
        except ValueError:
            with torch.no_grad():
                out = self.model(input_ids=tokens, use_cache=True)
            return type(returned_cache(out))
        return False

    def prefix_type(self) -> int:
        """The `token_type_ids` of tokens that see each other: the value that makes a first token depend on those behind it."""
        import torch

        if self.found_type is None and self.takes_types:
            tokens = torch.tensor([[0, 1, 2, 3]], dtype=torch.long)
            run = lambda **types: self.model(input_ids=tokens, use_cache=False, **types).logits[0, 0]  # noqa: E731
            with torch.no_grad():
                plain = run()
                self.found_type = next((value for value in (0, 1) if not torch.equal(run(token_type_ids=torch.full_like(tokens, value)), plain)), None)
        if self.found_type is None:
            raise Fail(f"the class {type(self.model).__name__} has no bidirectional prefix: no `token_type_ids` let its first token see those behind it")
        return self.found_type

    def forward(self, tokens, start=0, cache=None, prompt=None):
        """Logits `[len, V]` as the model gives them, and the cache (None for a pass without one). `prompt`: the prompt that the tokens are the
        beginning of, where it has a prefix or documents."""
        import torch

        if prompt is not None and self.cache_key is None:
            raise Fail(f"the class {type(self.model).__name__} has no cache, so it runs no prefix and no packed documents")
        if self.cache_key is None:
            seen = [*(cache or []), *tokens]
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([seen], dtype=torch.long)).logits[0]
            return logits[len(seen) - len(tokens) :].clone(), seen if cache is not None else None
        kwargs = {"input_ids": torch.tensor([tokens], dtype=torch.long), "use_cache": cache is not None}
        if self.takes_positions:
            kwargs["position_ids"] = torch.arange(start, start + len(tokens))[None]
        if cache is not None:
            kwargs[self.cache_key] = cache
        if (prefix := (prompt or {}).get("prefix")) is not None:
            own = self.prefix_type()
            kwargs["token_type_ids"] = torch.tensor([[own if at < prefix else 1 - own for at in range(len(tokens))]])
        if (documents := (prompt or {}).get("documents")) is not None:
            if not self.takes_positions:
                raise Fail(f"the class {type(self.model).__name__} takes no `position_ids`, by which it would know packed documents")
            kwargs["position_ids"] = torch.cat([torch.arange(to - start) for start, to in spans_of(documents, len(tokens))])[None]
        with torch.no_grad():
            out = self.model(**kwargs)
        if cache is not None:
            cache = returned_cache(out) or cache
        return out.logits[0].clone(), cache


class Work:
    """Jobs by key, each of which is run when its result is asked for. Where the model is read layer by layer all are run at the first, in step, so that a
    layer is read once for all of them. What they give is kept for other processes where there is a folder for that, and taken from there."""

    def __init__(self, runner, jobs: dict, stage: str | None = None):
        """`stage`: the name of these jobs among those of the run; without it nothing is kept."""
        self.lockstep, self.jobs, self.done = getattr(runner, "lockstep", None), jobs, {}
        self.parts, self.stage = getattr(runner, "parts", None) if stage is not None else None, stage

    def __getitem__(self, key):
        if key not in self.done:
            self.make([key] if self.lockstep is None else [other for other in self.jobs if other not in self.done])
        value, error = self.done.pop(key)
        if error is not None:
            raise error
        return value

    def make(self, keys: list) -> None:
        """Runs jobs that no process has run before."""
        kept = {key: self.parts.get(self.stage, key) for key in keys} if self.parts is not None else {}
        self.done.update({key: outcome for key, outcome in kept.items() if outcome is not None})
        left = {key: self.jobs[key] for key in keys if kept.get(key) is None}
        for batch in [left] if self.lockstep is not None and left else [{key: job} for key, job in left.items()]:
            found = self.lockstep.run(batch) if self.lockstep is not None else {key: attempt(job) for key, job in batch.items()}
            for key, outcome in found.items():
                self.done[key] = outcome
                if self.parts is not None:
                    self.parts.put(self.stage, key, outcome)

    def make_mine(self) -> None:
        """Runs those of the jobs that the piece of this process has, and that are not there yet."""
        for batch in [list(self.jobs)] if self.lockstep is not None else [[key] for key in self.jobs]:
            if mine := [key for key in batch if self.parts.is_mine(self.stage, key) and not self.parts.has(self.stage, key)]:
                self.make(mine)
                lost = [error for _, error in self.done.values() if error is not None]
                missing = [key for key in mine if not self.parts.has(self.stage, key)]
                self.done.clear()
                if missing:
                    raise lost[0]

    def is_kept(self, keys=None) -> bool:
        """True if nothing of all jobs, or of these, has to be run."""
        return self.parts is not None and all(self.parts.has(self.stage, key) for key in (self.jobs if keys is None else keys))


def attempt(job) -> tuple:
    """What a job gave, or the error that ended it."""
    try:
        return job(), None
    except Exception as error:
        return None, error


def steps_of(runner, cache, counts: list[int], call) -> list:
    """What `call(number, cache)` gives, with the cache last, for forwards of so many tokens, each of which goes on from the cache of the one before."""
    lockstep = getattr(runner, "lockstep", None)
    if lockstep is not None and (found := lockstep.chain(cache, counts, call)) is not None:
        return found
    found = []
    for number in range(len(counts)):
        found.append(call(number, cache))
        cache = found[-1][-1]
    return found


# ---------------------------------------------------------------- masks


def spans_of(documents: list[int], length: int) -> list[tuple[int, int]]:
    """The first position of each document and the one past its last."""
    inside = [start for start in documents if start < length]
    return list(zip(inside, [*inside[1:], length]))


def mask_of(prompt: dict) -> dict:
    """The argument of `Runner.forward` that gives the first tokens of a prompt their mask; nothing for a causal one."""
    return {"prompt": prompt} if "prefix" in prompt or "documents" in prompt else {}


def forward_whole(runner, prompt: dict) -> tuple:
    """One forward over a whole prompt. transformers tells packed documents apart only where there is no cache."""
    if "documents" in prompt:
        return runner.forward(prompt["tokens"], 0, None, prompt)[0], None
    return runner.forward(prompt["tokens"], 0, runner.fresh(), **mask_of(prompt))


def apart(runner, prompt: dict, length: int) -> list[tuple]:
    """The logits and the cache of each document before `length`, run alone."""
    return [runner.forward(prompt["tokens"][start:to], 0, runner.fresh()) for start, to in spans_of(prompt["documents"], length)]


def rows_before(runner, prompt: dict, widths: dict) -> dict:
    """Keys and values of all documents before the last, by layer and part, with zeros in place of rows that a sliding cache has dropped."""
    found = {}
    for (start, to), (_, cache) in list(zip(spans_of(prompt["documents"], len(prompt["tokens"])), apart(runner, prompt, len(prompt["tokens"]))))[:-1]:
        for layer, kind, part, tensor in read_states(runner.model, cache, widths):
            if kind == "attention":
                dropped = tensor.new_zeros((to - start - tensor.shape[0], *tensor.shape[1:]))
                found.setdefault((layer, part), []).extend([dropped, tensor])
    return found


def states_after(runner, prompt: dict, cache, widths: dict) -> list[tuple]:
    """The states after a whole prompt: those of its cache, or of the caches of its documents, which are run alone."""
    import torch

    if "documents" not in prompt:
        return read_states(runner.model, cache, widths)
    before, start = rows_before(runner, prompt, widths), prompt["documents"][-1]
    _, cache = runner.forward(prompt["tokens"][start:], 0, runner.fresh())
    states = []
    for layer, kind, part, tensor in read_states(runner.model, cache, widths):
        if kind == "attention":
            dropped = tensor.new_zeros((len(prompt["tokens"]) - start - tensor.shape[0], *tensor.shape[1:]))
            tensor = torch.cat([*before.get((layer, part), []), dropped, tensor])
            window = window_of(cache, layer)
            if window is not None:
                tensor = tensor[max(0, tensor.shape[0] - (window - 1)) :]
            tensor = tensor.contiguous()
        states.append((layer, kind, part, tensor))
    return states


def check_apart(runner, prompt: dict, full) -> None:
    """Fails where documents that are packed differ from the same documents alone by more than rounding."""
    import torch

    alone = torch.cat([logits for logits, _ in apart(runner, prompt, len(prompt["tokens"]))])
    if (gap := relative(full, alone)) > AUDIT_TOLERANCE:
        raise Fail(f"prompt {prompt['name']}: the class {type(runner.model).__name__} does not keep packed documents apart: its logits differ from those of the "
                   f"documents alone by {gap:.1e} of the largest; give each document as a prompt of its own")


def fed_in_chunks(runner, taps, tokens: list[int], sizes, prompt=None) -> tuple:
    """Logits of all rows and, with `taps`, the rows of every module output, from a sequence fed in chunks through one cache."""
    import torch

    left, starts = list(sizes), [0]
    while starts[-1] < len(tokens):
        size = left.pop(0) if left else len(tokens) - starts[-1]
        starts.append(starts[-1] + max(1, min(size, len(tokens) - starts[-1])))

    def chunk(number, cache):
        begin, end = starts[number], starts[number + 1]
        mask = mask_of(prompt) if prompt is not None and begin == 0 else {}
        step = lambda: runner.forward(tokens[begin:end], begin, cache, **mask)  # noqa: E731
        seen, (out, cache) = taps.during(step) if taps is not None else ({}, step())
        found = {name: rows for name, tensor in seen.items() if (rows := taps.rows(name, tensor, end - begin)) is not None}
        return out, found, cache

    # The first forward makes what a cache has for each layer, by which the others are known to fit.
    first = chunk(0, runner.fresh())
    sizes = [end - begin for begin, end in zip(starts[1:], starts[2:])]
    chunks = [first, *steps_of(runner, first[-1], sizes, lambda number, cache: chunk(number + 1, cache))]
    parts = {}
    for _, found, _ in chunks:
        for name, rows in found.items():
            parts.setdefault(name, []).append(rows)
    return torch.cat([out for out, _, _ in chunks]), {name: torch.cat(rows) for name, rows in parts.items() if len(rows) == len(chunks)}


# ---------------------------------------------------------------- taps


def first_float(value):
    """The first floating-point tensor of an output, whatever it is wrapped in."""
    import torch

    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if (found := first_float(item)) is not None:
                return found
    return None


class Taps:
    """Forward hooks on every module that computes something, and the token axis of each output."""

    def __init__(self, runner: Runner, too_wide: int | None):
        """`too_wide`: the width of outputs to leave out, the logits of a large vocabulary."""
        import torch

        # Sequences that go through the layers in step have a thread each.
        self.now = threading.local()
        self.axes, self.shared, self.handles = {}, {}, []
        self.modules, self.routers = {}, None
        skip = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Dropout, torch.nn.Identity)
        part = text_part(runner.model)
        for path, module in runner.model.named_modules():
            name = path
            if part is not None:
                # Modules of the text model go by the names that they have without a wrapper; what holds them is no tap.
                outer, inner = part
                if path != outer and not path.startswith(f"{outer}.") and path != "lm_head":
                    continue
                name = path if path == "lm_head" else (inner + path[len(outer) :]).removeprefix(".")
            # Rotary tables depend on positions only, and are not values of the token stream.
            if name and not isinstance(module, skip) and not hasattr(module, "stood_for") and "rotary" not in type(module).__name__.lower():
                self.modules[name] = module
                self.handles.append(module.register_forward_hook(self.hook(name)))
                self.handles.append(module.register_forward_pre_hook(self.choice(name), with_kwargs=True))
        self.too_wide = too_wide

    def hook(self, name):
        def record(_module, _inputs, output):
            seen = getattr(self.now, "seen", None)
            if seen is not None and (tensor := first_float(output)) is not None:
                self.now.calls[name] = self.now.calls.get(name, 0) + 1
                if self.now.keep:
                    seen[name] = tensor.detach().clone()

        return record

    def choice(self, name):
        """Which experts rows were sent to, and with what weight: the module that takes both runs them."""

        def record(_module, args, kwargs):
            import torch

            if getattr(self.now, "seen", None) is None or self.routers is not None and name not in self.routers:
                return
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim == 2]
            for index in tensors:
                if index.dtype == torch.int64 and any(t.is_floating_point() and t.shape == index.shape for t in tensors):
                    self.now.chosen[name] = index.detach().to(torch.int32)

        return record

    def close(self):
        for handle in self.handles:
            handle.remove()

    @property
    def chosen(self) -> dict:
        """What routers chose in this thread's last call."""
        return getattr(self.now, "chosen", {})

    def during(self, call, keep=True):
        """`keep`: what modules give is wanted, and not routers' choices alone."""
        self.now.seen, self.now.calls, self.now.chosen, self.now.keep = {}, {}, {}, keep
        try:
            result = call()
        finally:
            seen, self.now.seen = self.now.seen, None
        for name, count in self.now.calls.items():
            if count > 1:
                self.shared[name] = count
        return seen, result

    def probe(self, runner: Runner, tokens):
        """Two lengths tell the token axis: it is the one that grows with the prompt, by as much as the prompt does."""
        short, long = (2, 5) if len(tokens) >= 5 else (1, len(tokens))
        if long == short:
            return
        def seen(count):
            return self.during(lambda: runner.forward(tokens[:count], 0, runner.fresh()))[0], self.chosen

        work = Work(runner, {count: lambda count=count: seen(count) for count in (short, long)}, "probe")
        (a, _), (b, found) = work[short], work[long]
        # A mask and the positions that follow from it look like choices too, but have an axis of sequences where those have one of tokens.
        self.routers = {name for name, chosen in found.items() if chosen.shape[0] == long}
        for name in a.keys() & b.keys():
            one, two = a[name].shape, b[name].shape
            if len(one) != len(two) or one[-1] == self.too_wide:
                continue
            axes = [axis for axis in range(len(one)) if two[axis] - one[axis] == long - short and one[axis] >= short]
            if len(axes) == 1:
                self.axes[name] = (axes[0], one[axes[0]] - short)

    def rows(self, name, tensor, count):
        """The tensor as `[count, ...]`, or None when this call's shape does not allow it."""
        axis, padding = self.axes.get(name, (None, 0))
        if axis is None or tensor.ndim <= axis or tensor.numel() == 0:
            return None
        if tensor.shape[axis] != count:
            if tensor.shape[axis] != count + padding:
                return None
            tensor = tensor.narrow(axis, 0, count)
        if axis > 0:
            if tensor.shape[0] != 1:
                return None
            tensor, axis = tensor[0], axis - 1
        return tensor.movedim(axis, 0).contiguous()


# ---------------------------------------------------------------- states


def conv_widths(model, layers: int) -> dict[int, int]:
    """Kernel width of the depthwise convolution of each layer, where it has one."""
    import torch

    widths = {}
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers:
            for index, block in enumerate(module):
                found = [m.kernel_size[0] for m in block.modules() if isinstance(m, torch.nn.Conv1d) and m.groups > 1]
                if found:
                    widths[index] = max(widths.get(index, 0), *found)
    return widths


def read_states(model, cache, widths: dict[int, int]) -> list[tuple[int, str, str, object]]:
    """(layer, kind, part, tensor) of everything the cache holds, without the batch axis."""
    import torch

    absent = getattr(model, "left_out", ())

    found = [(index, "recurrent", "recurrent", tensor[0].clone().contiguous())
             for index, tensor in enumerate(getattr(cache, "linear_cache", [])) if hasattr(tensor, "shape")]
    for index, layer in enumerate(getattr(cache, "layers", [])):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None and keys.numel() + values.numel() > 0:
            window = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
            for part, tensor in (("k", keys), ("v", values)):
                rows = tensor[0].transpose(0, 1)  # [heads, kept, dim] -> [kept, heads, dim]
                if window is not None:
                    rows = rows[max(0, rows.shape[0] - (window - 1)) :]
                found.append((index, "attention", part, rows.contiguous()))
        indexer = getattr(layer, "indexer_keys", None)
        if indexer is not None and indexer.numel() > 0:
            found.append((index, "attention", "index", indexer[0].unsqueeze(1).contiguous()))
        for kind, attribute in (("conv", "conv_states"), ("recurrent", "recurrent_states")):
            states = getattr(layer, attribute, None)
            for slot, tensor in sorted(states.items()) if isinstance(states, dict) else []:
                if tensor is None:
                    continue
                part = kind if slot == 0 else f"{kind}{slot}"
                tensor = tensor[0]
                # The oldest column of a cache as wide as the kernel is never read again.
                if kind == "conv" and tensor.ndim == 2 and tensor.shape[-1] == widths.get(index):
                    tensor = tensor[:, 1:]
                found.append((index, kind, part, tensor.clone().contiguous()))
    # States that are attributes of modules; a convolution there keeps one column less than its width.
    for index, block in enumerate(getattr(getattr(model, model.base_model_prefix, model), "layers", [])):
        for module in block.modules():
            for kind, attribute in (("conv", "conv1d_state"), ("recurrent", "recurrent_states")):
                if isinstance(tensor := getattr(module, attribute, None), torch.Tensor):
                    found.append((index, kind, kind, tensor[0].clone().contiguous()))
    return [state for state in found if state[0] not in absent]


def window_of(cache, layer: int) -> int | None:
    """The window of a layer's cache, where it slides."""
    one = cache.layers[layer]
    return getattr(one, "sliding_window", None) if getattr(one, "is_sliding", False) else None


def newest_rows(cache, absent=()) -> dict:
    """The row that was written last into the keys, values and index of every layer, by (layer, part): `[1, heads, dim]`."""
    found = {}
    for index, layer in enumerate(getattr(cache, "layers", [])):
        if index in absent:
            continue
        keys, values, indexer = (getattr(layer, name, None) for name in ("keys", "values", "indexer_keys"))
        if keys is not None and values is not None and keys.numel() + values.numel() > 0:
            for part, tensor in (("k", keys), ("v", values)):
                found[index, part] = tensor[0, :, -1:].transpose(0, 1).clone()
        if indexer is not None and indexer.numel() > 0:
            found[index, "index"] = indexer[0, -1:].unsqueeze(1).clone()
    return found


# ---------------------------------------------------------------- prompts


def rows_of(prompt: dict) -> list[int]:
    """Positions at which rows of logits and taps are recorded."""
    return prompt["rows"] if "rows" in prompt else list(range(len(prompt["tokens"])))


def decode_rows(prompt: dict) -> list[int]:
    """Those of them that decode records."""
    return [row for row in rows_of(prompt) if row >= prompt["split"]]


def snapshots_of(prompt: dict) -> list[int]:
    """Sequence lengths at which decode records the states of convolutions and recurrences."""
    if "rows" not in prompt:
        return list(range(prompt["split"], len(prompt["tokens"]) + 1))
    rows = set(decode_rows(prompt))
    return sorted({row for row in rows if row - 1 not in rows} | {row + 1 for row in rows if row + 1 not in rows})


def numbers_of(config) -> dict:
    text = config.get_text_config(decoder=True)
    values = text.to_dict()
    windows = [
        value
        for key, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
        and key in ("sliding_window", "attention_window_size", "window_size", "local_attention", "attention_chunk_size", "sliding_window_size")
    ]
    limit = next((values[key] for key in ("max_position_embeddings", "model_max_length", "n_positions", "max_seq_len", "n_ctx") if isinstance(values.get(key), int)), None)
    sizes = {value for value in values.values() if isinstance(value, int) and not isinstance(value, bool)}
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    switch = None
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) == "longrope":
        switch = rope.get("original_max_position_embeddings") or values.get("original_max_position_embeddings")
    heads = next((values[key] for key in ("num_attention_heads", "n_head", "n_heads") if isinstance(values.get(key), int)), None)
    if heads and isinstance(values.get("hidden_size"), int):
        sizes.add(values["hidden_size"] // heads)
    return {"windows": windows, "limit": limit or 1 << 30, "sizes": sizes, "switch": switch, "vocab": getattr(text, "vocab_size", None)}


def token_stream(seed: bytes, name: str, count: int, vocab: int) -> list[int]:
    """Tokens from a hash, so that they are the same in every version of Python."""
    return [int.from_bytes(hashlib.sha256(seed + f"/{name}/{index}".encode()).digest()[:8], "little") % vocab for index in range(count)]


def halved(length: int) -> int:
    """Where decode begins in a short prompt: half-way, and at most five tokens before the end."""
    return max((length + 1) // 2, length - 5)


def derive_prompts(seed: bytes, facts: dict, vocab: int, notes: list[str]) -> list[dict]:
    window, limit, switch = max(facts["windows"], default=0), facts["limit"], facts["switch"]
    length = max(11, window + 6)
    if length > PROMPT_CAP:
        notes.append(f"the main prompt is capped at {MAIN_CAP} tokens, shorter than the window of {window}: masked keys are not exercised")
        length = MAIN_CAP
    if switch and switch >= 8:
        length = min(length, switch - 1)
    length = min(length, limit)
    while length in facts["sizes"] and 4 < length < limit:
        length += 1 if not switch or length + 1 < switch else -1
    passed = [w + 6 for w in facts["windows"] if LONG_LENGTH < w and w + 6 <= PROMPT_CAP]
    long = min(max(passed, default=LONG_LENGTH), limit)
    if switch and switch + 8 > PROMPT_CAP:
        long = min(long, switch - 1)
        notes.append(f"no prompt passes original_max_position_embeddings ({switch}): the long rotary table is not exercised")
    elif switch:
        long = min(max(long, switch + 8), limit)
    up = long < limit and not switch
    while long in facts["sizes"] and 4 < long:
        long, up = (long + 1, up) if up and long < limit else (long - 1, False)
    split = max(1, min(long // 5, window - 1 if window > 1 else long // 5))
    if switch and switch + 8 <= PROMPT_CAP:
        # Above the switch the rotary tables are others; a decode that begins above it stays consistent with its prefill.
        split = switch + 3
    split = min(split, long - 1)
    # The last border of a block of 64.
    border = (long - 1) // 64 * 64
    late = {near for w in facts["windows"] for near in (w - 1, w, w + 1)} | {border, border + 1} | set(range(long - 4, long))
    prompts = [
        {"name": "one", "tokens": token_stream(seed, "one", 1, vocab), "split": 1, "taps": []},
        {"name": "two", "tokens": token_stream(seed, "two", 2, vocab), "split": 1, "taps": []},
        {"name": "main", "tokens": token_stream(seed, "main", length, vocab), "split": halved(length), "taps": ["prefill", "decode"]},
        {"name": "long", "tokens": token_stream(seed, "long", long, vocab), "split": split, "taps": ["decode"],
         "rows": sorted(row for row in late if split <= row < long)},
    ]
    return [prompt for prompt in prompts if len(prompt["tokens"]) <= limit and prompt["split"] >= 1]


def reach_experts(runner, taps, prompts: list[dict], facts: dict, seed: bytes, vocab: int) -> None:
    """Gives `main` the token stream that sends two tokens to most experts, and up to EXTRA tokens more until each has two."""
    main = next((prompt for prompt in prompts if prompt["name"] == "main"), None)
    if main is None:
        return
    length, switch = len(main["tokens"]), facts["switch"]
    most = min(length + EXTRA, facts["limit"], switch - 1 if switch and switch >= 8 else length + EXTRA)

    def choices(name: str, length: int) -> dict:
        taps.during(lambda: runner.forward(token_stream(seed, name, length, vocab), 0, runner.fresh()), keep=False)
        return taps.chosen

    def served(chosen: dict) -> int:
        """Tokens that experts get, two of each expert at most."""
        return sum(int(one.flatten().bincount().clamp(max=2).sum()) for one in chosen.values())

    best = name = None
    streams = [f"main{index}" if index else "main" for index in range(STREAMS)]
    work = Work(runner, {stream: lambda stream=stream: choices(stream, length) for stream in streams if taps.routers})
    for stream in streams:
        chosen = work[stream] if taps.routers else {}
        if not chosen:
            return
        found = served(chosen)
        wanted = sum(2 * expert_count(taps.modules[module]) for module in chosen)
        if best is None or found > best:
            best, name = found, stream
        if best == wanted:
            break
    rows = sum(one.shape[-1] for one in chosen.values())
    # More tokens are of use where they can be enough.
    while best < wanted <= most * rows and length < most:
        length += 1
        if length not in facts["sizes"]:
            best = served(choices(name, length))
    while length in facts["sizes"]:
        length -= 1
    main["tokens"], main["split"] = token_stream(seed, name, length, vocab), halved(length)


def expert_count(module) -> int:
    """How many experts a module holds: the first axis of its stacked weights, or its children; 0 where neither tells."""
    stacked = [parameter.shape[0] for parameter in module.parameters(recurse=False) if parameter.ndim == 3]
    return stacked[0] if stacked else getattr(module, "num_experts", 0) or len(getattr(module, "experts", ()) or ())


def given_prompts(args, vocab: int, limit: int) -> list[dict] | None:
    if args.tokens is not None:
        try:
            tokens = [int(piece) for piece in args.tokens.split(",")]
        except ValueError:
            raise Fail(f"--tokens {args.tokens}: expected numbers separated by commas") from None
        prompts = [{"name": "main", "tokens": tokens, "taps": True}]
    elif args.prompts is not None:
        try:
            prompts = json.loads(Path(args.prompts).read_bytes())
        except (OSError, ValueError) as error:
            raise Fail(f"{args.prompts}: {error}") from None
        if isinstance(prompts, dict):
            prompts = prompts.get("prompts")
        if not isinstance(prompts, list) or not all(isinstance(item, dict) for item in prompts):
            raise Fail(f"{args.prompts}: expected a list of objects with `name` and `tokens`")
    else:
        return None
    names, clean = set(), []
    for index, prompt in enumerate(prompts):
        where = f"prompt {prompt.get('name', index)!r}"
        tokens = prompt.get("tokens")
        if not isinstance(tokens, list) or not tokens or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
            raise Fail(f"{where}: `tokens` must be a list of at least one number")
        if bad := [t for t in tokens if not 0 <= t < vocab]:
            raise Fail(f"{where}: token {bad[0]} is outside the vocabulary of {vocab}")
        if len(tokens) > limit:
            raise Fail(f"{where}: {len(tokens)} tokens, but the model's positions end at {limit}")
        name = str(prompt.get("name", f"prompt{index}"))
        if name in names or "/" in name:
            raise Fail(f"{where}: names must differ and hold no slash")
        names.add(name)
        split = prompt.get("split", (len(tokens) + 1) // 2)
        if not isinstance(split, int) or not (1 <= split < len(tokens) or split == len(tokens) == 1):
            raise Fail(f"{where}: split {split!r} must be at least 1 and below the length {len(tokens)}")
        clean.append({"name": name, "tokens": tokens, "split": split, "taps": given_phases(where, prompt.get("taps", index == 0))})
        clean[-1] |= given_mask(where, prompt, clean[-1]["split"])
        rows = prompt.get("rows")
        if rows is not None:
            if not isinstance(rows, list) or not rows or not all(isinstance(row, int) and 0 <= row < len(tokens) for row in rows) or sorted(set(rows)) != rows:
                raise Fail(f"{where}: `rows` must be ascending positions below the length {len(tokens)}")
            clean[-1]["rows"] = rows
    if not clean:
        raise Fail("no prompts given")
    return clean


def given_mask(where: str, prompt: dict, split: int) -> dict:
    """The `prefix` or the `documents` of a given prompt."""
    whole = lambda x: isinstance(x, int) and not isinstance(x, bool)  # noqa: E731
    prefix, documents = prompt.get("prefix"), prompt.get("documents")
    if prefix is not None and documents is not None:
        raise Fail(f"{where}: `prefix` and `documents` are in one prompt, and no class runs both; give two prompts")
    if prefix is not None:
        if not whole(prefix) or not 1 <= prefix <= split:
            raise Fail(f"{where}: `prefix` {prefix!r} must be a number of tokens from 1 to the split {split}")
        return {"prefix": prefix}
    if documents is not None:
        if not isinstance(documents, list) or not documents or not all(whole(start) for start in documents) or documents != sorted(set(documents)) or documents[0] != 0 \
                or documents[-1] >= split:
            raise Fail(f"{where}: `documents` must be ascending positions that begin with 0, all below the split {split}")
        return {"documents": documents}
    return {}


def masked_prompts(seed: bytes, facts: dict, vocab: int, kinds: list[str]) -> list[dict]:
    """Prompts with a prefix, and with documents, that pass the windows; with taps in both phases."""
    window = max((w for w in facts["windows"] if w + 8 <= PROMPT_CAP), default=0)
    long, prompts = max(7, window + 2), []
    if "prefix" in kinds and long + 6 <= facts["limit"]:
        prompts.append({"name": "prefix", "tokens": token_stream(seed, "prefix", long + 6, vocab), "split": long + 2, "taps": list(PHASES), "prefix": long})
    if "documents" in kinds and 2 * long + 4 <= facts["limit"]:
        prompts.append({"name": "documents", "tokens": token_stream(seed, "documents", 2 * long + 4, vocab), "split": 2 * long, "taps": list(PHASES),
                        "documents": [0, 3, long + 3]})
    for prompt in prompts:
        # A length that is also a size of the model would hide the axis of tokens.
        while len(prompt["tokens"]) in facts["sizes"]:
            prompt["tokens"] += token_stream(seed, "more", 1, vocab)
    return prompts


def given_phases(where: str, taps) -> list[str]:
    """The phases that `taps` of a given prompt names; true means both."""
    if isinstance(taps, bool):
        return list(PHASES) if taps else []
    if not isinstance(taps, list) or any(phase not in PHASES for phase in taps):
        raise Fail(f"{where}: `taps` must be true, false or a list of {' and '.join(PHASES)}")
    return [phase for phase in PHASES if phase in taps]


# ---------------------------------------------------------------- one run


def put_logits(out: dict, prefix: str, logits, targets: list[int | None], topk: int | None) -> None:
    import torch

    if topk is None:
        out[f"{prefix}/logits"] = logits.contiguous()
        return
    logits = logits.float()
    logprobs = torch.log_softmax(logits, dim=-1)
    values, ids = torch.topk(logprobs, topk, dim=-1)
    out[f"{prefix}/top_ids"] = ids.to(torch.int32).contiguous()
    out[f"{prefix}/top_logprobs"] = values.contiguous()
    out[f"{prefix}/logsumexp"] = torch.logsumexp(logits, dim=-1).contiguous()
    picked = [float("nan") if target is None else float(logprobs[row, target]) for row, target in enumerate(targets)]
    out[f"{prefix}/target_logprobs"] = torch.tensor(picked, dtype=torch.float32)


def put_chosen(out: dict, prefix: str, steps: list[dict], rows: int) -> None:
    """The choices of every router, one row per token."""
    import torch

    for name in steps[0] if steps else ():
        parts = [step[name] for step in steps if name in step]
        if sum(part.shape[0] for part in parts) == rows:
            out[f"{prefix}/chosen/{name}"] = torch.cat(parts).contiguous()


class Recorded:
    """Logits and module outputs of one prompt: `full` of every position, the others at the prompt's rows; and the states after the prefill."""

    def __init__(self, full, prefill_taps: dict):
        self.full, self.prefill_taps, self.states = full, prefill_taps, {}
        self.decoded, self.decode_taps = full[:0], {}


def record_prompt(out, kinds, runner, taps, run, prompt, topk, widths, notes) -> Recorded:
    """Runs both phases of one prompt and puts what they gave into `out`."""
    import torch

    tokens, split = prompt["tokens"], prompt["split"]
    length = len(tokens)
    base = f"{run}/{prompt['name']}"
    targets = tokens[1:] + [None]
    rows, late = rows_of(prompt), decode_rows(prompt)

    packed, begin = "documents" in prompt, prompt.get("documents", [0])[-1]

    seen, (full, cache) = taps.during(lambda: forward_whole(runner, prompt), keep="prefill" in prompt["taps"])
    if packed and run == "f32":
        check_apart(runner, prompt, full)
    put_logits(out, f"{base}/prefill", full[rows], [targets[row] for row in rows], topk)
    put_chosen(out, f"{base}/prefill", [taps.chosen], length)
    found = Recorded(full, {})
    if "prefill" in prompt["taps"]:
        for name, tensor in seen.items():
            if (values := taps.rows(name, tensor, length)) is not None:
                found.prefill_taps[name] = out[f"{base}/prefill/tap/{name}"] = values if len(rows) == length else values[rows].contiguous()
        for layer, kind, part, tensor in states_after(runner, prompt, cache, widths):
            found.states[layer, part] = out[f"{base}/prefill/state/{layer}/{part}"] = tensor
            kinds.setdefault((layer, kind), []).append(part)

    wanted, lengths = "decode" in prompt["taps"], prompt.get("snapshots", [])
    # Decode continues the last document, which knows nothing of the others.
    _, cache = runner.forward(tokens[begin:split], 0, runner.fresh(), **({} if packed else mask_of(prompt)))
    streams, snapshots, states = {}, {}, read_states(runner.model, cache, widths) if wanted else []
    before = rows_before(runner, prompt, widths) if packed and wanted else {}
    for layer, kind, part, tensor in states:
        if kind == "attention":
            dropped = tensor.new_zeros((max(0, split - begin - tensor.shape[0]), *tensor.shape[1:]))
            streams[layer, part] = [*before.get((layer, part), []), dropped, tensor]
        elif split in lengths:
            snapshots[layer, part] = [tensor]
    logits, steps, chosen = [], {}, []

    def step(number, cache):
        at = split + number
        seen, (row, cache) = taps.during(lambda: runner.forward(tokens[at : at + 1], at - begin, cache), keep=wanted and at in late)
        newest = newest_rows(cache, getattr(runner.model, "left_out", ())) if wanted else {}
        now = read_states(runner.model, cache, widths) if wanted and (at + 1 in lengths or at + 1 == length) else []
        if at + 1 < length:
            # Keys and values are read at the end.
            now = [state for state in now if state[1] != "attention"]
        tapped = {name: values for name, tensor in seen.items() if (values := taps.rows(name, tensor, 1)) is not None} if wanted and at in late else {}
        return at, row if at in late else None, taps.chosen, tapped, newest, now, cache

    for at, row, routed, tapped, newest, now, _ in steps_of(runner, cache, [1] * (length - split), step):
        chosen.append(routed)
        if row is not None:
            logits.append(row)
        for name, values in tapped.items():
            steps.setdefault(name, []).append(values)
        for key, rows_ in newest.items():
            streams.setdefault(key, [rows_.new_zeros((at, *rows_.shape[1:]))]).append(rows_)
        if at + 1 == length and wanted:
            states = now
        if at + 1 in lengths:
            for layer, kind, part, tensor in now:
                if kind != "attention":
                    snapshots.setdefault((layer, part), []).append(tensor)
    if logits:
        found.decoded = torch.cat(logits)
    put_logits(out, f"{base}/decode", found.decoded, [targets[row] for row in late], topk)
    put_chosen(out, f"{base}/decode", chosen, length - split)
    for name, values in steps.items():
        if len(values) == len(late):
            found.decode_taps[name] = out[f"{base}/decode/tap/{name}"] = torch.cat(values).contiguous()
    for layer, kind, part, last in states:
        if kind == "attention":
            whole = torch.cat(streams[layer, part]).contiguous()
            if whole.shape[0] != length or not torch.equal(whole[length - last.shape[0] :], last):
                notes.append(f"{base}: the cache of layer {layer} does not add one row of {part} per step; its decode state is left out")
                continue
        elif len(snapshots.get((layer, part), [])) == len(lengths):
            whole = torch.stack(snapshots[layer, part]).contiguous()
        else:
            notes.append(f"{base}: layer {layer} lacks {part} at some lengths; its decode state is left out")
            continue
        out[f"{base}/decode/state/{layer}/{part}"] = whole
        kinds.setdefault((layer, kind), []).append(part)
    return found


def greedy_tokens(runner: Runner, taps: Taps, tokens: list[int], count: int, whole: bool) -> tuple[list[int], list[dict]]:
    """The tokens, and what routers chose while each but the first was made. `whole`: by one forward over everything for
    each token, where a cache is not to be believed; what routers chose is then not compared."""
    if whole:
        made = []
        for _ in range(count):
            made.append(int(runner.forward(tokens + made)[0][-1].argmax()))
        return made, []
    rows, cache = runner.forward(tokens, 0, runner.fresh())
    made, chosen = [], []
    for step in range(count):
        made.append(int(rows[-1].argmax()))
        if step + 1 < count:
            _, (rows, cache) = taps.during(lambda step=step, cache=cache: runner.forward(made[-1:], len(tokens) + step, cache), keep=False)
            chosen.append(taps.chosen)
    return made, chosen


def relative(ours, truth) -> float:
    import torch

    if ours.numel() == 0:
        return 0.0
    ours, truth = ours.float(), truth.float()
    gap = float((ours - truth).abs().max() / truth.abs().max().clamp_min(1e-30))
    return gap if torch.isfinite(torch.tensor(gap)) else float("inf")


def chunk_sizes(prompt: dict, switch) -> list[int]:
    """Sizes of chunks that cover a prompt; none of them crosses a switch of rotary tables."""
    length = len(prompt["tokens"])
    sizes = [prompt["split"]] if switch is not None and length > switch < prompt["split"] else [prompt["prefix"]] if "prefix" in prompt else []
    while sum(sizes) < length:
        sizes += CHUNKS
    return sizes


def audit_jobs(runner, taps, prompts: list[dict], switch, run: str) -> dict:
    """What `audit_run` compares, by prompt and kind: a pass without a cache, chunks, and single tokens."""
    jobs = {}
    for prompt in prompts:
        name, tokens = prompt["name"], prompt["tokens"]
        if "documents" in prompt:
            # No cache continues several documents, and `check_apart` compares them with each alone.
            continue
        mask = mask_of(prompt)
        if run == "f32":
            jobs[name, "plain"] = lambda tokens=tokens, mask=mask: runner.forward(tokens, 0, None, **mask)[0]
        if len(tokens) > 1:
            tapped, sizes = taps if "prefill" in prompt["taps"] else None, chunk_sizes(prompt, switch)
            jobs[name, "chunks"] = lambda tapped=tapped, tokens=tokens, sizes=sizes, prompt=prompt: fed_in_chunks(runner, tapped, tokens, sizes, prompt)
        if 1 < len(tokens) <= STEPWISE_LIMIT:
            jobs[name, "steps"] = lambda tokens=tokens, prompt=prompt: fed_in_chunks(runner, None, tokens, [prompt.get("prefix", 1)] + [1] * len(tokens), prompt)[0]
    return jobs


def audit_run(prompts, recorded, work, switch, run: str, notes: list[str]) -> tuple[dict, dict, str | None]:
    """Compares decode, chunks and single tokens with one forward. Returns the largest relative errors, what chunks gave per prompt, and why that
    is not complete."""
    decode = chunked = 0.0
    pieces, why = {}, None
    for prompt, found in zip(prompts, recorded):
        tokens, split, full = prompt["tokens"], prompt["split"], found.full
        crossing = switch is not None and len(tokens) > switch
        decode = max(decode, relative(found.decoded, full[decode_rows(prompt)]))
        if "documents" in prompt:
            continue
        if run == "f32":
            if (gap := relative(work[prompt["name"], "plain"], full)) > AUDIT_TOLERANCE:
                notes.append(f"{run}/{prompt['name']}: a pass without a cache differs from a pass with an empty one by {gap:.1e} of the largest logit")
        if len(tokens) < 2:
            continue
        if why is None:
            try:
                pieces[prompt["name"]] = work[prompt["name"], "chunks"]
                chunked = max(chunked, relative(pieces[prompt["name"]][0], full))
            except Exception as error:
                why = first_line(error)
                if run == "f32":
                    notes.append(f"f32/{prompt['name']}: several tokens on a cache that is not empty fail: {why}")
        stepwise = relative(work[prompt["name"], "steps"], full) if len(tokens) <= STEPWISE_LIMIT else None
        if crossing and split > switch:
            if run == "f32":
                apart = "" if stepwise is None else f" by {stepwise:.1e} of the largest logit"
                notes.append(
                    f"f32/{prompt['name']}: the rotary tables switch at position {switch} per forward and cached keys are not rotated again, so a "
                    f"sequence decoded across it differs from its prefill{apart}; this prompt's decode starts above it"
                )
        elif stepwise is not None:
            decode = max(decode, stepwise)
    return {"decode_vs_prefill": float(f"{decode:.3g}"), "chunked_vs_prefill": float(f"{chunked:.3g}")}, pieces, why


# ---------------------------------------------------------------- the ensemble


def shake(model, sign: int, seed: int) -> None:
    """Moves about two thirds of all weights by one unit in the last place of f32, up or down; the same seed and the other sign take it back."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.dtype == torch.float32:
            # Bits count up with size. Zeros and subnormal numbers stay, so that what moved is known afterwards too.
            moves = torch.randint(-1, 2, p.shape, generator=generator, dtype=torch.int32) * (p.detach().abs() > 1e-37)
            p.data.view(torch.int32).add_(sign * moves)


@contextlib.contextmanager
def shaken(model, seed: int):
    if (store := getattr(model, "weight_store", None)) is not None:
        with store.shaken(seed, list(model.parameters())):
            yield
        return
    shake(model, 1, seed)
    try:
        yield
    finally:
        shake(model, -1, seed)


@contextlib.contextmanager
def in_f64(model):
    """Computes with weights of 64 bits while this lasts."""
    import torch

    store = getattr(model, "weight_store", None)
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if store is None or not store.holds(tensor)]
    kept = [(tensor, tensor.data) for tensor in own if tensor.dtype == torch.float32]
    try:
        for tensor, data in kept:
            tensor.data = data.double()
        with store.in_f64() if store is not None else contextlib.nullcontext():
            yield
    finally:
        for tensor, data in kept:
            tensor.data = data


@contextlib.contextmanager
def with_sdpa(model):
    """Computes attention by torch's `scaled_dot_product_attention` while this lasts."""
    try:
        model.set_attn_implementation("sdpa")
        if (used := getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)) != "sdpa":
            raise Fail(f"the class stays with {used}")
        yield
    finally:
        model.set_attn_implementation("eager")


@contextlib.contextmanager
def permuted(seed: int):
    """Sums every linear product in another order while this lasts: rows and the weight's columns are permuted alike."""
    import torch
    from torch.nn import functional

    real, orders = functional.linear, {}
    generator = torch.Generator().manual_seed(seed)

    def linear(x, weight, bias=None):
        if weight.ndim != 2:
            return real(x, weight, bias)
        if (width := weight.shape[-1]) not in orders:
            orders[width] = torch.randperm(width, generator=generator)
        return real(x[..., orders[width]], weight[:, orders[width]], bias)

    functional.linear = linear
    try:
        yield
    finally:
        functional.linear = real


def tap_distances(base, member, first: int):
    """The distance of each row from the base's rows from `first` on: rms of the difference over the rms of the row, or over a twentieth of that of all
    rows where that is more."""
    import torch

    base, member = base.double().flatten(1), member.double().flatten(1)
    squares = torch.where(base.isfinite(), base, 0.0).square()
    least = 0.05 * float(squares.mean().sqrt())
    base, squares = base[first:], squares[first:]
    gap = torch.where(base == member, 0.0, member - base).square().mean(1).sqrt()
    gap = torch.where(gap == 0, 0.0, gap / squares.mean(1).sqrt().clamp_min(least))
    return torch.where(gap.isfinite(), gap, FAR)


def state_distance(base, member) -> float:
    """The rms of the difference over the rms of the base."""
    import torch

    base, member = base.double(), member.double()
    gap = torch.where(base == member, 0.0, member - base).square().mean().sqrt()
    gap = float(gap / base.square().mean().sqrt() if gap != 0 else gap)
    return gap if gap < FAR else FAR


def logit_distances(base, member):
    """`[2, rows]`: the rms difference of log-probabilities, and the KL divergence of the member from the base. `base` are log-probabilities in f64."""
    import torch

    there = base.isfinite()
    gap = torch.where(there, torch.log_softmax(member.double(), -1) - base, 0.0)
    rms = (gap.square().sum(-1) / there.sum(-1)).sqrt()
    both = torch.stack([rms, (torch.where(there, base.exp(), 0.0) * -gap).sum(-1).clamp_min(0.0)])
    return torch.where(both.isfinite(), both, FAR)


def forward_members(run: str, model=None) -> list[tuple]:
    """The members that run one forward over each prompt, in the order of the manifest, and the contexts that they run in."""
    if run == "f32":
        return [*((f"shaken{seed}", shaken(model, seed)) for seed in range(SHAKES)), ("f64", in_f64(model))]
    return [("sdpa", with_sdpa(model)), *((f"permuted{seed}", permuted(seed)) for seed in range(PERMUTATIONS))]


def has_members(prompt: dict) -> bool:
    """Prompts of one or two tokens have no ensemble."""
    return len(prompt["tokens"]) > 2


def member_forward(runner, taps, prompt: dict, widths: dict[int, int]) -> tuple:
    """The logits of all positions, and the rows of taps and the states after the prefill where the prompt has them."""
    tokens, rows, tapped = prompt["tokens"], rows_of(prompt), "prefill" in prompt["taps"]
    runner.begin(prompt)
    seen, (logits, cache) = taps.during(lambda: forward_whole(runner, prompt), keep=tapped)
    states = {(layer, part): tensor for layer, _, part, tensor in states_after(runner, prompt, cache, widths)} if tapped else {}
    found = {key: values[rows] for key in seen if (values := taps.rows(key, seen[key], len(tokens))) is not None} if tapped else {}
    return logits, found, states


def member_work(runner, taps, prompts: list[dict], widths: dict[int, int], member: str) -> Work:
    return Work(runner, {prompt["name"]: lambda prompt=prompt: member_forward(runner, taps, prompt, widths) for prompt in prompts}, member)


class Ensemble:
    """How far runs that differ by rounding alone are from the f32 run's prefill, by prompt: rows of logits and of each tap, and states."""

    def __init__(self, prompts: list[dict], recorded: list[Recorded], widths: dict[int, int], only: tuple = ()):
        """`only`: the beginnings of the names of members that are made, where not all are."""
        import torch

        self.prompts = [prompt for prompt in prompts if has_members(prompt)]
        found = {prompt["name"]: one for prompt, one in zip(prompts, recorded)}
        self.logits = {prompt["name"]: torch.log_softmax(found[prompt["name"]].full[rows_of(prompt)].double(), -1) for prompt in self.prompts}
        self.taps = {prompt["name"]: found[prompt["name"]].prefill_taps for prompt in self.prompts}
        self.full = {prompt["name"]: found[prompt["name"]].full for prompt in self.prompts}
        self.states = {prompt["name"]: found[prompt["name"]].states for prompt in self.prompts}
        self.widths, self.only = widths, only
        # The largest relative error of logits that weights moved by a unit in the last place make.
        self.shaken = 0.0

    def tolerance(self) -> float:
        return max(AUDIT_TOLERANCE, AUDIT_FACTOR * self.shaken)

    def distances(self, prompt: dict, logits, taps: dict, states: dict, first=0) -> tuple:
        """Of one member on one prompt, whose tensors hold the prompt's rows from `first` on. `states` are those after a prefill."""
        import torch

        def whole(values):
            return torch.cat([values.new_zeros((*values.shape[:-1], first)), values], -1)

        base = self.taps[prompt["name"]]
        near = {key: whole(tap_distances(base[key], values, first)) for key, values in taps.items() if key in base and values.shape[1:] == base[key].shape[1:]}
        kept = self.states[prompt["name"]]
        far = {key: state_distance(kept[key], values) for key, values in states.items() if key in kept and values.shape == kept[key].shape}
        return whole(logit_distances(self.logits[prompt["name"]][first:], logits)), near, far

    def forward_distances(self, prompt: dict, found: tuple, member: str) -> tuple:
        """Of a member that ran one forward over a prompt (`member_forward`)."""
        logits, taps, states = found
        if member.startswith("shaken"):
            self.shaken = max(self.shaken, relative(logits, self.full[prompt["name"]]))
        return self.distances(prompt, logits[rows_of(prompt)], taps, states)

    def run(self, runner, taps, run: str, recorded: dict, pieces: dict, barred) -> tuple[dict, dict]:
        """All members of one run, without those that `barred` gives a reason for. Returns the manifest's entry, and the largest distances by prompt."""
        import torch

        def own(prompt):
            found = recorded[prompt["name"]]
            return self.distances(prompt, found.full[rows_of(prompt)], found.prefill_taps, found.states)

        def decode(prompt):
            found = recorded[prompt["name"]]
            return self.distances(prompt, found.decoded, found.decode_taps, {}, len(rows_of(prompt)) - len(decode_rows(prompt)))

        def chunks(prompt):
            rows, (logits, found) = rows_of(prompt), pieces[prompt["name"]]
            return self.distances(prompt, logits[rows], {key: values[rows] for key, values in found.items()}, {})

        plain = contextlib.nullcontext()
        if run == "f32":
            members = [(name, context, None) for name, context in forward_members(run, runner.model)] + [("decode", plain, decode)]
        else:
            members = [("own", plain, own), ("decode", plain, decode), *((name, context, None) for name, context in forward_members(run, runner.model))]
            # `chunks` is the fourth, in the order of the manifest.
            members.insert(3, ("chunks", plain, chunks))
        if self.only:
            members = [member for member in members if member[0].startswith(self.only)]

        ran, failed, most = [], {}, {}
        for member, context, each in members:
            try:
                if (why := barred(member)) is not None:
                    raise Fail(why)
                if each is not None:
                    # No cache continues several documents.
                    able = [prompt for prompt in self.prompts if each is not chunks or "documents" not in prompt]
                    made = {prompt["name"]: each(prompt) for prompt in able}
                else:
                    work = member_work(runner, taps, self.prompts, self.widths, member)
                    with plain if work.is_kept() else context:
                        made = {prompt["name"]: self.forward_distances(prompt, work[prompt["name"]], member) for prompt in self.prompts}
            except Exception as error:
                failed[member] = str(error) if isinstance(error, Fail) else first_line(error).split(". ")[0]
                continue
            ran.append(member)
            for name, (logits, near, far) in made.items():
                old, others, states = most.setdefault(name, (logits, {}, {}))
                most[name] = torch.maximum(old, logits), others, states
                for key, values in near.items():
                    others[key] = torch.maximum(others[key], values) if key in others else values
                for key, value in far.items():
                    states[key] = max(value, states.get(key, 0.0))
        return {"ran": ran, "failed": failed}, most


def put_spread(out: dict, run: str, prompts: list[dict], most: dict, taps: list[str], states: list[dict]) -> None:
    """The largest distances of a run's members; taps and states are those of the manifest, and -1 means one that prefill does not have."""
    import torch

    for prompt in prompts:
        if prompt["name"] not in most:
            continue
        logits, near, far = most[prompt["name"]]
        out[f"{run}/{prompt['name']}/spread/logits"] = logits.float().contiguous()
        if "prefill" in prompt["taps"]:
            none = torch.full((len(rows_of(prompt)),), -1.0, dtype=torch.float64)
            out[f"{run}/{prompt['name']}/spread/taps"] = torch.stack([near.get(name, none) for name in taps]).float().contiguous()
        if far:
            ordered = [far.get((entry["layer"], part), -1.0) for entry in states for part in entry["parts"]]
            out[f"{run}/{prompt['name']}/spread/states"] = torch.tensor(ordered, dtype=torch.float32)


# ---------------------------------------------------------------- the whole


def dump(args) -> None:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    break_ties()

    folder, target = Path(args.model), Path(args.out)
    if args.pieces is not None and target.resolve() in (Path(args.pieces).resolve(), *Path(args.pieces).resolve().parents):
        raise Fail(f"--pieces {args.pieces}: lies in the dump's own folder, which is replaced when the dump is written; give another folder")
    if args.piece is None and target.exists() and not ((target / "manifest.json").is_file() or (target.is_dir() and not any(target.iterdir()))):
        raise Fail(f"{target}: exists and is not a dump; choose another folder")
    if args.merge and (target / "manifest.json").is_file():
        raise Fail(f"{target}: is a dump already, and the merge would replace it; remove it, or choose another folder")
    raw, plain = read_config(folder)
    layerwise = load_beside("layerwise") if args.layerwise else None
    import_files(args.imports, plain)
    config = load_config(folder, plain, args.trust_remote_code)
    facts = numbers_of(config)
    notes: list[str] = []
    choice = chosen_layers(args, folder, config, layerwise, notes) if args.layers else None
    wanted = (lambda name: layerwise.belongs(name, choice["prefix"], choice["chosen"])) if choice else None
    files = weight_files(folder, wanted)
    weights_hash, stored, tensors = hash_weights(files, wanted)
    if choice is None:
        check_layer_count(folder / "config.json", plain, len(tensors))
    kernels = []
    for package in KERNEL_PACKAGES:
        if importlib.util.find_spec(package) is not None:
            try:
                kernels.append(f"{package} {importlib.metadata.version(package.replace('_', '-'))}")
            except importlib.metadata.PackageNotFoundError:
                kernels.append(package)
    if kernels:
        say(f"warning: kernel packages are installed and may replace parts of the reference: {', '.join(kernels)}")
        notes.append(f"kernel packages present: {', '.join(kernels)}")

    config_hash = hashlib.sha256(raw)
    nextn, heads, head_out = load_beside("nextn", None), {}, {}
    parts = None
    if args.pieces is not None:
        parts = open_parts(args, config, facts, inputs_of(args, raw, weights_hash), nextn if choice is None else None)
        if args.plan:
            print(parts.lines(args.piece[1] if args.piece else 1))
            return
        if args.merge:
            parts.require_all()
        if parts.piece is not None and parts.finished():
            say(f"{args.pieces}: piece {args.piece[0] + 1}/{args.piece[1]} is made already")
            return
    rounded = kept = "none"
    out, kinds, audit, greedy, runs = {}, {}, {}, {}, []
    members, spread, ensemble, tolerance, patched = {}, {}, None, AUDIT_TOLERANCE, {"topk_first_of_equals"}
    prompts = vocab = topk = architecture = None
    shared: dict[str, int] = {}
    tools = types.SimpleNamespace(torch_dtype=torch_dtype, Taps=Taps, record_prompt=record_prompt, audit_run=audit_run, audit_jobs=audit_jobs, Work=Work, snapshots_of=snapshots_of,
                                  barred_member=barred_member, Ensemble=None if args.no_members else Ensemble, head_ensemble=None, tolerance=AUDIT_TOLERANCE, cache_argument=cache_argument)
    for run in args.dtypes:
        if parts is not None and not parts.wants(run, run == args.dtypes[0]):
            continue
        say(f"{folder.name}: loading in {run}")
        try:
            if layerwise is not None:
                store = layerwise.Store(entries_of(files, wanted), int(args.resident * 1e9), say)
                with store.loading([str(path) for path in files], choice and choice["chosen"]):
                    model, loading = load_model(folder, run, args.trust_remote_code, patched)
                if choice is not None:
                    layerwise.leave_out(model, choice["chosen"])
                store.plant(model)
                model.weight_store = store
            else:
                model, loading = load_model(folder, run, args.trust_remote_code, patched)
            round_rows_alone(model, patched)
            contiguous_inputs(model, patched)
            if args.gelu_table:
                loading = [*loading, use_gelu_table(model)]
                patched.add("gelu_table")
        except Fail:
            raise
        except Exception as error:
            raise Fail(f"{folder}: transformers cannot load it: {first_line(error)}{at(error)}") from None
        try:
            runner = Runner(model, None if parts is None else parts.of_run(run, patched, at, {"recorded": Recorded}))
        except Exception as error:
            raise Fail(f"{folder}: the class {type(model).__name__} cannot be run with `input_ids` and a cache: {first_line(error)}{at(error)}") from None
        if layerwise is not None:
            runner.lockstep = layerwise.Lockstep(model, store, f"{folder.name}: {run}")
        if prompts is None:
            notes += loading
            architecture = type(model).__name__
            if runner.cache_key is None and (args.imports or args.trust_remote_code):
                notes.append(f"the forward of {type(model).__name__} takes no cache: every step runs the whole sequence again, and neither states nor ops of decode are recorded")
                say(f"note: {notes[-1]}")
            rounded, kept = rounds(model), caches(model)
            rows = embedding_rows(model, facts["vocab"], notes)
            known = min(facts["vocab"] or rows, rows)
            prompts = given_prompts(args, known, facts["limit"])
            derived = prompts is None
            if derived:
                prompts = derive_prompts(config_hash.digest(), facts, known, notes)
                # A config that declares a prefix has it run.
                declared = ["prefix"] if getattr(config.get_text_config(decoder=True), "prefix_lm", False) else []
                prompts += masked_prompts(config_hash.digest(), facts, known, [*declared, *args.masks])
            for prompt in prompts:
                # A class without a cache has no states, and a step of it is a forward over everything.
                lost = PHASES if args.no_taps else () if runner.cache_key else ("decode",)
                prompt["taps"] = [phase for phase in prompt["taps"] if phase not in lost]
            chosen_before = parts.get(("", "prompts")) if parts is not None else None
            if chosen_before is not None:
                prompts, vocab = chosen_before["value"]
            else:
                vocab = runner.forward(prompts[0]["tokens"][:1])[0].shape[-1]
            topk = None if vocab <= args.full_vocab_limit else min(args.topk, vocab)
        taps = Taps(runner, None if topk is None else vocab)
        if parts is not None:
            runner.parts.taps = taps
        try:
            # Tensors are gathered apart per run, so that a run that fails half-way leaves nothing behind.
            mine, seen_kinds, recorded = {}, {}, []
            if any("prefix" in prompt for prompt in prompts):
                # Here, since modules that run twice in one forward are not tapped.
                runner.prefix_type()
            taps.probe(runner, (max((prompt["tokens"] for prompt in prompts), key=len) * 5)[: min(5, facts["limit"])])
            if chosen_before is None:
                if derived and not runs:
                    reach_experts(runner, taps, prompts, facts, config_hash.digest(), known)
                if parts is not None:
                    parts.put(("", "prompts"), {"value": (prompts, vocab)})
                    chosen_before = parts
            layers = len(getattr(runner.fresh(), "layers", []))
            widths = conv_widths(model, layers)
            jobs = {}
            for prompt in prompts:
                if "decode" in prompt["taps"]:
                    prompt["snapshots"] = snapshots_of(prompt)

                def record(prompt=prompt, apart=(runner, taps, run)):
                    say(f"{folder.name}: {run}: prompt {prompt['name']} of {len(prompt['tokens'])} tokens")
                    pieces, met, remarks = {}, {}, []
                    return record_prompt(pieces, met, *apart, prompt, topk, widths, remarks), pieces, met, remarks

                jobs[prompt["name"], "record"] = record
            main, count = greedy_count(args, prompts, facts)

            def head_of_run(apart=(tools, model, folder, weight_files(folder, wanted), run, prompts, facts["switch"])):
                made, remarks = {}, []
                return nextn.record(*apart, topk, made, remarks), made, remarks

            # A head's jobs are not those of the model's layers, which run in step.
            head = Work(types.SimpleNamespace(parts=runner.parts), {"all": head_of_run}, "head")
            work = Work(runner, jobs | audit_jobs(runner, taps, prompts, facts["switch"], run), "prompt")
            if parts is not None and parts.piece is not None:
                work.make_mine()
                for member, context in forward_members(run, model):
                    make_member(member_work(runner, taps, [prompt for prompt in prompts if has_members(prompt)], widths, member), context)
                if count > 0:
                    greedy_work(runner, taps, main, count, False).make_mine()
                if nextn is not None and choice is None and parts.head_is_mine():
                    head.make(["all"])
                    head.done.clear()
                continue
            for prompt in prompts:
                found, pieces, met, remarks = work[prompt["name"], "record"]
                mine.update(pieces)
                notes += remarks
                for key, named in met.items():
                    seen_kinds.setdefault(key, []).extend(named)
                if not bool(found.full.isfinite().all() and found.decoded.isfinite().all()):
                    raise Fail(f"the logits of prompt {prompt['name']} are not finite: a weight is NaN or infinite, or {run} overflows")
                recorded.append(found)
            checked, chunked, why = audit_run(prompts, recorded, work, facts["switch"], run, notes)
            if run == "f32" and not args.no_members:
                ensemble = Ensemble(prompts, recorded, widths)
            if ensemble is not None and ensemble.prompts:
                by_name, plainly = {prompt["name"]: found for prompt, found in zip(prompts, recorded)}, audit.get("f32", checked)
                entry, most = ensemble.run(runner, taps, run, by_name, chunked,
                                           lambda member: barred_member(member, runner, plainly, why, ensemble.tolerance()))  # noqa: B023
                tolerance = ensemble.tolerance()
            whole = audit.get("f32", checked)["decode_vs_prefill"] > tolerance and args.dtypes[0] == "f32"
            if count > 0:
                made, chosen = greedy_work(runner, taps, main, count, whole)["whole" if whole else "cached"]
                greedy[run] = {main["name"]: made}
                put_chosen(mine, f"{run}/{main['name']}/greedy", chosen, count - 1)
        except Exception as error:
            why = str(error) if isinstance(error, Fail) else first_line(error) + at(error)
            if run == args.dtypes[0] or parts is not None and parts.piece is not None and not runner.parts.put_failure(error):
                raise Fail(f"{folder}: the {run} run failed: {why}") from error
            say(f"warning: the {run} run failed and is left out: {why}")
            notes.append(f"the {run} run failed and is left out: {why}")
            continue
        finally:
            taps.close()
            if layerwise is not None and len(runner.lockstep.layers):
                say(f"{folder.name}: {run}: each layer was loaded {runner.lockstep.loads / len(runner.lockstep.layers):.0f} times, {store.read_bytes / 1e9:.1f} GB read")
                # The model is in cycles and may live on beside that of the next run.
                store.drop()
        if ensemble is not None and ensemble.prompts:
            members[run], spread[run] = entry, most
        if nextn is not None and choice is None:
            found, pieces, remarks = head["all"]
            if found is not None:
                heads[run] = found | dict(notes=remarks)
                head_out.update(pieces)
                notes[:] = [note for note in notes if "this class does not read" not in note]
        out.update(mine)
        runs.append(run)
        audit[run] = checked
        kinds.update(seen_kinds)
        shared.update(taps.shared)
        if layerwise is not None:
            store.drop()
        del model, runner

    if parts is not None and parts.piece is not None:
        parts.finish()
        say(f"{args.pieces}: piece {args.piece[0] + 1}/{args.piece[1]} is finished")
        return
    listed, states = settle_taps(out, runs, prompts, shared, notes), listed_states(kinds)
    stepped = any("decode" in prompt["taps"] and decode_rows(prompt) for prompt in prompts)
    if stepped and listed and not any("decode" in tap["phases"] for tap in listed.values()):
        raise Fail(f"{folder}: the class {architecture} goes on from a cache, but no output of a module was recorded in its steps, so the dump would prove nothing of "
                   "decode; give --no-taps for a dump of log-probabilities alone")
    for run, most in spread.items():
        put_spread(out, run, prompts, most, list(listed), states)
    first = audit[runs[0]]
    agrees = first["decode_vs_prefill"] <= tolerance or runs[0] != "f32"
    if not agrees:
        notes.append("the reference's decode does not agree with its own prefill: the prefill rows are the truth")
    if first["chunked_vs_prefill"] > tolerance and runs[0] == "f32":
        notes.append("the reference continues a cache by several tokens differently from one forward: chunked schedules are compared with the prefill rows")

    declared = getattr(config, "dtype", None)
    dtype = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}.get(declared, stored)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "producer": {
            "name": "transformers",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": f"{platform.system()}-{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}",
        },
        "model": {
            "architecture": (plain.get("architectures") or [None])[0] or architecture,
            "model_type": config.model_type,
            "config_sha256": config_hash.hexdigest(),
            "weights_sha256": weights_hash,
            "dtype": dtype,
        },
        "checkpoint": {
            "config": raw.decode() if len(raw) <= MOST_CONFIG else None,
            "tensors": tensors if len(tensors) <= MOST_TENSORS else {},
        },
        "pins": {"attn_implementation": "eager", "experts_implementation": "eager", "position_ids": "explicit", "kernels": kernels},
        "vocab": vocab,
        "logprobs": {"kind": "full"} if topk is None else {"kind": "topk", "k": topk},
        "runs": runs,
        "prompts": prompts,
        "taps": listed,
        "states": states,
        "patches": [{"name": name, "version": version} for name, version in PATCHES.items() if name in patched],
        "members": members,
        "greedy": greedy,
        "audit": {**audit, "truth": "decode" if agrees else "prefill", "notes": notes},
    }
    if choice is not None:
        manifest["layers"] = choice
    if (code := own_code(args.imports, args.trust_remote_code)) is not None:
        manifest["producer"]["code"] = code
    if "quantization_config" in plain:
        manifest["rounds"], manifest["caches"] = rounded, kept
    if routers := sorted({key.split("/chosen/", 1)[1] for key in out if "/chosen/" in key}):
        manifest["routers"] = routers
    write(target, out, manifest, head_files(heads, head_out, manifest))
    say(f"{target}: {len(out)} tensors, {len(listed)} taps, {len(manifest['states'])} states, truth {manifest['audit']['truth']}")


def greedy_count(args, prompts: list[dict], facts: dict) -> tuple[dict, int]:
    """The prompt that greedy tokens follow, and their number."""
    main = next((prompt for prompt in prompts if prompt["taps"]), prompts[0])
    count = min(args.greedy, facts["limit"] - len(main["tokens"]))
    if facts["switch"] and len(main["tokens"]) <= facts["switch"]:
        # Past the switch `generate` would drop the cache and begin again, which no plain loop does.
        count = min(count, facts["switch"] + 1 - len(main["tokens"]))
    return main, count


def greedy_work(runner, taps, main: dict, count: int, whole: bool) -> Work:
    return Work(runner, {"whole" if whole else "cached": lambda: greedy_tokens(runner, taps, main["tokens"], count, whole)}, "greedy")


def make_member(work: Work, context) -> None:
    """Makes the parts of a member that this process has. A member that cannot be made is kept as such."""
    mine = [key for key in work.jobs if work.parts.is_mine(work.stage, key) and not work.parts.has(work.stage, key)]
    if not mine:
        return
    try:
        with context:
            work.make_mine()
    except Exception as error:
        for key in mine:
            if not work.parts.has(work.stage, key):
                work.parts.put(work.stage, key, (None, error))
        if not work.is_kept(mine):
            raise


def inputs_of(args, raw: bytes, weights_hash: str) -> dict:
    """Everything that the bytes of a dump depend on, by name."""
    import torch
    import transformers

    def digest(path) -> str | None:
        path = Path(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None

    here = Path(__file__).resolve()
    options = {name: getattr(args, name) for name in ("dtypes", "tokens", "trust_remote_code", "full_vocab_limit", "topk", "no_taps", "no_members", "gelu_table", "layers",
                                                      "greedy", "threads", "layerwise")}
    return options | {
        "config": hashlib.sha256(raw).hexdigest()[:16],
        "weights": weights_hash[:16],
        "prompts": digest(args.prompts) if args.prompts is not None else None,
        "imports": [digest(path) for path in args.imports],
        "scripts": [digest(here.with_name(f"{name}.py")) for name in (here.stem, "nextn", "layerwise", "pieces")],
        "versions": f"transformers {transformers.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def open_parts(args, config, facts: dict, inputs: dict, nextn):
    """The folder of parts, with the units of this dump."""
    tool = load_beside("pieces", "--pieces")
    many = 1 << 62
    notes: list[str] = []
    prompts = given_prompts(args, many, facts["limit"]) or derive_prompts(b"", facts, many, notes)
    units = []

    def unit(run: str, name: str, cost: float, keys: list) -> None:
        units.append({"run": run, "name": name, "cost": cost, "parts": [tuple(part for part in key) for key in keys]})

    def grouped(run: str, name: str, cost: float, each: dict) -> None:
        """One unit for all prompts where they go through a layer together, else one for each. `each`: keys and cost by prompt."""
        if args.layerwise:
            unit(run, name, cost, [key for keys, _ in each.values() for key in keys])
            return
        for prompt, (keys, own) in each.items():
            unit(run, f"{name}/{prompt}", own, keys)

    for run in args.dtypes:
        records = {}
        for prompt in prompts:
            stages = ["record", *(["plain"] if run == "f32" else []), *(["chunks"] if len(prompt["tokens"]) > 1 else []),
                      *(["steps"] if 1 < len(prompt["tokens"]) <= STEPWISE_LIMIT else [])]
            cost = sum({"record": 2 + len(prompt["tokens"]) - prompt["split"], "plain": 1, "chunks": len(prompt["tokens"]) / 3, "steps": len(prompt["tokens"])}[stage] for stage in stages)
            records[prompt["name"]] = [(run, "prompt", prompt["name"], stage) for stage in stages], cost
        grouped(run, "prompts", tool.RECORD_COST, records)
        if "f32" in args.dtypes and not args.no_members:
            for member, _ in forward_members(run):
                grouped(run, member, 1.0, {prompt["name"]: ([(run, member, prompt["name"])], 1 + len(prompt["tokens"]) / 16) for prompt in prompts if has_members(prompt)})
        if greedy_count(args, [prompt | {"taps": [] if args.no_taps else prompt["taps"]} for prompt in prompts], facts)[1] > 0:
            unit(run, "greedy", tool.GREEDY_COST, [(run, "greedy", "cached")])
    if nextn is not None and nextn.places(config) is not None:
        unit("", "head", tool.HEAD_COST * len(args.dtypes), [(run, "head", "all") for run in args.dtypes])
    return tool.Parts(Path(args.pieces), inputs, units, Fail, Unusable, args.piece if not args.plan else None, args.merge)


def chosen_layers(args, folder: Path, config, layerwise, notes: list[str]) -> dict:
    """The manifest's entry on a choice of layers."""
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if not count:
        raise Fail(f"{folder / 'config.json'}: --layers needs the number of layers, and the config has no num_hidden_layers")
    if beyond := [number for number in args.layers if number >= count]:
        raise Fail(f"--layers: layer {beyond[0]} is not there; the model has {count}, from 0 to {count - 1}")
    names = weight_map(folder) or [name for path in weight_files(folder) for name, *_ in safetensors_entries(path)]
    prefix = layerwise.layer_prefix(names, count)
    if prefix is None:
        raise Fail(f"{folder}: no names of tensors hold the number of a layer, so --layers cannot choose among them")
    shown = ", ".join(map(str, args.layers))
    notes.append(f"only {'layer' if len(args.layers) == 1 else 'layers'} {shown} of {count} ran, with the embedding, the last norm and the head: the other layers gave their input on unchanged, so the rows that a "
                 "layer was given, and the log-probabilities, are not those of the whole model")
    return {"chosen": args.layers, "of": count, "prefix": prefix}


def listed_states(kinds: dict) -> list[dict]:
    """The states for the manifest, of the parts that were met for each layer and kind."""
    return [{"layer": layer, "kind": kind, "parts": sorted(set(parts))} for (layer, kind), parts in sorted(kinds.items())]


def load_beside(name: str, needed: str | None = "--layerwise"):
    """A script that lies beside this one; None if it does not and is not needed."""
    path = Path(__file__).resolve().with_name(f"{name}.py")
    if not path.is_file():
        if needed is None:
            return None
        raise Fail(f"{needed} needs {path.name} beside {Path(__file__).name} in {path.parent}; it is printed by `parity dump --script {name}`")
    spec = importlib.util.spec_from_file_location(f"onboard_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settle_taps(out: dict, runs: list[str], prompts: list[dict], shared: dict, notes: list[str]) -> dict:
    """The taps for the manifest, in the order of the computation. A tap is listed for the phases in which every run has it for every prompt, without
    modules that run more than once; what is not listed, or equals an earlier tap or the logits, is taken out of the tensors."""
    fronts = {phase: [f"{run}/{prompt['name']}/{phase}" for run in runs for prompt in prompts
                      if phase in prompt["taps"] and (phase == "prefill" or decode_rows(prompt))] for phase in PHASES}
    names = tap_order(out)
    if skipped := [name for name in names if name in shared]:
        notes.append(f"modules called more than once per forward are not tapped: {', '.join(sorted(skipped)[:12])}{', ...' if len(skipped) > 12 else ''}")
    listed = {}
    for name in names:
        phases = [phase for phase in PHASES if fronts[phase] and name not in shared and all(f"{front}/tap/{name}" in out for front in fronts[phase])]
        if phases:
            listed[name] = {"phases": phases}
    for key in [key for key in out if "/tap/" in key]:
        front, name = key.split("/tap/", 1)
        if front.rsplit("/", 1)[1] not in listed.get(name, {"phases": ()})["phases"]:
            del out[key]

    every = [front for phase in PHASES for front in fronts[phase]]
    stored = {"logits": {front: identity(out[f"{front}/logits"]) for front in every if f"{front}/logits" in out}}
    for name, entry in listed.items():
        mine = {front: identity(out[f"{front}/tap/{name}"]) for phase in entry["phases"] for front in fronts[phase]}
        for other, theirs in stored.items():
            if all(theirs.get(front) == value for front, value in mine.items()):
                entry["same_as"] = other
                for front in mine:
                    del out[f"{front}/tap/{name}"]
                break
        else:
            stored[name] = mine
    return listed


def identity(tensor) -> tuple:
    """Equal for tensors with equal bytes, shapes and dtypes only."""
    import torch

    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy()).digest()


def barred_member(member: str, runner, audit: dict, why: str | None, tolerance: float) -> str | None:
    """Why a member says nothing of rounding: it cannot be made, or in f32 the reference differs there from its own prefill by more than rounding."""
    if member == "decode":
        key, words = "decode_vs_prefill", "decode"
    elif member == "chunks":
        key, words = "chunked_vs_prefill", "continuation of a cache by several tokens"
    else:
        return None
    if runner.cache_key is None:
        return "the class has no cache"
    if member == "chunks" and why is not None:
        return why
    return f"the reference's {words} differs from its prefill in f32 by {audit[key]:.1e} of the largest logit" if audit[key] > tolerance else None


def head_files(heads: dict, out: dict, main: dict) -> tuple[dict, dict] | None:
    """The dump of the head beside the model's own: tensors and manifest."""
    if not heads:
        return None
    first = next(iter(heads.values()))
    notes = [f"the head `{first['prefix']}` is {first['how']}", *first["notes"]]
    listed, states = settle_taps(out, list(heads), first["prompts"], first["shared"], notes), listed_states(first["kinds"])
    for run, found in heads.items():
        put_spread(out, run, found["prompts"], found["spread"], list(listed), states)
    audit = {run: found["audit"] for run, found in heads.items()}
    agrees = next(iter(audit.values()))["decode_vs_prefill"] <= first["tolerance"]
    manifest = {key: main[key] for key in ("format", "version", "producer", "model", "pins", "vocab", "rounds", "logprobs", "patches") if key in main}
    if "caches" in main:
        # A head is put together beside the model, and nothing there rounds keys.
        manifest["caches"] = "none"
    manifest |= {
        "runs": list(heads),
        "prompts": first["prompts"],
        "taps": listed,
        "states": states,
        "head": first["inputs"],
        "members": {run: found["members"] for run, found in heads.items() if found["members"]},
        "audit": {**audit, "truth": "decode" if agrees else "prefill", "notes": notes},
    }
    if routers := sorted({key.split("/chosen/", 1)[1] for key in out if "/chosen/" in key}):
        manifest["routers"] = routers
    return out, manifest


def tap_order(out: dict) -> list[str]:
    """Tap names in the order in which the first run met them, which is that of the computation."""
    names = {}
    for key in out:
        if "/tap/" in key:
            names.setdefault(key.split("/tap/", 1)[1])
    return list(names)


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
    import re

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
    import re

    def join(match):
        return match[1] + re.sub(r"\s*\n\s*", " ", match[2]) + match[3]

    text = re.sub(r"(\[)\s+([^\[\]{}]*?)\s+(\])", join, text)
    return re.sub(r"(\{)\s+([^{}]*?)\s+(\})", join, text)


def end_with_parent() -> None:
    """Has the system end this process with the one that started it, if that asks for it. A killed piece would go on beside its second attempt."""
    import ctypes
    import signal

    parent, die_with_parent = os.environ.pop("ONBOARD_PARENT", None), 1
    if parent != str(os.getppid()) or platform.system() != "Linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    if parent != str(os.getppid()):
        sys.exit(2)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dump.py", description="Write a reference dump of a Hugging Face causal language model.")
    parser.add_argument("model", metavar="MODEL_DIR", help="folder with config.json and *.safetensors")
    parser.add_argument("-o", "--out", metavar="DUMP", required=True, help="folder to write; an older dump there is replaced")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="runs to make, comma-separated (default %(default)s)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--prompts", metavar="FILE.json", help="prompts to run instead of the derived ones")
    parser.add_argument("--masks", metavar="prefix,documents", default="", help="also derive prompts with a bidirectional prefix, or with packed documents")
    choice.add_argument("--tokens", metavar="1,2,3", help="one prompt to run instead of the derived ones")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the classes that the checkpoint brings (auto_map)")
    parser.add_argument("--import", dest="imports", metavar="FILE.py", action="append", default=[], help="import a file with classes of your own (repeatable)")
    parser.add_argument("--full-vocab-limit", type=int, default=32768, metavar="N", help="largest vocabulary stored whole (default %(default)s)")
    parser.add_argument("--topk", type=int, default=256, metavar="K", help="log-probabilities kept per row of a larger one (default %(default)s)")
    parser.add_argument("--no-taps", action="store_true", help="no module outputs and no states")
    parser.add_argument("--no-members", action="store_true", help="no ensemble of runs that differ by rounding alone")
    parser.add_argument("--gelu-table", action="store_true", help="GELU by llama.cpp's table of f16, to tell whether that is all it does otherwise")
    parser.add_argument("--layerwise", action="store_true", help="read one layer at a time, for a model that is larger than the memory: the same dump, more slowly")
    parser.add_argument("--layers", metavar="0,3,60", help="run these layers alone, with embedding, last norm and head: files that have only other layers may be absent")
    parser.add_argument("--resident", type=float, default=2.0, metavar="GB", help="with --layerwise: weights that are kept for the next use (default %(default)s)")
    parser.add_argument("--pieces", metavar="DIR", help="keep finished parts in this folder, and take those that are there: an interrupted dump goes on")
    parser.add_argument("--piece", metavar="I/N", help="with --pieces: make piece I of N and write no dump")
    parser.add_argument("--merge", action="store_true", help="with --pieces: write the dump, for which all parts have to be there")
    parser.add_argument("--plan", action="store_true", help="with --pieces: print what each piece makes (of N with --piece 1/N), and make nothing")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch (default %(default)s)")
    parser.add_argument("--greedy", type=int, default=16, metavar="N", help="greedy tokens per run (default %(default)s)")
    args = parser.parse_args(argv)
    end_with_parent()
    args.dtypes = [name.strip() for name in args.dtypes.split(",") if name.strip()]
    if not args.dtypes or any(name not in DTYPES for name in args.dtypes) or len(set(args.dtypes)) != len(args.dtypes):
        parser.error(f"--dtypes: choose from {', '.join(DTYPES)}")
    args.masks = [name.strip() for name in args.masks.split(",") if name.strip()]
    if any(name not in ("prefix", "documents") for name in args.masks):
        parser.error("--masks: choose from prefix, documents")
    # Distances are from the f32 run, which is made first for that.
    args.dtypes.sort(key=lambda name: name != "f32")
    if args.layers is not None:
        pieces = args.layers.split(",")
        if not all(piece.strip().isdecimal() for piece in pieces):
            parser.error("--layers: expected numbers of layers with commas, from 0")
        args.layers, args.layerwise = sorted({int(piece) for piece in pieces}), True
    if args.pieces is None and (args.piece or args.merge or args.plan):
        parser.error("--piece, --merge and --plan need --pieces DIR")
    if args.merge and (args.piece or args.plan):
        parser.error("--merge writes the dump, so it takes neither --piece nor --plan")
    if args.piece is not None:
        number, _, count = args.piece.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            parser.error(f"--piece {args.piece}: expected I/N with I from 1 to N, as in 2/8")
        args.piece = (int(number) - 1, int(count))
    if not args.resident > 0:
        parser.error("--resident must be above 0")
    if args.topk < 1 or args.threads < 1:
        parser.error("--topk and --threads must be at least 1")
    try:
        for package in ("torch", "transformers", "safetensors"):
            if importlib.util.find_spec(package) is None:
                raise Fail(f"python package {package} is missing; run this script with `uv run`, or install torch, transformers and safetensors")
        dump(args)
    except (Fail, Unusable) as error:
        print(f"dump: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        # Of the script that reads weights when they are used.
        if type(error).__name__ != "Missing":
            raise
        print(f"dump: error: {args.model}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
