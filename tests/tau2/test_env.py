from __future__ import annotations

import itertools
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from playing import play as played

from paw_gym import check_text_env, make_agent_env

Make = Callable[..., Any]
SIZES = {"airline": (30, 20, 50), "retail": (74, 40, 114), "telecom": (74, 40, 114)}


def start(env: Any, task_id: str) -> tuple[str, dict[str, Any]]:
    return env.reset(seed=0, options={"task_id": task_id})


def play(env: Any, task_id: str, actions: Sequence[str]) -> tuple[Any, ...]:
    start(env, task_id)
    for action in actions:
        answer = env.step(action)
        if answer[2] or answer[3]:
            break
    return answer


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize("domain", [*SIZES, "mock"])
def test_every_task_reaches_full_reward(make: Make, domain: str) -> None:
    env = make(domain)
    failed = {}
    for task_id in env.tasks.ids:
        start(env, task_id)
        _, reward, terminated, _, info = play(env, task_id, env.reference_solution())
        if not (terminated and reward == 1.0 and info["success"]):
            failed[task_id] = info["reward_parts"] or info["ended_by"]
    assert failed == {}, f"{len(failed)} of {len(env.tasks)}"


def test_the_expert_follows_the_episode(make: Make) -> None:
    env, turns = make("retail"), itertools.count()
    start(env, "retail/2")
    act = env.expert()
    # a word of one's own in between throws it off no more than any other user would
    answers = played(env, lambda: "One moment." if next(turns) == 1 else act())
    assert answers[-1][1] == 1.0


def test_nothing_done_is_no_success(make: Make) -> None:
    _, reward, terminated, _, info = play(make(), "mock/update_task_1", ["Done."] * 9)
    assert terminated and info["ended_by"] == "user_stop"
    assert reward == 0.0 == info["reward_parts"]["DB"]
    assert info["checks"]["db"] is False and info["checks"]["actions"] == [False]
    info = play(make(), "mock/create_task_1_with_env_assertions", ["Done."] * 9)[4]
    assert info["reward_parts"] == {"DB": 0.0, "ENV_ASSERTION": 0.0}


def test_what_was_not_wanted_spoils_it(make: Make) -> None:
    env = make()
    start(env, "mock/update_task_1")
    extra = call("create_task", user_id="user_1", title="Lunch")
    info = play(env, "mock/update_task_1", [extra, *env.reference_solution()])[4]
    assert info["checks"]["actions"] == [True] and info["reward_parts"]["DB"] == 0.0


def test_what_the_user_had_to_hear(make: Make) -> None:
    env = make("retail")
    start(env, "retail/2")
    quiet = [a.replace("10", "some") for a in env.reference_solution()]
    parts = play(env, "retail/2", quiet)[4]["reward_parts"]
    assert parts == {"DB": 1.0, "COMMUNICATE": 0.0}


@pytest.mark.parametrize("domain", ["mock", "airline", "retail"])
def test_no_task_needs_a_judge(make: Make, domain: str) -> None:
    for task in make(domain).tasks:
        criteria = task.data["evaluation_criteria"]
        assert "NL_ASSERTION" not in criteria.get("reward_basis", [])


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["mock", "retail", "telecom"])
def test_the_reward_is_what_the_whole_package_says(
    make: Make, domain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # set before the import, which fetches a list of prices
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("litellm", reason="the package's own entry point imports LiteLLM")
    from tau2.data_model.simulation import SimulationRun
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

    from paw_gym.envs.tau2.conversation import to_package
    from paw_gym.envs.tau2.domains import package_task

    env = make(domain)
    seen = set()
    for number, task_id in enumerate(env.tasks.ids[:: 2 if domain == "mock" else 9]):
        start(env, task_id)
        actions = env.reference_solution()
        kept = [a for a in actions if number % 2 == 0 or not a.startswith("{")]
        reward = play(env, task_id, [*kept, *["Done."] * 9])[1]
        run = SimulationRun(
            id="1", task_id=env.task.data["id"], start_time="", end_time="", duration=0.0,
            termination_reason="user_stop", messages=to_package(env.state["messages"]),
        )  # fmt: skip
        judged = evaluate_simulation(
            run, package_task(env.task.data), EvaluationType.ALL, False, domain
        )
        assert judged.reward == reward
        seen.add(reward)
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("domain", [*SIZES, "mock"])
def test_train_and_test_are_disjoint_and_make_up_all(make: Make, domain: str) -> None:
    train, test, base = (make(domain, s).tasks for s in ("train", "test", "base"))
    assert not set(train.ids) & set(test.ids)
    assert set(train.ids) | set(test.ids) == set(base.ids)
    if domain in SIZES:
        assert (len(train), len(test), len(base)) == SIZES[domain]
    assert min(len(train), len(test)) > 1
    assert len({t.fingerprint for t in (train, test, base)}) == 3


def test_the_policies_of_telecom_differ(make: Make) -> None:
    plain, tree = make("telecom"), make("telecom-workflow")
    assert len(make("telecom", "full").tasks) == 2285
    assert {task.type for task in plain.tasks} == {
        "mms_issue",
        "mobile_data_issue",
        "service_issue",
    }
    assert plain.tasks[0].instruction != tree.tasks[0].instruction
    assert plain.tasks.fingerprint != tree.tasks.fingerprint
    start(tree, tree.tasks.ids[5])
    assert play(tree, tree.tasks.ids[5], tree.reference_solution())[1] == 1.0


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("", "it is empty"),
        ('{"name": "get_users"', "not valid JSON"),
        ('{"name": "get_user"}', "Did you mean 'get_users'"),
        ('{"tool": "get_users"}', '"name" is not'),
        ('{"name": "get_users", "arguments": []}', '"arguments" is not a JSON object'),
        ('{"name": "get_users", "arguments": {}, "id": 1}', "it holds 'id'"),
        ('{"name": "create_task", "arguments": {"title": NaN}}', "NaN is no JSON value"),
        ("{" * 100_000, "not valid JSON"),
    ],
)
def test_malformed_calls_are_refused(make: Make, action: str, reason: str) -> None:
    env = make()
    start(env, "mock/update_task_1")
    assert not env.is_admissible(action)
    observation, _, _, _, info = env.step(action)
    assert reason in observation and not info["action_is_valid"] and info["errors"] == 1


