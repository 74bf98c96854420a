"""Prompts: those that follow from a config, and those of the user."""
import json
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

from onboard_dump import prompts
from onboard_dump.command import read_options
from onboard_dump.failures import Fail
from onboard_dump.given_prompts import given_prompts

FACTS = {"windows": [], "limit": 1 << 30, "sizes": set(), "switch": None, "vocab": 50}


def derived(**facts) -> dict[str, dict]:
    return {prompt["name"]: prompt for prompt in prompts.derive_prompts(b"seed", FACTS | facts, 50, [])}


class Derived(unittest.TestCase):
    def test_plain_config(self):
        found = derived()
        self.assertEqual({name: (len(prompt["tokens"]), prompt["split"]) for name, prompt in found.items()},
                         {"one": (1, 1), "two": (2, 1), "main": (11, 6), "long": (134, 26)})
        self.assertEqual(found["long"]["rows"], [128, 129, 130, 131, 132, 133])
        self.assertEqual((found["main"]["taps"], found["long"]["taps"], found["one"]["taps"]), (["prefill", "decode"], ["decode"], []))

    def test_windows_are_passed_and_lengths_differ_from_sizes(self):
        self.assertEqual(len(derived(windows=[8])["main"]["tokens"]), 14)
        self.assertEqual(len(derived(windows=[8], sizes={14, 15})["main"]["tokens"]), 16)
        self.assertEqual(derived(windows=[8])["long"]["split"], 7)

    def test_wide_windows_and_short_contexts_cap_lengths(self):
        notes = []
        made = prompts.derive_prompts(b"seed", FACTS | {"windows": [4096]}, 50, notes)
        self.assertEqual([len(prompt["tokens"]) for prompt in made], [1, 2, 96, 134])
        self.assertIn("shorter than the window of 4096", notes[0])
        self.assertEqual([len(prompt["tokens"]) for prompt in derived(limit=9).values()], [1, 2, 9, 9])

    def test_rotary_switch_lies_between_main_and_long(self):
        found = derived(switch=16)
        self.assertLess(len(found["main"]["tokens"]), 16)
        self.assertEqual(found["long"]["split"], 19)

    def test_tokens_do_not_depend_on_the_version_of_python(self):
        self.assertEqual(prompts.token_stream(b"seed", "main", 4, 1000), [755, 127, 172, 929])

    def test_prompts_with_masks_pass_the_window(self):
        found = prompts.masked_prompts(b"seed", FACTS | {"windows": [8]}, 50, ["prefix", "documents"])
        self.assertEqual([(prompt["name"], len(prompt["tokens"]), prompt["split"]) for prompt in found], [("prefix", 16, 12), ("documents", 24, 20)])
        self.assertEqual((found[0]["prefix"], found[1]["documents"]), (10, [0, 3, 13]))
        self.assertEqual(len(prompts.masked_prompts(b"seed", FACTS | {"sizes": {13}}, 50, ["prefix"])[0]["tokens"]), 14)


class Rows(unittest.TestCase):
    def test_decode_has_the_rows_from_the_split_on(self):
        prompt = {"tokens": [0] * 9, "split": 4, "rows": [2, 5, 6, 8]}
        self.assertEqual((prompts.rows_of(prompt), prompts.decode_rows(prompt)), ([2, 5, 6, 8], [5, 6, 8]))
        # Lengths before a first row and behind a last one of rows in sequence.
        self.assertEqual(prompts.snapshots_of(prompt), [5, 7, 8, 9])
        self.assertEqual(prompts.snapshots_of({"tokens": [0] * 6, "split": 4}), [4, 5, 6])

    def test_numbers_of_a_config(self):
        values = {"sliding_window": 5, "max_position_embeddings": 64, "hidden_size": 32, "num_attention_heads": 4, "use_cache": True,
                  "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 16}}
        config = types.SimpleNamespace(to_dict=lambda: values, vocab_size=50)
        config.get_text_config = lambda decoder: config
        found = prompts.numbers_of(config)
        self.assertEqual((found["windows"], found["limit"], found["switch"], found["vocab"]), ([5], 64, 16, 50))
        self.assertEqual(found["sizes"], {5, 64, 32, 4, 8})


class Given(unittest.TestCase):
    def read(self, value, vocab=50, limit=20):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prompts.json"
            path.write_text(json.dumps(value))
            return given_prompts(types.SimpleNamespace(tokens=None, prompts=str(path)), vocab, limit)

    def test_defaults(self):
        first, second = self.read([{"tokens": [1, 2, 3]}, {"name": "b", "tokens": [4], "taps": ["decode"]}])
        self.assertEqual(first, {"name": "prompt0", "tokens": [1, 2, 3], "split": 2, "taps": ["prefill", "decode"]})
        self.assertEqual(second, {"name": "b", "tokens": [4], "split": 1, "taps": ["decode"]})
        self.assertEqual(given_prompts(types.SimpleNamespace(tokens="5,6", prompts=None), 50, 20)[0]["tokens"], [5, 6])
        self.assertIsNone(given_prompts(types.SimpleNamespace(tokens=None, prompts=None), 50, 20))

    def test_refusals_name_the_prompt(self):
        tokens = [1, 2, 3, 4]
        for prompt, text in [
            ({"tokens": []}, "`tokens` must be a list"),
            ({"tokens": [1, True]}, "`tokens` must be a list"),
            ({"tokens": [50]}, "token 50 is outside the vocabulary of 50"),
            ({"tokens": [1] * 21}, "21 tokens, but the model's positions end at 20"),
            ({"tokens": tokens, "split": 4}, "split 4 must be at least 1 and below the length 4"),
            ({"tokens": tokens, "taps": ["half"]}, "`taps` must be true, false or a list"),
            ({"tokens": tokens, "rows": [2, 1]}, "`rows` must be ascending"),
            ({"tokens": tokens, "prefix": 3}, "`prefix` 3 must be a number of tokens from 1 to the split 2"),
            ({"tokens": tokens, "documents": [1]}, "`documents` must be ascending positions that begin with 0"),
            ({"tokens": tokens, "prefix": 1, "documents": [0]}, "in one prompt"),
            ({"name": "a/b", "tokens": tokens}, "hold no slash"),
        ]:
            with self.assertRaisesRegex(Fail, text):
                self.read([{"name": "p", **prompt}])
        with self.assertRaisesRegex(Fail, "names must differ"):
            self.read([{"name": "p", "tokens": tokens}] * 2)


class Options(unittest.TestCase):
    def test_lists_and_numbers_are_read(self):
        args = read_options(["m", "-o", "d", "--dtypes", "bf16, f32", "--layers", "3,1,3", "--pieces", "p", "--piece", "2/8"])
        self.assertEqual((args.dtypes, args.layers, args.layerwise, args.piece), (["f32", "bf16"], [1, 3], True, (1, 8)))

    def test_contradictions_are_refused(self):
        for words in (["--dtypes", "f32,f32"], ["--masks", "half"], ["--layers", "a"], ["--merge"], ["--pieces", "p", "--piece", "3/2"], ["--pieces", "p", "--merge", "--plan"],
                      ["--resident", "0"], ["--topk", "0"], ["--tokens", "1", "--prompts", "p"]):
            with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                read_options(["m", "-o", "d", *words])
