"""``paw replay``: the actions of a result, played again, and its numbers, computed again.

Another program's trajectories on an exported panel are checked too. Either may be a stranger's: nothing
that it names is imported, opened or asked (``evaluation.recorded``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from paw_gym.core import TextEnv
from paw_gym.internals.constructors import creator_of, defaults_of
from paw_gym.internals.printable import counted
from paw_gym.transition import Episode, Transition
from paw_gym.wrappers import AgentInterface
from paw_train.environments import agent_env_maker
from paw_train.evaluation.comparison import load_result, naming_damage
from paw_train.evaluation.fingerprint import environment_record, is_deterministic
from paw_train.evaluation.panels import PANELS, Panel, fixed_panel, titled_panel
from paw_train.evaluation.recorded import located, recorded_env
from paw_train.evaluation.runner import environment_seeds
from paw_train.evaluation.summary import UNPLAYED, summarise
from paw_train.settings import EnvSettings

_TOLERANCE = 1e-9
"""of rewards, scores and rates: other machines may round the last bits differently"""
_SHOWN = 60
"""characters of a text around the first that differs"""
_FOUND = (
    "panel", "panel_hash", "panel_note", "env_id", "n", "success_rate", "ci95", "tasks", "complete",
    "by_type", "averages", "fingerprint", "mean_steps", "mean_reward", "score", "errors", "unplayed",
    "runs", "pass_at_k", "successes",
)  # fmt: skip
"""fields of ``result.json`` that follow from the episodes and the environment"""
_INTERFACE = {"reward", "invalid_penalty", "invalid_when", "mode"}
"""settings of the environment that count, beside its arguments"""


@dataclass
class Replay:
    """The findings of a replay."""

    environment: str
    """id, arguments and reward settings that are not the default"""
    headline: str = ""
    differences: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    episodes: int = 0
    """that were played again"""
    steps: int = 0
    failed: int = 0
    """episodes that ended by an error"""
    cut_short: int = 0
    """replayed episodes that ended before the environment ended them"""

    @property
    def verdict(self) -> str:
        if self.differences:
            return f"DIFFERS: {counted(len(self.differences), 'difference')}."
        played = f"{'all ' * (self.episodes > 1)}{counted(self.episodes, 'episode')}"
        steps = counted(self.steps, "step")
        return f"HOLDS: {played}, {steps}, and every number that follows from them."


def replay(path: Path, overrides: Sequence[str] = (), panel: Path | None = None) -> Replay:
    """Plays the recorded actions of a result of ``paw eval`` again, and computes its numbers again.

    Args:
        path: its folder, or the ``result.json`` in it, beside which ``episodes.jsonl`` lies.
        overrides: arguments of the environment that locate something here: ``env.kwargs.data_dir=DIR``.
        panel: folder of ``paw panel export``; ``path`` is then a file of trajectories on it, a line a task:
            ``{"task_id", "actions": [str], "rewards": [float], "score": float}``. Rewards are the
            environment's own, without penalties or factors.

    Raises:
        ValueError: it cannot be checked: it is not such a result, its environment is not deterministic or
            not here, or it locates something.
    """
    if panel is None and path.suffix == ".jsonl":
        raise ValueError(f"{path}: give the folder of its panel too, --panel DIR.")
    file = panel / "panel.json" if panel else path / "result.json" if path.is_dir() else path
    if panel and not file.is_file():
        raise ValueError(f"{panel} holds no panel: `paw panel export` writes one.")
    with naming_damage(file):
        if panel:
            return _Trajectories(path, load_result(file, ["environment"]), overrides).run()
        return _Replaying(file, load_result(file), overrides).run()


class _Replaying:
    def __init__(self, file: Path, result: dict[str, Any], overrides: Sequence[str]) -> None:
        self.file, self.result = file, result
        if "environment" not in result:
            raise ValueError(f"{file} does not record its environment: evaluate with `paw eval`.")
        self.env = recorded_env(result["settings"]["env"], str(file), overrides)
        self.split = result["environment"]["split"]
        if self.split is not None and located("split", self.split):
            raise ValueError(f"{file} names {self.split!r:.80} as its split, which is a place.")
        if getattr(creator_of(self.env.id), "arguments_elsewhere", False):
            raise ValueError(
                f"{self.env.id} is played by a server, whose answers prove nothing: it cannot be checked. "
                "Evaluate the environment itself."
            )
        self.given = [o.partition("=")[0].removeprefix("env.kwargs.") for o in overrides]
        self.found = Replay(_changed(self.env))

    def run(self) -> Replay:
        make = agent_env_maker(self.env, self.split or "")
        agent = make()
        try:
            if not is_deterministic(agent.text_env):
                raise ValueError(
                    f"{self.env.id} is not deterministic as it was used, so it cannot be checked."
                )
            panel = self._panel(agent)
            runs = self._play(agent, panel)
            numbers = summarise(runs, panel, agent, measured_only=True)
        finally:
            agent.close()
        self._compare_numbers(numbers)
        record = environment_record(self.env, self.split or "", panel, make)
        there = self.result["environment"]
        names = ("id", "split", "tasks", "behaviour")
        self._compare_fields("environment.", there, {name: record[name] for name in names})
        own = {k: v for k, v in record["arguments"].items() if k not in self.given}
        self._compare_fields("environment.arguments.", there["arguments"], own)
        self.found.not_checked += self._unchecked()
        if self.found.cut_short:
            self.found.not_checked.append(
                f"why {self.found.cut_short} episode(s) ended before the environment ended them (the "
                "agent, its context, a budget)"
            )
        return self.found

    def _compare_numbers(self, numbers: Mapping[str, Any]) -> None:
        self.found.headline = _headline(self.result)
        compared = [k for k in numbers if k in _FOUND and k not in ("panel", "panel_hash")]
        self._compare_fields("", self.result, {name: numbers[name] for name in compared})

    def _panel(self, agent: AgentInterface) -> Panel:
        result = self.result
        size, seed = int(result["tasks"]), int(result["settings"]["panel_seed"])
        base = fixed_panel(str(result["panel"]))
        spec = PANELS[base] if base else None
        if spec is not None and spec.env_id != self.env.id:
            self._differs(
                f"panel: {base} is of {spec.env_id}, and the episodes are of {self.env.id}"
            )
            base = spec = None
        if spec is not None and spec.dataset and self.env.kwargs.get("data_dir") is None:
            self._differs(f"panel: {base} is of the data set {spec.dataset}, which was not used")
            base = spec = None
        panel = titled_panel(agent.tasks, base, self.env, self.split or "", size, seed)
        self._compare_fields("", result, {"panel": panel.name, "panel_hash": panel.hash})
        return panel

    def _play(self, agent: AgentInterface, panel: Panel) -> dict[int, list[Episode | None]]:
        """The recorded episodes by seed, without their texts, played again."""
        expected = [
            (int(run["seed"]), task_id, str(run["successes"])[i : i + 1])
            for run in self.result["runs"]
            for i, task_id in enumerate(panel.task_ids)
        ]
        runs: dict[int, list[Episode | None]] = {seed: [] for seed, _, _ in expected}
        planned = {seed: environment_seeds(panel, seed) for seed in runs}
        file = self.file.parent / "episodes.jsonl"
        if not file.is_file():
            raise ValueError(f"{file} is missing: without actions nothing can be replayed.")
        recorded = (one for _, one in _records(file, Episode.from_dict, "an episode"))
        episode = next(recorded, None)
        for seed, task_id, mark in expected:
            name = f"{task_id!r} (seed {seed})"
            if episode is None or episode.task_id != task_id:
                runs[seed].append(None)
                if mark != UNPLAYED:
                    self._differs(
                        f"episode {name} is missing in episodes.jsonl, or out of its order"
                    )
                continue
            if episode.error is not None:
                self.found.failed += 1
            else:
                self.found.episodes += 1
                self._play_again(agent, episode, planned[seed][task_id], name)
            kept = [_without_texts(t, step) for step, t in enumerate(episode.transitions)]
            runs[seed].append(replace(episode, instruction="", transitions=kept))
            episode = next(recorded, None)
        if episode is not None:
            self._differs(f"episodes.jsonl holds {episode.task_id!r}, which is not expected there")
        if not runs or not (self.found.episodes or self.found.differences):
            raise ValueError(f"{self.file} holds no episode that could be replayed.")
        return runs

    def _play_again(self, agent: AgentInterface, episode: Episode, seed: int, name: str) -> None:
        """Compares an episode with the environment, up to the first difference."""
        if not episode.episode_id.startswith(f"{episode.task_id}#{seed:08x}"):
            self._differs(
                f"episode {name}: the environment's seed is recorded in the id "
                f"{episode.episode_id!r:.120}; that of the panel is {seed:08x}"
            )
            return
        info = agent.reset(seed=seed, options={"task_id": episode.task_id})[1]
        if not self._same(f"episode {name}: the task's type", episode.task_type, info["task_type"]):
            return
        over, before = False, agent.observation
        for step, t in enumerate(episode.transitions):
            where = f"episode {name}, step {step}: "
            if over:
                self._differs(f"{where}the environment ended the episode before it")
                return
            parts, over = _step(agent, t)
            self.found.steps += 1
            for what, there, here in [("the observation before it", t.observation, before), *parts]:
                if not self._same(where + what, there, here):
                    return
            before = t.next_observation
        self.found.cut_short += not over

    def _compare_fields(
        self, group: str, there: Mapping[str, Any], here: Mapping[str, Any]
    ) -> None:
        for name, value in json.loads(json.dumps(here)).items():
            self._same(f"{group}{name}", there.get(name), value)

    def _same(self, what: str, there: Any, here: Any) -> bool:
        if _alike(there, here):
            return True
        shown = _excerpts(there, here)
        self._differs(f"{what} is recorded as {shown[0]}, and is {shown[1]}")
        return False

    def _differs(self, sentence: str) -> None:
        self.found.differences.append(sentence)

    def _unchecked(self) -> list[str]:
        """Everything in the result that was compared with nothing here."""
        notes = ["that the named model, prompts and settings gave these actions"]
        notes.append("that nobody chose the best of several evaluations")
        missing, failed = int(self.result.get("unplayed") or 0), self.found.failed
        if missing or failed:
            notes.append(f"{missing} episode(s) not played and {failed} that failed by an error")
        if self.given:
            notes.append(f"that the data is the author's ({', '.join(self.given)} was given here)")
        rest = sorted(set(self.result) - {*_FOUND, "environment", "settings"})
        fields = ", ".join([*rest, "settings.rollout", "environment.versions"])
        return [*notes, f"the fields {fields}"]


class _Trajectories(_Replaying):
    """The trajectories of another program on an exported panel."""

    def _play(self, agent: AgentInterface, panel: Panel) -> dict[int, list[Episode | None]]:
        seed = int(self.result["settings"]["panel_seed"])
        seeds = environment_seeds(panel, seed)
        there: dict[str, _Trajectory] = {}
        for number, one in _records(self.file, _Trajectory.read, "a trajectory"):
            if one.task_id not in seeds:
                self._differs(f"line {number}: {one.task_id!r:.120} is not a task of the panel")
            elif there.setdefault(one.task_id, one) is not one:
                self._differs(f"line {number}: {one.task_id!r:.120} is there for the second time")
        for task_id in seeds.keys() - there:
            self._differs(f"{task_id!r} is missing")
        env = agent.text_env
        return {
            seed: [self._played(env, there[i], seeds[i]) if i in there else None for i in seeds]
        }

    def _played(self, env: TextEnv, one: _Trajectory, seed: int) -> Episode:
        """The episode as it is here, up to the first reward that differs."""
        self.found.episodes += 1
        _, info = env.reset(seed=seed, options={"task_id": one.task_id})
        over, kept = False, []
        for step, (action, claimed) in enumerate(one.steps):
            where = f"{one.task_id!r}, step {step}: "
            if over:
                self._differs(f"{where}the environment ended the episode before it")
                break
            _, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            here = (float(reward), "", terminated, truncated, True, dict(info))
            played = Transition(env.env_id, one.task_id, "", step, "", None, "", action, *here)
            kept.append(_without_texts(played, step))
            self.found.steps += 1
            if not self._same(f"{where}the reward", claimed, float(reward)):
                break
        else:
            self._same(f"{one.task_id!r}: the score", one.score, float(info["score"]))
            self.found.cut_short += not over
        return Episode(env.env_id, one.task_id, "", info["task_type"], transitions=kept)

    def _compare_numbers(self, numbers: Mapping[str, Any]) -> None:
        self.found.headline = _headline({**numbers, "agent": self.file.name})

    def _unchecked(self) -> list[str]:
        return ["who chose the actions", "that it is not the best of several"]


class _Trajectory(NamedTuple):
    task_id: str
    steps: list[tuple[str, float]]
    """actions and their rewards"""
    score: float

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> _Trajectory:
        actions, rewards = row["actions"], row["rewards"]
        if len(actions) != len(rewards) or not all(isinstance(action, str) for action in actions):
            raise ValueError("expected actions as texts, and as many rewards")
        steps = [*zip(actions, map(float, rewards), strict=True)]
        return cls(str(row["task_id"]), steps, float(row["score"]))


def _records(file: Path, read: Callable[[Any], Any], what: str) -> Iterator[tuple[int, Any]]:
    """(number, contents) of each line of a file."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                found = read(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise ValueError(
                    f"{file}, line {number}: not {what} ({type(error).__name__}: {error})."
                ) from error
            yield number, found


