"""The loop learns: a policy from nothing finds out which word pays, and what the world answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_policies import SMALL, word_policy

from paw_gym import Outcome, Task
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import EnvPool
from paw_gym.wrappers import AgentInterface
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.losses.objective import ObjectiveSettings
from paw_train.rollouts.rollout import rollout
from paw_train.settings import AlgorithmSettings, OptimizerSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings

COLOURS = ("red", "green", "blue")


def _play(task, rng):  # type: ignore[no-untyped-def]
    """Two turns; the second answer pays when it is green. What is seen differs by chance."""
    yield Outcome("look.")
    answer = yield Outcome(f"see {COLOURS[int(rng.integers(3))]}.")
    won = answer == "green"
    yield Outcome("good." if won else "bad.", terminated=True, success=won)


class _FreeForm(AgentInterface):
    """Takes the response itself as the action: tags are beside the point here."""

    def step(self, action: str):  # type: ignore[no-untyped-def]
        return super().step(f"<action>{action.split()[0] if action.split() else ''}</action>")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "minibatches"), [("conversation", 1), ("window", 2)])
def test_reward_rises_and_the_world_becomes_predictable(mode: str, minibatches: int) -> None:
    words = [f"look. see good. bad. {' '.join(COLOURS)}\ntask: name it.", *COLOURS, "see"]
    policy = word_policy(words, **SMALL)
    pool = EnvPool(
        lambda: _FreeForm(
            GeneratorEnv(_play, [Task("0", "name it.")], 3),
            mode=mode, template="compact", success_reward=1.0, invalid_penalty=0.0,
        ),
        groups=4, group_size=16, seed=0,
    )  # fmt: skip
    objective = ObjectiveSettings(kl_coef=0.0, log_observations=True)
    world_model = WorldModelSettings(loss="ce", alpha=1.0)
    updater = Updater(
        policy,
        None,
        OptimizerSettings(lr=3e-3, minibatches=minibatches),
        objective,
        world_model,
        1.0,
        60,
    )
    settings = RolloutSettings(max_response_tokens=1)
    rewards, nlls = [], []
    for update in range(60):
        played = rollout(policy, pool, settings, torch.Generator().manual_seed(update))
        rewards.append(np.mean([t.episode.total_reward for t in played]))
        experience = prepare(collect(played), AlgorithmSettings(), objective, world_model, 1.0)
        nlls.append(updater.step(experience.rows, update, update)["obs_nll"])
    assert np.mean(rewards[:5]) < 0.3
    assert np.mean(rewards[-5:]) > 0.8
    assert np.mean(nlls[-5:]) < 0.5 * np.mean(nlls[:5])
