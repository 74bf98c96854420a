"""Runs generated files in llama.cpp against the dumps of fixtures: `check_llama.py LLAMA_CPP BUILD FIXTURES OUT [NAME...]`.

LLAMA_CPP is a source tree with `onboard.patch` applied, BUILD a CMake build of its `libllama`, OUT a folder that
`cargo run --example compile -- registry/targets/llama.cpp FIXTURES OUT` has filled. Each file is compiled and linked with `run.cpp`,
then the weights of each fixture are written as GGUF in f32 by its converter, and the two longest prompts are run: all rows at once,
steps from the split of the dump, and both prompts in one batch. A line shows the largest root mean square difference of the log-probabilities of a row.
"""

import argparse
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from check import check_all, difference, load, longest, recorded

TARGET = Path(__file__).parent.parent / "registry/targets/llama.cpp"


def compiled(source, out, tree, flags):
    """Compiles a file unless its object is newer than all it is made of; gives the error, if there is one."""
    object_file = out / ("onboard.h.gch" if source.suffix == ".h" else f"{source.stem}.o")
    inputs = [source, out / "onboard.h"]
    if object_file.exists() and all(object_file.stat().st_mtime > one.stat().st_mtime for one in inputs):
        return ""
    includes = [f"-I{tree / part}" for part in ("src", "src/models", "include", "ggml/include", "vendor")]
    command = ["g++", "-std=c++17", *flags, "-fPIC", "-w", *includes, f"-I{out}", *([] if source.suffix == ".h" else ["-c"]), source, "-o", object_file]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        object_file.unlink(missing_ok=True)
    return done.stderr if done.returncode else ""


def built(args, sources):
    """Builds the runner with all families; gives the families that do not compile, and why."""
    out, failed, objects = args.out, {}, []
    for name in ("onboard.h", "onboard.cpp", "run.cpp"):
        text = (TARGET / name).read_text()
        if name == "onboard.cpp":
            for part in ("../llama-", "../../vendor/nlohmann/"):
                text = text.replace(f'"{part}', f'"{"llama-" if "llama" in part else "nlohmann/"}')
        place = out / name
        if not place.exists() or place.read_text() != text:
            place.write_text(text)
    compiled(out / "onboard.h", out, args.tree, ["-O0", "-x", "c++-header"])
    sources = [out / "onboard.cpp", out / "run.cpp", *sources]
    with ThreadPoolExecutor(3) as pool:
        errors = pool.map(lambda source: compiled(source, out, args.tree, ["-O0"]), sources)
    for source, error in zip(sources, errors, strict=True):
        if error:
            failed[source.stem.removeprefix("onboard-")] = error
        else:
            objects.append(out / f"{source.stem}.o")
    libraries = args.build / "bin"
    command = ["g++", "-rdynamic", *objects, f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", "-lggml-cpu"]
    subprocess.run([*command, f"-Wl,-rpath,{libraries}", "-o", out / "run"], check=True)
    return failed


def steps_agree(dump, name):
    """Returns True if the reference's steps agree with its own prefill."""
    own, whole = dump.get(f"f32/{name}/decode/logits"), dump.get(f"f32/{name}/prefill/logits")
    return own is None or not len(own) or difference(own.float().numpy(), whole[-len(own) :].float().numpy()) <= 1e-2


def check(folder, spec, out, broken):
    if spec in broken:
        errors = [line for line in broken[spec].splitlines() if "error" in line]
        raise RuntimeError(f"it does not compile: {(errors or [broken[spec]])[0][-200:]}")
    dump, prompts = longest(folder)
    model, listed, rows = out / "model.gguf", out / "prompts.txt", out / "rows.bin"
    sys.argv = [spec, str(folder), str(model), "--type", "f32"]
    load(out / f"convert_{spec}.py", f"convert_{spec}").main()
    listed.write_text("".join(f"{one['split']} {' '.join(map(str, one['tokens']))}\n" for one in prompts))
    done = subprocess.run([out / "run", model, listed, rows], capture_output=True, text=True, timeout=300)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        told = [line for line in lines if "onboard:" in line or "ASSERT" in line or "error" in line]
        raise RuntimeError((told or lines or [f"it ended with {done.returncode}"])[0][:300])
    values = np.fromfile(rows, dtype=np.float32).reshape(-1, int(done.stderr.split("width ")[1].split()[0]))
    worst, at = {"prefill": 0.0, "decode": 0.0, "batch": 0.0}, 0
    behind = 2 * sum(len(one["tokens"]) for one in prompts)
    for one in prompts:
        count, name = len(one["tokens"]), one["name"]
        parts = {"prefill": values[at : at + count], "decode": values[at + count : at + 2 * count]}
        parts["batch"] = values[behind : behind + count]
        at += 2 * count
        behind += count
        for word, part in parts.items():
            theirs = dump.get(f"f32/{name}/{'prefill' if word == 'batch' else word}/logits")
            if theirs is None:
                continue
            theirs = theirs.float().numpy()
            if word == "decode" and not steps_agree(dump, name):
                theirs = dump[f"f32/{name}/prefill/logits"].float().numpy()[-len(theirs) :]
            # Tokens without a row of the head have no log-odds.
            shown = recorded(part, one, theirs)[..., : theirs.shape[-1]]
            if not np.isfinite(shown).all():
                raise RuntimeError(f"{word} has numbers that are not finite")
            worst[word] = max(worst[word], difference(shown, theirs))
    return worst


def main():
    parser = argparse.ArgumentParser()
    for name in ("tree", "build", "fixtures", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    specs = dict(line.split() for line in (args.out / "specs.txt").read_text().splitlines())
    names = args.names or sorted(specs)
    for name in names:
        for file in (f"onboard-{specs[name]}.cpp", f"convert_{specs[name]}.py"):
            shutil.copy2(args.out / name / file, args.out)
    broken = built(args, [args.out / f"onboard-{spec}.cpp" for spec in sorted({specs[name] for name in names})])
    return check_all(names, lambda name: check(args.fixtures / name, specs[name], args.out, broken))


if __name__ == "__main__":
    sys.exit(main())
