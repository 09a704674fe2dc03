from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import serve

Make = Callable[..., Any]
QUICK = {"backoff": 0.0, "timeout": 60.0, "attempts": 2}


class Endpoint:
    """Answers with what is queued, a text, a message or a status; in the end always the last."""

    def __init__(self) -> None:
        self.answers: list[Any] = ["I want something."]
        self.requests: list[dict[str, Any]] = []
        self.shown = ""

    def __call__(self, method: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        self.requests.append(body)
        self.shown = headers["Authorization"]
        assert path == "/v1/chat/completions"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return answer, {"error": "no"}
        if isinstance(answer, bytes):
            return 200, answer
        message = {"content": answer} if isinstance(answer, str) else answer
        return 200, {"choices": [{"message": {"role": "assistant", **message}}]}


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def served(make: Make, endpoint: Endpoint) -> Iterator[Make]:
    with serve(endpoint, headers=True) as address:
        at = {"user": "endpoint", "user_model": "m", "user_url": f"{address}/v1"}
        yield lambda domain="mock", **settings: make(
            domain, user_settings={**QUICK, **settings}, **at
        )


def calls(*named: tuple[str, str]) -> dict[str, Any]:
    listed = [{"id": "x", "function": {"name": n, "arguments": a}} for n, a in named]
    return {"content": None, "tool_calls": listed}


def test_a_conversation(served: Make, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    env = served(max_tokens=50)
    endpoint.answers = ["Mark task_1 as completed.", "Bye ###STOP###"]
    observation, _ = env.reset(seed=0, options={"task_id": "mock/update_task_1"})
    assert observation == "User: Mark task_1 as completed."
    env.step(env.reference_solution()[0])
    observation, reward, terminated, _, info = env.step("Done.")
    assert observation == "User: Bye\nThe user has ended the conversation."
    assert reward == 1.0 and terminated and info["ended_by"] == "user_stop"
    assert not info["user_failed"] and env.nondeterministic
    request = endpoint.requests[-1]
    assert request["model"] == "m" and request["temperature"] == 0.0
    assert request["max_tokens"] == 50 and request["seed"] == env.state["seed"]
    assert "tools" not in request
    # the model speaks as the user, and sees nothing of the agent's tools
    assert [(m["role"], m["content"]) for m in request["messages"][1:]] == [
        ("user", "Hi! How can I help you today?"),
        ("assistant", "Mark task_1 as completed."),
        ("user", "Done."),
    ]
    scenario = env.task.data["user_scenario"]["instructions"]
    system = request["messages"][0]
    assert system["role"] == "system" and scenario in system["content"]
    assert system["content"].startswith("# User Simulation Guidelines")
    assert endpoint.shown == "Bearer secret"
    assert "secret" not in repr(env.save_state())


def test_its_thoughts_are_not_said(served: Make, endpoint: Endpoint) -> None:
    thinking = {"type": "thinking", "thinking": "I know a secret."}
    for said in (
        {"content": [thinking, {"type": "text", "text": "Hello."}]},
        "<think>I know a secret.</think>Hello.",
        "I know a secret.</think>\n\nHello.",
    ):
        endpoint.answers = [said]
        observation, _ = served().reset(seed=0, options={"task_id": "mock/update_task_1"})
        assert observation == "User: Hello."


def test_it_is_told_what_the_packages_own_simulator_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # set before the import, which fetches a list of prices
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("litellm", reason="the package's own simulator imports LiteLLM")
    from tau2.user.user_simulator import UserSimulator

    from paw_gym.envs.tau2.domains import package_task
    from paw_gym.envs.tau2.users import system_prompt

    for domain, tools in (("airline", None), ("telecom", [])):
        record = make(domain).tasks[3].data
        theirs = UserSimulator(tools=tools, instructions=package_task(record).user_scenario)
        assert system_prompt(record, tools is not None) == theirs.system_prompt


def test_the_user_turns_to_its_phone(served: Make, endpoint: Endpoint) -> None:
    env = served("telecom")
    endpoint.answers = ["No signal!", calls(("check_status_bar", "{}")), "It says No Service."]
    env.reset(options={"task_index": 0})
    observation, *_ = env.step("What does the status bar say?")
    assert observation == "User: It says No Service."
    request = endpoint.requests[-1]
    assert {"check_status_bar", "reboot_device"} <= {
        t["function"]["name"] for t in request["tools"]
    }
    asked, answered = request["messages"][-2:]
    assert asked["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert answered["role"] == "tool" and "Status Bar" in answered["content"]
    other = served("telecom")
    other.restore_state(env.save_state())
    for again in (env, other):
        endpoint.answers = [calls(("toggle_airplane_mode", "{}")), "Did it."]
        again.step("Toggle the airplane mode.")
    assert other.state == env.state


@pytest.mark.parametrize(
    "broken",
    [
        500,
        400,
        b"not json",
        b'{"choices": []}',
        "  ",
        calls(("check_status_bar", "{")),
        calls(("x", "[]")),
        calls(("check_status_bar", "{}")),  # and never a word
    ],
    ids=str,
)
def test_failures_end_the_episode_in_time(served: Make, endpoint: Endpoint, broken: Any) -> None:
    endpoint.answers = ["Hello.", broken]
    env = served("telecom")
    env.reset(options={"task_index": 0})
    for number in range(3):
        observation, reward, terminated, _, info = env.step("Yes?")
        assert observation.startswith("The user did not answer.")
        assert info["user_failed"] and info["user_error"] and info["action_is_valid"]
        assert terminated == (number == 2)
    assert reward == 0.0 and info["ended_by"] == "user_error"


def test_a_user_that_comes_back(served: Make, endpoint: Endpoint) -> None:
    endpoint.answers = [500, 500, 429, "Here I am.", 503, "Go on."]
    env = served()
    observation, info = env.reset()
    assert observation.endswith("The user did not answer. You may write again.")
    assert info["user_failed"]
    for said in ("Here I am.", "Go on."):  # a failure that passes is not noticed
        observation, _, _, _, info = env.step("Hello?")
        assert observation == f"User: {said}"
        assert info["user_failed"] and info["user_error"] is None, "the episode stays marked"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_wrong_settings_are_told_at_once(served: Make, endpoint: Endpoint, status: int) -> None:
    from paw_gym.envs.tau2.users import UserSetupError

    endpoint.answers = [status]
    with pytest.raises(UserSetupError, match=f"chat/completions refused.*status {status}"):
        served().reset()