def _step(agent: AgentInterface, t: Transition) -> tuple[list[tuple[str, Any, Any]], bool]:
    """(name, recorded, here) of each part of a step, and True if it was the last."""
    listed = not agent.require_admissible or agent.text_env.is_admissible(t.action)
    observation, env_reward, terminated, truncated, info = agent.text_env.step(t.action)
    accepted = (bool(info["action_is_valid"]) and listed) or agent.invalid_when == "malformed"
    valid = accepted and not t.info.get("malformed")
    reward = agent.reward_of(env_reward, info["success"], valid)
    parts = [
        ("the observation", t.next_observation, observation),
        ("whether the action was valid", t.action_is_valid, valid),
        ("the reward", t.reward, reward),
        ("the environment's reward", t.info.get("env_reward"), env_reward),
        ("success", t.info.get("success"), bool(info["success"])),
        ("the score", t.info.get("score"), info["score"]),
        ("whether the rules ended the episode", t.terminated, terminated),
    ]
    return parts, terminated or truncated


def _without_texts(t: Transition, step: int) -> Transition:
    """The parts of a transition that a summary reads."""
    texts: Any = dict.fromkeys(("prompt", "response", "action", "next_observation"), "")
    told: dict[str, Any] = {key: t.info[key] for key in ("success", "score") if key in t.info}
    return replace(t, step=step, reward=float(t.reward), observation=None, info=told, **texts)


