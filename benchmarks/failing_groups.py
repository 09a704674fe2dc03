"""The gradient of rollout groups in which nobody succeeds, beside the others', by how advantages are scaled.

One update is sampled from a checkpoint, once. For each value of ``algorithm.normalize``: the norm
of the gradient that each kind of group adds to the update's, in one optimizer step. For `docs/method.md`:

    python benchmarks/failing_groups.py RUN/checkpoints/warm env.invalid_when=rejected \
        env.invalid_penalty=-0.5 rollout.max_response_tokens=11
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from paw_train import load_recipe
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import Pool, collect
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import combined_loss
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.scoring import collated
from paw_train.settings import Settings
from paw_train.training.environments import TrainingEnvironments, max_returns, outcome_metrics


def gradient_norm(
    policy: LocalPolicy, settings: Settings, batches: Sequence[Batch], totals: MiniBatchTotals
) -> float:
    """The norm of the gradient that some rows add to the update's."""
    policy.model.zero_grad()
    for batch in batches:
        logprobs = policy.logprobs(batch, settings.rollout.temperature)
        combined_loss(
            logprobs, batch, totals, settings.objective, settings.world_model
        ).loss.backward()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


def by_success(pool: Pool) -> dict[str, set[int]]:
    """Groups of the pool by how many of their episodes succeed: none, some, all."""
    wins: dict[int, list[bool]] = {}
    for group, trajectory in zip(pool.group.tolist(), pool.episodes, strict=True):
        wins.setdefault(group, []).append(trajectory.episode.success)
    return {
        "none": {group for group, won in wins.items() if not any(won)},
        "some": {group for group, won in wins.items() if any(won) and not all(won)},
        "all": {group for group, won in wins.items() if all(won)},
    }


def main() -> None:
    """Prints one line for each way to scale and kind of group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    base = [f"model.path={given.checkpoint}", "algorithm.name=grpo", "rollout.groups=24"]
    settings = load_recipe("embedded", *base, "world_model.enabled=false", *given.overrides)
    policy = LocalPolicy.load(given.checkpoint, "cpu", settings.model.dtype)
    environments = TrainingEnvironments(settings)
    sampled, _ = environments.sample(
        policy, 0, torch.Generator().manual_seed(settings.seed), lambda *_: None
    )
    pool = collect(sampled)
    found = outcome_metrics(sampled)
    kinds = by_success(pool)
    print(
        f"success {found['success_rate']:.3f}, refused {found['refused_rate']:.3f}; groups in which"
    )
    print(", ".join(f"{name} succeed {len(groups)}" for name, groups in kinds.items()))
    for normalize in (True, "batch", False):
        algorithm = settings.algorithm.replace(normalize=normalize)
        prepared = prepare(
            pool, algorithm, settings.objective, settings.world_model, max_returns(settings)
        )
        group_of = pool.group[pool.episode].tolist()
        parts = {
            name: collated(
                [row for row in prepared.rows if group_of[max(row.turn)] in groups],
                policy.pad_id,
                settings.optimizer.micro_batch_tokens,
            )
            for name, groups in {**kinds, "every": set(group_of)}.items()
            if groups
        }
        totals = MiniBatchTotals.count(1, parts["every"])
        norms = {
            name: gradient_norm(policy, settings, part, totals) for name, part in parts.items()
        }
        print(f"normalize={normalize}:", ", ".join(f"{k} {v:.5f}" for k, v in norms.items()))


if __name__ == "__main__":
    main()
