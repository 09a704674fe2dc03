"""The needs of a run (``paw train --plan``), and whether it could start. Nothing is started or loaded.

Memory follows formulas (``paw_train.training.memory``). Times depend on the machine and are not estimated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.printable import counted
from paw_train.environments import training_env
from paw_train.settings import Settings, overridden
from paw_train.training.cluster_options import command_line, require_possible
from paw_train.training.memory import ModelShape, is_known, model_shape
from paw_train.training.phases import (
    GIB,
    RESERVED,
    Phase,
    cluster_host,
    cluster_phases,
    gpu_count,
    local_host,
    local_phases,
    local_vllm_share,
)

GPUS: Mapping[str, float] = MappingProxyType(
    {"a100-40g": 39.4, "a100-80g": 79.1, "h100": 79.1, "h200": 139.8, "l40s": 44.4}
)
"""GiB that programs can use, by ``openrlhf.gpu``"""
FEWEST_EPISODES = 4
"""that keep an engine busy: a decoding step reads all weights, even for a single sequence"""


class DoesNotFitError(ValueError):
    """A run that needs more memory than there is."""


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    gpus: int
    gpu: str
    available: float
    """GiB of a GPU"""
    phases: tuple[Phase, ...]
    host: Mapping[str, float]
    """GiB of each machine's own memory, page-locked on a cluster, by what they hold"""
    parameters: int
    episodes: int
    turns: int
    train_tokens: int
    """tokens that an update trains on, at most"""
    sampled_tokens: int
    """tokens that an update samples, at most"""
    resident: int | None
    """episodes that one vLLM engine's cache holds at their longest; ``None``: without vLLM"""
    problems: tuple[str, ...]
    """why the run does not fit; empty if it does"""
    notes: tuple[str, ...] = ()
    """what fits but wastes GPUs"""
    remedy: str | None = None
    """settings with which it fits; ``None`` if it fits as it is"""
    command: str | None = None
    """of OpenRLHF, on a cluster"""


def make_plan(settings: Settings, available: float | None = None) -> Plan:
    """The plan of a run.

    Args:
        available: GiB of a GPU; ``None``: of the kind that ``openrlhf.gpu`` names.
    """
    if settings.model.path is None:
        raise ValueError(
            "model.path is null: a model that is trained from scratch is small, and there is nothing to "
            "plan. Plan a recipe that names a pretrained model."
        )
    shape = model_shape(settings.model.path)
    plan = _plan(settings, shape, available)
    return replace(plan, remedy=_remedy(settings, shape, plan)) if plan.problems else plan


def require_fit(settings: Settings, available: float, host: float | None = None) -> None:
    """Raises ``DoesNotFitError`` for a run that cannot fit, with settings that would.

    Models of unknown size (names on a hub) and those trained from scratch pass.

    Args:
        host: GiB of this machine's own memory; ``None``: not looked at.
    """
    if settings.model.path is None or not is_known(settings.model.path):
        return
    plan = make_plan(settings, available)
    problems = [*plan.problems]
    needed = sum(plan.host.values())
    if host is not None and needed > host:
        problems.append(
            f"The machine's own memory has to hold {needed:.0f} GiB ({total(plan.host)}) and has {host:.0f}."
        )
    if problems:
        raise DoesNotFitError(" ".join([*problems, plan.remedy or ""]).strip())


def machine_memory() -> float:
    """GiB of this machine's own memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def _plan(settings: Settings, shape: ModelShape, available: float | None) -> Plan:
    cluster = settings.engine == "openrlhf"
    if cluster:
        require_possible(settings)
    o, r = settings.openrlhf, settings.rollout
    if available is None:
        available = gpu_memory(o.gpu)
    envs = [training_env(member.env) for member in settings.members]
    turns = max(int(env.kwargs.get("max_steps") or 50) for env in envs)
    episodes, longest = r.groups * r.group_size, r.max_context_tokens
    conversation = all(env.mode == "conversation" for env in envs)
    tokens = episodes * longest * (1 if conversation else turns)
    sampled = episodes * turns * r.max_response_tokens
    phases = (cluster_phases if cluster else local_phases)(settings, shape, available)
    host = (cluster_host if cluster else local_host)(settings, shape)
    resident = _resident(settings, shape, available)
    return Plan(
        gpu_count(settings),
        o.gpu,
        available,
        tuple(phases),
        host,
        shape.parameters,
        episodes,
        turns,
        tokens,
        min(sampled, tokens) if conversation else sampled,
        resident,
        tuple(_problems(phases, resident, available)),
        tuple(underfed_notes(settings)),
        command=command_line(settings) if cluster else None,
    )


def underfed_notes(settings: Settings) -> Iterator[str]:
    """A sentence if there are more vLLM engines than an update's episodes can keep busy."""
    r, engines = settings.rollout, settings.openrlhf.vllm_engines
    episodes = r.groups * r.group_size
    if settings.engine == "openrlhf" and episodes < FEWEST_EPISODES * engines:
        idle = f", and {engines - episodes} get none" if episodes < engines else ""
        yield (
            f"{engines} vLLM engines share the {episodes} episodes of an update (rollout.groups={r.groups} "
            f"x rollout.group_size={r.group_size}){idle}. With fewer than {FEWEST_EPISODES} episodes each, "
            "further engines hardly shorten a rollout. Sample more, use fewer GPUs, or let an engine have "
            "several (openrlhf.tensor_parallel)."
        )


