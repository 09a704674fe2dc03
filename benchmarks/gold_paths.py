"""Gold paths of TextWorldExpress through our environment: every one must end with the score 1.

    python benchmarks/gold_paths.py --games 100

Needs the extra ``jvm``. Games of the test split, in turns over the kinds of games. Prints a line for each
kind and ends with exit code 1 where a path does not score 1.
"""

from __future__ import annotations

import argparse
import sys
import time

from paw_gym.envs.textworld_express import GAMES, TextWorldExpressEnv


def final_score(env: TextWorldExpressEnv, index: int) -> tuple[float, int]:
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
    parser.add_argument("--games", type=int, default=100, help="games in all (default: 100)")
    games = parser.parse_args().games
    short = 0
    for number, game in enumerate(GAMES):
        count = len(range(number, games, len(GAMES)))
        env, started = TextWorldExpressEnv(game, "test", max_steps=500), time.perf_counter()
        scores = [final_score(env, index) for index in range(count)]
        full = sum(score == 1.0 for score, _ in scores)
        short += count - full
        actions = sum(length for _, length in scores)
        seconds = time.perf_counter() - started
        print(
            f"{game}: {full} of {count} score 1.0; {actions} actions, {seconds:.1f} s", flush=True
        )
    print(f"{games - short} of {games} gold paths score 1.0")
    return int(short > 0)


if __name__ == "__main__":
    sys.exit(main())
