"""REINFORCE++ (Hu 2025, arXiv 2501.03262): returns standardised over the whole update."""

from torch import Tensor

from paw_train.algorithms.estimator import ADVANTAGES, UpdateView, estimator
from paw_train.algorithms.group_statistics import as_values, in_form_of, standardized
from paw_train.losses.tensor_inputs import FloatArray, IdArray, as_codes


def reinforce_pp(
    returns: FloatArray, group_ids: IdArray | None = None, weights: FloatArray | None = None
) -> Tensor:
    """REINFORCE++ (Hu 2025): returns standardised over the whole batch instead of the group.

    Args:
        returns: [N] episode returns.
        group_ids: [N] rollout groups; when given, each group's mean is subtracted before the batch
            is standardised (the paper's "baseline" variant for grouped rollouts).
        weights: as in `grpo`, for both means and the deviation.

    Returns:
        [N] advantages.

    Raises:
        ValueError: lengths differ, a return is not finite, or a weight is not above 0.
    """
    values = as_values(returns, "returns")
    if group_ids is not None:
        codes = as_codes(group_ids, "group_ids", len(values))
        values = standardized(values, codes, divide=False, weights=weights)
    return in_form_of(standardized(values, [0] * len(values), True, weights), returns)


@ADVANTAGES.register("reinforce_pp")
@estimator(step_penalties=True)
def _reinforce_pp(update: UpdateView) -> Tensor:
    groups = update.group[update.episode] if update.settings.group_baseline else None
    return reinforce_pp(update.scores, groups, update.weights)
