"""TRL's ``GRPOTrainer``, with our world-model term, behind ``protocol.Trainer``.

The recorded episodes reach TRL as those of ``TextRollouts`` do; padding, advantages, reference and old
log-probabilities are TRL's own, the last computed with the weights that sampled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import datasets
import torch
import trl
from torch import Tensor
from trl.trainer import grpo_trainer

from paw_train.conformance.engines.layout import (
    max_return,
    settings_of,
    token_rows,
    trajectories,
)
from paw_train.conformance.protocol import Outcome, Planting, Row
from paw_train.conformance.recording import Objective, Recording, Role
from paw_train.integrations.trl import PaWTrainer, columns, episode_reward
from paw_train.policies.local.loading import no_progress_bars


class TRLTrainer:
    """``PaWTrainer`` of ``paw_train.integrations.trl``."""

    objectives: Sequence[str] = ("policy", "world_model")

    def token_batch(self, recording: Recording, objective: Objective) -> list[Row]:
        """The rows from the columns that a ``rollout_func`` returns."""
        found, number = [], 0
        for trajectory in trajectories(recording, objective):
            column = columns(trajectory)
            found.append(_row(column, number))
            number += max(column["turns"])
        return found

    def advantages(self, recording: Recording, objective: Objective) -> Tensor:
        rows = self.token_batch(recording, objective)
        with _generation(recording, objective, rows, recording.group_size) as (_, batch):
            by_row: Tensor = batch["advantages"]
        turns = torch.tensor([len(episode.turns) for episode in recording.episodes])
        return by_row.repeat_interleave(turns)

    def world_model_weights(self, recording: Recording, objective: Objective) -> Tensor:
        if objective.world_model is None:
            return torch.zeros(len(recording.turns))
        rows = self.token_batch(recording, objective)
        with _generation(recording, objective, rows, recording.group_size) as (_, batch):
            by_token: Tensor = batch["wm_weights"]
        found = torch.zeros(len(recording.turns))
        for row, own in zip(rows, by_token, strict=True):
            start = row.roles.index("action")
            for number, weight in zip(row.transitions[start:], own.tolist(), strict=False):
                found[number] += weight  # 0 outside observations
        return found

    def loss_and_gradients(
        self,
        recording: Recording,
        rows: Sequence[Row],
        advantages: Tensor,
        weights: Tensor,
        objective: Objective,
    ) -> Outcome:
        """The result of ``_compute_loss``, one micro-batch at a time."""
        with _generation(recording, objective, rows, len(rows)) as (trainer, batch):
            known, shape = token_rows(rows, advantages, weights), batch["completion_ids"].shape
            batch["advantages"] = _padded(rows, [row.advantage or [] for row in known], shape)
            if "wm_weights" in batch:
                batch["wm_weights"] = _padded(rows, [row.wm_weight or [] for row in known], shape)
            trainer.model.load_state_dict(recording.weights["policy"], strict=False)
            total = 0.0
            for part in _micro_batches(batch, trainer.args.per_device_train_batch_size):
                loss = trainer._compute_loss(trainer.model, part)
                loss.backward()
                total += loss.item()
            world_model = sum(trainer._metrics["train"].get("wm/term", []))
            gradients = {
                name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None
            }
        return Outcome(total - world_model, world_model, gradients)

    def plant(self, fault: str) -> Planting:
        places: dict[str, tuple[Any, str, Any]] = {
            "clip_on_wrong_side": (torch, "min", _larger_of_both(torch.min)),
            "population_deviation": (grpo_trainer, "nanstd", _population_deviation),
            "k1_for_k3": (PaWTrainer, "_compute_loss", _with_k1(PaWTrainer._compute_loss)),
            "padding_in_mean": (
                PaWTrainer,
                "_compute_loss",
                _counting_padding(PaWTrainer._compute_loss),
            ),
        }
        return patch.object(*places[fault]) if fault in places else None


# --- a generation of the recorded episodes ------------------------------------------------------------


@contextmanager
def _generation(
    recording: Recording, objective: Objective, rows: Sequence[Row], group_size: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A trainer with the sampler's weights, and the batch that it makes from the rows."""
    no_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        # TRL loads the reference from the path in the model's config
        recording.model("sampler").save_pretrained(folder)
        model = recording.model("sampler")
        model.config._name_or_path = folder
        trainer = _trainer(recording, objective, model, rows, group_size, folder)
        trainer.ref_model.load_state_dict(recording.weights["reference"], strict=False)
        for change in recording.changes:
            change(trainer.ref_model)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        prompts = [{"prompt": [{"role": "user", "content": str(n)}]} for n in range(len(rows))]
        yield trainer, trainer._generate_and_score_completions(prompts)


