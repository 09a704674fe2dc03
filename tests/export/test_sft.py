"""Chat-format examples: what they hold, and that TRL's trainer takes them as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from paw_gym import Episode
from paw_gym.export.sft import QUESTION, write_sft
from paw_gym.internals.tool_calls import instead_of_tags, tool_schemas

Paw = Callable[..., Result]


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_examples_are_the_steps_of_a_run(
    paw: Paw, run: Path, played: list[Episode], tmp_path: Path
) -> None:
    answer = paw("sft-data", "run", "[out]")
    assert answer.exit_code == 0, answer.output
    assert "to [out]/policy.jsonl" in answer.stdout
    order = [*played[:3], played[4], played[3]]
    demonstrations = [(e, t) for e in order if e.success for t in e.transitions]
    for row, (episode, t) in zip(rows(Path("[out]/policy.jsonl")), demonstrations, strict=True):
        assert row["prompt"] == episode.messages(t.step)
        assert row["completion"] == [{"role": "assistant", "content": t.response}]
    every = [(e, t) for e in order for t in e.transitions]
    for row, (episode, t) in zip(rows(Path("[out]/world_model.jsonl")), every, strict=True):
        *context, response, question = row["prompt"]
        assert context == episode.messages(t.step)
        assert response == {"role": "assistant", "content": t.response}
        assert question == {"role": "user", "content": QUESTION}
        assert row["completion"] == [{"role": "assistant", "content": t.next_observation}]


def test_the_expert_plays_for_it(paw: Paw, tmp_path: Path) -> None:
    command = ("sft-data", "ALFWorld", "--expert", "--episodes", "3", "--seed", "1")
    assert paw(*command, "a").exit_code == 0
    assert paw(*command, "b").exit_code == 0
    assert Path("a/policy.jsonl").read_bytes() == Path("b/policy.jsonl").read_bytes()
    made = rows(Path("a/policy.jsonl"))
    assert len({row["episode_id"] for row in made}) == 3
    assert all(row["completion"][0]["content"].endswith("</action>") for row in made)
    assert paw(*command[:-1], "2", "c").exit_code == 0
    assert Path("a/policy.jsonl").read_bytes() != Path("c/policy.jsonl").read_bytes()


def test_invalid_steps_and_failures_are_no_demonstrations(
    played: list[Episode], tmp_path: Path
) -> None:
    (first, *others), failed = played[0].transitions, played[2]
    good = replace(played[0], transitions=[replace(first, action_is_valid=False), *others])
    assert write_sft(tmp_path / "a", [good, failed])[1]["policy"] == len(others)
    _, both = write_sft(tmp_path / "b", [good, failed], failures=True)
    assert both["policy"] == len(others) + len(failed.transitions)


@pytest.mark.parametrize("number", [0, 4])  # one prompt a step, and a dialogue
def test_episodes_of_tool_calls_keep_to_one_language(
    played: list[Episode], tmp_path: Path, number: int
) -> None:
    asked = instead_of_tags(["act"])
    episode = played[number]
    steps = [
        replace(t, prompt=t.prompt + asked, info={**t.info, "agent": {"tools": ["act"]}})
        for t in episode.transitions
    ]
    write_sft(tmp_path / "a", [replace(episode, transitions=steps)])
    for row, t in zip(rows(tmp_path / "a" / "policy.jsonl"), steps, strict=True):
        assert row["tools"] == tool_schemas(["act"])
        assert row["prompt"][-1]["content"].endswith(asked)
        (answer,) = row["completion"]
        (call,) = answer["tool_calls"]
        assert call["function"] == {"name": "act", "arguments": {"action": t.action}}
        roles = [m["role"] for m in row["prompt"]]
        assert roles == ["user", *["assistant", "tool"] * (len(roles) // 2)]
        calls = [m["tool_calls"][0]["id"] for m in row["prompt"] if m["role"] == "assistant"]
        assert [m["tool_call_id"] for m in row["prompt"] if m["role"] == "tool"] == calls
        assert "<action>" not in str(row["completion"])
    for row in rows(tmp_path / "a" / "world_model.jsonl"):
        assert "tools" not in row
        assert asked not in str(row["prompt"])
        assert row["prompt"][-2]["content"].endswith("</action>")


def test_identical_examples_once(played: list[Episode], tmp_path: Path) -> None:
    twice = [played[0], played[0]]
    assert write_sft(tmp_path / "a", twice)[1]["policy"] == 2 * len(played[0].transitions)
    once = write_sft(tmp_path / "b", twice, dedup=True)[1]
    assert once == {kind: len(played[0].transitions) for kind in ("policy", "world_model")}


def test_without_an_accepted_action_there_is_no_demonstration(
    played: list[Episode], tmp_path: Path
) -> None:
    steps = [replace(t, action_is_valid=False) for t in played[2].transitions]
    refused = replace(played[2], transitions=steps)
    with pytest.raises(ValueError, match="No example of the kind .policy.*--only world_model"):
        write_sft(tmp_path / "x", [refused], failures=True)
    with pytest.raises(ValueError, match="take the failed ones too"):
        write_sft(tmp_path / "x", [refused])
    with pytest.raises(ValueError, match=r"'world_model' in 1 episode.* with 0 steps\.$"):
        write_sft(tmp_path / "x", [replace(refused, transitions=[])], only="world_model")


def test_only_pairs_of_failed_episodes(paw: Paw, run: Path) -> None:
    assert paw("sft-data", "run", "x", "--part", "before", "--only", "world_model").exit_code == 0
    assert sorted(p.name for p in Path("x").iterdir()) == ["README.md", "world_model.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["policy", "world_model"])
def test_a_step_of_trl(kind: str, played: list[Episode], tmp_path: Path) -> None:
    """TRL learns the completion and nothing else, and the step changes the model."""
    trl = pytest.importorskip("trl", reason='TRL is not installed: pip install ".[export]"')
    datasets = pytest.importorskip("datasets")
    from paw_train.policies.local.scratch import scratch_model, word_tokenizer
    from paw_train.settings.model import ScratchModelSettings

    write_sft(tmp_path / "data", played)
    cache = str(tmp_path / "cache")
    data = datasets.load_dataset(str(tmp_path / "data"), kind, split="train", cache_dir=cache)
    said = [m["content"] for row in data for m in [*row["prompt"], *row["completion"]]]
    tokenizer = word_tokenizer(said)
    small = ScratchModelSettings(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=32)
    model = scratch_model(small, len(tokenizer), seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    here = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "seed": 0}
    steps = {"max_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-2}
    arguments = trl.SFTConfig(str(tmp_path / "trl"), max_length=None, **steps, **here)
    trainer = trl.SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer)
    for row, prepared in zip(data, trainer.train_dataset, strict=True):
        learned = [i for i in prepared["labels"] if i != -100]
        text = tokenizer.decode([i for i in learned if i != tokenizer.eos_token_id])
        assert text.strip() == row["completion"][0]["content"].strip()
    result = trainer.train()
    assert result.global_step == 1 and math.isfinite(result.training_loss)
    assert any(not p.equal(before[name]) for name, p in model.named_parameters())


def test_kinds_of_examples_are_checked(played: list[Episode], tmp_path: Path) -> None:
    assert write_sft(tmp_path / "one", played, only="policy")[1].keys() == {"policy"}
    with pytest.raises(ValueError, match="kind of example 'polcy'. Did you mean 'policy'"):
        write_sft(tmp_path / "x", played, only="polcy")
    assert not (tmp_path / "x").exists()


def test_what_json_alone_can_hold_is_no_text(played: list[Episode], tmp_path: Path) -> None:
    """``datasets`` fails on a file with half of a surrogate pair."""
    datasets = pytest.importorskip("datasets", reason='pip install ".[export]"')
    steps = [replace(t, next_observation="half \ud83d") for t in played[0].transitions]
    write_sft(tmp_path / "s", [replace(played[0], transitions=steps)])
    cache = str(tmp_path / "cache")
    data = datasets.load_dataset(str(tmp_path / "s"), "world_model", split="train", cache_dir=cache)
    assert data[0]["completion"][0]["content"] == "half \ufffd"
