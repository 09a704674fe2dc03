"""``paw eval-wm``: from the command line's arguments to a file of results."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from paw_gym.internals.constructors import registered_id
from paw_gym.internals.files import write_json
from paw_gym.internals.naming import require_choice
from paw_gym.transition import Episode, read_jsonl
from paw_train.environments import agent_env_maker, own_history_length
from paw_train.evaluation import world_model
from paw_train.evaluation.fingerprint import environment_record, model_hash
from paw_train.evaluation.program import make_plan, run_of, settings_of, weights_of
from paw_train.evaluation.runner import PanelRun
from paw_train.evaluation.terminal import Display
from paw_train.evaluation.world_model import make_embedder
from paw_train.policies.factory import source_of
from paw_train.policies.local.policy import LocalPolicy
from paw_train.settings import EnvSettings
from paw_train.settings.env import recorded_id

SOURCES = ("expert", "random", "policy")


def evaluate_from_args(
    model: str,
    overrides: Sequence[str],
    out: str | None = None,
    source: str = "expert",
    episodes: Sequence[str | Path] = (),
    panel: str | None = None,
    encoder: str | None = None,
) -> Path:
    """Measures, prints the table, writes ``world_model.json``.

    Args:
        model: a run's folder, or the folder or hub name of a Hugging Face model.
        out: the file to write; ``None``: ``eval-wm-....json`` in the run, or in ``runs``.
        encoder: as ``world_model_learning.encoder``, for the similarity of the model's predictions.
    """
    if source_of(model) is not None:
        raise ValueError(
            f"{model!r} gives no probabilities of given tokens; a world model is measured on "
            "weights that run in this process: give a folder or a hub name."
        )
    if model in ("expert", "random") and not Path(model).exists():
        raise ValueError(
            f"{model!r} is an agent without a model, and predicts nothing: give a run's folder, or the "
            f"folder or hub name of a model. The source of transitions is --source {model}."
        )
    require_choice("--source", source, SOURCES)
    started = time.perf_counter()
    run_folder = run_of(Path(model))
    display = Display()
    settings = settings_of(run_folder, panel, overrides, display.say)
    embed = None if encoder is None else make_embedder(encoder)
    recorded = [e for file in episodes for e in read_jsonl(file)]
    asked = panel is not None or any(o.startswith("env") for o in overrides)
    env = _env_of(recorded, settings.only_env, asked)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = weights_of(Path(model), run_folder)
    own = settings.model
    policy = LocalPolicy.load(weights, device, own.dtype, adapter=own.lora, revision=own.revision)
    model = f"{model}@{own.revision}" if own.revision else model
    where: dict[str, Any] = {"source": "recorded", "panel": None, "panel_hash": None}
    if episodes:
        played = recorded
    else:
        plan = make_plan(settings, source, {}, panel)
        with display.task(
            f"collecting transitions ({source})", len(plan.panel.task_ids)
        ) as advance:
            run = PanelRun(plan, policy, records=False)
            runs = run.play(lambda run: advance(run.done))
            played = [e for episodes in runs.values() for e in episodes if e is not None]
        where = {"source": source, "panel": plan.panel.name, "panel_hash": plan.panel.hash}
        where["environment"] = environment_record(
            plan.env, plan.split, plan.panel, agent_env_maker(plan.env, plan.split)
        )
    split, rollout = settings.evaluation.split, settings.rollout
    measured = world_model.measure(policy, played, env, split, rollout, embed, display)
    result = where | measured
    result |= {
        "model": model,
        "model_hash": model_hash(policy),
        "env_id": env.id,
        "encoder": encoder,
        "settings": {"env": env.model_dump(), "evaluation": settings.evaluation.model_dump()},
        "seconds": time.perf_counter() - started,
    }
    names = (Path(model).name, where["panel"] or "recorded")
    name = "-".join(re.sub(r"[^\w.-]+", "-", part) for part in ("eval-wm", *names))
    path = Path(out) if out else (run_folder or Path("runs")) / f"{name}.json"
    path = path / f"{name}.json" if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    display.console.print(_table(result))
    if noise := result.get("noise_share"):
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in noise.items())
        display.say(
            f"Noise, such as identifiers, has these shares of tokens and gradients: {shares}."
        )
    display.say(f"Written to {path}")
    return path


def _env_of(recorded: Sequence[Episode], env: EnvSettings, asked: bool) -> EnvSettings:
    ids = {episode.env_id for episode in recorded}
    if len(ids) > 1:
        raise ValueError(
            f"The episodes are of several environments ({', '.join(sorted(ids))}); measure one at a time."
        )
    if not ids or ids == {registered_id(env.id)}:
        return env
    (env_id,) = ids
    if asked:
        raise ValueError(
            f"The episodes are of {env_id}, and the settings (env, --panel) are of {env.id}: give "
            f"env.id={env_id}, or leave the settings of the environment out."
        )
    env_id = recorded_id(env_id, "The file of episodes")
    return EnvSettings(id=env_id, history_length=own_history_length(env_id))


def _table(result: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    title = f"World model of {result['model']}: {result['panel'] or 'recorded episodes'}"
    table = Table("task type", title=Text(title))
    whole = world_model.table_row(result)
    for column in whole:
        table.add_column(column, justify="right")
    for name, part in result["by_type"].items():
        table.add_row(Text(name), *world_model.table_row(part).values())
    table.add_row("all", *whole.values())
    return table
