"""``paw eval openai:...``: what it costs, where it stops, what it records, and what it needs installed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake
import fork

from paw_gym import PromptTemplate
from paw_gym.internals.replies import read_chat
from paw_gym.transition import Episode, read_jsonl
from paw_train.agents.action_form import ActionForm, ask_for_tools, problem_of
from paw_train.agents.metering import exchanges
from paw_train.evaluation.comparison import load_result, reasons_against
from paw_train.policies.endpoint.answers import context_tokens
from paw_train.policies.endpoint.failures import Fallbacks, hint
from paw_train.policies.endpoint.transport import Budget, BudgetReached, Use
from paw_train.rollouts.policy import Request, Response
from paw_train.settings.endpoint import EndpointSettings

pytestmark = pytest.mark.usefixtures("on_forks")

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]
PRICES = ["endpoint.input_price=1", "endpoint.output_price=2"]


def evaluate(capsys: Capture, server: Any, agent: str, *more: str) -> tuple[int, str, str]:
    answer: tuple[int, str, str] = fork.run_paw(capsys, *fork.on_fork(server, agent, *more))
    return answer


def result() -> dict[str, Any]:
    return load_result("out")


def episodes() -> list[Episode]:
    return list(read_jsonl("out/episodes.jsonl"))


# --- without torch ----------------------------------------------------------------------------------

BLOCKED = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "tokenizers", "peft", "safetensors"}:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
from paw_train.cli import main
for arguments in ARGUMENTS:
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
"""


def test_an_endpoint_is_evaluated_without_torch_or_transformers(
    server: Any, tmp_path: Path
) -> None:
    given = ["eval", "openai:model", f"endpoint.url={server.url}", "endpoint.cache=null",
             "env.kwargs={max_steps: 2, num_tasks: 20}", "--limit", "1",
             "evaluation.temperature=0.5"]  # fmt: skip
    jobs = [
        [*given, "--agent", a, "--out", a, *fork.SETTINGS.get(a, [])]
        for a in ("policy", "plain", "cot", "react", "self_consistency", "best_of_n", "reflexion")
    ]
    jobs += [["eval", "random", *given[4:], "--out", "r"], [*given, "--dry-run"]]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", f"ARGUMENTS = {jobs!r}\n{BLOCKED}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.glob("*/result.json"))) == len(jobs) - 1


# --- budgets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget",
    [["endpoint.budget_requests=1"], ["endpoint.budget_cost=0.0012", *PRICES]],
)  # fmt: skip
def test_a_budget_stops_cleanly_and_the_same_command_goes_on(
    server: Any, capsys: Capture, budget: list[str]
) -> None:
    given = ["endpoint.concurrency=1", *budget]
    code, output, _ = evaluate(capsys, server, "cot", *given)
    assert code == 3
    assert "1 of 2 tasks were run" in output
    assert budget[0] in output
    assert "The same command runs the missing episodes" in output
    partial = result()
    assert (partial["n"], partial["complete"], partial["unplayed"]) == (1, False, 1)
    assert partial["runs"][0]["successes"] in ("1-", "-1")
    assert partial["ci95"] == [pytest.approx(0.2065, abs=1e-3), 1.0]  # Wilson, of one task
    assert "only 1 of 2 tasks" in reasons_against(partial, partial)[0]
    assert len(episodes()) == 1
    assert server.served == 1
    code, _, _ = evaluate(capsys, server, "cot", *given)
    assert code == 0
    assert server.served == 2  # what was finished was not asked again
    assert (result()["n"], result()["complete"], result()["stopped"]) == (2, True, None)
    assert not Path("out/unfinished.jsonl").exists()


def test_a_budget_is_never_exceeded_and_waits_for_what_is_under_way() -> None:
    async def spend() -> list[str]:
        budget = Budget(EndpointSettings(budget_cost=100, input_price=1e6, output_price=1e6))
        log: list[str] = []

        async def request(name: str) -> None:
            try:
                await budget.enter(claim := Use(20, 30))
            except BudgetReached as reached:
                log.append(f"{name}: {reached}")
                return
            log.append(f"{name} in")
            await asyncio.sleep(0)
            await budget.leave(claim, Use(20, 5))

        await asyncio.gather(*(request(name) for name in "abcd"))
        return log

    # two fit at a time; of the 100, each leaves 25, so a third and no fourth fits
    assert asyncio.run(spend()) == [
        "a in", "b in", "c in", "d: endpoint.budget_cost=100 leaves no room for a further request.",
    ]  # fmt: skip


