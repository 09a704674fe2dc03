"""PaW in TRL: a ``GRPOTrainer`` with the world-model term, and rollouts of our environments as text.

    trainer = PaWTrainer(model, reward_funcs=episode_reward, rollout_func=TextRollouts("paw_gym/ALFWorld-v0"),
                         train_dataset=rows, args=config, max_return=10.0)

The policy term is TRL's own. Eq. 11 of PaW (arXiv 2606.02388) is added to it, from the same forward
pass: the transitions of one generation are selected by action entropy, each group is weighted by its mean
reward, and the tokens of the next observations get the clipped loss. Observations are located in the ids
that were sampled or appended; text is never tokenised again. Written for TRL 1.16, whose hooks
(``_generate``, ``_compute_loss`` and others) are not public and may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from paw_gym.pool import EnvPool
from paw_train.algorithms.selection import group_means, plan_update
from paw_train.losses.world_model import token_losses
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.observation_filter import leave_out
from paw_train.rollouts.policy import response_seed
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.rollouts.tokens import ACTION, OBSERVATION, token_roles
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings

__all__ = ["PaWTrainer", "TextRollouts", "episode_reward"]

Turns = Sequence[int]
"""for each token of a completion: k in the k-th action (from 1), -k in the observation after it, else 0"""


# --- rollouts ---------------------------------------------------------------------------------------


class TextRollouts:
    """``rollout_func`` of TRL: episodes as one growing dialogue of prompts and raw responses.

    The data set's prompts name the tasks (``paw_gym.adapters.trl.task_rows(..., style="text")``); what
    the model reads is the environment's own prompt. Any chat template of the usual form works.

    Args:
        settings: sampling and limits, in place of those of ``GRPOConfig``; ``groups`` and ``group_size`` are
            not read: they are the trainer's.
        seed: of environments and sampling; a column ``env_seed`` is not read.
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.
    """

    def __init__(
        self,
        env_id: str,
        settings: RolloutSettings | None = None,
        seed: int = 0,
        **agent_kwargs: Any,
    ) -> None:
        self.env_id, self.seed = env_id, seed
        self.settings = settings or RolloutSettings()
        self.agent_kwargs = {"mode": "conversation", **agent_kwargs}
        if self.agent_kwargs["mode"] != "conversation":
            raise ValueError("TRL trains one sequence an episode: `mode` is 'conversation'.")
        self._calls = 0
        self._policy: LocalPolicy | None = None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """One episode for each prompt, in TRL's form: the ``columns`` of all.

        Raises:
            RuntimeError: an environment failed; contains its traceback.
            ValueError: prompts are not in groups of ``num_generations``, each for a different task; or
                training would score the responses at another temperature than that of sampling.
        """
        training = trainer.model.training
        if training and self.settings.temperature != trainer.temperature:
            raise ValueError(
                f"TextRollouts samples at temperature {self.settings.temperature}, and the trainer scores at "
                f"{trainer.temperature}. Give RolloutSettings and GRPOConfig the same temperature."
            )
        size = trainer.num_generations if training else trainer.num_generations_eval
        task_ids = _by_group([prompt[-1]["content"] for prompt in prompts], size)
        seeds = dict.fromkeys(task_ids, self.seed)
        self._calls += 1
        seed = response_seed(self.seed, "trl", self._calls)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self._policy is None or self._policy.model is not model:
            self._policy = LocalPolicy(model, trainer.processing_class)
        pool = EnvPool(self.env_id, len(task_ids), size, seeds=seeds, **self.agent_kwargs)
        try:
            trajectories = rollout(self._policy, pool, self.settings, seed, task_ids)
        finally:
            pool.close()
            trainer.model.train(training)  # sampling is done without dropout
        if isinstance(trainer, PaWTrainer):
            trajectories = leave_out(trajectories, trainer.processing_class, trainer.world_model)
        found = [columns(trajectory) for trajectory in trajectories]
        return {name: [column[name] for column in found] for name in found[0]}


def _by_group(task_ids: Sequence[str], size: int) -> list[str]:
    """The task of each group; a group is ``size`` prompts in a row."""
    groups = [task_ids[i : i + size] for i in range(0, len(task_ids), size)]
    found = [group[0] for group in groups]
    whole = all(len(group) == size and len(set(group)) == 1 for group in groups)
    if not whole or len(set(found)) < len(found):
        raise ValueError(
            f"TextRollouts expects each prompt {size} times in a row (num_generations), and no task in two "
            "groups of one generation: give the data set one row for each task, and as many rows as a "
            f"generation has groups. Got {list(task_ids)[: 2 * size]}."
        )
    return found


def columns(trajectory: Trajectory) -> dict[str, Any]:
    """One episode in the form that a ``rollout_func`` returns.

    Its ``logprobs`` are in nats, 0 outside actions; ``env_mask`` is 1 on actions; ``token_roles`` are those
    of ``paw_train.rollouts.tokens``.
    """
    episode = trajectory.episode
    if episode.error is not None:
        raise RuntimeError(f"The environment failed on task {episode.task_id!r}:\n{episode.error}")
    (row,) = trajectory.rows
    used = [place for place, turn in enumerate(row.turn) if turn >= 0]
    prompt, completion = slice(used[0]), slice(used[0], used[-1] + 1)
    malformed = [bool(t.info.get("malformed")) for t in episode.transitions]
    sign = {ACTION: 1, OBSERVATION: -1}
    pairs = list(zip(row.role[completion], row.turn[completion], strict=True))
    return {
        "prompt_ids": row.ids[prompt],
        "completion_ids": row.ids[completion],
        "logprobs": row.logprob[completion],
        "env_mask": [int(role == ACTION) for role, _ in pairs],
        "token_roles": token_roles(row, malformed)[completion],
        "reward": episode.total_reward,
        "success": float(episode.success),
        "turns": [sign.get(role, 0) * (turn + 1) for role, turn in pairs],
    }


def episode_reward(completions: Sequence[Any], reward: Sequence[float], **_: Any) -> list[float]:
    """Reward function for ``TextRollouts``: the sum of each episode's rewards."""
    return list(reward)


