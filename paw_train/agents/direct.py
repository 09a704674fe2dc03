"""Agents without a method: one response a step by the environment's own prompt, its expert, chance."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from paw_gym.internals.replies import fill_blank
from paw_gym.pool import EnvPool
from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.agents.dialogue import ShorteningPolicy
from paw_train.agents.protocol import AGENTS, Agent, Answer, Done, Responder, TurnAgent, View, note
from paw_train.rollouts.policy import response_seed
from paw_train.rollouts.rollout import rollout


@AGENTS.register("policy")
class PolicyAgent(Agent):
    """The policy as it is trained here: the configured prompt and mode, one response a step."""

    name = "policy"

    def choose(self, group: Sequence[Episode]) -> Episode:
        """The one that counts of the ``group_size`` episodes of a task."""
        return group[0]

    def run(self, pool: EnvPool, task_ids: Sequence[str], seed: int, done: Done) -> None:
        # the same seed for each batch: an episode's samples do not depend on the number of episodes
        base = response_seed(seed, "rollout", 0)
        reported: set[int] = set()

        def task(name: str) -> str:
            return next(e.instruction for e in pool.episodes if e.episode_id == name)

        policy = ShorteningPolicy(self.policy, self.rollout, task)

        def report(*_: int) -> None:
            groups: dict[int, list[Episode]] = {}
            for episode in pool.episodes:
                note(episode, **policy.left_out(episode.episode_id))
                groups.setdefault(episode.group, []).append(episode)
            for number in sorted(groups.keys() - reported - {slot.group for slot in pool.active}):
                reported.add(number)
                done(self.choose(groups[number]))

        rollout(policy, pool, self.rollout, base, task_ids, report, False)
        report()


@AGENTS.register("plain")
class PlainAgent(PolicyAgent):
    """Plain prompting: the environment's prompt asks for the action alone."""

    name = "plain"

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        return {"template": template.without_reasoning()}


@AGENTS.register("cot")
class ChainOfThoughtAgent(PolicyAgent):
    """Chain of thought: the environment's prompt asks to reason first, then to act.

    Source: Wei et al., arXiv 2201.11903, in its form without examples.
    """

    name = "cot"

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        require_reasoning(template, self.name)
        return {}


def require_reasoning(template: PromptTemplate, agent: str) -> None:
    if template.think_tag is None:
        raise ValueError(
            f"The agent {agent!r} reasons before it acts, but template {template.name!r} asks for no "
            "reasoning. Choose another (env.template=NAME), or the agent 'plain'."
        )


# --- the ends of the scale -----------------------------------------------------------------------------


@AGENTS.register("expert")
class ExpertAgent(TurnAgent):
    """The environment's own expert: what can be reached."""

    name = "expert"
    needs_policy = False
    privileged = "rules"

    def responder(self, seed: int) -> Responder:
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


@AGENTS.register("random")
class RandomAgent(TurnAgent):
    """Uniform over the admissible actions; if none are listed, random words of the instruction."""

    name = "random"
    needs_policy = False

    def responder(self, seed: int) -> Responder:

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
