"""Runs the pieces of a plan as tasks of Ray. The plan is JSON on standard input (`onboard jobs plan --json`).

    onboard jobs plan --json -n 8 convert ... | python ray_pieces.py [--address ADDRESS] [--retries N] [--cpus N]

Exit codes: 0 all pieces are made, 2 some are not.
"""
import argparse
import ctypes
import json
import signal
import subprocess
import sys
import time

import ray


def before_piece() -> None:
    """Runs in the child before the command. Ray's workers ignore SIGCHLD, and children inherit that: their own children would have no exit code. A command
    whose worker is killed ends too, so that another worker can begin the piece anew."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent = 1
    try:
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def run_piece(piece: dict, directory: str) -> str:
    """The last lines that the command of a piece printed; an error if it failed."""
    # Without this the end of the command could not be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    done = subprocess.run(piece["words"], cwd=directory, preexec_fn=before_piece, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = "\n".join(done.stdout.decode(errors="replace").splitlines()[-12:])
    if done.returncode != 0:
        raise RuntimeError(f"piece {piece['piece']} ended with code {done.returncode}:\n{said}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(prog="ray_pieces.py", description="Run the pieces of a plan as tasks of Ray.")
    parser.add_argument("--address", help="the cluster (default: RAY_ADDRESS, a cluster on this machine, or a new one)")
    parser.add_argument("--retries", type=int, default=3, help="times that a piece is tried again (default %(default)s)")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of a piece (default %(default)s)")
    args = parser.parse_args()
    plan = json.load(sys.stdin)
    ray.init(address=args.address, log_to_driver=False)
    # A failure of the command is tried again too, and not only the death of a worker.
    task = ray.remote(num_cpus=args.cpus, max_retries=args.retries, retry_exceptions=True)(run_piece)
    begun, pieces = time.monotonic(), plan["pieces"]
    waiting = {task.options(name=f"piece-{piece['piece']}").remote(piece, plan["directory"]): piece["piece"] for piece in pieces}
    made, failed = 0, []
    while waiting:
        (ref,), _ = ray.wait(list(waiting), num_returns=1)
        number = waiting.pop(ref)
        try:
            ray.get(ref)
        except Exception as error:
            failed.append(number)
            print(f"ray: piece {number} failed: {error}", file=sys.stderr, flush=True)
            continue
        made += 1
        print(f"ray: piece {number} is made, {made} of {len(pieces)} after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    if failed:
        print(f"ray: {len(failed)} of {len(pieces)} pieces failed: {', '.join(map(str, sorted(failed)))}", file=sys.stderr)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