# --- the loss ---------------------------------------------------------------------------------------


class PaWTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose policy also learns the observations that follow its actions.

    Takes the arguments of ``GRPOTrainer`` and:

    Args:
        world_model: settings of the world-model term; ``None``: PaW as published.
        world_model_coeff: coefficient of the term, under the name that OpenEnv's RFC 010 gives it; 0 leaves
            the term out, ``None`` means ``world_model.coef``.
        max_return: R_max, the largest reward of an episode in the reward functions' units (Eq. 10).

    Raises:
        ValueError: a setting that is not available inside TRL; the message names it.
    """

    args: Any
    """a ``GRPOConfig``, which the type annotations of transformers do not say"""
    model: Any

    def __init__(
        self,
        *args: Any,
        world_model: WorldModelSettings | None = None,
        world_model_coeff: float | None = None,
        max_return: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.world_model = world_model or WorldModelSettings()
        if world_model_coeff is not None:
            enabled = self.world_model.enabled and world_model_coeff != 0
            self.world_model = self.world_model.replace(coef=world_model_coeff, enabled=enabled)
        self.max_return = max_return
        _require_available(self.world_model, self.temperature, self.accelerator.num_processes)
        self._turns: list[Turns] | None = None
        self._returns = torch.empty(0)
        self._scored = torch.empty(0)

    def _generate(self, prompts: list[Any]) -> Any:
        """Does the same as TRL, and keeps the turn of each completion's tokens."""
        generated = super()._generate(prompts)
        self._turns = generated[5].pop("turns", None)
        return generated

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """Does the same as TRL, and keeps each episode's weighted sum."""
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._returns = (rewards * self.reward_weights.to(rewards)).nansum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """TRL's output with ``turns`` and ``wm_weights`` [B, C] for the tokens of each completion."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if not self.world_model.enabled or not self.model.training:
            return output
        sampled = output.get("sampling_per_token_logps")
        if self._turns is None or sampled is None:
            raise ValueError(
                "The world model learns what an environment answers: give PaWTrainer a `rollout_func` that "
                "returns `turns` and `logprobs`, such as TextRollouts."
            )
        turns = torch.zeros_like(output["completion_ids"])
        for row, own in zip(turns, self._turns, strict=True):
            row[: len(own)] = torch.tensor(own)
        weights, metrics = weigh_tokens(
            turns,
            sampled,
            self._returns,
            torch.arange(len(turns)) // self.args.num_generations,
            self.world_model,
            self.max_return,
        )
        for name, value in metrics.items():
            self._metrics["train"][f"wm/{name}"].append(value)
        return {**output, "turns": turns, "wm_weights": weights.to(turns.device)}

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as TRL, and keeps the log-probabilities, so both terms share one forward pass."""
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._scored = scored[0]
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss plus this micro-batch's share of ``M * coef * sum_i w_i l_i`` (Eq. 11)."""
        loss: Tensor = super()._compute_loss(model, inputs)
        if "wm_weights" not in inputs:
            return loss
        # the weights sum over the generation; the optimiser steps of one pass over it share that sum
        steps = self.args.steps_per_generation / self.args.gradient_accumulation_steps
        scale = steps * self.world_model.coef
        term = scale * world_model_term(self._scored, inputs["wm_weights"], self.world_model)
        self._scored = torch.empty(0)
        self._metrics["train"]["wm/term"].append(term.detach().item())
        total: Tensor = loss + term
        return total


