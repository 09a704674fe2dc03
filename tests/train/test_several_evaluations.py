"""Several models and panels in one command, their table, and their folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake
import fork

from paw_train.evaluation.panels import PANELS, PanelSpec
from paw_train.evaluation.program import Job, make_job
from paw_train.settings import load_settings

Paw = Callable[..., tuple[int, str, str]]
ASKED = ["--agent", "plain", "evaluation.temperature=0.5", "endpoint.cache=null",
         "endpoint.retries=1"]  # fmt: skip


@pytest.fixture(autouse=True)
def panels(on_forks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PANELS, "_loaded", dict(PANELS._loaded))
    for name, size in (("test/both", 2), ("test/one", 1)):
        PANELS.add(name, PanelSpec(fork.ENV, "valid_unseen", size))


class Two(fake.FakeEndpoint):
    """Knows the models a and b, and may refuse one."""

    refused = ""

    def _behave(self, handler: Any, body: dict[str, Any], kind: str) -> bool:
        if body["model"] == self.refused:
            fake._send(handler, 404, {"error": {"message": f"no {body['model']}"}})
        return bool(body["model"] == self.refused)


@pytest.fixture
def server() -> Iterator[Two]:
    with Two() as running:
        yield running


@pytest.fixture
def paw(capsys: pytest.CaptureFixture[str]) -> Paw:
    """(exit code, stdout, stderr) of ``paw``."""
    return lambda *arguments: fork.run_paw(capsys, *arguments)


@pytest.fixture
def evaluate(paw: Paw, server: Two) -> Paw:
    """The same of ``paw eval`` with the server's models."""
    return lambda *arguments: paw("eval", *arguments, *ASKED, f"endpoint.url={server.url}")


def test_models_and_panels_are_crossed_and_go_on(server: Two, evaluate: Paw, paw: Paw) -> None:
    command = ["openai:a", "openai:b", "--panel", "test/both,test/one", "--out", "all"]
    server.refused = "b"
    code, output, said = evaluate(*command)
    assert code == 2
    assert said.count("Error: openai:b on test/") == 2
    assert len(list(Path("all").iterdir())) == 2
    asked = server.served
    server.refused = ""
    code, output, said = evaluate(*command)
    assert (code, said) == (0, "")
    assert server.served == 2 * asked  # those of a were not asked again
    last = output[output.rindex("95 % interval") :]
    assert last.count("test/both") == last.count("test/one") == 2
    assert last.count("openai:a") == last.count("openai:b") == 2
    code, output, _ = evaluate(*command, "--json")
    assert [(r["model"], r["n"]) for r in json.loads(output)] == [
        ("openai:a", 2), ("openai:a", 1), ("openai:b", 2), ("openai:b", 1)
    ]  # fmt: skip
    both, one, *_ = sorted(map(str, Path("all").iterdir()))
    code, output, _ = paw("compare-results", both, both)
    assert code == 0 and "0 better, 0 worse" in output
    code, output, said = paw("compare-results", both, one)
    assert (code, output) == (2, "")
    assert said.count(";") == 0, "of different panels nothing is said but that"
    assert "cannot be compared: other tasks: panel test/both (" in " ".join(said.split())


