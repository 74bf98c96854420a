"""The head that predicts one token more, as a reference: docs/dump.md, "Heads".

transformers has such a head for some configs (`MtpModel`), and that is the reference for them. For the others one is put together here from
the model's own layer and norm classes, by what the published checkpoints hold: embedding and hidden numbers each normed, joined, projected, one layer, a norm,
the model's head. A pair is the token at position p + 1 and what the model made of position p, after its last norm; its position is the token's.
"""
from __future__ import annotations

import copy
import types

from .audit import audit_jobs, audit_run
from .classes import torch_dtype
from .distances import AUDIT_TOLERANCE
from .ensemble import Ensemble
from .members import barred_member
from .prompts import snapshots_of
from .record import record_prompt
from .runner import cache_argument
from .taps import Taps
from .work import Work

# Where the head's modules lie in checkpoints, by model_type: {n} is the number of layers of the model. `hf`: transformers has the head.
BEHIND = dict(prefix="model.layers.{n}", block="model.layers.{n}", e="enorm", h="hnorm", proj="eh_proj", out="shared_head.norm")
APART = dict(prefix="mtp", block="mtp.layers.0", e="pre_fc_norm_embedding", h="pre_fc_norm_hidden", proj="fc", out="norm")
PLACES = {
    "deepseek_v3": BEHIND | dict(hf=True),
    "glm4_moe": BEHIND | dict(hf=True),
    "mellum": APART | dict(hf=True),
    "deepseek_v32": BEHIND,
    "glm4_moe_lite": BEHIND,
    "glm_moe_dsa": BEHIND,
    "qwen3_next": APART,
    "qwen3_5_text": APART,
    "qwen3_5_moe_text": APART,
}
# What the config of a head's layer says of its kind, where the model's has a list of them.
KINDS = dict(layer_types="full_attention", mlp_layer_types="sparse", indexer_types="full")


def places(config) -> dict | None:
    config = config.get_text_config(decoder=True)
    found = PLACES.get(config.model_type)
    if found is None:
        return None
    count = config.num_hidden_layers
    return {key: value.format(n=count) if isinstance(value, str) else value for key, value in found.items()}


def tensors_of(files, place: dict) -> dict:
    """The head's tensors of a checkpoint; those that it shares with the model are left out."""
    from safetensors import safe_open

    found, shared = {}, (place["prefix"] + ".embed_tokens.weight", place["prefix"] + ".shared_head.head.weight")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                if name.startswith(place["prefix"] + ".") and name not in shared:
                    found[name] = file.get_tensor(name)
    return found


def layer_config(config):
    """The model's config, of a model that has one layer: the head's."""
    own = copy.deepcopy(config)
    own.num_hidden_layers = 1
    for key, kind in KINDS.items():
        if getattr(own, key, None) is not None:
            # Where no layer is of that kind, all are of another that sees every position.
            known = getattr(config, key)
            chosen = getattr(config, f"mtp_{key}", None) or [kind if kind in known else known[-1]]
            setattr(own, key, list(chosen[:1]))
    for key, value in (("first_k_dense_replace", 0), ("mlp_only_layers", [])):
        if hasattr(own, key):
            setattr(own, key, value)
    return own


