"""The two experts of ALFWorld on procedural games: one sees the state, one reads the text.

python examples/alfworld_expert.py
"""

from __future__ import annotations

import gymnasium as gym

import paw_gym  # registers the environments


def main() -> None:
    """Solves one game of each task type with both experts."""
    env = gym.make("paw_gym/ALFWorld-v0", split="valid_seen")
    print(f"{'task type':34} {'planner':>8} {'by text':>8}  task")
    for index in range(6):
        _, info = env.reset(options={"task_index": index})
        planned = len(env.unwrapped.reference_solution())

        _, info = env.reset(options={"task_index": index})
        act = env.unwrapped.expert()
        steps, over = 0, False
        while not over:
            _, _, terminated, truncated, info = env.step(act())
            steps, over = steps + 1, terminated or truncated
        by_text = str(steps) if info["success"] else "failed"
        print(f"{info['task_type']:34} {planned:8} {by_text:>8}  {info['instruction']}")


if __name__ == "__main__":
    main()
