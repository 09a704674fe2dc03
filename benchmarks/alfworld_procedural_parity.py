"""Procedural ALFWorld games in the original engine: they load, play the same, and are won.

    python benchmarks/alfworld_procedural_parity.py [--games 200] [--start 0] [--steps 15]

The games go round the six task types, the three splits, real and modified rooms, and both grammars.
For each: a random walk and the generator's own walkthrough, in the native and in the original
engine; every observation, admissible list and end is compared exactly. About 1.5 s a game on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import alfworld_data  # noqa: F401  keeps alfworld.py here from hiding the package of that name

from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.goal import TASK_TYPES
from paw_gym.envs.alfworld.parity import ParityError, compare, random_walker, script_walker
from paw_gym.envs.alfworld.procedural.generate import SPLITS, generate_game
from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine


def games(start: int, end: int, seed: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The games with these numbers; a number and the seed determine the game."""
    for i in range(start, end):
        game = generate_game(
            split=SPLITS[i // 6 % 3],
            task_type=TASK_TYPES[i % 6],
            seed=seed + i,
            grammar="put" if i // 18 % 2 == 0 else "move",
            variation="real" if i // 36 % 2 == 0 else "modified",
        )
        yield i, game


def check(game: dict[str, Any], steps: int, seed: int) -> Counter[str]:
    """Play one game in both engines; differences are printed and counted."""
    native, original = NativeEngine(CompiledGame.from_json(game)), TextWorldEngine(game)
    counts = Counter({"games": 1, f"games of {game['task_type']}": 1})
    try:
        counts["random steps"] += compare(native, original, random_walker(steps, seed))
        counts["winning steps"] += compare(native, original, script_walker(game["walkthrough"]))
    except ParityError as error:
        counts["DIFFERENCES"] += 1
        print(f"{game['split']} {game['task_type']} seed {game['seed']}: {error}")
    counts["won in the original engine"] += original.won
    counts["won in the native engine"] += native.won
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="go on at this game's number")
    parser.add_argument("--steps", type=int, default=15, help="steps of each random walk")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start, total = time.monotonic(), Counter[str]()
    for number, game in games(args.start, args.games, args.seed):
        total += check(game, args.steps, number)
        print(f"game {number}: {total['DIFFERENCES']} differences so far", flush=True)
    for name, count in sorted(total.items()):
        print(f"{count:6d} {name}")
    print(f"{time.monotonic() - start:.0f} s")
    return int(total["won in the original engine"] != total["games"] or total["DIFFERENCES"] > 0)


if __name__ == "__main__":
    sys.exit(main())
