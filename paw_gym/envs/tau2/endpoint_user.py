"""A user that a language model plays, behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from paw_gym.envs.tau2.messages import Message
from paw_gym.envs.tau2.package import data_folder, tau2_module
from paw_gym.envs.tau2.users import Situation, UserError, UserSetupError, own_messages
from paw_gym.http import HttpError, JsonClient
from paw_gym.naming import require_choice
from paw_gym.replies import read_chat, split_thought, tool_arguments, tool_name

URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"
MAX_ROUNDS = 10
"""times that a user may turn to its phone before it says something"""
_SETUP = frozenset({401, 403, 404})
"""statuses that say that the address, the key or the model is wrong"""


class EndpointUser:
    """Asks a model to speak as the user, with the guidelines that the package gives its own simulator.

    Args:
        model: name of the model there.
        url: address up to and including its version (``http://host:8000/v1``); ``None``: the
            environment variable ``OPENAI_BASE_URL``.
        settings: ``key_variable`` (environment variable that holds the key: ``OPENAI_API_KEY``),
            ``temperature`` (0), ``max_tokens`` (none), ``seed`` (whether to send the episode's: True),
            ``timeout`` (60 s), ``attempts`` (4), ``backoff`` (0.5 s, doubled for each further attempt).

    Raises:
        ValueError: no model or no address, or an unknown setting.
    """

    def __init__(
        self, model: str | None, url: str | None, settings: Mapping[str, Any] | None = None
    ) -> None:
        url = url or os.environ.get(URL_VARIABLE)
        if not model or not url:
            raise ValueError(
                "user='endpoint' needs user_model, the name of the model that plays the user, and "
                f"user_url, the address of an OpenAI-compatible endpoint (or {URL_VARIABLE})."
            )
        chosen = {**_DEFAULTS, **(settings or {})}
        for key in chosen:
            require_choice("user setting", key, _DEFAULTS)
        self.model, self._chosen = model, chosen
        self._client = JsonClient(
            url,
            os.environ.get(str(chosen["key_variable"])),
            float(chosen["timeout"]),
            int(chosen["attempts"]),
            float(chosen["backoff"]),
        )

    def reply(self, situation: Situation) -> str:
        """See ``User``.

        Raises:
            UserSetupError: the endpoint does not know the key, the address or the model.
            UserError: no answer after all attempts, or one without words.
        """
        for _ in range(MAX_ROUNDS):
            message = self._ask(situation)
            calls = message.get("tool_calls") or []
            if not calls:
                text = split_thought(message["text"])[1].strip()
                if not text:
                    raise UserError("The model that plays the user answered without any words.")
                return text
            for call in calls:
                situation.use(*_call(call))
        raise UserError(f"The user turned to its phone {MAX_ROUNDS} times without a word.")

    def _ask(self, situation: Situation) -> dict[str, Any]:
        system = {
            "role": "system",
            "content": system_prompt(situation.record, bool(situation.tools)),
        }
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [system, *map(_turned, own_messages(situation))],
            "temperature": self._chosen["temperature"],
        }
        if self._chosen["max_tokens"] is not None:
            request["max_tokens"] = self._chosen["max_tokens"]
        if self._chosen["seed"]:
            request["seed"] = situation.seed
        if situation.tools:
            request["tools"] = [
                {"type": "function", "function": schema} for schema in situation.tools.values()
            ]
        try:
            answer = self._client.ask("POST", "/chat/completions", request, read=read_chat)
        except HttpError as error:
            raise (UserSetupError if error.status in _SETUP else UserError)(str(error)) from error
        return dict(answer)


_DEFAULTS: Mapping[str, Any] = {
    "key_variable": KEY_VARIABLE,
    "temperature": 0.0,
    "max_tokens": None,
    "seed": True,
    "timeout": 60.0,
    "attempts": 4,
    "backoff": 0.5,
}


def system_prompt(record: Mapping[str, Any], with_tools: bool) -> str:
    """The system prompt of the package's own user simulator: its guidelines, and the task's scenario."""
    name = "simulation_guidelines_tools.md" if with_tools else "simulation_guidelines.md"
    guidelines = (data_folder() / "user_simulator" / name).read_text(encoding="utf-8")
    scenario = tau2_module("data_model.tasks").UserScenario.model_validate(record["user_scenario"])
    return f"{guidelines}\n\n<scenario>\n{scenario}\n</scenario>"


def _turned(message: Message) -> dict[str, Any]:
    """A message as the model sees it, who speaks as the user: the agent is its user."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["id"], "content": message["content"]}
    if message["role"] == "assistant":
        return {"role": "user", "content": message["content"]}
    turned: dict[str, Any] = {"role": "assistant", "content": message["content"] or ""}
    if "calls" in message:
        turned["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in message["calls"]
        ]
    return turned


def _call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    arguments = tool_arguments(call["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise UserError("The model that plays the user made a tool call without named arguments.")
    return tool_name(call["name"]), arguments
