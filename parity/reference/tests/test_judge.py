"""Small models in which a fault is planted, each of which its check has to find, and none in the model without one."""
import contextlib
import types

import torch
from onboard_dump import judge as judge_module
from onboard_dump.distances import exact_gap
from onboard_dump.idle import Idle, idle_verdict, weights_of
from onboard_dump.judge import Judge
from onboard_dump.runner import is_cache
from onboard_dump.verdicts import DIFFERS, HOLDS, IMPOSSIBLE, Noise, Verdict, attempt
from onboard_dump.watch import Watch, first_apart, watched
from onboard_dump.wide import wide
from tensor_case import TensorCase
from transformers import LlamaConfig, LlamaForCausalLM

PROMPTS = [{"name": "main", "tokens": [5, 17, 3, 9, 30, 8, 2, 11, 25], "split": 5}, {"name": "long", "tokens": [7, 1, 12, 20, 4, 6, 19, 33, 21, 10, 2, 28], "split": 6}]
FACTS = {"switch": None, "limit": 64}


class Mixed(torch.nn.Module):
    """Adds to each row a share of the row before it, as a convolution of width 2 does: of the cache's last row in a step."""

    def __init__(self, inner, fault: str):
        super().__init__()
        self.inner, self.fault, self.last, self.mask = inner, fault, None, None

    def forward(self, x, *args, **kwargs):
        before = torch.zeros_like(x[:, :1])
        if x.shape[1] > 1 or self.last is None:
            # Rows of padding are zeros, unless they leak.
            held = x if self.mask is None or self.fault == "padding" else x * self.mask[..., None]
        else:
            held = x
            if self.fault != "steps":
                before = self.last
        self.last = held[:, -1:]
        return self.inner(x + 0.5 * torch.cat([before, held[:, :-1]], 1), *args, **kwargs)


