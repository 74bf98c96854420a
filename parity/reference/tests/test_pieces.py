"""Parts of a dump as files, the plan of its pieces, and jobs that are run once for all processes."""
import tempfile
import types
import unittest
from pathlib import Path

import torch
from onboard_dump.failures import Fail, Missing, Unusable
from onboard_dump.pieces import ENDING, Parts
from onboard_dump.record import Recorded
from onboard_dump.units import Units
from onboard_dump.work import Work

ARGS = {"dtypes": ["f32", "bf16"], "tokens": "1,2,3,4,5,6", "prompts": None, "no_members": False, "no_taps": False, "greedy": 4, "layerwise": False, "encoder": False}
FACTS = {"windows": [], "limit": 100, "sizes": set(), "switch": None, "vocab": 50}
KEYS = [("f32", "prompt", "main", "record"), ("f32", "greedy", "cached")]


def units_of(**more) -> list[dict]:
    units = Units(types.SimpleNamespace(**ARGS | more), FACTS)
    for run in units.args.dtypes:
        units.add_run(run)
    return units.found


class Plan(unittest.TestCase):
    def test_units_hold_each_part_once(self):
        units = units_of()
        keys = [key for unit in units for key in unit["parts"]]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertEqual([key[3] for key in keys if key[:2] == ("f32", "prompt")], ["record", "plain", "chunks", "steps"])
        self.assertEqual([key[3] for key in keys if key[:2] == ("bf16", "prompt")], ["record", "chunks", "steps"])
        self.assertEqual([unit["name"] for unit in units if unit["run"] == "f32"], ["prompts/main", *(f"shaken{n}/main" for n in range(7)), "f64/main", "greedy"])

    def test_prompts_go_through_a_layer_together(self):
        names = [unit["name"] for unit in units_of(tokens=None, layerwise=True, no_members=True, dtypes=["f32"])]
        self.assertEqual(names, ["prompts", "greedy"])

    def test_pieces_share_all_units(self):
        units = units_of()
        for count in (1, 2, 3, 40):
            parts = Parts(Path("nowhere"), {}, units, Fail, Unusable)
            self.assertEqual([key for number in range(count) for key in parts.share(number, count)], [key for unit in units for key in unit["parts"]])
        self.assertIn("piece 2/2: ", Parts(Path("nowhere"), {}, units, Fail, Unusable).lines(2))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def parts(self, piece=None, **inputs) -> Parts:
        return Parts(self.folder, {"config": "a", **inputs}, [{"run": "f32", "name": "all", "cost": 1.0, "parts": KEYS}], Fail, Unusable, piece)

    def run_parts(self, **inputs):
        return self.parts(**inputs).of_run("f32", set(), lambda error: " (my.py, line 3)", {"recorded": Recorded})

    def test_values_of_known_classes_come_back(self):
        recorded = Recorded(torch.arange(6.0).reshape(2, 3), {"tap": torch.ones(2)})
        run = self.run_parts()
        run.patched.add("gelu_table")
        run.put("prompt", ("main", "record"), ((recorded, {}, [1, "a"]), None))
        again = self.run_parts()
        (found, _, rest), error = again.get("prompt", ("main", "record"))
        self.assertTrue(isinstance(found, Recorded) and torch.equal(found.full, recorded.full) and torch.equal(found.prefill_taps["tap"], torch.ones(2)))
        self.assertEqual((rest, error, again.patched), ([1, "a"], None, {"gelu_table"}))

    def test_failures_are_results_unless_they_pass(self):
        self.run_parts().put("greedy", "cached", (None, ValueError("no such step")))
        _, error = self.run_parts().get("greedy", "cached")
        self.assertEqual((type(error).__name__, str(error), error.place), ("ValueError", "no such step", " (my.py, line 3)"))
        for passing in (MemoryError(), FileNotFoundError("x"), Missing("y"), RuntimeError("CUDA out of memory")):
            self.run_parts().put("prompt", ("main", "record"), (None, passing))
            self.assertIsNone(self.run_parts().get("prompt", ("main", "record")))

    def test_damaged_parts_are_missing(self):
        self.run_parts().put("greedy", "cached", (1, None))
        path = self.parts().path(KEYS[1])
        path.write_bytes(path.read_bytes()[:-1])
        self.assertIsNone(self.run_parts().get("greedy", "cached"))
        with self.assertRaisesRegex(Unusable, r"2 of 2 parts are missing or damaged: f32/prompt/main/record, f32/greedy/cached \(damaged\)"):
            self.parts().require_all()

    def test_parts_of_other_inputs_are_refused(self):
        self.run_parts().put("greedy", "cached", (1, None))
        with self.assertRaisesRegex(Unusable, 'of another dump: config is "a" there and "b" here'):
            self.run_parts(config="b").get("greedy", "cached")

    def test_a_part_under_another_name_is_refused(self):
        for stage, name in (("prompt", ("main", "record")), ("greedy", "cached")):
            self.run_parts().put(stage, name, (1, None))
        self.parts().require_all()
        (self.folder / f"copy{ENDING}").write_bytes(self.parts().path(KEYS[1]).read_bytes())
        with self.assertRaisesRegex(Unusable, "holds f32/greedy/cached, a part that has another file"):
            self.parts().require_all()

    def test_a_finished_piece_is_finished_while_its_parts_are_there(self):
        parts = self.parts(piece=(0, 1))
        self.assertFalse(parts.finished())
        for stage, name in (("prompt", ("main", "record")), ("greedy", "cached")):
            self.run_parts().put(stage, name, (1, None))
        parts.finish()
        self.assertTrue(self.parts(piece=(0, 1)).finished())
        parts.path(KEYS[0]).unlink()
        self.assertFalse(self.parts(piece=(0, 1)).finished())


class Jobs(unittest.TestCase):
    def test_a_job_runs_when_its_result_is_asked_for(self):
        ran = []
        work = Work(types.SimpleNamespace(), {1: lambda: ran.append(1) or "a", 2: lambda: ran.append(2) or 1 / 0})
        self.assertEqual((work[1], ran), ("a", [1]))
        with self.assertRaises(ZeroDivisionError):
            work[2]

    def test_jobs_in_step_run_together(self):
        batches = []

        class Together:
            def run(self, jobs):
                batches.append(list(jobs))
                return {key: (job(), None) for key, job in jobs.items()}

        work = Work(types.SimpleNamespace(lockstep=Together()), {1: lambda: "a", 2: lambda: "b"})
        self.assertEqual((work[2], work[1], batches), ("b", "a", [[1, 2]]))
