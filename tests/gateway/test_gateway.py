"""The gateway under its clients: whose sessions they are, faults, limits, malformed requests, the end."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import wait_until

from env_servers.gateway.settings import Offer, tokens_of
from env_servers.gateway.workers import Fleet, WorkerGoneError
from env_servers.problems import ProblemError
from paw_gym import make_remote
from paw_gym.remote import ServerUnavailableError, generator_text, set_generator

from .conftest import RunningGateway, is_alive

MINE, THEIRS = "a-secret-of-mine", "a-secret-of-theirs"
OPEN = {"op": "open", "env_id": "tests/Dice-v0"}


def test_a_session_answers_to_its_owner_alone(gateway: RunningGateway) -> None:
    session = gateway.open("tests/Dice-v0", MINE)
    step = {"op": "step", "action": "roll"}
    restore = {"op": "restore", "reset": {"seed": 1}, "steps": []}
    ask = {"op": "ask", "what": "solution"}
    calls = [step, restore, ask, {"op": "reset", "seed": 1}, {"op": "close"}]
    stranger = [gateway.calls({**call, "session": session}, key=THEIRS) for call in calls]
    unknown = gateway.calls({**step, "session": "x" * 22}, key=THEIRS)
    assert all(answer == unknown for answer in stranger) and unknown[0]["status"] == 404
    assert gateway.step(session, "roll", MINE, at=0)["status"] == 200
    gateway.calls({"op": "close", "session": session}, key=MINE)
    assert gateway.step(session, "roll", MINE)["status"] == 404


def test_who_shows_no_secret_gets_no_session(gateway: RunningGateway) -> None:
    made_up = {"Authorization": "Bearer x"}
    for key, shown in (("", {}), ("short", {}), ("x" * 300, {}), ("", made_up)):
        status, content, _ = gateway.ask("POST", "/v1/calls", {"calls": [OPEN]}, key, **shown)
        assert status == 401 and "x-paw-client" in content["detail"]


def test_tokens_let_in_and_keep_apart(serve: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# two users\none-token\n\nother-token\n")
    gateway = serve("--tokens-file", str(tokens), "--workers", "1")
    mine, other = ({"Authorization": f"Bearer {t}"} for t in ("one-token", "other-token"))
    assert gateway.ask("GET", "/health")[0] == 200
    for wrong in ({}, {"Authorization": "Bearer wrong"}):
        assert gateway.ask("POST", "/v1/calls", {"calls": []}, **wrong)[0] == 401
        assert gateway.ask("GET", "/v1/envs", **wrong)[0] == 401
    [opened] = gateway.calls(OPEN, key="", **mine)
    reset = {"op": "reset", "session": opened["answer"]["session"], "seed": 1}
    assert gateway.calls(reset, key="", **other)[0]["status"] == 404
    assert gateway.calls(reset, key="k" * 20, **mine)[0]["status"] == 404
    assert gateway.calls(reset, key="", **mine)[0]["status"] == 200
    with pytest.raises(ServerUnavailableError, match="PAW_GATEWAY_TOKEN"):
        make_remote(gateway.url, "tests/Dice-v0")
    env = make_remote(gateway.url, "tests/Dice-v0", token="other-token")
    env.reset(seed=0)
    env.close()


def test_what_is_not_offered_is_refused(serve: Any, tmp_path: Path) -> None:
    gateway = serve("--env", "tests/Trouble-v0", "--env", "tests/Dice-v0", "--allow", "mood",
                    "--set", f"tests/Trouble-v0:data_dir={tmp_path}", "--workers", "1")  # fmt: skip

    def opened(env_id: str, **kwargs: Any) -> tuple[int, str]:
        [result] = gateway.calls({"op": "open", "env_id": env_id, "kwargs": kwargs})
        return result["status"], str(result["answer"].get("detail"))

    assert opened("tests/Trouble-v0")[0] == 200
    assert opened("tests/Trouble-v0", mood="good", max_steps=3)[0] == 200
    assert opened("tests/Trouble-v0", mood="bad") == (422, "mood: 'good' is the only one.")
    for env_id in ("paw_gym/ALFWorld-v0", "troubles:tests/Dice-v0", "os:system"):
        assert "serves no environment" in opened(env_id)[1]
    for name, value in (("data_dir", "/etc"), ("url", "http://127.0.0.1"), ("mood", "http://host")):
        status, words = opened("tests/Trouble-v0", **{name: value})
        assert status == 422 and name in words
    [described] = gateway.calls(
        {"op": "describe", "env_id": "tests/Trouble-v0", "kwargs": {"max_steps": 3}}
    )
    assert described["answer"]["max_steps"] == 3


def test_an_action_that_is_sent_twice_is_taken_once(gateway: RunningGateway) -> None:
    session = gateway.open("tests/Dice-v0")
    first = gateway.step(session, "roll", at=0)
    assert gateway.step(session, "roll", at=0) == first
    assert gateway.step(session, "stop", at=0)["status"] == 409
    assert gateway.step(session, "roll", at=5)["status"] == 409
    second = gateway.step(session, "roll", at=1)
    assert second["status"] == 200 and second != first
    assert gateway.step(session, "stop", at=2)["answer"]["terminated"]
    over = gateway.step(session, "roll", at=3)
    assert over["status"] == 422 and "over" in over["answer"]["detail"]


def test_an_action_is_taken_once_though_its_worker_was_killed(lone: RunningGateway) -> None:
    sessions = [lone.open("tests/Dice-v0") for _ in range(6)]
    expected = [lone.step(s, "roll", at=0) for s in sessions]
    deaths = lone.number("worker_deaths")
    os.kill(lone.workers()[0], signal.SIGKILL)
    wait_until(lambda: lone.number("worker_deaths") > deaths, "it is noticed")
    assert [lone.step(s, "roll", at=0) for s in sessions] == expected  # from memory
    gone = lone.step(sessions[0], "roll", at=1)
    assert gone["status"] == 409 and "restore" in gone["answer"]["detail"]
    again = {"op": "restore", "reset": {"seed": 1}, "steps": [{"action": "roll"}]}
    restored = lone.calls(*({**again, "session": s} for s in sessions))
    assert restored == expected
    control = lone.open("tests/Dice-v0")
    lone.step(control, "roll", at=0)
    answers = [lone.step(s, "roll", at=1) for s in [*sessions, control]]
    assert all(answer["status"] == 200 for answer in answers)
    assert len({json.dumps(answer) for answer in answers}) == 1  # same seed, same episode


@pytest.mark.parametrize("fatal", ["exit", "crash", "hang", "raise", "leave"])
def test_one_that_dies_or_hangs_takes_its_session_alone(lone: RunningGateway, fatal: str) -> None:
    victim, *others = [lone.open("tests/Trouble-v0") for _ in range(4)]
    [lone.step(s, "before", at=0) for s in (victim, *others)]
    calls = [{"op": "step", "session": s, "action": "meanwhile"} for s in others]
    calls.insert(1, {"op": "step", "session": victim, "action": fatal})
    results = lone.calls(*calls)
    lost = results.pop(1)
    assert lost["status"] == 410 and "reset" in lost["answer"]["detail"]
    assert ("took longer than 8 s" in lost["answer"]["detail"]) == (fatal == "hang")
    if fatal not in ("raise", "leave"):  # their worker died, too
        assert {result["status"] for result in results} <= {200, 409}
        again = {"op": "restore", "reset": {"seed": 1}}
        steps = [{"action": action} for action in ("before", "meanwhile")]
        results = lone.calls(*({**again, "session": s, "steps": steps} for s in others))
    assert all("2 ['before', 'meanwhile']" in r["answer"]["observation"] for r in results)
    assert lone.step(victim, "after")["status"] == 410
    [anew] = lone.calls({"op": "reset", "session": victim, "seed": 1})
    assert anew["status"] == 200
    assert "1 ['after']" in lone.step(victim, "after", at=0)["answer"]["observation"]


def test_a_worker_is_replaced_whatever_happens_on_the_way_to_it() -> None:
    def fail(text: bytes) -> None:
        raise RuntimeError("the handler is closed")  # as uvloop says of a worker that has just died

    async def run() -> None:
        fleet = Fleet(1)
        running = asyncio.create_task(fleet.run())
        first = await fleet.place()
        first._stdin.write = fail  # type: ignore
        with pytest.raises(WorkerGoneError):
            await first.call({"op": "drop", "session": "x"}, 60)
        second = await fleet.place()
        assert second is not first
        assert await second.call({"op": "drop", "session": "x"}, 60) == b"{}"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_what_an_environment_prints_is_no_answer(gateway: RunningGateway) -> None:
    session = gateway.open("tests/Trouble-v0")
    assert gateway.step(session, "print")["status"] == 200
    assert gateway.step(session, "next")["answer"]["reward"] == 0.5


def _opened(gateway: RunningGateway, headers: list[dict[str, str]]) -> list[int]:
    return [
        gateway.calls(OPEN, key=f"another secret {number}", **given)[0]["status"]
        for number, given in enumerate(headers)
    ]


def test_made_up_headers_are_no_way_around_limits(serve: Any) -> None:
    gateway = serve("--workers", "1", "--sessions-per-client", "2")
    made_up = [
        *({"Authorization": f"Bearer made-up-{n}"} for n in range(3)),
        {"X-Forwarded-For": "192.0.2.1"},
        {"Forwarded": "for=192.0.2.1"},
    ]
    assert _opened(gateway, made_up) == [200, 200, 429, 429, 429]


def test_one_token_is_one_client_however_it_is_shown(serve: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("one-token\nother-token\n")
    gateway = serve("--tokens-file", str(tokens), "--workers", "1", "--sessions-per-client", "2")

    def basic(pair: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}

    ways = [basic("me:one-token"), {"Authorization": "Bearer one-token"}]
    ways += [basic("you:one-token"), {"Authorization": "bearer   one-token"}]
    assert _opened(gateway, ways) == [200, 200, 429, 429]
    assert _opened(gateway, [basic("me:other-token")]) == [200]


def test_too_many_calls_are_refused_whole(gateway: RunningGateway) -> None:
    session = gateway.open("tests/Dice-v0")
    many = [{"op": "describe", "env_id": "tests/Dice-v0"}] * 1500
    step = {"op": "step", "session": session, "action": "roll"}
    assert gateway.ask("POST", "/v1/calls", {"calls": [step, *many]})[0] == 422
    assert gateway.ask("POST", "/v1/calls", {"calls": [step, step]})[0] == 422
    assert gateway.step(session, "roll", at=0)["status"] == 200


def test_tls(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    make += f" -addext subjectAltName=IP:127.0.0.1 -out {certificate} -keyout {key}"
    subprocess.run(make.split(), check=True, capture_output=True)
    files = ("--certificate", str(certificate), "--private-key", str(key))
    gateway = serve(*files, "--workers", "1", scheme="https")
    with pytest.raises(ServerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        make_remote(gateway.url, "tests/Dice-v0")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert ssl.create_default_context().cert_store_stats()["x509"] == 1
    env = make_remote(gateway.url, "tests/Dice-v0")
    env.reset(seed=0)
    assert env.step("stop")[2]
    env.close()


def test_it_tells_what_it_serves_and_how_it_fares(gateway: RunningGateway) -> None:
    status, content, _ = gateway.ask("GET", "/v1/envs")
    ids = {env["env_id"] for env in content["envs"]}
    assert status == 200 and {"tests/Dice-v0", "paw_gym/ALFWorld-v0"} <= ids
    assert "paw_gym/Remote-v0" not in ids and "data_dir" not in content["kwargs"]
    assert gateway.ask("GET", "/health")[1]["status"] == "ok"
    before = gateway.number("sessions")
    gateway.open("tests/Dice-v0")
    assert gateway.number("sessions") == before + 1


def test_malformed_requests_are_the_clients_fault(gateway: RunningGateway, bench: Any) -> None:
    seen, problems = bench.fuzz(gateway.url, "tests/Dice-v0", 400)
    assert not problems
    assert {200, 404, 405, 422} <= set(seen)
    deep = b'{"calls": ' + b"[" * 100_000
    assert gateway.ask("POST", "/v1/calls", deep)[0] == 422
    lone = b'{"calls": [{"op": "open", "env_id": "\\ud800", "kwargs": {}}]}'
    assert gateway.ask("POST", "/v1/calls", lone)[0] == 422
    assert gateway.ask("GET", "/health")[1]["status"] == "ok"


@pytest.mark.parametrize("killed", [False, True])
def test_it_ends_with_sessions_open_and_leaves_no_workers(serve: Any, killed: bool) -> None:
    gateway = serve("--workers", "2")
    gateway.open("tests/Dice-v0")
    workers = gateway.workers()
    assert len(workers) == 2
    status, said = gateway.stop(signal.SIGKILL if killed else signal.SIGTERM)
    assert killed or (status == -signal.SIGTERM and "Warning" not in said)
    assert killed or not any(map(is_alive, workers))
    wait_until(lambda: not any(map(is_alive, workers)), "the workers are gone")


def test_every_answer_is_for_its_owner_and_nothing_is_left(serve: Any, bench: Any) -> None:
    gateway = serve("--workers", "2", "--session-minutes", "0.5")
    storm = bench.Storm(
        (gateway.port, gateway.process.pid), "tests/Dice-v0", sessions=160, clients=8,
        seconds=600, kill_every=0.3,
    )  # fmt: skip
    asyncio.run(storm.run())
    assert not storm.problems
    counts = storm.counts
    assert counts["opened"] == 160 and counts["answers 200"] > 300 and counts["trespasses"] > 20
    assert counts["workers killed"] > 0 and counts["clients torn away"] > 0
    assert counts["restored"] > 0
    wait_until(lambda: gateway.ask("GET", "/health")[1]["sessions"] == 0, "the rest expires")
    assert gateway.ask("GET", "/health")[1]["pending"] == 0
    workers = gateway.workers()
    assert gateway.stop(signal.SIGTERM)[0] == -signal.SIGTERM
    wait_until(lambda: not any(map(is_alive, workers)), "the workers are gone")


@given(st.integers(0, 2**64), st.integers(0, 5))
def test_a_generator_goes_on_from_its_text(seed: int, odd: int) -> None:
    here = np.random.default_rng(seed)
    here.integers(10, size=odd, dtype=np.uint32)  # leaves half of a draw behind
    there = np.random.default_rng(1)
    text = generator_text(here)
    assert text is not None
    set_generator(there, text)
    assert generator_text(there) == text
    for kind in (np.uint32, np.uint64, np.uint8):
        assert here.integers(200, size=5, dtype=kind).tolist() == (
            there.integers(200, size=5, dtype=kind).tolist()
        )


def test_other_generators_have_no_text() -> None:
    other = np.random.Generator(np.random.MT19937(1))
    assert generator_text(other) is None
    with pytest.raises(ValueError, match="MT19937"):
        set_generator(other, "0" * 73)
    with pytest.raises(ValueError, match="73"):
        set_generator(np.random.default_rng(1), "0" * 72)


def test_an_offer_says_what_it_holds() -> None:
    offer = Offer(frozenset({"me/A-v0", "me/B-v0"}), fixed={"me/A-v0": {"data_dir": "/data"}})
    assert offer.settings("me/A-v0", {"split": "test"}) == {"split": "test", "data_dir": "/data"}
    assert offer.settings("me/B-v0", {"max_steps": 5, "show_attributes": True})
    wrong = {"data_dir": ["/etc"], "split": ["../train", "/etc/passwd", ".hidden", "", "a\n"]}
    wrong |= {"max_steps": [10**6, 2.5, True], "top_k": [1e300, float("nan")]}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ProblemError):
            offer.settings("me/B-v0", {name: value})
    with pytest.raises(ProblemError, match="me/A-v0"):
        offer.settings("me/A-v1", {})
    with pytest.raises(ValueError, match="cannot be served"):
        Offer(frozenset({"paw_gym/Remote-v0"}))
    with pytest.raises(ValueError, match="not served"):
        Offer(frozenset({"me/A-v0"}), fixed={"me/B-v0": {}})


def test_tokens_are_the_lines_of_a_file(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# mine\n one \n\ntwo\n")
    assert tokens_of("zero", tokens) == ["zero", "one", "two"]
