"""The command line of `dump.py`."""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import platform
import signal
import sys

from .failures import Fail, Missing, Unusable
from .dump_steps import dump
from .trace_steps import write_trace

DTYPES = ("f32", "bf16", "f16")


def end_with_parent() -> None:
    """Has the system end this process with the one that started it, if that asks for it. A killed piece would go on beside its second attempt."""
    parent, die_with_parent = os.environ.pop("ONBOARD_PARENT", None), 1
    if parent != str(os.getppid()) or platform.system() != "Linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    if parent != str(os.getppid()):
        sys.exit(2)


def option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dump.py", description="Write a reference dump of a Hugging Face causal language model.")
    parser.add_argument("model", metavar="MODEL_DIR", help="folder with config.json and *.safetensors")
    parser.add_argument("-o", "--out", metavar="DUMP", help="folder to write; an older dump there is replaced")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="runs to make, comma-separated (default %(default)s)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--prompts", metavar="FILE.json", help="prompts to run instead of the derived ones")
    parser.add_argument("--masks", metavar="prefix,documents", default="", help="also derive prompts with a bidirectional prefix, or with packed documents")
    choice.add_argument("--tokens", metavar="1,2,3", help="one prompt to run instead of the derived ones")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the classes that the checkpoint brings (auto_map)")
    parser.add_argument("--import", dest="imports", metavar="FILE.py", action="append", default=[], help="import a file with classes of your own (repeatable)")
    parser.add_argument("--full-vocab-limit", type=int, default=32768, metavar="N", help="largest vocabulary stored whole (default %(default)s)")
    parser.add_argument("--topk", type=int, default=256, metavar="K", help="log-probabilities kept per row of a larger one (default %(default)s)")
    parser.add_argument("--no-taps", action="store_true", help="no module outputs and no states")
    parser.add_argument("--no-members", action="store_true", help="no ensemble of runs that differ by rounding alone")
    parser.add_argument("--judge", action="store_true", help="judge the reference by itself, print a line for each verdict, and write them into the manifest; without -o, nothing else")
    parser.add_argument("--trace", metavar="FILE.json", help="write a record of what the class computes in one prefill and one step, from which `onboard add-model --derive` writes a spec, and no dump")
    parser.add_argument("--gelu-table", action="store_true", help="GELU by llama.cpp's table of f16, to tell whether that is all it does otherwise")
    parser.add_argument("--random-encoder", action="store_true", help="draw an encoder at random where the checkpoint has zeros, for prompts with images")
    parser.add_argument("--encoder", action="store_true", help="dump the encoder of images as a model of its own, whose prompts are the images of --prompts")
    parser.add_argument("--layerwise", action="store_true", help="read one layer at a time, for a model that is larger than the memory: the same dump, more slowly")
    parser.add_argument("--layers", metavar="0,3,60", help="run these layers alone, with embedding, last norm and head: files that have only other layers may be absent")
    parser.add_argument("--resident", type=float, default=2.0, metavar="GB", help="with --layerwise: weights that are kept for the next use (default %(default)s)")
    parser.add_argument("--pieces", metavar="DIR", help="keep finished parts in this folder, and take those that are there: an interrupted dump goes on")
    parser.add_argument("--piece", metavar="I/N", help="with --pieces: make piece I of N and write no dump")
    parser.add_argument("--merge", action="store_true", help="with --pieces: write the dump, for which all parts have to be there")
    parser.add_argument("--plan", action="store_true", help="with --pieces: print what each piece makes (of N with --piece 1/N), and make nothing")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch (default %(default)s)")
    parser.add_argument("--greedy", type=int, default=16, metavar="N", help="greedy tokens per run (default %(default)s)")
    return parser


def refuse_contradictions(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuses options that leave nothing to do, or that `--judge` and `--trace` cannot keep."""
    if args.trace is not None and (args.out is not None or args.judge or args.layerwise or args.pieces is not None):
        parser.error("--trace writes a record alone, of a whole model in memory, so it takes neither -o, --judge, --layerwise, --layers nor --pieces")
    if args.out is None and not args.judge and args.trace is None:
        parser.error("-o DUMP is needed; only --judge and --trace write no dump without it")
    if args.encoder and (args.judge or args.layerwise or args.pieces is not None or args.trace is not None):
        parser.error("--encoder runs a whole encoder in memory, so it takes neither --judge, --trace, --layerwise, --layers nor --pieces")
    if args.judge and (args.layerwise or args.pieces is not None):
        parser.error("--judge perturbs the weights of a whole model in memory, so it takes neither --layerwise, --layers nor --pieces")


def read_options(argv: list[str] | None) -> argparse.Namespace:
    """The options, of which lists and numbers are read and contradictions refused."""
    parser = option_parser()
    args = parser.parse_args(argv)
    args.dtypes = [name.strip() for name in args.dtypes.split(",") if name.strip()]
    if not args.dtypes or any(name not in DTYPES for name in args.dtypes) or len(set(args.dtypes)) != len(args.dtypes):
        parser.error(f"--dtypes: choose from {', '.join(DTYPES)}")
    args.masks = [name.strip() for name in args.masks.split(",") if name.strip()]
    if any(name not in ("prefix", "documents") for name in args.masks):
        parser.error("--masks: choose from prefix, documents")
    # Distances are from the f32 run, which is made first for that.
    args.dtypes.sort(key=lambda name: name != "f32")
    if args.layers is not None:
        pieces = args.layers.split(",")
        if not all(piece.strip().isdecimal() for piece in pieces):
            parser.error("--layers: expected numbers of layers with commas, from 0")
        args.layers, args.layerwise = sorted({int(piece) for piece in pieces}), True
    refuse_contradictions(parser, args)
    if args.pieces is None and (args.piece or args.merge or args.plan):
        parser.error("--piece, --merge and --plan need --pieces DIR")
    if args.merge and (args.piece or args.plan):
        parser.error("--merge writes the dump, so it takes neither --piece nor --plan")
    if args.piece is not None:
        number, _, count = args.piece.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            parser.error(f"--piece {args.piece}: expected I/N with I from 1 to N, as in 2/8")
        args.piece = (int(number) - 1, int(count))
    if not args.resident > 0:
        parser.error("--resident must be above 0")
    if args.topk < 1 or args.threads < 1:
        parser.error("--topk and --threads must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    args = read_options(argv)
    end_with_parent()
    try:
        for package in ("torch", "transformers", "safetensors"):
            if importlib.util.find_spec(package) is None:
                raise Fail(f"python package {package} is missing; run this script with `uv run`, or install torch, transformers and safetensors")
        write_trace(args) if args.trace is not None else dump(args)
    except (Fail, Unusable) as error:
        print(f"dump: error: {error}", file=sys.stderr)
        return 2
    except Missing as error:
        print(f"dump: error: {args.model}: {error}", file=sys.stderr)
        return 2
    return 0
