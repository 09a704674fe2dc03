"""``paw eval``: from the command line's arguments to a result on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paw_gym.internals.files import naming_full_disk
from paw_gym.internals.locks import only_process
from paw_train.agents import AGENTS, agent_class
from paw_train.environments import agent_env_maker, is_split, own_history_length, require_solver
from paw_train.evaluation.comparison import as_rich
from paw_train.evaluation.panels import PANELS, PanelSpec, titled_panel
from paw_train.evaluation.recorded import recorded_settings
from paw_train.evaluation.result_folder import LOG, clear, evaluate_to_folder, finished_result
from paw_train.evaluation.runner import UNKNOWN_CONTEXT, PanelRun, Plan
from paw_train.evaluation.terminal import Display, spent_so_far
from paw_train.policies.factory import SOURCES, open_policy, source_of, split_overrides
from paw_train.rollouts.policy import Policy
from paw_train.settings import Say, Settings, apply_override, overridden
from paw_train.settings.env import entry_name
from paw_train.settings.recipes import choose_environment
from paw_train.settings.run import read_recorded

if TYPE_CHECKING:
    from paw_train.policies.endpoint.transport import Limits

_ALL = 10**9
"""a panel size that takes every task"""
_OF_THE_RUN = ("env", "evaluation", "rollout", "model.dtype")
"""settings that an evaluation takes from the run whose model it measures"""


@dataclasses.dataclass(frozen=True)
class Job:
    """The evaluation that the arguments of ``paw eval`` describe, before any model is opened."""

    model: str
    plan: Plan
    source: dict[str, Any]
    """settings of the model's source (``endpoint``, ``vllm``)"""
    settings: Settings
    run_folder: Path | None
    """of the run that the model belongs to"""
    folder: Path
    """where the result goes"""
    own_context: bool
    """whether ``rollout.max_context_tokens`` was set, by the run or the user"""

    @property
    def model_name(self) -> str:
        """The model's name in the result; empty for agents that ask none."""
        asked, revision = agent_class(self.plan.agent).needs_policy, self.settings.model.revision
        return "" if not asked else f"{self.model}@{revision}" if revision else self.model


def evaluate_from_args(
    model: str,
    overrides: Sequence[str],
    out: str | None = None,
    agent: str | None = None,
    panel: str | None = None,
    seeds: int = 1,
    quiet: bool = False,
    fresh: bool = False,
) -> Path:
    """Evaluates as ``paw eval`` does, with its arguments, and returns the path of ``result.json``.

    After a stop or a kill the same call continues; a finished evaluation is shown, not run again.
    """
    display = Display(quiet)
    job = make_job(model, overrides, out, agent, panel, seeds, display.say)
    evaluate_jobs([job], display, fresh)
    return job.folder / "result.json"


def make_jobs(
    models: Sequence[str],
    overrides: Sequence[str],
    out: str | None,
    agent: str | None,
    panels: Sequence[str | None],
    seeds: int,
    say: Say,
) -> list[Job]:
    """An evaluation of each model on each panel; ``out`` of several holds their folders."""
    alone = len(models) == len(panels) == 1
    folder, parent = (out, None) if alone else (None, Path(out) if out else None)
    groups = {one: SOURCES.get(source_of(one) or "") for one in models}
    jobs = []
    for model in dict.fromkeys(models):
        # without the settings of the sources (endpoint, vllm) of others of the models
        others = {*groups.values()} - {groups[model]}
        own = [o for o in overrides if o.partition("=")[0].partition(".")[0] not in others]
        for panel in dict.fromkeys(panels):
            jobs.append(make_job(model, own, folder, agent, panel, seeds, say, parent))
    return jobs


