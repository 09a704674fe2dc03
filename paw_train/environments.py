"""The configured environment on one split, alone or many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from paw_gym.internals.constructors import check_arguments, has_splits, registered_id
from paw_gym.internals.printable import counted
from paw_gym.internals.validation import naming_authors_line
from paw_gym.pool import EnvPool
from paw_gym.registration import class_defaults
from paw_gym.wrappers import AgentInterface, make_agent_env
from paw_train.settings import EnvSettings, Settings
from paw_train.settings.env import asked_with, with_secrets

_FEWEST_STEPS = 400
"""of a warm start on few tasks: a model trained from scratch learns the form of answers in 150, and how
to copy a word that it has to spell in this many"""


def make_pool(env: EnvSettings, split: str, groups: int, group_size: int, seed: int) -> EnvPool:
    """A pool of the configured environment on one split."""
    return EnvPool(agent_env_maker(env, split), groups, group_size, seed=seed)


def agent_env_maker(
    env: EnvSettings, split: str, interface: Mapping[str, Any] | None = None
) -> Callable[[], AgentInterface]:
    """A function that makes the configured agent environment, with other settings of ``interface``."""
    check_arguments(env.id, env.kwargs, "env.kwargs")
    agent: dict[str, Any] = {
        "history_length": env.history_length,
        "mode": env.mode,
        "invalid_when": env.invalid_when,
    }
    if env.reward == "environment":
        agent["success_reward"] = None
    if env.invalid_penalty is not None:
        agent["invalid_penalty"] = env.invalid_penalty
    if env.template is not None:
        agent["template"] = env.template
    agent |= interface or {}
    kwargs = with_secrets(env.kwargs)
    if is_split(env):
        kwargs["split"] = split
    return lambda: make_agent_env(env.id, **agent, **kwargs)


def is_split(env: EnvSettings) -> bool:
    """True if the environment is made with a ``split``; one behind a gateway is asked."""
    return has_splits(env.id, asked_with(env.id, env.kwargs))


def training_env(env: EnvSettings) -> EnvSettings:
    """The environment of rollouts in training."""
    return env.replace(kwargs={**env.kwargs, **env.train_kwargs})


def max_return(env: EnvSettings) -> float:
    """R_max: the largest return of an episode, as set, or the environment's reward for success."""
    if env.max_return:
        return env.max_return
    probe = agent_env_maker(env, env.train_split)()
    probe.close()
    return float(probe.settings.success_reward or 1.0)


def has_solver(env: EnvSettings, split: str) -> bool:
    """True if an environment has an expert, tried on one task of a split."""
    probe = agent_env_maker(env, split)()
    try:
        return has_expert(probe)
    finally:
        probe.close()


def has_expert(env: AgentInterface) -> bool:
    """True if an environment has an expert, tried on the task that ``reset`` draws with seed 0."""
    with naming_authors_line("The expert"), suppress(NotImplementedError):
        env.reset(seed=0)
        env.text_env.expert()
        return True
    return False


def require_solver(env: EnvSettings, split: str) -> None:
    """Raises ``ValueError`` for an environment without an expert, where one is needed."""
    if not has_solver(env, split):
        raise ValueError(
            f"{registered_id(env.id)} has no expert: it implements no reference_solution (a generator "
            "function: solve=...). `random` needs none."
        )


def panel_name(env: EnvSettings, split: str, tasks: int) -> str:
    """The name of a panel that has none."""
    registered = registered_id(env.id)
    return f"{registered}/{split}/{tasks}" if is_split(env) else f"{registered}/{tasks}"


def own_history_length(env_id: str) -> int | None:
    """How many past steps the environment itself wants in a prompt; ``None``: all."""
    found: int | None = class_defaults(env_id, {}).agent.history_length
    return found


def _without_experts(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings without a warm start if no environment has an expert to clone."""
    members = settings.members if settings.cloning.episodes else ()
    lacking = [m for m in members if not has_solver(m.env, m.env.train_split)]
    ids = ", ".join(m.env.id for m in lacking)
    if len(lacking) < len(members) and lacking:
        report(
            f"{ids} has no solver (reference_solution): the warm start goes without its episodes."
        )
    elif lacking:
        report(
            f"{ids} has no solver (reference_solution), so there is nothing to clone: "
            "cloning.episodes=0, and training starts from the model as it is. A solver, or a "
            "pretrained model (model.path), makes it a better start."
        )
        return settings.replace(cloning=settings.cloning.replace(episodes=0))
    return settings


def allowed_warm_start(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings with the warm start that experts and ``cloning.episodes_per_task`` allow."""
    settings = _without_experts(settings, report)
    own = settings.cloning
    if own.episodes_per_task is None or not own.episodes or settings.mixed:
        return settings  # with several environments each one's share is limited where it is played
    env = settings.only_env
    made = agent_env_maker(training_env(env), env.train_split)()
    tasks = len(made.tasks)
    made.close()
    episodes = min(own.episodes, own.episodes_per_task * tasks)
    if episodes == own.episodes:
        return settings
    steps = min(own.steps, max(_FEWEST_STEPS, round(own.steps * episodes / own.episodes)))
    report(
        f"{env.id} has {counted(tasks, 'training task')}: {episodes} expert episodes and {steps} steps "
        f"for the warm start, in place of {own.episodes} and {own.steps} (cloning.episodes, "
        "cloning.steps)."
    )
    return settings.replace(cloning=own.replace(episodes=episodes, steps=steps))
