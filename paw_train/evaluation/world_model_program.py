"""``paw eval-wm`` and ``paw report --noise``: from the command line's arguments to a file of results."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paw_gym.internals.constructors import registered_id
from paw_gym.internals.files import write_json
from paw_gym.internals.naming import require_choice
from paw_gym.transition import Episode, read_jsonl
from paw_train.environments import agent_env_maker, own_history_length
from paw_train.evaluation import world_model
from paw_train.evaluation.fingerprint import environment_record, model_hash
from paw_train.evaluation.program import make_plan, run_of, settings_of, weights_of
from paw_train.evaluation.recorded import recorded_settings
from paw_train.evaluation.runner import PanelRun, prepare
from paw_train.evaluation.terminal import Display
from paw_train.evaluation.world_model import make_embedder
from paw_train.losses.noise_gradients import CharSpan, gradient_shares, labeller_for, noisy_tokens
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.policies.factory import source_of
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.scoring import row_logprobs
from paw_train.rollouts.tokens import OBSERVATION
from paw_train.settings import EnvSettings, overridden
from paw_train.settings.env import recorded_id
from paw_train.settings.run import read_recorded

SOURCES = ("expert", "random", "policy")
NOISE_FILE = "noise_gradient.json"
_NOISE_SETTINGS = (
    "env", "rollout.max_prompt_tokens", "optimizer.micro_batch_tokens", "world_model.rho",
)  # fmt: skip
"""settings of the run that the measurement of noise takes"""


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
            run = PanelRun(plan, prepare(plan, policy), progress=lambda done, _: advance(done))
            played = [e for episodes in run.run().values() for e in episodes if e is not None]
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


# --- noise: the share of the world model's gradient on tokens that cannot be predicted -----------


def write_noise_gradient(
    run_dir: str | Path,
    rule: str | None = None,
    transitions: int = 100,
    seed: int = 0,
    overrides: Sequence[str] = (),
) -> Path:
    """Scores recorded transitions of a run by its best checkpoint and writes ``noise_gradient.json``.

    Args:
        rule: which text is noise: ``module:function``; ``None``: the environment's own rule. If it
            has none, the file notes that, and has no shares.
        transitions: how many are sampled from the recorded ones; the paper took 100.

    Raises:
        ValueError: no such run or rule, no checkpoint, or nothing recorded.
    """
    run = Path(run_dir)
    file = run / "config.json"
    if not file.exists():
        raise ValueError(f"{run} holds no training run: it has no config.json.")
    recorded = recorded_settings(read_recorded(file), str(file), overrides, _NOISE_SETTINGS)
    settings = overridden(recorded, overrides, "The run")
    label = labeller_for(settings.only_env.id, rule)
    head: dict[str, Any] = {"env_id": settings.only_env.id, "rule": rule or settings.only_env.id}
    target = run / NOISE_FILE
    if label is None:
        write_json(target, {**head, "rule": None, "note": "no noisy tokens defined"})
        return target
    found = [
        (n, at) for n in ("best", "latest") if (at := find_checkpoint(run / "checkpoints" / n))
    ]
    if not found:
        raise ValueError(f"The run {run} has no checkpoint.")
    name, saved = found[0]
    # training's own; if there are none, those of the evaluations
    files = sorted((run / "rollouts").glob("*.jsonl")) or sorted(run.glob("episodes_*.jsonl"))
    steps = [
        (episode, step)
        for file in files
        for episode in read_jsonl(file)
        for step, t in enumerate(episode.transitions)
        if t.next_observation
    ]
    if not steps:
        raise ValueError(f"The run {run} has no recorded episodes: rollouts/ and episodes_*.jsonl.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = LocalPolicy.load(saved / "model", device, adapter=settings.model.lora)
    env = agent_env_maker(settings.only_env, settings.only_env.train_split)()
    rows, labels = [], []
    show, limit = env.text_env.prompt_observation, settings.rollout.max_prompt_tokens
    order = np.random.default_rng(seed).permutation(len(steps))[:transitions]
    for episode, step in [steps[int(i)] for i in sorted(order)]:
        shown = show(episode.transitions[step].next_observation)
        if policy.chat.content(shown):
            rows.append(recorded_row(policy.chat, episode, step, show, env.template, limit))
            labels.append(noisy_tokens(_offsets(policy.chat, shown), label(shown)))
    env.close()
    scores = row_logprobs(policy, rows, settings.optimizer.micro_batch_tokens)
    p = [
        values[[role == OBSERVATION for role in row.role]].double().exp().clamp(max=1.0).numpy()
        for row, values in zip(rows, scores, strict=True)
    ]
    rho = settings.world_model.rho
    shares = gradient_shares(np.concatenate(p), np.concatenate(labels), rho)
    measured = {"checkpoint": name, "transitions": len(rows), "rho": rho, **asdict(shares)}
    write_json(target, {**head, **measured, "token_share": shares.token_share})
    return target


def _offsets(chat: ChatFormat, text: str) -> list[CharSpan]:
    """The characters of each token of a text, tokenised as ``ChatFormat.content`` does."""
    encoded = chat.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    return [(int(a), int(b)) for a, b in encoded["offset_mapping"]]
