"""Sends requests from many clients that disconnect at random, and compares every answer: load.py URL PID [SECONDS] [CLIENTS].

Every request is sent alone first. Then clients send them at once; a third of the streams is left unread, cut or
cancelled. Answers have to equal those that came alone, and slots and memory have to be free at the end.
"""

import http.client
import json
import random
import socket
import sys
import threading
import time
from urllib.parse import urlparse


def body(n):
    draw = random.Random(n)
    prompt = [draw.randrange(5, 290) for _ in range(draw.randint(1, 100))]
    made = {"prompt": prompt, "max_tokens": draw.randint(1, 50), "ignore_eos": True, "return_token_ids": True}
    if n % 3 == 0:
        return made | {"temperature": 0, "logprobs": 2}
    return made | {"temperature": 0.9, "seed": n, "top_p": 0.95, "min_p": 0.01}


def post(address, asked, timeout=120):
    connection = http.client.HTTPConnection(address, timeout=timeout)
    connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def metric(address, name):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(f"onboard_{name} "):
            return float(line.split()[1])
    raise SystemExit(f"no metric {name}")


def memory(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the server is gone")


def rude(address, asked, draw):
    """A stream that is cut, or not read at all."""
    host, port = address.split(":")
    text = json.dumps(asked | {"stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    whole = (head + text).encode()
    with socket.create_connection((host, int(port)), timeout=60) as stream:
        stream.sendall(whole[: draw.choice([10, len(whole) - 3, len(whole), len(whole)])])
        if draw.random() < 0.6:
            stream.settimeout(2)
            try:
                stream.recv(draw.choice([1, 500]))
            except TimeoutError:
                pass
        time.sleep(draw.random() * 0.05)


def main(url, pid, seconds="60", clients="64"):
    address = urlparse(url).netloc
    bodies = [body(n) for n in range(96)]
    alone = [post(address, asked)[1]["choices"] for asked in bodies]
    counts = {"answers": 0, "refused": 0, "cut": 0}
    wrong, lock = [], threading.Lock()
    samples = []
    end = time.time() + float(seconds)

    def client(seed):
        draw = random.Random(seed)
        while time.time() < end:
            n = draw.randrange(len(bodies))
            try:
                if draw.random() < 0.35:
                    rude(address, bodies[n], draw)
                    kind = "cut"
                else:
                    status, found = post(address, bodies[n])
                    kind = {200: "answers", 429: "refused"}.get(status)
                    if kind is None or (kind == "answers" and found["choices"] != alone[n]):
                        with lock:
                            wrong.append((n, status, found))
                        continue
            except (OSError, http.client.HTTPException) as error:
                with lock:
                    wrong.append((n, 0, repr(error)))
                continue
            with lock:
                counts[kind] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(int(clients))]
    for thread in threads:
        thread.start()
    while time.time() < end:
        time.sleep(max(0.1, min(5, end - time.time())))
        samples.append(round(memory(pid)))
    for thread in threads:
        thread.join()
    for _ in range(300):
        names = ["slots_running", "queue_sequences", "requests_in_flight"]
        left = [metric(address, name) for name in names]
        if not any(left):
            break
        time.sleep(0.1)
    print(f"{counts}, memory in MiB over time: {samples}")
    assert not wrong, f"{len(wrong)} wrong answers, the first: {wrong[0]}"
    assert not any(left), f"left over: {dict(zip(names, left))}"
    assert counts["answers"] > 0 and counts["cut"] > 0
    settled = samples[len(samples) // 3]
    assert samples[-1] <= settled * 1.25 + 16, "memory grows"
    print(f"every answer is the one it gets alone; cancelled: {metric(address, 'cancelled_sequences_total'):.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