class Head:
    """The modules of a head, planted in a tree under the names that checkpoints have for them."""

    def __init__(self, model, loaded: bool):
        # A vision-language model has its head beside the text model.
        self.main, config = model, model.config.get_text_config(decoder=True)
        self.place = place = places(config)
        decoder = model.get_decoder()
        self.decoder, self.rotary = decoder, decoder.rotary_emb
        self.mtp = None
        if place.get("hf"):
            self.take(loaded)
        else:
            self.put_together(config)
        self.grow_root()
        self.cache_key = cache_argument(self.block.forward)

    def take(self, loaded: bool) -> None:
        """The head that transformers has."""
        from transformers.modeling_layers import MtpModel

        # The class knows where the head of the released size lies; this one may be smaller.
        self.main._keys_to_ignore_on_load_unexpected = [rf"^{self.place['prefix']}\.".replace(".", r"\.").replace(r"\\.", r"\.")]
        self.mtp = MtpModel.from_pretrained(self.main) if loaded else MtpModel(self.main, 1)
        self.mtp.eval()
        layer = self.mtp.layers[0]
        self.block, self.parts = layer.mtp_block, dict(e=layer.enorm, h=layer.hnorm, proj=layer.eh_proj, out=layer.post_norm)
        self.config = self.mtp.config

    def put_together(self, config) -> None:
        """A head of layers like the model's. A mixture is a layer like the model's last; a norm is like the model's last norm."""
        from torch import nn

        self.config = layer_config(config)
        norm = lambda: type(self.decoder.norm)(config.hidden_size, eps=config.rms_norm_eps)  # noqa: E731
        self.block = type(self.decoder.layers[-1])(self.config, 0)
        self.parts = dict(e=norm(), h=norm(), proj=nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False), out=norm())

    def grow_root(self) -> None:
        """The tree of the modules, under the names that checkpoints have for them."""
        from torch import nn

        place = self.place
        self.root = nn.Module()
        self.root.base_model_prefix = "none"
        # Embedding and head of a model that is read layer by layer are read so here too.
        self.root.weight_store = getattr(self.main, "weight_store", None)
        plant(self.root, place["block"], self.block)
        for key, part in self.parts.items():
            plant(self.root, f"{place['prefix']}.{place[key]}", part)
        self.root.eval()

    def share(self) -> None:
        """Plants what belongs to the model too, so that it is tapped."""
        plant(self.root, "model.embed_tokens", self.main.get_input_embeddings())
        plant(self.root, "lm_head", self.main.lm_head)

    def load(self, tensors: dict, dtype) -> None:
        """Fills an assembled head; experts that lie apart in the checkpoint are one tensor here."""
        import torch

        state = {}
        for name, tensor in tensors.items():
            stem, _, rest = name.partition(".experts.")
            if not rest or not rest.split(".")[0].isdigit():
                state[name] = tensor
                continue
            state.setdefault(stem, {})[tuple(rest.split(".")[:2])] = tensor
        for stem in [stem for stem, value in state.items() if isinstance(value, dict)]:
            apart = state.pop(stem)
            count = 1 + max(int(expert) for expert, _ in apart)
            state[f"{stem}.experts.gate_up_proj"] = torch.stack([torch.cat([apart[str(e), "gate_proj"], apart[str(e), "up_proj"]]) for e in range(count)])
            state[f"{stem}.experts.down_proj"] = torch.stack([apart[str(e), "down_proj"] for e in range(count)])
        self.root.load_state_dict(state, strict=True, assign=False)
        wide = list(getattr(self.main, "_keep_in_fp32_modules_strict", None) or ())
        if dtype == torch.float16:
            wide += list(getattr(self.main, "_keep_in_fp32_modules", None) or ())
        for path, module in self.root.named_modules():
            for key, p in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if p.is_floating_point():
                    p.data = p.data.to(torch.float32 if any(word in f"{path}.{key}" for word in wide) else dtype)

    def state(self) -> dict:
        """The head's tensors as checkpoints have them: experts apart."""
        found = {}
        for name, tensor in self.root.state_dict().items():
            if name.endswith(".experts.gate_up_proj"):
                stem = name.removesuffix("gate_up_proj")
                for e, both in enumerate(tensor):
                    gate, up = both.chunk(2)
                    found[f"{stem}{e}.gate_proj.weight"], found[f"{stem}{e}.up_proj.weight"] = gate.contiguous(), up.contiguous()
            elif name.endswith(".experts.down_proj"):
                for e, one in enumerate(tensor):
                    found[f"{name.removesuffix('down_proj')}{e}.down_proj.weight"] = one.contiguous()
            else:
                found[name] = tensor.contiguous()
        return found

    def hidden(self, tokens):
        """What the model made of each token, after its last norm."""
        import torch

        with torch.no_grad():
            return self.decoder(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    def inputs(self, taps, runner, tokens) -> dict:
        """The names of the taps whose rows the head is fed: that of the model for the first draft, and its own for the next."""
        taps_of_model = Taps(types.SimpleNamespace(model=self.main), None)
        try:
            seen, hidden = taps_of_model.during(lambda: self.hidden(tokens))
        finally:
            taps_of_model.close()
        own, _ = taps.during(lambda: runner.forward(tokens[1:]))
        return {"fed": named(seen, hidden), "recycled": named(own, self.handed_on[0])}

    def run(self, tokens, hidden, start: int, cache):
        """Logits of pairs; `start` is how many pairs the cache holds."""
        import torch

        ids, positions = torch.tensor([tokens]), torch.arange(start + 1, start + 1 + len(tokens))[None]
        if self.mtp is not None:
            # What goes into the next layer, as in the loop of `MtpModel.forward`.
            self.handed_on = self.mtp.forward_layer(0, hidden[None], positions, cache, input_ids=ids)
            return self.mtp._project_to_logits(self.handed_on)
        return self.batch(ids, hidden[None], positions, cache)

    def batch(self, ids, hidden, positions=None, cache=None):
        """The same of several sequences; from the first pair on, unless positions are given."""
        import torch
        from transformers.masking_utils import create_causal_mask

        if positions is None:
            positions = torch.arange(1, 1 + ids.shape[1])[None]
        e = self.parts["e"](self.main.get_input_embeddings()(ids))
        x = self.parts["proj"](torch.cat([e, self.parts["h"](hidden)], dim=-1))
        # By position: releases of transformers have several names for the parameter of the cache.
        mask = create_causal_mask(self.config, x, None, cache, positions - 1)
        kept = {} if cache is None else {self.cache_key: cache}
        y = self.block(x, attention_mask=mask, position_embeddings=self.rotary(x, position_ids=positions), position_ids=positions, use_cache=cache is not None, **kept)
        y = y[0] if isinstance(y, tuple) else y
        # Heads of transformers hand on what their last norm gave, and so does this one.
        self.handed_on = self.parts["out"](y)
        return self.main.lm_head(self.handed_on)

    def cache(self):
        from transformers.cache_utils import DynamicCache, MtpCache

        return (MtpCache if self.mtp is not None else DynamicCache)(config=self.config)


def named(seen: dict, value) -> str:
    """The first module that gave a value."""
    import torch

    return next(name for name, output in seen.items() if output.numel() == value.numel() and torch.equal(output.reshape(value.shape), value))


def plant(root, path: str, module) -> None:
    from torch import nn

    *above, last = path.split(".")
    for name in above:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root._modules[name]
    root.add_module(last, module)


class HeadRunner:
    """As `Runner`: steps the head over pairs."""

    def __init__(self, head: Head, hidden: dict):
        """`hidden`: by prompt, what the model made of each token."""
        self.cache_key = head.cache_key
        self.head, self.model, self.hidden, self.rows = head, head.root, hidden, None

    def begin(self, prompt: dict) -> None:
        self.rows = self.hidden[prompt["name"]]

    def fresh(self):
        return self.head.cache()

    def forward(self, tokens, start=0, cache=None):
        import torch

        cache = self.head.cache() if cache is None else cache
        with torch.no_grad():
            logits = self.head.run(tokens, self.rows[start : start + len(tokens)], start, cache)
        return logits[0].clone(), cache


def pairs_of(prompts: list[dict]) -> list[dict]:
    """The prompts as the head sees them: each token after the first, with the one before it."""
    pairs = []
    for prompt in prompts:
        if len(prompt["tokens"]) < 2 or {"prefix", "documents", "given"} & prompt.keys():
            continue
        split = max(1, min(prompt["split"], len(prompt["tokens"]) - 2))
        pair = {"name": prompt["name"], "tokens": prompt["tokens"][1:], "split": split, "taps": prompt["taps"]}
        if "rows" in prompt:
            pair["rows"] = [row - 1 for row in prompt["rows"] if row > 0]
        pairs.append(pair)
    return pairs


class HeadMeasure:
    """What the members of a head are measured by in every dtype: the ensemble of its f32 run, and that run's audit."""

    def __init__(self, wanted: bool):
        """`wanted`: members are made."""
        self.wanted, self.ensemble, self.audit = wanted, None, None

    def members(self, runner, taps, run: str, pairs: list[dict], recorded: dict, audit: dict) -> tuple[dict, dict]:
        """The manifest's entry on the members of a run, and the largest distances by prompt."""
        if run == "f32" and self.wanted:
            self.ensemble, self.audit = Ensemble(pairs, list(recorded.values()), {}, ("shaken",)), audit
        ensemble, plainly = self.ensemble, audit if self.ensemble is None else self.audit
        if ensemble is None or not ensemble.prompts:
            return {}, {}
        ensemble.only = ("shaken",) if run == "f32" else ("own", "decode", "permuted")
        return ensemble.run(runner, taps, run, recorded, {}, lambda member: barred_member(member, runner, plainly, None, ensemble.tolerance()))

    def tolerance(self) -> float:
        return self.ensemble.tolerance() if self.ensemble is not None else AUDIT_TOLERANCE


def record(measure: HeadMeasure, model, files, run: str, prompts: list[dict], switch, topk, out: dict, notes: list[str]) -> dict | None:
    """One run of the head over all prompts; gives its taps, states and audit, or None where the checkpoint has no head or no prompt is for it."""
    place, pairs, kinds = places(model.config), pairs_of(prompts), {}
    tensors = tensors_of(files, place) if place and pairs else {}
    if not tensors:
        return None
    head = Head(model, loaded=True)
    if head.mtp is None:
        head.load(tensors, torch_dtype(run))
    head.share()
    runner = HeadRunner(head, {prompt["name"]: head.hidden(prompt["tokens"])[:-1] for prompt in prompts if len(prompt["tokens"]) > 1})
    taps = Taps(runner, None)
    try:
        longest = max(pairs, key=lambda pair: len(pair["tokens"]))
        runner.begin(longest)
        taps.probe(runner, longest["tokens"][:5])
        inputs = head.inputs(taps, runner, next(prompt["tokens"] for prompt in prompts if prompt["name"] == longest["name"]))
        recorded, audit = record_pairs(runner, taps, run, pairs, switch, topk, out, kinds, notes)
        members, spread = measure.members(runner, taps, run, pairs, recorded, audit)
    finally:
        taps.close()
    notes[:] = [note for note in notes if "this class does not read" not in note]
    how = "transformers' own" if head.mtp is not None else "put together from transformers' layers"
    return dict(kinds=kinds, audit=audit, shared=taps.shared, prompts=pairs, how=how, prefix=place["prefix"], inputs=inputs, members=members, spread=spread, tolerance=measure.tolerance())


def record_pairs(runner: HeadRunner, taps: Taps, run: str, pairs: list[dict], switch, topk, out: dict, kinds: dict, notes: list[str]) -> tuple[dict, dict]:
    """The recordings of all prompts by name, and the audit of the run."""
    recorded, audit = {}, {}
    for pair in pairs:
        runner.begin(pair)
        out[f"{run}/{pair['name']}/hidden"] = runner.rows.contiguous()
        if "decode" in pair["taps"]:
            pair["snapshots"] = snapshots_of(pair)
        found = record_prompt(out, kinds, runner, taps, run, pair, topk, {}, notes)
        work = Work(runner, audit_jobs(runner, taps, [pair], switch, run))
        checked, _, _ = audit_run([pair], [found], work, switch, run, notes)
        audit = {key: max(value, audit.get(key, 0.0)) for key, value in checked.items()}
        recorded[pair["name"]] = found
    return recorded, audit
