"""The choice of some layers of a model (`--layers`).

The other layers hand their input on ([decision 64](../../../docs/decisions/0064-leave-layers-out.md)).
"""
from __future__ import annotations

import collections
import re
from pathlib import Path

from .checkpoint import safetensors_entries, weight_files, weight_map
from .failures import Fail


def chosen_layers(args, folder: Path, config, notes: list[str]) -> dict:
    """The manifest's entry on a choice of layers."""
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if not count:
        raise Fail(f"{folder / 'config.json'}: --layers needs the number of layers, and the config has no num_hidden_layers")
    if beyond := [number for number in args.layers if number >= count]:
        raise Fail(f"--layers: layer {beyond[0]} is not there; the model has {count}, from 0 to {count - 1}")
    names = weight_map(folder) or [name for path in weight_files(folder) for name, *_ in safetensors_entries(path)]
    prefix = layer_prefix(names, count)
    if prefix is None:
        raise Fail(f"{folder}: no names of tensors hold the number of a layer, so --layers cannot choose among them")
    shown = ", ".join(map(str, args.layers))
    notes.append(f"only {'layer' if len(args.layers) == 1 else 'layers'} {shown} of {count} ran, with the embedding, the last norm and the head: the other layers gave their input on unchanged, so the rows that a "
                 "layer was given, and the log-probabilities, are not those of the whole model")
    return {"chosen": args.layers, "of": count, "prefix": prefix}


def layer_prefix(names, count: int) -> str | None:
    """What stands before the number of a layer in the names of a checkpoint's tensors (`model.layers`)."""
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
