"""Self-consistency: several answers at each step, and a vote over the actions in them.

Source: Wang et al., arXiv 2203.11171, applied to the single actions of an episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from paw_gym.prompts import PromptTemplate
from paw_train.agents.dialogue import ShorteningPolicy
from paw_train.agents.direct import require_reasoning
from paw_train.agents.protocol import AGENTS, Answer, Responder, TurnAgent, View
from paw_train.rollouts.policy import Request, Response, response_seed
from paw_train.settings.base import Group, Positive


class SelfConsistencySettings(Group):
    """Settings of ``self_consistency``."""

    samples: Positive = 5
    """answers a step"""


@AGENTS.register("self_consistency")
class SelfConsistencyAgent(TurnAgent):
    """Samples k answers at each step and takes the action that most of them name.

    Only actions that the environment would accept are voted on; if no answer names one, the others are.
    Of equally frequent ones, the first sampled wins.
    """

    name = "self_consistency"
    Settings = SelfConsistencySettings

    def check(self) -> None:
        if self.settings.samples > 1 and self.rollout.temperature == 0:
            raise ValueError(
                "At temperature 0 all answers are alike, so there is nothing to vote on: set "
                "evaluation.temperature=0.7, for example."
            )

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
            answers = [vote(v, given[i * count : (i + 1) * count]) for i, v in enumerate(views)]
            for view, voted in zip(views, answers, strict=True):
                voted.notes |= policy.left_out(f"{view.episode}/0")
            return answers

        return answer


def vote(view: View, responses: Sequence[Response]) -> Answer:
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
