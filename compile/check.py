"""Runs generated files against the dumps of fixtures: `check.py FIXTURES OUT [NAME...]`.

For each fixture that OUT has a file of, the prompts of the dump are run in f32 and bf16: prefill, and decode token by token. The table
shows the largest root mean square difference of the log-probabilities of a row in each, and in bf16 also that of the reference to its own f32,
which a difference must not exceed. A proof is `onboard compile --prove`; this is the same at a fraction of the time.
"""

import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path

import torch
from safetensors.torch import load_file

F32, SHARE = 2e-4, 1.0


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def number(entry):
    """Numbers that JSON lacks are objects in configs of transformers."""
    return float(entry["__float__"]) if "__float__" in entry else entry


def tensors_of(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def difference(ours, theirs):
    width = min(ours.shape[-1], theirs.shape[-1])
    ours = ours[..., :width].float().log_softmax(-1)
    theirs = theirs[..., :width].float().log_softmax(-1)
    return (ours - theirs).square().mean(-1).sqrt().max().item() if ours.numel() else 0.0


def run(folder, module, dump, manifest, dtype, name):
    config = module.Config(json.loads((folder / "config.json").read_text(), object_hook=number), dtype)
    with torch.device("cpu"):
        model = getattr(module, module.MODEL)(config).eval()
    model.load(tensors_of(folder))
    worst, own = {}, 0.0
    for prompt in manifest["prompts"]:
        if prompt.get("prefix") or prompt.get("documents"):
            continue
        tokens = torch.tensor([prompt["tokens"]])
        key = f"{name}/{prompt['name']}"
        if f"{key}/prefill/logits" not in dump:
            continue
        rows = prompt.get("rows")
        prefill = model(tokens)[0]
        theirs = dump[f"{key}/prefill/logits"]
        shown = prefill[rows] if rows else prefill[-theirs.shape[0] :]
        worst["prefill"] = max(worst.get("prefill", 0.0), difference(shown, theirs))
        exact = dump.get(f"f32/{prompt['name']}/prefill/logits")
        if exact is not None:
            own = max(own, difference(exact, theirs))
        split, theirs = prompt["split"], dump.get(f"{key}/decode/logits")
        own_steps, whole = dump.get(f"f32/{prompt['name']}/decode/logits"), dump.get(f"f32/{prompt['name']}/prefill/logits")
        if own_steps is not None and len(own_steps) and difference(own_steps, whole[-len(own_steps) :]) > 1e-2:
            # The reference's steps do not agree with its own prefill.
            theirs = dump[f"{key}/prefill/logits"][-len(theirs) :]
        if theirs is None or split >= tokens.shape[1]:
            continue
        cache = module.Cache()
        out = [model(tokens[:, :split], cache)[0]]
        out += [model(tokens[:, n : n + 1], cache)[0] for n in range(split, tokens.shape[1])]
        decoded = torch.cat(out)
        shown = decoded[rows] if rows else decoded[-theirs.shape[0] :]
        worst["decode"] = max(worst.get("decode", 0.0), difference(shown, theirs))
    return worst, own


def main():
    fixtures, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    failed = []
    for path in sorted(out.glob("*.py")):
        name = path.stem
        if names and name not in names:
            continue
        folder, start = fixtures / name, time.time()
        manifest = json.loads((folder / "reference/manifest.json").read_text())
        dump = load_file(folder / "reference/reference.safetensors")
        try:
            module = load(path)
            parts, good = [], True
            for word, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                if word not in manifest["runs"]:
                    continue
                worst, own = run(folder, module, dump, manifest, dtype, word)
                most = max(worst.values(), default=0.0)
                good &= most <= (F32 if word == "f32" else max(SHARE * own, 1e-6))
                parts.append(word + " " + " ".join(f"{key} {value:.2g}" for key, value in worst.items()) + (f" (own {own:.2g})" if word != "f32" else ""))
            print("ok  " if good else "FAIL", name, "; ".join(parts), f"{time.time() - start:.1f}s", flush=True)
        except Exception as error:
            good = False
            place = traceback.extract_tb(error.__traceback__)[-1]
            print("FAIL", name, type(error).__name__, str(error).replace("\n", " ")[:300], f"{Path(place.filename).name}:{place.lineno}", flush=True)
        if not good:
            failed.append(name)
    print(f"{len(failed)} failed: {' '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
