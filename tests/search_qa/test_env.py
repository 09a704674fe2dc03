from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paw_gym import check_text_env, make_agent_env
from paw_gym.registration import make_text_env
from paw_gym.retrieval import Corpus, Hit, Retriever, RetrieverError, SearchContext
from paw_gym.retrieval.bm25_index import build_index

ENV = "paw_gym/SearchQA-v0"


class Scripted:
    """A retriever that fails when told to."""

    fingerprint = "scripted"

    def __init__(self, fails_at: Sequence[int] = ()) -> None:
        self.fails_at = set(fails_at)
        self.calls: list[tuple[str, int, SearchContext]] = []

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 3,
        contexts: Sequence[SearchContext] | None = None,
    ) -> list[list[Hit]]:
        assert contexts is not None and len(queries) == 1
        self.calls.append((queries[0], top_k, contexts[0]))
        if len(self.calls) in self.fails_at:
            raise RetrieverError("the server is gone")
        hits = [Hit(f"p{i}", f'"T{i}"\nabout {queries[0]}', 1.0 / (i + 1)) for i in range(top_k)]
        return [hits if queries[0] != "nothing" else []]


def make(retriever: Retriever | str = "bm25", **kwargs: Any) -> Any:
    return make_text_env(ENV, retriever=retriever, num_passages=300, **kwargs).unwrapped


def test_the_contract_on_a_benchmark(shared_data: Path) -> None:
    check_text_env(
        ENV,
        tasks=2,
        dataset="aligned_hotpotqa",
        split="questions",
        data_dir=shared_data / "qa",
        time_limit=None,
    ).raise_for_failures()


def test_an_episode() -> None:
    retriever = Scripted()
    env = make(retriever, top_k=2)
    assert isinstance(retriever, Retriever)
    observation, info = env.reset(seed=3)
    assert observation == f"Question: {info['instruction']}"
    observation, reward, terminated, truncated, info = env.step("<search> who made it </search>")
    assert observation == (
        "<information>\nDoc 1 (Title: T0) about who made it\n"
        "Doc 2 (Title: T1) about who made it\n</information>"
    )
    assert (reward, terminated, truncated, info["retrieved"]) == (0.0, False, False, ["p0", "p1"])
    assert env.step("<search>nothing</search>")[0].startswith("<information>\nNo passage")
    golden = env.question.golden_answers[0]
    observation, reward, terminated, truncated, info = env.step(f"<answer>The {golden}!</answer>")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert (info["exact_match"], info["f1"], info["contains"]) == (True, 1.0, True)
    assert golden not in observation
    query, top_k, context = retriever.calls[0]
    assert (query, top_k) == ("who made it", 2)
    assert (context.question, context.golden_answers) == (
        env.task.instruction,
        env.question.golden_answers,
    )


def test_a_wrong_answer_ends_the_episode_too() -> None:
    env = make(Scripted())
    env.reset(seed=0)
    golden = env.question.golden_answers[0]
    _, reward, terminated, _, info = env.step(f"<answer>surely {golden}</answer>")
    assert (reward, terminated, info["success"], info["score"]) == (0.0, True, False, 0.0)
    assert 0 < info["f1"] < 1 and info["contains"]
    env = make(Scripted(), reward="f1")
    env.reset(seed=0)
    assert env.step(f"<answer>surely {golden}</answer>")[1] == pytest.approx(info["f1"])


@pytest.mark.parametrize(
    "action",
    ["search for it", "<search></search>", "<search>  </search>", "<answer></answer>",
     "<search>open", "<answer>a</search>", "<SEARCH>x</SEARCH>", "x <answer>y</answer>",
     "<search>" + "x" * 1001 + "</search>"],
)  # fmt: skip
def test_invalid_actions_cost_a_turn_and_reach_no_engine(action: str) -> None:
    retriever = Scripted()
    env = make(retriever, max_steps=2)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert not info["action_is_valid"] and "<search>your query</search>" in observation
    assert (reward, terminated, truncated, retriever.calls) == (0.0, False, False, [])
    assert env.step(action)[3]