# --- the dry run --------------------------------------------------------------------------------------


def test_a_dry_run_estimates_and_touches_nothing(server: Any, capsys: Capture) -> None:
    long = ["env.kwargs={length: 9, max_steps: 3}", "rollout.max_response_tokens=40", *PRICES]
    code, output, _ = evaluate(capsys, server, "cot", *long, "--dry-run", "--json", "--seeds", "2")
    assert code == 0
    found = json.loads(output)
    assert found["at_most"]["tasks"] == 4
    assert found["at_most"]["requests"] == 4 * 3
    assert found["at_most"]["completion_tokens"] == 4 * 3 * 40
    assert found["typical"]["completion_tokens"] == 4 * 3 * 10
    at_most = found["at_most"]
    assert at_most["cost"] == pytest.approx(
        (at_most["prompt_tokens"] + 2 * at_most["completion_tokens"]) / 1e6
    )
    assert (server.seen, server.asked_models) == (0, 0)
    assert not list(Path().iterdir())
    votes = json.loads(
        evaluate(capsys, server, "self_consistency", *long, "--dry-run", "--json")[1]
    )
    assert votes["at_most"]["requests"] == 2 * 3 * 2
    code, output, _ = fork.run_paw(capsys, "eval", "random", "--dry-run")
    assert code == 2


def test_a_dry_run_covers_what_is_really_asked(server: Any, capsys: Capture) -> None:
    long = ["env.kwargs={length: 3, max_steps: 3}", "rollout.max_response_tokens=64"]
    for agent in ("cot", "react", "self_consistency", "best_of_n"):
        found = json.loads(evaluate(capsys, server, agent, *long, "--dry-run", "--json")[1])
        evaluate(capsys, server, agent, *long, "--fresh")
        assert result()["model_calls"] == found["at_most"]["requests"]
        sent = sum(len(m["content"]) for body in server.bodies for m in body["messages"])
        assert sent / 4 - len(server.bodies) <= found["at_most"]["prompt_tokens"]
        server.bodies.clear()


def test_a_missing_example_is_explained(server: Any, capsys: Capture) -> None:
    """Every task of the small environment is evaluated, so none is left to be an example."""
    code, _, said = evaluate(capsys, server, "react", "agent.examples=1")
    assert code == 2
    assert "tasks are evaluated, and an evaluated task is no example" in " ".join(said.split())
    assert "agent.examples=0" in said


def test_an_environment_without_an_expert_has_no_examples(
    server: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork.Fork, "reference_solution", fork.TextEnv.reference_solution)
    code, _, said = evaluate(capsys, server, "react", "agent.examples=1", "evaluation.tasks=1")
    assert code == 2
    assert "has no expert that could write one. agent.examples=0" in " ".join(said.split())
    assert evaluate(capsys, server, "react", "evaluation.tasks=1")[0] == 0


# --- acting by tools ------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["policy", "plain", "cot", *fork.SETTINGS])
def test_tool_calls_are_actions_where_tools_are_offered(
    server: Any, capsys: Capture, agent: str
) -> None:
    server.behaviour = "tool calls"
    tools = ["agent.action_format=tools", "env.kwargs={length: 2}"]
    code, output, _ = evaluate(capsys, server, agent, *tools)
    assert code == 0, output
    found = result()
    assert (found["success_rate"], found["invalid_rate"]) == (1.0, 0.0)
    assert found["action_format"] == "tools"
    body = server.bodies[0]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["act"]
    assert body["tool_choice"] == "auto"
    assert "stop" not in body
    assert "calling the tool `act`" in str(body["messages"][0]["content"])


def _dialogue(*said: Response) -> list[dict[str, Any]]:
    """What is sent after these responses."""
    form = ActionForm(ask_for_tools(PromptTemplate.load("generic")), "tools")
    messages = [{"role": "user", "content": "q"}]
    for response in said:
        response.text = form.read(response)
        messages += [{"role": "assistant", "content": response.text},
                     {"role": "user", "content": "found"}]  # fmt: skip
    return [dict(m) for m in form.request(Request("e", 0, messages), said).messages]


