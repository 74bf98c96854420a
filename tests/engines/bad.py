"""Engines that break the protocol, without the helper file: `--engine-option fault=NAME`."""

import json
import math
import struct
import subprocess
import sys
import time

VOCAB, FAULT = 369, None
print("loading weights", file=sys.stderr)


def send(head, data=b""):
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + data)
    sys.stdout.buffer.flush()


for line in sys.stdin:
    ask = json.loads(line)
    verb, answer = ask["verb"], {"id": ask["id"]}
    if verb == "hello":
        FAULT = ask["options"].get("fault")
        if FAULT == "crash":
            sys.exit("no such device")
        if FAULT == "silent":
            time.sleep(60)
        if FAULT == "own session":
            # A process in a session of its own, whose parent has ended.
            inner = "import subprocess, sys; subprocess.Popen(['sleep', sys.argv[1]], start_new_session=True)"
            subprocess.run([sys.executable, "-c", inner, ask["options"]["seconds"]])
        if FAULT == "print":
            print("Loading checkpoint shards: 100%", flush=True)
        if FAULT == "no end of line":
            sys.stdout.write("{" + "x" * 100)
            sys.stdout.flush()
            time.sleep(60)
        if FAULT == "id":
            answer["id"] += 7
        if FAULT == "nothing":
            send(answer)
            continue
        can = ["open", "score", "close"]
        if FAULT == "cannot":
            can = ["open"]
        send({**answer, "ok": {"protocol": 2 if FAULT == "version" else 1, "engine": "bad", "version": "1", "can": can}})
    elif verb == "open":
        if FAULT == "hides":
            print("KeyError: the config has no conv_dim", "RuntimeError: a worker failed", sep="\n", file=sys.stderr, flush=True)
            send({**answer, "error": "RuntimeError: a worker failed"})
            continue
        if FAULT == "refuses":
            send({**answer, "error": "no room for this model"})
            continue
        send({**answer, "ok": {"vocab": 12 if FAULT == "vocab" else VOCAB, "dtype": "bf16" if FAULT == "dtype" else ask["dtype"], "tokens": 512}})
    elif verb == "score":
        count = len(ask["tokens"])
        shape, numbers = [count, VOCAB], [float(n % 7) for n in range(count * VOCAB)]
        if FAULT == "dies":
            sys.exit("out of memory")
        if FAULT == "rows":
            shape, numbers = [count + 1, VOCAB], numbers + numbers[:VOCAB]
        if FAULT == "nan":
            numbers[5] = math.nan
        if FAULT == "infinity":
            numbers[5] = math.inf
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        head = {"name": "rows", "shape": shape, "bytes": len(data)}
        if FAULT == "huge":
            head = {"name": "rows", "shape": [2**40, 2**40], "bytes": 2**62}
        if FAULT == "bytes":
            head["bytes"] -= 4
        if FAULT == "short":
            send({**answer, "ok": {}, "frames": [head]}, data[:-4])
            time.sleep(60)
        if FAULT == "no frame":
            send({**answer, "ok": {}})
            continue
        send({**answer, "ok": {}, "frames": [head]}, data)
    else:
        send({**answer, "error": f"no verb {verb}"})
