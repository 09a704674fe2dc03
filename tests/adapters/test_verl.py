"""Our agent loop for verl: with verl's own classes where verl is installed, else with a stub of them.

The interface that the stub records is that of verl 0.9.1 (``recorded_verl.py``).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from files import load

pytest.importorskip("torch", reason="the extra `train`")

from paw_gym import make_agent_env
from paw_train.policies.local.scratch import piece_tokenizer
from paw_train.rollouts.chat import ChatFormat

ENV = "paw_gym/ALFWorld-v0"
KWARGS = {"split": "valid_seen", "max_steps": 4}
REAL = importlib.util.find_spec("verl") is not None
RECORDED = "tests/adapters/recorded_verl.py"


@pytest.fixture(params=["verl" if REAL else "stub of verl"])
def verl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """verl's module of agent loops, or its stub."""
    name = "verl.experimental.agent_loop.agent_loop"
    if not REAL:
        for key, module in load(RECORDED).modules().items():
            monkeypatch.setitem(sys.modules, key, module)
    monkeypatch.delitem(sys.modules, "paw_train.integrations.verl", raising=False)
    yield importlib.import_module(name)
    sys.modules.pop("paw_train.integrations.verl", None)


class Server:
    """Answers by token ids; keeps what it was asked."""

    def __init__(self, answers: list[list[int]], logprobs: bool = True) -> None:
        self.answers, self.logprobs = list(answers), logprobs
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **asked: Any) -> Any:
        self.asked.append({"request_id": request_id, **asked})
        ids = self.answers.pop(0)[: asked["sampling_params"]["max_tokens"]]
        probs = [-0.5] * len(ids) if self.logprobs else None
        return SimpleNamespace(token_ids=ids, log_probs=probs)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    env = make_agent_env(ENV, mode="conversation", **KWARGS)
    prompt, info = env.reset(seed=3)
    texts = [prompt, *map(env.response_for, info["admissible_actions"])]
    return piece_tokenizer(texts, 400)


def loop(
    verl: Any,
    tokenizer: Any,
    server: Server,
    response_length: int = 4000,
    prompt_length: int = 4000,
    **env_kwargs: Any,
) -> Any:
    from paw_train.integrations.verl import EnvironmentLoop

    rollout = SimpleNamespace(response_length=response_length, prompt_length=prompt_length)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return EnvironmentLoop(
        trainer_config=verl.DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=verl.DictConfigWrap({}),
        tools=None,
        env_id=ENV,
        env_kwargs={**KWARGS, **env_kwargs},
    )


def run(agent_loop: Any, **columns: Any) -> Any:
    return asyncio.run(agent_loop.run({"temperature": 1.0}, **columns))


