"""The package as one program: its files, and the single file that `parity dump --script` prints."""
import ast
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REFERENCE = Path(__file__).resolve().parents[1]
PACKAGE = sorted((REFERENCE / "onboard_dump").glob("*.py"))
PLACE = "FILES: dict[str, str] = {}\n"
# Modules for models whose weights are read when they are used, for weights without an effect, and for records of what a class computes.
WITH_TORCH = {"weights", "store", "layers", "cache_steps", "lockstep", "idle", "symbols", "trace", "trace_configs", "trace_facts"}
LONGEST_FUNCTION, LONGEST_FILE = 80, 450


def single_file() -> str:
    """As `parity/src/reference_script.rs` makes it."""
    files = "".join(f"    \"onboard_dump/{path.name}\": r'''{path.read_text()}''',\n" for path in PACKAGE)
    return (REFERENCE / "dump.py").read_text().replace(PLACE, f"FILES: dict[str, str] = {{\n{files}}}\n", 1)


def run_alone(text: str, *words: str) -> subprocess.CompletedProcess:
    """Runs a script in a folder that has nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "dump.py"
        script.write_text(text)
        return subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, cwd=folder)


class SingleFile(unittest.TestCase):
    def test_has_a_place_for_files_that_a_raw_string_can_hold(self):
        self.assertEqual((REFERENCE / "dump.py").read_text().count(PLACE), 1)
        for path in PACKAGE:
            text = path.read_text()
            self.assertNotIn("'''", text, path)
            self.assertTrue(text.isascii() and text.endswith("\n"), path)

    def test_holds_the_files_as_they_are(self):
        names = {}
        for node in ast.walk(ast.parse(single_file())):
            if isinstance(node, ast.AnnAssign) and node.target.id == "FILES":
                names = ast.literal_eval(node.value)
        self.assertEqual(names, {f"onboard_dump/{path.name}": path.read_text() for path in PACKAGE})

    def test_runs_where_no_package_lies_beside_it(self):
        ran = run_alone(single_file(), "--help")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("--layerwise", ran.stdout)
        without = run_alone((REFERENCE / "dump.py").read_text(), "--help")
        self.assertIn("No module named 'onboard_dump'", without.stderr)

    def test_imports_every_module_and_shows_its_lines_in_tracebacks(self):
        names = [path.stem for path in PACKAGE if path.stem not in WITH_TORCH | {"__init__"}]
        asks = f'''
import importlib, sys, traceback
for name in {names}:
    importlib.import_module("onboard_dump." + name)
from onboard_dump import checkpoint, failures
assert failures.PROGRAM.is_file(), failures.PROGRAM
try:
    checkpoint.read_config(checkpoint.Path("nothing"))
except failures.Fail as error:
    traceback.print_exc()
    print(repr(failures.at(error)))
'''
        text, call = single_file(), 'if __name__ == "__main__":'
        ran = run_alone(text[: text.rindex(call)] + asks)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("dump.py/onboard_dump/checkpoint.py", ran.stderr)
        self.assertIn("    raise Fail(f\"{folder}: not a folder", ran.stderr)
        # Places in the program itself are not told.
        self.assertEqual(ran.stdout, "''\n")

    @unittest.skipUnless("ONBOARD_BIN" in os.environ, "ONBOARD_BIN does not name the folder of the programs")
    def test_is_what_the_program_prints(self):
        ran = subprocess.run([Path(os.environ["ONBOARD_BIN"]) / "parity", "dump", "--script"], capture_output=True, text=True, check=True)
        self.assertEqual(ran.stdout, single_file())


class Package(unittest.TestCase):
    def test_names_torch_only_where_it_is_needed(self):
        code = "import sys, onboard_dump; print('torch' in sys.modules, *sorted(name for name in sys.modules if name.startswith('onboard_dump.')))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REFERENCE)
        torch, *loaded = ran.stdout.split()
        self.assertEqual(torch, "False")
        self.assertEqual({name.partition(".")[2] for name in loaded}, {path.stem for path in PACKAGE} - WITH_TORCH - {"__init__"})

    def test_has_short_functions_and_files(self):
        for path in [*PACKAGE, *REFERENCE.glob("*.py"), *REFERENCE.glob("tests/*.py")]:
            text = path.read_text()
            self.assertLess(len(text.splitlines()), LONGEST_FILE, path)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    self.assertLessEqual(node.end_lineno - node.lineno + 1, LONGEST_FUNCTION, f"{path}: {node.name}")