def test_a_server_gets_its_own_ids_and_reasoning_back() -> None:
    def called(own: str | None, action: str, reasoning: str) -> Response:
        call = {"name": "act", "arguments": json.dumps({"action": action})}
        return Response(
            tool_calls=[call | ({"id": own} if own else {})],
            reasoning=reasoning,
            reasoning_field="reasoning_content",
        )

    sent = _dialogue(
        called("functions.act:0", "go", "one"),
        called("functions.act:0", "go", "two"),
        called(None, "look", "three"),
        Response(text="<think>four</think><action>go</action>"),
    )
    assert [m["role"] for m in sent] == ["user", *["assistant", "tool"] * 4]
    assert [m.get("reasoning_content") for m in sent[1::2]] == ["one", "two", "three", None]
    assert [m["content"] for m in sent[1::2]] == ["", "", "", "four"]
    ids = [m["tool_calls"][0]["id"] for m in sent[1::2]]
    assert ids == ["functions.act:0", "call00003", "call00005", "call00007"]
    assert [m["tool_call_id"] for m in sent[2::2]] == ids


ACT = '{"action": "go\n"}'


@pytest.mark.parametrize(
    ("message", "action", "problem"),
    [
        ({"tool_calls": [{"function": {"name": "act", "arguments": {"action": "go"}}}]}, "go", None),
        ({"tool_calls": [{"function": {"name": "act", "arguments": json.dumps(ACT)}}]},
         "go", None),
        ({"tool_calls": [{"function": {"name": "act", "arguments": f"```json\n{ACT}\n```"}}]}, "go", None),
        ({"tool_calls": [{"function": {"name": "act", "arguments": ACT}}]}, "go", None),
        ({"tool_calls": [{"function": {"name": "functions.act", "arguments": ACT}}]}, "go", None),
        ({"tool_calls": [{"function": {"name": "act", "arguments": "go north"}}]}, "go north", None),
        ({"function_call": {"name": "act", "arguments": ACT}}, "go", None),
        ({"content": f'<think>hm</think><tool_call>\n{{"name": "act", "arguments": {ACT}}}\n</tool_call>'},
         "go", None),
        ({"content": "<tool_call><function=act>\n<parameter=action>\ngo\n</parameter></function>"},
         "go", None),
        ({"content": "<think><tool_call><function=act><parameter=action>no</parameter></function>"
                     "</tool_call></think><action>go</action>"}, "go", None),
        ({"content": "<tool_call>go</tool_call>"}, "", "unknown tool"),
        ({"tool_calls": [{"function": {"name": "act", "arguments": None}}]}, "", "tool arguments"),
        ({"tool_calls": [{"function": {"name": "act", "arguments": '{"action": ["go"]}'}}]},
         "", "tool arguments"),
        ({"tool_calls": [{"function": {"name": "fly", "arguments": ACT}}]}, "", "unknown tool"),
    ],
)  # fmt: skip
def test_calls_of_every_form_are_read_or_named(
    message: dict[str, Any], action: str, problem: str | None
) -> None:
    answer = read_chat({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    response = Response(text=answer["text"], tool_calls=answer.get("tool_calls", []))
    form = ActionForm(ask_for_tools(PromptTemplate.load("generic")), "tools")
    assert problem_of(response, form) == problem
    assert form.template.read_response(form.read(response)).action == action


def test_an_empty_answer_is_sent_as_words(server: Any, capsys: Capture) -> None:
    server.behaviour = "null content"
    evaluate(capsys, server, "react", "env.kwargs={length: 2}")
    sent = [b["messages"] for b in server.bodies if len(b["messages"]) > 1]
    assert sent and all(m["content"].strip() for messages in sent for m in messages)
    recorded = [e.messages for episode in episodes() for e in exchanges(episode)]
    assert all(messages in recorded for messages in sent)


@pytest.mark.parametrize(
    ("call", "thought", "text", "problem"),
    [
        (("search", '{"search": "who"}'), "hm", "<think>hm</think><search>who</search>", None),
        (("answer", '{"answer": "me"}'), None, "<think></think><answer>me</answer>", None),
        (("answer", '{"answer": 1972}'), None, "<think></think><answer>1972</answer>", None),
        (("functions.answer", "me"), None, "<think></think><answer>me</answer>", None),
        (("fly", '{"fly": "away"}'), None, "<think></think>", "unknown tool"),
        (("search", '{"search": '), None, "<think></think>", "tool arguments"),
        (("search", '{"query": "who"}'), None, "<think></think>", "tool arguments"),
        (("search", "[]"), None, "<think></think>", "tool arguments"),
        (("search", ""), None, "<think></think>", "tool arguments"),
    ],
)
def test_an_environment_s_own_tags_are_tools(
    call: tuple[str, str], thought: str | None, text: str, problem: str | None
) -> None:
    form = ActionForm(ask_for_tools(PromptTemplate.load("search")), "tools")
    assert form.tool_names == ["search", "answer"]
    calls = [{"name": call[0], "arguments": call[1]}]
    response = Response(tool_calls=calls, reasoning=thought)
    assert form.read(response) == text
    assert problem_of(response, form) == problem
    dialogue = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text},
                {"role": "user", "content": "found"}]  # fmt: skip
    sent = form.request(Request("e", 0, dialogue)).messages
    if call[0] in ("search", "answer") and "who" in text:
        assert sent[1]["content"] == "hm"
        assert sent[2]["role"] == "tool"
    elif text == "<think></think>":
        assert sent == dialogue


