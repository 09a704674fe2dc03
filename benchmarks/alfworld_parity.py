"""Native against original ALFWorld engine on every solvable game, in both grammars.

    python benchmarks/alfworld_parity.py --data-dir DIR [--processes 2] [--steps 30]

For each game and grammar: one random walk (see `random_walker` in
`paw_gym.envs.alfworld.textworld_engine`) and one winning walk, with look, inventory and examine before
every change. Every observation, admissible list and ending is compared exactly. Takes about 30 minutes on
two cores; the original engine sets the pace.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

from alfworld_data import game_files, newer_rules

from paw_gym.envs.alfworld.games import load_game
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.problem import UnsolvableGameError
from paw_gym.envs.alfworld.textworld_engine import (
    ParityError,
    TextWorldEngine,
    compare,
    random_walker,
    script_walker,
    winning_commands,
    with_newer_grammar,
)


def check_game(job: tuple[str, int, int]) -> tuple[str, Counter[str], list[str]]:
    """Compare one game; returns its path, counts, and the differences found."""
    path, steps, seed = job
    counts: Counter[str] = Counter()
    differences: list[str] = []
    try:
        older = load_game(path)
    except UnsolvableGameError:
        return path, Counter(unsolvable=1), []
    counts["games"] += 1
    for data in (older, with_newer_grammar(older, *newer_rules())):
        game = CompiledGame.from_json(data)
        native, original = NativeEngine(game), TextWorldEngine(data)
        walks = {
            "random": random_walker(steps, seed),
            "winning": script_walker(winning_commands(game)),
        }
        for kind, walker in walks.items():
            name = f"{game.grammar.version} {kind}"
            try:
                counts[f"{name} steps"] += compare(native, original, walker)
                counts[f"{name} walks"] += 1
                counts[f"{name} won"] += native.won
            except ParityError as error:
                counts[f"{name} DIFFERENCES"] += 1
                differences.append(f"{path} ({name}): {error}")
    return path, counts, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="default: the data beside the repository")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30, help="steps of each random walk")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    start = time.monotonic()
    with game_files(args.data_dir) as files:
        jobs = [(os.fspath(f), args.steps, args.seed * 100_000 + i) for i, f in enumerate(files)]
        total: Counter[str] = Counter()
        differences: list[str] = []
        # A fresh process now and then: the original's library is loaded anew for every game.
        context = multiprocessing.get_context("spawn")
        with context.Pool(args.processes, maxtasksperchild=10) as pool:
            for n, (_, counts, found) in enumerate(pool.imap_unordered(check_game, jobs), 1):
                total += counts
                differences += found
                if n % 20 == 0:
                    steps = sum(count for name, count in total.items() if name.endswith("steps"))
                    print(
                        f"{n}/{len(jobs)} files, {total['games']} games, {steps} steps, "
                        f"{len(differences)} differences",
                        flush=True,
                    )
    for name, count in sorted(total.items()):
        print(f"{name:24} {count}")
    for difference in differences[:10]:
        print(difference)
    print(f"{len(differences)} differences in {(time.monotonic() - start) / 60:.1f} minutes")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