def evaluate_jobs(
    jobs: Sequence[Job], display: Display, fresh: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Evaluates each job, and prints a table of all if there are several.

    One of several that fails does not end the others; a budget holds for all together, and ends them.

    Returns:
        (the results, a sentence for each job that failed)
    """
    results: list[dict[str, Any]] = []
    failed: list[str] = []
    spent: Limits | None = None
    for job in jobs:
        try:
            with _opened(job) as policy:
                limits = getattr(policy, "limits", None)
                if limits is not None and spent is not None:
                    limits.continue_from(spent)
                spent = limits or spent
                results.append(_evaluate(job, policy, display, fresh))
        except ValueError as error:
            if len(jobs) == 1:
                raise
            failed.append(f"{job.model} on {job.plan.panel.name}: {error}")
            display.say(f"Failed: {failed[-1]}")
            continue
        if results[-1]["stopped"]:
            break
    if len(jobs) > 1:
        display.console.print(as_rich(results))
        begun = len(results) + len(failed)
        if begun < len(jobs):
            display.say(f"{begun} of {len(jobs)} evaluations were begun; the same command goes on.")
    return results, failed


@contextmanager
def _opened(job: Job) -> Iterator[Policy | None]:
    """The model of an evaluation, closed at the end; the evaluation's folder is this process's alone."""
    own, device = job.settings.model, "cpu"
    weights = weights_of(Path(job.model), job.run_folder)
    if job.model_name and source_of(job.model) is None:
        import torch

        from paw_train.policies.local.loading import find_model

        # before the folder is made: a missing model's neighbours are suggested by name
        find_model(weights, own.revision)
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with only_process(job.folder), naming_full_disk(job.folder):
        if not job.model_name:
            yield None
            return
        given = (weights, device, own.dtype, own.lora.base, own.revision)
        policy = open_policy(job.model, job.source, *given)
        try:
            yield policy
        finally:
            if hasattr(policy, "close"):
                policy.close()


def _evaluate(job: Job, policy: Policy | None, display: Display, fresh: bool) -> dict[str, Any]:
    plan = job.plan
    if policy is not None and not job.own_context:
        known = getattr(policy, "context_tokens", None)
        rollout = plan.rollout.replace(max_context_tokens=known or UNKNOWN_CONTEXT)
        plan = dataclasses.replace(plan, rollout=rollout)
    elif (require := getattr(policy, "require_positions", None)) is not None:
        require(plan.rollout.max_context_tokens)
    run = PanelRun(plan, policy, job.model_name)
    if fresh:
        clear(job.folder)
    done = finished_result(job.folder, run.key, run.described(), plan.seeds)
    if done is not None:
        display.result(done)
        display.say(f"Finished earlier: {job.folder / 'result.json'} (--fresh runs it again)")
        return done
    title = f"evaluating {job.model}"
    title += "" if plan.agent in ("policy", job.model) else f" ({plan.agent})"
    priced: Any = getattr(policy, "settings", None)
    price = priced.cost if getattr(priced, "priced", False) else None
    with display.bar(title, len(plan.panel.task_ids) * len(plan.seeds)) as advance:
        result, episodes = run.evaluate(
            job.folder / LOG, lambda run: advance(run.done, spent_so_far(run, price))
        )
    tokens, result["cost"] = result["tokens"], None
    if price is not None and tokens is not None:  # of all answers, those from the cache included
        result["cost"] = price(tokens["prompt"], tokens["completion"], tokens["cached"])
    if (described := getattr(policy, "describe", None)) is not None:
        result["endpoint"] = {**job.source, **described()}
    path = evaluate_to_folder(job.folder, result, episodes)
    display.result(result)
    display.say(f"Written to {path}")
    return result


def make_job(
    model: str,
    overrides: Sequence[str],
    out: str | None = None,
    agent: str | None = None,
    panel: str | None = None,
    seeds: int = 1,
    say: Say | None = None,
    parent: Path | None = None,
) -> Job:
    """The evaluation that the arguments describe; ``say`` is called with notes for the user.

    Without ``out`` its folder is named after it, in ``parent``, else in the run or in ``runs``.
    """
    if seeds < 1:
        raise ValueError(f"--seeds is 1 or more, got {seeds}.")
    model = model if source_of(model) else model.rstrip("/")
    name = _agent_name(model, agent)
    asks = agent_class(name).needs_policy
    run_folder = run_of(Path(model)) if asks else None
    agent_settings, others = _agent_settings(name, overrides)
    own, source = split_overrides(model, others)
    for setting in (o.partition("=")[0] for o in own if o.startswith("model.") and not asks):
        raise ValueError(f"{setting}: the agent {name!r} asks no model.")
    settings = settings_of(run_folder, panel, own, say)
    extra = _extra(model, source)
    plan = make_plan(settings, name, agent_settings, panel, seeds, extra)
    if say is not None and plan.panel.note:
        say(plan.panel.note)
    limited = any(o.startswith("rollout.max_context_tokens=") for o in own)
    told = ("env.id=", "evaluation.batch=")  # in the panel's name; without effect on results
    chosen = sorted(o for o in own if not o.startswith(told))
    asked = extra if any(values["extra"] for values in extra.values()) else {}
    # in a run, where the panel has no name, the split of its own environment says enough
    own_env = run_folder is not None and not any(o.startswith("env.id=") for o in own)
    part = panel or (plan.split if own_env and is_split(plan.env) else plan.panel.name)
    further = [chosen, agent_settings, seeds - 1, source.get("url"), asked]
    place = _place(model, name, part, run_folder, further)
    folder = Path(out) if out else (parent or run_folder or Path("runs")) / place
    if out and (folder / "config.json").exists():
        raise ValueError(
            f"{out} is the folder of a run or of a model; an evaluation has one of its own. Leave out "
            f"--out, or give one inside: --out {folder / 'eval-NAME'}"
        )
    return Job(model, plan, source, settings, run_folder, folder, limited or run_folder is not None)


def _agent_name(model: str, agent: str | None) -> str:
    if model in AGENTS and AGENTS[model].needs_policy and not Path(model).exists():
        raise ValueError(
            f"{model!r} is an agent, and the model that it asks is missing: paw eval MODEL --agent {model} "
            "(MODEL is a run, a Hugging Face model, or openai:NAME)."
        )
    if agent is None:
        return model if model in ("expert", "random") else "policy"
    agent_class(agent)
    if model in ("expert", "random") and agent != model:
        raise ValueError(
            f"{model!r} is an agent itself, and --agent names another, {agent!r}. Give a model's name."
        )
    return agent


def _agent_settings(agent: str, overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(the agent's settings, without those that are as by default; the other overrides)"""
    data: dict[str, Any] = {}
    others = []
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] == "agent":
            apply_override(data, override)
        else:
            others.append(override)
    found = data.get("agent", {})
    if not isinstance(found, dict):
        raise ValueError(
            f"agent={found!r}: expected settings of the agent (agent.NAME=VALUE); its name goes into --agent."
        )
    written = found.pop("action_format", "tags")  # of all agents
    if found and not agent_class(agent).Settings.model_fields:
        raise ValueError(
            f"agent.{min(found)}: {agent!r} has no settings; --agent names another agent."
        )
    kept = agent_class(agent).Settings.read(found, "agent").model_dump(exclude_defaults=True)
    return kept | ({} if written == "tags" else {"action_format": written}), others


