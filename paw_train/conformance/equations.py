"""Losses and gradients of the recorded batch in float64, written from the equations alone.

Nothing from the trainer is imported: one dialogue at a time goes through the model, without padding or
packing, and every term is a plain sum over its tokens. Slow and obvious on purpose.

GRPO: Shao et al. 2024 (arXiv 2402.03300), with DAPO's mean over the tokens of the batch (arXiv 2503.14476,
Eq. 8). REINFORCE++: arXiv 2501.03262. PPO: arXiv 1707.06347 with GAE, 1506.02438. KL estimate k3: Schulman
2020. World model: PaW, arXiv 2606.02388, Eq. 4, 7, 8, 10, 11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

import torch
from torch import Tensor

from paw_train.conformance.recording import (
    TRACE_DECAY,
    Episode,
    KnownGood,
    Objective,
    Recording,
    Turn,
    WorldModelTerm,
)

EPSILON = 1e-6
"""added to a group's standard deviation; the returns' deviations are near 5, so that 1e-4, which others add,
changes an advantage by parts in 100,000"""


def solve(recording: Recording, objective: Objective) -> KnownGood:
    """Everything that a trainer should compute from the recording with this objective."""
    advantages = ADVANTAGES[objective.algorithm](recording)
    weights = world_model_weights(recording, objective)
    model = recording.model("policy").double()
    reference = recording.model("reference").double()
    surrogate, kl, world_model = [], [], []
    for episode in recording.episodes:
        scores = log_softmax(model, episode, objective.temperature)
        plain = log_softmax(model, episode, 1.0)
        with torch.no_grad():
            anchor = log_softmax(reference, episode, objective.temperature)
        for turn in episode.turns:
            new = of(scores, episode, turn.action_tokens)
            old = turn.logprobs[objective.name]
            advantage = advantages[turn.number]
            surrogate += [
                _clipped(n, o, advantage, objective.clip) for n, o in zip(new, old, strict=True)
            ]
            known = of(anchor, episode, turn.action_tokens)
            kl += [_k3(n, r) for n, r in zip(new, known, strict=True)]
            if weights[turn.number] > 0 and objective.world_model is not None:
                observed = of(plain, episode, turn.observation_tokens)
                loss = _clipped_mae(observed, objective.world_model.rho)
                world_model.append(weights[turn.number] * loss)
    policy_loss = _mean(surrogate) + objective.kl_coef * _mean(kl)
    none = torch.zeros((), dtype=torch.float64)
    coef = objective.world_model.coef if objective.world_model else 0.0
    world_model_loss = coef * torch.stack(world_model).sum() if world_model else none
    (policy_loss + world_model_loss).backward()
    return KnownGood(
        policy_loss.item(),
        world_model_loss.item(),
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(weights, dtype=torch.float64),
    )


def grpo_advantages(recording: Recording) -> list[float]:
    """[N] ``(R - mean) / (std + EPSILON)`` of the episode's group, the same for each of its turns."""
    groups = _by_group(recording)
    found = []
    for episode in recording.episodes:
        returns = [e.total_reward for e in groups[episode.group]]
        deviation = stdev(returns) if len(set(returns)) > 1 else 0.0
        advantage = (episode.total_reward - mean(returns)) / (deviation + EPSILON)
        found += [advantage] * len(episode.turns)
    return found


def reinforce_pp_advantages(recording: Recording) -> list[float]:
    """[N] the same as for GRPO, over all episodes as if they were one group."""
    together = [replace(episode, group=0) for episode in recording.episodes]
    return grpo_advantages(replace(recording, episodes=together))


def ppo_advantages(recording: Recording) -> list[float]:
    """[N] ``A_t = r_t + V_(t+1) - V_t + TRACE_DECAY A_(t+1)`` by turn, then standardised over the batch."""
    found: list[float] = []
    for episode in recording.episodes:
        own, following = [0.0], 0.0
        for turn in reversed(episode.turns):
            own.append(turn.reward + following - turn.value + TRACE_DECAY * own[-1])
            following = turn.value
        found += reversed(own[1:])
    return [(value - mean(found)) / (stdev(found) + EPSILON) for value in found]


ADVANTAGES = {
    "grpo": grpo_advantages,
    "reinforce_pp": reinforce_pp_advantages,
    "ppo": ppo_advantages,
}


def lambdas(recording: Recording, term: WorldModelTerm) -> dict[int, float]:
    """By group: the adaptive weight of Eq. 10."""
    groups = _by_group(recording)
    return {g: 1 - mean(e.total_reward for e in own) / term.max_return for g, own in groups.items()}


def world_model_weights(recording: Recording, objective: Objective) -> list[float]:
    """[N] the w_i of Eq. 11: ``lambda_g / (G |S_g|)`` for the selected transitions of group g."""
    term = objective.world_model
    if term is None:
        return [0.0] * len(recording.turns)
    entropies = [_action_entropy(turn, objective) for turn in recording.turns]
    order = sorted(range(len(entropies)), key=lambda n: (-entropies[n], n))
    chosen = set(order[: math.ceil(term.alpha * len(entropies))])
    groups, adaptive = _by_group(recording), lambdas(recording, term)
    weights = []
    for episode in recording.episodes:
        selected = sum(t.number in chosen for e in groups[episode.group] for t in e.turns)
        weight = adaptive[episode.group] / (len(groups) * max(selected, 1))
        weights += [weight if turn.number in chosen else 0.0 for turn in episode.turns]
    return weights


def _by_group(recording: Recording) -> dict[int, list[Episode]]:
    groups: dict[int, list[Episode]] = {}
    for episode in recording.episodes:
        groups.setdefault(episode.group, []).append(episode)
    return groups


def _action_entropy(turn: Turn, objective: Objective) -> float:
    """``-mean(q log q)`` over the sampled tokens (section 3.1)."""
    return mean(-math.exp(lp) * lp for lp in turn.logprobs[objective.name])


def log_softmax(model: torch.nn.Module, episode: Episode, temperature: float) -> Tensor:
    """[T, V]: at t, the distribution of the token after t."""
    logits: Tensor = model(input_ids=torch.tensor([episode.ids]), use_cache=False).logits[0]
    return (logits / temperature).log_softmax(-1)


def of(scores: Tensor, episode: Episode, span: tuple[int, int]) -> list[Tensor]:
    """The log-probability of each token of a span."""
    return [scores[t - 1, episode.ids[t]] for t in range(*span)]


def _clipped(new: Tensor, old: float, advantage: float, clip: float) -> Tensor:
    """``-min(r A, clip(r) A)`` (Schulman et al. 2017, Eq. 7)."""
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def _k3(new: Tensor, reference: Tensor) -> Tensor:
    difference = reference.detach() - new
    return difference.exp() - difference - 1


def _clipped_mae(observed: Sequence[Tensor], rho: float) -> Tensor:
    """``sum_i 1[p_i <= rho] (1 - p_i) / |o|`` (Eq. 8)."""
    probabilities = [logprob.exp() for logprob in observed]
    kept = [1 - p for p in probabilities if p.item() <= rho]
    return torch.stack(kept).sum() / len(observed) if kept else probabilities[0] * 0


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()