def _trainer(
    recording: Recording,
    objective: Objective,
    model: Any,
    rows: Sequence[Row],
    group_size: int,
    folder: str,
) -> Any:
    parts = next((p for p in range(2, len(rows)) if len(rows) % p == 0), 1)
    returns = {e.turns[0].number: e.total_reward for e in recording.episodes}
    given = _columns_of(rows, returns)
    config = trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=len(rows) // parts,
        gradient_accumulation_steps=parts,
        num_iterations=2,  # so that old log-probabilities are those of the generation
        num_generations=group_size,
        temperature=objective.temperature,
        epsilon=objective.clip,
        beta=objective.kl_coef,
        use_bias_correction_kl=False,  # on by default: k3 times the probability ratio
        pad_to_multiple_of=64,  # the recorded prompts are equally long: nothing else pads on the left
        loss_type={"token-mean": "dapo", "sequence-mean": "grpo"}[objective.aggregation],
        scale_rewards="group",
        report_to=[],
        seed=0,
    )
    return PaWTrainer(
        model,
        reward_funcs=episode_reward,
        rollout_func=lambda prompts, trainer: given,
        train_dataset=datasets.Dataset.from_list([{"prompt": "episode"}] * len(rows)),
        processing_class=recording.tokenizer,
        args=config,
        world_model=settings_of(recording, objective).world_model,
        max_return=max_return(objective),
    )


def _columns_of(rows: Sequence[Row], returns: dict[int, float]) -> dict[str, list[Any]]:
    """Rows of the protocol in the form that a ``rollout_func`` returns."""
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "turns")
    found: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        start = row.roles.index("action")
        values = (
            row.ids[:start],
            row.ids[start:],
            row.logprobs[start:],
            [int(role == "action") for role in row.roles[start:]],
            returns.get(row.transitions[start], 0.0),
            _turns(row)[start:],
        )
        for column, value in zip(found.values(), values, strict=True):
            column.append(value)
    return found


def _turns(row: Row) -> list[int]:
    """[T] for a row: k in its k-th action, -k in the observation of that transition, else 0."""
    order = {n: k for k, n in enumerate(sorted({-1, *row.transitions}))}  # prompts have 0
    signs = {"action": 1, "env_output": -1, "prompt": 0}
    pairs = zip(row.transitions, row.roles, strict=True)
    return [signs[role] * order[number] for number, role in pairs]


def _row(column: dict[str, Any], number: int) -> Row:
    """A row of the protocol from an episode's columns, its transitions numbered from ``number``."""
    start, ids = len(column["prompt_ids"]), [*column["prompt_ids"], *column["completion_ids"]]
    roles: list[Role] = ["prompt"] * start
    roles += ["action" if sampled else "prompt" for sampled in column["env_mask"]]
    transitions = [-1] * len(ids)
    for place, turn in enumerate(column["turns"], start):
        if turn:
            transitions[place] = number + abs(turn) - 1
            roles[place] = "action" if turn > 0 else "env_output"
    return Row(ids, roles, transitions, [0.0] * start + column["logprobs"])


def _padded(rows: Sequence[Row], values: Sequence[Sequence[float]], shape: torch.Size) -> Tensor:
    """[B, C] values of the completions, from those of whole rows."""
    found = torch.zeros(shape)
    for b, (row, own) in enumerate(zip(rows, values, strict=True)):
        start = row.roles.index("action")
        found[b, : len(own) - start] = torch.tensor(own[start:])
    return found


def _micro_batches(batch: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    for start in range(0, len(batch["completion_ids"]), size):
        yield {
            name: value[start : start + size] if isinstance(value, Tensor) and value.ndim else value
            for name, value in batch.items()
        }


# --- faults in TRL's own code ---------------------------------------------------------------------------


def _larger_of_both(smaller: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **kwargs: Any) -> Any:
        both = len(args) == 2 and all(isinstance(value, Tensor) for value in args)
        return torch.maximum(*args) if both else smaller(*args, **kwargs)

    return changed


def _population_deviation(values: Tensor, dim: int | None = None) -> Tensor:
    return values.std(dim=dim, correction=0)


def _with_k1(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The loss with k1 in place of k3."""

    def changed(trainer: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = compute(trainer, model, inputs)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        difference = inputs["ref_per_token_logps"] - trainer._scored
        k3 = difference.exp() - difference - 1
        change = ((-difference - k3) * mask).sum() / inputs["num_items_in_batch"]
        total: Tensor = loss + trainer.beta * change
        return total

    return changed


def _counting_padding(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def changed(trainer: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
        tokens = inputs["completion_ids"].numel() * trainer.args.gradient_accumulation_steps
        return compute(trainer, model, {**inputs, "num_items_in_batch": torch.tensor(tokens)})

    return changed
