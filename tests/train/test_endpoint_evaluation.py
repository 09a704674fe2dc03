"""``paw eval openai:...``: costs, ends, records, and what it needs installed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake
import fork
import programs

from paw_gym import PromptTemplate
from paw_gym.internals.replies import read_chat
from paw_gym.transition import Episode, read_jsonl
from paw_train.agents import AGENTS
from paw_train.agents.action_form import ActionForm, ask_for_tools, problem_of
from paw_train.agents.metering import exchanges
from paw_train.evaluation.comparison import load_result, reasons_against
from paw_train.policies.endpoint.transport import BudgetReached, Limits
from paw_train.rollouts.policy import Request, Response
from paw_train.settings.endpoint import EndpointSettings

pytestmark = pytest.mark.usefixtures("on_forks")

Capture = pytest.CaptureFixture[str]
PRICES = ["endpoint.input_price=1", "endpoint.output_price=2"]


def evaluate(capsys: Capture, server: Any, agent: str, *more: str) -> tuple[int, str, str]:
    code, output, said = fork.run_paw(capsys, *fork.on_fork(server, agent, *more))
    return code, output, " ".join(said.split())


def result() -> dict[str, Any]:
    return load_result("out")


def episodes() -> list[Episode]:
    return list(read_jsonl("out/episodes.jsonl"))


WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "tokenizers", "peft", "safetensors"]))
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
    jobs.append(["eval", "random", *given[4:], "--out", "r"])
    programs.said(
        "-c", f"ARGUMENTS = {jobs!r}\n{WITHOUT_TORCH}", folder=tmp_path, OMP_NUM_THREADS="1"
    )
    assert len(list(tmp_path.glob("*/result.json"))) == len(jobs)


def test_a_budget_stops_cleanly_and_the_same_command_goes_on(server: Any, capsys: Capture) -> None:
    given = ["endpoint.concurrency=1", "endpoint.budget_cost=0.0012", *PRICES]
    code, output, _ = evaluate(capsys, server, "cot", *given)
    assert code == 3
    assert "1 of 2 tasks were run" in output
    assert "endpoint.budget_cost=0.0012" in output
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
        limits = Limits(EndpointSettings(budget_cost=100, input_price=1e6))
        log: list[str] = []

        async def request(name: str) -> None:
            try:
                async with limits.request(50):
                    log.append(f"{name} in")
                    await asyncio.sleep(0)
                    limits.charge(25)
            except BudgetReached as reached:
                log.append(f"{name}: {reached}")

        await asyncio.gather(*(request(name) for name in "abcd"))
        return log

    # two fit at a time; of the 100, each leaves 25, so a third and no fourth fits
    assert asyncio.run(spend()) == [
        "a in", "b in", "c in", "d: endpoint.budget_cost=100 leaves no room for a further request.",
    ]  # fmt: skip


def test_examples_that_cannot_be_had_are_explained(
    server: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task of the small environment is evaluated, so none is left to be an example."""
    code, _, said = evaluate(capsys, server, "react", "agent.examples=1")
    assert code == 2
    assert "tasks are evaluated, and an evaluated task is no example" in said
    assert "agent.examples=0" in said
    monkeypatch.setattr(fork.Fork, "reference_solution", fork.TextEnv.reference_solution)
    code, _, said = evaluate(capsys, server, "react", "agent.examples=1", "evaluation.tasks=1")
    assert code == 2
    assert "has no expert that could write one. agent.examples=0" in said
    assert evaluate(capsys, server, "react", "evaluation.tasks=1")[0] == 0


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


def test_a_server_gets_its_own_ids_and_reasoning_back() -> None:
    def answer(own: str | None, reasoning: str) -> Response:
        call = {"name": "act", "arguments": ACT} | ({"id": own} if own else {})
        field = "reasoning_content"
        return Response(tool_calls=[call], reasoning=reasoning, reasoning_field=field)

    responses = [
        answer("functions.act:0", "one"),
        answer("functions.act:0", "two"),
        answer(None, "three"),
        Response(text="<think>four</think><action>go</action>"),
    ]
    messages = [{"role": "user", "content": "q"}]
    for response in responses:
        response.text = TOOLS.read(response)
        messages += [{"role": "assistant", "content": response.text},
                     {"role": "user", "content": "found"}]  # fmt: skip
    sent = TOOLS.request(Request("e", 0, messages), responses).messages
    assert [m["role"] for m in sent] == ["user", *["assistant", "tool"] * 4]
    assert [m.get("reasoning_content") for m in sent[1::2]] == ["one", "two", "three", None]
    assert [m["content"] for m in sent[1::2]] == ["", "", "", "four"]
    ids = [m["tool_calls"][0]["id"] for m in sent[1::2]]
    assert ids == ["functions.act:0", "call00003", "call00005", "call00007"]
    assert [m["tool_call_id"] for m in sent[2::2]] == ids