def test_tools_need_a_prompt_that_can_ask_for_them(capsys: Capture, server: Any) -> None:
    given = ["agent.action_format=tools", "env.template=compact"]
    code, _, said = evaluate(capsys, server, "policy", *given)
    assert code == 2
    assert "{ask}" in said
    code, _, said = evaluate(capsys, server, "policy", "agent.action_format=toools")
    assert code == 2
    assert "'toools'" in said


# --- what is recorded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["cot", "react", "self_consistency", "reflexion"])
def test_messages_are_recorded_as_they_were_sent(server: Any, capsys: Capture, agent: str) -> None:
    server.behaviour = "reasoning_content"
    evaluate(capsys, server, agent, "env.kwargs={length: 3, max_steps: 3}")
    sent = sorted(json.dumps(body["messages"]) for body in server.bodies)
    recorded = [e for episode in episodes() for e in exchanges(episode)]
    assert sorted(json.dumps(e.messages) for e in recorded) == sent
    assert {e.reasoning for e in recorded} == {"hm"}
    assert {e.finish_reason for e in recorded} == {"stop"}
    assert all(e.text == "<action>right</action>" for e in recorded)
    assert all(e.tokens is not None and e.tokens[1] == 10 for e in recorded)
    step = episodes()[0].transitions[0]
    assert step.response == "<think>hm</think><action>right</action>"
    assert step.info["agent"]["finish_reason"] == "stop"
    assert step.info["agent"]["reasoning"] == "hm"


def test_what_a_server_refused_stands_in_the_result_also_from_the_cache(
    server: Any, capsys: Capture, tmp_path: Path
) -> None:
    server.behaviour = "400 max_tokens"
    cached = f"endpoint.cache={tmp_path / 'answers.sqlite'}"
    for _ in range(2):
        _, output, _ = evaluate(capsys, server, "cot", cached, "--fresh")
        assert "max_completion_tokens" in result()["endpoint"]["fallbacks"][0]
        assert "max_completion_tokens" in output
    assert server.served == 2
    assert result()["endpoint"]["cached"] == 2
    refused = {body["max_tokens"] for body in server.bodies if "max_tokens" in body}
    assert refused == {512}
    assert sum("max_completion_tokens" in body for body in server.bodies) == 2


class _Refusal(Exception):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status_code, self.param, self.code = 400, param, None


def test_a_wait_of_a_day_ends_the_run_and_the_same_command_goes_on(
    server: Any, capsys: Capture
) -> None:
    server.faults = fake.Faults(overload=1.0, retry_after="86400")
    code, output, _ = evaluate(capsys, server, "plain")
    assert code == 3, output
    assert "asks for a wait of 86,400 s" in output
    server.faults = fake.Faults()
    code, output, _ = evaluate(capsys, server, "plain")
    assert code == 0, output
    assert result()["success_rate"] == 1.0


