"""PaW on your own environment, in one process: an expert's games, then GRPO with a world model.

Takes ten seconds on one core: a transformer with one small layer is cloned a little, succeeds well below
half of the time, and does better after 24 updates.

python examples/train_your_environment.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from pathlib import Path

import numpy as np

from paw_gym import Outcome, Task, register_text_env
from paw_train.training.local import train_from_recipe

DOORS = ["red", "green", "blue"]
TASKS = [Task(color, f"Open the {color} door.", data=color) for color in DOORS]


def solve(task: Task, rng: np.random.Generator) -> list[str]:
    """The demonstrations of the warm start."""
    return [f"open {task.data} door"]


@register_text_env("example/Doors-v0", tasks=TASKS, max_steps=4, solve=solve)
def doors(task: Task, rng: np.random.Generator) -> Generator[Outcome, str, None]:
    """Open the door of the right color."""
    accepted = [f"open {color} door" for color in DOORS]
    action = yield Outcome("You see three doors.", admissible_actions=accepted)
    while action != f"open {task.data} door":
        known = action in accepted
        seen = "A wall." if known else "What do you mean?"
        action = yield Outcome(seen, action_is_valid=known, admissible_actions=accepted)
    yield Outcome("It opens.", reward=1.0, terminated=True, success=True, admissible_actions=[])


SETTINGS = [
    "env.id=example/Doors-v0",
    "env.kwargs={}",
    "updates=24",
    "cloning.episodes=96",
    "cloning.steps=45",
    "cloning.lr=1e-2",
    "rollout.groups=3",
    "rollout.group_size=16",
    "optimizer.lr=1e-2",
    "world_model.coef=0.3",
    "env.invalid_penalty=-0.1",
    "evaluation.tasks=3",
    "evaluation.every=0",
    "evaluation.selection_tasks=3",
]


def main() -> None:
    """Trains, and prints the metrics of some updates and the results."""
    with tempfile.TemporaryDirectory() as out:
        run = train_from_recipe("smoke", [*SETTINGS, f"out={out}"], quiet=True)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        for line in (*lines[:-1:4], lines[-1]):
            m = json.loads(line)
            print(
                f"update {m['update']}: success {m['success_rate']:.2f}, "
                f"world-model loss {m['wm_loss']:.3f}, gradient norm {m['grad_norm']:.2f}"
            )
        for when in ("before", "after"):
            result = json.loads((run / f"eval_{when}.json").read_text())
            print(f"{when} RL: {100 * result['success_rate']:.0f} % of {result['n']} tasks")
        print(f"files of the run: {', '.join(sorted(p.name for p in Path(run).iterdir()))}")


if __name__ == "__main__":
    main()
