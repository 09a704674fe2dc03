"""A client in a process of its own: plays remote and local environments side by side until killed.

Run as ``player.py URL SEED``. Prints a line an episode; ends with an error at the first difference.
"""

from __future__ import annotations

import random
import sys

import gymnasium as gym
import troubles  # noqa: F401  (registers the environment here, too)

from paw_gym import make_remote

url, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
here = gym.make("tests/Dice-v0", disable_env_checker=True).unwrapped
there = make_remote(url, "tests/Dice-v0")
for episode in range(10**6):
    again = rng.randrange(10**6)
    assert there.reset(seed=again) == here.reset(seed=again)
    done = False
    while not done:
        action = rng.choice(["roll", "roll", "what", "stop"])
        answer = there.step(action)
        assert answer == here.step(action), (answer, action)
        done = answer[2] or answer[3]
    print(episode, flush=True)
