# peer.py - how a peer program talks with `./tl bench`: one JSON object a line.
#
#   peer writes   {"about": "numpy 2.2, OpenBLAS ..."}     once it is ready
#            or   {"skip": "numpy is not installed; ..."}  and ends
#   bench writes  {"size": 1024}                           a request; the peer measures it
#   peer writes   {"seconds": 0.01, "cpu": 0.01}           and waits for the next one
#
# One process answers all requests, so bench can alternate between itself and the peer. `seconds` is
# wall time, `cpu` the processor time of all threads of the process.
import json
import sys
import time


def say(message):
    print(json.dumps(message), flush=True)


def skip(reason):
    say({"skip": reason})
    sys.exit(0)


def measure(work):
    """Seconds and processor seconds that work() takes."""
    cpu, start = time.process_time(), time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}


def serve(about, answer):
    """Answers requests with answer(request) until the input ends."""
    say({"about": about})
    for line in sys.stdin:
        say(answer(json.loads(line)))
