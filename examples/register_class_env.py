"""An environment as a class: keyword arguments, a listed set of actions, a reference solver.

python examples/register_class_env.py
"""

from __future__ import annotations

import gymnasium as gym

from paw_gym import Outcome, Task, TaskSet, TextEnv, register_text_env
from paw_gym.contract import check_text_env

MOVES = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}


class GardenEnv(TextEnv):
    """Walk through a garden of ``size`` x ``size`` beds to the one with the lemon tree."""

    def __init__(self, size: int = 4, max_steps: int = 20, render_mode: str | None = None) -> None:
        self.size = size
        places = [(x, y) for x in range(size) for y in range(size) if x or y]
        tasks = [Task(f"{x}-{y}", "Find the lemon tree.", data=(x, y)) for x, y in places]
        super().__init__(TaskSet.from_tasks(tasks), max_steps, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = {"x": 0, "y": 0}
        return self._look("You enter the garden.")

    def _act(self, action: str) -> Outcome:
        if action not in self._open():
            return self._look("You cannot do that.", action_is_valid=False)
        dx, dy = MOVES[action]
        self.state = {"x": self.state["x"] + dx, "y": self.state["y"] + dy}
        return self._look(f"You walk {action}.")

    def _look(self, what: str, action_is_valid: bool = True) -> Outcome:
        x, y = self.task.data
        found = (x, y) == (self.state["x"], self.state["y"])
        smell = abs(x - self.state["x"]) + abs(y - self.state["y"])
        scent = "The lemon tree!" if found else f"The scent of lemons has strength {-smell}."
        return Outcome(
            f"{what} {scent}",
            reward=float(found),
            terminated=found,
            success=found,
            action_is_valid=action_is_valid,
            admissible_actions=self._open(),
        )

    def _open(self) -> list[str]:
        """The moves that stay inside the garden."""
        ends = {
            move: (self.state["x"] + dx, self.state["y"] + dy) for move, (dx, dy) in MOVES.items()
        }
        return [m for m, (x, y) in ends.items() if 0 <= x < self.size and 0 <= y < self.size]

    def reference_solution(self) -> list[str]:
        """East or west, then south or north."""
        dx, dy = self.task.data[0] - self.state["x"], self.task.data[1] - self.state["y"]
        return ["east" if dx > 0 else "west"] * abs(dx) + ["south" if dy > 0 else "north"] * abs(dy)


register_text_env("example/Garden-v0", GardenEnv)


if __name__ == "__main__":
    env = gym.make("example/Garden-v0", size=3)
    observation, info = env.reset(seed=1)
    print(observation)
    for action in env.unwrapped.reference_solution():
        observation, reward, *_ = env.step(action)
        print(f"> {action}\n{observation} (reward {reward})")
    check_text_env("example/Garden-v0", size=3).raise_for_failures()
    print("\nThe environment passes the contract suite.")
