"""Compares processor seconds per token of `onboard bench` and other programs, on one thread each.

Usage: cpu_peer.py MODEL.gguf PROGRAM... [-p 512 | -n 16] [--repeat 2] [--rounds 3] [--set "--dtype bf16"]

PROGRAM is a path of `onboard`, or of a program with the options of llama-bench (-m -p -n -t -r).
Two runs that differ in their repetitions are subtracted, so loading and warming up do not count. Processor
seconds can be compared where other work shares the machine; memory bandwidth is shared all the same.
"""

import argparse
import os
import resource
import statistics
import subprocess


def seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def command(program, args, repeat):
    tests = ["-p", str(args.p), "-n", str(args.n), "-r", str(repeat)]
    if os.path.basename(program).startswith("onboard"):
        return [program, "bench", args.model, *tests, "--threads", "1", *args.set.split()]
    return [program, "-m", args.model, *tests, "-t", "1"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("programs", nargs="+")
    parser.add_argument("-p", type=int, default=0)
    parser.add_argument("-n", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", default="--dtype f32")
    args = parser.parse_args()
    tokens = args.repeat * (args.p + args.n)
    rates = {program: [] for program in args.programs}
    for _ in range(args.rounds):
        for program in args.programs:
            one = seconds(command(program, args, 1))
            rates[program].append(tokens / (seconds(command(program, args, 1 + args.repeat)) - one))
    for program, found in rates.items():
        rounds = " ".join(f"{rate:.1f}" for rate in found)
        print(f"{program}: {statistics.median(found):.1f} tokens per processor second ({rounds})")


if __name__ == "__main__":
    main()
