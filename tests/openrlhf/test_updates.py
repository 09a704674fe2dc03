"""Updates on stand-ins of Ray's actors: what is sampled, what is done when, what ends a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import vllm_engine
from torchdata.stateful_dataloader import StatefulDataLoader
from trajectories import made_up

from paw_train.algorithms.pool import informative_groups
from paw_train.environments import agent_env_maker
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import load_settings
from paw_train.training.openrlhf import samples, trainer
from paw_train.training.openrlhf.episodes import GroupLabel, response, training_groups
from paw_train.training.openrlhf.weights import LogprobGapError, Sums

TRAINED = Sums(1.0, 2.0, 3.0)


class Promise:
    """Ray's, already kept."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Engine:
    """Writes down what it is asked to do; an episode's return is ``returns(label)``."""

    def __init__(self, log: list[str], returns: Callable[[GroupLabel], float]) -> None:
        self.log, self.returns = log, returns
        self.episodes: list[GroupLabel] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*values: Any, **given: Any) -> Any:
            self.log.append(" ".join(["engine", name, *map(str, values), *given.get("tags", ())]))
            return [list(TRAINED)] if name == "weight_sums" else None

        return SimpleNamespace(remote=remote)

    def episode(self, row: str, label: GroupLabel) -> Promise:
        """What a process beside it plays."""
        self.log.append("episode")
        self.episodes.append(label)
        [trajectory] = made_up(False, [(label.group, 1, self.returns(label))])
        trajectory.episode.task_id = label.task_id
        trajectory.episode.episode_id = f"{label.group}-{label.member}"
        return Promise(response(trajectory, row, label))


class Worker:
    """A process that runs episodes; counts them."""

    def __init__(self) -> None:
        self.run = SimpleNamespace(remote=self._run)
        self.asked = Counter[Engine]()

    def _run(self, row: str, label: GroupLabel, engine: Engine) -> Promise:
        self.asked[engine] += 1
        return engine.episode(row, label)


class Group:
    """The ranks of a model; writes down what they are asked to do."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def async_run_method(self, method_name: str, **_: Any) -> Any:
        self.log.append(f"{self.name} {method_name}")
        return [TRAINED] if method_name == "weight_sums" else [{}]

    async_run_method_batch = async_run_method


def _generator(
    monkeypatch: pytest.MonkeyPatch,
    engines: int,
    *overrides: str,
    returns: Callable[[GroupLabel], float] = lambda label: 1.0,
) -> Any:
    """A generator of two updates of three groups of four."""

    def get(given: Any) -> Any:
        return given.value if isinstance(given, Promise) else given

    def wait(promises: list[Any], num_returns: int) -> Any:
        return [promises[-1]], promises[:-1]  # the latest ends first

    for module in (ppo_trainer, samples, trainer, vllm_engine):
        monkeypatch.setattr(module, "ray", SimpleNamespace(get=get, wait=wait))
    made = samples.TurnSamplesGenerator.__new__(samples.TurnSamplesGenerator)
    size = ("updates=2", "rollout.groups=3", "rollout.group_size=4", "openrlhf.checksum_every=1")
    made.run = load_settings("smoke", ["engine=openrlhf", *size, *overrides])
    asleep = made.run.openrlhf.colocate == "all"
    made.args = SimpleNamespace(
        vllm=SimpleNamespace(enable_sleep=asleep),
        rollout=SimpleNamespace(batch_size=3, n_samples_per_prompt=4),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
    )
    log: list[str] = []
    made.vllm_engines = [Engine(log, returns) for _ in range(engines)]
    made.workers = [[Worker(), Worker()] for _ in range(engines)]
    env = agent_env_maker(made.run.env, made.run.env.train_split)()
    labels = [group.to_json() for group in training_groups(env.tasks, made.run)]
    rows = [(None, [f"train/{i}"], [label], [None]) for i, label in enumerate(labels)]
    made.prompts_dataloader = StatefulDataLoader(
        rows, batch_size=1, collate_fn=lambda found: found[0]
    )
    return made


def _update(generator: Any) -> list[Trajectory]:
    """The trajectories that the next update learns from."""
    learned, _, consumed, _ = generator.generate_samples()
    assert consumed == 3
    return [sample.labels[0] for sample in learned]


def _episodes(generator: Any) -> list[GroupLabel]:
    return [label for engine in generator.vllm_engines for label in engine.episodes]


def _names(trajectories: Any) -> list[str]:
    return [t.episode.episode_id for t in trajectories]


def test_every_episode_is_sampled_once_and_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = _generator(monkeypatch, 5)
    learned = _update(generator)
    assert _names(learned) == [f"{group}-{member}" for group in range(3) for member in range(4)]
    assert _names(generator.sampled) == _names(learned)
    assert len(_episodes(generator)) == 12
    for engine in generator.vllm_engines:
        assert engine.episodes


def test_workers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = _generator(monkeypatch, 2)
    _update(generator)
    for engine, workers in zip(generator.vllm_engines, generator.workers, strict=True):
        assert [worker.asked for worker in workers] == [{engine: 3}, {engine: 3}]


def test_groups_of_equal_returns_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group 1 of the first rollout, and all but group 5 of the second, are equal."""

    def returns(label: GroupLabel) -> float:
        return float(label.member == 0 and label.group in (0, 2, 5))

    for engines in (2, 3):  # whatever their number
        chosen = "algorithm.dynamic_sampling=3"
        generator = _generator(monkeypatch, engines, chosen, returns=returns)
        learned = _update(generator)
        assert _names(learned) == [
            f"{group}-{member}" for group in (0, 2, 5) for member in range(4)
        ]
        assert informative_groups(learned) == {0, 2, 5}
        assert len(generator.sampled) == 24  # two rollouts, and no third