def _headline(result: Mapping[str, Any]) -> str:
    who = " ".join(str(result[k]) for k in ("agent", "model") if result.get(k)) or "unnamed"
    line, rate, interval = f"{result['panel']}: {who}", result["success_rate"], result["ci95"]
    if rate is None or interval is None:
        return line
    low, high = (100 * float(bound) for bound in interval)
    tasks = counted(result["n"], "task")
    return f"{line}, success {100 * float(rate):.1f} % ({low:.1f} to {high:.1f}) on {tasks}"


def _changed(env: EnvSettings) -> str:
    """The environment, with what is not its default."""
    defaults = defaults_of(env.id)
    changed = {
        key: value for key, value in sorted(env.kwargs.items()) if defaults.get(key) != value
    }
    changed |= env.model_dump(include=_INTERFACE, exclude_defaults=True)
    named = ", ".join(f"{key}={value!r:.60}" for key, value in changed.items())
    return f"{env.id}, {named or 'nothing but its defaults'}"


def _alike(one: Any, other: Any) -> bool:
    """Equal up to rounding: intervals may differ in the last bits on another machine."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _excerpts(there: Any, here: Any) -> tuple[str, str]:
    """Two values for a message: of long texts the part around the first character that differs."""
    if not (isinstance(there, str) and isinstance(here, str)):
        return f"{there!r:.120}", f"{here!r:.120}"
    first = next(i for i, (a, b) in enumerate(zip_longest(there, here)) if a != b)
    begin = max(0, first - _SHOWN // 2)
    before = "..." if begin else ""
    return f"{before}{there[begin:][:_SHOWN]!r}", f"{before}{here[begin:][:_SHOWN]!r}"
