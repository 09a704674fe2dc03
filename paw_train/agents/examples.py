"""Few-shot examples: made by the environment's own expert, on tasks other than those that count."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paw_gym.prompts import PromptTemplate, fill
from paw_gym.wrappers import AgentInterface
from paw_train.environments import has_expert

CHARACTERS_A_TOKEN = 4
"""rule of thumb for English; a budget in real tokens would make prompts differ from model to model"""
_CANDIDATES = 12
"""expert episodes that are looked through for each example wanted"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an example."""

    observation: str
    """as a prompt shows it"""
    action: str


@dataclass(frozen=True, slots=True)
class Example:
    """A task that the expert has solved."""

    task_type: str
    instruction: str
    steps: tuple[Step, ...]


class ExampleSource:
    """Solves tasks with the environment's expert."""

    def __init__(
        self, make_env: Callable[[], AgentInterface], exclude: Collection[str] = ()
    ) -> None:
        self.make_env = make_env
        self.exclude = frozenset(exclude)

    def solved(self, count: int, seed: int) -> list[Example]:
        """Up to ``count`` candidates for each example wanted, shuffled by a seed; task types take turns."""
        env = self.make_env()
        try:
            if not has_expert(env):
                return []
            order = np.random.default_rng(seed).permutation(len(env.tasks))
            examples: list[Example] = []
            for index in order[: 4 * count]:
                task_id = env.tasks.ids[int(index)]
                if task_id in self.exclude:
                    continue
                example = _play_expert(env, task_id, seed)
                if example is not None:
                    examples.append(example)
                if len(examples) == count:
                    break
        finally:
            env.close()
        return _types_in_turn(examples)

    def none_found(self) -> ValueError:
        """The error of an example that is needed and not there."""
        env = self.make_env()
        why = "the environment's expert solved none of the tasks that may serve as one."
        if self.exclude.issuperset(env.tasks.ids):
            why = (
                f"all {len(env.tasks)} tasks are evaluated, and an evaluated task is no example. "
                "evaluation.tasks=N evaluates fewer,"
            )
        elif not has_expert(env):
            why = "the environment has no expert that could write one."
        env.close()
        return ValueError(f"No example: {why} agent.examples=0 does without.")


def _play_expert(env: AgentInterface, task_id: str, seed: int) -> Example | None:
    _, info = env.reset(seed=seed, options={"task_id": task_id})
    shown = env.text_env.prompt_observation
    expert = env.text_env.expert()
    steps: list[Step] = []
    over = False
    while not over:
        observation = shown(env.observation)
        try:
            action = expert()
        except StopIteration:
            return None
        steps.append(Step(observation, action))
        _, _, terminated, truncated, now = env.step(env.response_for(action))
        over = terminated or truncated
    if not now["success"]:
        return None
    return Example(info["task_type"], info["instruction"], tuple(steps))


def _types_in_turn(examples: Sequence[Example]) -> list[Example]:
    """First the first of each type, then the second of each, and so on."""
    seen: dict[str, int] = {}
    ranked = []
    for place, example in enumerate(examples):
        rank = seen.get(example.task_type, 0)
        seen[example.task_type] = rank + 1
        ranked.append((rank, place, example))
    return [example for _, _, example in sorted(ranked, key=lambda item: item[:2])]


def write_examples(
    source: ExampleSource,
    template: PromptTemplate,
    count: int,
    token_budget: int,
    observation_chars: int,
    seed: int,
) -> list[str]:
    """Examples as text, in the form of answer that the template asks for.

    Args:
        count: how many; fewer, when no more of the solved ones fit.
        token_budget: of all together, at four characters a token.
        observation_chars: longer observations and instructions are shortened.

    If no whole episode fits, the beginning of one is the example.
    """
    if count == 0:
        return []
    left = token_budget * CHARACTERS_A_TOKEN
    solved = source.solved(_CANDIDATES * count, seed)
    candidates = [write_example(example, template, observation_chars) for example in solved]
    texts: list[str] = []
    # first those of at most their share of what is left, so that a long one leaves room for others
    for share in (True, False):
        for text in candidates:
            room = left / (count - len(texts)) if share and len(texts) < count else left
            if len(texts) < count and text not in texts and len(text) <= room:
                texts.append(text)
                left -= len(text)
    if not candidates:
        raise source.none_found()
    if not texts:
        shortest = min(zip(candidates, solved, strict=True), key=lambda pair: len(pair[0]))[1]
        texts = [_beginning(shortest, template, observation_chars, token_budget)]
    return texts


def _beginning(
    example: Example, template: PromptTemplate, observation_chars: int, token_budget: int
) -> str:
    room = token_budget * CHARACTERS_A_TOKEN
    for steps in range(len(example.steps) - 1, 0, -1):
        cut = replace(example, steps=example.steps[:steps])
        text = f"{write_example(cut, template, observation_chars)}\n(and so on)"
        if len(text) <= room:
            return text
    raise ValueError(
        f"Not even the first step of an example fits into agent.example_tokens={token_budget}. Allow more, "
        "or set agent.examples=0."
    )