@pytest.mark.parametrize(
    ("message", "learned"),
    [
        ("Unsupported parameter: 'max_tokens' is not supported with this model.", True),
        ("max_tokens: Extra inputs are not permitted", True),
        ("max_tokens is too large: 9999. This model supports at most 4096 completion tokens", False),
        ("'max_tokens' is too large: 512. This model's maximum context length is 4096 tokens and "
         "your request has 4000 input tokens, which is not supported", False),
        ("messages: unknown role", False),
    ],
)  # fmt: skip
def test_only_a_field_that_is_unknown_there_is_left_out(message: str, learned: bool) -> None:
    fallbacks = Fallbacks()
    body = {"model": "m", "max_tokens": 5}
    assert fallbacks.learn(_Refusal(message), body) is learned
    wanted = {"model": "m", "max_completion_tokens": 5} if learned else body
    assert fallbacks.apply(body) == wanted


@pytest.mark.parametrize(
    ("message", "param", "left_out", "advice"),
    [
        ("Unsupported parameter: 'temperature' is not supported with this model.", "temperature",
         "temperature", None),
        ("Unsupported value: 'temperature' does not support 0.4 with this model. Only the default (1) "
         "value is supported.", "temperature", None, "evaluation.temperature=1"),
        ("The parameter `top_p` is not supported by model doubao-seed-1.6", "top_p", None, None),
        ("The parameter `top_p` is not supported by model doubao-seed-1.6", None, None, None),
        ("This model (gpt-stop) takes a temperature; `seed` is not supported", None, "seed", None),
        ("parameter.enable_thinking must be set to false for non-streaming calls", None, None,
         "endpoint.extra={enable_thinking: false}"),
        ("Invalid 'stop': array too long. Expected an array with maximum length 4", "stop", None,
         "endpoint.extra={stop: null}"),
        ("The model tool-ace-8b is not available in your region", None, None, None),
    ],
)  # fmt: skip
def test_a_refusal_is_about_the_field_that_it_names(
    message: str, param: str | None, left_out: str | None, advice: str | None
) -> None:
    body = {"model": "m", "messages": [], "temperature": 0.4, "seed": 1, "stop": ["x"]}
    fallbacks, error = Fallbacks(), _Refusal(message, param)
    assert fallbacks.learn(error, body) is (left_out is not None)
    assert body.keys() - fallbacks.apply(body).keys() == ({left_out} - {None})
    if left_out is None:
        found = hint(error, body)
        assert found is None if advice is None else advice in str(found)


# --- contexts -------------------------------------------------------------------------------------------

LONG = ["env.kwargs={length: 12, max_steps: 12}", "rollout.max_response_tokens=16"]


def test_the_server_s_context_limit_decides_what_is_forgotten(server: Any, capsys: Capture) -> None:
    server.max_model_len = 1700
    _, output, _ = evaluate(capsys, server, "react", *LONG)
    found = result()
    assert found["context_tokens"] == 1700
    assert found["forgotten"]["episodes"] == 2
    assert found["forgotten"]["turns"] > 2
    assert "turns left out, in 2 episodes (the context limit is 1,700 tokens)" in output
    longest = max(len(b["messages"]) for b in server.bodies)
    server.max_model_len = 100_000
    evaluate(capsys, server, "react", *LONG, "--fresh")
    assert result()["forgotten"]["turns"] == 0
    assert max(len(b["messages"]) for b in server.bodies) == 23 > longest
    evaluate(capsys, server, "react", *LONG, "--fresh", "endpoint.context_tokens=1700")
    assert result()["context_tokens"] == 1700


WINDOW = ["env.mode=window", "env.history_length=12"]


