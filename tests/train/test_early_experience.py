"""Early experience: other actions in the expert's states, learned from before policy RL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paw_train.environments import agent_env_maker, make_pool
from paw_train.settings import EnvSettings, load_settings
from paw_train.training import local
from paw_train.training.preparation import checked_settings
from paw_train.world_model_learning.early_experience import early_experience, read_experience

K = 3
HOUSE = EnvSettings(
    id="paw_gym/ALFWorld-v0", template="generic", kwargs={"variation": "mixed"}, train_split="train"
)


def test_each_alternative_is_what_its_action_does_in_that_state() -> None:
    """Played again from the start, without going back to anything."""
    pool = make_pool(HOUSE, HOUSE.train_split, 1, 1, 0)
    other, env = (agent_env_maker(HOUSE, HOUSE.train_split)() for _ in range(2))
    found = early_experience(pool, other, pool.tasks.ids[:2], K, np.random.default_rng(0))
    assert len(found) == 2
    for one in found:
        assert one.episode.success
        steps = one.episode.transitions
        assert len(one.alternatives) == len(steps)
        for step, others in enumerate(one.alternatives):
            actions = [tried.action for tried in others]
            assert len(set(actions)) == len(actions) == K
            assert steps[step].action not in actions
            for tried in others[:: K - 1]:
                env.reset(options={"task_id": one.episode.task_id})
                for before in steps[:step]:
                    env.step(before.response)
                again = env.step(tried.response)[-1]["transition"]
                assert again.prompt == tried.prompt
                assert again.next_observation == tried.next_observation
                assert again.action_is_valid and tried.parent == one.episode.episode_id
    for played in (pool, other, env):
        played.close()


@pytest.mark.parametrize("done", ["saved", "restored"])
def test_an_environment_that_cannot_be_branched_is_named(
    monkeypatch: pytest.MonkeyPatch, done: str
) -> None:
    pool = make_pool(HOUSE, HOUSE.train_split, 1, 1, 0)
    env = pool.env_of(pool.reset()[0])
    method = {"saved": "save_state", "restored": "restore_state"}[done]
    monkeypatch.setattr(type(env), method, lambda *given: 1 // 0)
    reason = rf"paw_gym/ALFWorld-v0 cannot be branched.*cannot be {done} \(ZeroDivisionError"
    with pytest.raises(ValueError, match=reason):
        early_experience(pool, env, pool.tasks.ids[:1], K, np.random.default_rng(0))


SMALL = [
    *("updates=1", "checkpoint_every=1", "cloning.checkpoint_every=1"),
    *("evaluation.every=0", "evaluation.tasks=4", "world_model_learning.method=iwm"),
    *("world_model_learning.episodes=6", "world_model_learning.held_out_episodes=2"),
    *("world_model_learning.encoder=words", "world_model_learning.early.alternatives=2"),
    *("world_model_learning.early.imitation_steps=4", "world_model_learning.sft.updates=4"),
    *("world_model_learning.sft.batch_tokens=600", "world_model_learning.sft.lr=1e-3"),
]


def train(out: Path) -> Path:
    return local.train_from_recipe("smoke", [f"out={out}", *SMALL], quiet=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not stopped."""
    return train(tmp_path_factory.mktemp("whole"))


def outcome(run: Path) -> tuple[Any, ...]:
    """The weights, two measurements, and the curve of the imitation."""
    weights = (run / "checkpoints" / "world_model" / "model" / "model.safetensors").read_bytes()
    files = (run / "world_model" / f"{when}.json" for when in ("start", "learned"))
    measured = [json.loads(file.read_text())["nll_per_token"] for file in files]
    lines = map(json.loads, (run / "imitation.jsonl").read_text().splitlines())
    return weights, measured, [(line["step"], line["loss"]) for line in lines]


def test_implicit_world_modelling_then_imitation_then_rl(whole: Path) -> None:
    experience = read_experience(whole / "world_model" / "early_experience.jsonl")
    tried = sum(1 + len(row) for one in experience for row in one.alternatives)
    chosen = json.loads((whole / "world_model" / "chosen.json").read_text())
    assert chosen["transitions"] == tried
    assert len((whole / "world_model.jsonl").read_text().splitlines()) == 4
    assert outcome(whole)[-1][-1][0] == 4
    left = {path.name for path in (whole / "checkpoints").iterdir()}
    assert not left & {"world_model-latest", "imitation-latest"}


def test_stopped_while_it_imitates_it_goes_on_to_the_same_weights(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned = local.clone

    def stopped_halfway(*args: Any) -> bool:
        *first, tell, latest, stopping, say = args
        done: list[int] = []

        def progress(step: int, steps: int, loss: float) -> None:
            done.append(step)
            tell(step, steps, loss)

        imitating = "imitation" in str(latest)

        def halfway() -> bool:
            return stopping() or (imitating and len(done) >= 2)

        return cloned(*first, progress, latest, halfway, say)

    monkeypatch.setattr(local, "clone", stopped_halfway)
    run = train(tmp_path)
    assert not (run / "checkpoints" / "world_model").exists()
    assert (run / "checkpoints" / "imitation-latest").exists()
    monkeypatch.setattr(local, "clone", cloned)
    assert train(tmp_path) == run
    assert outcome(run) == outcome(whole)


def test_an_environment_that_lists_no_actions_is_refused_before_anything_starts() -> None:
    changes = [
        "world_model_learning.method=iwm",
        "env={id: paw_gym/SearchQA-v0}",
        "cloning.episodes=0",
    ]
    with pytest.raises(ValueError, match="does not list its admissible actions"):
        checked_settings(load_settings("smoke", changes), print)
