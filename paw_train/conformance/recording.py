"""The recorded batch: a multi-turn rollout in tokens, three sets of weights, and the known-good values.

The files in ``recorded/`` were written by ``data/make_conformance_batch.py``: episodes of a frozen lake,
sampled by a model of 8,000 weights that was trained from scratch on an expert's episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

FOLDER = Path(__file__).with_name("recorded")
WEIGHTS = ("policy", "sampler", "reference")
"""the policy at this step of the update; the one that sampled; the one that KL is measured against"""

Span = tuple[int, int]
"""[start, end) in tokens"""


@dataclass(frozen=True)
class WorldModelTerm:
    """Settings of the world-model term: PaW, arXiv 2606.02388."""

    alpha: float
    """fraction of the transitions of the batch that is supervised (Eq. 4)"""
    rho: float
    """probability above which a token is left out (Eq. 7)"""
    max_return: float
    """R_max of the adaptive weight (Eq. 10)"""
    coef: float = 1.0
    """coefficient of the whole term"""


@dataclass(frozen=True)
class Objective:
    """The loss: a clipped surrogate with a mean over tokens, k3 KL beside it, and the world-model term."""

    name: str
    temperature: float
    """that of sampling: actions are scored at it too"""
    algorithm: Literal["grpo", "reinforce_pp", "ppo"] = "grpo"
    """the advantages (``equations.ADVANTAGES``)"""
    aggregation: Literal["token-mean", "sequence-mean"] = "token-mean"
    """the mean: over action tokens, or first over those of each row, which a planted fault uses"""
    clip: float = 0.2
    """the probability ratio is clipped to [1 - clip, 1 + clip]"""
    kl_coef: float = 0.1
    """coefficient of the k3 estimate of KL(policy || reference)"""
    world_model: WorldModelTerm | None = None
    """``None``: the policy term alone"""


OBJECTIVES = {
    "policy": Objective("policy", temperature=0.8),
    "reinforce_pp": Objective("reinforce_pp", temperature=0.8, algorithm="reinforce_pp"),
    "ppo": Objective("ppo", temperature=0.8, algorithm="ppo"),
    "world_model": Objective(
        "world_model", temperature=1.0, world_model=WorldModelTerm(0.75, 0.2, max_return=10.0)
    ),
}
"""the world-model term has its own objective, because some trainers score observations at the temperature of
actions and support the term at temperature 1 only"""
TRACE_DECAY = 0.9
"""lambda of PPO's generalised advantage estimation; the discount is 1"""


@dataclass(frozen=True)
class Turn:
    """A response and what followed it."""

    number: int
    """of the transition in the batch, 0..N-1"""
    prompt: str
    """text of the user message that was answered"""
    response: str
    response_ids: list[int]
    """as they were sampled, including the end token"""
    logprobs: dict[str, list[float]]
    """by objective: log-probability of each of them under the sampler, in nats"""
    message: str
    """text of the next user message"""
    observation: Span
    """where the next observation lies in ``message``, in characters"""
    action_tokens: Span
    """in the episode's ``ids``"""
    observation_tokens: Span
    """in the episode's ``ids``"""
    reward: float
    """environment's reward and penalty, as training should read them"""
    penalty: float
    """the part of ``reward`` that is the penalty of an invalid response"""
    malformed: bool
    """whether the response could not be read"""
    terminated: bool
    truncated: bool
    """whether the episode ended here by its step budget"""
    success: bool

    @property
    def value(self) -> float:
        """PPO's value before the response: any number will do; this one is computed from recorded ones."""
        return 5.0 + 2.0 * fmean(self.logprobs["policy"])


@dataclass(frozen=True)
class Episode:
    """One episode as one dialogue."""

    task: str
    instruction: str
    group: int
    ids: list[int]
    """the whole dialogue, up to the last observation"""
    turns: list[Turn]

    @property
    def total_reward(self) -> float:
        return sum(turn.reward for turn in self.turns)


@dataclass(frozen=True)
class Recording:
    """E episodes in groups of equal size, with N transitions in total."""

    episodes: list[Episode]
    """ordered by group"""
    environment: str
    tokenizer: Any
    """Hugging Face tokenizer with a chat template"""
    weights: dict[str, dict[str, Tensor]]
    """by ``WEIGHTS``: the parameters of the model, float32"""
    changes: list[Callable[[Any], None]] = field(default_factory=list)
    """what a planted fault does to every model that is made"""

    @property
    def turns(self) -> list[Turn]:
        """[N] all transitions, by number."""
        return [turn for episode in self.episodes for turn in episode.turns]

    @property
    def group_size(self) -> int:
        """The number of episodes in a group."""
        return len(self.episodes) // (1 + max(episode.group for episode in self.episodes))

    def model(self, name: str) -> Any:
        """A fresh causal language model of transformers, in eval mode."""
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(
            LlamaConfig.from_pretrained(FOLDER / "model", trust_remote_code=False)
        )
        model.load_state_dict(self.weights[name], strict=False)
        model.tie_weights()
        for change in self.changes:
            change(model)
        return model.eval()


@dataclass(frozen=True)
class Outcome:
    """The result of one forward and backward pass over the whole batch, before the optimiser steps."""

    policy_loss: float
    """clipped surrogate plus ``kl_coef`` times KL"""
    world_model_loss: float
    """``coef * sum_i w_i l_i``; 0 without a world model"""
    gradients: dict[str, Tensor]
    """of the sum of both losses, by the model's parameter names, not clipped"""


@dataclass(frozen=True)
class KnownGood(Outcome):
    """The known-good values of the recording with one objective."""

    advantages: Tensor
    """[N] for each transition"""
    world_model_weights: Tensor
    """[N] the w_i of Eq. 11, without ``coef``; zeros without a world model"""


@lru_cache(maxsize=1)
def load() -> Recording:
    """The recorded batch. Treat it as read-only."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    data = json.loads((FOLDER / "batch.json").read_text(encoding="utf-8"))
    tensors = load_file(FOLDER / "weights.safetensors")
    weights = {
        name: {
            key.removeprefix(f"{name}."): value
            for key, value in tensors.items()
            if key.startswith(f"{name}.")
        }
        for name in WEIGHTS
    }
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "model", trust_remote_code=False)
    episodes = [_episode(values) for values in data["episodes"]]
    return Recording(episodes, data["environment"], tokenizer, weights)


def _episode(values: dict[str, Any]) -> Episode:
    turns = []
    for turn in values["turns"]:
        spans = {n: tuple(turn[n]) for n in ("observation", "action_tokens", "observation_tokens")}
        # by temperature, so those of "policy" serve two more objectives
        logprobs = turn["logprobs"]
        logprobs |= dict.fromkeys(("reinforce_pp", "ppo"), logprobs["policy"])
        turns.append(Turn(**{**turn, **spans}))
    return Episode(**{**values, "turns": turns})


@lru_cache(maxsize=len(OBJECTIVES))
def known_good(objective: str) -> KnownGood:
    """The recorded values of one objective (``OBJECTIVES``)."""
    from safetensors.torch import load_file

    data = json.loads((FOLDER / "known_good.json").read_text(encoding="utf-8"))[objective]
    return KnownGood(
        data["policy_loss"],
        data["world_model_loss"],
        load_file(FOLDER / f"gradients_{objective}.safetensors"),
        torch.tensor(data["advantages"], dtype=torch.float64),
        torch.tensor(data["world_model_weights"], dtype=torch.float64),
    )
