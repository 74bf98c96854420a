"""The states that a cache holds, or modules."""
from __future__ import annotations


def conv_widths(model, layers: int) -> dict[int, dict[int, int]]:
    """Kernel widths of the depthwise convolutions of each layer, by their channels; of one and a convolution by groups behind it, as far as both reach."""
    import torch

    widths = {}
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers:
            for index, block in enumerate(module):
                convolutions = [m for m in block.modules() if isinstance(m, torch.nn.Conv1d) and m.groups > 1]
                behind = sum(m.kernel_size[0] - 1 for m in convolutions if m.groups < m.in_channels)
                for convolution in convolutions:
                    if convolution.groups == (channels := convolution.in_channels):
                        by_channels = widths.setdefault(index, {})
                        by_channels[channels] = max(by_channels.get(channels, 0), convolution.kernel_size[0] + behind)
    return widths


def width_of(widths: dict[int, dict[int, int]], index: int, channels: int) -> int | None:
    """The width of the convolution of a layer that has so many channels; the largest of the layer if none has, since a class may keep a part of what it convolves.
    Caches behind those of all layers are of layers that run again."""
    layers = [widths.get(index, {})] if index <= max(widths, default=0) else list(widths.values())
    same = [by_channels[channels] for by_channels in layers if channels in by_channels]
    return max(same or [width for by_channels in layers for width in by_channels.values()], default=None)


def index_rows(layer):
    """The keys that the index of a layer keeps, `[kept, 1, dim]`; None without an index. Classes differ in the name, and some have an axis of heads, which is 1."""
    for name in ("indexer_keys", "idx_keys"):
        keys = getattr(layer, name, None)
        if keys is not None and keys.numel() > 0:
            # Rows of a key, a gate and a mark, from which each step makes the keys of blocks, are no keys.
            marked = keys.shape[-1] % 2 == 1 and bool((keys[..., -1] == 1).all())
            return None if marked else keys[0].reshape(-1, 1, keys.shape[-1])
    return None


def parts_of(layer) -> list[tuple[str, object]]:
    """The keys and values that a layer keeps, `[1, heads, kept, dim]`; keys alone where the same tensor is both."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.numel() + values.numel() == 0:
        return []
    parts = [("k", keys)] if values is keys else [("k", keys), ("v", values)]
    # A key without a part that all heads share has no numbers.
    return [(part, tensor) for part, tensor in parts if tensor.numel() > 0]


def read_states(model, cache, widths: dict[int, dict[int, int]]) -> list[tuple[int, str, str, object]]:
    """(layer, kind, part, tensor) of everything the cache holds, without the batch axis."""
    import torch

    absent = getattr(model, "left_out", ())

    found = [(index, "recurrent", "recurrent", tensor[0].clone().contiguous())
             for index, tensor in enumerate(getattr(cache, "linear_cache", [])) if hasattr(tensor, "shape")]
    # A matrix per head, the sums beside it as one column more, and the exponent that both are divided by.
    found += [(index, "recurrent", "recurrent", torch.cat([torch.cat([matrix[0], sums[0][..., None]], -1).flatten(1), exponent[0]], -1).contiguous())
              for index, (matrix, sums, exponent) in sorted(getattr(cache, "rnn_state", {}).items())]
    for index, layer in enumerate(getattr(cache, "layers", [])):
        window = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        for part, tensor in parts_of(layer):
            rows = tensor[0].transpose(0, 1)  # [heads, kept, dim] -> [kept, heads, dim]
            if window is not None:
                rows = rows[max(0, rows.shape[0] - (window - 1)) :]
            found.append((index, "attention", part, rows.contiguous()))
        if (keys_of_index := index_rows(layer)) is not None:
            found.append((index, "attention", "index", keys_of_index.contiguous()))
        for kind, attribute in (("conv", "conv_states"), ("recurrent", "recurrent_states")):
            states = getattr(layer, attribute, None)
            for slot, tensor in sorted(states.items()) if isinstance(states, dict) else []:
                # Tokens that a layer keeps are no numbers.
                if tensor is None or not tensor.is_floating_point():
                    continue
                part = kind if slot == 0 else f"{kind}{slot}"
                tensor = tensor[0]
                # The oldest column of a cache as wide as the kernel is never read again.
                if kind == "conv" and tensor.ndim == 2 and tensor.shape[-1] == width_of(widths, index, tensor.shape[0]):
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
        for part, tensor in parts_of(layer):
            found[index, part] = tensor[0, :, -1:].transpose(0, 1).clone()
        if (keys_of_index := index_rows(layer)) is not None:
            found[index, "index"] = keys_of_index[-1:].clone()
    return found
