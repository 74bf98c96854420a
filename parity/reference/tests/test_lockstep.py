"""Forwards that go through the layers of a small model in step, and weights that are read from a file."""
import copy
import json
import struct
import tempfile
import types
import warnings
from pathlib import Path

import torch
from onboard_dump.cache_steps import Early, Step, expected, separable
from onboard_dump.checkpoint import entries_of
from onboard_dump.failures import Missing
from onboard_dump.layers import Skipped, decoder_layers, leave_out, plain_rows
from onboard_dump.lockstep import Lockstep
from onboard_dump.store import Store
from onboard_dump.weights import Piece, Plan, Weight
from tensor_case import TensorCase
from transformers import DynamicCache


class Layer(torch.nn.Module):
    """Adds the mean of all rows so far, which the cache holds."""

    def __init__(self, number: int, seen: list):
        super().__init__()
        self.number, self.weight, self.seen = number, torch.nn.Parameter(torch.tensor(float(number + 1))), seen

    def forward(self, hidden_states, cache=None):
        self.seen.append((self.number, hidden_states.shape[1]))
        keys, _ = cache.update(hidden_states[:, None], hidden_states[:, None], self.number)
        return hidden_states + self.weight * keys.mean(2)


class Model(torch.nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        config = types.SimpleNamespace(num_hidden_layers=layers)
        config.get_text_config = lambda decoder: config
        self.config, self.seen = config, []
        self.layers = torch.nn.ModuleList(Layer(number, self.seen) for number in range(layers))

    def forward(self, rows, cache):
        for layer in self.layers:
            rows = plain_rows(layer(rows, cache=cache))
        return rows


def lockstep_of(model: Model) -> tuple[Lockstep, list[str]]:
    said = []
    return Lockstep(model, types.SimpleNamespace(layer=0, say=said.append, read_bytes=0), "model"), said


class InStep(TensorCase):
    def test_jobs_enter_a_layer_one_after_another(self):
        model = Model()
        lockstep, _ = lockstep_of(model)
        jobs = {length: lambda length=length: model(torch.ones(1, length, 2), DynamicCache()) for length in (1, 2, 3)}
        found = lockstep.run(jobs)
        self.assertEqual([number for number, _ in model.seen], [0, 0, 0, 1, 1, 1, 2, 2, 2])
        self.assertEqual(lockstep.loads, 3)
        for length, (value, error) in found.items():
            self.assertIsNone(error)
            self.assert_close(value, jobs[length]())

    def test_a_job_that_fails_leaves_the_others(self):
        model = Model()
        lockstep, _ = lockstep_of(model)
        found = lockstep.run({"bad": lambda: model(torch.ones(1, 1, 2), None), "good": lambda: model(torch.ones(1, 2, 2), DynamicCache())})
        self.assertIsInstance(found["bad"][1], AttributeError)
        self.assertEqual(found["good"][0].shape, (1, 2, 2))

    def steps(self, model: Model, lockstep: Lockstep, count: int):
        """A forward over two rows, and steps of one row that go on from its cache."""
        rows = torch.arange(2.0 * (count + 2)).reshape(1, -1, 2)

        def job():
            cache = DynamicCache()
            model(rows[:, :2], cache)
            call = lambda number, cache: (model(rows[:, number + 2 : number + 3], cache), cache)  # noqa: E731
            found = lockstep.chain(cache, [1] * count, call)
            if found is None:
                found = [call(number, cache) for number in range(count)]
            return torch.cat([row for row, _ in found], 1)

        return rows, lockstep.run({"steps": job})["steps"]

    def test_steps_follow_each_other_layer_by_layer(self):
        model = Model()
        lockstep, said = lockstep_of(model)
        rows, (found, error) = self.steps(model, lockstep, 3)
        self.assertIsNone(error)
        self.assertEqual((model.seen[3:], said), ([(layer, 1) for layer in range(3) for _ in range(3)], []))
        plain, cache = Model(), DynamicCache()
        plain(rows[:, :2], cache)
        self.assert_close(found, torch.cat([plain(rows[:, at : at + 1], cache) for at in range(2, 5)], 1))

    def test_steps_that_touch_a_later_layer_run_one_after_another(self):
        class Early(Model):
            def forward(self, rows, cache):
                if len(cache.layers) == 3:
                    cache.layers[2].keys.sum() + cache.update(rows[:, None], rows[:, None], 2)[0].sum()
                return super().forward(rows, cache)

        model = Early()
        lockstep, said = lockstep_of(model)
        _, (found, error) = self.steps(model, lockstep, 2)
        self.assertEqual((found.shape, error), ((1, 2, 2), None))
        self.assertIn("steps run one after another: a step changes a DynamicLayer of its cache before its layer runs", said[0])

    def test_states_in_modules_keep_sequences_apart(self):
        model = Model()
        model.layers[0].kept = torch.zeros(1)
        lockstep, said = lockstep_of(model)
        lockstep.run({length: lambda length=length: model(torch.ones(1, length, 2), DynamicCache()) for length in (1, 2)})
        self.assertEqual([length for _, length in model.seen], [1, 1, 1, 2, 2, 2])
        self.assertIn("keeps states in its modules", said[0])


class Caches(TensorCase):
    def test_expected_parts_have_later_lengths_and_no_numbers(self):
        model, cache = Model(), DynamicCache()
        model(torch.ones(1, 4, 2), cache)
        self.assertTrue(separable(cache, model.layers) and not separable(cache, model.layers[:2]) and not separable(copy.copy(model), model.layers))
        later = expected(cache.layers[0], 3)
        self.assertEqual((later.get_seq_length(), later.keys.shape[-2]), (7, 7))
        with self.assertRaises(Early):
            later.update(None, None)
        self.assertIs(Step(cache, None, 0).cache, cache)


class Choice(TensorCase):
    def test_layers_that_are_left_out_hand_rows_on_and_count_tokens(self):
        model, cache = Model(), DynamicCache()
        self.assertEqual(len(decoder_layers(model)), 3)
        leave_out(model, [1])
        self.assertEqual((model.left_out, [isinstance(layer, Skipped) for layer in model.layers]), ({0, 2}, [True, False, True]))
        rows = model(torch.ones(1, 4, 2), cache)
        self.assert_close(rows, torch.full((1, 4, 2), 3.0))
        self.assertEqual([layer.get_seq_length() for layer in cache.layers], [4, 4, 4])


class Weights(TensorCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.values = torch.arange(12.0).reshape(4, 3) + 1
        header = json.dumps({"table": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}}).encode()
        header += b" " * (-len(header) % 8)
        path = Path(folder.name) / "model.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + self.values.numpy().tobytes())
        self.store = Store(entries_of([path]), 1 << 20, print)
        # As a conversion of transformers that renames one tensor.
        conversion = types.SimpleNamespace(collected_tensors={}, operations=(), quantization_operation=None)
        piece = Piece(self.store.slices["table"], torch.float32)
        plan = Plan(conversion, lambda made, name: {name: [made.collected_tensors["table"][0]()]}, "embed.weight", {"table": [piece]}, {})
        # As `Store.loading` does: tensors are read in place.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        self.store.planning = True
        self.weight = Weight.of(self.store, plan, "embed.weight", torch.empty(4, 3, device="meta"))
        self.store.planning = False

    def test_shapes_are_known_without_reading(self):
        self.assertEqual((tuple(self.weight.shape), self.weight.dtype, str(self.weight.device), self.store.read_bytes), ((4, 3), torch.float32, "cpu", 0))

    def test_numbers_are_read_when_they_are_used(self):
        self.assert_close(torch.nn.functional.linear(torch.eye(3), self.weight), self.values.T)
        self.assertEqual(self.store.read_bytes, 48)

    def test_of_a_table_only_the_rows_in_use_are_read(self):
        self.assert_close(torch.nn.functional.embedding(torch.tensor([[3, 1, 3]]), self.weight), self.values[[3, 1, 3]][None])
        self.assertEqual(self.store.read_bytes, 24)

    def test_members_move_what_is_read_as_weights_in_memory(self):
        from onboard_dump.members import in_f64, shaken

        plain = torch.nn.Module()
        plain.weight = torch.nn.Parameter(self.values.clone())
        with shaken(plain, 5), self.store.shaken(5, [self.weight]):
            self.assertTrue(torch.equal(self.weight + 0, plain.weight.detach()))
        with self.store.in_f64():
            self.assertEqual((self.weight + 0).dtype, torch.float64)
        self.assertTrue(torch.equal(self.weight + 0, self.values))
        with in_f64(plain):
            self.assertEqual(plain.weight.dtype, torch.float64)

    def test_a_file_that_is_gone_is_named(self):
        self.store.slices["table"].path.unlink()
        with self.assertRaisesRegex(Missing, "a layer that is run has weights there"):
            self.weight + 0
