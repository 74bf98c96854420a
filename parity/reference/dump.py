#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.4", "transformers>=5.0", "safetensors[torch]>=0.4"]
# ///
"""Write a reference dump (docs/dump.md, version 2) of a causal language model with Hugging Face code.

    dump.py MODEL_DIR -o DUMP                     f32, bf16 and f16 runs over derived prompts
    dump.py MODEL_DIR -o DUMP --dtypes f32,bf16   fewer runs
    dump.py MODEL_DIR -o DUMP --tokens 5,17,3,9   one prompt of your own
    dump.py MODEL_DIR -o DUMP --prompts P.json    [{"name": "main", "tokens": [...], "split": 4, "taps": ["prefill", "decode"]}, ...]
    dump.py MODEL_DIR -o DUMP --import my.py      classes of your own, registered or named in config.json
    dump.py MODEL_DIR --judge                     verdicts on the class alone; with -o, in the dump's manifest too
    dump.py MODEL_DIR --trace RECORD.json         what the class computes, for `onboard add-model --derive`; no dump
    dump.py MODEL_DIR -o DUMP --trust-remote-code the classes that the checkpoint brings (auto_map)

The model is read from a local folder and nothing is fetched. Code of the checkpoint is run only when asked for.
Exit codes: 0 written, 2 could not run.
"""
from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys

# The files of the package `onboard_dump` as texts, where it is no folder beside this file: `parity dump --script` writes them here.
FILES: dict[str, str] = {}


class TextFinder(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Imports modules from the texts above. Their lines appear in tracebacks under paths below this file."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if self.file_of(name) in FILES else None

    def is_package(self, name):
        return name == "onboard_dump"

    def file_of(self, name):
        return "onboard_dump/__init__.py" if self.is_package(name) else name.replace(".", "/") + ".py"

    def get_source(self, name):
        return FILES[self.file_of(name)]

    def get_filename(self, name):
        return f"{os.path.abspath(__file__)}/{self.file_of(name)}"


if FILES:
    sys.meta_path.insert(0, TextFinder())

if __name__ == "__main__":
    from onboard_dump import main

    sys.exit(main())
