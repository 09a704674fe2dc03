"""The memory of a GPU, and of the machine around it, in each phase of an update, by the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paw_train.algorithms.estimator import advantage_estimator
from paw_train.settings import Settings
from paw_train.settings.rollout import KEPT_CACHE_SHARE, PREFILL_TOKENS
from paw_train.training.memory import Micro, ModelShape, critic_bytes, scoring_bytes, training_bytes

GIB = 2**30
RESERVED = 1.5
"""GiB that a process takes on a GPU for its CUDA context, kernels' workspaces and communication, assumed"""
BUCKET = 2e8
"""elements of DeepSpeed's buffer for reducing gradients, as the cluster engine sets it"""
LIVE = 1e9
"""gathered weights that ZeRO-3 holds at a time at most, its default"""
CACHE_SLACK = 1.5
"""room that the local engine's key-value cache makes for each token that it holds, at most"""


@dataclass(frozen=True)
class Phase:
    """The contents of one GPU during a part of an update."""

    name: str
    gpus: int
    parts: Mapping[str, float]
    """GiB a GPU, by what they hold"""

    @property
    def memory(self) -> float:
        """GiB a GPU."""
        return sum(self.parts.values())


def has_critic(settings: Settings) -> bool:
    """True if the algorithm trains a critic."""
    return advantage_estimator(settings.algorithm.name).needs_critic


def has_reference(settings: Settings) -> bool:
    """True if a second copy of the model is kept to measure the KL against.

    The local engine needs none beside an adapter; OpenRLHF always loads one.
    """
    alone = settings.engine == "local" and settings.model.lora.rank > 0
    return settings.objective.kl_coef > 0 and not alone


def trained_parameters(settings: Settings, shape: ModelShape) -> int:
    """Weights that the optimiser steps: all, or those of the adapters."""
    rank = settings.model.lora.rank
    if not rank:
        return shape.parameters
    kv = shape.kv_heads * shape.head_dim
    sides = 4 * shape.hidden + 2 * (shape.hidden + kv) + 3 * (shape.hidden + shape.intermediate)
    return rank * sides * shape.layers


# --- one process ----------------------------------------------------------------------------------


def local_phases(settings: Settings, shape: ModelShape, available: float) -> list[Phase]:
    """The phases of a run in one process, on one GPU."""
    states, micro, width = _local_states(settings, shape), _micro(settings), _width(settings)
    if settings.rollout.engine == "vllm":
        sampling = {"vLLM": local_vllm_share(settings, shape, available) * available}
        beside = {} if settings.rollout.vllm.gpu_memory is None else sampling
    else:
        sampling = _sampling(settings, shape)
        kept = sampling["cache"] <= KEPT_CACHE_SHARE * available
        beside = {"cache": sampling["cache"]} if kept else {}
    policy = {
        "gradients": 4 * trained_parameters(settings, shape) / GIB,
        "activations": training_bytes(shape, micro) * width / 2 / GIB,
    }
    if has_reference(settings) and settings.model.reference_offload:
        policy["reference"] = width * shape.parameters / GIB
    phases = {"training": {**states, **policy, **beside}}
    if has_critic(settings):
        critic = {
            "gradients": 4 * shape.parameters / GIB,
            "activations": critic_bytes(shape, micro) * width / 2 / GIB,
        }
        phases["critic"] = {**states, **critic, **beside}
    phases["rollout"] = {**states, **sampling}
    return [Phase(name, 1, {**parts, "reserved": RESERVED}) for name, parts in phases.items()]


def beside_vllm(settings: Settings, shape: ModelShape) -> float:
    """GiB of the GPU that training takes while vLLM samples."""
    return RESERVED + sum(_local_states(settings, shape).values())


def local_vllm_share(settings: Settings, shape: ModelShape, available: float) -> float:
    """The share of the GPU that vLLM has beside a trainer in one process."""
    chosen = settings.rollout.vllm.gpu_memory
    if chosen is not None:
        return chosen
    return max(0.0, (available - beside_vllm(settings, shape)) / available)


def _local_states(settings: Settings, shape: ModelShape) -> dict[str, float]:
    """The contents that stay on the GPU for the whole run, vLLM's left out."""
    width, trained = _width(settings), trained_parameters(settings, shape)
    masters = 4.0 * trained * (width < 4 or settings.model.lora.rank > 0)
    parts = {"weights": width * shape.parameters, "optimiser": masters + 8.0 * trained}
    if has_reference(settings) and not settings.model.reference_offload:
        parts["reference"] = width * shape.parameters
    if has_critic(settings):
        parts["critic"] = (width + 4 * (width < 4) + 8.0) * shape.parameters
    return {name: size / GIB for name, size in parts.items()}


def _sampling(settings: Settings, shape: ModelShape) -> dict[str, float]:
    """The contents of a rollout by the local engine, the states left out."""
    r = settings.rollout
    tokens = r.groups * r.group_size * r.max_context_tokens
    cache = CACHE_SLACK * tokens * shape.cache_values * _width(settings)
    prefill = scoring_bytes(shape, Micro(PREFILL_TOKENS, scored=1)) * _width(settings) / 2
    return {"cache": cache / GIB, "activations": prefill / GIB}


def local_host(settings: Settings, shape: ModelShape) -> dict[str, float]:
    """GiB of the machine's memory while a run in one process goes on."""
    parts = {"loading": _width(settings) * shape.parameters / GIB}
    if has_reference(settings) and settings.model.reference_offload:
        parts["reference"] = _width(settings) * shape.parameters / GIB
    return parts


