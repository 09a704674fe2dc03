"""``paw export --to tokens``: ids of a tokenizer, with the role of each token."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

pytest.importorskip("torch", reason="the extra `train`")

from paw_gym import AgentInterface, Episode, Transition, make_agent_env
from paw_gym.export import expert_episodes
from paw_gym.internals.tool_calls import instead_of_tags
from paw_gym.prompts import PromptTemplate
from paw_gym.transition import write_jsonl
from paw_train.policies.local.scratch import piece_tokenizer
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.token_export import token_lines, write_tokens

Paw = Callable[..., Result]


PARROT = """
from paw_gym import Outcome, Task, register_text_env

@register_text_env("me/Heard-v0", tasks=[Task("a", "Say hello.")])
def heard(task, rng):
    yield Outcome("It looks.")
    yield Outcome("hello", terminated=True)
"""


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def marked(line: dict[str, Any], role: str) -> list[int]:
    return [i for i, flag in zip(line["input_ids"], line[role], strict=True) if flag]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    made = piece_tokenizer(["You are in the middle of a room. take put go to look action"], 600)
    made.save_pretrained(tmp_path / "model")
    return made


def lakes(mode: str, *responses: str) -> Episode:
    env = make_agent_env("paw_gym/ToyText-v0", mode=mode)
    env.reset(seed=1)
    episode = env.new_episode(group=2)
    actions = iter(env.reference_solution())
    for response in responses:
        response = next(actions) if response == "good" else response
        episode.transitions.append(env.step(response)[4]["transition"])
    return episode


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_every_token_has_its_role(paw: Paw, tmp_path: Path, tokenizer: Any, mode: str) -> None:
    episode = lakes(mode, "good", "no tags at all", "good")
    write_jsonl("episodes.jsonl", [episode])
    given = ["--to", "tokens", "--tokenizer", "model", "--world-model-coeff", "0.1"]
    answer = paw("export", "episodes.jsonl", "rows.jsonl", *given)
    assert answer.exit_code == 0, answer.output
    lines = read(tmp_path / "rows.jsonl")
    assert len(lines) == 3
    for line, t in zip(lines, episode.transitions, strict=True):
        answer_role = "warning" if t.response == "no tags at all" else "env_output"
        assert tokenizer.decode(marked(line, "action")) == t.response
        assert tokenizer.decode(marked(line, answer_role)) == t.next_observation
        roles = list(zip(line["action"], line["env_output"], line["warning"], strict=True))
        assert max(map(sum, roles)) == 1
        assert sum(map(sum, roles)) == sum(line["action"]) + sum(line[answer_role])
        assert (line["world_model_coeff"], line["group"], line["reward"]) == (0.1, 2, t.reward)
        context = line["input_ids"][: line["action"].index(1)]
        assert episode.instruction in tokenizer.decode(context)


def test_an_environment_of_ones_own_is_imported(
    paw: Paw, tmp_path: Path, tokenizer: Any, own_environments: None, monkeypatch: Any
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_parrot.py").write_text(PARROT, encoding="utf-8")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "model").rename(tmp_path / "checkpoint" / "model")
    (tmp_path / "checkpoint/model/config.json").write_text("{}", encoding="utf-8")
    said = ("Say.", "", "hi", "hi", 0.0, "hello")
    t = Transition("me/Heard-v0", "a", "e", 0, *said, True, False, True)
    write_jsonl("episodes.jsonl", [Episode("me/Heard-v0", "a", "e", transitions=[t])])
    given = ["--to", "tokens", "--tokenizer", "checkpoint"]  # whose model is in a folder of it
    refused = paw("export", "episodes.jsonl", "x", *given).output
    assert "'me/Heard-v0', which is not registered here, and no module is imported" in refused
    answer = paw("export", "episodes.jsonl", "rows.jsonl", *given, "--import", "my_parrot")
    assert answer.exit_code == 0, answer.output
    (line,) = read(tmp_path / "rows.jsonl")
    assert tokenizer.decode(marked(line, "env_output")) == "hello"
    answer = paw("export", "episodes.jsonl", "y", "--to", "parquet", "--import", "x")
    assert "--import belongs" in answer.output


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_episodes_of_tool_calls_are_in_tags(mode: str, tokenizer: Any) -> None:
    episode, asked = lakes(mode, "good", "good", "good"), instead_of_tags(["act"])
    calling = [
        replace(t, prompt=t.prompt + asked, info={**t.info, "agent": {"tools": ["act"]}})
        for t in episode.transitions
    ]
    chat, env = ChatFormat(tokenizer), make_agent_env("paw_gym/ToyText-v0")
    called = replace(episode, transitions=calling)
    assert [*token_lines(called, chat, env, 1.0)] == [*token_lines(episode, chat, env, 1.0)]


@pytest.mark.parametrize("template", ["alfworld", "compact", "generic", "webshop"])
def test_a_dialogue_of_another_template_keeps_its_words(template: str, tokenizer: Any) -> None:
    """The export knows the environment's own template; the record tells which one was used."""
    env_id = "paw_gym/ALFWorld-v0"
    (episode,) = expert_episodes(env_id, 1, seed=0, mode="conversation", template=template)
    chat, own = ChatFormat(tokenizer), PromptTemplate.load(template)
    lines = list(token_lines(episode, chat, make_agent_env(env_id), 1.0))
    heads = []
    for line, (step, t) in zip(lines, enumerate(episode.transitions), strict=True):
        after = len(line["action"]) - line["action"][::-1].index(1)
        told = tokenizer.decode(line["input_ids"][after:]).removeprefix(
            tokenizer.decode(chat.bridge)
        )
        heads.append(told.removesuffix(t.next_observation))
        for following in episode.transitions[step + 1 : step + 2]:
            assert following.prompt.startswith(told)
    assert set(heads) == {own.turn.partition("{observation}")[0]}


def test_what_it_opens_is_closed_and_any_text_is_written(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[AgentInterface] = []
    monkeypatch.setattr(AgentInterface, "close", lambda self: closed.append(self))
    episode = lakes("window", "good", "half \ud83d")
    assert write_tokens(tmp_path / "rows.jsonl", [episode], tokenizer).transitions == 2
    assert len(closed) == 1
    with pytest.raises(ValueError, match=r"0 or more, got -1\.0"):
        write_tokens(tmp_path / "x.jsonl", [episode], tokenizer, -1.0)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder is a folder; this form is one file"):
        write_tokens(tmp_path / "folder", [episode], tokenizer, force=True)
