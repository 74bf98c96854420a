"""Runs generated packages in vLLM's server against the dumps of fixtures: `check_vllm_server.py FIXTURES OUT [NAME...]`.

For each fixture that OUT has a folder of, the package is installed by pip, and vLLM's OpenAI server is started, which finds it by its entry point.
`/v1/completions` gets the tokens of the two longest prompts of the dump, one by one and both at once, and answers the
log-probabilities of the whole vocabulary for the prompt and for tokens that it generates one by one; those are compared with rows of one prompt
that has all tokens. A second package, `vllm_padded.py`, fills heads up with zeros, as vLLM's kernels for a CPU lack small heads.

Options: `--port N`, `--set ARGUMENT` (one more argument of the server, repeatable).
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from check import check_all, difference, longest, reach, recorded

STEPS = 6
PATIENCE = 600
PLUGIN = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm-padded"
version = "1"

[project.entry-points."vllm.general_plugins"]
vllm_padded = "vllm_padded:register"

[tool.setuptools]
py-modules = ["vllm_padded"]
"""


def install(source, site):
    """Installs a package without a network, into a folder that Python searches."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "package"
        shutil.copytree(source, copy)
        command = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--python", sys.executable, "--target", str(site), str(copy)], check=True)


def model_of(fixture, folder):
    """Makes a folder with the files of a fixture, and a tokenizer of as many words as it has tokens, which the server asks for."""
    folder.mkdir()
    for path in fixture.iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((fixture / "config.json").read_text())
    count = max(int(size) for size in re.findall(r'"vocab_size": (\d+)', json.dumps(config)))
    vocab = {f"<{n}>": n for n in range(count)}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<0>"}}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<0>"}))
    return count


class Server:
    """A server of one model."""

    def __init__(self, model, site, port, length, more):
        self.url, self.log = f"http://127.0.0.1:{port}", model.parent / "log"
        command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "model", "--port", str(port)]
        command += ["--dtype", "float32", "--max-model-len", str(length), "--max-logprobs", "-1", "--enforce-eager", "--max-num-seqs", "8"]
        given = {
            "PYTHONPATH": str(site),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
            "VLLM_MLA_DISABLE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("w") as log:
            env = {**os.environ, **given}
            self.process = subprocess.Popen([sys.executable, *command, *more], stdout=log, stderr=log, env=env, start_new_session=True)

    def wait(self):
        start = time.time()
        while time.time() - start < PATIENCE:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            time.sleep(0.5)
        lines = [line for line in self.log.read_text().splitlines() if "Error: " in line]
        raise RuntimeError(lines[-1][-300:] if lines else "the server does not start")

    def run(self, tokens, count, vocab):
        """Gives the rows of a prompt and of generated tokens, and these tokens."""
        body = {"model": "model", "prompt": tokens, "max_tokens": count, "temperature": 0.0, "ignore_eos": True}
        body |= {"prompt_logprobs": -1, "logprobs": vocab, "return_tokens_as_token_ids": True, "return_token_ids": True}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                choice = json.load(answer)["choices"][0]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:300]) from None
        steps = [row({int(key.split(":")[1]): value for key, value in one.items()}, vocab) for one in choice["logprobs"]["top_logprobs"]]
        prompt = [row({int(key): one["logprob"] for key, one in found.items()}, vocab) for found in choice["prompt_logprobs"][1:]]
        return np.array([*prompt, steps[0]]), choice["token_ids"], np.array(steps)

    def close(self):
        for signal in (15, 9):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)


def row(found, vocab):
    values = np.full(max(max(found) + 1, vocab), -np.inf)
    for token, value in found.items():
        values[token] = value
    return values[: max(found) + 1]


def check(fixture, packages, port, more):
    dump, prompts = longest(fixture)
    # vLLM has one table of rotary factors: the long one, if there are prompts for it.
    prompts = [one for one in prompts if len(one["tokens"]) >= reach(fixture)] or prompts
    worst = {"prefill": 0.0, "decode": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        model, site = Path(scratch) / "model", Path(scratch) / "site"
        vocab = model_of(fixture, model)
        for package in packages:
            install(package, site)
        length = max(len(one["tokens"]) for one in prompts) + STEPS + 2
        server = Server(model, site, port, length, more)
        try:
            server.wait()
            # Each alone, then all at once.
            alone = [server.run(one["tokens"], STEPS, vocab) for one in prompts]
            with ThreadPoolExecutor() as pool:
                together = list(pool.map(lambda one: server.run(one["tokens"], STEPS, vocab), prompts))
            for prompt, answers in zip(prompts, zip(alone, together)):
                theirs = dump[f"f32/{prompt['name']}/prefill/logits"].float().numpy()
                for rows, made, steps in answers:
                    worst["prefill"] = max(worst["prefill"], difference(recorded(rows, prompt, theirs), theirs))
                    again = server.run(prompt["tokens"] + made, 1, vocab)[0]
                    worst["decode"] = max(worst["decode"], difference(steps, again[len(prompt["tokens"]) - 1 : -1]))
        finally:
            server.close()
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fixtures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    names = given.names or sorted(path.name for path in given.out.iterdir() if (path / "pyproject.toml").is_file())
    with tempfile.TemporaryDirectory() as padding:
        (Path(padding) / "pyproject.toml").write_text(PLUGIN)
        shutil.copy(Path(__file__).parent / "vllm_padded.py", padding)
        return check_all(names, lambda name: check(given.fixtures / name, [padding, given.out / name], given.port, given.set))


if __name__ == "__main__":
    sys.exit(main())