def test_an_interrupted_one_says_how_to_go_on(
    server: Two, evaluate: Paw, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paw_train.evaluation.runner.PanelRun.play", interrupted)
    code, _, said = evaluate("openai:a", "--panel", "test/both", "--out", "one")
    assert code == 130 and "The same command runs the missing episodes" in said


def test_a_budget_holds_for_all_models_together(server: Two, evaluate: Paw) -> None:
    command = ["openai:a", "openai:b", "--panel", "test/both", "--out", "all"]
    code, output, _ = evaluate(*command, "endpoint.budget_requests=3")
    assert code == 3
    assert server.seen == 3
    code, output, _ = evaluate(*command, "endpoint.budget_requests=3")
    assert code == 0, output
    code, output, _ = evaluate(*command, "endpoint.budget_requests=1", "--fresh")
    assert code == 3
    assert "1 of 2 evaluations were begun" in output


def test_a_models_settings_are_not_of_the_baseline_beside_it(server: Two, paw: Paw) -> None:
    command = ["openai:a", "random", "--panel", "test/one", "--out", "all", "endpoint.cache=null"]
    code, _, said = paw("eval", *command, f"endpoint.url={server.url}")
    assert (code, said) == (0, "")
    assert len(list(Path("all").iterdir())) == 2
    code, _, said = paw("eval", "random", "expert", f"endpoint.url={server.url}")
    assert code == 2 and "behind openai:MODEL" in said, "none of these models has it"


def test_the_table_has_numbers_and_intervals(evaluate: Paw, paw: Paw) -> None:
    prices = ["endpoint.input_price=1", "endpoint.output_price=1"]
    evaluate("openai:a", "openai:b", "--panel", "test/both", "--out", "all", *prices)
    code, output, _ = paw("table", "all", "--md")
    assert code == 0 and output.splitlines()[0] == (
        "| model | agent | panel | n | success | 95 % interval | cost ($) |"
    )
    assert "| openai:a | plain | test/both | 2 | 100.0 % | 34.2 to 100.0 |" in output
    _, output, _ = paw("table", *map(str, Path("all").iterdir()))
    assert output.count("34.2 to 100.0") == 2
    for limit in (40, 50):
        own = ("--out", f"of-a/{limit}", f"rollout.max_response_tokens={limit}")
        evaluate("openai:a", "--panel", "test/both", *own)
    _, output, _ = paw("table", "of-a", "--md")
    for limit in (40, 50):
        assert f"| plain (rollout.max_response_tokens={limit}) | test/both" in output


def test_other_evaluations_have_other_folders(tmp_path: Path) -> None:
    def folder(model: str, *settings: str, seeds: int = 1) -> Path:
        own = [f"env.id={fork.ENV}", *settings]
        return make_job(model, own, agent="plain", seeds=seeds).folder

    for name in ("x/model", "y/model"):
        (tmp_path / name).mkdir(parents=True)
    plain = folder("openai:org/m")
    different = [
        plain, folder("openai:other/m"), folder("openai:org-m"), folder("openai:m"),
        folder("openai:org/m", "evaluation.temperature=0"),
        folder("openai:org/m", "agent.action_format=tools"), folder("openai:org/m", seeds=2),
        folder("openai:org/m", "endpoint.url=http://a/v1"),
        folder("openai:org/m", "endpoint.url=http://b/v1"),
        folder("openai:org/m", "endpoint.extra={enable_thinking: false}"),
        folder("x/model"), folder("y/model"), folder(str(tmp_path / "x" / "model")),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    same = ["endpoint.concurrency=2", "endpoint.budget_requests=7", "evaluation.batch=3"]
    assert folder("openai:org/m", *same) == plain
    expert = make_job("expert", [f"env.id={fork.ENV}"])
    assert expert.folder == Path("runs/eval-expert-test-Fork-v0-2")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(load_settings("smoke").to_dict()))
    others = [f"env.id=paw_gym/{name}-v0" for name in ("ToyText", "2048")]
    jobs = [make_job(str(run), own) for own in ([], *zip(others))]
    assert [job.plan.split for job in jobs] == ["valid_unseen", "test", "test"]
    assert jobs[0].folder == run / "eval-run-valid_unseen"
    assert jobs[1].folder.name.startswith("eval-run-paw_gym-ToyText-v0-test")
    assert jobs[1].folder != jobs[2].folder


def test_defaults_that_are_written_out_make_no_other_evaluation() -> None:
    def job(*settings: str) -> Job:
        own = [f"env.id={fork.ENV}", *settings]
        return make_job("openai:m", own, agent="best_of_n")

    usual, written = job(), job("agent.n=4", "agent.action_format=tags")
    assert (usual.plan, usual.folder) == (written.plan, written.folder)
    assert job("agent.n=5").plan.agent_settings == {"n": 5}
    assert job("agent.n=5").folder != usual.folder


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens_details": {"cached_tokens": 60}}, {"prompt_cache_hit_tokens": 60},
     {"cached_tokens": 60, "prompt_tokens_details": None}],
)  # fmt: skip
def test_cached_input_has_a_price_of_its_own(paw: Paw, monkeypatch: Any, usage: Any) -> None:
    answer = fake._answer

    def cached(*arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = answer(*arguments)
        found["usage"] |= {"prompt_tokens": 100, **usage}
        return found

    monkeypatch.setattr(fake, "_answer", cached)
    prices = ["endpoint.input_price=10", "endpoint.cached_input_price=1", "endpoint.output_price=0"]
    with fake.FakeEndpoint() as server:
        code, output, _ = paw(*fork.on_fork(server, "plain", *prices))
    assert code == 0, output
    result = json.loads(Path("out/result.json").read_text())
    assert result["tokens"]["cached"] == result["endpoint"]["cached_tokens"] == 120
    assert result["cost"] == result["endpoint"]["cost"] == pytest.approx((80 * 10 + 120 * 1) / 1e6)
    assert "200 prompt (120 cached)" in output
    assert "cost $0.00092" in output