def test_a_search_that_fails_is_told_and_marks_the_episode() -> None:
    agent = make_agent_env(ENV, retriever=Scripted(fails_at=[2]), num_passages=300)
    agent.reset(seed=0)
    marks, errors, transitions = [], [], []
    for response in (
        "<think>a</think><search>one</search>",
        "<think>b</think><search>two</search>",
        "<think>c</think><search>three</search>",
        "<think>d</think><answer>four</answer>",
    ):
        *_, info = agent.step(response)
        marks.append(info["retrieval_failed"])
        errors.append(info["retrieval_error"])
        transitions.append(info["transition"])
    assert marks == [False, True, True, True]
    assert errors == [None, "the server is gone", None, None]
    assert "did not answer" in transitions[1].next_observation
    assert transitions[1].action_is_valid and transitions[1].reward == 0.0
    assert [t.info["retrieval_failed"] for t in transitions] == marks
    assert transitions[0].info["retrieved"] == ["p0", "p1", "p2"]


def test_the_prompt_holds_the_whole_history() -> None:
    agent = make_agent_env(ENV, retriever=Scripted(), num_passages=300, top_k=1)
    prompt, info = agent.reset(seed=0)
    question = info["instruction"]
    assert prompt.count(question) == 1
    for query in ("one", "two", "three"):
        prompt, *_, info = agent.step(f"<think>hidden</think><search>{query}</search>")
    assert prompt.count(question) == 1 and "hidden" not in prompt.partition("What you did")[2]
    places = [prompt.index(f"<search>{q}</search>") for q in ("one", "two", "three")]
    found = [prompt.index(f"about {q}\n") for q in ("one", "two", "three")]
    assert places[0] < found[0] < places[1] < found[1] < places[2] < found[2]


def test_responses_without_tags_or_thought_are_invalid() -> None:
    agent = make_agent_env(ENV, retriever=Scripted(), num_passages=300)
    for response, problem in (
        ("<search>x</search>", "<think>"),
        ("<think>x</think> I believe so", "no <search>"),
        ("<think>x</think><answer></answer>", "empty"),
    ):
        agent.reset(seed=0)
        _, reward, _, _, info = agent.step(response)
        assert reward == -0.01 and problem in info["transition"].info["problem"]


@pytest.mark.parametrize("template", ["search", "search_compact"])
@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_the_oracle_behind_the_agents_interface(template: str, mode: str) -> None:
    agent = make_agent_env(ENV, template=template, mode=mode, num_passages=300)
    for seed in range(5):
        agent.reset(seed=seed)
        for response in agent.reference_solution():
            prompt, reward, terminated, _, info = agent.step(response)
        assert terminated and reward == 1.0 and info["transition"].info["exact_match"]
        if mode == "conversation":
            start, end = agent.observation_span
            assert prompt[start:end] == info["transition"].next_observation


def test_environments_share_one_index() -> None:
    one, two, other = make(), make(split="train"), make(world_seed=9)
    assert one._open() is two._open()
    assert one._open() is not other._open()
    assert one._open().fingerprint != other._open().fingerprint


def test_settings_of_the_engine_may_be_long_texts_and_indices_that_change(tmp_path: Path) -> None:
    env = make("http://127.0.0.1:9", retriever_settings={"token": "x" * 600, "attempts": 1})
    env.reset(seed=0)
    assert env.step("<search>bees</search>")[4]["retrieval_failed"]

    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text('{"id": "1", "contents": "bees make honey"}\n')
    build_index(Corpus.open(corpus), index)
    env = make(retriever_settings={"corpus": corpus, "index": index})
    first = env._open()
    assert env._open() is first
    os.utime(index / "index.json", ns=(1, 1))  # as after a new build
    assert env._open() is not first
