"""The floor of ALFWorld's observations, and what a model holds of the same tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import load

pytest.importorskip("torch")

import hostile

from paw_gym import RecordTransitions
from paw_gym.envs.alfworld.oracle.observer import Chance
from paw_gym.envs.alfworld.oracle.recorded import recorded_chances
from paw_gym.transition import Episode, read_jsonl, write_jsonl
from paw_gym.wrappers import make_agent_env

floor: Any = load("benchmarks/observation_floor.py")


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> list[Episode]:
    """The expert's, each after an action that is refused."""
    path = tmp_path_factory.mktemp("played") / "episodes.jsonl"
    made = make_agent_env(
        "paw_gym/ALFWorld-v0", template="compact", mode="conversation", variation="modified"
    )
    env = RecordTransitions(made, path)
    for index in range(3):
        env.reset(options={"task_index": index})
        for response in ["<action>dance</action>", *env.unwrapped.reference_solution()]:
            env.step(response)
    env.close()
    return list(read_jsonl(path))


def test_a_chance_falls_on_the_first_of_its_tokens() -> None:
    class Words:
        def decode(self, ids: list[int]) -> str:
            return "".join(["On", " the", " shelf 12", ", a", " mug 3", "."][i] for i in ids)

    chances = [
        Chance(0, 2, 0.5, "closed"),
        Chance(17, 18, 0.25, "last"),
        Chance(19, 22, 0.1, "object"),
    ]
    p, what = floor.true_probabilities([0, 1, 2, 3, 4, 5], chances, Words())
    assert p == [0.5, 1, 1, 0.25, 0.1, 1]
    assert what == ["closed", floor.CERTAIN, floor.CERTAIN, "last", "object", floor.CERTAIN]


def test_floor_and_excess_add_up(episodes: list[Episode], tmp_path: Path) -> None:
    policy = hostile.tiny_policy()
    env = make_agent_env("paw_gym/ALFWorld-v0", template="compact", mode="conversation")
    wanted = floor.predictions(episodes, policy.chat, env.text_env.prompt_observation, env.template)
    chances = [line for episode in episodes for line in recorded_chances(episode)]
    tokens = floor.Tokens(policy, wanted, chances)
    assert -tokens.true.sum() == pytest.approx(
        -sum(math.log(c.p) for line in chances for c in line)
    )
    assert len(tokens.model) == len(tokens.true) == sum(tokens.lengths)
    found = floor.measure(tokens)
    gap = found["nll"]["mean"] - found["floor"]["mean"]
    assert found["excess"]["mean"] == pytest.approx(gap) and gap > 0
    assert found["kinds"]["refused"]["floor"] == 0.0 and 0 < found["certain"] < 1
    assert sum(kind["tokens"] for kind in found["kinds"].values()) == found["tokens"]
    # an untrained model has nearly everything to learn, so what is read is what can be learned
    everything = found["reads"]["cross-entropy"]
    assert everything["kept"] == 1.0 and everything["precision"] > 0.9
    models = {"untrained-seed0": found, "untrained-seed1": found}
    floor.figure(models, tmp_path / "floor.svg")
    assert "untrained" in (tmp_path / "floor.svg").read_text()
    line = next(line for line in floor.table(models).split("\n") if line.startswith("| untrained"))
    _, _, seeds, nll, above, *parts, _, _ = (entry.strip() for entry in line.split("|"))
    assert seeds == "2" and float(nll) == pytest.approx(found["nll"]["mean"], abs=5e-4)
    assert sum(map(float, parts)) == pytest.approx(float(above), abs=3e-3)


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    label, score = rng.random(60) < 0.3, rng.integers(0, 5, 60).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in score[label] for b in score[~label]]
    assert floor.auroc(label, score) == pytest.approx(np.mean(pairs))
    assert floor.auroc(np.ones(3, dtype=bool), np.zeros(3)) is None


def test_the_program_adds_models_to_its_results(
    episodes: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "episodes.jsonl", episodes)
    hostile.tiny_policy().save(tmp_path / "one")
    given = [str(tmp_path / "one"), "--episodes", str(tmp_path / "episodes.jsonl")]
    out = ["--out", str(tmp_path / "floor.json"), "--figure", str(tmp_path / "floor.svg")]
    monkeypatch.setattr("sys.argv", ["observation_floor.py", *given, *out])
    floor.main()
    assert (tmp_path / "floor.json").is_file() and (tmp_path / "floor.svg").is_file()
