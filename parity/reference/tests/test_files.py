"""The files of a dump and the entries of its manifest."""
import hashlib
import json
import tempfile
import unittest
from pathlib import Path

import torch
from onboard_dump import manifest
from onboard_dump.failures import at, first_line
from onboard_dump.files import compact_lists, sealed, write


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.target = Path(folder.name) / "dump"

    def test_a_dump_replaces_an_older_one_and_has_a_folder_for_the_head(self):
        write(self.target, {"a": torch.ones(2)}, {"format": "old"}, ({"b": torch.ones(1)}, {"format": "head"}))
        write(self.target, {"a": torch.ones(2)}, {"format": "new"})
        self.assertEqual([path.name for path in sorted(self.target.iterdir())], ["manifest.json", "reference.safetensors"])
        self.assertEqual(json.loads((self.target / "manifest.json").read_text())["format"], "new")
        write(self.target, {}, {"format": "new"}, ({}, {"format": "head"}))
        self.assertEqual(json.loads((self.target / "nextn/manifest.json").read_text())["format"], "head")

    def test_what_cannot_be_written_leaves_the_older_dump(self):
        write(self.target, {}, {"format": "old"})
        with self.assertRaises(TypeError):
            write(self.target, {}, {"format": object()})
        self.assertEqual([path.name for path in self.target.parent.iterdir()], ["dump"])
        self.assertEqual(json.loads((self.target / "manifest.json").read_text())["format"], "old")

    def test_a_seal_has_both_hashes_and_replaces_an_older_one(self):
        tensors = self.target.with_name("tensors")
        tensors.write_bytes(b"abc")
        text = sealed('{\n "a": 1\n}', tensors)
        found = json.loads(text)["sha256"]
        self.assertEqual(found["reference.safetensors"], hashlib.sha256(b"abc").hexdigest())
        self.assertEqual(hashlib.sha256(text.replace(found["manifest.json"], "0" * 64).encode()).hexdigest(), found["manifest.json"])
        self.assertEqual(sealed(text, tensors), text)

    def test_innermost_lists_are_on_one_line(self):
        self.assertEqual(compact_lists(json.dumps({"a": [1, 2], "b": [{"c": 3}]}, indent=1)), '{\n "a": [1, 2],\n "b": [\n  {"c": 3}\n ]\n}')


class Taps(unittest.TestCase):
    PROMPTS = [{"name": "p", "tokens": [1, 2], "split": 1, "taps": ["prefill", "decode"]}]

    def test_taps_are_listed_once_in_the_order_of_the_computation(self):
        out, one, two = {}, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        for phase in ("prefill", "decode"):
            out |= {f"f32/p/{phase}/logits": two, f"f32/p/{phase}/tap/z": one, f"f32/p/{phase}/tap/a": one.clone(), f"f32/p/{phase}/tap/head": two.clone(),
                    f"f32/p/{phase}/tap/twice": two + 1}
        out["f32/p/prefill/tap/part"] = two + 2
        notes = []
        listed = manifest.settle_taps(out, ["f32"], self.PROMPTS, {"twice": 2}, notes)
        both = ["prefill", "decode"]
        self.assertEqual(list(listed.items()), [("z", {"phases": both}), ("a", {"phases": both, "same_as": "z"}), ("head", {"phases": both, "same_as": "logits"}),
                                                ("part", {"phases": ["prefill"]})])
        self.assertEqual([key for key in out if "/tap/" in key], ["f32/p/prefill/tap/z", "f32/p/decode/tap/z", "f32/p/prefill/tap/part"])
        self.assertEqual(notes, ["modules called more than once per forward are not tapped: twice"])

    def test_numbers_of_other_bytes_are_not_the_same(self):
        self.assertNotEqual(manifest.identity(torch.tensor([0.0])), manifest.identity(torch.tensor([-0.0])))
        self.assertNotEqual(manifest.identity(torch.zeros(2, 1)), manifest.identity(torch.zeros(1, 2)))

    def test_routers_are_named_once(self):
        self.assertEqual(manifest.routers_of({"f32/p/prefill/chosen/b": 0, "f32/p/decode/chosen/b": 0, "f32/p/decode/chosen/a": 0}), {"routers": ["a", "b"]})
        self.assertEqual(manifest.routers_of({}), {})


class Errors(unittest.TestCase):
    def test_the_last_place_outside_of_packages_and_this_program_is_told(self):
        try:
            write(Path("nowhere"), {}, {"format": object()})
        except TypeError as error:
            self.assertRegex(at(error), r"^ \((test_files|encoder|__init__)\.py, line \d+\)$")

    def test_a_line_that_ends_with_a_colon_has_the_next_with_it(self):
        self.assertEqual(first_line(ValueError("\nbad values:\n  a\n b")), "ValueError: bad values: a")
        self.assertEqual(first_line(KeyError()), "KeyError")
