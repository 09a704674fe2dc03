"""Best of n: several episodes of each task, of which the environment's score chooses one."""

from __future__ import annotations

from collections.abc import Sequence

from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_train.agents.direct import PolicyAgent
from paw_train.agents.protocol import AGENTS, Done, note
from paw_train.settings.base import Group, Positive


class BestOfNSettings(Group):
    """Settings of ``best_of_n``."""

    n: Positive = 4
    """episodes of each task"""


@AGENTS.register("best_of_n")
class BestOfNAgent(PolicyAgent):
    """Runs n episodes of each task and keeps the one with the highest score.

    The choice uses the environment's own score, which is not available in deployment: the result is an
    upper bound for choosing among n attempts.
    """

    name = "best_of_n"
    Settings = BestOfNSettings
    privileged = "score"

    def check(self) -> None:
        if self.settings.n > 1 and self.rollout.temperature == 0:
            raise ValueError(
                "At temperature 0 all episodes of a task are alike, so best_of_n has no choice: set "
                "evaluation.temperature=0.7, for example."
            )

    @property
    def group_size(self) -> int:
        return int(self.settings.n)

    def run(self, pool: EnvPool, task_ids: Sequence[str], seed: int, done: Done) -> None:
        self._run_groups(pool, task_ids, seed, lambda group: done(_best(group)))


def _best(group: Sequence[Episode]) -> Episode:
    """The episode with the highest score, the first of equals.

    If one failed by an error, so does the group: the best of fewer attempts is not the best of n.
    """
    failed = next((e for e in group if e.error is not None), None)
    if failed is not None:
        return failed
    index = max(range(len(group)), key=lambda i: (group[i].score, -i))
    best = group[index]
    note(best, chosen=index, scores=[e.score for e in group])
    return best
