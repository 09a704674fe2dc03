"""Speed, resets, start and memory of every environment, beside those of its original engine.

    python benchmarks/worlds.py                                   # all, some minutes
    python benchmarks/worlds.py --worlds toy_text textworld --seconds 2

Random admissible actions are drawn once; both then play the same actions in the same games, one right after
the other, in a process for each world. A step of ours computes the observation as text, reward, admissible
actions (ScienceWorld: only when asked for) and checks; a step of the original what its own interface
returns, as text if it has one. ALFWorld, WebShop and tau2-bench have their own benchmarks against their
originals. Memory is that of the process and of those that it started (a Java virtual machine).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from processes import memory_mb
from rich.console import Console
from rich.table import Table

import paw_gym  # noqa: F401  (registers the environments)

ENVIRONMENTS = 128
TASKS = 8
LONGEST = 30
"""actions of a walk"""


@dataclass(frozen=True)
class Walk:
    """Actions in a game."""

    index: int
    """of the task"""
    task: Any
    actions: Sequence[str]


Player = Callable[[Walk], None]
"""plays a walk from the start of its game"""


@dataclass(frozen=True)
class World:
    """An environment and how it is measured."""

    id: str
    arguments: dict[str, Any] = field(default_factory=dict)
    original: Callable[[], Player] | None = None


def _toy_text() -> Player:
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    def play(walk: Walk) -> None:
        game, _ = walk.task.data
        env = FrozenLakeEnv(render_mode="ansi", desc=list(game.rows), is_slippery=False)
        env = gym.wrappers.TimeLimit(env, 100)
        env.reset(seed=0)
        for action in walk.actions:
            env.step(game.actions.index(action))
            env.render()

    return play


def _babyai() -> Player:
    from paw_gym.envs.babyai import ACTIONS, open_level

    def play(walk: Walk) -> None:
        engine = open_level("GoToLocal", walk.task.data, 64)
        for action in walk.actions:
            engine.step(ACTIONS.index(action))

    return play


def _textworld() -> Player:
    import textworld

    infos = textworld.EnvInfos(admissible_commands=True, won=True, lost=True, score=True)
    opened: dict[str, Any] = {}

    def play(walk: Walk) -> None:
        file = walk.task.data
        if file not in opened:
            opened.clear()
            opened[file] = textworld.start(file, infos)
        opened[file].reset()
        for action in walk.actions:
            opened[file].step(action)

    return play


def _textworld_express() -> Player:
    from textworld_express import TextWorldExpressEnv

    engine = TextWorldExpressEnv(envStepLimit=1_000)
    engine.load("cookingworld", "")

    def play(walk: Walk) -> None:
        engine.reset(seed=walk.task.data, gameFold="train")
        for action in walk.actions:
            engine.step(action)

    return play


def _scienceworld() -> Player:
    from scienceworld import ScienceWorldEnv

    engine = ScienceWorldEnv("", envStepLimit=1_000)

    def play(walk: Walk) -> None:
        engine.load(walk.task.type, walk.task.data, "")
        for action in walk.actions:
            engine.step(action)

    return play


WORLDS = {
    "alfworld": World("paw_gym/ALFWorld-v0"),
    "webshop": World("paw_gym/WebShop-v0"),
    "search_qa": World("paw_gym/SearchQA-v0"),
    "tau2": World("paw_gym/Tau2-v0"),
    "toy_text": World("paw_gym/ToyText-v0", original=_toy_text),
    "sokoban": World("paw_gym/Sokoban-v0"),
    "sudoku": World("paw_gym/Sudoku-v0"),
    "2048": World("paw_gym/2048-v0"),
    "babyai": World("paw_gym/BabyAI-v0", original=_babyai),
    "textworld": World("paw_gym/TextWorld-v0", original=_textworld),
    "textworld_express": World("paw_gym/TextWorldExpress-v0", original=_textworld_express),
    "scienceworld": World("paw_gym/ScienceWorld-v0", {"task": "boil"}, _scienceworld),
}


def measure(name: str, seconds: float) -> dict[str, Any]:
    """The figures of a world in this process."""
    world = WORLDS[name]
    started = time.perf_counter()
    env: Any = _make(world)
    env.reset(seed=0, options={"task_index": 0})
    found: dict[str, Any] = {"start_s": time.perf_counter() - started}
    count = min(TASKS, len(env.tasks))
    for index in range(1, count):
        env.reset(seed=0, options={"task_index": index})
    begun = time.perf_counter()
    for index in range(count):
        env.reset(seed=0, options={"task_index": index})
    found["reset_ms"] = 1000 * (time.perf_counter() - begun) / count
    rng = np.random.default_rng(0)
    found["memory_mb"] = _memory_of_many(world, count)
    walks = [_walk(env, index, rng) for index in range(count)]
    found["steps_per_s"] = _rate(_ours(env), walks, seconds)
    found["original_steps_per_s"] = None
    if world.original is not None:
        found["original_steps_per_s"] = _rate(world.original(), walks, seconds)
    return found


def _memory_of_many(world: World, tasks: int) -> dict[str, float]:
    """MB of the process with one environment, and what many more at the start of a game add."""
    one = _memory()
    others = [_make(world) for _ in range(ENVIRONMENTS)]
    for number, other in enumerate(others):
        other.reset(seed=number, options={"task_index": number % tasks})
    added = _memory() - one
    for other in others:
        other.close()
    return {"process": one, "added": added}


def _make(world: World) -> Any:
    return gym.make(world.id, disable_env_checker=True, **world.arguments).unwrapped


def _walk(env: Any, index: int, rng: np.random.Generator) -> Walk:
    """Random actions; if none are listed, those of the environment's own solution."""
    _, info = env.reset(seed=0, options={"task_index": index})
    actions: list[str] = []
    plan = [] if info["admissible_actions"] else env.reference_solution()
    while len(actions) < LONGEST:
        listed = info["admissible_actions"]
        if not listed and len(actions) >= len(plan):
            break
        action = str(rng.choice(listed)) if listed else plan[len(actions)]
        *_, terminated, truncated, info = env.step(action)
        actions.append(action)
        if terminated or truncated:
            break
    return Walk(index, env.task, actions)


