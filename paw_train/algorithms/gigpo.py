"""GiGPO (Feng et al. 2025, arXiv 2505.10978): GRPO, and a comparison of the steps taken from one state."""

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, Literal

import torch
from rapidfuzz.distance import LCSseq
from torch import Tensor

from paw_train.algorithms.estimator import ADVANTAGES, UpdateView, estimator
from paw_train.algorithms.group_statistics import (
    as_values,
    episode_weights,
    in_form_of,
    require_share,
    standardized,
    step_scores,
)
from paw_train.losses.tensor_inputs import FloatArray, IdArray, as_codes


def gigpo(
    step_rewards: FloatArray,
    episode_ids: IdArray,
    step_index: FloatArray,
    group_ids: IdArray,
    anchors: Sequence[str],
    gamma: float = 0.95,
    omega: float = 1.0,
    normalize: bool = True,
    similarity: float | None = None,
    statistics: Literal["episode", "step"] = "episode",
    autojunk: bool = False,
    penalties: FloatArray | None = None,
) -> Tensor:
    """GiGPO (Feng et al. 2025): the episode's advantage plus an advantage among steps taken from
    the same state.

    `A = A_episode + omega * A_step`. `A_episode` is `grpo` on the episode returns. `A_step`
    collects all steps of a rollout group that share an anchor state and standardises their
    discounted return-to-go `sum_{k >= t} gamma^(k - t) r_k` among them; a state met once gets 0.

    Args:
        step_rewards: [S] reward of each step, penalties included; their sum is the episode's
            return.
        episode_ids: [S] episode of each step; need only be unique inside the rollout group.
        step_index: [S] orders the steps inside an episode; consecutive rows are one step apart.
        group_ids: [S] rollout group of each step.
        anchors: [S] anchor states: the raw current observation, not the rendered prompt.
        gamma: discount of the return-to-go, in [0, 1].
        omega: weight of the step advantage.
        normalize: False leaves both divisions by a standard deviation out.
        similarity: None: anchors match when equal. Otherwise a threshold in (0, 1] on difflib's
            ratio, 0.9 for search pages; see `cluster_anchors`.
        statistics: `episode`: `A_episode` takes mean and deviation over episodes; `step`: over the steps
            of the group, so that an episode counts as often as it has steps (the authors' code).
        autojunk: difflib's own heuristic for long texts, as in the authors' code.
        penalties: [S] the part of each reward that is charged to its own step alone, as in the authors'
            code: it is left out of the other steps' episode return and return-to-go. None: no penalties.

    Returns:
        [S] advantages.

    Raises:
        ValueError: lengths differ, a reward is not finite, gamma or similarity is out of range, or
            an episode has the same step index twice.
    """
    rewards = as_values(step_rewards, "step_rewards")
    require_share(gamma, "gamma")
    if statistics not in ("episode", "step"):
        raise ValueError(f"`statistics` is episode or step, got {statistics!r}.")
    size = len(rewards)
    groups = as_codes(group_ids, "group_ids", size)
    names = as_codes(episode_ids, "episode_ids", size)
    episodes = as_codes(list(zip(groups, names, strict=True)), "episode_ids", size)
    if len(anchors) != size:
        raise ValueError(f"`anchors` must have {size} entries, one per row; got {len(anchors)}.")

    own = torch.zeros_like(rewards) if penalties is None else as_values(penalties, "penalties")
    if len(own) != size:
        raise ValueError(f"`penalties` must have {size} entries, one per row; got {len(own)}.")
    index = torch.tensor(episodes, dtype=torch.long)
    weights = episode_weights(index) if statistics == "episode" else None
    episode_advantage = standardized(step_scores(rewards, own, index), groups, normalize, weights)
    # an episode that is alone in its group is compared with nothing
    members = Counter(dict(zip(episodes, groups, strict=True)).values())
    episode_advantage *= torch.tensor([members[group] > 1 for group in groups])
    steps = step_index.tolist() if hasattr(step_index, "tolist") else list(step_index)
    to_go = _returns_to_go(rewards - own, _episode_rows(episodes, steps), gamma) + own
    states = _anchor_groups(anchors, groups, similarity, autojunk)
    step_advantage = standardized(to_go, states, normalize)
    return in_form_of(episode_advantage + omega * step_advantage, step_rewards)


