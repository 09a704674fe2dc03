"""What a run on a cluster will take, worked out before anything is started (``paw train --plan``).

Memory follows formulas that the plan prints. Time follows a table of what GPUs can do at best and of
the share of it that training usually reaches: a guide to the order of magnitude, nothing measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from paw_gym.naming import did_you_mean
from paw_train.algorithms.estimators import advantage_estimator
from paw_train.environments import training_env
from paw_train.settings import Settings
from paw_train.training.model_shape import ModelShape, model_shape
from paw_train.training.openrlhf.mapping import command_line, require_possible

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """What one GPU can do at best, by its maker's data sheet."""

    memory: float
    """GiB that programs can use"""
    tflops: float
    """10^12 dense bfloat16 operations a second"""
    bandwidth: float
    """10^12 bytes of its memory a second"""


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "a100-40g": Gpu(39.4, 312, 1.56),
        "a100-80g": Gpu(79.1, 312, 2.04),
        "h100": Gpu(79.1, 989, 3.35),
        "h200": Gpu(139.8, 989, 4.8),
        "l40s": Gpu(44.4, 362, 0.864),
    }
)
"""the throughput table"""

TRAIN_SHARE, FORWARD_SHARE, DECODE_SHARE = 0.35, 0.4, 0.5
"""assumed shares of the table's values: of tflops in training, and in forward passes (vLLM's
prefill included); of bandwidth when tokens are sampled one after the other"""
RESERVED = 2.0
"""GiB a GPU that CUDA contexts and communication buffers take, assumed"""


@dataclass(frozen=True)
class Role:
    """One kind of worker."""

    name: str
    gpus: int
    parts: Mapping[str, float]
    """GiB a GPU, by what they hold"""

    @property
    def memory(self) -> float:
        """GiB a GPU."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    gpus: int
    gpu: str
    roles: tuple[Role, ...]
    parameters: int
    episodes: int
    turns: int
    train_tokens: int
    """tokens that an update trains on, at most"""
    sampled_tokens: int
    """tokens that an update samples, at most"""
    resident: int
    """episodes that one engine's cache holds at their longest"""
    seconds: Mapping[str, float]
    """estimated time of an update that is as long as it can be, by phase"""
    command: str
    warnings: tuple[str, ...] = field(default=())