def write_example(example: Example, template: PromptTemplate, observation_chars: int) -> str:
    """An example as a transcript of task, observations and answers; long texts in it are shortened."""
    task = shortened(example.instruction, observation_chars)
    lines = [f"Task: {task}"]
    for number, step in enumerate(example.steps):
        if step.observation:
            lines.append(f"Observation: {shortened(step.observation, observation_chars)}")
        lines.append(_answer(template, thought(task, step.action, number), step))
    return "\n".join(lines)


def _answer(template: PromptTemplate, reasoning: str, step: Step) -> str:
    bare = template.response_for(step.action)
    if template.think_tag is None:
        return bare
    empty = f"<{template.think_tag}></{template.think_tag}>"
    return bare.replace(empty, f"<{template.think_tag}>{reasoning}</{template.think_tag}>", 1)


def shortened(text: str, characters: int) -> str:
    """A text of at most so many characters, its middle left out."""
    if len(text) <= characters:
        return text
    start = max(characters * 2 // 3, 1)
    end = max(characters - start - 5, 0)
    return f"{text[:start]} ... {text[len(text) - end :]}"


def example_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the environment that examples come from.

    With ``data_dir`` examples come from the environment's embedded default: real data often comes without a
    training split, and generated tasks cannot be among those that count. The step budget is the
    environment's own: an example is a task solved.
    """
    if kwargs.get("data_dir") is not None:
        return {}
    return {key: value for key, value in kwargs.items() if key != "max_steps"}


# --- thoughts by rule -------------------------------------------------------------------------------

# the first pattern that matches an action gives its thought; rules refer to actions, not to environments, so
# that they also serve a new environment with similar actions
_RULES: tuple[tuple[str, str], ...] = (
    # places and things
    (r"go to (?P<place>.+)", "I should check {place}; it may have what I need, or be where it goes."),
    (r"open (?P<thing>.+)", "{thing} is closed. I open it to see what is inside."),
    (r"close (?P<thing>.+)", "I am done with {thing} and close it."),
    (r"take (?P<thing>.+) from (?P<place>.+)", "{thing} is here and the task asks for one. I take it."),
    (r"(?:put|move) (?P<thing>.+?) (?:in/on|to) (?P<place>.+)",
     "I hold {thing} as the task wants it, and {place} is where it belongs. I put it there."),
    (r"(?P<how>heat|cool|clean) (?P<thing>.+) with (?P<tool>.+)",
     "The task wants me to {how} {thing}, and {tool} can do that."),
    (r"(?:use|turn on|toggle) (?P<thing>.+)", "{thing} is what I need to switch on now."),
    (r"(?:examine|look at) (?P<thing>.+)", "I look at {thing} more closely."),
    (r"look|inventory", "I am not sure where things stand, so I look first."),
    # questions and search engines
    (r"<search>(?P<words>.*)</search>", "I do not know this yet. A search for {words} should tell me."),
    (r"<answer>(?P<words>.*)</answer>", "What I have read is enough: the answer is {words}."),
    # shops
    (r"search\[(?P<words>.*)\]", "I search for the product in a few words of its description."),
    (r"click\[(?:buy now|purchase)\]", "The product and its options fit what was asked for. I buy it."),
    (r"click\[(?:back to search|< prev|prev)\]", "This does not fit. I go back and look further."),
    (r"click\[(?:next >|next)\]", "Nothing on this page fits. I look at the next one."),
    (r"click\[(?P<thing>b[0-9a-z]{9}|[a-z]+\d{4,})\]",
     "{thing} looks closest to what was asked for. I open it."),
    (r"click\[(?P<thing>.+)\]", "{thing} is what was asked for, so I choose it."),
    # customers and tools
    (r'\{"name": "(?P<tool>\w+)".*\}', "I know enough for the tool {tool}. I call it."),
    (r"it is done.*", "Everything that was asked for is done. I say so."),
    (r"please (?P<wish>.+?)\.?", "I need the customer's help. I ask: {wish}."),
)  # fmt: skip
_COMPILED = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), text) for pattern, text in _RULES
)
_GENERAL = "As far as I can see, this brings me closer to the goal: {action}."


def thought(instruction: str, action: str, step: int) -> str:
    """A possible thought before an action; that of the first step recalls the task's first paragraph."""
    written = fill(_GENERAL, action=action)
    for pattern, text in _COMPILED:
        match = pattern.fullmatch(action.strip())
        if match:
            written = fill(text, **{k: v.strip() for k, v in match.groupdict().items()})
            break
    task = instruction.strip().partition("\n\n")[0]
    start = f"My task: {task}{'' if task.endswith(('.', '?', '!')) else '.'} " if step == 0 else ""
    return start + written[0].upper() + written[1:]
