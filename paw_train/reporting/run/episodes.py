"""Episodes to read in a report: those of one task side by side, each step with what is new in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paw_gym.transition import Episode, Transition
from paw_train.reporting.conversation import blocks, changes
from paw_train.reporting.run.run_data import RunData
from paw_train.reporting.run.scales import number_text

MAX_CHARACTERS = 6000
"""longest text shown in one place; what is hidden is counted"""


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of an episode."""

    transition: Transition
    prompt: list[list[str]]
    """``["same", text]`` and ``["new", text]`` against the prompt before"""
    prompt_size: str
    response: list[list[str]]
    """``["text", text]`` and ``[tag, text]``"""
    hidden: int
    """characters of the response that are not shown"""


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode of the panel, before or after RL."""

    when: str
    """``before`` or ``after``"""
    episode: Episode
    outcome: str
    solved: bool
    total_reward: str
    steps: Sequence[Step]


def episodes_by_task(run: RunData) -> dict[str, list[ShownEpisode]]:
    """The episodes that a run kept, by task."""
    tasks: dict[str, list[ShownEpisode]] = {}
    for when, episodes in (("before", run.episodes_before), ("after", run.episodes_after)):
        for episode in episodes:
            tasks.setdefault(episode.task_id, []).append(_shown(when, episode))
    return tasks


def _shown(when: str, episode: Episode) -> ShownEpisode:
    prompts = ["", *(t.prompt for t in episode.transitions)]
    return ShownEpisode(
        when,
        episode,
        _outcome(episode),
        bool(episode.success) and episode.error is None,
        number_text(episode.total_reward),
        [_step(t, earlier) for t, earlier in zip(episode.transitions, prompts, strict=False)],
    )


def _outcome(episode: Episode) -> str:
    count = len(episode.transitions)
    steps = f"{count} step{'' if count == 1 else 's'}"
    if episode.error is not None:
        return f"environment failed after {steps}"
    if episode.success:
        return f"solved in {steps}"
    return f"{'not solved' if episode.finished else 'unfinished'}, {steps}"


def _step(transition: Transition, earlier: str) -> Step:
    parts = changes(earlier, transition.prompt)
    size = f"{len(transition.prompt)} characters"
    if earlier:
        new = sum(text.count("\n") + 1 for kind, text in parts if kind == "new")
        size += f", {new} of {len(transition.prompt.splitlines())} lines new"
    shown = transition.response[:MAX_CHARACTERS]
    return Step(transition, parts, size, blocks(shown), len(transition.response) - len(shown))
