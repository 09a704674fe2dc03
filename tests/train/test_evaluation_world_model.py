"""What is measured of a world model is what the model says of the observations, and of nothing else."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
import torch
from rows import parts, transitions
from transformers import LlamaForCausalLM

from paw_gym.pool import EnvPool
from paw_gym.transition import write_jsonl
from paw_train.environments import agent_env_maker
from paw_train.evaluation import world_model, world_model_program
from paw_train.evaluation.world_model import Prediction
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import demonstrations
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import OBSERVATION
from paw_train.settings import EnvSettings

TOKENIZER = hostile.byte_tokenizer()


def play(
    policy: LocalPolicy, mode: str, count: int = 2, template: str = "compact"
) -> tuple[EnvPool, list[Any], list[Prediction]]:
    """The pool, trajectories with the rows that training would use, and what is to be predicted of them."""
    env = EnvSettings(mode=mode, template=template, history_length=0, kwargs={"num_tasks": 30})
    pool = EnvPool(agent_env_maker(env, "valid_seen"), count)
    played = demonstrations(pool, policy.chat, pool.tasks.ids[:count])
    return pool, played, predict(policy, pool, played)


def predict(policy: LocalPolicy, pool: EnvPool, played: list[Any]) -> list[Prediction]:
    env = pool._envs[0]
    shown = env.text_env.prompt_observation
    return world_model.predictions([t.episode for t in played], policy.chat, shown, env.template)


def test_window_rows_are_those_of_training(policy: LocalPolicy) -> None:
    _, trajectories, ours = play(policy, "window")
    theirs = [row for t in trajectories for row in t.rows]
    assert [(p.row.ids, p.row.role) for p in ours] == [(row.ids, row.role) for row in theirs]


TURN = "Now you can {admissible_actions}. You see: {observation} What next?"


@pytest.mark.parametrize("template", ["compact", "generic", "ahead"])
def test_dialogues_end_as_in_training(policy: LocalPolicy, template: str, tmp_path: Path) -> None:
    if template == "ahead":  # lists what records lack before the observation
        base = resources.files("paw_gym").joinpath("templates/compact.toml").read_text()
        template = str(tmp_path / "ahead.toml")
        Path(template).write_text(re.sub("^turn.*", "turn = " + json.dumps(TURN), base, flags=re.M))
    _, trajectories, ours = play(policy, "conversation", template=template)
    left = iter(ours)
    for trajectory in trajectories:
        (row,) = trajectory.rows
        found = transitions([row])
        for turn, (_, _, places) in enumerate(found):
            made = next(left).row
            assert parts(made, OBSERVATION) == [[row.ids[i] for i in places]]
            # nothing follows the last observation, so no record holds the actions listed before it
            if turn + 1 < len(found) or not template.endswith("ahead.toml"):
                assert made.ids == row.ids[: places[-1] + 1]
                assert made.places(OBSERVATION)[0] == places
    assert next(left, None) is None


def test_likelihood_and_accuracy_are_those_of_the_model(policy: LocalPolicy) -> None:
    wanted = play(policy, "window")[-1][:6]
    sums = world_model.score(policy, wanted, batch_tokens=700)
    for prediction, one in zip(wanted, sums, strict=True):
        places = prediction.row.places(OBSERVATION)[0]
        start, end = places[0], places[-1] + 1
        ids = torch.tensor([prediction.row.ids])
        with torch.no_grad():
            logits = policy.model(ids).logits[0].double()
            batch = collate([prediction.row], policy.pad_id)
            trained_on = policy.logprobs(batch)[batch.observation]
        logprobs = logits.log_softmax(-1)[torch.arange(start - 1, end - 1), ids[0, start:end]]
        guesses = logits[start - 1 : end - 1].argmax(-1)
        assert one.tokens == end - start
        assert one.characters == len(prediction.text)
        assert one.nll == pytest.approx(-float(logprobs.sum()), rel=1e-5)
        assert one.nll == pytest.approx(-float(trained_on.double().sum()), rel=1e-5)
        assert one.correct == int((guesses == ids[0, start:end]).sum())
        assert one.exact == int(one.correct == one.tokens)


def test_the_auroc_is_the_share_of_pairs_in_order(policy: LocalPolicy) -> None:
    pool, *_ = play(policy, "window")
    rng = np.random.default_rng(1)
    played = demonstrations(pool, None, pool.tasks.ids[:2], 0.7, rng, slips="misplaced")
    wanted = predict(policy, pool, played)
    refusal = policy.chat.content("Nothing happens.")[0]
    first: dict[bool, list[float]] = {True: [], False: []}
    for p in wanted:
        start = p.row.places(OBSERVATION)[0][0]
        with torch.no_grad():
            logits = policy.model(torch.tensor([p.row.ids[:start]])).logits[0, -1].double()
        first[p.refused].append(logits.log_softmax(-1)[refusal].item())
    pairs = [(a > b) + (a == b) / 2 for a in first[True] for b in first[False]]
    found = world_model.summarise(wanted, world_model.score(policy, wanted))
    assert found["refusal_auroc"] == pytest.approx(np.mean(pairs), abs=1e-3)
    assert "refusal_auroc" not in world_model.summarise(wanted[:1], [world_model.Sums()])


def test_a_model_that_has_learned_the_answers_writes_them(policy: LocalPolicy) -> None:
    wanted = play(policy, "window", 1)[-1][:3]
    learner = LocalPolicy(LlamaForCausalLM(policy.model.config), TOKENIZER)
    optimizer = torch.optim.AdamW(learner.model.parameters(), lr=1e-2)
    batch = collate([p.row for p in wanted], learner.pad_id)
    for _ in range(150):
        loss = -learner.logprobs(batch)[batch.observation].mean()
        if loss < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sums = world_model.score(learner, wanted)
    written = world_model.write_out(learner, wanted, batch=2)
    exact = [text == p.text for text, p in zip(written, wanted, strict=True)]
    assert exact == [bool(one.exact) for one in sums]
    assert all(exact)
    before = world_model.summarise(wanted, world_model.score(policy, wanted))
    after = world_model.summarise(wanted, sums)
    assert after["nll_per_token"]["mean"] < 0.1 < before["nll_per_token"]["mean"]
    assert after["nll_per_token"]["ci95"] is None  # one episode
    assert (after["token_accuracy"]["mean"], after["exact_match"]["mean"]) == (1.0, 1.0)


def test_the_program_measures_transitions(policy: LocalPolicy, tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    policy.save(tmp_path / "model")
    settings = ["evaluation.tasks=2", "env.template=compact", "evaluation.split=valid_seen"]
    played = world_model_program.evaluate_from_args(
        model, [*settings, "env.kwargs.num_tasks=30"], str(tmp_path / "a.json")
    )
    first = json.loads(played.read_text())
    assert first["episodes"] == 2
    assert first["source"] == "expert"
    low, high = first["nll_per_token"]["ci95"]
    assert low <= first["nll_per_token"]["mean"] <= high
    assert sum(part["transitions"] for part in first["by_type"].values()) == first["transitions"]
    _, trajectories, _ = play(policy, "window")
    write_jsonl(tmp_path / "episodes.jsonl", [t.episode for t in trajectories])
    files = [tmp_path / "episodes.jsonl"]
    recorded = world_model_program.evaluate_from_args(
        model, settings, str(tmp_path / "b.json"), episodes=files
    )
    second = json.loads(recorded.read_text())
    assert second["source"] == "recorded"
    assert second["transitions"] == sum(len(t.episode.transitions) for t in trajectories)
    other = ["env.id=paw_gym/ToyText-v0"]
    with pytest.raises(ValueError, match=r"are of paw_gym/ALFWorld-v0, and .* of paw_gym/ToyText"):
        world_model_program.evaluate_from_args(model, other, episodes=files)
