"""Reading a checkpoint: files, headers and hashes, without torch."""
import hashlib
import json
import struct
import tempfile
import unittest
from pathlib import Path

from onboard_dump import checkpoint
from onboard_dump.failures import Fail
from onboard_dump.layer_choice import belongs, layer_prefix


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    """A safetensors file."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def refused(self, text: str, call, *args):
        with self.assertRaisesRegex(Fail, text):
            call(*args)

    def test_config_is_an_object(self):
        self.refused("not a folder", checkpoint.read_config, self.folder / "none")
        self.refused("not found", checkpoint.read_config, self.folder)
        (self.folder / "config.json").write_text("[1]")
        self.refused("expected a JSON object, found list", checkpoint.read_config, self.folder)
        (self.folder / "config.json").write_text('{"a": 1}')
        self.assertEqual(checkpoint.read_config(self.folder), (b'{"a": 1}', {"a": 1}))

    def test_entries_have_places_in_the_file(self):
        path = write(self.folder / "model.safetensors", {"a": ("F32", [2], b"12345678"), "b": ("U8", [1], b"x")})
        (name, dtype, shape, begin, end), last = checkpoint.safetensors_entries(path)
        self.assertEqual((name, dtype, shape, path.read_bytes()[begin:end]), ("a", "F32", [2], b"12345678"))
        self.assertEqual(path.read_bytes()[last[3] : last[4]], b"x")
        path.write_bytes(path.read_bytes()[:-1])
        self.refused("tensor b lies outside the file", checkpoint.safetensors_entries, path)
        path.write_bytes(b"123")
        self.refused("not a safetensors file", checkpoint.safetensors_entries, path)

    def test_index_names_files_of_its_folder(self):
        write(self.folder / "one.safetensors", {"a": ("U8", [1], b"x")})
        write(self.folder / "two.safetensors", {"b": ("U8", [1], b"y")})
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
        self.assertEqual([path.name for path in checkpoint.weight_files(self.folder)], ["one.safetensors", "two.safetensors"])
        self.assertEqual([path.name for path in checkpoint.weight_files(self.folder, lambda name: name == "b")], ["two.safetensors"])
        index.write_text(json.dumps({"weight_map": {"a": "three.safetensors"}}))
        self.refused("which is not a file of", checkpoint.weight_files, self.folder)
        inner = self.folder / "inner"
        inner.mkdir()
        (inner / index.name).write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
        self.refused("names one.safetensors, which is not a file of", checkpoint.weight_files, inner)
        index.write_text("{}")
        self.refused("expected an object with a `weight_map`", checkpoint.weight_files, self.folder)

    def test_hash_is_of_names_in_order_with_dtypes_shapes_and_bytes(self):
        path = write(self.folder / "model.safetensors", {"b": ("BF16", [1, 2], b"bbbb"), "a": ("F32", [], b"aaaa")})
        whole = hashlib.sha256(b"a\0F32\0\0aaaa" + b"b\0BF16\x001,2\0bbbb").hexdigest()
        alone = hashlib.sha256(b"F32\0\0aaaa").hexdigest()[:16]
        digest, most, tensors = checkpoint.hash_weights([path])
        self.assertEqual((digest, tensors["a"], sorted(tensors)), (whole, alone, ["a", "b"]))
        self.assertIn(most, ("f32", "bf16"))
        self.refused("tensor a is both in", checkpoint.hash_weights, [path, write(self.folder / "more.safetensors", {"a": ("U8", [1], b"x")})])

    def test_more_layers_than_tensors_are_refused(self):
        checkpoint.check_layer_count(self.folder, {"num_hidden_layers": 3}, 3)
        self.refused("n_layer is 10, but the checkpoint has only 3", checkpoint.check_layer_count, self.folder, {"text_config": {"n_layer": 10}}, 3)


class Layers(unittest.TestCase):
    def test_names_of_the_text_model_hold_the_number(self):
        names = [*(f"visual.blocks.{n}.w" for n in range(3)), *(f"model.layers.{n}.w" for n in range(3)), "lm_head.weight"]
        self.assertEqual(layer_prefix(names, 3), "model.layers")
        self.assertIsNone(layer_prefix(["lm_head.weight"], 3))

    def test_a_tensor_is_of_a_chosen_layer_or_of_none(self):
        kept = [name for name in ("model.layers.0.w", "model.layers.10.w", "model.layers.1.w", "model.norm") if belongs(name, "model.layers", [1])]
        self.assertEqual(kept, ["model.layers.1.w", "model.norm"])
