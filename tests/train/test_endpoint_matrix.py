"""Whatever a server does, every agent's evaluation comes to the right end, on the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake
import fork

from paw_train.agents import AGENTS

pytestmark = pytest.mark.usefixtures("on_forks")


@dataclass(frozen=True)
class Solved:
    """Every task is solved."""

    said: str = ""
    """words of the output"""


@dataclass(frozen=True)
class Invalid:
    """No task is solved, since no answer is an action."""

    cause: str
    cut: bool = False
    said: str = ""


@dataclass(frozen=True)
class Refused:
    """One line that says why, exit code 2, nothing left behind."""

    words: tuple[str, ...]
    settings: tuple[str, ...] = field(default=())


EXPECTED: dict[str, Solved | Invalid | Refused] = {
    "ok": Solved(),
    "500 always": Refused(("it broke", "server's own log")),
    "500 then ok": Solved(),
    "html 200": Refused(("web page", "/v1")),
    "html 502": Refused(("Bad gateway",)),
    "empty choices": Refused(("no answer in the reply",)),
    "null content": Invalid("empty"),
    "400 stop": Solved("truncated here at the stop text"),
    "400 max_tokens": Solved("`max_completion_tokens` is sent instead"),
    "400 seed": Solved("refuses `seed`"),
    "400 temperature": Refused(("temperature", "evaluation.temperature=1")),
    "400 context": Refused(("maximum context length", "endpoint.context_tokens=200")),
    "500 context": Refused(("available context size", "endpoint.context_tokens=N")),
    "401": Refused(("OPENAI_API_KEY", "Incorrect API key")),
    "403": Refused(("may not use this model",)),
    "404 model": Refused(("no model 'model'",)),
    "429 retry-after": Solved(),
    "429": Solved(),
    "429 quota": Refused(("quota",)),
    "hang": Refused(("endpoint.timeout",), ("endpoint.timeout=0.05",)),
    "hang once": Solved(),
    "reset": Refused(("Connection error",)),
    "reset once": Solved(),
    "stream": Refused(("stream", "endpoint.extra")),
    "truncated json": Refused(("JSON",)),
    "truncated json once": Solved(),
    "no usage": Solved("tokens unknown"),
    "stop kept": Solved(),
    "stop stripped": Solved(),
    "unclosed tags": Invalid("the thought does not end"),
    "reasoning_content": Solved(),
    "reasoning": Solved(),
    "thought without opening": Solved(),
    "length": Invalid("truncated", cut=True, said="rollout.max_response_tokens"),
    "length in thought": Invalid("truncated", cut=True, said="rollout.max_response_tokens"),
    "tool calls": Invalid("tool call", said="agent.action_format=tools"),
    "refusal": Invalid("refusal"),
    "content filter": Invalid("content filter"),
    "prose": Invalid("block"),
    "error in choice once": Solved(),
    "error in choice": Refused(("Upstream error",)),
    "content parts": Solved(),
    "stop in thought": Solved("ends a thought at a stop text"),
    "stop_sequence": Solved(),
    "EOS": Solved(),
    "no reason": Solved(),
    "tool call in text": Invalid("tool call", said="agent.action_format=tools"),
}
ASKING = [name for name, a in AGENTS.items() if a.needs_policy and not a.own_form]
LINES = ("react_paper", "reflexion_paper")
"""agents whose model writes lines, not tags"""
OF_TAGS = {"stop kept", "stop stripped", "unclosed tags", "reasoning_content", "reasoning",
           "thought without opening", "prose", "tool call in text", "stop_sequence", "EOS", "no reason",
           "stop in thought"}  # fmt: skip
"""behaviours that only concern tags"""
CASES = [(a, b) for a in ASKING for b in fake.BEHAVIOURS]
CASES += [(a, b) for a in LINES for b in fake.BEHAVIOURS if b not in OF_TAGS]
SETTINGS = {
    "react_paper": ["agent.examples=0"],
    "reflexion_paper": ["agent.examples=0", "agent.trials=2"],
}


def test_the_matrix_knows_every_behaviour() -> None:
    assert set(EXPECTED) == set(fake.BEHAVIOURS)


@pytest.mark.parametrize(("agent", "behaviour"), CASES)
def test_every_agent_with_every_server(
    agent: str, behaviour: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = EXPECTED[behaviour]
    with fake.FakeEndpoint(behaviour=behaviour, context_limit=20) as server:
        server.faults.slow_seconds = 30.0
        more = list(expected.settings) if isinstance(expected, Refused) else []
        if behaviour == "hang once":
            more = ["endpoint.timeout=0.3", "endpoint.retries=30"]
        more += SETTINGS.get(agent, [])
        code, *printed = fork.run_paw(capsys, *fork.on_fork(server, agent, *more))
    output = " ".join(" ".join(printed).split())
    if isinstance(expected, Refused):
        assert code == 2, output
        assert all(word in output for word in expected.words), output
        assert "Traceback" not in output
        assert not list(tmp_path.iterdir())
        return
    assert code == 0, output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert expected.said in output
    assert result["complete"] and result["n"] == 2
    if isinstance(expected, Solved):
        assert result["success_rate"] == 1.0
        assert result["invalid_rate"] == 0.0
    else:
        assert result["success_rate"] == 0.0
        assert (result["invalid_rate"], result["truncated_rate"]) == (
            (0.0, 1.0) if expected.cut else (1.0, 0.0)
        )
        assert all(expected.cause in cause for cause in result["invalid_causes"])
        assert expected.cause in output


@pytest.mark.parametrize(
    ("agent", "more", "words"),
    [
        ("likelihood", [], "endpoint.api=completions"),
        ("likelihood", ["--dry-run"], "--limit 1"),
        ("react_paper", ["agent.action_format=tools"], "form of that agent's own"),
        ("search_r1", [], "paw_gym/SearchQA-v0"),
    ],
)
def test_an_agent_that_an_endpoint_or_environment_does_not_suit_says_so(
    agent: str, more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake.FakeEndpoint(behaviour="ok") as server:
        code, *printed = fork.run_paw(capsys, *fork.on_fork(server, agent, *more))
        assert not server.seen
    output = " ".join(" ".join(printed).split())
    assert code == 2, output
    assert words in output
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())
