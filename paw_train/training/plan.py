"""The needs of a run (``paw train --plan``), and whether it could start. Nothing is started or loaded."""

from __future__ import annotations

from dataclasses import replace

from paw_gym.internals.printable import counted
from paw_train.settings import Settings
from paw_train.training.fit import Plan, anything, memory_plan, total
from paw_train.training.openrlhf.mapping import command_line, require_possible


def make_plan(settings: Settings, available: float | None = None) -> Plan:
    """The plan of a run."""
    if settings.engine == "local":
        return memory_plan(settings, available, anything)
    plan = memory_plan(settings, available, require_possible)
    return replace(plan, command=command_line(settings))


def render(plan: Plan) -> str:
    """The plan as text."""
    lines = [
        f"{plan.gpus} x {plan.gpu}, {plan.parameters / 1e9:.2f} billion parameters",
        "",
        f"{'phase':<10}{'GPUs':>5}  GiB a GPU, of {plan.available:.1f}",
    ]
    for phase in plan.phases:
        lines.append(f"{phase.name:<10}{phase.gpus:>5}  {phase.memory:.1f} = {total(phase.parts)}")
    lines += [
        f"{'machine':<10}{'':>5}  {sum(plan.host.values()):.1f} GiB of its own memory"
        + (f" = {total(plan.host)}" if plan.host else ""),
        "",
        f"An update: {counted(plan.episodes, 'episode')} of at most {counted(plan.turns, 'turn')}; at most "
        f"{plan.train_tokens:,} tokens to train on, {plan.sampled_tokens:,} of them sampled.",
    ]
    if plan.resident is not None:
        lines.append(f"One vLLM engine holds {counted(plan.resident, 'episode')} of the longest.")
    lines += [f"Warning: {note}" for note in plan.notes]
    lines += [f"DOES NOT FIT: {problem}" for problem in plan.problems]
    if plan.remedy:
        lines.append(plan.remedy)
    if plan.command is not None:
        lines += [
            "",
            "It stands for, with the subclasses of paw_train.training.openrlhf:",
            plan.command,
        ]
    return "\n".join(lines)


def require_startable(settings: Settings) -> None:
    """Raises what a run with these settings would raise before it starts."""
    if settings.engine == "openrlhf":
        from paw_train.training.openrlhf.launch import cluster_settings as startable
    else:
        from paw_train.training.local import local_settings as startable
    startable(settings, lambda sentence: None)