def _width(settings: Settings) -> int:
    """Bytes of a weight."""
    return 4 if settings.model.dtype == "float32" else 2


def _micro(settings: Settings) -> Micro:
    return Micro(
        # the budget, or one sequence that is longer
        max(settings.optimizer.micro_batch_tokens, settings.rollout.max_context_tokens),
        settings.model.gradient_checkpointing,
        entropy=settings.objective.entropy_coef > 0,
    )


# --- cluster --------------------------------------------------------------------------------------


def cluster_phases(settings: Settings, shape: ModelShape, available: float) -> list[Phase]:
    """The phases of a run on a cluster, by the GPUs that go through them."""
    o, micro, colocate = settings.openrlhf, _micro(settings), settings.openrlhf.colocate
    weights = _shard(settings, shape) / GIB
    reference = weights if has_reference(settings) else 0.0
    resident = 0.0 if settings.model.reference_offload else reference
    trained = trained_parameters(settings, shape)
    training = _training(settings, shape, trained, training_bytes(shape, micro))
    phases = {"training": training}
    if has_critic(settings):
        critic = _training(settings, shape, shape.parameters, critic_bytes(shape, micro))
        phases["critic"] = critic
    if settings.objective.kl_coef > 0:
        phases["scoring"] = {
            "reference": reference,
            "buffers": _gathered(settings, shape) / GIB,
            "activations": scoring_bytes(shape, micro) / GIB,
        }
    phases["rollout"] = {"vLLM": settings.vllm_share * available}
    # the contents of others on the same GPUs, and the processes that have a context there
    beside: dict[str, dict[str, float]] = {}
    processes = dict.fromkeys(phases, 1)
    if colocate == "all":
        # an idle model keeps its weights here, and its optimiser in the machine's memory
        asleep = {"critic": weights} if has_critic(settings) else {}
        beside = {
            "training": {**asleep, "reference": resident},
            "critic": {"policy": weights, "reference": resident},
            "scoring": {"policy": weights, **asleep},
            "rollout": {"policy": weights, **asleep, "reference": resident},
        }
        # policy, vLLM, and each of the others: also one that idles, or sleeps
        processes = dict.fromkeys(phases, 2 + has_reference(settings) + has_critic(settings))
    elif colocate == "actor_ref":
        held = {name: training[name] for name in ("weights", "optimiser", "gradients")}
        beside = {"training": {"reference": resident}, "scoring": held}
        processes |= dict.fromkeys(("training", "scoring"), 1 + has_reference(settings))
    gpus = dict.fromkeys(phases, o.ranks) | {"rollout": o.vllm_engines * o.tensor_parallel}
    found = []
    for name, own in phases.items():
        parts = {part: size for part, size in {**own, **beside.get(name, {})}.items() if size}
        found.append(Phase(name, gpus[name], {**parts, "reserved": processes[name] * RESERVED}))
    return found


def _shard(settings: Settings, shape: ModelShape) -> float:
    """Bytes of a model's bfloat16 weights on one rank."""
    return 2.0 * shape.parameters / (settings.openrlhf.ranks if _stage3(settings) else 1)


def _gathered(settings: Settings, shape: ModelShape) -> float:
    """Bytes of the weights that ZeRO-3 has gathered at a time."""
    return 2 * min(LIVE, shape.parameters) if _stage3(settings) else 0.0


def _stage3(settings: Settings) -> bool:
    return settings.openrlhf.zero_stage == 3


def _training(settings: Settings, shape: ModelShape, trained: int, work: float) -> dict[str, float]:
    """GiB of a GPU while a model with so many trained weights learns."""
    o = settings.openrlhf
    held = 0.0 if o.adam_offload else trained / o.ranks
    parts = {
        "weights": _shard(settings, shape),
        "optimiser": 12.0 * held,
        "gradients": 4.0 * held,
        # ZeRO-2 keeps a micro-batch's averages in bfloat16 before it adds them to the sums
        "averages": 0.0 if _stage3(settings) else 2.0 * held,
        # the bucket, flattened again, and in float32
        "buffers": 8 * min(BUCKET, trained) + _gathered(settings, shape),
        "activations": work,
    }
    return {part: size / GIB for part, size in parts.items()}


def cluster_host(settings: Settings, shape: ModelShape) -> dict[str, float]:
    """GiB of a machine's page-locked memory, where states are moved to while others work."""
    o = settings.openrlhf
    trained = trained_parameters(settings, shape)
    share = o.gpus_per_node / o.ranks
    parts = {}
    if o.adam_offload or o.colocate == "all":
        parts["optimiser"] = 12.0 * trained * share
        parts["gradients"] = 4.0 * trained * share
        if has_critic(settings):
            parts["critic"] = 16.0 * shape.parameters * share
    if o.colocate == "all":
        parts["vLLM"] = 2.0 * shape.parameters / o.tensor_parallel * o.gpus_per_node
    if has_reference(settings) and settings.model.reference_offload:
        copies = share if _stage3(settings) else o.gpus_per_node
        parts["reference"] = 2.0 * shape.parameters * copies
    return {name: size / GIB for name, size in parts.items()}


def gpu_count(settings: Settings) -> int:
    """GPUs of a run."""
    o = settings.openrlhf
    if settings.engine == "local":
        return 1
    if o.colocate == "all":
        return o.ranks
    copies = 2 if o.colocate == "none" and settings.objective.kl_coef > 0 else 1
    # a critic shares its GPUs with all others, or with none
    copies += has_critic(settings)
    return copies * o.ranks + o.vllm_engines * o.tensor_parallel
