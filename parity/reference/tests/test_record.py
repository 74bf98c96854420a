"""A small model of one's own, recorded and audited: taps, states, steps, and the members of its ensemble."""
import types

import torch
from onboard_dump import audit, distances, manifest, masks, members, patches, record, states
from onboard_dump.ensemble import Ensemble, put_spread
from onboard_dump.prompts import snapshots_of
from onboard_dump.taps import Taps
from onboard_dump.work import Work
from tensor_case import TensorCase

VOCAB = 7


class Sums(torch.nn.Module):
    """Logits are a projection of the sum of all rows so far, which a cache holds as keys: it has them all."""

    base_model_prefix = "none"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = torch.nn.Embedding(VOCAB, 4), torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, VOCAB, bias=False)

    def forward(self, tokens, layer):
        rows = self.mix(self.embed(tokens))
        layer.keys = torch.cat([layer.keys, rows[:, None]], dim=2)
        layer.values = layer.keys.clone()
        return self.head(layer.keys[:, 0].cumsum(1)[:, -tokens.shape[1] :])


class SumsRunner:
    """As `Runner`."""

    def __init__(self, drift=0.0):
        """`drift` is added to what a step gives: a cache that is not to be believed."""
        self.model, self.cache_key, self.drift = Sums(), "cache", drift

    def begin(self, prompt):
        pass

    def fresh(self):
        return types.SimpleNamespace(layers=[types.SimpleNamespace(keys=torch.zeros(1, 1, 0, 4), values=torch.zeros(1, 1, 0, 4))])

    def forward(self, tokens, start=0, cache=None):
        cache = self.fresh() if cache is None else cache
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens]), cache.layers[0])[0]
        return logits + (self.drift if start else 0.0), cache


def prompt_of(**more) -> dict:
    prompt = {"name": "main", "tokens": [1, 5, 2, 3, 6, 0], "split": 3, "taps": ["prefill", "decode"], **more}
    return prompt | {"snapshots": snapshots_of(prompt)}


def recorded(prompt: dict, runner: SumsRunner, topk=None):
    taps, out, kinds, notes = Taps(runner, VOCAB), {}, {}, []
    taps.probe(runner, prompt["tokens"][:5])
    found = record.record_prompt(out, kinds, runner, taps, "f32", prompt, topk, {}, notes)
    return found, out, kinds, notes, taps