def test_a_failing_call_is_an_observation(make: Make) -> None:
    wrong = call("update_task_status", task_id="task_9", status="completed")
    observation, _, _, _, info = play(make(), "mock/update_task_1", [wrong])
    assert observation == "Tool: Error: Task task_9 not found"
    assert info["tool_error"] and info["action_is_valid"] and info["reply_from"] == "tool"
    fenced = f"```json\n{call('get_users')}\n```"  # no mistake
    assert play(make(), "mock/update_task_1", [fenced])[0].startswith("Tool: [{")


@pytest.mark.parametrize("key", ["requestor", "tool_name", "self", "nonsense"])
def test_arguments_reach_nothing_but_the_tool(make: Make, key: str) -> None:
    observation = play(make(), "mock/update_task_1", [call("get_users", **{key: "user"})])[0]
    assert observation.startswith("Tool: Error: ")


def test_too_many_failures_end_it(make: Make) -> None:
    answer = play(make(), "mock/update_task_1", ["{"] * 12)
    assert answer[2] and answer[1] == 0.0 and answer[4]["ended_by"] == "too_many_errors"
    assert answer[4]["errors"] == 10


@pytest.mark.parametrize("expression", ["9**9**9**9", "9* *9", "1+" * 5000 + "1"])
def test_no_calculation_runs_for_ever(make: Make, expression: str) -> None:
    wrong, right = (call("calculate", expression=e) for e in (expression, "2 * 3.5"))
    assert not play(make("airline"), "airline/1", [wrong])[4]["action_is_valid"]
    assert play(make("airline"), "airline/1", [right])[0] == "Tool: 7.0"


def test_half_a_surrogate_pair_can_be_recorded(make: Make) -> None:
    action = call("update_task_status", task_id="\ud800", status="x")
    observation = play(make(), "mock/update_task_1", [action])[0]
    assert observation.encode() == b"Tool: Error: Task ? not found"


def test_the_contract_holds_where_the_user_has_tools(tau2: Any) -> None:
    report = check_text_env("paw_gym/Tau2-v0", tasks=2, seed=3, domain="telecom", time_limit=None)
    report.raise_for_failures()


def test_a_new_bill_has_the_same_number_everywhere(make: Make) -> None:
    """The package draws it at random, and its own replay of such an episode fails."""
    env = make("telecom")
    task_id = next(i for i in env.tasks.ids if "data_usage_exceeded" in i)
    refuel = call("refuel_data", customer_id="C1001", line_id="L1002", gb_amount=1.0)
    look = call("get_customer_by_id", customer_id="C1001")
    observation = play(env, task_id, [refuel, look])[0]
    assert play(make("telecom"), task_id, [refuel, look])[0] == observation
    state = pickle.loads(pickle.dumps(env.save_state()))
    again = make("telecom")
    again.restore_state(state)
    assert again.step(look)[0] == observation
    # the evaluation replays the calls and compares the answers
    assert played(again, lambda: "It is done.")[-1][4]["ended_by"] == "user_stop"


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_the_prompt_holds_not_the_users_scenario(tau2: Any, mode: str) -> None:
    env = make_agent_env("paw_gym/Tau2-v0", domain="airline", split="base", mode=mode)
    prompt, info = env.reset(seed=0, options={"task_id": "airline/1"})
    assert "# Airline Agent Policy" in prompt
    assert all(f'"name": "{name}"' in prompt for name in info["tools"])
    told = env.text_env.task.data["user_scenario"]["instructions"]
    assert "raj_sanchez" in told["known_info"] and "raj_sanchez" not in prompt
    prompt, *_ = env.step(env.response_for("Who are you?"))
    assert "raj_sanchez_7340" in prompt


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from paw_gym.envs.tau2.env import Tau2Env

    for name in [n for n in sys.modules if n.partition(".")[0] == "tau2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tau2", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[tau2\]'"):
        Tau2Env()