@pytest.mark.parametrize("behaviour", ["400 context", "500 context"])
@pytest.mark.parametrize(
    ("agent", "options", "words", "left_out"),
    [
        ("react", [], 170, "turns"),
        ("plain", ["env.mode=conversation"], 100, "turns"),
        ("cot", WINDOW, 100, "prompts"),
        ("best_of_n", ["evaluation.temperature=1", "agent.n=2", *WINDOW], 100, "prompts"),
        ("self_consistency", ["evaluation.temperature=1", *WINDOW[1:]], 100, "prompts"),
    ],
)
def test_every_agent_s_contexts_are_shortened_after_a_refusal_with_the_limit_or_without(
    server: Any,
    capsys: Capture,
    behaviour: str,
    agent: str,
    options: list[str],
    words: int,
    left_out: str,
) -> None:
    server.behaviour, server.context_limit = behaviour, words
    code, output, _ = evaluate(capsys, server, agent, *LONG, *options)
    assert code == 0, output
    assert result()["success_rate"] == 1.0
    assert result()["forgotten"][left_out] > 0
    assert "the model refused longer contexts" in output


@pytest.mark.parametrize(
    ("entry", "limit"),
    [
        ({"id": "m", "max_model_len": 4096}, 4096),
        ({"id": "m", "context_length": 8192}, 8192),
        ({"id": "other", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),
        ({"id": "m", "object": "model"}, None),
        ({"id": "m", "max_model_len": "many"}, None),
    ],
)
def test_what_servers_say_of_a_model(entry: dict[str, Any], limit: int | None) -> None:
    assert context_tokens({"data": [entry]}, "m") == limit
    assert context_tokens({"data": [{"id": "a"}, {"id": "b", "max_model_len": 1}]}, "m") is None
    assert context_tokens("<html>", "m") is None


# --- failures, folders and output -------------------------------------------------------------------


class HalfBroken(fake.FakeEndpoint):  # type: ignore[misc]
    """Fails for one of the two tasks, as long as it is broken."""

    broken = True

    def _behave(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> bool:
        if self.broken and "exit b" in json.dumps(body):
            fake._send(handler, 500, {"error": {"message": "no exit here"}})
            return True
        return False


def test_tasks_that_failed_are_no_part_of_the_rate_and_are_played_again(capsys: Capture) -> None:
    with HalfBroken() as server:
        code, output, _ = evaluate(capsys, server, "cot")
        assert code == 1
        assert "1 episode failed by an error. The first reason: InternalServerError" in output
        assert "no exit here" in output
        assert "1 of 2 tasks were run" in output
        found = result()
        assert (found["n"], found["success_rate"], found["errors"]) == (1, 1.0, 1)
        assert found["runs"][0]["successes"] == "1-"
        served = server.served
        server.broken = False
        code, output, _ = evaluate(capsys, server, "cot")
    assert code == 0
    assert server.served == served + 1
    assert (result()["n"], result()["errors"]) == (2, 0)


def test_a_folder_holds_one_evaluation(server: Any, capsys: Capture) -> None:
    evaluate(capsys, server, "cot")
    seconds = result()["seconds"]
    before = Path("out/result.json").read_bytes()
    code, output, _ = evaluate(capsys, server, "cot", "endpoint.concurrency=3")
    assert code == 0
    assert "Finished earlier" in output
    assert Path("out/result.json").read_bytes() == before
    assert result()["seconds"] == seconds
    assert server.served == 2
    for more, words in (
        (["evaluation.temperature=0"], "rollout.temperature 0.5, now 0.0"),
        (["--seeds", "2"], "--seeds 1, now 2"),
        (["--limit", "1"], "panel"),
    ):
        code, _, said = evaluate(capsys, server, "cot", *more)
        assert code == 2
        assert words in said
        assert "--fresh" in said
        assert Path("out/result.json").read_bytes() == before
    code, _, _ = evaluate(capsys, server, "cot", "--limit", "1", "--fresh")
    assert code == 0
    assert result()["n"] == 1


def test_json_and_quiet(server: Any, capsys: Capture) -> None:
    _, output, _ = evaluate(capsys, server, "cot", "--json")
    assert json.loads(output) == result()
    _, output, said = evaluate(capsys, server, "cot", "--quiet", "--fresh")
    assert (output, said) == ("", "")
    _, output, _ = evaluate(capsys, server, "cot", *PRICES, "--fresh")
    assert f"cost ${result()['cost']:.4g}" in output
    assert "2 model calls" in output
