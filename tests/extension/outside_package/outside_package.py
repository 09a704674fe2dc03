"""What somebody adds to the trainer from a package of their own: an estimator, a loss, an agent."""

import torch

from paw_train.agents import Answer, TurnAgent
from paw_train.algorithms.estimator import estimator


@estimator(grouped=True)
def beats_its_group(update):
    """+1, 0 or -1: whether the episode's return is above, at or below the mean of its group."""
    sums = torch.zeros(int(update.group.max()) + 1, dtype=torch.float64)
    means = sums.index_add(0, update.group, update.returns) / torch.bincount(update.group)
    return torch.sign(update.returns - means[update.group])[update.episode]


def squared_error(logprobs, settings):
    """`(1 - p)^2` of each token of an observation."""
    return (1 - logprobs.exp()).square()


class FirstChoice(TurnAgent):
    """Takes the first admissible action, always."""

    name = "first_choice"
    needs_policy = False

    def responder(self, seed):
        def answer(view):
            return Answer(view.template.response_for((view.admissible or ["look"])[0]))

        return lambda views: [answer(view) for view in views]
