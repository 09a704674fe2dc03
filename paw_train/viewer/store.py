"""The runs of a viewer by name, and their episodes as a page shows them; no name is ever used as a path."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from env_servers.problems import ProblemError
from paw_gym.transition import Episode, Transition
from paw_train.reporting.pages import blocks, changes
from paw_train.viewer.folders import find_runs, is_run, read_line
from paw_train.viewer.index import RunIndex
from paw_train.viewer.lists import Page, Summary, recorded_steps
from paw_train.viewer.measurements import Measurements, differences

_LOG = logging.getLogger(__name__)
_WATCHED = 60.0
"""seconds that a run is followed after it was last asked for"""
_PAUSE = 1.0
"""seconds between two looks at a run's files"""
_SIBLINGS = 64
"""episodes of a group that an episode's page names"""
_BESIDE = 16
"""episodes of a group that are shown side by side"""
_OF_TURNS = {"calls", "finish_reason", "problem", "reasoning", "thought"}
"""an agent's notes on one turn"""


class Run:
    """One run: its small files and its index."""

    def __init__(self, folder: Path) -> None:
        self.measurements = Measurements(folder)
        self.index = RunIndex(folder)
        self.indexing = True
        """whether the index may be behind"""
        self.asked: float | None = None
        """when the run was last looked at, in monotonic seconds"""


class RunStore:
    """All runs at or below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[str, Run] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._look(find_runs(root))

    def _look(self, found: dict[str, Path]) -> None:
        self._runs = {name: self._runs.get(name) or Run(path) for name, path in found.items()}

    def start(self) -> None:
        """Begins to follow the runs that are being looked at, first the one that a page opens with."""
        if self.first is not None:
            self.watched(self.first)
        self._thread = threading.Thread(target=self._follow, name="paw-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _follow(self) -> None:
        while not self._stop.is_set():
            # a folder that is being rewritten: what was found is kept
            with contextlib.suppress(ValueError, OSError):
                self._look(find_runs(self.root))
            for name, run in list(self._runs.items()):
                if run.asked is None or time.monotonic() - run.asked > _WATCHED:
                    continue
                try:
                    run.index.refresh(self._stop.is_set)
                except Exception:  # in one run: the others are still followed
                    _LOG.exception("The index of %s could not be brought up to date.", name)
                run.indexing = False
            self._wake.wait(_PAUSE)
            self._wake.clear()

    @property
    def first(self) -> str | None:
        """The run that a page opens with: the only one, or the one whose folder was given."""
        names = list(self._runs)
        whole = self.root.resolve().name
        return names[0] if len(names) == 1 else whole if is_run(self.root) else None

    def run(self, name: str) -> Run:
        if name not in self._runs:
            raise ProblemError(404, f"There is no run {name!r} here.")
        return self._runs[name]

    def watched(self, name: str) -> Run:
        """The run with a name, which is followed for a while from now on."""
        run = self.run(name)
        if run.asked is None:
            self._wake.set()
        run.asked = time.monotonic()
        return run

    def pulse(self, name: str | None) -> dict[str, Any]:
        """Values that change when anything is new: cheap, as a page polls them every second or two."""
        if name is None:
            stamps = [f"{n}:{r.measurements.signature()}" for n, r in self._runs.items()]
            return {"runs": str(hash(tuple(stamps)))}
        run = self.watched(name)
        return {
            "episodes": run.index.generation,
            "curves": run.measurements.signature(),
            "state": run.measurements.state()["state"],
            "indexing": run.indexing,
        }

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": n, **r.measurements.state()} for n, r in self._runs.items()]

    def state(self, name: str) -> dict[str, Any]:
        """One run in a few numbers, with its result if it is an evaluation; reads no episodes."""
        found = self.run(name).measurements
        return {"name": name, **found.state(), "evaluation": found.evaluation()}

    def described(self, name: str) -> dict[str, Any]:
        run = self.watched(name)
        return {
            **self.state(name),
            "settings": run.measurements.settings(),
            "indexing": run.indexing,
            **run.index.overview(),
        }

    def differences(self, names: list[str]) -> list[dict[str, Any]]:
        """The settings that are not equal in all of these runs (see ``differences``)."""
        return differences([self.run(name).measurements.settings() for name in names])

    def page(self, wanted: Page) -> dict[str, Any]:
        run = self.watched(wanted.run)
        return {**run.index.page(wanted), "indexing": run.indexing}

    def _known(self, name: str, key: str) -> tuple[RunIndex, Summary]:
        index = self.watched(name).index
        known = index.find(key)
        if known is None:
            raise ProblemError(404, f"There is no episode {key!r} in this run.")
        return index, known

    def episode(self, name: str, key: str) -> dict[str, Any]:
        index, known = self._known(name, key)
        file = known.file
        episode = Episode.from_dict(read_line(file.path, known.record))
        tokens = read_line(file.tokens, known.tokens) if file.tokens and known.tokens else {}
        if {known.episode_id, tokens.get("episode_id", known.episode_id)} != {episode.episode_id}:
            raise ValueError("another record is where one was.")
        return {
            **known.head,
            "group": [e.key for e in index.group_of(known)][:_SIBLINGS],
            "env_id": episode.env_id,
            "episode_id": episode.episode_id,
            "return": episode.total_reward,
            "error": episode.error,
            "notes": notes(episode),
            **{name: tokens.get(name) for name in ("lambda", "rho", "loss", "temperature")},
            "world_model": tokens.get("world_model"),
            "turns": conversation(episode, tokens),
        }

    def group(self, name: str, key: str) -> list[dict[str, Any]]:
        """The episodes of an episode's group, including itself."""
        index, known = self._known(name, key)
        return [self.episode(name, e.key) for e in index.group_of(known)[:_BESIDE]]


