"""The ends of the scale: the environment's own expert, and random actions."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable

from paw_gym.actions import fill_blank
from paw_train.baselines.turns import Answer, Responder, TurnAgent, View
from paw_train.rollouts.policy import response_seed


class ExpertAgent(TurnAgent):
    """The environment's own expert: what can be reached."""

    name = "expert"
    needs_policy = False
    privileged = "rules"

    def responder(self, seed: int) -> Responder:
        """See ``TurnAgent.responder``."""
        experts: dict[str, Callable[[], str]] = {}

        def answer(view: View) -> Answer:
            try:
                if view.episode not in experts:
                    experts[view.episode] = view.env.text_env.expert()
                return Answer(view.env.response_for(experts[view.episode]()))
            except StopIteration:  # it gives up: the task counts, and is not solved
                return Answer(stops=True)
            except Exception:  # whatever an expert raises fails its own episode only
                return Answer(error=traceback.format_exc())

        return lambda views: [answer(view) for view in views]


class RandomAgent(TurnAgent):
    """Uniform over the admissible actions; where none are listed, random words of the instruction."""

    name = "random"
    needs_policy = False

    def responder(self, seed: int) -> Responder:
        """See ``TurnAgent.responder``."""

        def answer(view: View) -> Answer:
            number = response_seed(seed, view.episode, len(view.history))
            return Answer(view.template.response_for(_any_action(view, random.Random(number))))

        return lambda views: [answer(view) for view in views]


def _any_action(view: View, rng: random.Random) -> str:
    listed = view.admissible or view.env.text_env.list_actions()
    if listed:
        return fill_blank(rng.choice(listed), _words(view, rng))
    if view.template.own_tags:
        tag = rng.choice(view.template.own_tags)
        return f"<{tag}>{_words(view, rng)}</{tag}>"
    return _words(view, rng)


def _words(view: View, rng: random.Random) -> str:
    words = view.instruction.split() or ["look"]
    return " ".join(rng.sample(words, min(len(words), rng.randint(1, 3))))
