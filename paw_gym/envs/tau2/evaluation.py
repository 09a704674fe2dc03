"""The reward, and the way to full reward.

The package's own evaluators score what a task's reward depends on, and the scores are multiplied.
``NL_ASSERTION`` needs a language model as a judge; no task of the package counts it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paw_gym.envs.tau2 import conversation as talk
from paw_gym.envs.tau2.domains import Domain
from paw_gym.envs.tau2.users import ScriptedUser, Situation, script_position, user_script


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reward of an episode and its parts."""

    reward: float
    parts: Mapping[str, float]
    """the factors of the reward, by name"""
    checks: Mapping[str, Any]
    """all that was looked at, counted or not: ``db`` (bool), ``env_assertions``, ``actions``,
    ``communicate`` (a bool for each that is expected)"""


def evaluate(domain: Domain, task: Any, messages: Sequence[talk.Message]) -> Verdict:
    """Scores a conversation that has ended."""
    criteria = task.evaluation_criteria
    if criteria is None:
        return Verdict(1.0, {}, {})
    basis = {kind.value for kind in criteria.reward_basis}
    if "NL_ASSERTION" in basis:
        raise ValueError(
            f"The reward of task {task.id!r} depends on NL_ASSERTION, which needs a language model."
        )
    said = talk.to_package(messages)
    found = [
        talk.tau2_module("evaluator.evaluator_env").EnvironmentEvaluator.calculate_reward(
            # the package asks for solo mode or not; there is a user here
            environment_constructor=lambda solo_mode=False: _world(domain),
            task=task,
            full_trajectory=said,
        ),
        talk.tau2_module("evaluator.evaluator_action").ActionEvaluator.calculate_reward(task, said),
        talk.tau2_module("evaluator.evaluator_communicate").CommunicateEvaluator.calculate_reward(
            task, said
        ),
    ]
    parts = {
        kind.value: float(value)
        for info in found
        for kind, value in (info.reward_breakdown or {}).items()
        if kind.value in basis
    }
    env, action, communicate = found
    checks = {
        "db": None if env.db_check is None else bool(env.db_check.db_match),
        "env_assertions": [bool(check.met) for check in env.env_assertions or []],
        "actions": [bool(check.action_match) for check in action.action_checks or []],
        "communicate": [bool(check.met) for check in communicate.communicate_checks or []],
    }
    return Verdict(math.prod(parts.values(), start=1.0), parts, checks)


def _world(domain: Domain) -> Any:
    """A fresh world in which an assertion about something that does not exist is not met; the package's own
    lets the exception out, and then there is no score at all."""
    world = domain.new_world()
    asserted = world.run_env_assertion

    def run_env_assertion(assertion: Any, raise_assertion_error: bool = True) -> bool:
        try:
            return bool(asserted(assertion, raise_assertion_error=raise_assertion_error))
        except ValueError:
            if raise_assertion_error:
                raise
            return False

    world.run_env_assertion = run_env_assertion
    return world


_HOW = {
    "assert_task_status": (
        "update_task_status",
        {"task_id": "task_id", "expected_status": "status"},
    )
}
"""calls that make an assertion true, for tasks that expect a state and no action (one, in ``mock``)"""


def gold_actions(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The expected calls of agent and user, in order."""
    criteria = record.get("evaluation_criteria") or {}
    actions = criteria.get("actions")
    if actions:
        return [dict(action) for action in actions]
    made = []
    for assertion in criteria.get("env_assertions") or []:
        if assertion["func_name"] in _HOW:
            name, names = _HOW[assertion["func_name"]]
            given = assertion["arguments"]
            made.append({"name": name, "arguments": {names[key]: given[key] for key in names}})
    return made


def next_action(
    record: Mapping[str, Any], messages: Sequence[talk.Message], begun_with: int
) -> str:
    """Asks until the scripted user would have stated everything, acts as expected, then reports."""
    left = gold_actions(record)
    taken = (call for message in messages[begun_with:] for call in message.get("calls", []))
    while left and any(
        (left[0]["name"], left[0]["arguments"]) == (call["name"], call["arguments"])
        for call in taken
    ):
        left.pop(0)
    if left and script_position(messages) < len(user_script(record)):
        return "Please tell me more."
    if left:
        return _as_action(left[0])
    information = (record.get("evaluation_criteria") or {}).get("communicate_info") or []
    return "It is done." + "".join(f" {text};" for text in information).rstrip(";")


def plan(
    record: Mapping[str, Any],
    messages: Sequence[talk.Message],
    begun_with: int,
    user_tools: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Actions that end the episode with full reward if the user is the scripted one. Nothing is executed: who
    speaks next depends on what was said and called, not on the answers."""
    imagined, actions = list(messages), []

    def use(name: str, arguments: Mapping[str, Any], role: str = "user") -> str:
        imagined.append(talk.call_message(role, name, arguments, len(imagined)))
        imagined.append(talk.tool_message(imagined[-1]["calls"][0]["id"], "", False, role))
        return ""

    user, said = ScriptedUser(), ""
    while talk.ending(said) is None:
        actions.append(next_action(record, imagined, begun_with))
        if actions[-1].startswith("{"):
            call = json.loads(actions[-1])
            use(call["name"], call["arguments"], "assistant")
            continue
        imagined.append({"role": "assistant", "content": actions[-1]})
        said = user.reply(Situation(record, imagined, user_tools, use, 0))
        imagined.append({"role": "user", "content": said})
    return actions


def _as_action(action: Mapping[str, Any]) -> str:
    if action.get("requestor", "assistant") == "user":
        arguments = json.dumps(action["arguments"], ensure_ascii=False)
        return f"Please do this with your phone: {action['name']} {arguments}"
    return talk.call_text(action["name"], action["arguments"])
