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
from paw_train.world_model_learning.early_experience import (
    ExpertExperience,
    early_experience,
    read_experience,
    write_experience,
)

K = 3
HOUSE = EnvSettings(
    id="paw_gym/ALFWorld-v0", template="generic", kwargs={"variation": "mixed"}, train_split="train"
)


def collected() -> list[ExpertExperience]:
    pool = make_pool(HOUSE, HOUSE.train_split, 1, 1, 0)
    other = agent_env_maker(HOUSE, HOUSE.train_split)()
    rng = np.random.default_rng(0)
    found = early_experience(pool, other, pool.tasks.ids[:2], K, rng)
    pool.close()
    other.close()
    return found


def test_each_alternative_is_what_its_action_does_in_that_state() -> None:
    """Played again from the start, without going back to anything."""
    found = collected()
    assert len(found) == 2
    env = agent_env_maker(HOUSE, HOUSE.train_split)()
    for one in found:
        assert one.episode.success
        steps = one.episode.transitions
        assert len(one.alternatives) == len(steps)
        for step, others in enumerate(one.alternatives):
            actions = [other.action for other in others]
            assert len(set(actions)) == len(actions) == K
            assert steps[step].action not in actions
            for other in others[:: K - 1]:
                env.reset(options={"task_id": one.episode.task_id})
                for before in steps[:step]:
                    env.step(before.response)
                again = env.step(other.response)[-1]["transition"]
                assert (again.prompt, again.next_observation) == (
                    other.prompt,
                    other.next_observation,
                )
                assert again.action_is_valid and other.parent == one.episode.episode_id
    env.close()


def test_equal_seeds_give_equal_experience_and_files_give_it_back(tmp_path: Path) -> None:
    found = collected()
    assert [[[t.action for t in row] for row in one.alternatives] for one in found] == [
        [[t.action for t in row] for row in one.alternatives] for one in collected()
    ]
    write_experience(tmp_path / "e.jsonl", found)
    assert read_experience(tmp_path / "e.jsonl") == found


def overrides(out: Path, **more: Any) -> list[str]:
    own = {
        "episodes": 6, "encoder": "words", "held_out_episodes": 2, "early.alternatives": 2,
        "early.imitation_steps": 4, "sft.updates": 4, "sft.batch_tokens": 600, "sft.lr": 1e-3,
    }  # fmt: skip
    other = {"updates": 1, "checkpoint_every": 1, "evaluation.every": 0, "evaluation.tasks": 4}
    given = {
        "out": out,
        "cloning.checkpoint_every": 1,
        **other,
        **{f"world_model_learning.{key}": value for key, value in own.items()},
        **more,
    }
    return [f"{key}={value}" for key, value in given.items()]


def train(out: Path, method: str, **more: Any) -> Path:
    wanted = overrides(out, **{"world_model_learning.method": method, **more})
    return local.train_from_recipe("smoke", wanted, quiet=True)


def outcome(run: Path) -> dict[str, Any]:
    place = run / "checkpoints" / "world_model" / "model"
    imitated = [json.loads(line) for line in (run / "imitation.jsonl").read_text().splitlines()]
    measured = {
        when: json.loads((run / "world_model" / f"{when}.json").read_text())["nll_per_token"]
        for when in ("start", "learned")
    }
    return {
        "weights": (place / "model.safetensors").read_bytes(),
        "imitated": [(line["step"], line["loss"]) for line in imitated],
        "measured": measured,
    }


def test_implicit_world_modelling_then_imitation_then_rl(tmp_path: Path) -> None:
    run = train(tmp_path, "iwm")
    experience = read_experience(run / "world_model" / "early_experience.jsonl")
    tried = sum(1 + len(row) for one in experience for row in one.alternatives)
    chosen = json.loads((run / "world_model" / "chosen.json").read_text())
    assert chosen["transitions"] == tried
    assert len((run / "world_model.jsonl").read_text().splitlines()) == 4
    assert outcome(run)["imitated"][-1][0] == 4
    left = {path.name for path in (run / "checkpoints").iterdir()}
    assert not left & {"world_model-latest", "imitation-latest"}


def test_stopped_while_it_imitates_it_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = outcome(train(tmp_path / "whole", "iwm"))

    cloned = local.clone

    def stopped_halfway(*args: Any) -> bool:
        *first, tell, latest, stopping, say = args
        done: list[int] = []

        def progress(step: int, steps: int, loss: float) -> None:
            done.append(step)
            tell(step, steps, loss)

        imitating = "imitation" in str(latest)
        return cloned(
            *first,
            progress,
            latest,
            lambda: stopping() or (imitating and len(done) >= 2),
            say,
        )

    monkeypatch.setattr(local, "clone", stopped_halfway)
    run = train(tmp_path / "parts", "iwm")
    assert not (run / "checkpoints" / "world_model").exists()
    assert (run / "checkpoints" / "imitation-latest").exists()
    monkeypatch.setattr(local, "clone", cloned)
    assert train(tmp_path / "parts", "iwm") == run
    assert outcome(run) == whole


def test_an_environment_that_lists_no_actions_is_refused_before_anything_starts() -> None:
    changes = [
        "world_model_learning.method=iwm",
        "env={id: paw_gym/SearchQA-v0}",
        "cloning.episodes=0",
    ]
    with pytest.raises(ValueError, match="does not list its admissible actions"):
        checked_settings(load_settings("smoke", changes), print)