def called(arguments: Any, name: str = "act") -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


TOOLS = ActionForm(ask_for_tools(PromptTemplate.load("generic")), "tools")
ACT = '{"action": "go\n"}'


@pytest.mark.parametrize(
    ("message", "action", "problem"),
    [
        (called({"action": "go"}), "go", None),
        (called(ACT), "go", None),
        (called(json.dumps(ACT)), "go", None),
        (called(f"```json\n{ACT}\n```"), "go", None),
        (called(ACT, "functions.act"), "go", None),
        (called("go north"), "go north", None),
        ({"function_call": {"name": "act", "arguments": ACT}}, "go", None),
        ({"content": f'<think>hm</think><tool_call>\n{{"name": "act", "arguments": {ACT}}}\n</tool_call>'},
         "go", None),
        ({"content": "<tool_call><function=act>\n<parameter=action>\ngo\n</parameter></function>"},
         "go", None),
        ({"content": "<think><tool_call><function=act><parameter=action>no</parameter></function>"
                     "</tool_call></think><action>go</action>"}, "go", None),
        ({"content": "<tool_call>go</tool_call>"}, "", "unknown tool"),
        (called(ACT, "fly"), "", "unknown tool"),
        (called(None), "", "tool arguments"),
        (called('{"action": ["go"]}'), "", "tool arguments"),
    ],
)  # fmt: skip
def test_calls_of_every_form_are_read_or_named(
    message: dict[str, Any], action: str, problem: str | None
) -> None:
    answer = read_chat({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    response = Response(text=answer["text"], tool_calls=answer.get("tool_calls", []))
    assert problem_of(response, TOOLS) == problem
    assert TOOLS.template.read_response(TOOLS.read(response)).action == action


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
        (("fly", '{"fly": "away"}'), None, "<think></think>", "unknown tool"),
        (("search", '{"search": '), None, "<think></think>", "tool arguments"),
        (("search", '{"query": "who"}'), None, "<think></think>", "tool arguments"),
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
    "case",
    [
        ("react", 170, "turns"),
        ("plain", 100, "turns", "env.mode=conversation"),
        ("cot", 100, "prompts", *WINDOW),
        ("best_of_n", 100, "prompts", *WINDOW, "evaluation.temperature=1", "agent.n=2"),
        ("self_consistency", 100, "prompts", *WINDOW[1:], "evaluation.temperature=1"),
    ],
    ids=lambda case: case[0],
)
def test_contexts_are_shortened_after_a_refusal_with_the_limit_or_without(
    server: Any, capsys: Capture, behaviour: str, case: Any
) -> None:
    agent, words, lost, *options = case
    server.behaviour, server.context_limit = behaviour, words
    code, output, _ = evaluate(capsys, server, agent, *LONG, *options)
    assert code == 0, output
    assert result()["success_rate"] == 1.0
    assert result()["forgotten"][lost] > 0
    assert "the model refused longer contexts" in output


class HalfBroken(fake.FakeEndpoint):  # type: ignore[misc]
    """Fails for one of the two tasks, as long as it is broken."""

    broken = True

    def _behave(self, handler: Any, body: dict[str, Any], kind: str) -> bool:
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
    before = Path("out/result.json").read_bytes()
    code, output, _ = evaluate(capsys, server, "cot", "endpoint.concurrency=3")
    assert code == 0
    assert "Finished earlier" in output
    assert Path("out/result.json").read_bytes() == before
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


def test_what_is_printed(server: Any, capsys: Capture) -> None:
    _, output, _ = evaluate(capsys, server, "cot", "--json")
    assert json.loads(output) == result()
    _, output, said = evaluate(capsys, server, "cot", "--quiet", "--fresh")
    assert (output, said) == ("", "")
    _, output, _ = evaluate(capsys, server, "cot", *PRICES, "--fresh")
    assert f"cost ${result()['cost']:.4g}" in output
    assert "2 model calls" in output


def test_the_key_is_sent_and_never_written(
    server: Any, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "very-secret")
    more = ["endpoint.api_key_env=MY_KEY", f"endpoint.cache={tmp_path / 'c.sqlite'}"]
    printed = evaluate(capsys, server, "cot", *more)
    assert server.authorization == {"Bearer very-secret"}
    assert "very-secret" not in str(printed)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"very-secret" not in path.read_bytes()


SOLVED, INVALID, CUT = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
"""rates of success, invalid and truncated answers"""
EXPECTED: dict[str, tuple[Any, ...]] = {
    "ok": (SOLVED,),
    "500 always": (None, "it broke", "server's own log"),
    "500 then ok": (SOLVED,),
    "html 200": (None, "web page", "/v1"),
    "html 502": (None, "Bad gateway"),
    "empty choices": (None, "no answer in the reply"),
    "null content": (INVALID, "empty"),
    "400 stop": (SOLVED, "truncated here at the stop text"),
    "400 max_tokens": (SOLVED, "`max_completion_tokens` is sent instead"),
    "400 seed": (SOLVED, "refuses `seed`"),
    "400 temperature": (None, "temperature", "evaluation.temperature=1"),
    "400 context": (None, "maximum context length", "endpoint.context_tokens=200"),
    "500 context": (None, "available context size", "endpoint.context_tokens=N"),
    "401": (None, "OPENAI_API_KEY", "Incorrect API key"),
    "403": (None, "may not use this model"),
    "404 model": (None, "no model 'model'"),
    "429 retry-after": (SOLVED,),
    "429": (SOLVED,),
    "429 quota": (None, "quota"),
    "hang": (None, "endpoint.timeout"),
    "hang once": (SOLVED,),
    "reset": (None, "Connection error"),
    "reset once": (SOLVED,),
    "stream": (None, "stream", "endpoint.extra"),
    "truncated json": (None, "JSON", "was cut off"),
    "truncated json once": (SOLVED,),
    "no usage": (SOLVED, "tokens unknown"),
    "absurd usage": (SOLVED, "tokens unknown"),
    "stop kept": (SOLVED,),
    "stop stripped": (SOLVED,),
    "unclosed tags": (INVALID, "the thought does not end"),
    "reasoning_content": (SOLVED,),
    "reasoning": (SOLVED,),
    "thought without opening": (SOLVED,),
    "length": (CUT, "truncated", "rollout.max_response_tokens"),
    "length in thought": (CUT, "truncated", "rollout.max_response_tokens"),
    "tool calls": (INVALID, "tool call", "agent.action_format=tools"),
    "refusal": (INVALID, "refusal"),
    "content filter": (INVALID, "content filter"),
    "prose": (INVALID, "block"),
    "error in choice once": (SOLVED,),
    "error in choice": (None, "Upstream error"),
    "content parts": (SOLVED,),
    "stop in thought": (SOLVED, "ends a thought at a stop text"),
    "stop_sequence": (SOLVED,),
    "EOS": (SOLVED,),
    "no reason": (SOLVED,),
    "tool call in text": (INVALID, "tool call", "agent.action_format=tools"),
}
"""by what a server does: the rates in the result (``None``: one line, exit code 2, nothing left behind), and
words of the output, of which the first is the cause of invalid answers"""
HANGING = {
    "hang": ["endpoint.timeout=0.05"],
    "hang once": ["endpoint.timeout=0.3", "endpoint.retries=30"],
}
ASKING = [name for name, a in AGENTS.items() if a.needs_policy and not a.own_form]


@pytest.mark.parametrize("behaviour", EXPECTED)
@pytest.mark.parametrize("agent", ASKING)
def test_every_agent_with_every_server(
    server: Any, capsys: Capture, agent: str, behaviour: str
) -> None:
    rates, *words = EXPECTED[behaviour]
    server.behaviour, server.context_limit, server.faults.slow_seconds = behaviour, 20, 30.0
    code, *printed = evaluate(capsys, server, agent, *HANGING.get(behaviour, []))
    output = " ".join(" ".join(printed).split())
    assert code == (2 if rates is None else 0), output
    assert all(word in output for word in words), output
    if rates is None:
        assert "Traceback" not in output
        assert not list(Path().iterdir())
        return
    found = result()
    assert found["complete"] and found["n"] == 2
    assert [found[f"{name}_rate"] for name in ("success", "invalid", "truncated")] == rates
    assert rates == SOLVED or all(words[0] in cause for cause in found["invalid_causes"])
