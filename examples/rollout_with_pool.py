"""Many episodes at once: 4 games x 3 episodes, stepped as a batch until all have ended.

python examples/rollout_with_pool.py
"""

from __future__ import annotations

import random
from collections import defaultdict

from paw_gym import EnvPool


def main() -> None:
    """Picks random admissible actions where a model would be called."""
    rng = random.Random(0)
    pool = EnvPool("paw_gym/ALFWorld-v0", groups=4, group_size=3, seed=0, max_steps=15)
    running = pool.reset()
    steps = 0
    while running:
        actions = [rng.choice(slot.info["admissible_actions"]) for slot in running]
        responses = [f"<think>at random</think><action>{action}</action>" for action in actions]
        steps += len(responses)
        running = pool.step(responses)

    groups = defaultdict(list)
    for episode in pool.episodes:
        groups[episode.group].append(episode)
    for group, episodes in groups.items():
        returns = ", ".join(f"{episode.total_reward:.1f}" for episode in episodes)
        print(f"group {group}: {episodes[0].instruction}\n    returns {returns}")
    print(f"{steps} transitions in {len(pool.episodes)} episodes")
    pool.close()


if __name__ == "__main__":
    main()
