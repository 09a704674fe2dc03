"""PPO (Schulman et al. 2017, arXiv 1707.06347) with generalised advantage estimation (2016, 1506.02438).

The critic is in ``critic``, the clipped surrogate of all algorithms in ``paw_train.losses.objective``.
"""

import torch
from torch import Tensor

from paw_train.algorithms.estimator import ADVANTAGES, UpdateView, estimator
from paw_train.algorithms.group_statistics import as_values, in_form_of, require_share, standardized
from paw_train.losses.tensor_inputs import FloatArray


def gae(
    rewards: FloatArray,
    values: FloatArray,
    dones: FloatArray,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap: FloatArray | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016) over turns, for PPO with a critic.

    `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = delta_t + gamma lam A_{t+1}`, both ending at episode
    ends.

    Args:
        rewards: [S] step rewards of whole episodes laid end to end, each in time order.
        values: [S] the critic's value of each step's decision context.
        dones: [S] 1 on the last step of each episode, whether terminated or truncated.
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1]; 0 is the one-step error, 1 the full return minus the value.
        bootstrap: [S] value of the state after an episode's last step, read only where `dones` is
            1; give it for truncated episodes. None means 0 everywhere.

    Returns:
        (advantages [S], value targets [S] = advantages + values), neither normalised.

    Raises:
        ValueError: lengths differ, a number is not finite or out of range, or the last row is not
            `done`.
    """
    reward, value = as_values(rewards, "rewards"), as_values(values, "values")
    end = as_values(dones, "dones")
    after = torch.zeros_like(reward) if bootstrap is None else as_values(bootstrap, "bootstrap")
    for name, other in (("values", value), ("dones", end), ("bootstrap", after)):
        if len(other) != len(reward):
            raise ValueError(f"`{name}` must have {len(reward)} entries, got {len(other)}.")
    require_share(gamma, "gamma")
    require_share(lam, "lam")
    if len(end) and not end[-1]:
        raise ValueError("`dones` must be 1 on the last row: give whole episodes, laid end to end.")
    found, known, ends, beyond = (x.tolist() for x in (reward, value, end, after))
    for row in reversed(range(len(known))):
        following, later = beyond[row], 0.0
        if not ends[row]:
            following, later = known[row + 1], found[row + 1]
        delta = found[row] + gamma * following - known[row]
        found[row] = delta + gamma * lam * later
    advantages = torch.tensor(found, dtype=reward.dtype)
    return in_form_of(advantages, rewards), in_form_of(advantages + value, rewards)


@ADVANTAGES.register("ppo")
@estimator(needs_critic=True)
def _ppo(update: UpdateView) -> tuple[Tensor, Tensor]:
    """GAE by turn, or by action token."""
    critic = update.critic
    assert critic is not None  # needs_critic
    # an episode truncated by its step budget counts as ended: the budget is part of the task, and
    # nothing is bootstrapped
    advantages, targets = gae(
        critic.rewards, critic.values, critic.last.double(), update.gamma, update.settings.lam
    )
    if update.settings.normalize:
        advantages = standardized(advantages, [0] * len(advantages), divide=True)
    return advantages, targets
