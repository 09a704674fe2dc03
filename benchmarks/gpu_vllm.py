"""Part ``vllm``: an engine beside the trainer: new weights, sums over them, sleeping and waking.

Needs vLLM. The engine samples with a random model; it must report the log-probabilities that the trainer
computes, refuse to pass for up to date before it has new weights, and hold exactly those afterwards.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from gpu_findings import Check, Findings, Task, Values
from gpu_model import policy_of, qwen2, trajectory, words

from paw_train.algorithms.experience import collect
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.vllm.engine import FollowingVLLM, VLLMPolicy
from paw_train.rollouts.policy import Request, Sampling
from paw_train.rollouts.scoring import transition_logprobs
from paw_train.settings.rollout import VLLMSettings
from paw_train.training.memory import KNOWN, ModelShape
from paw_train.training.openrlhf.weights import Sums, sums_of, zero_sums
from paw_train.training.phases import GIB

FULL = KNOWN["Qwen/Qwen2.5-1.5B-Instruct"]
SMALL = ModelShape(64, 2, 2, 1, 128, 256, True, 32, True)
GAP = 0.05
"""largest mean difference of log-probabilities in bfloat16 between vLLM and the trainer, in nats"""


def run(task: Task) -> Findings:
    """Starts an engine and takes it through an update."""
    shape = SMALL if task.small else FULL
    policy = policy_of(qwen2(shape, 0, torch.bfloat16, spread=0.05), task.device)
    settings = VLLMSettings(
        max_model_len=256 if task.small else 4096,
        gpu_memory=0.3,
        enforce_eager=task.small,
        extra={"enable_sleep_mode": True} if task.on_gpu else {},
    )
    following = FollowingVLLM(policy, settings)
    findings = Findings({"parameters": shape.parameters})
    _exchange(task, policy, following.engine, findings)
    _sample(task, policy, following, shape, findings)
    if task.on_gpu:
        _sleep(following, shape, findings)
    return findings


def _exchange(task: Task, policy: LocalPolicy, engine: VLLMPolicy, findings: Findings) -> None:
    """Changes the trainer's weights, looks whether that is noticed, and hands them over."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.0625)
    if task.on_gpu:
        stale = _engine_sums(engine).equal(_sums(policy.model))
        findings.checks.append(Check("old weights pass for new ones", float(stale), high=0.0))
    task.wait()
    started = time.perf_counter()
    engine.load_weights(policy.model.state_dict().items())
    task.wait()
    findings.values["weight_exchange_seconds"] = time.perf_counter() - started
    if task.on_gpu:  # vLLM for CPUs packs matrices away, so that nothing is left to sum
        started = time.perf_counter()
        fresh = _engine_sums(engine).equal(_sums(policy.model))
        findings.values["checksum_seconds"] = time.perf_counter() - started
        findings.checks.append(Check("new weights are recognised", float(fresh), low=1.0))


def _sums(model: Any) -> Sums:
    total = zero_sums()
    for parameter in model.parameters():
        total = total + sums_of(parameter)
    return total


def _engine_sums(engine: VLLMPolicy) -> Sums:
    found: list[Sums] = engine.engine.apply_model(_sums)
    return found[0]


def _sample(
    task: Task, policy: LocalPolicy, following: FollowingVLLM, shape: ModelShape, findings: Findings
) -> None:
    """Samples responses and scores them by the trainer; asked twice, prefixes come from the cache."""
    count, prompt, tokens = (4, 24, 8) if task.small else (64, 2048, 512)
    generator = torch.Generator().manual_seed(0)
    prompts = [words(prompt, shape.vocabulary, generator) for _ in range(count)]
    session = following.session(Sampling(max_tokens=tokens, stop=("\x00",)), growing=False)
    for when in ("first", "with cached prefixes"):
        started = time.perf_counter()
        answers = session.respond([Request(str(i), i, [], ids) for i, ids in enumerate(prompts)])
        seconds = time.perf_counter() - started
        sampled = sum(len(answer.ids) for answer in answers)
        findings.values[f"sampled_tokens_per_second, {when}"] = sampled / seconds
        episodes = [
            trajectory(i, ids, [(answer.ids, answer.logprobs, [])])
            for i, (ids, answer) in enumerate(zip(prompts, answers, strict=True))
        ]
        scores = transition_logprobs(policy, collect(episodes).rows, 16384)
        computed = torch.cat([scores[i][0] for i in sorted(scores)])
        reported = torch.tensor([x for answer in answers for x in answer.logprobs])
        gap = float((computed - reported).abs().mean())
        findings.checks.append(
            Check(f"vLLM against trainer, mean difference, {when}", gap, high=GAP)
        )


def _sleep(following: FollowingVLLM, shape: ModelShape, findings: Findings) -> None:
    """Puts the engine to sleep: its memory must be free, and its weights the same when it wakes."""
    llm: Any = following.engine.engine
    sums, free = _engine_sums(following.engine), _free()
    timings: Values = {}
    started = time.perf_counter()
    llm.sleep(level=1)
    timings["sleep"] = time.perf_counter() - started
    freed = _free() - free
    started = time.perf_counter()
    llm.wake_up()
    timings["wake"] = time.perf_counter() - started
    findings.values |= {"freed_by_sleep_gib": freed, "seconds": timings}
    weights = 2 * shape.parameters / GIB
    findings.checks.append(Check("GiB freed by sleep", freed, low=weights))
    same = sums.equal(_engine_sums(following.engine))
    findings.checks.append(Check("the weights after waking are the same", float(same), low=1.0))


def _free() -> float:
    """GiB of the GPU that nobody holds."""
    return float(torch.cuda.mem_get_info()[0] / GIB)
