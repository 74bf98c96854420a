#!/usr/bin/env python3
"""Compares chat templates in checkpoints and in GGUF files with transformers, and counts (docs/chat.md).

    .ci/templates_gguf.py FOLDER [CHECKPOINT]     *.jinja files; a fixture that gets each template

Each template is put into a copy of the checkpoint. transformers records its renderings and tokens of 12 conversations, `convert` makes
a GGUF file, and `parity check --chat` compares both. `ONBOARD_BIN` names the folder of the programs. Needs transformers.
Exit code 1 if something differs.
"""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = pathlib.Path(os.environ.get("ONBOARD_BIN", ROOT / "target/release"))
sys.path.insert(0, str(ROOT / "parity/reference"))

import chat  # noqa: E402


def run(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)


def main():
    folder = pathlib.Path(sys.argv[1])
    checkpoint = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "fixtures/llama3"
    chat.stop_clock()
    counts, wrong = collections.Counter(), []
    with tempfile.TemporaryDirectory() as home:
        model = pathlib.Path(home) / "model"
        shutil.copytree(checkpoint, model, ignore=shutil.ignore_patterns("reference", "gelu", "packed", "coded"))
        (model / "reference").mkdir()
        file = pathlib.Path(home) / "model.gguf"
        for template in sorted(folder.glob("*.jinja")):
            shutil.copyfile(template, model / "chat_template.jinja")
            record = chat.record(model)
            (model / "reference/chat.json").write_text(chat.dumped(record), encoding="utf-8")
            refused = sum("text" not in one for one in record["renderings"])
            counts["templates"] += 1
            counts["refused conversations"] += refused
            file.unlink(missing_ok=True)
            made = run(BIN / "convert", model, "--to", "gguf:f32", "-o", file)
            if made.returncode:
                wrong.append(f"{template.stem}: no GGUF file: {made.stderr.strip()}")
                continue
            for kind, path in (("checkpoint", model), ("gguf", file)):
                ran = run(BIN / "parity", "check", path, "--chat", "--json", "-", "--reference", model / "reference")
                if ran.returncode not in (0, 1):
                    wrong.append(f"{template.stem} {kind}: {ran.stderr.strip()}")
                    continue
                report = json.loads(ran.stdout)
                for name in ("renderings", "tokens", "corpus"):
                    counts[f"{kind} {name}"] += report[name]["equal"]
                    counts[f"{kind} {name} of"] += report[name]["of"]
                for finding in report["findings"]:
                    counts[f"{kind} {finding['kind']}"] += 1
                    if finding["differs"]:
                        wrong.append(f"{template.stem} {kind}: [{finding['kind']}] {finding['text']}")
    for name, count in counts.items():
        print(f"{name}: {count}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


sys.exit(main())
