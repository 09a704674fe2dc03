"""Means and deviations over groups, which every estimator of advantages uses.

Every "mean and std" means the same: `(x - mean) / (std + EPS)` with the sample standard deviation (n - 1)
over the members of the group; a group of one member gets 0, and so does a group of equal values. If an
entry is one step of an episode, ``weights`` say what it counts for in its group. Everything is computed in
float64 without gradients, and returned in the type (float32 for lists) and on the device of what was given.
"""

import torch
from torch import Tensor

from paw_train.losses.tensor_inputs import FloatArray, as_float, require_finite

EPS = 1e-6
"""added to the standard deviation, never under the root (the GRPO implementation of verl)"""


def step_scores(rewards: Tensor, penalties: Tensor, episodes: Tensor) -> Tensor:
    """[S] what each step is judged by when a penalty is charged to its own step.

    The return of its episode without penalties, plus its own penalty: the score of a step in GiGPO's
    published code.

    Args:
        rewards: [S] rewards of the steps, penalties included.
        penalties: [S] the part of each that is a penalty.
        episodes: [S] episode of each step, 0..E-1.
    """
    totals = torch.zeros(group_count(episodes), dtype=rewards.dtype)
    return totals.index_add_(0, episodes, rewards - penalties)[episodes] + penalties


def episode_weights(episodes: Tensor) -> Tensor:
    """[S] float64, one over the number of steps of each step's episode (0..E-1)."""
    return 1 / torch.bincount(episodes)[episodes].double()


def as_values(values: FloatArray, name: str) -> Tensor:
    tensor = as_float(values, name, ndim=1).detach().to("cpu", torch.float64)
    require_finite(tensor, name)
    return tensor


def group_count(index: Tensor) -> int:
    """The number of groups that are numbered from 0."""
    return int(index.max()) + 1 if len(index) else 0


def in_form_of(result: Tensor, source: FloatArray) -> Tensor:
    reference = torch.as_tensor(source)
    dtype = reference.dtype if reference.dtype.is_floating_point else torch.float32
    return result.to(reference.device, dtype)


def require_share(value: float, name: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` must be in [0, 1], got {value}.")


def centred(values: Tensor, index: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(`values` minus the mean of their group, summed weights of their group), both [N]."""
    groups, weight = group_count(index), torch.ones_like(values) if weights is None else weights
    counts = torch.zeros(groups, dtype=values.dtype).index_add_(0, index, weight)
    # Measured from the group's smallest value, so that equal values give exactly 0: rounding in the
    # mean, divided by EPS, would otherwise become a visible advantage.
    lowest = torch.full((groups,), torch.inf, dtype=values.dtype)
    lowest.scatter_reduce_(0, index, values, reduce="amin")
    shifted = values - lowest[index]
    means = torch.zeros_like(lowest).index_add_(0, index, weight * shifted) / counts
    return shifted - means[index], counts[index]


def standardized(
    values: Tensor, groups: list[int], divide: bool, weights: FloatArray | None = None
) -> Tensor:
    """[N] `(x - mean) / (std + EPS)` in the group of each value; without the division if not `divide`."""
    if weights is not None:
        weights = as_values(weights, "weights")
        if len(weights) != len(values) or (weights <= 0).any():
            raise ValueError(f"`weights` must be {len(values)} numbers above 0, got {weights}.")
    index = torch.tensor(groups, dtype=torch.long)
    differences, counts = centred(values, index, weights)
    if not divide:
        return differences
    return differences / deviation(differences, counts, index, weights)


def deviation(
    differences: Tensor, counts: Tensor, index: Tensor, weights: Tensor | None = None
) -> Tensor:
    """[N] `std + EPS` of each value's group, from what `centred` returns."""
    squares = torch.zeros(group_count(index), dtype=differences.dtype)
    weight = torch.ones_like(differences) if weights is None else weights
    squares.index_add_(0, index, weight * differences.square())
    return (squares[index] / (counts - 1).clamp(min=1)).sqrt() + EPS