def responses(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    chat = ChatFormat(tokenizer)
    return [[*chat.content(text), chat.end_id] for text in texts]


def episode() -> tuple[Any, str, list[str]]:
    """An episode of our own API: the environment, its task, its responses."""
    agent = make_agent_env(ENV, mode="conversation", **KWARGS)
    task_id = agent.tasks.ids[1]
    return agent, task_id, ["<think>a</think><action>look</action>", "nonsense"] * 2


def test_the_same_episode_as_by_our_api(verl: Any, tokenizer: Any) -> None:
    agent, task_id, texts = episode()
    server = Server(responses(tokenizer, texts))
    out = run(loop(verl, tokenizer, server), task_id=task_id, env_seed=5)
    assert isinstance(out, verl.AgentLoopOutput)
    prompt, _ = agent.reset(seed=5, options={"task_id": task_id})
    rewards, observations = [], []
    for text in texts:
        _, reward, _, truncated, info = agent.step(text)
        rewards.append(reward)
        observations.append(info["transition"].next_observation)
    chat = ChatFormat(tokenizer)
    assert truncated
    assert out.prompt_ids == chat.first(prompt)
    assert out.reward_score == pytest.approx(sum(rewards)) and sum(rewards) < 0
    assert out.extra_fields["turn_scores"] == rewards
    assert out.num_turns == 8
    # what was sampled has mask 1, and is there unchanged
    sampled = [i for i, m in zip(out.response_ids, out.response_mask, strict=True) if m]
    assert sampled == [i for ids in responses(tokenizer, texts) for i in ids]
    probs = [p for p, m in zip(out.response_logprobs, out.response_mask, strict=True) if m]
    assert set(probs) == {-0.5}
    # the environment's own text, and nothing else, is what a world model would learn
    seen = out.extra_fields["observation_mask"]
    assert not any(a and b for a, b in zip(seen, out.response_mask, strict=True))
    expected = [i for text in observations[:-1] for i in chat.content(text)]
    assert [i for i, m in zip(out.response_ids, seen, strict=True) if m] == expected
    # each request is the whole dialogue so far
    whole = [*out.prompt_ids, *out.response_ids]
    assert len({asked["request_id"] for asked in server.asked}) == 1
    for asked in server.asked:
        assert whole[: len(asked["prompt_ids"])] == asked["prompt_ids"]


def test_a_full_context_ends_the_episode(verl: Any, tokenizer: Any) -> None:
    _, task_id, texts = episode()
    answers = responses(tokenizer, texts)
    limit = len(answers[0]) + 3
    short = loop(verl, tokenizer, Server(answers, logprobs=False), limit)
    out = run(short, task_id=task_id)
    assert len(out.response_ids) == len(out.response_mask) == limit
    assert len(out.extra_fields["observation_mask"]) == limit
    assert out.response_logprobs is None and out.num_turns == 2


def test_an_empty_answer_leaves_the_log_probabilities_where_they_are(
    verl: Any, tokenizer: Any
) -> None:
    _, task_id, texts = episode()
    answers = responses(tokenizer, texts)
    answers[1] = []  # what a server that aborted a request gives
    out = run(loop(verl, tokenizer, Server(answers)), task_id=task_id)
    assert len(out.response_logprobs) == len(out.response_ids)
    for value, sampled in zip(out.response_logprobs, out.response_mask, strict=True):
        assert value == (-0.5 if sampled else 0.0)


def test_rows_and_their_mistakes(verl: Any, tokenizer: Any) -> None:
    """A column that only some rows have comes out of a data set with nulls."""
    from paw_train.integrations.verl import task_rows

    rows = task_rows(ENV, tasks=2, seed=9, **KWARGS)
    assert {row["agent_name"] for row in rows} == {"paw"} and rows[0]["env_seed"] == 9
    answers = responses(tokenizer, episode()[2])
    row = {"extra_info": {"task_id": rows[0]["task_id"]}}
    for nulls in ({}, {"task_id": None, "env_seed": None}):
        assert run(loop(verl, tokenizer, Server(answers)), **row, **nulls).num_turns == 8
    with pytest.raises(ValueError, match="names no task"):
        run(loop(verl, tokenizer, Server([])), raw_prompt=[])
    with pytest.raises(KeyError, match="nowhere"):
        run(loop(verl, tokenizer, Server([])), task_id="nowhere")


def test_a_prompt_that_verl_could_not_stack_is_named(verl: Any, tokenizer: Any) -> None:
    _, task_id, _ = episode()
    short = loop(verl, tokenizer, Server([]), prompt_length=20)
    with pytest.raises(ValueError, match=r"prompt_length is 20: raise data\.max_prompt_length"):
        run(short, task_id=task_id)


def test_a_dialogue_is_the_only_form(verl: Any, tokenizer: Any) -> None:
    """Window mode has no place of the observation in a message: nothing would be marked."""
    with pytest.raises(ValueError, match="`mode` is 'conversation'"):
        loop(verl, tokenizer, Server([]), mode="window")


@pytest.mark.skipif(not REAL, reason="verl is not installed")
def test_the_stub_records_what_verl_has(verl: Any) -> None:
    recorded = load(RECORDED)
    for name in ("AgentLoopOutput", "AgentLoopMetrics"):
        ours, theirs = getattr(recorded, name).model_fields, getattr(verl, name).model_fields
        assert {k: f.default for k, f in ours.items()} == {k: f.default for k, f in theirs.items()}
