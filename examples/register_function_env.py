"""The smallest environment: a generator function over a list of tasks, registered, played and checked.

python examples/register_function_env.py
"""

from __future__ import annotations

from collections.abc import Generator

import gymnasium as gym
import numpy as np

from paw_gym import Outcome, Task, register_text_env
from paw_gym.contract import check_text_env

CODES = {"hall": 5, "attic": 11, "cellar": 30}
TASKS = [
    Task(room, f"Open the safe in the {room}: its code is a number from 1 to 32.", data=code)
    for room, code in CODES.items()
]


def solve(task: Task, rng: np.random.Generator) -> list[str]:
    """Proves, without a model, that every task can be solved."""
    return [str(task.data)]


@register_text_env("example/Safe-v0", tasks=TASKS, max_steps=8, solve=solve)
def safe(task: Task, rng: np.random.Generator) -> Generator[Outcome, str, None]:
    """Find the code of a safe that says whether it is higher or lower than what you dialed."""
    action = yield Outcome("You stand before a safe.")
    while True:
        if not action.isascii() or not action.isdigit() or not 1 <= int(action[:9]) <= 32:
            action = yield Outcome("The dial goes from 1 to 32.", action_is_valid=False)
        elif int(action) == task.data:
            action = yield Outcome("It opens.", reward=1.0, terminated=True, success=True)
        else:
            hint = "higher" if task.data > int(action) else "lower"
            action = yield Outcome(f"The code is {hint} than {int(action)}.")


def bisect(env: gym.Env[str, str]) -> None:
    """Plays one episode by bisection."""
    observation, info = env.reset(seed=0, options={"task_id": "attic"})
    print(f"{info['instruction']}\n  {observation}")
    low, high, over = 1, 32, False
    while not over:
        middle = (low + high) // 2
        observation, reward, terminated, truncated, info = env.step(str(middle))
        print(f"  > {middle}\n  {observation}")
        low, high = (middle + 1, high) if "higher" in observation else (low, middle - 1)
        over = terminated or truncated
    print(f"reward {reward}, success {info['success']}\n")


if __name__ == "__main__":
    bisect(gym.make("example/Safe-v0"))
    for result in check_text_env("example/Safe-v0").results:
        print(f"{result.status:8} {result.name:24} {result.detail}")