def _require_available(settings: WorldModelSettings, temperature: float, processes: int) -> None:
    if not settings.enabled:
        return
    published = WorldModelSettings()
    for name in ("entropy", "horizon", "dedup", "filter"):
        if getattr(settings, name) != getattr(published, name):
            raise ValueError(
                f"`world_model.{name}={getattr(settings, name)}` is not available inside TRL; use "
                f"{getattr(published, name)!r}, or train with `paw train`."
            )
    if temperature != 1.0:
        raise ValueError(
            f"temperature is {temperature}: TRL scores every token at the sampling temperature, and "
            "observations are to be scored at 1. Set GRPOConfig(temperature=1.0)."
        )
    if processes > 1:
        raise ValueError(
            f"PaWTrainer selects among the transitions of one process, and there are {processes}. Use one, "
            "or `paw train engine=openrlhf`."
        )


def weigh_tokens(
    turns: Tensor,
    logps: Tensor,
    returns: Tensor,
    groups: Tensor,
    settings: WorldModelSettings,
    max_return: float,
) -> tuple[Tensor, dict[str, float]]:
    """The weights of observation tokens, `w_i / |o|` (Eq. 8, 11), over one generation (``plan_update``).

    Args:
        turns: [B, C] turns of each completion (``Turns``).
        logps: [B, C] log-probabilities of the sampled tokens, in nats.
        returns: [B] rewards of the episodes.
        groups: [B] group of each episode, 0..G-1.

    Returns:
        [B, C] weights, 0 on other tokens; and metrics.
    """
    turns, logps, returns = turns.cpu(), logps.detach().float().cpu(), returns.double().cpu()
    counts = turns.amax(1)
    total = int(counts.sum())
    number = (counts.cumsum(0) - counts)[:, None] + turns.abs() - 1  # of each token's transition
    actions, observations = turns > 0, turns < 0
    row = torch.arange(len(turns)).repeat_interleave(counts)
    lengths = torch.bincount(number[observations], minlength=total)
    surprise = torch.special.entr(logps[actions].exp())
    entropy = torch.zeros(total).index_add_(0, number[actions], surprise)
    entropy /= torch.bincount(number[actions], minlength=total)
    means = group_means(returns, groups)
    plan = plan_update(settings, entropy, groups[row], means, max_return, lengths, row)
    weights = torch.zeros(turns.shape)
    weights[observations] = (plan.weights / lengths.clamp(min=1)).float()[number[observations]]
    return weights, plan.metrics(entropy)


def world_model_term(logps: Tensor, weights: Tensor, settings: WorldModelSettings) -> Tensor:
    """``sum_t w_t l(p_t)`` over [B, C] tokens, weighted by ``weigh_tokens``; a scalar with gradient."""
    chosen = weights != 0
    return (weights[chosen] * token_losses(logps[chosen].float(), settings)).sum()
