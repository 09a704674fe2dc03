"""Reflexion: after a failed trial the model writes down what went wrong, and tries again with its notes.

Source: Shinn et al., arXiv 2303.11366, around ``react``.
"""

from __future__ import annotations

from paw_train.baselines.react import ReactAgent, ReactSettings
from paw_train.baselines.trials import TrialsAgent
from paw_train.settings.ranges import Count, Positive


class ReflexionSettings(ReactSettings):
    """Of ``reflexion``: those of ``react``, and more."""

    trials: Positive = 3
    """tries at a task, the first included"""
    memory: Count = 3
    """notes that are kept, the latest ones"""
    reflection_tokens: Positive = 256
    """longest note"""
    transcript_tokens: int = 2000
    """of the failed trial that the model looks through, at four characters a token"""


class ReflexionAgent(TrialsAgent, ReactAgent):
    """ReAct in several trials, with the model's own notes on what went wrong in the failed ones."""

    name = "reflexion"
    Settings = ReflexionSettings
    responder = ReactAgent.responder
