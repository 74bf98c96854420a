"""Writes `templates.jsonl`, the formats of real chat templates, for `chat/tests/find.rs`.

    python templates.py FOLDER      *.jinja files; needs PyYAML

Templates belong to their makers, so a line has the name, the SHA-256 and short marks of a template: the texts of formats that
are in it, and words between brackets. `format` is the format that the template writes, decided by a person who read it, or null;
`note` says what no format covers. Both are kept for a template that has a line; new templates are listed.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
FORMATS = HERE.parents[2] / "registry" / "formats"
WORDS = re.compile(r"</?[^<>\s{}'\"]{1,32}>|\[/?[A-Z_]{3,24}\]")
MOST = 40


def texts():
    """All texts by which a format is found or ruled out."""
    found = set()
    for path in sorted(FORMATS.glob("*.yaml")):
        data = yaml.safe_load(path.read_text())
        for group in data.get("find", []):
            found.update(group)
        found.update(data.get("without", []))
    return sorted(found)


def main():
    path = HERE / "templates.jsonl"
    kept = {}
    if path.exists():
        kept = {line["name"]: line for line in map(json.loads, path.read_text().splitlines())}
    known = texts()
    lines = []
    for file in sorted(Path(sys.argv[1]).glob("*.jinja")):
        name, text = file.stem, file.read_text(encoding="utf-8")
        old = kept.pop(name, None)
        if old is None:
            print("new, to be read:", name)
        marks = [mark for mark in known if mark in text]
        words = [word for word in dict.fromkeys(WORDS.findall(text)) if word not in marks]
        line = {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest(), "format": (old or {}).get("format")}
        if old and "note" in old:
            line["note"] = old["note"]
        line["marks"] = marks + words[:MOST]
        lines.append(json.dumps(line, ensure_ascii=False))
    for name, old in kept.items():
        print("not in the folder:", name)
        lines.append(json.dumps(old, ensure_ascii=False))
    path.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    print(len(lines), "templates")


main()