def make_plan(settings: Settings) -> Plan:
    """The plan of a run with ``engine: openrlhf``.

    Raises:
        ValueError: the settings are of another engine or cannot be done, or the size of the model
            or GPU is unknown.
    """
    if settings.engine != "openrlhf":
        raise ValueError(
            f"engine is {settings.engine!r}, which runs in one process: there is nothing to lay out. "
            "Plan the same recipe for a cluster with engine=openrlhf."
        )
    require_possible(settings)
    assert settings.model.path is not None
    o = settings.openrlhf
    if o.gpu not in GPUS:
        raise ValueError(f"openrlhf.gpu: {o.gpu!r} is not known. {did_you_mean(o.gpu, GPUS)}")
    shape, gpu = model_shape(settings.model.path), GPUS[o.gpu]
    turns = _turns(settings)
    r = settings.rollout
    episodes = r.groups * r.group_size
    longest = r.max_context_tokens
    tokens = episodes * (longest if settings.env.mode == "conversation" else turns * longest)
    sampled = episodes * turns * r.max_response_tokens
    if settings.env.mode == "conversation":
        sampled = min(sampled, tokens)
    roles = [
        _policy(settings, shape),
        *_critic(settings, shape),
        *_reference(settings, shape),
        _vllm(settings, shape, gpu),
    ]
    cache = roles[-1].parts["cache"] * o.tensor_parallel * GIB
    resident = int(cache // (2 * shape.cache_values * longest))
    return Plan(
        _gpu_count(settings),
        o.gpu,
        tuple(roles),
        shape.parameters,
        episodes,
        turns,
        tokens,
        sampled,
        resident,
        _seconds(settings, shape, gpu, tokens, sampled, turns, resident),
        command_line(settings),
        tuple(_warnings(settings, roles, gpu, resident)),
    )


def _turns(settings: Settings) -> int:
    return int(training_env(settings.env).kwargs.get("max_steps", 50))


def _gpu_count(settings: Settings) -> int:
    o = settings.openrlhf
    if o.colocate == "all":
        return o.ranks
    copies = 2 if o.colocate == "none" and settings.objective.kl_coef > 0 else 1
    # a critic shares its GPUs with all others, or with none
    copies += _has_critic(settings)
    return copies * o.ranks + o.vllm_engines * o.tensor_parallel


def _has_critic(settings: Settings) -> bool:
    return advantage_estimator(settings.algorithm.name).needs_critic


# --- memory ---------------------------------------------------------------------------------------


def _policy(settings: Settings, shape: ModelShape) -> Role:
    logits = 12.0 * settings.optimizer.micro_batch_tokens * shape.vocabulary
    return _trained("policy", settings, shape, {"logits": logits})


def _critic(settings: Settings, shape: ModelShape) -> list[Role]:
    return [_trained("critic", settings, shape, {})] if _has_critic(settings) else []


def _trained(name: str, settings: Settings, shape: ModelShape, more: Mapping[str, float]) -> Role:
    o, p = settings.openrlhf, shape.parameters
    parts = {
        "weights": 2 * p / (o.ranks if o.zero_stage == 3 else 1),
        "gradients": 2 * p / o.ranks,
        "optimiser": 0.0 if o.adam_offload else 12 * p / o.ranks,
        "activations": _activations(settings, shape),
        **more,
    }
    return Role(name, o.ranks, {part: size / GIB for part, size in parts.items()})


def _activations(settings: Settings, shape: ModelShape) -> float:
    """Bytes that the backward pass needs, of one micro-batch."""
    tokens = settings.optimizer.micro_batch_tokens
    attention = 2 * shape.head_dim * (shape.heads + shape.kv_heads)
    layer = 2.0 * tokens * (6 * shape.hidden + attention + 3 * shape.intermediate)
    if settings.model.gradient_checkpointing:
        return 2.0 * tokens * shape.hidden * shape.layers + layer
    return layer * shape.layers


def _reference(settings: Settings, shape: ModelShape) -> list[Role]:
    if settings.objective.kl_coef == 0:
        return []
    o = settings.openrlhf
    weights = 2 * shape.parameters / (o.ranks if o.zero_stage == 3 else 1)
    if settings.model.reference_offload:
        weights = 0.0
    logits = 4.0 * settings.rollout.max_context_tokens
    return [
        Role(
            "reference",
            o.ranks,
            {"weights": weights / GIB, "logits": logits * shape.vocabulary / GIB},
        )
    ]


def _vllm(settings: Settings, shape: ModelShape, gpu: Gpu) -> Role:
    o = settings.openrlhf
    weights = 2 * shape.parameters / o.tensor_parallel / GIB
    taken = o.gpu_memory * gpu.memory
    return Role(
        "vLLM",
        o.vllm_engines * o.tensor_parallel,
        {"weights": weights, "cache": max(0.0, taken - weights - RESERVED), "reserved": RESERVED},
    )


def _warnings(settings: Settings, roles: list[Role], gpu: Gpu, resident: int) -> list[str]:
    o, problems = settings.openrlhf, []
    vllm, memory = roles[-1], {role.name: role.memory for role in roles}
    beside = 0.0 if o.colocate == "none" else memory.get("reference", 0.0)
    for name in ("policy", "critic"):
        # where policy and critic share GPUs, one sleeps while the other works
        with_it = beside if name == "policy" or o.colocate == "all" else 0.0
        needed = memory.get(name, 0.0) + with_it + RESERVED
        if needed > gpu.memory:
            problems.append(
                f"The {name}'s GPUs need {needed:.1f} GiB and have {gpu.memory:.1f}: more GPUs, "
                "openrlhf.zero_stage=3, openrlhf.adam_offload=true, model.reference_offload=true, "
                "model.gradient_checkpointing=true or a smaller optimizer.micro_batch_tokens."
            )
    if vllm.parts["cache"] == 0.0:
        problems.append(
            f"vLLM's share ({o.gpu_memory:g} of {gpu.memory:.1f} GiB) does not hold the weights: a "
            "larger openrlhf.gpu_memory or openrlhf.tensor_parallel."
        )
    elif resident < 1:
        problems.append("vLLM's cache does not hold one episode at its longest context.")
    longest = settings.rollout.max_context_tokens
    if settings.optimizer.micro_batch_tokens < longest:
        problems.append(
            f"optimizer.micro_batch_tokens={settings.optimizer.micro_batch_tokens}, but one sequence "
            f"can have {longest} tokens: the memory of the policy can exceed the plan."
        )
    return problems


# --- time -----------------------------------------------------------------------------------------


def _seconds(
    settings: Settings,
    shape: ModelShape,
    gpu: Gpu,
    tokens: int,
    sampled: int,
    turns: int,
    resident: int,
) -> dict[str, float]:
    o, p = settings.openrlhf, shape.parameters
    per_rank = gpu.tflops * 1e12 * o.ranks
    passes = (o.old_logprobs == "actor") + (settings.objective.kl_coef > 0)
    work = 8 if settings.model.gradient_checkpointing else 6
    vllm = gpu.tflops * 1e12 * o.vllm_engines * o.tensor_parallel
    episodes = settings.rollout.groups * settings.rollout.group_size
    each = -(-episodes // o.vllm_engines)
    batch = max(1, min(each, resident))
    longest = settings.rollout.max_context_tokens
    # one token for every episode of a batch: the weights and their caches are read once
    read = 2 * p + batch * 2 * shape.cache_values * longest
    step = read / (gpu.bandwidth * 1e12 * o.tensor_parallel * DECODE_SHARE)
    rounds = -(-each // batch) * sampled / episodes
    scoring = 2.0 * p * tokens / (per_rank * FORWARD_SHARE)
    training = float(work) * p * tokens / (per_rank * TRAIN_SHARE)
    seconds = {
        "prefill": 2.0 * p * (tokens - sampled) / (vllm * FORWARD_SHARE),
        "sampling": rounds * step,
        "log-probabilities": passes * scoring,
        "training": training,
    }
    # on GPUs of its own it works beside the policy
    if _has_critic(settings) and o.colocate == "all":
        seconds["critic"] = scoring + training
    return seconds


# --- text -----------------------------------------------------------------------------------------


def render(plan: Plan) -> str:
    """The plan as text."""
    lines = [
        f"{plan.gpus} x {plan.gpu}, {plan.parameters / 1e9:.2f} billion parameters",
        "",
        f"{'role':<10}{'GPUs':>5}  GiB a GPU",
    ]
    for role in plan.roles:
        parts = " + ".join(f"{name} {size:.1f}" for name, size in role.parts.items())
        lines.append(f"{role.name:<10}{role.gpus:>5}  {role.memory:.1f} = {parts}")
    lines += [
        "",
        *_FORMULAS,
        "",
        f"An update: {plan.episodes} episodes of at most {plan.turns} turns; at most "
        f"{plan.train_tokens:,} tokens to train on, {plan.sampled_tokens:,} of them sampled.",
        f"One vLLM engine holds {plan.resident} episodes at their longest.",
        f"Time of an update that is as long as it can be: {sum(plan.seconds.values()):,.0f} s = "
        + " + ".join(f"{name} {s:,.0f}" for name, s in plan.seconds.items()),
        f"(assumed: {TRAIN_SHARE:.0%} of the GPU's peak in training, {FORWARD_SHARE:.0%} in forward "
        f"passes, {DECODE_SHARE:.0%} of its memory bandwidth in sampling; not measured. Episodes that "
        "end early make it shorter.)",
    ]
    lines += [f"WARNING: {problem}" for problem in plan.warnings]
    lines += [
        "",
        "It stands for, with the subclasses of paw_train.training.openrlhf:",
        plan.command,
    ]
    return "\n".join(lines)


_FORMULAS = (
    "P parameters, R GPUs of the policy, T optimizer.micro_batch_tokens, V vocabulary; in bytes:",
    "weights 2 P (ZeRO-3: / R), gradients 2 P / R, optimiser 12 P / R (float32 weights, two moments),",
    "logits 12 T V (float32 logits, their gradient and the softmax), activations 2 T L H + one layer",
    "with checkpointing; a critic needs what the policy does, without logits; vLLM's cache is what",
    "openrlhf.gpu_memory leaves beside its weights.",
)
