"""What an update does in which order, colocated and beside rollouts, by recording stubs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import vllm_engine
from rows import token_row

from paw_gym.transition import Episode, Transition
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import Settings, load_settings
from paw_train.training.openrlhf import samples, trainer
from paw_train.training.openrlhf.episodes import (
    GroupLabel,
    response,
)
from paw_train.training.openrlhf.weights import LogprobGapError, StaleWeightsError, Sums

TRAINED = Sums(1.0, 2.0, 3.0)


class Engine:
    """Records what it is asked to do."""

    def __init__(self, log: list[str], sums: Sums) -> None:
        self.log, self.sums = log, sums

    def __getattr__(self, name: str) -> Any:
        def remote(*values: Any, **given: Any) -> Any:
            words = [name, *map(str, values), *given.get("tags", ())]
            self.log.append(f"engine {' '.join(words)}")
            if name == "weight_sums":
                return [list(self.sums)]
            return Promise([_episode(given)] if name == "generate_responses" else None)

        return SimpleNamespace(remote=remote)


class Promise:
    """Ray's, already kept."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Loader(list[Any]):
    """A data loader that is asked where it is."""

    def state_dict(self) -> dict[str, Any]:
        return {}


class Group:
    """The ranks of a model; records what they are asked to do."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def async_run_method(self, method_name: str, **_: Any) -> Any:
        self.log.append(f"{self.name} {method_name}")
        return [TRAINED] if method_name == "weight_sums" else [{}]

    def async_run_method_batch(self, method_name: str, **_: Any) -> Any:
        return self.async_run_method(method_name)


def _episode(given: dict[str, Any]) -> dict[str, Any]:
    label = GroupLabel.from_json(given["label"])
    step = Transition("e", "t", str(label.member), 0, "", "", "", "", 1.0, "", True, False, True)
    episode = Episode("e", "t", step.episode_id, group=0, transitions=[step])
    row = token_row([5, 6, 7], ((1, 3), (3, 3)))
    return response(Trajectory(episode, [row]), given["prompt"], label)


def _settings() -> Settings:
    changes = ["engine=openrlhf", "openrlhf.colocate=all", "openrlhf.environment_workers=0"]
    few = ["rollout.groups=1", "rollout.group_size=2", "openrlhf.checksum_every=1"]
    return load_settings("smoke", [*changes, *few, "openrlhf.gpus_per_node=1"])


def _trainer(monkeypatch: pytest.MonkeyPatch, log: list[str], sums: Sums) -> Any:
    def get(value: Any) -> Any:
        return value.value if isinstance(value, Promise) else value

    stub = SimpleNamespace(get=get, wait=lambda refs, num_returns: (refs[:1], refs[1:]))
    for module in (ppo_trainer, samples, trainer, vllm_engine):
        monkeypatch.setattr(module, "ray", stub)
    made = trainer.PaWTrainer.__new__(trainer.PaWTrainer)
    made.run = _settings()
    made.args = SimpleNamespace(
        vllm=SimpleNamespace(enable_sleep=True),
        ds=SimpleNamespace(enable_sleep=True),
        train=SimpleNamespace(dynamic_batch_enable=False),
        critic=SimpleNamespace(freezing_steps=-1),
        rollout=SimpleNamespace(batch_size=1, n_samples_per_prompt=2),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
    )
    made.vllm_engines = [Engine(log, sums)]
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
        make_experience_batch=score, metrics={"logprob_gap": 0.01}
    )
    made.samples_generator = samples.TurnSamplesGenerator.__new__(samples.TurnSamplesGenerator)
    generator = made.samples_generator
    generator.run, generator.args, generator.tokenizer = made.run, made.args, None
    generator.vllm_engines = made.vllm_engines
    label = GroupLabel("train", "t", (1, 2), 0, 0).to_json()
    generator.prompts_dataloader = Loader([(None, ["train/0"], [label], [None])])
    return made


def test_models_and_engines_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    made = _trainer(monkeypatch, log, TRAINED)
    rollout, *_ = made.samples_generator.generate_samples()
    assert len(rollout) == 2
    made.train_step(rollout, 0)
    assert log == [
        *("engine wake_up", "engine generate_responses", "engine generate_responses"),
        "engine sleep",  # before anything is scored or trained
        "scores",
        *("policy append", "critic append"),
        *("critic reload_states", "critic fit", "critic offload_states"),
        *("policy reload_states", "policy fit", "policy offload_states"),
        "engine wake_up weights",  # without the key-value cache, which comes with the next rollout
        "policy broadcast_to_vllm",
        *("policy weight_sums", "engine weight_sums"),
    ]


def test_an_engine_with_old_weights_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _trainer(monkeypatch, [], Sums(1.0, 2.5, 3.0))
    rollout, *_ = made.samples_generator.generate_samples()
    with pytest.raises(StaleWeightsError):
        made.train_step(rollout, 0)


@pytest.mark.parametrize(("gap", "version"), [(0.31, None), (float("nan"), None), (0.31, 5)])
def test_samples_of_another_distribution_stop_the_run_before_it_learns(
    monkeypatch: pytest.MonkeyPatch, gap: float, version: int | None
) -> None:
    log: list[str] = []
    made = _trainer(monkeypatch, log, TRAINED)
    rollout, *_ = made.samples_generator.generate_samples()
    if version is not None:
        _beside(made, version)
    made.experience_maker.metrics["logprob_gap"] = gap
    with pytest.raises(LogprobGapError, match=f"In update 6, .* are {gap} nats"):
        made.train_step(rollout, 5)
    assert log[-1] == "scores"


def test_an_older_policy_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _trainer(monkeypatch, [], TRAINED)
    rollout, *_ = made.samples_generator.generate_samples()
    _beside(made, 4)
    made.experience_maker.metrics["logprob_gap"] = 0.31
    made.train_step(rollout, 5)


def _beside(made: Any, version: int) -> list[dict[str, float]]:
    """Gives a trainer a rollout that was sampled beside training; what it will have recorded."""
    recorded: list[dict[str, float]] = []
    made.records.update = lambda _, metrics: recorded.append(metrics)
    o = made.run.openrlhf.replace(colocate="none", max_staleness=2)
    made.run = made.run.replace(openrlhf=o)
    made.args.vllm.enable_sleep, made._waited = False, 0.0
    taken = made.samples_generator.taken
    made.samples_generator.taken = samples.Rollout(
        taken.answer, taken.sampled, 2.5, version, taken.position
    )
    return recorded


def test_weights_are_sent_with_the_number_of_updates_they_have_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    made = _trainer(monkeypatch, log, TRAINED)
    rollout, *_ = made.samples_generator.generate_samples()
    recorded = _beside(made, 3)
    made.train_step(rollout, 5)
    sent = log.index("policy broadcast_to_vllm")
    assert log[sent : sent + 3] == [
        "policy broadcast_to_vllm",
        "engine set_policy_version 6",
        "policy weight_sums",
    ]
    assert recorded[0]["staleness"] == 2
    assert recorded[0]["seconds_sampling"] == 2.5


@pytest.mark.parametrize("version", [2, 6])
def test_nothing_is_learned_from_a_rollout_outside_the_bound(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    log: list[str] = []
    made = _trainer(monkeypatch, log, TRAINED)
    rollout, *_ = made.samples_generator.generate_samples()
    _beside(made, version)
    before = list(log)
    with pytest.raises(trainer.StaleRolloutError, match=rf"{5 - version} behind.*max_staleness=2"):
        made.train_step(rollout, 5)
    assert log == before


def test_a_checkpoint_is_behind_what_was_learned_from_not_behind_what_was_sampled() -> None:
    loader = trainer.StatefulDataLoader(list(range(6)), batch_size=1, collate_fn=lambda x: x[0])
    generator = SimpleNamespace(taken=None)
    rows = trainer.TakenRollouts(loader, generator)
    sampled = iter(loader)
    assert [next(sampled), next(sampled)] == [0, 1]
    generator.taken = SimpleNamespace(position=loader.state_dict())
    assert [next(sampled), next(sampled)] == [2, 3]  # ahead of training
    position = rows.state_dict()
    again = trainer.StatefulDataLoader(list(range(6)), batch_size=1, collate_fn=lambda x: x[0])
    resumed = trainer.TakenRollouts(again, generator)
    resumed.load_state_dict(position)
    assert list(again) == [2, 3, 4, 5]
    assert len(resumed) == 6
