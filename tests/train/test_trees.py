"""Advantages in trees of episodes: by hand, against a known MDP, and as GRPO's special case."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import made_up

from paw_train.algorithms import grpo
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.tree import Tree, branch_grpo, branch_rloo
from paw_train.losses.objective import ObjectiveSettings
from paw_train.settings import AlgorithmSettings
from paw_train.settings.world_model import WorldModelSettings

# Two episodes of one group. The first has three steps and branches before its second:
#   0 -> 1 -> 2        episode 0, returns 4
#     -> 4             episode 2, returns 1 (a branch, ends at once)
#   3                  episode 1, returns 2
PREVIOUS, GROUP, EPISODES = [-1, 0, 1, -1, 0], [0] * 5, [0, 0, 0, 1, 2]
REWARDS = [1.0, 0.0, 3.0, 2.0, 0.0]


def test_a_tree_by_hand() -> None:
    tree = Tree(PREVIOUS, GROUP)
    assert tree.weights.tolist() == [1.0, 0.5, 0.5, 1.0, 0.5]
    assert tree.segments == [0, 1, 1, 3, 4]
    assert tree.to_go(REWARDS, 1.0) == [2.5, 3.0, 3.0, 2.0, 0.0]
    assert tree.to_go(REWARDS, 0.5) == [1.0 + 0.5 * 0.75, 1.5, 3.0, 2.0, 0.0]
    # at the root: 2.5 against 2; below: 3 against 0
    assert branch_rloo(REWARDS, PREVIOUS, GROUP).tolist() == [0.5, 3.0, 3.0, -0.5, -3.0]


def test_branch_grpo_by_hand() -> None:
    found = branch_grpo(REWARDS, PREVIOUS, GROUP, EPISODES, omega=2.0, normalize=False)
    # the mean of the two trees is 2.25; episodes through 1 and 2 return 4, through 4 return 1
    expected = [0.25, 1.75 + 2 * 3.0, 1.75 + 2 * 3.0, -0.25, -1.25 - 2 * 3.0]
    assert found.tolist() == pytest.approx(expected)
    deviation = math.sqrt(((4 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (1 - 7 / 3) ** 2) / 2)
    normalised = branch_grpo(REWARDS, PREVIOUS, GROUP, EPISODES, omega=2.0)
    at_root = 0.25 / math.sqrt(0.125)
    below = (1.5 + 2 * 3.0) / deviation
    assert normalised.tolist() == pytest.approx(
        [at_root, at_root + below, at_root + below, -at_root, at_root - below], rel=1e-5
    )


def test_equal_returns_give_no_advantage() -> None:
    rewards = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.3], dtype=torch.float64)
    assert branch_grpo(rewards, PREVIOUS, GROUP, EPISODES).abs().max() < 1e-9


STEPS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.integers(0, 2), STEPS), min_size=1, max_size=8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_without_branches_it_is_grpo_to_the_bit(episodes: Any, normalize: bool) -> None:
    rewards = torch.tensor([r for _, steps in episodes for r in steps], dtype=torch.float64)
    owner = [e for e, (_, steps) in enumerate(episodes) for _ in steps]
    previous = [-1 if i == 0 or owner[i - 1] != e else i - 1 for i, e in enumerate(owner)]
    groups = torch.tensor([group for group, _ in episodes])
    returns = torch.zeros(len(episodes), dtype=torch.float64)
    returns.index_add_(0, torch.tensor(owner), rewards)
    plain = grpo(returns, groups, normalize)[owner]
    found = branch_grpo(rewards, previous, groups[owner], owner, 1.0, normalize)
    assert torch.equal(found, plain)


@pytest.mark.parametrize("normalize", [True, "batch"])
@pytest.mark.parametrize("weighting", ["token", "episode"])
def test_an_update_without_branches_is_grpos_to_the_bit(weighting: Any, normalize: Any) -> None:
    off, objective = WorldModelSettings.preset("off"), ObjectiveSettings(kl_coef=0.0)
    found = {}
    for name in ("grpo", "branch_grpo"):
        algorithm = AlgorithmSettings(name=name, normalize=normalize, weighting=weighting)
        found[name] = prepare(collect(made_up(False)), algorithm, objective, off, 10.0)
    assert torch.equal(found["grpo"].advantages, found["branch_grpo"].advantages)
    assert found["grpo"].metrics == found["branch_grpo"].metrics


@pytest.mark.parametrize(
    ("previous", "groups", "message"),
    [([-1, 1], [0, 0], "`previous` of transition 1 is 1"), ([-1, 0], [0, 1], "another group")],
)
def test_what_is_no_tree_is_refused(previous: Any, groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree(previous, groups)


HORIZON = 3
POLICY = {(t, s): [0.3 + 0.2 * s, 0.7 - 0.2 * s] for t in range(HORIZON) for s in (0, 1)}
"""probabilities of the two actions at each step and state"""


def moves(t: int, s: int, a: int) -> list[float]:
    """Probabilities of the next states."""
    p = 0.2 + 0.5 * a + 0.1 * s
    return [1 - p, p]


def gain(t: int, s: int, a: int) -> float:
    return (1.0 + t) * s - 0.5 * a + (2.0 if t == 2 and s == a == 1 else 0.0)


def q_value(t: int, s: int, a: int) -> float:
    later = sum(p * v_value(t + 1, n) for n, p in enumerate(moves(t, s, a)))
    return gain(t, s, a) + later


def v_value(t: int, s: int) -> float:
    if t == HORIZON:
        return 0.0
    return sum(p * q_value(t, s, a) for a, p in enumerate(POLICY[t, s]))


def true_gradient() -> dict[tuple[int, int, int], float]:
    """Of V(0, 0) in the policy's logits: d(t, s) pi(a) (Q - V)."""
    visits = {(0, 0): 1.0}
    for t in range(HORIZON - 1):
        for s in (0, 1):
            for a, p in enumerate(POLICY[t, s]):
                for n, q in enumerate(moves(t, s, a)):
                    key = (t + 1, n)
                    visits[key] = visits.get(key, 0.0) + visits.get((t, s), 0.0) * p * q
    return {
        (t, s, a): visits.get((t, s), 0.0) * p * (q_value(t, s, a) - v_value(t, s))
        for (t, s), ps in POLICY.items()
        for a, p in enumerate(ps)
    }


