"""Gold paths of engines on the Java virtual machine through our environments: each must end with the score 1.

    python benchmarks/gold_paths.py --games 100
    python benchmarks/gold_paths.py --world scienceworld --games 60

Needs the extra ``jvm``. Games of the test split, in turns over the kinds of games. Prints a line for each
kind and ends with exit code 1 where a path does not score 1.
"""

from __future__ import annotations

import argparse
import sys
import time

from paw_gym import TextEnv
from paw_gym.envs.scienceworld import ScienceWorldEnv, science_tasks
from paw_gym.envs.textworld_express import GAMES, TextWorldExpressEnv

LONGEST = 1000


def kinds_of(world: str) -> list[str]:
    """The kinds of games of a world."""
    if world == "textworld_express":
        return list(GAMES)
    return [task_id.partition("/")[0] for task_id in science_tasks("test", None, 1).ids]


def make(world: str, kind: str) -> TextEnv:
    """The environment of a kind of games."""
    if world == "textworld_express":
        return TextWorldExpressEnv(kind, "test", max_steps=LONGEST)
    return ScienceWorldEnv("test", kind, max_steps=LONGEST)


def final_score(env: TextEnv, index: int) -> tuple[float, int]:
    """The score that the gold path of a game ends with, and its number of actions."""
    _, info = env.reset(seed=0, options={"task_index": index})
    actions = env.reference_solution()
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    return float(info["score"]), len(actions)


def main() -> int:
    """Runs the paths and prints what they scored."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--world", choices=("textworld_express", "scienceworld"), default="textworld_express"
    )
    parser.add_argument("--games", type=int, default=100, help="games in all (default: 100)")
    options = parser.parse_args()
    kinds, games = kinds_of(options.world), options.games
    short = 0
    for number, kind in enumerate(kinds):
        count = len(range(number, games, len(kinds)))
        env, started = make(options.world, kind), time.perf_counter()
        scores = [final_score(env, index) for index in range(count)]
        full = sum(score == 1.0 for score, _ in scores)
        short += count - full
        lengths = ", ".join(str(length) for _, length in scores[:8])
        seconds = time.perf_counter() - started
        print(
            f"{kind}: {full} of {count} score 1.0; actions: {lengths}; {seconds:.1f} s", flush=True
        )
    print(f"{games - short} of {games} gold paths score 1.0")
    return int(short > 0)


if __name__ == "__main__":
    sys.exit(main())
