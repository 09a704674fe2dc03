"""Episodes of an update on recording engines: each is sampled once; dynamic sampling replaces groups."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from rows import token_row
from torchdata.stateful_dataloader import StatefulDataLoader

from paw_gym.transition import Episode, Transition
from paw_train.algorithms.pool import informative_groups
from paw_train.environments import agent_env_maker
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import load_settings
from paw_train.training.openrlhf import samples
from paw_train.training.openrlhf.episodes import (
    GroupLabel,
    response,
    training_groups,
)


class Promise:
    """Ray's, already kept."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Engines:
    """Recording engines: an episode's return is ``returns(label)``; calls end in a mixed order."""

    def __init__(self, count: int, returns: Any) -> None:
        self.calls: list[tuple[int, GroupLabel]] = []
        self.sent: list[int] = []
        """bytes that went out with each episode"""
        self.returns = returns
        self.handles = [
            SimpleNamespace(generate_responses=SimpleNamespace(remote=self._call(i)))
            for i in range(count)
        ]

    def _call(self, engine: int) -> Any:
        def remote(prompt: str, label: str, **given: Any) -> Any:
            self.sent.append(len(pickle.dumps((prompt, label, given))))
            episode = GroupLabel.from_json(label)
            self.calls.append((engine, episode))
            return Promise([self._response(prompt, episode)])

        return remote

    def _response(self, prompt: str, label: GroupLabel) -> dict[str, Any]:
        step = Transition("e", label.task_id, f"{label.group}-{label.member}", 0, "", "", "", "",
                          self.returns(label), "", True, False, True)  # fmt: skip
        episode = Episode(
            "e", label.task_id, step.episode_id, group=label.group, transitions=[step]
        )
        row = token_row([5, 6, 7, 8], ((1, 3), (3, 4)))
        return response(Trajectory(episode, [row]), prompt, label)


def _generator(monkeypatch: pytest.MonkeyPatch, engines: Engines, *overrides: str) -> Any:
    def wait(promises: list[Any], num_returns: int) -> Any:
        return [promises[-1]], promises[:-1]  # the latest ends first

    monkeypatch.setattr(samples, "ray", SimpleNamespace(wait=wait, get=lambda p: p.value))
    made = samples.TurnSamplesGenerator.__new__(samples.TurnSamplesGenerator)
    made.run = load_settings(
        "smoke",
        ["engine=openrlhf", "rollout.groups=3", "rollout.group_size=4", "updates=2", *overrides],
    )
    made.vllm_engines, made.tokenizer = engines.handles, bytes(2**20)
    return made


def _update(generator: Any, number: int = 0) -> list[Trajectory]:
    """The trajectories that an update learns from."""
    env = agent_env_maker(generator.run.env, generator.run.env.train_split)()
    labels = [g for g in training_groups(env.tasks, generator.run) if g.update == number]
    rows = iter([(None, [f"train/{i}"], [g.to_json()], [None]) for i, g in enumerate(labels)])
    found, consumed, _ = generator._generate_vllm(rows, 3, False)
    assert consumed == 3
    return [sample.labels[0] for sample in found]


def _names(trajectories: Any) -> list[str]:
    return [t.episode.episode_id for t in trajectories]


def test_every_episode_is_sampled_once_and_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(5, lambda label: float(label.member))
    generator = _generator(monkeypatch, engines)
    learned = _update(generator)
    assert _names(learned) == [f"{group}-{member}" for group in range(3) for member in range(4)]
    assert _names(generator.sampled) == _names(learned)
    assert len(engines.calls) == 12
    assert {engine for engine, _ in engines.calls} == set(range(5))
    assert max(engines.sent) < 1000  # the tokenizer is not among it