def settings_of(
    run: Path | None, panel: str | None, overrides: Sequence[str], say: Say | None = None
) -> Settings:
    """The run's settings, the named panel's on top, the user's on top of all."""
    data: dict[str, Any] = {}
    spec = PANELS[panel] if panel else None
    if spec is not None and any(o.startswith("env.id=") for o in overrides):
        raise ValueError(f"env.id: the panel is of {spec.env_id}. Leave out either of the two.")
    if run is not None:
        file = run / "config.json"
        recorded = read_recorded(file)
        data = recorded_settings(recorded, str(file), overrides, _OF_THE_RUN)
        data.get("rollout", {}).pop("vllm", None)  # an engine of training's
        if recorded.get("model", {}).get("path") is not None:
            data["model"]["path"] = str(run)  # a pretrained one, which the run holds
    overrides = choose_environment(data, overrides)
    if spec is not None:
        _put_panel(data, spec)
    settings = overridden(data, overrides, "The run" if run is not None else "The panel", say)
    return _with_data(settings, spec, str(panel)) if spec else settings


def _put_panel(data: dict[str, Any], spec: PanelSpec) -> None:
    env = data.setdefault("env", {})
    if isinstance(env, list):
        names = ", ".join(entry_name(entry) for entry in env)
        raise ValueError(f"The run is of several environments ({names}): choose one with env=NAME.")
    if env.get("id", spec.env_id) != spec.env_id:
        raise ValueError(
            f"The run is of {env['id']}, the panel of {spec.env_id}: choose a panel of the run's "
            "environment."
        )
    if "id" not in env:
        env["history_length"] = own_history_length(spec.env_id)
    env |= {"id": spec.env_id, "kwargs": {**env.get("kwargs", {}), **spec.kwargs}}
    if spec.dataset is None:
        env["kwargs"].pop("data_dir", None)
    evaluation = data.setdefault("evaluation", {})
    evaluation |= {"split": spec.split, "tasks": spec.size or _ALL, "seed": spec.seed}


