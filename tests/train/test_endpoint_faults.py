"""Every agent against an endpoint that fails and is killed, itself killed and run again: the same result."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake
from forked import Forked
from servers import free_port

from paw_train.evaluation import evaluate_from_args

SERVER = Path(str(fake.__file__))

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
import importlib, json, os, signal, sys
from pathlib import Path
from paw_train.evaluation import evaluate_from_args
from paw_train.policies.endpoint import transport

transport.FIRST_WAIT = 0.01
out, jobs, place, count = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if place:
    module, *path, last = place.split(":")
    owner = importlib.import_module(module)
    for part in path:
        owner = getattr(owner, part)
    real, left = getattr(owner, last), [count]

    def killing(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            if last == "add":  # in the middle of a line
                with args[0].path.open("a") as file:
                    file.write('{"seed": 1, "seconds": 3')
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(owner, last, killing)
for agent, settings in jobs.items():
    if not (out / agent / "result.json").exists():
        evaluate_from_args("openai:stub", settings, str(out / agent), agent=agent)
"""

KILLS = [
    ("paw_train.policies.endpoint.answers:AnswerCache:put", 30),
    ("paw_train.evaluation.result_folder:EpisodeLog:add", 6),
    ("paw_train.policies.endpoint.answers:AnswerCache:put", 50),
    ("paw_train.evaluation.result_folder:write_json", 0),
    ("", 0),
]
"""where the evaluating process is killed, and how many calls come before"""


class Supervised:
    """A failing server in a process of its own, started again each time that it was killed."""

    def __init__(self) -> None:
        self.port, self.lives = free_port(), 0
        self._stopped = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch)

    def _start(self) -> subprocess.Popen[str]:
        words = map(str, (SERVER, self.port, DIES_AT, self.lives, json.dumps(FAULTS)))
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert int(process.stdout.readline()) == self.port
        process.stdout.close()
        self.lives += 1
        return process

    def _watch(self) -> None:
        while not self._stopped.wait(0.05):
            if self._process.poll() is not None:
                self._process = self._start()

    def __enter__(self) -> Supervised:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()
        self._process.kill()
        self._process.wait()


def _run(out: Path, jobs: dict[str, list[str]], place: str, count: int) -> tuple[int, str]:
    done = Forked(CHILD, out, json.dumps(jobs), place, str(count)).wait()
    return done.code, done.stderr


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
    kills, killed = list(KILLS), 0
    with Supervised() as server:
        place = [f"endpoint.url=http://127.0.0.1:{server.port}/v1", f"endpoint.cache={cache}",
                 "endpoint.timeout=1"]  # fmt: skip
        jobs = {agent: [*COMMON, *settings, *place] for agent, settings in AGENTS.items()}
        for _ in range(200):
            code, said = _run(rough, jobs, *kills[0])
            if code == 0:
                break
            if code == -9:
                killed += 1
                kills.pop(0)
            else:  # it began while the server was down, and says so
                assert "Nothing answers at" in said, said[-2000:]
    assert code == 0
    assert killed == len(KILLS) - 1
    assert server.lives > asked / DIES_AT

    for agent in AGENTS:
        (result, episodes), (wanted, ours) = _told(rough / agent), _told(tmp_path / "calm" / agent)
        assert result["errors"] == 0
        assert result == wanted, agent
        assert episodes == ours, agent
