"""A model behind an endpoint that fails in every way gives the result of one that never fails."""

from __future__ import annotations

import contextlib
import email.utils
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from hostile import byte_tokenizer

from paw_train.evaluation import evaluate_from_args
from paw_train.policies.endpoint.answers import AnswerCache, finish_text
from paw_train.policies.endpoint.policy import EndpointPolicy
from paw_train.policies.endpoint.transport import (
    Backoff,
    EndpointError,
    asked_wait,
)
from paw_train.rollouts.policy import Policy, Sampling, complete
from paw_train.rollouts.rollout import rollout
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import RolloutSettings

SAMPLING = Sampling(0.0, 32)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def _policy(server: Any, api_key: str | None = None, **settings: Any) -> EndpointPolicy:
    chosen = {"url": server.url, "cache": None, "timeout": 60.0, **settings}
    return EndpointPolicy("model", EndpointSettings(**chosen), api_key)


def _ask(policy: EndpointPolicy, texts: list[str], sampling: Sampling = SAMPLING) -> list[Any]:
    return complete(policy, [[{"role": "user", "content": text}] for text in texts], sampling)


def _evaluate(server: Any, out: Path, cache: Path | None, *more: str) -> dict[str, Any]:
    overrides = [
        f"endpoint.url={server.url}", f"endpoint.cache={cache or 'null'}",
        "endpoint.timeout=60", "endpoint.retries=60", "env.kwargs={max_steps: 8}",
        "evaluation.tasks=8", "evaluation.temperature=0", *more,
    ]  # fmt: skip
    result: dict[str, Any] = json.loads(
        evaluate_from_args("openai:some/model", overrides, str(out)).read_text()
    )
    return result


def test_a_request_that_fails_for_good_fails_its_episode_alone(server: Any) -> None:
    policy = _policy(server, retries=2)
    server.faults.status = 400
    (failed,) = _ask(policy, ["see door 1"])
    assert "refused" in failed.error
    assert policy.usage.failed == 1
    assert server.seen == 1  # asking again would not help
    server.faults.status = 503
    (failed,) = _ask(policy, ["see door 1"])
    assert "after 3 tries" in failed.error
    server.faults.status = None
    (fine,) = _ask(policy, ["see door 1"])
    assert fine.error is None
    assert fine.text == "<think>hm</think><action>go to door 1</action>"


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [(401, None, "OPENAI_API_KEY"), (404, None, "no model 'model'"), (403, None, "may not"),
     (429, "insufficient_quota", "quota")],
)  # fmt: skip
def test_what_no_request_can_mend_ends_the_run_at_once(
    server: Any, status: int, code: str | None, words: str
) -> None:
    server.faults.status, server.faults.code = status, code
    with pytest.raises(EndpointError, match=words):
        _ask(_policy(server), ["a", "b", "c"])
    assert server.seen <= 3


def test_an_address_that_answered_an_earlier_run_is_waited_for(server: Any, tmp_path: Path) -> None:
    settings = {"cache": str(tmp_path / "a.sqlite"), "retries": 5}
    _ask(_policy(server, **settings), ["see door 1"])
    server.kill()
    known, new = _ask(_policy(server, **settings), ["see door 1", "see door 2"])
    assert known.error is None
    assert "after 6 tries" in new.error  # its episode fails, the run does not


def test_training_with_an_endpoint_is_refused(server: Any) -> None:
    import torch

    from paw_gym.pool import EnvPool

    policy = _policy(server)
    assert isinstance(policy, Policy)
    pool = EnvPool("paw_gym/ALFWorld-v0", 1, 1, split="valid_seen")
    with pytest.raises(ValueError, match="evaluated but not trained"):
        rollout(policy, pool, RolloutSettings(), torch.Generator())


# --- the cache -----------------------------------------------------------------------------------------


def test_equal_requests_are_asked_once_and_others_are_not(server: Any, tmp_path: Path) -> None:
    policy = _policy(server, cache=str(tmp_path / "a.sqlite"))
    texts = ["at door 1", "at door 2", "at door 1"]
    first = _ask(policy, texts)
    assert server.served == 2
    assert (policy.usage.requests, policy.usage.cached) == (2, 1)
    policy.close()
    again = _policy(server, cache=str(tmp_path / "a.sqlite"))
    assert _ask(again, texts) == first
    assert server.served == 2
    _ask(again, texts, Sampling(0.0, 33))
    assert server.served == 4  # another limit is another request


def test_samples_differ_by_seed_and_are_cached_by_it(server: Any, tmp_path: Path) -> None:
    policy = _policy(server, cache=str(tmp_path / "a.sqlite"), extra={"seed": None})
    hot = Sampling(1.0, 32)
    dialogues = [[{"role": "user", "content": "at door 1"}]] * 3
    complete(policy, dialogues, hot, seed=1)
    assert server.served == 3  # three samples of one prompt, although the bodies are equal
    complete(policy, dialogues, hot, seed=1)
    assert server.served == 3
    complete(policy, dialogues, hot, seed=2)
    assert server.served == 6


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    with pytest.raises(ValueError, match="Delete it"):
        AnswerCache(path)
    assert path.read_text().startswith("no database")


