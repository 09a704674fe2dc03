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

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from paw_gym.pool import EnvPool
from paw_train.algorithms.selection import plan_update
from paw_train.losses.world_model import token_losses
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.observation_filter import filtered
from paw_train.rollouts.policy import response_seed
from paw_train.rollouts.roles import token_roles
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.rollouts.tokens import ACTION, Span
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
        """One episode for each prompt, in TRL's form.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``logprobs`` (nats, 0 outside actions), ``env_mask`` (1 on
            actions), ``token_roles`` (``paw_train.rollouts.roles``), and for each episode ``reward``,
            ``success``, ``turns`` (see ``Turns``), its ``actions`` as the environment was given them, and
            whether each response was ``malformed``.

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
        pool = EnvPool(self.env_id, len(task_ids), size, seeds=seeds, **self.agent_kwargs)
        self._calls += 1
        seed = response_seed(self.seed, "trl", self._calls)
        try:
            trajectories = rollout(self._of(trainer), pool, self.settings, seed, task_ids)
        finally:
            pool.close()
            trainer.model.train(training)  # sampling is done without dropout
        found = [columns(trajectory) for trajectory in trajectories]
        return {name: [column[name] for column in found] for name in found[0]}

    def _of(self, trainer: Any) -> LocalPolicy:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if self._policy is None or self._policy.model is not model:
            self._policy = LocalPolicy(model, trainer.processing_class)
        return self._policy


def _by_group(task_ids: Sequence[str], size: int) -> list[str]:
    """The task of each group; a group is ``size`` prompts in a row."""
    groups = [task_ids[i : i + size] for i in range(0, len(task_ids), size)]
    if any(len(group) != size or len(set(group)) > 1 for group in groups):
        raise ValueError(
            f"TextRollouts expects each prompt {size} times in a row (num_generations), got "
            f"{list(task_ids)[: 2 * size]}."
        )
    found = [group[0] for group in groups]
    if len(set(found)) < len(found):
        raise ValueError(
            "A task is in two groups of one generation: give the data set one row for each task, and as "
            "many rows as a generation has groups."
        )
    return found


def columns(trajectory: Trajectory) -> dict[str, Any]:
    """One episode in the form that a ``rollout_func`` returns (see ``TextRollouts.__call__``)."""
    episode = trajectory.episode
    if episode.error is not None:
        raise RuntimeError(f"The environment failed on task {episode.task_id!r}:\n{episode.error}")
    (row,) = trajectory.rows
    used = [place for place, turn in enumerate(row.turn) if turn >= 0]
    prompt, completion = slice(used[0]), slice(used[0], used[-1] + 1)
    malformed = [bool(t.info.get("malformed")) for t in trajectory.episode.transitions]
    sampled = [role == ACTION for role in row.role[completion]]
    turns = zip(row.turn[completion], sampled, strict=True)
    return {
        "prompt_ids": row.ids[prompt],
        "completion_ids": row.ids[completion],
        "logprobs": row.logprob[completion],
        "env_mask": [int(own) for own in sampled],
        "token_roles": token_roles(row, malformed)[completion],
        "reward": episode.total_reward,
        "success": float(episode.success),
        "turns": [turn + 1 if own else -turn - 1 for turn, own in turns],
        "actions": [t.action for t in trajectory.episode.transitions],
        "malformed": malformed,
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
        self._contents: dict[tuple[int, ...], Span] = {}
        self._turns: list[Turns] = []
        self._actions: list[list[str]] | None = None
        self._malformed: list[list[bool]] | None = None
        self._returns = torch.empty(0)
        self._scored = torch.empty(0)

    def _get_tool_suffix_ids(self, tool_messages: list[dict[str, Any]]) -> list[int]:
        """Ids of tool results in the chat template; remembers which of them do not come from the template."""
        ids: list[int] = super()._get_tool_suffix_ids(tool_messages)
        empty = super()._get_tool_suffix_ids([{**m, "content": ""} for m in tool_messages])
        self._contents[tuple(ids)] = content_span(ids, empty)
        return ids

    def _generate(self, prompts: list[Any]) -> Any:
        """Does the same as TRL, and keeps the turn of each completion's tokens."""
        self._contents.clear()
        generated = super()._generate(prompts)
        completions, mask, extra = generated[1], generated[2], generated[5]
        if not self.world_model.enabled:
            return generated
        if mask is None:
            raise ValueError(
                "The world model learns what an environment answers: give PaWTrainer an "
                "`environment_factory`, or a `rollout_func` such as TextRollouts."
            )
        given = extra.pop("turns", None)
        self._actions, self._malformed = extra.pop("actions", None), extra.pop("malformed", None)
        _require_columns(self.world_model, self._actions)
        self._turns = given or [
            turns_of(ids, tokens, self._contents)
            for ids, tokens in zip(completions, mask, strict=True)
        ]
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
        turns = torch.zeros_like(output["completion_ids"])
        for row, own in zip(turns, self._turns, strict=True):
            row[: len(own)] = torch.tensor(own)
        if self.world_model.filters_tokens:
            self._leave_out(turns, output["completion_ids"])
        weights, metrics = weigh_tokens(
            turns,
            self._sampled_logps(output),
            self._returns,
            torch.arange(len(turns)) // self.args.num_generations,
            self.world_model,
            self.max_return,
            self._malformed,
        )
        for name, value in metrics.items():
            self._metrics["train"][f"wm/{name}"].append(value)
        return {**output, "turns": turns, "wm_weights": weights.to(turns.device)}

    def _leave_out(self, turns: Tensor, completion_ids: Tensor) -> None:
        """Sets ``turns`` to 0 on the tokens that the filter of observations leaves out."""
        for b, row in enumerate(turns):
            for k in range(int(row.max())):
                (places,) = torch.where(row == -k - 1)
                ids = completion_ids[b, places].tolist()
                action = self._actions[b][k] if self._actions else ""
                for first, last in filtered(ids, action, self.processing_class, self.world_model):
                    row[places[first:last]] = 0

    @torch.no_grad()
    def _sampled_logps(self, output: dict[str, Any]) -> Tensor:
        """[B, C] log-probabilities of the tokens under the policy that sampled them."""
        for name in ("sampling_per_token_logps", "old_per_token_logps"):
            if name in output:
                found: Tensor = output[name]
                return found
        prompt, completion = output["prompt_ids"], output["completion_ids"]
        logps: Tensor = super()._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([prompt, completion], dim=1),
            torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
            completion.shape[1],
            batch_size=self.args.per_device_train_batch_size,
        )[0]
        return logps

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
        term = world_model_term(self._scored, inputs["wm_weights"], self.world_model)
        self._scored = torch.empty(0)
        # the weights sum over the generation; the optimiser steps of one pass over it share that sum
        steps = self.args.steps_per_generation / self.args.gradient_accumulation_steps
        term = steps * self.world_model.coef * term
        self._metrics["train"]["wm/term"].append(term.detach().item())
        total: Tensor = loss + term
        return total


