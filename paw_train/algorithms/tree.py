"""Advantages of branching rollouts: what a transition is worth against its siblings in the tree.

The transitions of a rollout group form a tree. Its root is the initial state of the group's task, whose
children are the first transitions of the group's episodes; a state from which several continuations
were sampled is a *branching state*, and the transitions that follow it are *siblings*. A *segment* is
what follows a branching state up to the next one, and shares one advantage.

All functions are pure, and take what precedes each transition as ``previous`` [N]: the number of the
transition before it, -1 at the beginning of an episode; a transition comes after its predecessor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from paw_train.algorithms.estimator import ADVANTAGES, UpdateView, estimator
from paw_train.algorithms.group_statistics import group_deviation
from paw_train.algorithms.grpo import grpo
from paw_train.losses.tensor_inputs import FloatArray, IdArray, as_codes, as_float, require_finite


class Tree:
    """The transitions of an update as trees, one for each rollout group.

    Args:
        previous: [N] number of the transition before each one, -1 at the beginning of an episode.
        group_ids: [N] rollout group of each transition: any integers or strings.

    Raises:
        ValueError: lengths differ, or a transition comes before its predecessor or is of another group.
    """

    def __init__(self, previous: Tensor | Sequence[int], group_ids: IdArray) -> None:
        self.previous: list[int] = torch.as_tensor(previous, dtype=torch.long).tolist()
        self.group = as_codes(group_ids, "group_ids", len(self.previous))
        for number, before in enumerate(self.previous):
            if not -1 <= before < number:
                raise ValueError(
                    f"`previous` of transition {number} is {before}; expected -1 or a number below it."
                )
            if before >= 0 and self.group[before] != self.group[number]:
                raise ValueError(f"transition {number} is of another group than its predecessor.")
        children: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, before in enumerate(self.previous):
            children[self._state(number, before)].append(number)
        self._children = dict(children)

    def _state(self, number: int, before: int) -> tuple[int, int]:
        """The state that a transition starts from: after a transition, or the root of its group."""
        return (0, before) if before >= 0 else (1, self.group[number])

    def __len__(self) -> int:
        return len(self.previous)

    def siblings(self, number: int) -> list[int]:
        """The transitions from the same state, this one included."""
        return self._children[self._state(number, self.previous[number])]

    def children(self, number: int) -> list[int]:
        """The transitions from the state that this one leads to; none at the end of an episode."""
        return self._children.get((0, number), [])

    @property
    def weights(self) -> Tensor:
        """[N] float64: probability of each transition if a branching state's siblings are equally
        likely; the first transitions of a group weigh 1.

        With these weights the sum over a tree estimates the sum over as many independent episodes as
        the group began with: a branch counts by its share, a shared prefix once.
        """
        weights: list[float] = []
        for number, before in enumerate(self.previous):
            weights.append(1.0 if before < 0 else weights[before] / len(self.siblings(number)))
        return torch.tensor(weights, dtype=torch.float64)

    @property
    def segments(self) -> list[int]:
        """[N] the first transition of each one's segment."""
        first: list[int] = []
        for number, before in enumerate(self.previous):
            alone = before >= 0 and len(self.siblings(number)) == 1
            first.append(first[before] if alone else number)
        return first

    def to_go(self, rewards: Sequence[float], gamma: float) -> list[float]:
        """[N] Monte-Carlo estimate of Q: the reward, and the mean over what was sampled afterwards.

        `Q(n) = r_n + gamma * V(n)`, with V(n) the mean of Q over the children of n, 0 if there are
        none.
        """
        values = [0.0] * len(self)
        for number in reversed(range(len(self))):
            following = [values[child] for child in self.children(number)]
            later = sum(following) / len(following) if following else 0.0
            values[number] = rewards[number] + gamma * later
        return values


def branch_grpo(
    rewards: FloatArray,
    previous: Tensor | Sequence[int],
    group_ids: IdArray,
    episode_ids: IdArray,
    omega: float = 1.0,
    normalize: bool = True,
) -> Tensor:
    """Episode-level advantages and, below branching states, leave-one-out advantages of siblings.

    `A = A_episode + omega * A_branch`. `A_episode` is GRPO's, of the mean return of the episodes that
    pass through the transition. `A_branch` compares the transition's segment with its siblings,
    `Q(segment) - mean of the others' Q`; a segment that begins at the root has none. This form
    is ours: Tree-GRPO (Ji et al. 2025, arXiv 2509.21240) adds the z-score within the tree to the one over
    the prompt's trees; the leave-one-out baseline is RLOO's. Nothing is discounted.

    Args:
        rewards: [N] reward of each transition, penalties included.
        previous: [N] see ``Tree``.
        group_ids: [N] rollout group of each transition.
        episode_ids: [N] episode that each transition belongs to; its last one ends the episode.
        omega: weight of the branch advantage.
        normalize: divide `A_episode` as ``grpo`` does, and differences below branching states by the
            standard deviation of the returns of all the group's episodes; False: neither.

    Returns:
        [N] float64 advantages. Without branching they are those of ``grpo``, bit for bit.

    Raises:
        ValueError: lengths differ, or a reward is not finite.
    """
    tree = Tree(previous, group_ids)
    reward = _rewards(rewards, len(tree))
    paths = _paths(tree, as_codes(episode_ids, "episode_ids", len(tree)))
    returns = _returns(paths, reward)
    through = _mean_returns(tree, paths, returns)
    root, groups = _roots(tree)
    at_root = through[[number for number, before in enumerate(tree.previous) if before < 0]]
    episode_level = grpo(at_root, groups, normalize)[root]
    branch_level = _leave_one_out(tree, tree.to_go(reward.tolist(), 1.0), below_root=True)
    # how the mean return moves on the way down from the root's first segments: 0 without branching
    below = through - at_root[root] + omega * branch_level
    if normalize:
        ends = [tree.group[path[-1]] for path in paths]
        deviation = dict(zip(ends, group_deviation(returns, ends).tolist(), strict=True))
        below = below / torch.tensor([deviation[group] for group in tree.group])
    return episode_level + below


