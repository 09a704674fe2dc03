"""ALFWorld's two engines side by side: speed, resets, memory, start.

    python benchmarks/alfworld.py [--data-dir DIR] [--games 12] [--steps 50]

Both engines play the same commands in the same games, one right after the other, each computing the
observation and the admissible commands of every step. If the original's packages are missing, its column
stays empty. Without ``--data-dir``, the archive in ``$PAW_SHARED_DATA`` or beside the repository is used.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from alfworld_data import game_files
from rich.console import Console
from rich.table import Table

from paw_gym.envs.alfworld.games import load_game
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import Engine, NativeEngine
from paw_gym.envs.alfworld.native.problem import UnsolvableGameError
from paw_gym.envs.alfworld.textworld_engine import random_walker, script_walker

ENVIRONMENTS, TREE = 128, 3827
"""environments in one process, and games of the data folder that a start is measured on"""
REPEATS = 40
"""native replays of each walk after the first; one alone takes about a quarter of a millisecond"""
HAS_ORIGINAL = all(
    importlib.util.find_spec(name) for name in ("textworld", "fast_downward", "alfworld")
)

# Each child script prints one JSON list of numbers. In separate processes, memory and start are honest.
NATIVE_MEMORY = """
import json, sys
import gymnasium, paw_gym, random
def rss():
    status = open("/proc/self/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
folder, split, count, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
first = gymnasium.make("paw_gym/ALFWorld-v0", data_dir=folder, split=split)
first.reset(seed=0)
before, rng = rss(), random.Random(0)
envs = [gymnasium.make("paw_gym/ALFWorld-v0", data_dir=folder, split=split) for _ in range(count)]
for i, env in enumerate(envs):
    _, info = env.reset(options={"task_index": i % len(env.unwrapped.tasks)})
    for _ in range(steps):
        _, _, terminated, truncated, info = env.step(rng.choice(info["admissible_actions"]))
        if terminated or truncated:
            break
print(json.dumps([rss() - before]))
"""
ORIGINAL_MEMORY = """
import json, sys
from paw_gym.envs.alfworld.games import load_game
from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine
engine = TextWorldEngine(load_game(sys.argv[1]))
engine.reset()
engine.step("look")
status = open("/proc/self/status").read()
print(json.dumps([int(status.split("VmRSS:")[1].split()[0]) / 1024]))
"""
NATIVE_START = """
import json, sys, time
start = time.perf_counter()
import gymnasium, paw_gym
env = gymnasium.make("paw_gym/ALFWorld-v0", data_dir=sys.argv[1], split="train")
env.reset(seed=0)
print(json.dumps([time.perf_counter() - start, len(env.unwrapped.tasks)]))
"""
ORIGINAL_START = """
import contextlib, io, json, sys, time
start = time.perf_counter()
from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv
config = {
    "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
    "dataset": {"data_path": sys.argv[1] + "/train", "num_train_games": -1},
}
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    env = AlfredTWEnv(config, "train")
print(json.dumps([time.perf_counter() - start, env.num_games]))
"""


class Clock:
    """CPU seconds of this process, and counts, by name, for one engine.

    CPU time, since it stays the same when other programs use the machine; on an idle machine it equals
    the time on the clock.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def add(self, name: str, start: float, count: int = 1) -> None:
        self.seconds[name] += time.process_time() - start
        self.counts[name] += count

    def rate(self, name: str) -> float:
        return self.counts[name] / self.seconds[name]

    def milliseconds(self, name: str) -> float:
        return 1000 / self.rate(name)


def play(engine: Engine, walker: Callable[[list[str]], str | None]) -> list[str]:
    """Play from the engine's current state to the end of the walk; return the commands."""
    commands = []
    admissible = engine.admissible_commands()
    while (command := walker(admissible)) is not None:
        engine.step(command)
        admissible = engine.admissible_commands()
        commands.append(command)
    return commands


def measure_speed(files: list[Path], steps: int) -> tuple[Clock, Clock | None]:
    """Load, reset and play each game in both engines."""
    native, original = Clock(), Clock() if HAS_ORIGINAL else None
    for number, path in enumerate(files):
        commands = _play_original(original, path, steps, number) if original else None
        start = time.process_time()
        game = CompiledGame.from_json(load_game(path))
        engine = NativeEngine(game)
        native.add("load", start)
        if commands is None:
            commands = play(engine, random_walker(steps, number))
            game.menus.clear()
            game.views.clear()
            engine.reset()
        start = time.process_time()
        play(engine, script_walker(commands))
        native.add("first", start, len(commands))
        for _ in range(REPEATS):
            start = time.process_time()
            engine.reset()
            native.add("reset", start)
            start = time.process_time()
            play(engine, script_walker(commands))
            native.add("steps", start, len(commands))
    return native, original


def _play_original(clock: Clock, path: Path, steps: int, seed: int) -> list[str]:
    from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine

    start = time.process_time()
    engine = TextWorldEngine(load_game(path))
    clock.add("load", start)
    start = time.process_time()
    engine.reset()
    clock.add("reset", start)
    start = time.process_time()
    commands = play(engine, random_walker(steps, seed))
    clock.add("steps", start, len(commands))
    return commands


def child(script: str, *arguments: str, cache: Path) -> list[float]:
    """Run a script in a process of its own; return the numbers that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PAW_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a measurement failed:\n{done.stderr[-2000:]}")
    numbers: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return numbers


def copy_tree(files: list[Path], count: int, target: Path) -> None:
    """A data folder with `count` trials made of copies, including their task data."""
    for number in range(count):
        source = files[number % len(files)].parent
        trial = target / "train" / source.parent.name / f"{source.name}_{number}"
        shutil.copytree(source, trial)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="the folder with train/, valid_seen/, ...")
    parser.add_argument("--games", type=int, default=12, help="games to play in both engines")
    parser.add_argument("--steps", type=int, default=50, help="steps in each")
    args = parser.parse_args()

    table = Table(title="ALFWorld engines")
    for column in ("measure", "native", "original", "ratio"):
        table.add_column(column, justify="left" if column == "measure" else "right")

    def row(measure: str, native: float, original: float | None, unit: str, inverse: bool) -> None:
        ratio = ""
        if original is not None:
            ratio = f"{original / native if inverse else native / original:,.0f}x"
        shown = "" if original is None else f"{original:,.4g} {unit}"
        table.add_row(measure, f"{native:,.4g} {unit}", shown, ratio)

    with (
        game_files(args.data_dir) as files,
        tempfile.TemporaryDirectory(prefix="paw-bench-") as scratch,
    ):
        folder = Path(scratch)
        playable = [path for path in files if _solvable(path)]
        chosen = random.Random(0).sample(playable, min(args.games, len(playable)))
        native, original = measure_speed(chosen, args.steps)
        slow = original.rate("steps") if original else None
        row("steps/s, with admissible commands", native.rate("steps"), slow, "/s", inverse=False)
        row("steps/s, first episode of a game", native.rate("first"), slow, "/s", inverse=False)
        load, reset = (original.milliseconds(n) if original else None for n in ("load", "reset"))
        row("load a game", native.milliseconds("load"), load, "ms", inverse=True)
        row("reset, warm", native.milliseconds("reset"), reset, "ms", inverse=True)

        tree = folder / "tree"
        copy_tree(playable, TREE, tree)
        count = str(ENVIRONMENTS)
        (added,) = child(
            NATIVE_MEMORY, str(tree), "train", count, str(args.steps), cache=folder / "memory"
        )
        processes = None
        if HAS_ORIGINAL:
            processes = ENVIRONMENTS * child(ORIGINAL_MEMORY, str(chosen[0]), cache=folder)[0]
        name = f"memory added by {count} environments (original: as many processes)"
        row(name, added, processes, "MB", inverse=True)
        child(NATIVE_START, str(tree), cache=folder / "index")
        warm, games = child(NATIVE_START, str(tree), cache=folder / "index")
        scan = child(ORIGINAL_START, str(tree), cache=folder)[0] if HAS_ORIGINAL else None
        row(f"start on {games:,.0f} games, with the index", warm, scan, "s", inverse=True)

    Console(width=110).print(table)
    print(
        f"{len(chosen)} games x {args.steps} steps; native steps: mean of {REPEATS} replays after "
        "the first. Start: a new process up to its first reset (original: up to its list of games)."
    )


def _solvable(path: Path) -> bool:
    try:
        load_game(path)
    except UnsolvableGameError:
        return False
    return True


if __name__ == "__main__":
    main()