def model_of(fault: str = "") -> LlamaForCausalLM:
    """A model of two layers with random weights, in which `fault` is planted."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=40, max_position_embeddings=64,
                         attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.4 + (parameter.ndim == 1))
    if fault in ("padding", "steps", "mixed"):
        mixed = model.model.layers[0].mlp = Mixed(model.model.layers[0].mlp, fault)

        def begin(_module, args, kwargs):
            ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
            cache = next((value for value in kwargs.values() if is_cache(value)), None)
            if cache is None or cache.get_seq_length() == 0:
                mixed.last = None
            mixed.mask = mask.to(mixed.inner.up_proj.weight.dtype) if mask is not None and ids is not None and mask.shape == ids.shape else None

        model.register_forward_pre_hook(begin, with_kwargs=True)
    if fault == "idle":
        model.model.layers[1].mlp.never_added = torch.nn.Parameter(torch.ones(3))
    if fault == "coarse":
        model.model.layers[1].mlp.register_forward_hook(lambda _module, _inputs, output: output.bfloat16().to(output.dtype))
    if fault == "cache":
        model.model.norm.register_forward_hook(lambda _module, _inputs, output: output + 0.01 * model.uncached)
        model.register_forward_pre_hook(lambda _module, _args, kwargs: setattr(model, "uncached", kwargs.get("use_cache") is False), with_kwargs=True)
    if fault == "sdpa":
        model.model.norm.register_forward_hook(lambda _module, _inputs, output: output * (1.01 if model.config._attn_implementation == "sdpa" else 1.0))
    if fault == "batch":
        model.model.layers[1].register_forward_hook(lambda _module, _inputs, output: output + 0.01 * (output.shape[0] > 1) * output.mean(0, keepdim=True))
    return model


def judged(fault: str = "") -> dict[str, Verdict]:
    return {verdict.check: verdict for verdict in Judge(model_of(fault), PROMPTS, FACTS, []).verdicts()}


def differing(verdicts: dict) -> list[str]:
    return [check for check, verdict in verdicts.items() if verdict.outcome == DIFFERS]


class Faults(TensorCase):
    def test_a_model_without_a_fault_has_none(self):
        found = judged()
        self.assertEqual({verdict.outcome for check, verdict in found.items() if check != "experts"}, {HOLDS}, found)
        self.assertEqual(found["experts"].outcome, IMPOSSIBLE)

    def test_the_planted_convolution_by_itself_is_none(self):
        # Several tokens on a cache are no part of it: it begins anew with them.
        self.assertEqual(differing(judged("mixed")), ["chunks"])

    def test_padding_that_leaks_is_found_in_its_layer(self):
        found = judged("padding")
        self.assertEqual(differing(found), ["chunks", "padding", "padding under sdpa"])
        self.assertIn("`model.layers.0.mlp.inner.gate_proj`, position 0, row", found["padding"].at)
        self.assertIn("tokens as padding", found["padding"].at)

    def test_a_state_that_steps_lose_is_found_at_the_first_step(self):
        found = judged("steps")
        self.assertLessEqual({"cache", "steps"}, set(differing(found)))
        self.assertIn("`model.layers.0.mlp.inner.gate_proj`, position 1, prompt", found["steps"].at)

    def test_a_pass_without_a_cache_that_differs_is_found(self):
        self.assertEqual(differing(judged("cache")), ["cache"])

    def test_rows_of_a_batch_that_reach_each_other_are_found(self):
        found = judged("batch")
        self.assertEqual(differing(found), ["batch", "padding", "padding under sdpa"])
        self.assertIn("`model.layers.1`", found["batch"].at)

    def test_another_attention_that_differs_is_found(self):
        found = judged("sdpa")
        self.assertEqual(differing(found), ["sdpa", "padding under sdpa"])
        self.assertIn("`model.norm`", found["sdpa"].at)

    def test_a_weight_that_is_never_used_is_listed(self):
        found = judged("idle")
        self.assertEqual(differing(found), ["idle"])
        self.assertEqual(found["idle"].at, "`model.layers.1.mlp.never_added`")

    def test_a_rounding_to_16_bits_in_f32_is_found_where_it_is(self):
        found = judged("coarse")
        self.assertIn("f64", differing(found))
        self.assertIn("`model.layers.1.mlp`", found["f64"].at)


class Parts(TensorCase):
    def test_a_class_without_f64_is_judged_by_units_in_the_last_place(self):
        real = judge_module.wide
        judge_module.wide = lambda model: contextlib.nullcontext(model.refuse())
        try:
            model = model_of("sdpa")
            model.refuse = lambda: (_ for _ in ()).throw(RuntimeError("no f64. Ever."))
            found = {verdict.check: verdict for verdict in Judge(model, PROMPTS, FACTS, []).verdicts()}
        finally:
            judge_module.wide = real
        self.assertEqual(found["f64"].line(), "f64: not possible: RuntimeError: no f64")
        self.assertEqual(differing(found), ["sdpa", "padding under sdpa"])
        self.assertIn("units in the last place", found["steps"].note)

    def test_code_that_asks_for_f32_gets_f64(self):
        model = torch.nn.Linear(2, 2)
        with wide(model):
            found = [torch.ones(2).float(), model.weight.to(torch.float32), torch.zeros(2, dtype=torch.float32), torch.softmax(model.weight, -1, dtype=torch.float32), torch.rand(1)]
            self.assertEqual({tensor.dtype for tensor in found}, {torch.float64})
            self.assertEqual((model.weight.bfloat16().dtype, torch.zeros(2, dtype=torch.int32).dtype), (torch.float64, torch.int32))
        self.assertEqual((model.weight.dtype, torch.get_default_dtype(), torch.ones(2).float().dtype), (torch.float32,) * 3)

    def test_idle_weights_are_found_in_few_forwards_and_come_back(self):
        weights = {f"w{number}": torch.tensor([1.0 + number]) for number in range(32)}
        before = {name: tensor.clone() for name, tensor in weights.items()}
        used = [weights[f"w{number}"] for number in range(32) if number not in (7, 20, 21)]
        search = Idle(weights, lambda: torch.cat(used), 1e-6)
        self.assertEqual(search.search(list(weights)), ["w7", "w20", "w21"])
        self.assertLess(search.forwards, 2 * len(weights) + 12)
        self.assertTrue(all(torch.equal(tensor, before[name]) for name, tensor in weights.items()))
        search = Idle(weights, lambda: torch.zeros(1), 1e-6)
        search.search(list(weights))
        self.assertEqual(search.forwards, 4)

    def test_a_border_that_acts_on_one_side_is_not_idle(self):
        for ends, value in ((torch.minimum, -0.001), (torch.maximum, 0.001)):
            border = torch.tensor([1e-6 if value < 0 else -1e-6])
            search = Idle({"border": border}, lambda ends=ends, value=value, border=border: ends(torch.tensor([value]), border), 1e-6)
            self.assertEqual(search.search(["border"]), [])

    def test_a_weight_that_only_chooses_is_not_idle(self):
        class Chooses(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = torch.nn.Parameter(torch.tensor([0.1, 0.0, 0.2]))
                self.register_buffer("unused", torch.ones(2))
                self.register_buffer("not_kept", torch.ones(2), persistent=False)
                self.lone = torch.nn.Linear(2, 2)

            def forward(self):
                scores = torch.tensor([0.3, 0.4, 0.25])
                return scores.gather(0, (scores + self.bias).topk(2).indices)

        model = Chooses()
        self.assertEqual(list(weights_of(model)), ["bias", "lone.weight", "lone.bias", "unused"])
        found = idle_verdict(model, model, 1e-6)
        self.assertEqual((found.outcome, found.at), (DIFFERS, "`unused`"))
        self.assertIn("not judged are 2 of modules that these tokens do not run: `lone.weight`, `lone.bias`", found.note)

    def test_rows_of_one_sequence_are_taken_out_of_a_batch(self):
        layer = torch.nn.Linear(4, 4)
        outer = types.SimpleNamespace(register_forward_pre_hook=lambda hook, with_kwargs: types.SimpleNamespace(remove=lambda: None),
                                      named_modules=lambda: [("layer", layer)])
        watch = Watch(1, 3, real=2)
        with watched(outer, watch), torch.no_grad():
            for width in (5, 1):
                watch.forward, watch.width = watch.forward + 1, width
                x = torch.rand(3 * width, 4)
                layer(x)
                last = layer.forward(x).reshape(3, width, 4)[1]
                self.assert_close(watch.rows["layer"][watch.forward][0], last[-2:])
        self.assertEqual(watch.joined()["layer"].shape, (3, 4))

    def test_the_first_module_that_differs_is_named_with_its_position(self):
        one = {"a": torch.ones(3, 2), "b": torch.ones(3, 2), "c": torch.ones(3, 2)}
        two = one | {"b": torch.tensor([[1.0, 1], [1, 1.5], [9, 9]]), "c": torch.zeros(3, 2)}
        self.assertEqual(first_apart(one, two, 1e-3), "`b`, position 1")
        self.assertEqual(first_apart(one, dict(one), 1e-3), "the logits, as no module's rows differ")

    def test_verdicts_are_lines_and_entries(self):
        noise = Noise(1e-6, "f32 rounds by")
        self.assertEqual(noise.judge("steps", 1e-7, None).line(), "steps: holds (1.0e-07 of the largest logit, f32 rounds by 1.0e-06)")
        self.assertEqual(noise.judge("steps", 0.5, lambda: "`b`").line(), "steps: differs by 5.0e-01 of the largest logit at `b` (f32 rounds by 1.0e-06)")
        self.assertEqual(noise.judge("steps", float("inf"), lambda: "`b`").outcome, DIFFERS)
        self.assertEqual(attempt("sdpa", lambda: 1 / 0).entry(), {"check": "sdpa", "outcome": IMPOSSIBLE, "note": "ZeroDivisionError: division by zero"})

    def test_gaps_of_f64_are_not_rounded_to_f32(self):
        one = torch.tensor([1.0], dtype=torch.float64)
        self.assertGreater(exact_gap(one + 1e-12, one), 0.0)
        self.assertEqual(exact_gap(torch.tensor([float("nan")]), torch.ones(1)), float("inf"))
