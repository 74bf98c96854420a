#!/usr/bin/env python3
"""Compares the sheets with the newest releases of their engines.

    registry/engines/refresh.py                     every sheet that names a package
    registry/engines/refresh.py vllm sglang         these
    registry/engines/refresh.py vllm --release 0.33.0
    registry/engines/refresh.py vllm --wheel FILE   a wheel or sdist that lies here
    registry/engines/refresh.py vllm --table architectures    a table as the release has it, as YAML

Releases are fetched with `pip download --no-deps`; nothing is installed or imported, and no GPU is
needed. Three kinds of fact are compared: names of tables (`source: FILE:SYMBOL`), settings (the
flag's field and its default), and quotes (`source: { place: FILE:LINE, quote: TEXT }`).
Needs PyYAML. Exit codes: 0 nothing changed, 1 something changed, 2 could not run.
"""

import argparse
import ast
import fnmatch
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import yaml

HERE = pathlib.Path(__file__).parent
MOST_BYTES = 8 << 20  # of one source file


class Release:
    """The text files of a wheel or an sdist."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.texts = {}
        if zipfile.is_zipfile(path):
            self.archive = zipfile.ZipFile(path)
            self.files = {i.filename: i for i in self.archive.infolist() if not i.is_dir()}
            self.read = lambda member: self.archive.read(member)
        else:
            self.archive = tarfile.open(path)
            members = [m for m in self.archive.getmembers() if m.isfile()]
            # An sdist has one folder around everything.
            self.files = {m.name.split("/", 1)[-1]: m for m in members}
            self.read = lambda member: self.archive.extractfile(member).read()

    def version(self):
        """The version in the file's name: NAME-VERSION-... of a wheel, NAME-VERSION.tar.gz."""
        stem = self.path.name.removesuffix(".tar.gz").removesuffix(".whl")
        return stem.split("-")[1]

    def match(self, pattern):
        return sorted(name for name in self.files if fnmatch.fnmatch(name, pattern))

    def text(self, name):
        if name not in self.files:
            return None
        if name not in self.texts:
            member = self.files[name]
            size = member.file_size if isinstance(member, zipfile.ZipInfo) else member.size
            data = b"" if size > MOST_BYTES else self.read(member)
            self.texts[name] = data.decode("utf-8", "replace")
        return self.texts[name]


def fetch(package, version, folder):
    """Downloads a release with pip and returns its file."""
    wanted = f"{package}=={version}" if version else package
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    done = subprocess.run([*command, "-d", folder, wanted], capture_output=True, text=True)
    files = sorted(pathlib.Path(folder).iterdir())
    if not files:
        why = done.stderr.strip().splitlines() or ["it says nothing"]
        raise SystemExit(f"error: pip could not download `{wanted}`: {why[-1]}")
    return files[0]


