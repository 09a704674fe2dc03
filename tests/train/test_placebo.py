"""The placebo of the world-model term: other observations of the same length, with the same gradient norm."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_policies import word_policy
from trajectories import made_up

from paw_train.algorithms.experience import prepare
from paw_train.algorithms.placebo import with_placebo
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.losses.objective import ObjectiveSettings
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings import AlgorithmSettings, OptimizerSettings, Settings
from paw_train.settings.world_model import WorldModelSettings

OBJECTIVE = ObjectiveSettings(kl_coef=0.0)


def _row(number: int, observed: list[int]) -> TokenRow:
    row = TokenRow([1, 2])
    row.append([3, 4], ACTION, number, [-0.5, -0.5])
    row.append([2])
    row.append(observed, OBSERVATION, number)
    weights = [0.1 if role == OBSERVATION else 0.0 for role in row.role]
    return replace(row, wm_weight=weights, advantage=[0.0] * len(weights))


def test_observations_go_round_among_those_of_equal_length() -> None:
    rows = [_row(i, [10 + i, 20 + i, 30 + i][: 2 + i % 2]) for i in range(12)]
    rows.append(_row(12, [5, 6, 7, 8]))
    found = with_placebo(rows, seed=3)
    for before, after in zip(rows, found, strict=True):
        assert after.ids == before.ids and after.placebo_ids is not None
        assert after.placebo_ids[:5] == before.ids[:5]
    for size in (2, 3):
        own = [(r.ids[5:], r.placebo_ids[5:]) for r in found if len(r.ids) == 5 + size]  # type: ignore[index]
        assert all(true != other for true, other in own)
        assert Counter(tuple(a) for a, _ in own) == Counter(tuple(b) for _, b in own)
    # nobody else has an observation as long: it keeps it, and nothing is learned from it
    assert found[12].placebo_ids == rows[12].ids and not any(found[12].wm_weight or ())
    assert [r.placebo_ids for r in with_placebo(rows, 3)] == [r.placebo_ids for r in found]
    assert [r.placebo_ids for r in with_placebo(rows, 4)] != [r.placebo_ids for r in found]


def test_dialogues_are_refused() -> None:
    rows = prepare(
        collect(made_up(True)), AlgorithmSettings(), OBJECTIVE, WorldModelSettings(alpha=1.0), 10.0
    ).rows
    with pytest.raises(ValueError, match="env.mode=window"):
        with_placebo(rows, 0)
    with pytest.raises(ValueError, match="world_model.placebo .* env.mode=window"):
        Settings.read({"env": {"mode": "conversation"}, "world_model": {"placebo": True}})


@pytest.mark.parametrize("budget", [1, 10**6])
@pytest.mark.parametrize("loss", ["ce", "cmae"])
def test_the_gradient_is_the_policys_and_the_placebos_at_the_true_terms_norm(
    loss: str, budget: int
) -> None:
    wm = WorldModelSettings(loss=loss, alpha=1.0, coef=3.0, placebo=True)
    policy = word_policy(["red green blue"])
    policy.model.double()
    rows = prepare(collect(made_up(False)), AlgorithmSettings(), OBJECTIVE, wm, 10.0).rows
    rows = with_placebo(rows, 1)
    assert any(row.placebo_ids != row.ids for row in rows)
    parameters = list(policy.model.parameters())

    def gradient(ids: str, which: str) -> Any:
        batch = collate([replace(row, ids=getattr(row, ids)) for row in rows], policy.pad_id)
        logprobs = policy.logprobs(batch)
        if which == "policy":
            ratio = (logprobs - logprobs.detach()).exp()  # the first step: nothing is clipped
            terms = -(ratio * batch.advantage)[batch.action].sum() / batch.action.sum()
        else:
            probability = logprobs.exp()
            each = -logprobs if loss == "ce" else (1 - probability) * (probability <= 0.2)
            terms = 3.0 * (each * batch.wm_weight)[batch.observation].sum()
        found = torch.autograd.grad(terms, parameters, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(parameters, found, strict=True)
            ]
        )

    true, other = gradient("ids", "wm"), gradient("placebo_ids", "wm")
    assert torch.nn.functional.cosine_similarity(true, other, dim=0) < 0.999
    expected = gradient("ids", "policy") + other * (true.norm() / other.norm())
    # ratios are to the rows' own log-probabilities
    logprob = policy.logprobs(collate(rows, policy.pad_id)).detach()
    rows = [
        replace(row, logprob=own[: len(row.ids)].tolist())
        for row, own in zip(rows, logprob, strict=True)
    ]
    optimizer = OptimizerSettings(
        lr=0.0, micro_batch_tokens=budget, max_grad_norm=1e9, measure_gradients=False
    )
    updater = Updater(policy, None, optimizer, OBJECTIVE, wm, 1.0, 1)
    metrics = updater.step(rows, 0, 0)
    found = torch.cat([p.grad.flatten() for p in parameters])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert metrics["grad_norm_wm"] == pytest.approx(float(other.norm()), rel=1e-5)
