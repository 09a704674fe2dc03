"""The reward: what the package's own evaluators find, multiplied as the package does.

A task names what its reward depends on: ``DB`` (the databases are as after the expected actions),
``ENV_ASSERTION`` (assertions about them), ``ACTION`` (each expected call was made) and ``COMMUNICATE``
(the agent has said what it had to). ``NL_ASSERTION`` needs a language model as a judge; no task of the
package counts it, and neither does the package's own default evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paw_gym.envs.tau2.domains import Domain
from paw_gym.envs.tau2.messages import Message, to_package
from paw_gym.envs.tau2.package import tau2_module


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reward of an episode and its parts."""

    reward: float
    parts: Mapping[str, float]
    """the factors of the reward, by name"""
    checks: Mapping[str, Any]
    """what was looked at, counted or not: ``db`` (bool), ``env_assertions``, ``actions``,
    ``communicate`` (a bool for each that is expected)"""


def evaluate(domain: Domain, task: Any, messages: Sequence[Message]) -> Verdict:
    """Scores a conversation that came to its end.

    Args:
        domain: the domain.
        task: the package's object of it.
        messages: all of the conversation, with what the task begins with.

    Raises:
        ValueError: the reward depends on a language model as a judge.
    """
    criteria = task.evaluation_criteria
    if criteria is None:
        return Verdict(1.0, {}, {})
    basis = {kind.value for kind in criteria.reward_basis}
    if "NL_ASSERTION" in basis:
        raise ValueError(
            f"The reward of task {task.id!r} depends on NL_ASSERTION, which needs a language model."
        )
    said = to_package(messages)
    found = [
        tau2_module("evaluator.evaluator_env").EnvironmentEvaluator.calculate_reward(
            # the package asks for solo mode or not; there is a user here
            environment_constructor=lambda solo_mode=False: _world(domain),
            task=task,
            full_trajectory=said,
        ),
        tau2_module("evaluator.evaluator_action").ActionEvaluator.calculate_reward(task, said),
        tau2_module("evaluator.evaluator_communicate").CommunicateEvaluator.calculate_reward(
            task, said
        ),
    ]
    parts = {
        kind.value: float(value)
        for info in found
        for kind, value in (info.reward_breakdown or {}).items()
        if kind.value in basis
    }
    reward = 1.0
    for value in parts.values():
        reward *= value
    env, action, communicate = found
    checks = {
        "db": None if env.db_check is None else bool(env.db_check.db_match),
        "env_assertions": [bool(check.met) for check in env.env_assertions or []],
        "actions": [bool(check.action_match) for check in action.action_checks or []],
        "communicate": [bool(check.met) for check in communicate.communicate_checks or []],
    }
    return Verdict(reward, parts, checks)


def _world(domain: Domain) -> Any:
    """A fresh world in which an assertion about what is not there is not met.

    The package's own one lets the assertion's exception out, and there is no score at all.
    """
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
