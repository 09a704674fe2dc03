"""What a run keeps of its tokens, against the model's own logits and the paper's formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import hostile
import pytest
import torch
from files import measured
from rows import transitions
from small_policies import SMALL, word_policy
from trajectories import made_up

from paw_gym.transition import read_jsonl
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import Settings
from paw_train.training.recording import TokenTexts, record, token_records

WORDS = "you see a red mug on the desk 1 and an egg in fridge 2 . take put go to look open"


def _policy() -> LocalPolicy:
    return word_policy([WORDS, "naïve 模型 🙂"], **SMALL)


def _played(policy: LocalPolicy, conversation: bool) -> list[Trajectory]:
    episodes = [(0, 2, 10.0), (0, 3, 0.0), (1, 1, 0.0), (1, 2, -1.0)]
    played = made_up(conversation, episodes, range(len(policy.tokenizer)))
    for trajectory in played:
        trajectory.offered += [[f"go to {i}"] for i in range(len(trajectory.episode.transitions))]
    return played


def _settings(**changes: Any) -> Settings:
    plain = {"rollout": {"temperature": 0.7}, "optimizer": {"micro_batch_tokens": 40}}
    return Settings.read(plain | changes)


def _records(policy: LocalPolicy, played: list[Trajectory], settings: Settings) -> list[Any]:
    pool = collect(played)
    experience = prepare(pool, settings.algorithm, settings.objective, settings.world_model, 10.0)
    return json.loads(json.dumps(token_records(played, pool, experience, policy, settings)))


@pytest.mark.parametrize("conversation", [False, True])
def test_probabilities_are_those_of_the_models_logits(conversation: bool) -> None:
    policy = _policy()
    played = _played(policy, conversation)
    records = _records(policy, played, _settings())
    for trajectory, found in zip(played, records, strict=True):
        steps = transitions(trajectory.rows)
        for (row, action, observation), step in zip(steps, found["steps"], strict=True):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([row.ids])).logits[0].double()
            for name, places, heat in (
                ("response", action, 0.7),
                ("observation", observation, 1.0),
            ):
                wanted = [
                    float(torch.log_softmax(logits[t - 1] / heat, -1)[row.ids[t]]) for t in places
                ]
                assert step[name]["logprobs"] == pytest.approx(wanted, abs=2e-5)
                assert "".join(step[name]["tokens"]) == policy.chat.raw(
                    [row.ids[t] for t in places]
                )
                assert len(step[name]["tokens"]) == len(places)
            clipped = [math.exp(value) > 0.2 for value in step["observation"]["logprobs"]]
            assert step["observation"]["clipped"] == "".join("01"[flag] for flag in clipped)


def test_selection_weights_and_advantages_are_those_of_the_paper() -> None:
    policy = _policy()
    played = _played(policy, True)
    settings = _settings(world_model={"alpha": 0.5})
    records = _records(policy, played, settings)
    steps = [step for found in records for step in found["steps"]]
    found = transitions([row for t in played for row in t.rows])
    logprobs = [[row.logprob[i] for i in action] for row, action, _ in found]
    entropy = [-sum(math.exp(q) * q for q in own) / len(own) for own in logprobs]
    assert [s["entropy"] for s in steps] == pytest.approx(entropy, rel=1e-5)
    chosen = sorted(range(8), key=lambda i: -entropy[i])[:4]
    assert [i for i, s in enumerate(steps) if s["selected"]] == sorted(chosen)
    group = [0] * 5 + [1] * 3
    lambdas = [1 - 5.0 / 10, 1 + 0.5 / 10]
    assert [r["lambda"] for r in records] == pytest.approx([lambdas[0]] * 2 + [lambdas[1]] * 2)
    for i, step in enumerate(steps):
        size = sum(group[j] == group[i] for j in chosen)
        wanted = lambdas[group[i]] / (2 * size) if i in chosen else 0.0
        assert step["weight"] == pytest.approx(wanted, rel=1e-6)
    by_episode = [r["steps"][0]["advantage"] for r in records]
    assert by_episode[0] == -by_episode[1] > 0 and by_episode[2] == -by_episode[3] > 0
    assert [s["admissible"] for s in records[1]["steps"]] == [["go to 0"], ["go to 1"], ["go to 2"]]


def test_an_episode_that_was_not_learned_from_has_no_tokens(tmp_path: Path) -> None:
    policy = _policy()
    played = _played(policy, True)
    played[1].episode.error = "Traceback"
    settings = _settings()
    pool = collect(played)
    experience = prepare(pool, settings.algorithm, settings.objective, settings.world_model, 10.0)
    record(tmp_path, 7, played[:2], pool, experience, policy, settings)
    lines = (tmp_path / "tokens" / "000007.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode_id"] for line in lines] == ["e0"]
    assert json.loads(lines[0])["update"] == 7
    kept = list(read_jsonl(tmp_path / "rollouts" / "000007.jsonl"))
    assert [e.episode_id for e in kept] == ["e0", "e1"]


def test_characters_spread_over_tokens_stay_whole() -> None:
    chat = ChatFormat(hostile.byte_tokenizer())
    text = "a 模型 🙂é!"
    ids = chat.content(text)
    pieces = TokenTexts(chat)(ids)
    assert "".join(pieces) == text and len(pieces) == len(ids) == len(text.encode())
    assert pieces[2:5] == ["", "", "模"]
    assert "".join(TokenTexts(chat)(ids[:4])) == chat.raw(ids[:4])


@pytest.mark.slow
def test_a_run_keeps_what_it_is_asked_to(real_run: Path) -> None:
    for update in range(4):
        name = f"{update + 1:06d}.jsonl"
        episodes = list(read_jsonl(real_run / "rollouts" / name))
        lines = [json.loads(x) for x in (real_run / "tokens" / name).read_text().splitlines()]
        assert [e.episode_id for e in episodes] == [line["episode_id"] for line in lines]
        assert len(episodes) == 4
        metrics = json.loads((real_run / "metrics.jsonl").read_text().splitlines()[update])
        steps = [step for line in lines for step in line["steps"]]
        assert len(steps) == metrics["transitions"]
        selected = [step for step in steps if step["selected"]]
        assert len(selected) / len(steps) == pytest.approx(metrics["selected_share"])
        assert min(s["entropy"] for s in selected) == pytest.approx(metrics["entropy_threshold"])
        for episode, line in zip(episodes, lines, strict=True):
            for t, step in zip(episode.transitions, line["steps"], strict=True):
                assert "".join(step["observation"]["tokens"]).strip() == t.next_observation.strip()


@pytest.mark.slow
def test_recording_changes_nothing_that_is_computed(real_run: Path, tmp_path: Path) -> None:
    from paw_train.training.local import train_from_recipe

    again = train_from_recipe("smoke", [f"out={tmp_path}", "record.every=0"], quiet=True)
    assert not (again / "rollouts").exists() and not (again / "tokens").exists()
    assert measured(again) == measured(real_run)