def _with_data(settings: Settings, spec: PanelSpec, name: str) -> Settings:
    """The settings with the folder of a downloaded data set, if the panel needs one."""
    if spec.dataset is None or settings.only_env.kwargs.get("data_dir") is not None:
        return settings
    from paw_gym.data import dataset_names, default_folder, read_receipt

    known = spec.dataset in dataset_names()
    if known and read_receipt(default_folder(spec.dataset)) is not None:
        kwargs = {**settings.only_env.kwargs, "data_dir": str(default_folder(spec.dataset))}
        env = settings.only_env.replace(kwargs=kwargs)
        return settings.replace(env=env)
    download = f" `paw data download {spec.dataset}` downloads it." if known else ""
    raise ValueError(
        f"The panel {name} needs real data: give its folder as env.kwargs.data_dir=DIR.{download}"
    )


def make_plan(
    settings: Settings,
    agent: str,
    agent_settings: Mapping[str, Any],
    name: str | None,
    seeds: int = 1,
    source: dict[str, Any] | None = None,
) -> Plan:
    """The plan for one agent on a named panel, or on tasks sampled according to the settings."""
    chosen, env = settings.evaluation, settings.only_env
    if chosen.tasks < 1:
        raise ValueError("evaluation.tasks is 1 or more where something is evaluated, got 0.")
    if agent == "expert":
        require_solver(env, chosen.split)
    probe = agent_env_maker(env, chosen.split)()
    tasks = probe.tasks
    probe.close()
    panel = titled_panel(tasks, name, env, chosen.split, chosen.tasks, chosen.seed)
    own = dict(agent_settings)
    action_format = str(own.pop("action_format", "tags"))
    return Plan(
        env,
        chosen.split,
        panel,
        chosen.seed,
        settings.rollout.replace(temperature=chosen.temperature),
        tuple(chosen.seed + i for i in range(seeds)),
        agent,
        own,
        chosen.batch,
        action_format,
        source or {},
    )


def _place(model: str, agent: str, panel: str, run: Path | None, chosen: Sequence[Any]) -> str:
    """The name of an evaluation's default folder, a different one for every evaluation.

    It ends in a hash of the model and of what was chosen, unless it says all that without one.
    """
    parts = [Path(model).name, *([] if agent in ("policy", model) else [agent]), panel]
    if any(chosen) or (Path(model).name != model and Path(model) != run):
        text = json.dumps([model, *chosen], sort_keys=True, default=str)
        parts.append(hashlib.sha256(text.encode()).hexdigest()[:6])
    return "-".join(["eval", *(re.sub(r"[^\w.-]+", "-", part) for part in parts)])


def _extra(model: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model's source that decide its answers, by group."""
    from paw_train.settings.endpoint import EndpointSettings
    from paw_train.settings.rollout import VLLMSettings

    group = SOURCES.get(source_of(model) or "")
    if group is None:
        return {}
    kind = EndpointSettings if group == "endpoint" else VLLMSettings
    return {group: {"extra": kind.read(dict(source), group).extra}}


def run_of(path: Path) -> Path | None:
    for place in [path, *path.parents] if path.is_dir() else []:
        if (place / "config.json").is_file() and (place / "checkpoints").is_dir():
            return place
    return None


def weights_of(path: Path, run: Path | None) -> Path | str:
    """A run's own folder means its final policy: the best on the selection panel, else the last."""
    if run is None or path != run:
        return str(path)
    from paw_train.policies.checkpoints import find_checkpoint

    for name in ("best", "latest", "warm"):
        folder = find_checkpoint(run / "checkpoints" / name)
        if folder is not None:
            return folder / "model"
    if (run / "checkpoints" / "model" / "config.json").exists():  # of engine: openrlhf
        return run / "checkpoints" / "model"
    raise ValueError(f"The run {run} has no checkpoint yet; nothing can be evaluated.")
