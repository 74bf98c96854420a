"""What a quantized checkpoint rounds besides its weights, for the manifest."""
from __future__ import annotations


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