def _episode_rows(episodes: list[int], steps: list[Any]) -> list[list[int]]:
    """Row numbers of each episode in the order of its steps."""
    if len(steps) != len(episodes):
        raise ValueError(f"`step_index` must have {len(episodes)} entries, got {len(steps)}.")
    rows: dict[int, list[int]] = {}
    for row, episode in enumerate(episodes):
        rows.setdefault(episode, []).append(row)
    for members in rows.values():
        members.sort(key=lambda row: steps[row])
        for earlier, later in pairwise(members):
            if steps[earlier] == steps[later]:
                raise ValueError(
                    f"rows {earlier} and {later} are both step {steps[later]} of one episode; "
                    "`episode_ids` must differ between the episodes of a rollout group."
                )
    return list(rows.values())


def _returns_to_go(rewards: Tensor, episodes: list[list[int]], gamma: float) -> Tensor:
    to_go = rewards.tolist()
    for rows in episodes:
        for later, earlier in pairwise(reversed(rows)):
            to_go[earlier] += gamma * to_go[later]
    return torch.tensor(to_go, dtype=rewards.dtype)


def _anchor_groups(
    anchors: Sequence[str], groups: list[int], similarity: float | None, autojunk: bool
) -> list[int]:
    """Number the (rollout group, anchor state) pairs of the rows: [S]."""
    pairs = [(0, 0)] * len(groups)
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    for group, members in rows.items():
        clusters = cluster_anchors([anchors[row] for row in members], similarity, autojunk)
        for row, cluster in zip(members, clusters, strict=True):
            pairs[row] = (group, cluster)
    return as_codes(pairs, "anchors", len(groups))


def cluster_anchors(
    anchors: Sequence[str], similarity: float | None = None, autojunk: bool = False
) -> list[int]:
    """Number the anchor states so that equal (or similar) ones share a number.

    Args:
        anchors: [S] raw observations of one rollout group.
        similarity: None for exact equality; otherwise a threshold in (0, 1]: a text joins the first
            cluster whose *first* member has a difflib ratio >= threshold with it, and opens a new
            cluster when there is none. Similarity is not transitive, so which texts end up together can
            depend on their order.
        autojunk: see `is_similar`.

    Returns:
        [S] cluster numbers 0, 1, ... in order of first appearance.

    Raises:
        ValueError: `similarity` is outside (0, 1].
    """
    if similarity is not None and not 0.0 < similarity <= 1.0:
        raise ValueError(f"`similarity` must be None or in (0, 1], got {similarity}.")
    known: dict[str, int] = {}
    representatives: list[str] = []
    for text in anchors:
        if text in known:
            continue
        match = len(representatives)
        for number, other in enumerate(representatives if similarity else ()):
            if is_similar(text, other, similarity or 1.0, autojunk):
                match = number
                break
        else:
            representatives.append(text)
        known[text] = match
    return [known[text] for text in anchors]


def is_similar(text: str, other: str, threshold: float, autojunk: bool = False) -> bool:
    """True if difflib's ratio of two texts reaches `threshold`; cheap bounds are tried first.

    `autojunk` is off by default: with it, which is difflib's own default and that of GiGPO's published
    code, every frequent character of a text of 200 characters or more is ignored, and two search pages
    that differ by one character score near 0.
    """
    total = len(text) + len(other)
    if text == other:
        return True
    if 2 * min(len(text), len(other)) < threshold * total:
        return False
    if 2 * LCSseq.similarity(text, other) < threshold * total:
        return False
    return SequenceMatcher(None, text, other, autojunk=autojunk).ratio() >= threshold


@ADVANTAGES.register("gigpo")
@estimator(grouped=True, default_gamma=0.95, step_penalties=True)
def _gigpo(update: UpdateView) -> Tensor:
    settings = update.settings
    found = gigpo(
        update.rewards,
        update.episode,
        update.step,
        update.group[update.episode],
        update.anchors,
        update.gamma,
        normalize=update.by_group,
        similarity=settings.similarity,
        statistics=settings.statistics,
        autojunk=True,  # difflib's default, and so the authors' code
        penalties=update.penalties,
    )
    return update.scaled(found)
