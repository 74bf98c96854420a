"""Records of what a class computes."""
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from onboard_dump import symbols
from onboard_dump.symbols import expression, symbol
from onboard_dump.trace import Recorder
from onboard_dump.trace_configs import kinds_as_dtypes, note_truth, tests_identity

REFERENCE = Path(__file__).resolve().parents[1]
FIXTURE = REFERENCE.parents[1] / "fixtures" / "llama"


def key(value, name: str):
    return symbol(value, ["config", name])


class Symbols(unittest.TestCase):
    def test_arithmetic_keeps_the_keys(self):
        hidden, heads = key(64, "hidden_size"), key(4, "num_attention_heads")
        size = hidden // heads
        self.assertEqual(size, 16)
        self.assertEqual(expression(size), ["//", ["config", "hidden_size"], ["config", "num_attention_heads"]])
        self.assertEqual(expression(2 * size)[:2], ["*", ["value", 2]])
        self.assertEqual(expression(symbols.root(size))[0], "sqrt")
        self.assertEqual(expression(symbols.integers(size * 0.5))[0], "int")
        self.assertEqual(type(symbols.plain(size)), int)

    def test_items_of_lists_and_keys_of_objects_keep_their_places(self):
        kinds = key(["full", "sliding"], "layer_types")
        self.assertEqual(expression(kinds[1]), ["item", ["config", "layer_types"], ["value", 1]])
        rope = key({"rope_theta": 1e4}, "rope_parameters")
        self.assertEqual(expression(rope["rope_theta"]), ["key", ["config", "rope_parameters"], "rope_theta"])

    def test_conditions_are_noted_with_their_place(self):
        known = len(symbols.DECISIONS)
        self.assertTrue(key("silu", "hidden_act") == "silu")
        test, outcome, at = symbols.DECISIONS[known]
        self.assertEqual((test, outcome), (["==", ["config", "hidden_act"], ["value", "silu"]], True))
        self.assertRegex(at, r"^test_trace\.py:\d+$")


class Configs(unittest.TestCase):
    def test_a_test_by_identity_gets_the_truth_value(self):
        known = len(symbols.DECISIONS)
        frame = sys._getframe(0)
        by_identity, by_value = tests_identity(frame) is True, tests_identity(frame)
        self.assertEqual((by_identity, by_value), (True, True))
        plain = tests_identity(frame)
        self.assertFalse(plain)
        self.assertIs(note_truth(["config", "gated"], True, frame), True)
        self.assertEqual(symbols.DECISIONS[known][:2], (["config", "gated"], True))

    def test_kinds_of_numbers_are_dtypes_of_tensors(self):
        with kinds_as_dtypes({symbols.integers: int}):
            self.assertEqual(torch.tensor([0], dtype=symbols.integers).dtype, torch.int64)
        self.assertRaises(TypeError, torch.tensor, [0], dtype=symbols.integers)

    def test_numbers_without_end_are_words(self):
        self.assertEqual(expression(float("inf")), ["value", "inf"])
        self.assertEqual(expression(float("-inf")), ["value", "-inf"])


class Half(torch.nn.Module):
    """One product, whose result a number of the config scales."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Linear(3, 3, bias=False)
        self.scale = key(2.0, "scale")

    def forward(self, x):
        return self.rows(x) * self.scale


class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Half(), Half()

    def forward(self, x):
        return x + self.second(self.first(x))


class Recording(unittest.TestCase):
    def test_calls_stand_in_their_modules_with_operands_and_expressions(self):
        model = Toy()
        recorder = Recorder(model)
        for module in model.modules():
            module.register_forward_pre_hook(recorder.before, with_kwargs=True)
            module.register_forward_hook(recorder.behind, with_kwargs=True)
        rows = torch.randn(2, 3)
        with torch.no_grad(), recorder:
            model(rows)
        frames = [event.get("enter", event.get("leave")) for event in recorder.events if "call" not in event]
        inside = [[half, f"{half}.rows", f"{half}.rows", half] for half in ("first", "second")]
        self.assertEqual(frames, ["", *inside[0], *inside[1], ""])
        calls = [event for event in recorder.events if "call" in event]
        self.assertEqual([event["call"] for event in calls], ["linear", "mul", "linear", "mul", "add"])
        self.assertEqual(calls[1]["args"], [calls[0]["out"], {"e": ["config", "scale"]}])
        self.assertEqual(calls[4]["args"], [{"v": recorder.values[id(rows)]}, calls[3]["out"]])
        weight = recorder.shapes[calls[0]["args"][1]["v"]]
        self.assertEqual((weight["weight"], weight["shape"]), ("first.rows.weight", [3, 3]))


def run_program(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(REFERENCE / "dump.py"), *words], capture_output=True, text=True)


class Program(unittest.TestCase):
    def test_writes_the_record_of_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            ran = run_program(str(FIXTURE), "--trace", str(path))
            self.assertEqual(ran.returncode, 0, ran.stderr)
            record = json.loads(path.read_text())
        self.assertEqual((record["class"], len(record["runs"])), ("LlamaForCausalLM", 2))
        self.assertIn("num_key_value_heads", record["reads"])
        self.assertTrue(all("error" not in run for run in record["runs"]))

    def test_tells_in_one_line_what_hinders_it(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model"
            copy.mkdir()
            shutil.copy(FIXTURE / "config.json", copy)
            ran = run_program(str(copy), "--trace", str(Path(folder) / "record.json"))
            self.assertEqual((ran.returncode, len(ran.stderr.splitlines())), (2, 1), ran.stderr)
            self.assertRegex(ran.stderr, "^dump: error: .*LlamaForCausalLM.* cannot be recorded: ")
            self.assertFalse((Path(folder) / "record.json").exists())
        ran = run_program(str(FIXTURE), "--trace", "record.json", "-o", "dump")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("--trace writes a record alone", ran.stderr)


if __name__ == "__main__":
    unittest.main()