def _ours(env: Any) -> Player:
    def play(walk: Walk) -> None:
        env.reset(seed=0, options={"task_index": walk.index})
        for action in walk.actions:
            env.step(action)

    return play


def _rate(play: Player, walks: Sequence[Walk], seconds: float) -> float:
    """Steps a second, including resets: walks in turns for ``seconds``, after one unmeasured round."""
    for walk in walks:
        play(walk)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for walk in walks:
            play(walk)
            steps += len(walk.actions)
    return steps / (time.perf_counter() - started)


def _memory() -> float:
    """MB of this process and its descendants."""
    return sum(memory_mb(pid) for pid in ("self", *_below("self")))


def _below(pid: int | str) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            yield child
            yield from _below(child)


def table(results: dict[str, dict[str, Any]]) -> Table:
    """The figures, with a row for each world."""
    found = Table(title=f"{ENVIRONMENTS} environments; resets and steps of one")
    columns = ("world", "start s", "reset ms", "steps/s", "original's", "ratio", "MB")
    for number, column in enumerate((*columns, f"MB added by {ENVIRONMENTS}")):
        found.add_column(column, justify="left" if number == 0 else "right")
    for name, row in results.items():
        original, memory = row["original_steps_per_s"], row["memory_mb"]
        found.add_row(
            name,
            f"{row['start_s']:.1f}",
            f"{row['reset_ms']:,.3f}",
            f"{row['steps_per_s']:,.0f}",
            f"{original:,.0f}" if original else "",
            f"{row['steps_per_s'] / original:.2f}" if original else "",
            f"{memory['process']:,.0f}",
            f"{memory['added']:,.1f}",
        )
    return found


def main() -> None:
    """Measures each world in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of playing (default: 5)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.worlds[0], options.seconds)), flush=True)
        return
    results = {}
    for name in options.worlds:
        command = [sys.executable, __file__, "--one", "--worlds", name]
        done = subprocess.run(
            [*command, "--seconds", str(options.seconds)], capture_output=True, text=True
        )
        if done.returncode:
            print(f"{name}: not measured: {(done.stderr.splitlines() or ['?'])[-1]}", flush=True)
            continue
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {results[name]['steps_per_s']:,.0f} steps/s", flush=True)
    Console(width=160).print(table(results))


if __name__ == "__main__":
    main()
