"""Quickstart steps with and without pinned threads (TL_PIN) and waits that look on (TL_SPIN).

    tests/peers/switches.py [rounds]          on a busy machine: chrt -r 5 python3 tests/peers/...

Programs take turns, round by round, and every second round backwards. A ratio is taken inside a
round: the middle one is printed with the least and the largest. Needs 2 processors.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

LAYOUTS = {
    "1 rank, 2 workers": ["dp=1"],
    "dp 2": ["dp=2"],
    "tp 2": ["tp=2"],
    "pp 2": ["pp=2"],
    "tp 2 pp 2 dp 2": ["tp=2", "pp=2", "dp=2"],
}
SWITCHES = [("off", "off"), ("off", "on"), ("on", "off"), ("on", "on")]


def step_ms(layout, pin, spin):
    """The middle of the times of steps 4 to 25."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        fields = ["layout." + field for field in layout]
        command = [os.environ.get("TIDELOCK", "build/tidelock"), "run", "recipes/quickstart.lua"]
        command += fields + ["--stop-at", "25", "--jsonl", log, "--runs", folder]
        environment = dict(os.environ, TL_PIN=pin, TL_SPIN=spin)
        environment.setdefault("TIDELOCK_LUA", "lua")
        subprocess.run(command, env=environment, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(log, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
    return statistics.median(r["ms"] for r in records[3:] if "ms" in r)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    times = {}
    for turn in range(rounds):
        for name, layout in LAYOUTS.items():
            for switch in SWITCHES[:: -1 if turn % 2 else 1]:
                times.setdefault((name, switch), []).append(step_ms(layout, *switch))
    print(f"{'layout':18} {'TL_PIN':6} {'TL_SPIN':7} {'ms':>6}  speed against off, off")
    for (name, switch), list_ in sorted(times.items()):
        ratios = sorted(a / b for a, b in zip(times[name, SWITCHES[0]], list_))
        middle = f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:18} {switch[0]:6} {switch[1]:7} {statistics.median(list_):6.1f}  {middle}")


main()
