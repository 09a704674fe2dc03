"""RLOO (Ahmadian et al. 2024, arXiv 2402.14740): an episode against the mean of the others of its task."""

import torch
from torch import Tensor

from paw_train.algorithms.estimator import ADVANTAGES, UpdateView, estimator
from paw_train.algorithms.group_statistics import as_values, centred, episode_weights, in_form_of
from paw_train.losses.tensor_inputs import FloatArray, IdArray, as_codes


def rloo(returns: FloatArray, group_ids: IdArray) -> Tensor:
    """RLOO (Ahmadian et al. 2024): each episode against the mean of the *other* episodes of its
    group.

    `A_i = R_i - mean_{j != i} R_j`; the only episode of a group gets 0.

    Args:
        returns: [N] episode returns.
        group_ids: [N] rollout group of each episode.

    Returns:
        [N] advantages.

    Raises:
        ValueError: lengths differ, or a return is not finite.
    """
    values = as_values(returns, "returns")
    index = torch.tensor(as_codes(group_ids, "group_ids", len(values)), dtype=torch.long)
    differences, counts = centred(values, index)
    # R_i - mean of the others = n / (n - 1) * (R_i - mean of all)
    return in_form_of(differences * counts / (counts - 1).clamp(min=1), returns)


@ADVANTAGES.register("rloo")
@estimator(grouped=True, step_penalties=True)
def _rloo(update: UpdateView) -> Tensor:
    scores, episode = update.scores, update.episode
    share = episode_weights(episode)
    means = torch.zeros(len(update.group), dtype=scores.dtype)
    means.index_add_(0, episode, share * scores)
    # exactly the episode's advantage if all of its steps have the same score
    found = rloo(means, update.group)[episode] + (scores - means[episode])
    return torch.where(update.compared, found, 0.0)
