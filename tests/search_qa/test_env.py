from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playing import play

from paw_gym import make_agent_env
from paw_gym.registration import make_text_env
from paw_gym.retrieval import Corpus, Hit, Retriever, RetrieverError, SearchContext
from paw_gym.retrieval.bm25_index import build_index

ENV = "paw_gym/SearchQA-v0"


class Scripted:
    """A retriever that fails when told to."""

    fingerprint = "scripted"

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at
        self.calls: list[tuple[str, int, SearchContext]] = []

    def search(self, queries: Sequence[str], top_k: int = 3, contexts: Any = None) -> Any:
        [query], [context] = queries, contexts
        self.calls.append((query, top_k, context))
        if len(self.calls) == self.fails_at:
            raise RetrieverError("the server is gone")
        hits = [Hit(f"p{i}", f'"T{i}"\nabout {query}', 1.0 / (i + 1)) for i in range(top_k)]
        return [hits if query != "nothing" else []]


def make(retriever: Retriever | str = "bm25", **kwargs: Any) -> Any:
    return make_text_env(ENV, retriever=retriever, num_passages=300, **kwargs).unwrapped


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
def test_invalid_actions_reach_no_engine(action: str) -> None:
    retriever = Scripted()
    env = make(retriever, max_steps=2)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert not info["action_is_valid"] and "<search>your query</search>" in observation
    assert (reward, terminated, truncated, retriever.calls) == (0.0, False, False, [])
    assert env.step(action)[3]


def test_a_failed_search_marks_the_episode() -> None:
    agent = make_agent_env(ENV, retriever=Scripted(fails_at=2), num_passages=300)
    agent.reset(seed=0)
    searches = [f"<think>a</think><search>{word}</search>" for word in ("one", "two", "three")]
    answers = play(agent, [*searches, "<think>d</think><answer>four</answer>"])
    infos = [answer[4] for answer in answers]
    marks = [info["retrieval_failed"] for info in infos]
    transitions = [info["transition"] for info in infos]
    assert marks == [False, True, True, True]
    errors = [info["retrieval_error"] for info in infos]
    assert errors == [None, "the server is gone", None, None]
    assert "did not answer" in transitions[1].next_observation
    assert transitions[1].action_is_valid and transitions[1].reward == 0.0
    assert [t.info["retrieval_failed"] for t in transitions] == marks
    assert transitions[0].info["retrieved"] == ["p0", "p1", "p2"]


def test_environments_share_an_index_until_it_changes(tmp_path: Path) -> None:
    one, two, other = make(), make(split="train"), make(world_seed=9)
    assert one._open() is two._open() is not other._open()
    assert one._open().fingerprint != other._open().fingerprint

    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text('{"id": "1", "contents": "bees make honey"}\n')
    build_index(Corpus.open(corpus), index)
    env = make(retriever_settings={"corpus": corpus, "index": index})
    first = env._open()
    assert env._open() is first
    os.utime(index / "index.json", ns=(1, 1))  # as after a new build
    assert env._open() is not first


def test_a_setting_of_the_engine_may_be_a_long_text() -> None:
    env = make("http://127.0.0.1:9", retriever_settings={"token": "x" * 600, "attempts": 1})
    env.reset(seed=0)
    assert env.step("<search>bees</search>")[4]["retrieval_failed"]