class Recording(TensorCase):
    def test_both_phases_have_the_rows_that_the_prompt_names(self):
        found, out, kinds, notes, taps = recorded(prompt_of(rows=[1, 4, 5]), SumsRunner())
        self.assertEqual((found.full.shape, out["f32/main/prefill/logits"].shape, out["f32/main/decode/logits"].shape), ((6, VOCAB), (3, VOCAB), (2, VOCAB)))
        self.assertEqual(sorted(key for key in out if "/tap/" in key), [f"f32/main/{phase}/tap/{name}" for phase in ("decode", "prefill") for name in ("embed", "mix")])
        self.assert_close(found.decoded, found.full[[4, 5]])
        self.assert_close(out["f32/main/decode/tap/mix"], out["f32/main/prefill/tap/mix"][1:])
        self.assertEqual((notes, manifest.listed_states(kinds)), ([], [{"layer": 0, "kind": "attention", "parts": ["k", "v"]}]))

    def test_keys_of_steps_are_those_of_the_prefill(self):
        _, out, *_ = recorded(prompt_of(), SumsRunner())
        self.assertEqual(out["f32/main/decode/state/0/k"].shape, (6, 1, 4))
        self.assert_close(out["f32/main/decode/state/0/k"], out["f32/main/prefill/state/0/k"])

    def test_a_cache_that_loses_rows_has_no_decode_state(self):
        class Forgets(SumsRunner):
            def forward(self, tokens, start=0, cache=None):
                logits, cache = super().forward(tokens, start, cache)
                if start == 4:
                    cache.layers[0].keys = cache.layers[0].keys + 1
                return logits, cache

        _, out, _, notes, _ = recorded(prompt_of(), Forgets())
        self.assertNotIn("f32/main/decode/state/0/k", out)
        self.assertIn("does not add one row of k per step", notes[0])

    def test_large_vocabularies_have_their_best_and_the_target(self):
        found, out, *_ = recorded(prompt_of(), SumsRunner(), topk=2)
        logprobs = torch.log_softmax(found.full, -1)
        self.assert_close(out["f32/main/prefill/top_logprobs"], logprobs.topk(2).values)
        self.assert_close(out["f32/main/prefill/target_logprobs"][:-1], logprobs[range(5), [5, 2, 3, 6, 0]])
        self.assertTrue(out["f32/main/prefill/target_logprobs"][-1].isnan() and "f32/main/prefill/logits" not in out)

    def test_tokens_that_the_head_lacks_have_no_log_probability(self):
        out = {}
        record.put_logits(out, "p", torch.zeros(3, VOCAB), [VOCAB, 1, None], 2)
        self.assertEqual(out["p/target_logprobs"].isnan().tolist(), [True, False, True])

    def test_a_convolution_by_groups_reaches_behind_the_one_before(self):
        def widths(**convolutions):
            return states.conv_widths(torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict(convolutions)])}), 1)

        depthwise, grouped, dense = (torch.nn.Conv1d(6, 6, size, groups=groups) for size, groups in ((3, 6), (2, 3), (5, 1)))
        self.assertEqual((widths(a=dense), widths(a=depthwise), widths(a=depthwise, b=grouped)), ({}, {0: {6: 3}}, {0: {6: 4}}))

    def test_two_convolutions_of_a_layer_have_their_own_widths(self):
        widths = {0: {6: 3, 4: 2}, 2: {6: 5}}
        self.assertEqual([states.width_of(widths, 0, channels) for channels in (6, 4, 9)], [3, 2, 3])
        # Of a layer without one, and of layers that run again.
        self.assertEqual([states.width_of(widths, 1, 6), states.width_of(widths, 3, 6), states.width_of(widths, 3, 4)], [None, 5, 2])

    def test_tokens_that_a_layer_keeps_are_no_state(self):
        layer = types.SimpleNamespace(conv_states={0: torch.ones(1, 3, 2), 2: torch.ones(1, 2, dtype=torch.int64)})
        found = states.read_states(types.SimpleNamespace(base_model_prefix=""), types.SimpleNamespace(layers=[layer]), {})
        self.assertEqual([(part, tensor.shape) for _, _, part, tensor in found], [("conv", (3, 2))])

    def test_keys_that_are_values_too_are_one_part(self):
        def parts(keys, values):
            layer = types.SimpleNamespace(keys=keys, values=values)
            found = states.read_states(types.SimpleNamespace(base_model_prefix=""), types.SimpleNamespace(layers=[layer]), {})
            return [part for _, _, part, _ in found], sorted(part for _, part in states.newest_rows(types.SimpleNamespace(layers=[layer])))

        keys = torch.ones(1, 1, 2, 3)
        self.assertEqual((parts(keys, keys), parts(keys, keys.clone())), ((["k"], ["k"]), (["k", "v"], ["k", "v"])))

    def test_what_grows_with_the_prompt_is_no_value_of_a_token(self):
        class Scores(torch.nn.Module):
            def forward(self, rows):
                return rows @ rows.transpose(1, 2)[..., : rows.shape[1] // 2]

        class Scored(Sums):
            def __init__(self):
                super().__init__()
                self.scores = Scores()

            def forward(self, tokens, layer):
                self.scores(self.embed(tokens))
                return super().forward(tokens, layer)

        runner = SumsRunner()
        runner.model = Scored()
        taps = Taps(runner, VOCAB)
        taps.probe(runner, [1, 5, 2, 3, 6])
        self.assertEqual(sorted(taps.axes), ["embed", "mix"])

    def test_f32_matrices_take_the_dtype_of_f16_rows(self):
        wide, narrow, patched = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).half(), set()
        patches.equal_dtypes(torch.nn.ModuleList([wide, narrow]), patched)
        wide(torch.ones(1, 2))
        self.assertEqual((wide.weight.dtype, patched), (torch.float32, set()))
        wide.bias.data = wide.bias.data.half()
        self.assertEqual(wide(torch.ones(1, 2).half()).dtype, torch.float16)
        self.assertEqual((wide.weight.dtype, patched), (torch.float16, {"weights_of_the_inputs_dtype"}))

    def test_a_matrix_and_what_is_beside_it_are_one_state(self):
        parts = (torch.arange(6.0).reshape(1, 1, 2, 3), torch.tensor([[[7.0, 8.0]]]), torch.tensor([[[9.0]]]))
        found = states.read_states(types.SimpleNamespace(base_model_prefix=""), types.SimpleNamespace(rnn_state={4: parts}), {})
        self.assertEqual([(layer, part, tensor.tolist()) for layer, _, part, tensor in found], [(4, "recurrent", [[0, 1, 2, 7, 3, 4, 5, 8, 9]])])

    def test_routers_choices_are_joined_where_every_token_has_one(self):
        out, step = {}, {"a": torch.ones(1, 2), "b": torch.ones(1, 2)}
        record.put_chosen(out, "p", [step, {"a": torch.zeros(1, 2)}], 2)
        self.assertEqual({key: value.tolist() for key, value in out.items()}, {"p/chosen/a": [[1, 1], [0, 0]]})

    def test_caches_behind_those_of_the_layers_are_as_wide_as_theirs(self):
        layers = [types.SimpleNamespace(conv_states={0: torch.arange(6.0).reshape(1, 2, 3)}) for _ in range(2)]
        found = states.read_states(Sums(), types.SimpleNamespace(layers=layers), {0: {2: 3}})
        self.assertEqual([(layer, part, tensor.tolist()) for layer, _, part, tensor in found], [(n, "conv", [[1, 2], [4, 5]]) for n in range(2)])

    def test_choices_of_experts_that_run_twice_are_left_out(self):
        class Experts(torch.nn.Module):
            def forward(self, rows, chosen, weights):
                return rows

        class Twice(Sums):
            def __init__(self):
                super().__init__()
                self.once, self.twice = Experts(), Experts()

            def forward(self, tokens, layer):
                rows = self.embed(tokens)[0]
                chosen = torch.zeros(len(rows), 2, dtype=torch.int64)
                for experts in (self.once, self.twice, self.twice):
                    experts(rows, chosen, chosen.float())
                return super().forward(tokens, layer)

        runner = SumsRunner()
        runner.model = Twice()
        taps = Taps(runner, VOCAB)
        taps.probe(runner, [1, 5, 2, 3, 6])
        self.assertEqual(taps.routers, {"once"})

    def test_greedy_tokens_are_those_of_whole_forwards(self):
        runner = SumsRunner()
        cached, chosen = record.greedy_tokens(runner, Taps(runner, None), [1, 2], 4, False)
        whole, _ = record.greedy_tokens(runner, None, [1, 2], 4, True)
        self.assertEqual((cached, len(chosen)), (whole, 3))


