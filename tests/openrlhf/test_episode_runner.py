"""Episodes on the cluster: what labels carry, and playing against an engine on an event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from rows import transitions

from paw_train.environments import agent_env_maker, make_pool
from paw_train.policies.local.scratch import word_tokenizer
from paw_train.settings import Settings, load_settings
from paw_train.training.cluster_options import VARIABLE, VLLM, worker_environment, worker_settings
from paw_train.training.openrlhf.episode_runner import EpisodeRunner
from paw_train.training.openrlhf.episodes import (
    GroupLabel,
    engines_of,
    panel_groups,
    training_groups,
    write_data_sets,
)

LOOK = "<action>look</action>"
TOKENIZER = word_tokenizer([f"{LOOK} you are in the middle of a room"])
MODEL = TemporaryDirectory()
"""of the model, episodes need the tokenizer alone"""
TOKENIZER.save_pretrained(MODEL.name)


def _settings(*overrides: str) -> Settings:
    few = ("rollout.groups=2", "rollout.group_size=3", "env.train_kwargs={max_steps: 4}")
    given = ("engine=openrlhf", f"model.path={MODEL.name}", "rollout.max_response_tokens=12")
    return load_settings("smoke", [*given, *few, *overrides])


class Engine:
    """A Ray actor that answers as vLLM does, with a fixed action; notes which thread it runs on."""

    def __init__(self, fail_at: int = -1, error: type[Exception] = RuntimeError) -> None:
        self.ids = TOKENIZER(LOOK, add_special_tokens=False)["input_ids"]
        self.fail_at, self.error, self.threads = fail_at, error, set[int]()
        self.parameters: list[Any] = []
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, ids: list[int], parameters: Any) -> Any:
        self.threads.add(threading.get_ident())
        self.parameters.append(parameters)
        if len(self.parameters) == self.fail_at:
            raise self.error("engine died")
        await asyncio.sleep(0)
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in self.ids]
        said = {"token_ids": list(self.ids), "logprobs": logprobs, "finish_reason": "stop"}
        return SimpleNamespace(outputs=[SimpleNamespace(**said)])


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling parameters without vLLM, which the ordinary environment has not."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))


def _run(runner: EpisodeRunner, label: GroupLabel, engine: Engine) -> list[Any]:
    async def all_of_them() -> list[Any]:
        runs = (runner.run("row", episode, engine) for episode in label.episodes())
        # an actor's loop outlives its episodes: threads of a loop that has ended would wait for ever
        return await asyncio.gather(*runs, return_exceptions=True)

    played = asyncio.run(all_of_them())
    for error in played:
        if isinstance(error, BaseException):
            raise error
    return [found["trajectory"] for found in played]


def _label(settings: Settings) -> GroupLabel:
    env = agent_env_maker(settings.env, settings.env.train_split)()
    return next(training_groups(env.tasks, settings))


def test_labels_name_what_the_local_engine_would_run() -> None:
    settings = _settings("updates=2")
    pool = make_pool(settings.env, settings.env.train_split, 2, 3, settings.seed + 1)
    labels = list(training_groups(pool.tasks, settings))
    assert [(label.update, label.group) for label in labels] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for update in range(2):
        pool.reset()
        found = [
            f"{label.task_id}#{seed:08x}-{member}"
            for label in labels[2 * update : 2 * update + 2]
            for member, seed in enumerate(label.seeds)
        ]
        assert found == [episode.episode_id for episode in pool.episodes]
    assert GroupLabel.from_json(labels[0].to_json()) == labels[0]


@pytest.mark.parametrize(("mode", "rows"), [("window", 4), ("conversation", 1)])
def test_a_group_is_played_off_the_event_loop_with_ids_as_sampled(mode: str, rows: int) -> None:
    settings = _settings(f"env.mode={mode}")
    label, engine = _label(settings), Engine()
    trajectories = _run(EpisodeRunner(settings), label, engine)
    assert len(engine.threads) == 1  # the loop's own, whatever threads the episodes ran in
    assert {t.episode.task_id for t in trajectories} == {label.task_id}
    names = {t.episode.episode_id.partition("#")[2][:8] for t in trajectories}
    assert names == {f"{seed:08x}" for seed in label.seeds}
    for t in trajectories:
        assert t.episode.error is None
        assert len(t.episode.transitions) == 4
        assert len(t.rows) == rows
        found = transitions(t.rows)
        assert len(found) == 4
        for row, action, _ in found:
            assert [row.ids[i] for i in action] == engine.ids
            assert [row.logprob[i] for i in action] == [-0.5] * len(engine.ids)
    assert {p.max_tokens for p in engine.parameters} == {12}
    assert len({p.seed for p in engine.parameters}) == len(engine.parameters)


def test_an_engine_that_raises_fails_one_episode_a_dead_one_the_run() -> None:
    settings = _settings()
    trajectories = _run(EpisodeRunner(settings), _label(settings), Engine(fail_at=5))
    [error] = [t.episode.error for t in trajectories if t.episode.error is not None]
    assert "engine died" in error
    dead = type("EngineDeadError", (Exception,), {})  # vLLM's has this name
    with pytest.raises(dead):
        _run(EpisodeRunner(settings), _label(settings), Engine(5, dead))


def test_an_environment_that_raises_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, made = _settings(), []

    def maker(*args: Any) -> Any:
        make = agent_env_maker(*args)

        def made_env() -> Any:
            env = make()
            made.append(env)
            if len(made) == 1:
                monkeypatch.setattr(env, "step", lambda _: 1 / 0)
            return env

        return made_env

    monkeypatch.setattr("paw_train.training.openrlhf.episode_runner.agent_env_maker", maker)
    runner, label = EpisodeRunner(settings), _label(settings)
    first = _run(runner, label, Engine())
    assert sum("ZeroDivisionError" in (t.episode.error or "") for t in first) == 1
    again = _run(runner, label, Engine())
    assert all(t.episode.error is None for t in again)
    assert made[0] not in [env for idle in runner._idle.values() for env in idle]


def test_validation_plays_the_panel_at_its_own_temperature(tmp_path: Path) -> None:
    settings = _settings("evaluation.every=1", "evaluation.selection_tasks=3")
    env = agent_env_maker(settings.env, settings.evaluation.selection_split)()
    labels = list(panel_groups(env.tasks, settings))
    assert len({label.task_id for label in labels}) == 3
    engine = Engine()
    runner = EpisodeRunner(_settings("evaluation.every=1", "evaluation.temperature=0.25"))
    _run(runner, labels[0], engine)
    assert {p.temperature for p in engine.parameters} == {0.25}
    write_data_sets(settings, tmp_path)
    assert len((tmp_path / "panel.jsonl").read_text().splitlines()) == 3
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 2 * settings.updates


def test_environments_are_told_the_update_and_validations_are_not() -> None:
    settings = _settings("updates=4", "evaluation.every=1", "evaluation.selection_tasks=1")
    env = agent_env_maker(settings.env, settings.env.train_split)()
    labels = list(training_groups(env.tasks, settings))
    runner = EpisodeRunner(settings)
    panel = agent_env_maker(settings.env, settings.evaluation.selection_split)()
    validation = next(panel_groups(panel.tasks, settings))
    told = []
    for label in (labels[0], validation, labels[-1]):
        _run(runner, label, Engine())
        last_used = runner._idle[runner._kind(label)][-1]
        told.append(last_used.text_env.progress)
    assert told == [0.0, None, 0.75]


def test_workers_get_the_settings_whole_and_run_the_parts_of_vllm_that_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = _settings("world_model.filter_patterns=[a, b]")
    for given, taken in ((None, "0"), ("1", "1")):  # unless told otherwise
        for name in VLLM:
            monkeypatch.setenv(name, given) if given else monkeypatch.delenv(name, raising=False)
        found = worker_environment(settings)
        assert {name: found[name] for name in VLLM} == dict.fromkeys(VLLM, taken)
        monkeypatch.setenv(VARIABLE, found[VARIABLE])
        assert worker_settings() == settings


def test_whole_groups_stay_together_where_they_divide_evenly() -> None:
    places = defaultdict(set)
    for episode, engine in enumerate(engines_of(16 * 8, 8)):
        places[episode // 8].add(engine)
    assert all(len(engines) == 1 for engines in places.values())


@pytest.mark.parametrize(("engines", "busy"), [(1, 1), (48, 48), (200, 128)])
def test_no_engine_idles_while_there_are_episodes(engines: int, busy: int) -> None:
    used = Counter(engines_of(16 * 8, engines))
    assert len(used) == busy and used.total() == 128
    assert max(used.values()) - min(used.values()) <= 1
