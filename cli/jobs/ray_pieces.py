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

try:
    import ray
except ImportError:
    sys.exit(f"ray: {sys.executable} has no package `ray`; install it there (pip install ray), or name another Python with --python")


def before_piece() -> None:
    """Runs in the child before the command. Ray's workers ignore SIGCHLD, and children inherit that: their own children would have no exit code. A command
    whose worker is killed ends too, so that another worker can begin the piece anew."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent = 1
    try:
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def run_piece(piece: dict, directory: str) -> tuple[int, str]:
    """The exit code of the command of a piece, and the last lines that it printed."""
    # Without this the end of the command could not be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        done = subprocess.run(piece["words"], cwd=directory, preexec_fn=before_piece, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        return 127, f"{piece['words'][0]} cannot be started in {directory}: {error}"
    return done.returncode, "\n".join(done.stdout.decode(errors="replace").splitlines()[-12:])


def main() -> int:
    parser = argparse.ArgumentParser(prog="ray_pieces.py", description="Run the pieces of a plan as tasks of Ray.")
    parser.add_argument("--address", help="the cluster (default: RAY_ADDRESS, a cluster on this machine, or a new one)")
    parser.add_argument("--retries", type=int, default=3, help="times that a piece is tried again (default %(default)s)")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of a piece (default %(default)s)")
    args = parser.parse_args()
    plan = json.load(sys.stdin)
    ray.init(address=args.address, log_to_driver=False)
    # Ray tries again where a worker dies, and this script where the command fails.
    task = ray.remote(num_cpus=args.cpus, max_retries=args.retries)(run_piece)
    begun, pieces = time.monotonic(), plan["pieces"]

    def start(piece: dict):
        return task.options(name=f"piece-{piece['piece']}").remote(piece, plan["directory"])

    # By task: the piece, the number of its failures, and the output of the last one.
    waiting = {start(piece): (piece, 0, None) for piece in pieces}
    made, failed = 0, []
    while waiting:
        (ref,), _ = ray.wait(list(waiting), num_returns=1)
        piece, failures, before = waiting.pop(ref)
        number = piece["piece"]
        try:
            code, said = ray.get(ref)
        except Exception as error:
            code, said, failures = None, f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else 'no more is known'}", args.retries
        if code == 0:
            made += 1
            print(f"ray: piece {number} is made, {made} of {len(pieces)} after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
            continue
        ended = "was not run to its end" if code is None else f"ended with code {code}"
        print(f"ray: piece {number} {ended}:\n{said}", file=sys.stderr, flush=True)
        # A command that says the same twice has a reason that does not pass.
        if failures < args.retries and said != before:
            print(f"ray: piece {number} is tried again", file=sys.stderr, flush=True)
            waiting[start(piece)] = piece, failures + 1, said
        else:
            failed.append(number)
    if failed:
        print(f"ray: {len(failed)} of {len(pieces)} pieces failed: {', '.join(map(str, sorted(failed)))}", file=sys.stderr)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
