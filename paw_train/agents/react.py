"""ReAct: thoughts, actions and observations in one dialogue, after a few solved examples.

Source: Yao et al., arXiv 2210.03629. The examples come from the environment's own expert (see
``examples``), their thoughts are written by rule, and the prompt is this project's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paw_gym.internals.replies import split_thought
from paw_gym.prompts import PromptTemplate, fill
from paw_train.agents.dialogue import Dialogues
from paw_train.agents.direct import require_reasoning
from paw_train.agents.examples import ExampleSource, write_examples
from paw_train.agents.protocol import AGENTS, Answer, Responder, TurnAgent, View
from paw_train.rollouts.policy import Response, response_seed
from paw_train.settings.base import Count, Group

_METHOD = """\
You solve a task step by step, in one long dialogue. In every answer, first think inside <{think}> \
</{think}>: what the latest observation tells you, what is done already, what is still missing. Then act. \
Your earlier thoughts stay in the dialogue; build on them, and change your plan when it does not work."""
_EXAMPLE = "A solved example:\n\n{example}"
_NOTES = """\
You have tried this very task before without success. These are the notes you left for yourself:
{notes}"""
_TASK = "Now the task that you are to solve."


class ReactSettings(Group):
    """Settings of ``react``."""

    examples: Count = 2
    """solved examples in the prompt; 0: none"""
    example_tokens: Count = 1500
    """most tokens of all examples together, at four characters a token; longer ones are passed over"""
    example_seed: int = 0
    """of the choice of examples"""
    observation_chars: Count = 600
    """longer observations and instructions in examples are shortened in the middle"""


@AGENTS.register("react")
class ReactAgent(TurnAgent):
    """Thinks, acts and observes in one dialogue that keeps all thoughts, with few-shot examples."""

    name = "react"
    Settings = ReactSettings

    def check(self) -> None:
        self.examples: list[str] = []

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        require_reasoning(template, self.name)
        return {"mode": "conversation"}

    def prepare(self, source: ExampleSource) -> None:
        s = self.settings
        self.examples = []
        if s.examples:
            env = source.make_env()
            template = env.template
            env.close()
            self.examples = write_examples(
                source, template, s.examples, s.example_tokens, s.observation_chars, s.example_seed
            )

    def prompts(self) -> list[str]:
        """The preface, which every first message begins with."""
        return [_METHOD, _NOTES, _TASK, *self.examples]

    def preface(self, template: PromptTemplate, notes: Sequence[str] = ()) -> str:
        """The text before the environment's first prompt."""
        parts = [fill(_METHOD, think=template.think_tag or "think")]
        parts += [fill(_EXAMPLE, example=example) for example in self.examples]
        if notes:
            parts.append(fill(_NOTES, notes="\n".join(f"- {text}" for text in notes)))
        return "\n\n".join([*parts, _TASK])

    def responder(self, seed: int, notes: Mapping[str, Sequence[str]] | None = None) -> Responder:
        dialogues = Dialogues(self.policy, self.rollout)

        def preface(view: View) -> str:
            return self.preface(view.template, (notes or {}).get(view.task_id, ()))

        def answer(views: Sequence[View]) -> list[Answer]:
            for view in views:
                first = "" if view.episode in dialogues else f"{preface(view)}\n"
                dialogues.add_message(view.episode, f"{first}{view.prompt}")
            seeds = {v.episode: response_seed(seed, v.episode, len(v.history)) for v in views}
            responses = dialogues.ask(seeds, self.rollout.sampling(views[0].template.closing_tags))
            return [taken(view, r) for view, r in zip(views, responses, strict=True)]

        def taken(view: View, response: Response) -> Answer:
            if response.error is not None:
                return Answer(error=response.error)
            dialogue, tag = dialogues[view.episode], view.template.think_tag
            noted: dict[str, Any] = {"thought": split_thought(response.text, tag)[0]}
            if not view.history:
                noted["preface"] = preface(view)
            noted |= dialogue.notes
            dialogue.add_response(response)
            return Answer(response.text, noted)

        return answer
