"""Self-reflection: the policy says why the expert's action was the better one, and learns to think so first.

Zhang et al. 2025 (arXiv 2510.08558), section 4.3: given a state s_i, the expert's action and what came of it,
and the other actions with what came of those, the policy writes a chain of thought c_i. The response that is
learned from is c_i followed by the expert's action.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Transition
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import Request, Sampling, response_seed
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.tokens import TokenRow
from paw_train.world_model_learning.early_experience import ExpertExperience

_REQUEST = """

You took this action: {action}
What followed: {outcome}

Other actions that you could have taken, and what would have followed:
{others}

Say in two or three sentences why your action is the better choice at this point: what the task needs, what \
you know so far, and what each of the others would have cost. Speak as someone who is still deciding, in the \
first person, and do not say that you have seen what followed. Write these sentences and nothing else."""
_TAG = re.compile(r"</?[a-z_]+>")


@dataclass(frozen=True, slots=True)
class Reflection:
    """Why the expert's action at one step was the better one."""

    episode: int
    """number of the expert's episode"""
    step: int
    text: str


def reflect(
    policy: LocalPolicy,
    experience: Sequence[ExpertExperience],
    sampling: Sampling,
    seed: int,
    limit: int | None,
    batch: int,
    prefill_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> list[Reflection]:
    """Lets the policy reflect on each state that has alternatives; empty reflections are left out.

    Args:
        policy: reflects.
        experience: expert's episodes with alternatives.
        sampling: of the reflections.
        seed: of sampling; a reflection depends on it, its state and the weights alone.
        limit: most tokens of a context; states beyond it are left out.
        batch: reflections sampled together.
        prefill_tokens: most padded context tokens of one forward pass.
        progress: called with the number of states done.
    """
    asked: list[tuple[int, int, Request]] = []
    for number, one in enumerate(experience):
        for step, others in enumerate(one.alternatives):
            if not others:
                continue
            messages = one.episode.messages(step)
            messages[-1] = {
                "role": "user",
                "content": messages[-1]["content"] + _request(one, step, others),
            }
            ids = policy.chat.dialogue(messages)
            if limit is None or len(ids) <= limit:
                name = f"{number}/{step}"
                asked.append(
                    (number, step, Request(name, response_seed(seed, name, 0), messages, ids))
                )
    found: list[Reflection] = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        session = policy.session(sampling, False, prefill_tokens)
        for (number, step, _), answer in zip(
            part, session.respond([request for *_, request in part]), strict=True
        ):
            if text := thought_in(answer.text):
                found.append(Reflection(number, step, text))
        if progress:
            progress(min(start + batch, len(asked)))
    return found


def _request(one: ExpertExperience, step: int, others: Sequence[Transition]) -> str:
    expert = one.episode.transitions[step]
    listed = "\n".join(f"- {t.action}: {_line(t.next_observation)}" for t in others)
    return _REQUEST.format(
        action=expert.action, outcome=_line(expert.next_observation), others=listed
    )


def _line(text: str) -> str:
    return " ".join(text.split()) or "(nothing is said)"


def thought_in(text: str) -> str:
    """The sentences of an answer, on one line, without tags and what stands behind the first action."""
    before = re.split(r"<(?:action|search|answer)>", text)[0]
    return " ".join(_TAG.sub(" ", before).split())


def reflected_rows(
    experience: Sequence[ExpertExperience],
    reflections: Sequence[Reflection],
    policy: LocalPolicy,
    shown: Callable[[str], str],
    template: PromptTemplate,
    limit: int | None = None,
) -> list[TokenRow]:
    """Token rows of one step each: its context, then the reflection and the expert's action.

    Args:
        experience: as for ``reflect``.
        reflections: what that gave.
        policy: its chat format writes the tokens.
        shown: an observation as prompts show it (``TextEnv.prompt_observation``).
        template: of the prompts; has a ``think_tag``.
        limit: most tokens of a prompt (``RolloutSettings.max_prompt_tokens``).
    """
    rows = []
    for reflection in reflections:
        episode, step = experience[reflection.episode].episode, reflection.step
        plain = episode.transitions[step]
        own = replace(plain, response=template.response_for(plain.action, reflection.text))
        changed = [*episode.transitions[:step], own, *episode.transitions[step + 1 :]]
        reflected = replace(episode, transitions=changed)
        rows.append(recorded_row(policy.chat, reflected, step, shown, template, limit))
    return rows