def test_groups_of_equal_returns_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group 1 of the first rollout, and all but group 5 of the second, are equal."""

    def returns(label: GroupLabel) -> float:
        return float(label.member or 0) if label.group in (0, 2, 5) else 1.0

    engines = Engines(2, returns)
    generator = _generator(monkeypatch, engines, "algorithm.dynamic_sampling=3")
    learned = _update(generator)
    assert {t.episode.group for t in learned} == {0, 2, 5}
    assert len(learned) == 12
    assert informative_groups(learned) == {0, 2, 5}
    assert len(generator.sampled) == 24  # two rollouts, and no third
    again = _generator(monkeypatch, Engines(3, returns), "algorithm.dynamic_sampling=3")
    assert _names(_update(again)) == _names(learned)  # whatever the number of engines


def test_further_groups_are_of_their_update(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(2, lambda label: 1.0)
    generator = _generator(monkeypatch, engines, "algorithm.dynamic_sampling=2")
    learned = _update(generator)
    assert len(learned) == 12  # none is informative: one update's worth, no more
    assert len(generator.sampled) == 36
    seeds = {(label.group, label.seeds) for _, label in engines.calls}
    assert len({s for _, s in seeds}) == 9
    _update(generator, 1)
    later = {(label.group, label.seeds) for _, label in engines.calls if label.update == 1}
    assert not seeds & later


def test_workers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, asked = Engines(2, lambda label: 1.0), []

    def worker(name: str) -> Any:
        def remote(row: str, label: str, engine: Any) -> Any:
            asked.append((name, engines.handles.index(engine)))
            return engine.generate_responses.remote(row, label)

        return SimpleNamespace(run=SimpleNamespace(remote=remote))

    generator = _generator(monkeypatch, engines)
    generator.workers = [[worker("a"), worker("b")], [worker("c"), worker("d")]]
    _update(generator)
    assert {("a", 0), ("b", 0), ("c", 1), ("d", 1)} == set(asked)
    assert len(asked) == 12


def _beside(monkeypatch: pytest.MonkeyPatch, answers: list[list[int | None]], ahead: int) -> Any:
    """A generator of rollouts beside training, whose engines answer so when asked for their policy."""
    engines = Engines(2, lambda label: 1.0)
    for handle in engines.handles:
        handle.policy_version = SimpleNamespace(remote=lambda: None)
    asked = iter(answers)

    def get(given: Any) -> Any:
        return next(asked) if isinstance(given, list) else given.value

    changes = ("openrlhf.colocate=none", f"openrlhf.max_staleness={ahead}")
    generator = _generator(monkeypatch, engines, *changes)
    wait = samples.ray.wait  # type: ignore[attr-defined]
    monkeypatch.setattr(samples, "ray", SimpleNamespace(wait=wait, get=get))
    generator.args = SimpleNamespace(
        vllm=SimpleNamespace(enable_sleep=False),
        rollout=SimpleNamespace(batch_size=3, n_samples_per_prompt=4),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
    )
    env = agent_env_maker(generator.run.env, generator.run.env.train_split)()
    rows = [
        (None, [f"train/{i}"], [g.to_json()], [None])
        for i, g in enumerate(training_groups(env.tasks, generator.run))
    ]
    generator.prompts_dataloader = StatefulDataLoader(
        rows, batch_size=1, collate_fn=lambda found: found[0]
    )
    return generator


def test_a_rollout_beside_training_knows_its_policy_and_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = _beside(monkeypatch, [[0, 0]] * 2 + [[7, 7]] * 2 + [[8, 8]] * 2, 2)
    rows = list(generator.prompts_dataloader)
    found = []
    for update in range(2):
        learned, *_ = generator.generate_samples()
        labels = [GroupLabel.from_json(label) for _, _, [label], _ in rows]
        tasks = {label.task_id for label in labels if label.update == update}
        assert {sample.labels[0].episode.task_id for sample in learned} == tasks
        assert len(generator.taken.sampled) == 12
        found.append(generator.taken)
    assert [rollout.version for rollout in found] == [0, 7]
    again = StatefulDataLoader(rows, batch_size=1, collate_fn=lambda one: one[0])
    again.load_state_dict(found[0].position)
    assert list(again) == rows[3:]
    nothing, _, _, exhausted = generator.generate_samples()
    assert exhausted and not nothing


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([[0, 0], [0, 1]], r"after \[0, 1\] updates"),
        ([[0, 0], [None, 0]], r"after \[None, 0\] updates"),
        ([[4, 4], [5, 5]], "after 4 updates began a rollout"),
    ],
)
def test_a_rollout_of_two_policies_is_not_learned_from(
    monkeypatch: pytest.MonkeyPatch, answers: list[list[int | None]], message: str
) -> None:
    generator = _beside(monkeypatch, answers, 1)
    with pytest.raises(samples.MixedPoliciesError, match=message):
        generator.generate_samples()