def gpu_memory(gpu: str) -> float:
    """GiB of a kind of GPU."""
    if gpu not in GPUS:
        raise ValueError(f"openrlhf.gpu: {gpu!r} is not known. {did_you_mean(gpu, GPUS)}")
    return GPUS[gpu]


def _resident(settings: Settings, shape: ModelShape, available: float) -> int | None:
    """Episodes at their longest that fit into a vLLM engine beside its weights."""
    o, vllm = settings.openrlhf, settings.rollout.vllm
    if settings.engine == "openrlhf":
        share, gpus = settings.vllm_share, o.tensor_parallel
    elif settings.rollout.engine == "vllm":
        share, gpus = (
            local_vllm_share(settings, shape, available),
            int(vllm.extra.get("tensor_parallel_size", 1)),
        )
    else:
        return None
    cache = (share * available - RESERVED) * gpus * GIB - 2 * shape.parameters
    return max(0, int(cache // (2 * shape.cache_values * settings.rollout.max_context_tokens)))


def _problems(phases: Sequence[Phase], resident: int | None, available: float) -> Iterator[str]:
    for phase in phases:
        if phase.memory > available:
            yield (
                f"The {phase.name} phase needs {phase.memory:.1f} GiB a GPU ({total(phase.parts)}) and has "
                f"{available:.1f}."
            )
    if resident == 0:
        yield "vLLM's share of the GPU does not hold its weights and one episode at its longest."


# --- what would fit -------------------------------------------------------------------------------


def _remedy(settings: Settings, shape: ModelShape, plan: Plan) -> str:
    """The first change with which the run fits, or the first so many together."""
    changes = list(_changes(settings, plan))
    several = [changes[:count] for count in range(2, len(changes) + 1)]
    for chosen in [*([change] for change in changes), *several]:
        # of two changes to one setting, the later counts
        latest = list({change.partition("=")[0]: change for change in chosen}.values())
        try:
            changed = overridden(settings.to_dict(), latest, "plan")
            problems = _plan(changed, shape, plan.available).problems
        except ValueError:  # a change that these settings do not allow
            continue
        if not problems:
            return f"It fits with {' '.join(latest)}."
    if settings.engine == "local":
        return "No setting makes it fit one GPU; engine=openrlhf spreads it over several."
    return "No setting makes it fit: it takes more GPUs (openrlhf.nodes) or larger ones (openrlhf.gpu)."


def _changes(settings: Settings, plan: Plan) -> Iterator[str]:
    """Overrides that save memory of a GPU, those that cost least first."""
    s, o = settings, settings.openrlhf
    rollout = next(phase for phase in plan.phases if phase.name == "rollout")
    full = rollout.memory > plan.available
    if s.model.dtype == "float32":
        yield "model.dtype=bfloat16"
    if not s.model.gradient_checkpointing:
        yield "model.gradient_checkpointing=true"
    if s.objective.kl_coef > 0 and not s.model.reference_offload:
        yield "model.reference_offload=true"
    tokens, longest = s.optimizer.micro_batch_tokens, s.rollout.max_context_tokens
    halvings = int(math.log2(max(1.0, tokens / longest)))
    yield from (f"optimizer.micro_batch_tokens={tokens // 2**n}" for n in range(1, halvings + 1))
    if s.engine == "local":
        if full and s.rollout.engine == "local":
            yield "rollout.engine=vllm"
        elif s.rollout.vllm.gpu_memory is not None:
            yield "rollout.vllm.gpu_memory=null"
        yield "model.lora.rank=32"
        return
    if plan.resident == 0:
        yield from (f"openrlhf.tensor_parallel={n * o.tensor_parallel}" for n in (2, 4))
    if o.zero_stage == 2:
        yield "openrlhf.zero_stage=3"
    if not o.adam_offload:
        yield "openrlhf.adam_offload=true"
    if full:
        yield from (f"rollout.vllm.gpu_memory={x}" for x in (0.4, 0.3, 0.2) if x < s.vllm_share)
    yield from (f"openrlhf.nodes={o.nodes * factor}" for factor in (2, 4))


def total(parts: Mapping[str, float]) -> str:
    """The parts of a sum in GiB, in words."""
    return " + ".join(f"{name} {size:.1f}" for name, size in parts.items())


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
