"""Runs the code of the target `sglang` in SGLang's own classes, on a CPU: `check_sglang.py FIXTURES OUT [NAME...]`.

Each package is imported and resolved by SGLang's registry of models, its class is made, and `load_weights` gets the
tensors of the fixture. Each parameter must get one tensor of its own shape; a line lists tensors that no parameter takes. Then the model
runs with attention of torch in place of SGLang's kernels, and its log-probabilities are compared with the dump.

SGLang's kernels (`sgl_kernel`) do not load without a GPU, so a module that raises when it is called takes their place.
The batch is an object with `positions` alone; `LogitsProcessor` does nothing but the product with the head.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import socket
import sys
import time
import traceback
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from check import F32, number, run


class Absent:
    """Something of a module that is not there."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.name} is not there")


class AbsentModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sgl_kernel":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


def start(folder):
    """Makes SGLang's state of a process: settings, and groups of one rank."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ServerArgs(model_path=str(folder), device="cpu")
    publish(server, role="scheduler", ranks=SpawnRanks(world_rank=0))
    method = f"tcp://127.0.0.1:{port}"
    parallel_state.init_distributed_environment(1, 0, method, 0, "gloo")
    parallel_state.initialize_model_parallel(backend="gloo")


def tracked_class(torch):
    class Tracked(torch.Tensor):
        """A tensor that knows of which tensors of a checkpoint it is made, and notes where it goes."""

        used = set()
        copies = []

        @classmethod
        def __torch_function__(cls, function, types_, args=(), kwargs=None):
            flat = list(args) + list((kwargs or {}).values())
            flat += [x for part in flat if isinstance(part, (list, tuple)) for x in part]
            names = {name for x in flat if isinstance(x, cls) for name in x.names}
            plain = torch._C.DisableTorchFunctionSubclass
            with plain():
                result = function(*args, **(kwargs or {}))
            if function is torch.Tensor.copy_ and not isinstance(args[0], cls):
                cls.copies.append((args[0].data_ptr(), tuple(args[1].shape)))
                cls.used |= names
                return result
            if function is torch.Tensor.item:
                cls.used |= names
            return cls.named(result, names)

        @classmethod
        def named(cls, result, names):
            if isinstance(result, torch.Tensor):
                result = result.as_subclass(cls)
                result.names = names
            elif isinstance(result, (list, tuple)) and not isinstance(result, torch.Size):
                result = type(result)(cls.named(x, names) for x in result) if type(result) in (list, tuple) else tuple(cls.named(x, names) for x in result)
            return result

    return Tracked


class Sglang:
    """Runs models with attention of torch."""

    def __init__(self, torch):
        self.torch = torch
        self.model = None

    def cache(self):
        return {}

    def run(self, tokens, cache=None):
        torch = self.torch
        kept = {} if cache is None else cache
        begin = kept.get("length", 0)
        kept["length"] = begin + len(tokens)
        positions = torch.arange(begin, begin + len(tokens))
        batch = types.SimpleNamespace(positions=positions, kept=kept)
        return self.model(torch.tensor(tokens), positions, batch).float().numpy()


def attention(torch):
    def forward(self, q, k, v, forward_batch, save_kv_cache=True, sinks=None, **_):
        k = k.view(-1, self.tp_k_head_num, self.qk_head_dim)
        v = v.view(-1, self.tp_v_head_num, self.v_head_dim)
        q = q.view(-1, self.tp_q_head_num, self.qk_head_dim)
        if self.layer_id in forward_batch.kept:
            before = forward_batch.kept[self.layer_id]
            k, v = (torch.cat(pair) for pair in zip(before, (k, v)))
        forward_batch.kept[self.layer_id] = (k, v)
        groups = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * self.scaling
        if self.logit_cap:
            scores = self.logit_cap * (scores / self.logit_cap).tanh()
        at = forward_batch.positions[:, None]
        other = torch.arange(len(k))
        seen = other <= at
        if self.sliding_window_size >= 0:
            seen &= other >= at - self.sliding_window_size
        scores = scores.masked_fill(~seen, -math.inf)
        if sinks is not None:
            column = sinks.view(-1, 1, 1).expand(-1, len(q), 1)
            shares = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        return torch.einsum("hqk,khd->qhd", shares, values).flatten(1)

    return forward


def imported(registry, out, package, folder, path):
    """Imports a package as the registry does, and resolves the class of a config."""
    for name in [name for name in sys.modules if name.split(".")[0].startswith("onboard_")]:
        del sys.modules[name]
    sys.path[:] = [str(out / folder.name), *path]
    registry.import_model_classes.cache_clear()
    registry.ModelRegistry.models.update(registry.import_model_classes(package, strict=True))
    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    made, _ = registry.ModelRegistry.resolve_model_cls(architectures)
    if made.__module__.split(".")[0] != package:
        raise ValueError(f"SGLang took {made.__module__}")
    return made


def read_config(folder):
    """Reads a config as SGLang does, or its keys as they are where transformers does not know it."""
    from transformers import AutoConfig, PretrainedConfig

    with contextlib.suppress(Exception):
        return AutoConfig.from_pretrained(folder)
    return PretrainedConfig.from_dict(json.loads((folder / "config.json").read_text(), object_hook=number))


def loaded(torch, model, tensors, tracked):
    """Loads tensors, and gives the names of those that were not used."""
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    tracked.used, tracked.copies = set(), []
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    given = [(name, tracked.named(x, {name})) for name, x in tensors.items()]
    named = model.load_weights(given)
    copies = {}
    for place, shape in tracked.copies:
        copies.setdefault(place, []).append(shape)
    layers = [(name, x) for name, x in model.named_modules() if isinstance(x, VocabParallelEmbedding)]
    padded_names = {f"{name}.{word}" for name, _ in layers for word in ("weight", "bias")}
    for name, parameter in model.named_parameters():
        shapes = copies.get(parameter.data_ptr(), [])
        if parameter.numel() == 1 and not shapes:
            # SGLang's loader writes a single number without a copy.
            shapes = [tuple(parameter.shape)]
        # Rows of the vocabulary are filled up to a multiple of 64.
        own = tuple(parameter.shape)
        padded = own and own[0] % 64 == 0 and hasattr(parameter, "output_dim") and name in padded_names
        if len(shapes) != 1 or (shapes[0] != own and not (padded and shapes[0][1:] == own[1:])):
            raise ValueError(f"{name} of {own} got {shapes}")
        if parameter.isnan().any() or name not in named:
            raise ValueError(f"{name} is not filled")
    return sorted(set(tensors) - tracked.used)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fixtures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    out = args.out.resolve()
    folders = [path for path in sorted(out.iterdir()) if path.is_dir() and (not args.names or path.name in args.names)]
    packages = {path.name: next(path.glob("onboard_*")).name for path in folders}
    sys.meta_path.insert(0, AbsentFinder())
    first = folders[0]
    path = list(sys.path)
    sys.path.insert(0, str(first))
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = packages[first.name]
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.models import registry

    start(args.fixtures / first.name)
    RadixAttention.forward = attention(torch)
    LogitsProcessor.forward = lambda self, ids, x, head, batch: self._compute_lm_head(x, head)[..., : self.vocab_size]
    tracked, target = tracked_class(torch), Sglang(torch)
    load, agree, failed = 0, 0, []
    for place in folders:
        name, begin = place.name, time.time()
        folder, step = args.fixtures / name, "imports"
        try:
            made = imported(registry, out, packages[name], folder, path)
            step = "loads"
            tensors = {}
            for shard in sorted(folder.glob("*.safetensors")):
                tensors.update(load_file(shard))
            model = made(read_config(folder), quant_config=None)
            unused = loaded(torch, model, tensors, tracked)
            load += 1
            step = "runs"
            target.model = model.eval()
            dump = load_file(folder / "reference/reference.safetensors")
            dump = {key: x.float().numpy() for key, x in dump.items() if "logits" in key}
            manifest = json.loads((folder / "reference/manifest.json").read_text())
            worst, _ = run(target, dump, manifest, "f32")
            good = max(worst.values(), default=math.inf) <= F32
            agree += good
            text = " ".join(f"{key} {value:.2g}" for key, value in worst.items())
            print("ok  " if good else "DIFF", name, text, f"unused {unused[:3]} {len(unused)}" if unused else "", f"{time.time() - begin:.1f}s", flush=True)
        except Exception as error:
            failed.append(name)
            at = traceback.extract_tb(error.__traceback__)[-1]
            print("FAIL", name, step, type(error).__name__, str(error).replace("\n", " ")[:250], f"{Path(at.filename).name}:{at.lineno}", flush=True)
    print(f"{len(folders)} packages, {load} load, {agree} agree; failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
