"""Against a server that fails and is killed, and killed itself: the same results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake
from forked import Forked, KillAt
from servers import free_port

from paw_train.evaluation import evaluate_from_args
from paw_train.evaluation.result_folder import LOG

FAULTS = {"error": 0.1, "overload": 0.08, "cut": 0.06, "garbage": 0.04, "slow": 0.02,
          "slow_seconds": 1.5}  # fmt: skip
DIES_AT = 45
"""requests after which a server process is killed"""
COLD, WARM = "evaluation.temperature=0", "evaluation.temperature=0.7"
FEW = ["agent.examples=1", "agent.example_tokens=600"]
AGENTS = {
    "plain": [COLD],
    "cot": [COLD],
    "react": [COLD, *FEW],
    "reflexion": [COLD, "agent.trials=2", *FEW],
    "self_consistency": [WARM, "agent.samples=3"],
    "best_of_n": [WARM, "agent.n=2"],
}
COMMON = [
    "env.kwargs={max_steps: 4, num_tasks: 20}", "evaluation.split=valid_seen", "evaluation.tasks=4",
    "endpoint.retries=80", "endpoint.input_price=1", "endpoint.output_price=2",
]  # fmt: skip

CHILD = """
import json, sys
from pathlib import Path
from forked import kill_before
from paw_train.evaluation import evaluate_from_args
from paw_train.policies.endpoint import transport

transport.FIRST_WAIT = 0.01
out, jobs, kill_at = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
if kill_at is not None:
    kill_before(*kill_at)
for agent, settings in jobs.items():
    if not (out / agent / "result.json").exists():
        evaluate_from_args("openai:stub", settings, str(out / agent), agent=agent)
"""

KILLS: list[KillAt] = [
    ("paw_train.policies.endpoint.answers:AnswerCache:put", 30),
    ("paw_train.evaluation.result_folder:EpisodeLog:add", 6),
    ("paw_train.policies.endpoint.answers:AnswerCache:put", 50),
    ("paw_train.evaluation.result_folder:write_json", 0),
]
"""where the evaluating process is killed, and how many calls come before"""


@contextmanager
def supervised() -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    """Port and lives of a failing server, started again when it is killed."""
    port, lives, stopped = free_port(), [], threading.Event()

    def start() -> None:
        words = map(str, (fake.__file__, port, DIES_AT, len(lives), json.dumps(FAULTS)))
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout as said:
            assert int(said.readline()) == port
        lives.append(process)

    def watch() -> None:
        while not stopped.wait(0.05):
            if lives[-1].poll() is not None:
                start()

    start()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield port, lives
    finally:
        stopped.set()
        thread.join()
        lives[-1].kill()
        lives[-1].wait()


def _told(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result but for what took how long and how many tries, and the episodes."""
    result = json.loads((folder / "result.json").read_text())
    for key in ("seconds", "endpoint"):
        result.pop(key)
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    return result, [json.loads(line) for line in lines]


@pytest.mark.slow
def test_faults_and_kills_change_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with fake.FakeEndpoint() as calm:
        for agent, settings in AGENTS.items():
            given = [*COMMON, *settings, f"endpoint.url={calm.url}", "endpoint.cache=null"]
            evaluate_from_args("openai:stub", given, str(tmp_path / "calm" / agent), agent=agent)
        asked = calm.served

    rough, cache = tmp_path / "rough", tmp_path / "answers.sqlite"
    kills: list[KillAt | None] = [*KILLS, None]
    with supervised() as (port, lives):
        place = [f"endpoint.url=http://127.0.0.1:{port}/v1", f"endpoint.cache={cache}",
                 "endpoint.timeout=1"]  # fmt: skip
        jobs = {agent: [*COMMON, *settings, *place] for agent, settings in AGENTS.items()}
        for _ in range(200):
            done = Forked(CHILD, rough, json.dumps(jobs), json.dumps(kills[0])).wait()
            if done.code == 0:
                break
            if done.code == -signal.SIGKILL:
                kills.pop(0)
                for log in rough.glob(f"*/{LOG}"):  # as if in the middle of a line
                    with log.open("a") as file:
                        file.write('{"seed": 1, "seconds": 3')
            else:  # it began while the server was down, and says so
                assert "Nothing answers at" in done.stderr, done.stderr[-2000:]
    assert done.code == 0
    assert kills == [None]
    assert len(lives) > asked / DIES_AT

    for agent in AGENTS:
        (result, episodes), (wanted, ours) = _told(rough / agent), _told(tmp_path / "calm" / agent)
        assert result["errors"] == 0
        assert result == wanted, agent
        assert episodes == ours, agent
