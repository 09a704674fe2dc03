"""WebShop: speed, start-up and memory on the official set of 1,000 products.

    python benchmarks/webshop.py --data ../shared/data/webshop

The original's figures were measured on this project's first machine (one core, 1,000 products): 81 steps
a second, 4.7 s to start, 790 MB a process. It runs one environment a process. Steps are those of
the 150 recorded episodes of the original; processor time is given beside clock time, which a busy
machine stretches.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ORIGINAL = {"steps_per_s": 81.0, "start_s": 4.7, "memory_mb": 790.0}

_START = """
import json, sys, time
clock, cpu = time.perf_counter(), time.process_time()
import gymnasium as gym
import paw_gym
env = gym.make("paw_gym/WebShop-v0", data_dir=sys.argv[1], disable_env_checker=True)
env.reset(seed=0)
print(json.dumps({"clock_s": time.perf_counter() - clock, "cpu_s": time.process_time() - cpu}))
"""

_RUN = """
import json, sys, time
import gymnasium as gym
import paw_gym

def private_mb():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(status["RssAnon"].split()[0]) / 1024, int(status["VmRSS"].split()[0]) / 1024

with open(sys.argv[2]) as file:
    recorded = json.load(file)
nouns = sys.argv[3]
goals = [episode["goal"] for episode in recorded["episodes"]]
settings = dict(data_dir=sys.argv[1], goals=json.dumps(goals), prices=json.dumps(recorded["prices"]))

def make():
    return gym.make("paw_gym/WebShop-v0", disable_env_checker=True, nouns=nouns, **settings).unwrapped

def play(env):
    steps = 0
    for number, episode in enumerate(recorded["episodes"]):
        env.reset(options={"task_id": f"goal/{number}"})
        for step in episode["steps"]:
            env.step(step["action"])
            steps += 1
    return steps

def timed(label):
    clock, cpu, steps = time.perf_counter(), time.process_time(), 0
    for _ in range(int(sys.argv[4])):
        steps += play(env)
    out[label] = {"steps": steps, "clock": steps / (time.perf_counter() - clock),
                  "cpu": steps / (time.process_time() - cpu)}

out = {"nouns": nouns}
env = make()
play(env)  # first touch: pages of the maps, titles tagged
env.shop._hits.clear()
kept, env.shop.__class__.hits = env.shop.__class__.hits, lambda self, query: tuple(
    self.engine.search(query, 50))
timed("every_search_anew")
env.shop.__class__.hits = kept
timed("latest_searches_kept")
before = private_mb()
many = [make() for _ in range(128)]
for number, other in enumerate(many):
    other.reset(seed=number)
    other.step("search[red shoes]")
after = private_mb()
out["memory_mb"] = {"one": before[1], "added_by_128": after[1] - before[1]}
print(json.dumps(out))
"""


def run(code: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", code, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(output.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PAW_CACHE_DIR"] = cache
        plain = Path(cache) / "recorded.json"
        with lzma.open(arguments.data / "reference_episodes.json.xz", "rt") as file:
            plain.write_text(file.read())
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        first = run(_START, str(arguments.data))
        print(
            f"first start (compiles): {first['clock_s']:.2f} s, {first['cpu_s']:.2f} s of processor"
        )
        starts = [run(_START, str(arguments.data)) for _ in range(arguments.repeats)]
        best = {key: min(start[key] for start in starts) for key in first}
        print(
            f"start, import and reset included: {best['clock_s']:.2f} s, {best['cpu_s']:.2f} s of "
            f"processor (original {ORIGINAL['start_s']} s: {ORIGINAL['start_s'] / best['cpu_s']:.0f} times)"
        )
        for nouns in ("rules", "spacy"):
            try:
                found = run(_RUN, str(arguments.data), str(plain), nouns, str(arguments.repeats))
            except subprocess.CalledProcessError as error:
                print(f"nouns={nouns}: {error.stderr.strip().splitlines()[-1]}")
                continue
            for label in ("every_search_anew", "latest_searches_kept"):
                rates = found[label]
                print(
                    f"nouns={nouns}, {label}: {rates['clock']:,.0f} steps/s by the clock, "
                    f"{rates['cpu']:,.0f} by the processor "
                    f"({rates['cpu'] / ORIGINAL['steps_per_s']:.0f} times the original)"
                )
            memory = found["memory_mb"]
            print(
                f"nouns={nouns}: {memory['one']:.0f} MB with one environment (original "
                f"{ORIGINAL['memory_mb']:.0f}), {memory['added_by_128']:.0f} MB more with 128 others"
            )


if __name__ == "__main__":
    main()
