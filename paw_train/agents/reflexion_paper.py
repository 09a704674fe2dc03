"""Reflexion by its paper's trial loop, around ReAct by its own: ``react_paper``.

Source: Shinn et al., arXiv 2303.11366, section 4.1 for when a trial is given up. Deviations are listed in
docs/baselines.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paw_gym.transition import Episode
from paw_train.agents.examples import shortened
from paw_train.agents.protocol import AGENTS, Responder, View
from paw_train.agents.react_paper import (
    ReactPaperAgent,
    ReactPaperResponder,
    ReactPaperSettings,
    Talk,
)
from paw_train.agents.reflexion import TrialsAgent, TrialsSettings
from paw_train.settings.base import Positive


class ReflexionPaperSettings(TrialsSettings, ReactPaperSettings):
    """Settings of ``reflexion_paper``: those of ``react_paper``, and more."""

    trials: Positive = 12
    """tries at a task, the first included"""
    repeats: Positive = 3
    """a trial ends when an action has been repeated more often than this, with the same result"""
    actions: Positive | None = None
    """a trial ends after so many actions; null: the paper's 30 for commands, elsewhere no limit"""


@AGENTS.register("reflexion_paper")
class ReflexionPaperAgent(TrialsAgent, ReactPaperAgent):
    """ReAct by its paper's protocol in several trials, with notes on the failed ones."""

    name = "reflexion_paper"
    Settings = ReflexionPaperSettings

    @property
    def action_count(self) -> int | None:
        own = 30 if self.form.name == "commands" else None
        return self.settings.actions or own

    def responder(self, seed: int, notes: Mapping[str, Sequence[str]] | None = None) -> Responder:
        return _ReflexionPaperResponder(self, seed, notes or {})

    def transcript(self, episode: Episode) -> list[str]:
        """With the thoughts, which are not sent to the environment."""
        lines = []
        for t in episode.transitions:
            for line in t.info["agent"]["said"]:
                lines += [f"You: {line[0].strip()}", *(f"Environment: {x}" for x in line[1:])]
            seen = shortened(t.next_observation, self.settings.observation_chars)
            lines.append(f"Environment: {seen}")
        return lines


class _ReflexionPaperResponder(ReactPaperResponder):
    agent: ReflexionPaperAgent

    def gives_up(self, view: View, talk: Talk) -> str | None:
        limit = self.agent.action_count
        if limit is not None and len(view.history) >= limit:
            return "too many actions"
        if _repeats(view) > self.agent.settings.repeats:
            return "the same action again and again"
        return super().gives_up(view, talk)


def _repeats(view: View) -> int:
    """The number of times in a row that the last action had the same result."""
    results = [turn.observation for turn in view.history[1:]] + [view.observation]
    steps = list(zip((turn.action for turn in view.history), results, strict=True))
    count = 0
    while count < len(steps) and steps[-1 - count] == steps[-1]:
        count += 1
    return count
