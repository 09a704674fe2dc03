"""Inspect: the panels, agents and scorer there measure as ``paw eval`` does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="the extra `inspect`, in an environment of its own")

import fake_endpoint as fake
from inspect_ai import eval as inspect_eval
from inspect_ai._util.registry import registry_lookup
from inspect_ai.log import EvalLog
from inspect_ai.model import get_model
from inspect_ai.solver import SolverSpec

from paw_gym.transition import read_jsonl
from paw_train.cli import main
from paw_train.evaluation.panels import PANELS
from paw_train.integrations.inspect import task_name

PANEL, SETTINGS = "toy_text/frozen_lake", "evaluation.tasks=12"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[fake.FakeEndpoint]:
    """A model that goes down or right, as its messages and seed decide."""
    usual = fake._answer

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        reply, seen = usual(body), json.dumps([body["messages"], body.get("seed")])
        way = ("down", "right")[hashlib.sha256(seen.encode()).digest()[0] % 2]
        reply["choices"][0]["message"]["content"] = f"<think>hm</think><action>{way}"
        return reply

    with pytest.MonkeyPatch.context() as patch, fake.FakeEndpoint() as server:
        patch.setattr(fake, "_answer", answer)
        yield server


def rates(log: EvalLog) -> dict[str, float]:
    assert log.results is not None
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


def outcomes(log: EvalLog) -> dict[str, Any]:
    return {str(s.id): (s.scores or {})["outcome"].value for s in log.samples or []}


@pytest.mark.parametrize("agent", ["plain", "react"])
def test_both_ways_give_the_same_scores(
    agent: str, endpoint: fake.FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path / "logs"))
    words = ["eval", "openai:model", SETTINGS, f"endpoint.url={endpoint.url}", "--panel", PANEL]
    words += ["--agent", agent, "--out", str(tmp_path / "ours"), "--quiet"]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
    ours = json.loads((tmp_path / "ours" / "result.json").read_text())
    model = get_model("openai-api/fake/model", base_url=endpoint.url, api_key="none", memoize=False)
    args = {"agent": agent, "settings": SETTINGS}
    [there] = inspect_eval(f"paw/{task_name(PANEL)}", model, task_args=args, display="none")
    assert there.status == "success", there.error
    played = {e.task_id: e for e in read_jsonl(tmp_path / "ours" / "episodes.jsonl")}
    assert outcomes(there) == {
        task: {"success": float(e.success), "score": e.score, "reward": e.total_reward}
        for task, e in played.items()
    }
    assert len(played) == 12
    assert len({json.dumps(value) for value in outcomes(there).values()}) > 1
    means = [ours["success_rate"], ours["score"]["mean"], ours["mean_reward"]]
    assert [rates(there)[name] for name in ("success", "score", "reward")] == pytest.approx(means)
    assert there.eval.task == "paw/toy_text_frozen_lake"
    for sample in there.samples or []:
        said = [m.text for m in sample.messages if m.role == "assistant"]
        assert said == [t.response for t in played[str(sample.id)].transitions]


def test_every_panel_is_offered_and_an_agent_is_a_solver(
    endpoint: fake.FakeEndpoint, tmp_path: Path
) -> None:
    for panel in PANELS:
        assert registry_lookup("task", f"paw/{task_name(panel)}"), panel
    model = get_model("openai-api/fake/model", base_url=endpoint.url, api_key="none", memoize=False)
    [log] = inspect_eval(
        "paw/sudoku_4x4", model, limit=1, epochs=2, solver=SolverSpec("paw/cot"),
        display="none", log_dir=str(tmp_path),
    )  # fmt: skip
    assert log.status == "success", log.error
    assert [sample.epoch for sample in log.samples or []] == [1, 2]
    assert log.eval.solver == "paw/cot"