def literals(node, scope):
    """The names that a literal holds: keys of a dict, items of a list, set or `Literal`."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Name):
        if node.id in scope:
            return literals(scope[node.id], scope)
        return [node.id]
    if isinstance(node, ast.Dict):
        found = []
        for key, value in zip(node.keys, node.values):
            found += literals(value, scope) if key is None else literals(key, scope)
        return found
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [name for item in node.elts for name in literals(item, scope)]
    if isinstance(node, ast.Starred):
        return literals(node.value, scope)
    if isinstance(node, ast.Subscript):
        return literals(node.slice, scope)
    if isinstance(node, ast.Call):
        return [name for item in node.args for name in literals(item, scope)]
    if isinstance(node, ast.BinOp):
        return literals(node.left, scope) + literals(node.right, scope)
    return []


def assigned(text):
    """Every assignment of a file, those of classes too, by name."""
    scope = {}
    for node in ast.walk(ast.parse(text)):
        targets = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                scope.setdefault(target.id, node.value)
    return scope


def table(release, source):
    """The names of a table, or None if it is gone. `FILE:SYMBOL+SYMBOL`; FILE may have a `*`."""
    pattern, _, symbols = source.rpartition(":")
    names, found = [], False
    for name in release.match(pattern):
        scope = assigned(release.text(name))
        for symbol in symbols.split("+"):
            if symbol in scope:
                found = True
                names += literals(scope[symbol], scope)
    return sorted(set(names)) if found else None


def flat(names):
    """Names in lists of any depth."""
    return [n for item in names for n in (flat(item) if isinstance(item, list) else [str(item)])]


def compare_table(name, entry, release):
    now = table(release, entry["source"])
    if now is None:
        return [f"table `{name}`: `{entry['source']}` is gone"]
    then = set(flat(entry.get("names") or []))
    changes = []
    if new := sorted(set(now) - then):
        changes.append(f"table `{name}`: new: {', '.join(new)}")
    if gone := sorted(then - set(now)):
        changes.append(f"table `{name}`: gone: {', '.join(gone)}")
    return changes


def compare_setting(name, entry, release):
    """A setting whose source is `FILE:FIELD`: the field is there and has the same default."""
    source = entry.get("source")
    if not isinstance(source, str) or source.rpartition(":")[2].isdigit():
        return []
    file, _, field = source.rpartition(":")
    text = release.text(file)
    if text is None:
        return [f"setting `{name}`: `{file}` is gone"]
    if not file.endswith(".py"):
        return [] if field in text else [f"setting `{name}`: `{source}` is gone"]
    scope = assigned(text)
    if field not in scope:
        return [] if field in text else [f"setting `{name}`: `{source}` is gone"]
    node = scope[field]
    if isinstance(node, ast.Call):
        # `Field(default=X)`, `EnvStr(X)`
        given = [k.value for k in node.keywords if k.arg == "default"] or node.args[:1]
        node = given[0] if given else node
    if not isinstance(node, ast.Constant) or "default" not in entry:
        return []
    if node.value in (entry["default"], None) or str(node.value) == str(entry["default"]):
        return []
    spelled = entry.get("values", {}).get(entry["default"])
    if spelled == node.value:
        return []
    return [f"setting `{name}`: default is {node.value!r}, the sheet says {entry['default']!r}"]


def compare_quote(what, source, release):
    """A quote that stands at another line, or nowhere."""
    if not isinstance(source, dict) or "quote" not in source:
        return []
    file, _, place = source["place"].rpartition(":")
    text = release.text(file)
    if text is None:
        return [f"{what}: `{file}` is gone"]
    lines = [n for n, line in enumerate(text.splitlines(), 1) if source["quote"] in line]
    if not lines:
        return [f"{what}: `{source['quote']}` is gone from `{file}`"]
    if place.isdigit() and int(place) not in lines:
        return [f"{what}: `{file}:{place}` is now line {', '.join(map(str, lines))}"]
    return []


def compare(sheet, release):
    changes = []
    for name, entry in (sheet.get("tables") or {}).items():
        if entry.get("source"):
            changes += compare_table(name, entry, release)
    for name, entry in (sheet.get("settings") or {}).items():
        changes += compare_setting(name, entry, release)
        changes += compare_quote(f"setting `{name}`", entry.get("source"), release)
    for kind, word in [("rules", "id"), ("plan", "name"), ("config_keys", "key")]:
        for entry in sheet.get(kind) or []:
            what = f"{kind.rstrip('s').replace('_', ' ')} `{entry.get(word)}`"
            changes += compare_quote(what, entry.get("source"), release)
    return changes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engines", nargs="*", help="sheets; default: all")
    parser.add_argument("--release", help="this version instead of the newest")
    parser.add_argument("--wheel", help="a wheel or sdist that lies here")
    parser.add_argument("--table", help="print this table of the release as YAML")
    args = parser.parse_args()
    sheets = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(HERE.glob("*.yaml"))}
    unknown = [name for name in args.engines if name not in sheets]
    if unknown:
        known = ", ".join(sheets)
        raise SystemExit(f"error: there is no sheet `{unknown[0]}`; there are {known}")
    if (args.wheel or args.release or args.table) and len(args.engines) != 1:
        raise SystemExit("error: name one engine for --release, --wheel or --table")
    changed = False
    for name in args.engines or sheets:
        sheet = sheets[name]
        package = sheet.get("package")
        if not package:
            if args.engines:
                raise SystemExit(f"error: sheet `{name}` names no `package`")
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = args.wheel or fetch(package, args.release, folder)
            release = Release(file)
            if args.table:
                source = sheet["tables"][args.table]["source"]
                line = "      - ["
                for word in table(release, source) or []:
                    if len(line) + len(word) > 96:
                        print(line.rstrip(", ") + "]")
                        line = "      - ["
                    line += f"{word}, "
                print(line.rstrip(", ") + "]")
                continue
            changes = compare(sheet, release)
            changed |= bool(changes)
            version = release.version()
            print(f"{name}: {package} {version}, the sheet was read from {sheet.get('checked')}")
            for change in changes or ["nothing changed"]:
                print(f"  {change}")
    return 1 if changed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            end.code = 2
        raise
