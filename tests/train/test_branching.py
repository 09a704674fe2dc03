"""Branching rollouts: trees of episodes from exact states, by seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rows import transitions

from paw_gym import Outcome, Task
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import EnvPool
from paw_gym.wrappers import AgentInterface
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.branching import branch_points, branching_rollout
from paw_train.rollouts.policy import Request, response_seed
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.settings import BranchingSettings
from paw_train.settings.rollout import RolloutSettings

modes = pytest.mark.parametrize("mode", ["window", "conversation"])


def noise(task: Any, rng: Any) -> Any:
    for _ in range(int(rng.integers(2, 5))):
        yield Outcome(f"noise {rng.integers(100)}", reward=float(rng.integers(2)))
    yield Outcome("end", terminated=True)


def tree(policy: Any, mode: str, seed: int = 1, **branching: Any) -> list[Trajectory]:
    """Of two episodes of one task; without branching a plain rollout."""
    tasks = [Task("0", "listen")]
    pool = EnvPool(lambda: AgentInterface(GeneratorEnv(noise, tasks, 9), mode=mode), 1, 2, seed=2)
    settings = RolloutSettings(max_response_tokens=4, branching=BranchingSettings(**branching))
    how = branching_rollout if branching else rollout
    return how(policy, pool, settings, torch.Generator().manual_seed(seed))


def record(trajectories: list[Trajectory]) -> list[Any]:
    return [(t.episode.to_dict(), [row.ids for row in t.rows], t.offered) for t in trajectories]


@modes
def test_one_branch_for_each_state_is_a_plain_rollout(policy: LocalPolicy, mode: str) -> None:
    assert record(tree(policy, mode, points=3)) == record(tree(policy, mode))


@modes
def test_branches_continue_their_parents(policy: LocalPolicy, mode: str) -> None:
    trajectories = tree(policy, mode, branches=3, points=2)
    by_name = {t.episode.episode_id: t for t in trajectories}
    roots = [t for t in trajectories if t.episode.parent is None]
    assert len(roots) == 2
    children = {name: [t for t in trajectories if t.episode.parent == name] for name in by_name}
    for t in trajectories:
        points = min(2, len(t.own)) if t.episode.parent is None else 0
        assert len(children[t.episode.episode_id]) == 2 * points
        assert t.episode.error is None
        assert t.episode.finished
        assert len(transitions(t.rows)) == len(t.own) == len(t.offered)
        if t.episode.parent is None:
            continue
        parent, shared = by_name[t.episode.parent], t.episode.shared_steps
        assert parent.episode.transitions[:shared] == t.episode.transitions[:shared]
        assert parent.episode.shared_steps <= shared
        assert t.own[0].prompt == parent.episode.transitions[shared].prompt
        # the environment's randomness is shared: the texts do not depend on the responses
        texts = [[s.next_observation for s in e.episode.transitions] for e in (t, parent)]
        assert texts[0] == texts[1]
    branches = [t for t in trajectories if t.episode.parent is not None]
    forks = [(t.own[0], by_name[t.episode.parent or ""].episode) for t in branches]
    differ = [own.response != parent.transitions[own.step].response for own, parent in forks]
    assert sum(differ) > len(branches) / 2


@modes
def test_a_branch_answers_as_it_would_alone(policy: LocalPolicy, mode: str) -> None:
    """Its context is complete, whatever of it was computed for its parent."""
    settings = RolloutSettings(max_response_tokens=4)
    base = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(1)))
    for t in tree(policy, mode, branches=2, points=2):
        found = transitions(t.rows)
        for number, (row, action, _) in enumerate(found, start=t.episode.shared_steps):
            name, context = t.episode.episode_id, row.ids[: action[0]]
            request = Request(name, response_seed(base, name, number), [], context)
            session = policy.session(settings.sampling(("</action>",)), growing=False)
            (alone,) = session.respond([request])
            assert alone.ids == [row.ids[i] for i in action]
            assert alone.text == t.episode.transitions[number].response
            prompt = policy.chat.content(t.episode.transitions[number].prompt)
            assert context[-len(prompt) - len(policy.chat.ask) :] == [*prompt, *policy.chat.ask]


@modes
def test_equal_seeds_give_equal_trees(policy: LocalPolicy, mode: str) -> None:
    wanted = {"branches": 2, "points": 1}
    first = record(tree(policy, mode, **wanted))
    assert first == record(tree(policy, mode, **wanted))
    assert first != record(tree(policy, mode, seed=3, **wanted))


def test_the_most_uncertain_actions_branch() -> None:
    # -p log p of one token is largest at p = 1/e, log p = -1
    logprobs = [[-0.01], [-1.0], [-5.0], [-0.9]]
    assert branch_points(logprobs, 2) == [1, 3]
    assert branch_points(logprobs, 9) == [1, 3, 2, 0]