class Audit(TensorCase):
    def audited(self, runner, notes):
        prompt = prompt_of()
        found, *_, taps = recorded(prompt, runner)
        work = Work(runner, audit.audit_jobs(runner, taps, [prompt], None, "f32"))
        return audit.audit_run([prompt], [found], work, None, "f32", notes)

    def test_rounding_is_no_difference(self):
        notes = []
        found, pieces, why = self.audited(SumsRunner(), notes)
        self.assertLess(max(found.values()), distances.AUDIT_TOLERANCE)
        self.assertEqual((notes, why, pieces["main"][0].shape), ([], None, (6, VOCAB)))

    def test_steps_that_differ_are_measured(self):
        found, _, _ = self.audited(SumsRunner(drift=0.5), [])
        self.assertGreater(found["decode_vs_prefill"], 0.05)
        self.assertGreater(found["chunked_vs_prefill"], 0.05)

    def test_chunks_cover_a_prompt_and_begin_with_its_prefix(self):
        self.assertEqual(audit.chunk_sizes({"tokens": [0] * 9, "split": 4, "prefix": 3}, None)[0], 3)
        self.assertGreaterEqual(sum(audit.chunk_sizes({"tokens": [0] * 20, "split": 4}, None)), 20)

    def test_documents_end_where_the_next_begins(self):
        self.assertEqual(masks.spans_of([0, 3, 7], 6), [(0, 3), (3, 6)])


class Members(TensorCase):
    def test_shaken_weights_move_by_units_in_the_last_place_and_come_back(self):
        model = Sums()
        before = [p.detach().clone() for p in model.parameters()]
        with members.shaken(model, 3):
            moved = [p.detach().clone() for p in model.parameters()]
        self.assertTrue(any(not torch.equal(a, b) for a, b in zip(before, moved)))
        self.assertTrue(all(((a.view(torch.int32) - b.view(torch.int32)).abs() <= 1).all() for a, b in zip(before, moved)))
        self.assertTrue(all(torch.equal(a, p) for a, p in zip(before, model.parameters())))

    def test_permuted_products_differ_by_rounding_and_end(self):
        linear, x, weight = torch.nn.functional.linear, torch.rand(3, 400), torch.rand(5, 400)
        with members.permuted(1):
            found = torch.nn.functional.linear(x, weight)
        self.assert_close(found, linear(x, weight))
        self.assertFalse(torch.equal(found, linear(x, weight)))
        self.assertIs(torch.nn.functional.linear, linear)

    def test_an_ensemble_keeps_the_largest_distances_and_the_failures(self):
        runner, prompt = SumsRunner(), prompt_of()
        found, _, kinds, _, taps = recorded(prompt, runner)
        ensemble = Ensemble([prompt], [found], {})
        entry, most = ensemble.run(runner, taps, "f32", {"main": found}, {}, lambda member: "not today" if member == "shaken2" else None)
        self.assertEqual(entry["ran"], [*(f"shaken{n}" for n in (0, 1, 3, 4, 5, 6)), "f64", "decode"])
        self.assertEqual(entry["failed"], {"shaken2": "not today"})
        logits, near, far = most["main"]
        self.assertTrue(0 < float(logits[0].max()) < 1e-5 and 0 < float(near["mix"].max()) < 1e-5 and 0 < far[0, "k"] < 1e-5)
        out = {}
        put_spread(out, "f32", [prompt], most, ["mix", "none"], manifest.listed_states(kinds))
        self.assertEqual(out["f32/main/spread/taps"][1].tolist(), [-1.0] * 6)
        self.assertEqual(out["f32/main/spread/states"].shape, (2,))

    def test_members_of_16_bits_are_in_the_order_of_the_manifest(self):
        names = [name for name, _ in Ensemble([], [], {}).members("bf16", None)]
        self.assertEqual(names, ["own", "decode", "sdpa", "chunks", *(f"permuted{n}" for n in range(6))])

    def test_distances_that_are_not_finite_are_far(self):
        base = torch.tensor([[1.0, 2.0]])
        self.assertEqual(float(distances.tap_distances(base, torch.tensor([[float("nan"), 2.0]]), 0)), distances.FAR)
        self.assertEqual(distances.state_distance(base, base), 0.0)
        self.assertEqual(distances.relative(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])), 0.5)
