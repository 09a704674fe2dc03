"""The parts of ``gpu_evidence.py``: what they share, from models with random weights to what was found.

Random weights cost as much as trained ones. Unless another device is asked for, everything is made on
the CPU from a seed, so that every device starts from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from paw_gym.transition import Episode, Transition
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import word_tokenizer
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings import AlgorithmSettings, OptimizerSettings, WorldModelSettings
from paw_train.settings.algorithm import ObjectiveSettings
from paw_train.training.memory import ModelShape

MAX_RETURN = 10.0
GROUP = 4
"""episodes of a rollout group"""
FIRST_WORD = 50
"""smaller ids are those of special tokens"""


def qwen2(
    shape: ModelShape,
    seed: int,
    dtype: torch.dtype = torch.float32,
    spread: float = 0.02,
    device: str = "cpu",
) -> Any:
    """A Qwen2 of the given shape with random weights.

    Weights are rounded to bfloat16 whatever ``dtype`` is, so that models of both types are the same model.

    Args:
        shape: of the model.
        seed: of the weights.
        dtype: of the model.
        spread: standard deviation of the weights; with 0.02 all tokens are nearly equally likely.
        device: where the numbers are made; equal seeds give equal weights on equal devices.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=spread,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16)
    return model.to(dtype).eval()


def policy_of(model: Any, device: str) -> LocalPolicy:
    """A policy on a device, with a tokenizer that knows a few words."""
    return LocalPolicy(model.to(torch.device(device)), word_tokenizer(["a few words"]))


def words(count: int, vocabulary: int, generator: torch.Generator) -> list[int]:
    """Random token ids."""
    return torch.randint(FIRST_WORD, vocabulary, (count,), generator=generator).tolist()


def sampled(policy: LocalPolicy, prompts: list[list[int]], tokens: int) -> list[Response]:
    """One response of ``tokens`` tokens to each prompt, as a rollout samples it."""
    requests = [Request(str(i), i, [], ids) for i, ids in enumerate(prompts)]
    session = policy.session(Sampling(max_tokens=tokens, stop=("\x00",)), growing=False)
    return session.respond(requests)


def trajectory(
    number: int, prompt: list[int], turns: list[tuple[list[int], list[float], list[int]]]
) -> Trajectory:
    """An episode as one row.

    Args:
        number: of the episode; every second one succeeds.
        prompt: token ids.
        turns: for each, the response's ids and log-probabilities, and the next observation's ids.
    """
    row, steps = TokenRow(list(prompt)), []
    for turn, (ids, logprobs, observation) in enumerate(turns):
        row.append(ids, ACTION, turn, logprobs)
        row.append(observation, OBSERVATION, turn)
        last = turn + 1 == len(turns)
        reward = MAX_RETURN * (number % 2) * last
        steps.append(
            Transition(
                "bench", "t", f"e{number}", turn, "", "", "", "", reward, "", last, False, True
            )
        )
    episode = Episode("bench", "t", f"e{number}", group=number // GROUP, transitions=steps)
    return Trajectory(episode, [row])


def updating(
    policy: LocalPolicy, optimizer: OptimizerSettings, objective: ObjectiveSettings, preset: str
) -> tuple[Updater, Callable[[list[Trajectory]], None]]:
    """An updater with or without PaW, and its update as a function of the rollout; all else is equal."""
    world_model = WorldModelSettings.preset(preset)
    reference = policy.reference() if objective.kl_coef else None
    updater = Updater(policy, reference, optimizer, objective, world_model, 1.0, 100)

    def update(trajectories: list[Trajectory]) -> None:
        pool = collect(trajectories)
        given = (AlgorithmSettings(), objective, world_model, MAX_RETURN)
        prepared = prepare(pool, *given, updater.signals(pool), policy.chat.ask)
        updater.step(prepared.rows, 0, 0)

    return updater, update


# --- what was found -----------------------------------------------------------------------------------

Values = dict[str, Any]
"""measurements by name; JSON"""


@dataclass(frozen=True)
class Task:
    """One part of a run of ``gpu_evidence.py``."""

    device: str
    """``cuda`` or ``cpu``"""
    small: bool
    """sizes with which a CPU finishes in seconds: the code is exercised, the figures mean nothing"""
    folder: Path
    """the only folder that the part may write to; it is kept when the part is run again"""
    seconds: float = 600.0
    """time that the part may take; what it has by then is its result"""

    @property
    def on_gpu(self) -> bool:
        """True if GPU memory and GPU time can be measured."""
        return self.device.startswith("cuda")

    def wait(self) -> None:
        """Waits until the device has finished what it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Check:
    """A measurement that must lie within bounds."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def passed(self) -> bool:
        """True if the value lies within its bounds; NaN never does."""
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return self.value == self.value and above and below


@dataclass
class Findings:
    """The result of a part."""

    values: Values = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> Values:
        """The findings as JSON."""
        checks = [{**asdict(check), "passed": check.passed} for check in self.checks]
        return {"values": self.values, "checks": checks}
