"""GRPO (Shao et al. 2024, arXiv 2402.03300): an episode against the others of its task.

Dr.GRPO (Liu et al. 2025, arXiv 2503.20783) is ``normalize=False`` with the ``fixed-length`` aggregation of
``paw_train.losses.objective``; DAPO's clip-higher is a setting there.
"""

import torch
from torch import Tensor

from paw_train.algorithms.estimator import ADVANTAGES, UpdateView, estimator
from paw_train.algorithms.group_statistics import as_values, in_form_of, standardized
from paw_train.losses.tensor_inputs import FloatArray, IdArray, as_codes


def grpo(
    returns: FloatArray,
    group_ids: IdArray,
    normalize: bool = True,
    weights: FloatArray | None = None,
) -> Tensor:
    """GRPO (Shao et al. 2024): each episode against the episodes of its own task.

    `A = (R - mean_g) / (std_g + EPS)`, statistics over episodes, not over steps.

    Args:
        returns: [N] episode returns, the sum of all step rewards, penalties included.
        group_ids: [N] which rollout group the episode belongs to: any integers or strings.
        normalize: False leaves the division out, as Dr.GRPO (Liu et al. 2025) does.
        weights: [N] above 0, what each entry counts for in the mean and deviation of its group; None: 1.
            With an entry for each step, one over the length of its episode counts every episode once.

    Returns:
        [N] advantages, to be given to every step of the episode.

    Raises:
        ValueError: lengths differ, a return is not finite, or a weight is not above 0.
    """
    values = as_values(returns, "returns")
    codes = as_codes(group_ids, "group_ids", len(values))
    return in_form_of(standardized(values, codes, normalize, weights), returns)


@ADVANTAGES.register("grpo")
@estimator(grouped=True, step_penalties=True)
def _grpo(update: UpdateView) -> Tensor:
    groups = update.group[update.episode]
    found = grpo(update.scores, groups, update.by_group, update.weights)
    return torch.where(update.compared, update.scaled(found), 0.0)