def branch_rloo(
    rewards: FloatArray, previous: Tensor | Sequence[int], group_ids: IdArray, gamma: float = 1.0
) -> Tensor:
    """RLOO's advantage at every branching state, from Monte-Carlo continuations.

    `A = Q(segment) - V(state where it began)`. V is the mean over the other continuations of that
    state, so that it does not depend on the action it is subtracted from; at the root these are the
    other episodes of the group. A state with one continuation has no estimate, and the segment continues.
    VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679) has values at every step and no leave-one-out.

    Args:
        rewards: [N] reward of each transition, penalties included.
        previous: [N] see ``Tree``.
        group_ids: [N] rollout group of each transition.
        gamma: discount in [0, 1].

    Returns:
        [N] advantages; 0 where a group has a single episode that never branched.

    Raises:
        ValueError: lengths differ, or a reward is not finite.
    """
    tree = Tree(previous, group_ids)
    reward = _rewards(rewards, len(tree))
    return _leave_one_out(tree, tree.to_go(reward.tolist(), gamma), below_root=False)


def _rewards(rewards: FloatArray, count: int) -> Tensor:
    values = as_float(rewards, "rewards", ndim=1).detach().to("cpu", torch.float64)
    require_finite(values, "rewards")
    if len(values) != count:
        raise ValueError(f"`rewards` must have {count} entries, got {len(values)}.")
    return values


def _leave_one_out(tree: Tree, to_go: list[float], below_root: bool) -> Tensor:
    """[N] Q of each transition's segment minus the mean of its siblings' (RLOO's baseline).

    Args:
        tree: N transitions.
        to_go: [N] Q.
        below_root: leave out the segments that begin at the root: they get 0.
    """
    advantages: list[float] = []
    for number, first in enumerate(tree.segments):
        if first != number:
            advantages.append(advantages[first])
            continue
        others = [to_go[n] for n in tree.siblings(first) if n != first]
        compared = others and not (below_root and tree.previous[first] < 0)
        advantages.append(to_go[first] - sum(others) / len(others) if compared else 0.0)
    return torch.tensor(advantages, dtype=torch.float64)


def _paths(tree: Tree, episodes: list[int]) -> list[list[int]]:
    """[E] the transitions of each episode from its beginning, shared ones included."""
    last = {episode: number for number, episode in enumerate(episodes)}
    paths = []
    for number in last.values():
        path = [number]
        while tree.previous[path[-1]] >= 0:
            path.append(tree.previous[path[-1]])
        paths.append(path[::-1])
    return paths


def _returns(paths: list[list[int]], rewards: Tensor) -> Tensor:
    """[E] returns, each summed in the order of its path, as they are without branching."""
    of = torch.tensor([e for e, path in enumerate(paths) for _ in path])
    steps = torch.tensor([number for path in paths for number in path])
    return torch.zeros(len(paths), dtype=rewards.dtype).index_add_(0, of, rewards[steps])


def _mean_returns(tree: Tree, paths: list[list[int]], returns: Tensor) -> Tensor:
    """[N] mean return of the episodes through each transition, each weighted by its share."""
    of = torch.tensor([e for e, path in enumerate(paths) for _ in path])
    steps = torch.tensor([number for path in paths for number in path])
    share = tree.weights[[path[-1] for path in paths]][of]
    sums = torch.zeros(len(tree), dtype=returns.dtype).index_add_(0, steps, share * returns[of])
    return sums / torch.zeros_like(sums).index_add_(0, steps, share)


def _roots(tree: Tree) -> tuple[list[int], list[int]]:
    """([N] which of the R first transitions each one descends from, [R] their groups)."""
    root: list[int] = []
    groups: list[int] = []
    for number, before in enumerate(tree.previous):
        root.append(root[before] if before >= 0 else len(groups))
        if before < 0:
            groups.append(tree.group[number])
    return root, groups


@ADVANTAGES.register("branch_grpo")
@estimator(grouped=True, branches=True)
def _branch_grpo(update: UpdateView) -> Tensor:
    groups = update.group[update.episode]
    assert update.previous is not None  # branches
    found = branch_grpo(
        update.rewards,
        update.previous,
        groups,
        update.episode,
        normalize=update.by_group,
    )
    return update.scaled(found)


@ADVANTAGES.register("branch_rloo")
@estimator(grouped=True, branches=True)
def _branch_rloo(update: UpdateView) -> Tensor:
    assert update.previous is not None  # branches
    groups = update.group[update.episode]
    return branch_rloo(update.rewards, update.previous, groups, update.gamma)
