"""Loads a model in one dtype, and refuses a checkpoint that it would be incomplete with."""
from __future__ import annotations

from pathlib import Path

from .checkpoint import read_config
from .classes import reader, speaking, torch_dtype
from .failures import Fail
from .patches import cast, products_in_f32


def load_model(folder: Path, dtype: str, trust: bool, patched: set[str]):
    """Loads the model in one dtype and returns it with notes. A tensor that the checkpoint lacks is an error: it would be random."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    notes = []
    with products_in_f32(notes, patched):
        model, info = reader(config)(
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
    return speaking(model).eval(), notes


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


def mismatch_text(key) -> str:
    if isinstance(key, tuple) and len(key) == 3:
        return f"{key[0]} (found {list(key[1])}, expected {list(key[2])})"
    return str(key)
