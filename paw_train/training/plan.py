"""The needs of a run (``paw train --plan``), and whether it could start. Nothing is started or loaded.

Memory follows formulas (``paw_train.training.memory``). Times depend on the machine and are not estimated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.printable import counted
from paw_train.settings import Settings, overridden
from paw_train.training.cluster_options import command_line, require_possible
from paw_train.training.memory import ModelShape, model_shape
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


class DoesNotFitError(ValueError):
    """A run that needs more memory than there is."""


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    settings: Settings
    shape: ModelShape
    available: float
    """GiB of a GPU"""

    def __post_init__(self) -> None:
        if self.cluster:
            require_possible(self.settings)

    @property
    def cluster(self) -> bool:
        return self.settings.engine == "openrlhf"

    @property
    def gpus(self) -> int:
        return gpu_count(self.settings)

    @cached_property
    def phases(self) -> list[Phase]:
        phases = cluster_phases if self.cluster else local_phases
        return phases(self.settings, self.shape, self.available)

    @cached_property
    def host(self) -> dict[str, float]:
        """GiB of each machine's own memory, page-locked on a cluster, by what they hold."""
        return (cluster_host if self.cluster else local_host)(self.settings, self.shape)

    @property
    def resident(self) -> int | None:
        """Episodes that one vLLM engine's cache holds at their longest; ``None``: without vLLM."""
        s, vllm = self.settings, self.settings.rollout.vllm
        if self.cluster:
            share, gpus = s.vllm_share, s.openrlhf.tensor_parallel
        elif s.rollout.engine == "vllm":
            share = local_vllm_share(s, self.shape, self.available)
            gpus = int(vllm.extra.get("tensor_parallel_size", 1))
        else:
            return None
        cache = (share * self.available - RESERVED) * gpus * GIB - 2 * self.shape.parameters
        return max(0, int(cache // (2 * self.shape.cache_values * s.rollout.max_context_tokens)))

    @cached_property
    def problems(self) -> list[str]:
        """Why the run does not fit; empty if it does."""
        found = [
            f"The {phase.name} phase needs {phase.memory:.1f} GiB a GPU ({total(phase.parts)}) and has "
            f"{self.available:.1f}."
            for phase in self.phases
            if phase.memory > self.available
        ]
        if self.resident == 0:
            found.append(
                "vLLM's share of the GPU does not hold its weights and one episode at its longest."
            )
        return found

    def remedy(self) -> str:
        """The first change with which the run fits, or the first so many together."""
        changes = list(_changes(self))
        several = [changes[:count] for count in range(2, len(changes) + 1)]
        for chosen in [*([change] for change in changes), *several]:
            # of two changes to one setting, the later counts
            latest = list({change.partition("=")[0]: change for change in chosen}.values())
            try:
                changed = overridden(self.settings.to_dict(), latest, "plan")
                fits = not Plan(changed, self.shape, self.available).problems
            except ValueError:  # a change that these settings do not allow
                continue
            if fits:
                return f"It fits with {' '.join(latest)}."
        if not self.cluster:
            return "No setting makes it fit one GPU; engine=openrlhf spreads it over several."
        return "No setting makes it fit: it takes more GPUs (openrlhf.nodes) or larger ones (openrlhf.gpu)."


def make_plan(settings: Settings) -> Plan:
    """The plan of a run on GPUs of the kind that ``openrlhf.gpu`` names."""
    if settings.model.path is None:
        raise ValueError(
            "model.path is null: a model that is trained from scratch is small, and there is nothing to "
            "plan. Plan a recipe that names a pretrained model."
        )
    shape = model_shape(settings.model.path)
    return Plan(settings, shape, gpu_memory(settings.openrlhf.gpu))


def require_fit(settings: Settings, available: float, host: float | None = None) -> None:
    """Raises ``DoesNotFitError`` for a run that cannot fit, with settings that would.

    Models of unknown size (names on a hub) and those trained from scratch pass.

    Args:
        available: GiB of a GPU.
        host: GiB of this machine's own memory; ``None``: not looked at.
    """
    if settings.model.path is None:
        return
    try:
        shape = model_shape(settings.model.path)
    except ValueError:
        return
    plan = Plan(settings, shape, available)
    problems = [*plan.problems, plan.remedy()] if plan.problems else []
    needed = sum(plan.host.values())
    if host is not None and needed > host:
        problems.append(
            f"The machine's own memory has to hold {needed:.0f} GiB ({total(plan.host)}) and has {host:.0f}."
        )
    if problems:
        raise DoesNotFitError(" ".join(problems))


def machine_memory() -> float:
    """GiB of this machine's own memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def gpu_memory(gpu: str) -> float:
    """GiB of a kind of GPU."""
    if gpu not in GPUS:
        raise ValueError(f"openrlhf.gpu: {gpu!r} is not known. {did_you_mean(gpu, GPUS)}")
    return GPUS[gpu]


# --- what would fit -------------------------------------------------------------------------------


def _changes(plan: Plan) -> Iterator[str]:
    """Overrides that save memory of a GPU, those that cost least first."""
    s, o = plan.settings, plan.settings.openrlhf
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
        f"{plan.gpus} x {plan.settings.openrlhf.gpu}, {plan.shape.parameters / 1e9:.2f} billion parameters",
        "",
        f"{'phase':<10}{'GPUs':>5}  GiB a GPU, of {plan.available:.1f}",
    ]
    for phase in plan.phases:
        lines.append(f"{phase.name:<10}{phase.gpus:>5}  {phase.memory:.1f} = {total(phase.parts)}")
    held = f" = {total(plan.host)}" if plan.host else ""
    lines += [f"{'machine':<15}  {sum(plan.host.values()):.1f} GiB of its own memory{held}", ""]
    if plan.resident is not None:
        lines.append(f"One vLLM engine holds {counted(plan.resident, 'episode')} of the longest.")
    lines += [f"DOES NOT FIT: {problem}" for problem in plan.problems]
    if plan.problems:
        lines.append(plan.remedy())
    if plan.cluster:
        lines += [
            "",
            "It stands for, with the subclasses of paw_train.training.openrlhf:",
            command_line(plan.settings),
        ]
    return "\n".join(lines)
