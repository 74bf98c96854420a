"""Stops a server while requests run: drain.py URL PID [CLIENTS].

Clients ask again and again, half of them for streams. Requests that run at the signal have to end as if nothing had happened,
and new ones have to be refused. The caller checks the exit code of the server.
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
from urllib.parse import urlparse

from load import body, metric


def ask(address, asked):
    connection = http.client.HTTPConnection(address, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def text_of(asked, status, found):
    """Text of an answer that is complete."""
    assert status == 200, (status, found)
    if not asked.get("stream"):
        return json.loads(found)["choices"][0]["text"]
    events = [line.removeprefix("data: ") for line in found.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", found[-200:]
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert choices[-1]["finish_reason"] in ("stop", "length"), choices[-1]
    return "".join(choice["text"] for choice in choices)


def main(url, pid, clients="64"):
    address, count = urlparse(url).netloc, int(clients)
    bodies = [body(n) | {"prompt": body(n)["prompt"][:90], "max_tokens": 60} for n in range(count)]
    for asked in bodies:
        asked.pop("logprobs", None)
    alone = [text_of(asked, *ask(address, asked)) for asked in bodies]
    bodies = [asked | {"stream": n % 2 == 0} for n, asked in enumerate(bodies)]
    counts = {"before": 0, "running": 0, "refused": 0, "gone": 0}
    wrong, lock = [], threading.Lock()
    stopped = float("inf")

    def client(n):
        kind = None
        while kind not in ("refused", "gone"):
            begun = time.monotonic()
            try:
                status, answer = ask(address, bodies[n])
                if status == 503 and json.loads(answer)["error"]["code"] == "stopping":
                    kind = "refused"
                else:
                    kind = "before" if time.monotonic() < stopped or begun > stopped else "running"
                    if text_of(bodies[n], status, answer) != alone[n]:
                        wrong.append((n, answer[-300:]))
            except ConnectionRefusedError:
                kind = "gone"
            except Exception as error:  # Anything else is a fault of the server.
                wrong.append((n, repr(error)))
                kind = "gone"
            with lock:
                counts[kind] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    assert metric(address, "requests_in_flight") > 1
    stopped = time.monotonic()
    os.kill(int(pid), signal.SIGTERM)
    for thread in threads:
        thread.join()
    print(f"answers before the signal: {counts['before']}, running at the signal and complete: {counts['running']}, "
          f"new ones refused: {counts['refused']}, without a server: {counts['gone']}")
    assert not wrong, f"{len(wrong)} wrong answers, the first: {wrong[0]}"
    assert counts["running"] and counts["refused"]


if __name__ == "__main__":
    main(*sys.argv[1:])
