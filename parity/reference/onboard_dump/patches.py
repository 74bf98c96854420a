"""Every place where this program alters the reference.

Codes of 4 bits are multiplied by their scales in f32 ([decision 34](../../../docs/decisions/0034-four-bit-products-in-f32.md)).
"""
from __future__ import annotations

import contextlib

from .failures import Fail

# The alterations with their versions. The manifest lists those that were in force.
PATCHES = {
    "topk_first_of_equals": 1,  # `break_ties`
    "compressed_tensors_products_in_f32": 1,  # `products_in_f32`
    "experts_global_scale": 1,  # `stack` in `products_in_f32`
    "cast_after_dequantization": 1,  # `cast`
    "rows_rounded_alone": 1,  # `round_rows_alone`
    "gelu_table": 1,  # `use_gelu_table`
    "linear_inputs_contiguous": 1,  # `contiguous_inputs`
    "weights_of_the_inputs_dtype": 1,  # `equal_dtypes`
    "attention_in_f32": 1,  # `attention_in_f32`
}


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


def attention_in_f32(patched: set[str]) -> None:
    """A class that calls torch's attention itself gets the form that computes in f32 and rounds once: the one that torch prefers on a CPU takes an
    exponential of some 12 bits. It stays in place for the member of the ensemble that is named for it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    functional = torch.nn.functional
    real = getattr(functional.scaled_dot_product_attention, "real", functional.scaled_dot_product_attention)

    def attention(*args, **named):
        attention.called = True
        if attention.fast:
            return real(*args, **named)
        patched.add("attention_in_f32")
        with sdpa_kernel(SDPBackend.MATH):
            return real(*args, **named)

    attention.real, attention.fast, attention.called = real, False, False
    functional.scaled_dot_product_attention = attention


def equal_dtypes(model, patched: set[str]) -> None:
    """A class may ask for f32 matrices in f16 runs and multiply f16 rows by them, which torch refuses. Such a matrix gets the dtype of its rows."""
    import torch

    def equal(module, args):
        x, *_ = args
        if isinstance(x, torch.Tensor) and x.dtype == torch.float16 and module.weight.dtype == torch.float32:
            module.weight.data = module.weight.data.to(x.dtype)
            patched.add("weights_of_the_inputs_dtype")

    for module in model.modules():
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32:
            module.register_forward_pre_hook(equal)