def conversation(episode: Episode, tokens: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of an episode, each a dictionary of JSON values."""
    steps = recorded_steps(tokens)
    turns = []
    earlier = ""
    for t in episode.transitions:
        turns.append(_turn(t, earlier, steps.get(t.step)))
        # in a dialogue a prompt is one message, and repeats the result of the action
        earlier = t.next_observation if episode.context_mode == "conversation" else t.prompt
    return turns


def _turn(t: Transition, earlier: str, step: Mapping[str, Any] | None) -> dict[str, Any]:
    agent = _agent(t)
    listed = (step or {}).get("admissible") or t.info.get("admissible_actions")
    return {
        "step": t.step,
        "prompt": changes(earlier, t.prompt),
        "response": blocks(t.response),
        "action": t.action,
        "valid": t.action_is_valid,
        "problem": t.info.get("problem") or agent.get("problem"),
        "finish_reason": agent.get("finish_reason"),
        "reasoning": agent.get("reasoning"),
        "calls": calls(agent.get("calls")),
        "reward": t.reward,
        "ended": "terminated" if t.terminated else "truncated" if t.truncated else None,
        "observation": t.next_observation,
        "admissible": listed if isinstance(listed, list) else None,
        "tokens": step,
    }


def _agent(t: Transition) -> dict[str, Any]:
    agent = t.info.get("agent")
    return agent if isinstance(agent, dict) else {}


def calls(recorded: Any) -> list[dict[str, Any]]:
    """The requests that were made for a turn, as ``paw eval`` records them.

    ``messages`` are those after the first ``same`` of the previous request; they and ``text`` are as
    sent and received. Anything else is left out.
    """
    found = []
    for call in recorded if isinstance(recorded, list) else []:
        messages = call.get("messages") if isinstance(call, dict) else None
        if isinstance(messages, list):
            same = call.get("same")
            kept = [message for message in messages if isinstance(message, dict)]
            found.append(
                {**call, "same": max(0, same if type(same) is int else 0), "messages": kept}
            )
    return found


def notes(episode: Episode) -> dict[str, Any]:
    """The agent's notes on the whole episode: reflections, trial, votes, tokens spent."""
    found = {key: value for t in episode.transitions for key, value in _agent(t).items()}
    return {key: value for key, value in found.items() if key not in _OF_TURNS}
