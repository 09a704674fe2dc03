"""Agents that sample several times: a vote over the actions of a step, or the best episode of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.agents.dialogue import ShorteningPolicy
from paw_train.agents.direct import PolicyAgent, require_reasoning
from paw_train.agents.protocol import AGENTS, Agent, Answer, Responder, TurnAgent, View, note
from paw_train.rollouts.policy import Request, Response, response_seed
from paw_train.settings.base import Group, Positive


def _require_chance(agent: Agent, count: int) -> None:
    if count > 1 and agent.rollout.temperature == 0:
        raise ValueError(
            f"At temperature 0 all that {agent.name!r} samples is alike, so it has no choice: set "
            "evaluation.temperature=0.7, for example."
        )


class SelfConsistencySettings(Group):
    """Settings of ``self_consistency``."""

    samples: Positive = 5
    """answers a step"""


@AGENTS.register("self_consistency")
class SelfConsistencyAgent(TurnAgent):
    """Samples k answers at each step and takes the action that most of them name.

    Only actions that the environment would accept are voted on; if no answer names one, the others are.
    Of equally frequent ones, the first sampled wins. Source: Wang et al., arXiv 2203.11171, applied to the
    single actions of an episode.
    """

    name = "self_consistency"
    Settings = SelfConsistencySettings

    def check(self) -> None:
        _require_chance(self, self.settings.samples)

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        require_reasoning(template, self.name)
        return {"mode": "window"}

    def responder(self, seed: int) -> Responder:
        count = int(self.settings.samples)

        def answer(views: Sequence[View]) -> list[Answer]:
            requests = []
            for view in views:
                messages = [{"role": "user", "content": view.prompt}]
                for i in range(count):
                    name = f"{view.episode}/{i}"
                    number = response_seed(seed, name, len(view.history))
                    requests.append(Request(name, number, messages))
            sampling = self.rollout.sampling(views[0].template.closing_tags)
            tasks = {f"{v.episode}/{i}": v.instruction for v in views for i in range(count)}
            policy = ShorteningPolicy(self.policy, self.rollout, tasks.__getitem__)
            given = policy.session(sampling, False).respond(requests)
            answers = [_vote(v, given[i * count : (i + 1) * count]) for i, v in enumerate(views)]
            for view, voted in zip(views, answers, strict=True):
                voted.notes |= policy.left_out(f"{view.episode}/0")
            return answers

        return answer


def _vote(view: View, responses: Sequence[Response]) -> Answer:
    """The first response that names the winning action, with the votes in its notes.

    A request that failed fails the episode: the vote of the others could have another winner, and the
    result would depend on the endpoint's failures. Such episodes are run again with the next call.
    """
    error = next((r.error for r in responses if r.error is not None), None)
    if error is not None:
        return Answer(error=error)
    texts = [r.text for r in responses]
    actions = [view.template.read_response(text).action for text in texts]
    accepted = [action for action in actions if view.accepts(action)]
    votes = Counter(accepted or [action for action in actions if action])
    notes = {"votes": dict(votes), "voters": len(texts)}
    if not votes:
        return Answer(texts[0], notes)
    # a Counter keeps the order of first appearance, and max the first of equals
    winner = max(votes, key=lambda action: votes[action])
    return Answer(texts[actions.index(winner)], notes)


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
        _require_chance(self, self.settings.n)

    @property
    def group_size(self) -> int:
        return int(self.settings.n)

    def choose(self, group: Sequence[Episode]) -> Episode:
        """The episode with the highest score, the first of equals; if one failed by an error, that one."""
        failed = next((e for e in group if e.error is not None), None)
        if failed is not None:
            return failed
        index = max(range(len(group)), key=lambda i: (group[i].score, -i))
        best = group[index]
        note(best, chosen=index, scores=[e.score for e in group])
        return best