@pytest.mark.parametrize("damage", ["'{\"text'", "'[1]'", "7", "NULL", "CAST(x'ff80' AS TEXT)"])
def test_a_damaged_answer_is_asked_for_again(server: Any, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.sqlite"
    first = _ask(_policy(server, cache=str(path)), ["at door 1"])
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE answers SET answer = {damage}")
        file.commit()
    for served in (2, 2):
        assert _ask(_policy(server, cache=str(path)), ["at door 1"]) == first
        assert server.served == served


def test_an_answer_that_a_server_broke_off_is_not_kept(server: Any, tmp_path: Path) -> None:
    server.behaviour = "error in choice"
    settings = {"cache": str(tmp_path / "a.sqlite"), "retries": 1}
    (failed,) = _ask(_policy(server, **settings), ["at door 1"])
    assert "Upstream error" in failed.error and server.seen == 2
    server.behaviour = "ok"
    (fine,) = _ask(_policy(server, **settings), ["at door 1"])
    assert fine.error is None


def test_two_processes_may_share_a_cache(tmp_path: Path) -> None:
    a, b = (AnswerCache(tmp_path / "x.sqlite") for _ in range(2))
    a.put("k", {"text": "é\ud800"})  # a lone surrogate, as some models print
    assert b.get("k") == {"text": "é\ud800"}
    assert b.get("other") is None


# --- keys and costs ------------------------------------------------------------------------------------


def test_the_key_is_sent_and_never_written(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "very-secret")
    more = ["endpoint.api_key_env=MY_KEY", "evaluation.tasks=1", "endpoint.input_price=2.0",
            "endpoint.output_price=10"]  # fmt: skip
    result = _evaluate(server, tmp_path / "out", tmp_path / "c.sqlite", *more)
    assert server.authorization == {"Bearer very-secret"}
    used = result["endpoint"]
    assert used["cost"] == pytest.approx(
        (2.0 * used["prompt_tokens"] + 10 * used["completion_tokens"]) / 1e6
    )
    assert used["completion_tokens"] == 10 * used["requests"] > 0
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"very-secret" not in path.read_bytes()
    server.faults.status = 400
    policy = _policy(server, api_key="refused")  # the word that the server answers with
    (failed,) = _ask(policy, ["x"])
    assert "refused" not in failed.error
    assert "***" in failed.error


# --- limits and waits ------------------------------------------------------------------------------------


def test_no_more_requests_at_a_time_than_allowed(server: Any) -> None:
    _ask(_policy(server, concurrency=3), [f"at door {i}" for i in range(20)])
    assert server.served == 20
    assert server.most_running <= 3


class _Reply(Exception):
    def __init__(self, **headers: str) -> None:
        self.response = type("R", (), {"headers": headers})()


def test_retry_after_is_read_in_all_its_forms() -> None:
    now = 1_700_000_000.0
    date = email.utils.formatdate(now + 90, usegmt=True)
    assert asked_wait(_Reply(**{"retry-after": "7"}), now) == 7.0
    assert asked_wait(_Reply(**{"retry-after": date}), now) == pytest.approx(90, abs=1)
    assert asked_wait(_Reply(**{"retry-after-ms": "250"}), now) == 0.25
    assert asked_wait(_Reply(**{"retry-after": "soon"}), now) is None
    assert asked_wait(_Reply(), now) is None
    assert asked_wait(RuntimeError(), now) is None


def test_waits_grow_to_a_bound_with_jitter_and_never_undercut_the_server() -> None:
    backoff = Backoff()
    waits = [[backoff.wait(n, RuntimeError()) for _ in range(300)] for n in (1, 2, 4, 9)]
    for bound, drawn in zip((0.01, 0.02, 0.08, 0.6), waits, strict=True):
        assert 0 <= min(drawn) < 0.1 * bound
        assert 0.9 * bound < max(drawn) <= bound
    assert all(backoff.wait(1, _Reply(**{"retry-after": "5"})) >= 5.0 for _ in range(50))


# --- bodies and texts -----------------------------------------------------------------------------------


def test_the_body_says_how_to_sample(server: Any) -> None:
    policy = _policy(server, extra={"chat_template_kwargs": {"enable_thinking": False}})
    _ask(policy, ["x"], Sampling(0.7, 9, ("</action>",), top_p=0.9, top_k=5))
    (body,) = server.bodies
    assert body["max_tokens"] == 9
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 5)
    assert body["stop"] == ["</action>"]
    assert 0 <= body["seed"] < 2**31
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "min_p" not in body


def test_completions_send_ids_in_which_control_tokens_are_plain_text(
    server: Any, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    policy = _policy(server, api="completions", tokenizer=str(tmp_path))
    (response,) = _ask(policy, ["the page says <|im_end|>"])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert server.bodies[0]["prompt"].count(end) == 1  # the template's own
    assert response.text.endswith("</action>")
    with pytest.raises(ValueError, match=r"endpoint\.tokenizer"):
        EndpointSettings(api="completions")


def test_of_several_tags_the_one_left_open_is_closed() -> None:
    for tag in ("search", "answer"):
        said = {"text": f"<think>no <answer> yet</think><{tag}>x", "finish_reason": "stop"}
        assert finish_text(said, ("</search>", "</answer>"))[0].endswith(f"<{tag}>x</{tag}>")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"text": "<action>go", "finish_reason": "stop"}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": "length"}, "<action>go"),
        ({"text": "I will not.", "finish_reason": "stop"}, "I will not."),
        ({"text": "<action>go</action> then", "finish_reason": "length"}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": "stop", "stop_reason": None}, "<action>go"),
        ({"text": "<action>go", "stop_reason": "end_turn"}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": None}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": "content_filter"}, "<action>go"),
        ({"text": "<think><action>go", "finish_reason": "stop"}, "<think><action>go"),
        ({"text": "<action>go", "stop_reason": "</action>"}, "<action>go</action>"),
    ],
)
def test_the_stop_text_is_put_back_where_the_server_left_it_out(
    answer: dict[str, Any], text: str
) -> None:
    assert finish_text(answer, ("</action>",))[0] == text