class Sampled(NamedTuple):
    """Trees of the MDP: two episodes a group, each with one branching state, and so on."""

    previous: list[int]
    group: list[int]
    rewards: list[float]
    where: list[tuple[int, int, int]]
    owner: list[int]


@pytest.fixture(scope="module")
def trees() -> Sampled:
    rng, episodes, steps = random.Random(0), itertools.count(), []

    def episode(group: int, t: int, s: int, before: int, level: int) -> None:
        """Samples on from a state, then branches at a random one of the states it passed."""
        passed, owner = [], next(episodes)
        for step in range(t, HORIZON):
            passed.append((step, s, before))
            a = rng.choices((0, 1), POLICY[step, s])[0]
            steps.append((before, group, gain(step, s, a), (step, s, a), owner))
            before = len(steps) - 1
            s = rng.choices((0, 1), moves(step, s, a))[0]
        if level:
            start = rng.choice(passed)
            for _ in range(2):
                episode(group, *start, level - 1)

    for group in range(1500):
        for _ in range(2):
            episode(group, 0, 0, -1, level=2)
    return Sampled(*map(list, zip(*steps, strict=True)))


def z_scores(samples: dict[Any, list[float]], expected: dict[Any, float]) -> list[float]:
    scores = []
    for key, values in samples.items():
        values_ = torch.tensor(values, dtype=torch.float64)
        error = float(values_.std()) / math.sqrt(len(values))
        scores.append((float(values_.mean()) - expected[key]) / max(error, 1e-12))
    return scores


def test_values_and_branch_advantages_are_those_of_the_mdp(trees: Sampled) -> None:
    tree = Tree(trees.previous, trees.group)
    to_go = tree.to_go(trees.rewards, 1.0)
    advantage = branch_rloo(trees.rewards, trees.previous, trees.group).tolist()
    q: dict[Any, list[float]] = defaultdict(list)
    a: dict[Any, list[float]] = defaultdict(list)
    for number, place in enumerate(trees.where):
        q[place].append(to_go[number])
        if len(tree.siblings(number)) > 1:
            a[place].append(advantage[number])
    assert len(q) >= 10
    assert max(map(abs, z_scores(q, {k: q_value(*k) for k in q}))) < 4.5
    expected = {k: q_value(*k) - v_value(*k[:2]) for k in a}
    assert max(map(abs, z_scores(a, expected))) < 4.5
    wrong = {k: value + 0.2 for k, value in expected.items()}
    assert max(map(abs, z_scores(a, wrong))) > 6, "the test can fail"


@pytest.mark.parametrize("estimator", ["branch_rloo", "branch term of branch_grpo"])
def test_the_weighted_gradient_is_the_policys(trees: Sampled, estimator: str) -> None:
    """Sum of weight * advantage * grad log pi over a group, against the theorem."""
    arguments = (trees.rewards, trees.previous, trees.group)
    tree = Tree(trees.previous, trees.group)
    advantage = branch_rloo(*arguments)
    below_root = torch.tensor([trees.previous[first] >= 0 for first in tree.segments])
    if estimator != "branch_rloo":
        with_it, without = (
            branch_grpo(*arguments, trees.owner, omega, normalize=False) for omega in (1.0, 0.0)
        )
        # at the root: against the other episodes of the group, as branch_rloo
        advantage = torch.where(below_root, with_it - without, advantage)
    # a branch from the initial state is one more episode of the group
    roots = Counter(g for g, b in zip(trees.group, trees.previous, strict=True) if b < 0)
    worth = (tree.weights * advantage).tolist()
    samples: dict[Any, list[float]] = {(t, s, a): [0.0] * 1500 for (t, s) in POLICY for a in (0, 1)}
    for number, (t, s, a) in enumerate(trees.where):
        for b, p in enumerate(POLICY[t, s]):
            grad = float(a == b) - p
            share = worth[number] / roots[trees.group[number]]
            samples[t, s, b][trees.group[number]] += share * grad
    expected = true_gradient()
    reached = {key: values for key, values in samples.items() if any(values)}
    assert max(map(abs, z_scores(reached, expected))) < 4.5
    assert sum(abs(g) for g in expected.values()) > 1.0