def test_further_groups_are_of_their_update(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = _generator(monkeypatch, 2, "algorithm.dynamic_sampling=2")
    assert len(_update(generator)) == 12  # none is informative: one update's worth, no more
    assert len(generator.sampled) == 36
    seeds = {(label.group, label.seeds) for label in _episodes(generator)}
    assert len({s for _, s in seeds}) == 9
    _update(generator)
    later = {(label.group, label.seeds) for label in _episodes(generator) if label.update == 1}
    assert len(later) == 9 and not seeds & later


def _trainer(monkeypatch: pytest.MonkeyPatch, gap: float = 0.01) -> tuple[Any, Any, list[str]]:
    """A trainer, a rollout, and a log of its actors."""
    generator = _generator(monkeypatch, 1, "openrlhf.gpus_per_node=1")
    [engine] = generator.vllm_engines
    log = engine.log
    made = trainer.PaWTrainer.__new__(trainer.PaWTrainer)
    made.run, made.samples_generator, made.vllm_engines = generator.run, generator, [engine]
    made.args = SimpleNamespace(
        vllm=generator.args.vllm,
        ds=SimpleNamespace(enable_sleep=True),
        train=SimpleNamespace(dynamic_batch_enable=False),
        critic=SimpleNamespace(freezing_steps=-1),
        rollout=generator.args.rollout,
    )
    made.actor_model_group, made.critic_model_group = Group(log, "policy"), Group(log, "critic")
    made.kl_ctl = SimpleNamespace(value=0.0)
    made.tokenizer = SimpleNamespace(decode=lambda *_, **__: ["text"])
    made.records = SimpleNamespace(
        failures=lambda *_: [], update=lambda *_: None, raised=lambda *_: []
    )
    scored = SimpleNamespace(sequences=torch.ones(1, 2), info={"reward": torch.ones(1)})

    def score(_: Any) -> Any:
        log.append("scores")
        return [scored]

    made.experience_maker = SimpleNamespace(
        make_experience_batch=score, metrics={"logprob_gap": gap}, update=5
    )
    rollout, *_ = generator.generate_samples()
    return made, rollout, log


def test_models_and_engines_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rollout, log = _trainer(monkeypatch)
    made.train_step(rollout, 0)
    assert log == [
        *("engine wake_up", *["episode"] * 12),
        "engine sleep",  # before anything is scored or trained
        "scores",
        *("policy append", "critic append"),
        *("critic reload_states", "critic fit", "critic offload_states"),
        *("policy reload_states", "policy fit", "policy offload_states"),
        "engine wake_up weights",  # without the key-value cache, which comes with the next rollout
        "policy broadcast_to_vllm",
        *("policy weight_sums", "engine weight_sums"),
    ]


@pytest.mark.parametrize("gap", [0.31, float("nan")])
def test_samples_that_are_not_the_policys_stop_the_run_before_it_learns(
    monkeypatch: pytest.MonkeyPatch, gap: float
) -> None:
    made, rollout, log = _trainer(monkeypatch, gap)
    with pytest.raises(LogprobGapError, match=f"In update 6, .* are {gap} nats"):
        made.train_step(rollout, 5)
    assert not [line for line in log if line.startswith("policy")]