def _require_available(settings: WorldModelSettings, temperature: float, processes: int) -> None:
    if not settings.enabled:
        return
    published = WorldModelSettings()
    for name in ("entropy", "horizon", "dedup"):
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


def _require_columns(settings: WorldModelSettings, actions: Any) -> None:
    """Raises ``ValueError`` for a filter that needs columns that only ``TextRollouts`` gives."""
    for name, wanted in (("filter", "warnings"), ("filter_echoes", True)):
        if settings.enabled and getattr(settings, name) == wanted and actions is None:
            raise ValueError(
                f"`world_model.{name}={wanted}` needs the environment's actions and which responses were "
                "malformed, which TextRollouts gives and tools do not; use world_model.filter_patterns."
            )


def content_span(ids: Sequence[int], empty: Sequence[int]) -> Span:
    """The span of the content in ids that include a chat template's wrapping.

    Args:
        empty: the same message without content.
    """
    least = min(len(ids), len(empty))
    before = next((i for i in range(least) if ids[i] != empty[i]), least)
    left = least - before
    after = next((i for i in range(left) if ids[-1 - i] != empty[-1 - i]), left)
    return before, len(ids) - after


def turns_of(
    ids: Sequence[int], mask: Sequence[int], contents: dict[tuple[int, ...], Span]
) -> list[int]:
    """The turns of a completion, from its runs of sampled and of appended tokens.

    Args:
        contents: the span of the content, by all ids of an appended run; a run that is missing in it, as
            with another ``rollout_func``, is all content.
    """
    runs = [(bool(sampled), len(list(run))) for sampled, run in itertools.groupby(mask)]
    turns = [0] * len(ids)
    start = number = 0
    for (sampled, size), (following, appended) in itertools.pairwise(runs):
        middle, end = start + size, start + size + appended
        if sampled and not following:
            number += 1
            first, last = contents.get(tuple(ids[middle:end]), (0, appended))
            turns[start:middle] = [number] * size
            turns[middle + first : middle + last] = [-number] * (last - first)
        start = middle
    return turns


def weigh_tokens(
    turns: Tensor,
    logps: Tensor,
    returns: Tensor,
    groups: Tensor,
    settings: WorldModelSettings,
    max_return: float,
    malformed: Sequence[Sequence[bool]] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The weights of observation tokens, `w_i / |o|` (Eq. 8, 11), over one generation (``plan_update``).

    Args:
        turns: [B, C] turns of each completion (``Turns``).
        logps: [B, C] log-probabilities of the sampled tokens, in nats.
        returns: [B] rewards of the episodes.
        groups: [B] group of each episode, 0..G-1.
        malformed: for each row, whether the response of each transition could not be read; needed with
            ``filter=warnings``.

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
    entropy = torch.zeros(total).index_add_(
        0, number[actions], torch.special.entr(logps[actions].exp())
    ) / torch.bincount(number[actions], minlength=total)
    sums = torch.zeros(int(groups.max()) + 1, dtype=torch.float64).index_add_(0, groups, returns)
    told = None
    if malformed is not None:
        told = torch.tensor([bad for own, k in zip(malformed, counts.tolist(), strict=True)
                             for bad in own[:k]])  # fmt: skip
    plan = plan_update(
        settings,
        entropy,
        groups[row],
        sums / torch.bincount(groups),
        max_return,
        lengths=lengths,
        warnings_only=told,
    )
    weights = torch.zeros(turns.shape)
    weights[observations] = (plan.weights / lengths.clamp(min=1)).float()[number[observations]]
    return weights, plan.metrics(entropy)


def world_model_term(logps: Tensor, weights: Tensor, settings: WorldModelSettings) -> Tensor:
    """``sum_t w_t l(p_t)`` over the tokens of some rows; a scalar with gradient.

    Args:
        logps: [B, C] log-probabilities of the completions' tokens.
        weights: [B, C] from ``weigh_tokens``.
    """
    chosen = weights != 0
    return (weights[chosen] * token_losses(logps[chosen].float(), settings)).sum()
