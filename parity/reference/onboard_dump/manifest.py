"""The manifest of a dump: taps and states that every run has, and the facts of the run."""
from __future__ import annotations

import hashlib
import platform

from .classes import own_code
from .ensemble import put_spread
from .patches import PATCHES
from .prompts import PHASES, decode_rows

# The second version is that of prompts with rows in the place of embeddings, which older programs would pass over.
FORMAT, VERSION, ROWS_VERSION = "onboard-dump", 2, 3
# Larger configs, and checkpoints of more tensors, are recorded by their hash alone.
MOST_CONFIG, MOST_TENSORS = 1 << 20, 20_000


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


def tap_order(out: dict) -> list[str]:
    """Tap names in the order in which the first run met them, which is that of the computation."""
    return list(dict.fromkeys(key.split("/tap/", 1)[1] for key in out if "/tap/" in key))


def listed_states(kinds: dict) -> list[dict]:
    """The states for the manifest, of the parts that were met for each layer and kind."""
    return [{"layer": layer, "kind": kind, "parts": sorted(set(parts))} for (layer, kind), parts in sorted(kinds.items())]


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
    manifest = {key: main[key] for key in ("format", "version", "producer", "model", "pins", "vocab", "input_vocab", "rounds", "logprobs", "patches") if key in main}
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
    return out, manifest | routers_of(out)


def routers_of(out: dict) -> dict:
    """The manifest's entry of the modules whose choices were recorded; nothing without them."""
    routers = sorted({key.split("/chosen/", 1)[1] for key in out if "/chosen/" in key})
    return {"routers": routers} if routers else {}


def producer_of(args) -> dict:
    """The releases and the machine that a dump was made with."""
    import torch
    import transformers

    found = {
        "name": "transformers",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}",
    }
    code = own_code(args.imports, args.trust_remote_code)
    return found if code is None else found | {"code": code}


def model_of(inputs, architecture: str) -> dict:
    """The identity of the model."""
    import torch

    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    return {
        "architecture": (inputs.plain.get("architectures") or [None])[0] or architecture,
        "model_type": inputs.config.model_type,
        "config_sha256": inputs.config_hash.hexdigest(),
        "weights_sha256": inputs.weights_hash,
        "dtype": names.get(getattr(inputs.config, "dtype", None), inputs.stored),
    }


def manifest_of(inputs, results, listed: dict, states: list[dict], agrees: bool) -> dict:
    """The manifest of a dump. `agrees`: the reference's decode agrees with its prefill."""
    chosen, raw, tensors = results.chosen, inputs.raw, inputs.tensors
    manifest = {
        "format": FORMAT,
        "version": ROWS_VERSION if inputs.args.encoder or any({"given", "spans"} & prompt.keys() for prompt in chosen.prompts) else VERSION,
        "producer": producer_of(inputs.args),
        "model": model_of(inputs, results.architecture),
        "checkpoint": {
            "config": raw.decode() if len(raw) <= MOST_CONFIG else None,
            "tensors": tensors if len(tensors) <= MOST_TENSORS else {},
        },
        "pins": {"attn_implementation": "eager", "experts_implementation": "eager", "position_ids": "explicit", "kernels": inputs.kernels},
        **({"encoder": True} if inputs.args.encoder else {}),
        "vocab": chosen.vocab,
        **({"input_vocab": chosen.known} if chosen.known > chosen.vocab else {}),
        "logprobs": {"kind": "full"} if chosen.topk is None else {"kind": "topk", "k": chosen.topk},
        "runs": results.runs,
        "prompts": chosen.prompts,
        "taps": listed,
        "states": states,
        "patches": [{"name": name, "version": version} for name, version in PATCHES.items() if name in results.patched],
        "members": results.members,
        "greedy": results.greedy,
        "audit": {**results.audit, "truth": "decode" if agrees else "prefill", "notes": results.notes},
    }
    if results.verdicts is not None:
        manifest["verdicts"] = [verdict.entry() for verdict in results.verdicts]
    if inputs.choice is not None:
        manifest["layers"] = inputs.choice
    if "quantization_config" in inputs.plain:
        manifest["rounds"], manifest["caches"] = results.rounded_rows, results.rounded_caches
    return manifest | routers_of(results.tensors)
