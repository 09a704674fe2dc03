"""The loss of a micro-batch: closed forms, and the sums of its parts."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import token_row
from torch import Tensor

from paw_train.algorithms.selection import plan_update
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import (
    clipped_surrogate,
    combined_loss,
    k3_divergence,
    merge_metrics,
)
from paw_train.metrics import METRICS
from paw_train.rollouts.scoring import collate
from paw_train.settings import ObjectiveSettings
from paw_train.settings.world_model import WorldModelSettings

OFF, PAW = WorldModelSettings.preset("off"), WorldModelSettings()
ONE_OF_EACH = (torch.tensor([[0, 1, 0]]), torch.tensor([[0, 0, 1]]))
"""the masks of a transition with one action token and one observation token"""


def batch_of(
    action: Tensor,
    observation: Tensor | None = None,
    advantages: Tensor | None = None,
    old: Tensor | None = None,
    weights: Tensor | None = None,
    ref: Tensor | None = None,
) -> Batch:
    """A batch with one transition a row, from masks, and advantages and weights [B]."""
    mask = action.bool()
    seen = torch.zeros_like(mask) if observation is None else observation.bool()
    old = torch.zeros(mask.shape) if old is None else old
    advantages = torch.zeros(len(mask)) if advantages is None else advantages
    by_token = None
    if weights is not None:
        by_token = torch.where(seen, (weights / seen.sum(1).clamp(min=1))[:, None], 0.0)
    return Batch(
        ids=torch.zeros_like(mask, dtype=torch.long),
        attention_mask=torch.ones_like(mask, dtype=torch.long),
        action=mask,
        observation=seen,
        turn=torch.arange(len(mask))[:, None].expand(mask.shape),
        share=mask / mask.sum(1, keepdim=True).clamp(min=1)
        + seen / seen.sum(1, keepdim=True).clamp(min=1),
        logprob=old,
        advantage=torch.where(mask, advantages[:, None], 0.0),
        wm_weight=by_token,
        ref_logprob=ref,
    )


def made_up(seed: int, count: int, weights: Tensor | None = None) -> tuple[Tensor, Batch]:
    """Log-probabilities and transitions with prompts, actions and observations of random lengths.

    The ratios to the old policy and the gaps to the reference differ by row; some are clipped.
    """
    rng = np.random.default_rng(seed)
    action, seen = torch.zeros(2, count, 14)
    for row in range(count):
        start, end, last = np.cumsum([rng.integers(2, 5), rng.integers(1, 5), rng.integers(0, 6)])
        action[row, start:end], seen[row, end:last] = 1, 1
    logp = torch.tensor(-rng.exponential(size=action.shape), requires_grad=True)
    drift, advantages = torch.tensor(rng.normal(size=(2, count)))
    known = logp.detach()
    old, ref = known + 0.3 * drift[:, None], known - 0.5 * drift[:, None]
    return logp, batch_of(action, seen, advantages, old, weights, ref)


class TestSurrogate:
    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0)), min_size=1, max_size=5),
        st.floats(-3, 3),
    )
    def test_against_numpy(self, pairs, advantage):
        new, old = (np.array(column) for column in zip(*pairs, strict=True))
        r = np.exp(new - old)
        free, held = -r * advantage, -np.clip(r, 0.8, 1.28) * advantage
        logp = torch.tensor(new[None], requires_grad=True)
        got = clipped_surrogate(
            logp, old[None], np.array([advantage]), np.ones((1, len(r))), 0.2, 0.28
        )
        got.loss.sum().backward()
        np.testing.assert_allclose(got.loss[0].detach(), np.maximum(free, held), atol=1e-9)
        assert got.clipped[0].tolist() == (held > free).tolist()
        edge = np.minimum(abs(r - 0.8), abs(r - 1.28)) < 1e-9
        slopes = np.where(held > free, 0.0, free)
        np.testing.assert_allclose(logp.grad[0][~edge], slopes[~edge], atol=1e-9)

    def test_a_clipped_token_has_no_gradient_and_padding_none_either(self):
        logp = torch.tensor([[2.0, 1.0, 5.0], [0.5, 1.0, 5.0]]).log().requires_grad_()
        old = torch.tensor([[0.0, 0.0, math.nan]] * 2)
        got = clipped_surrogate(logp, old, [1.0, -1.0], [[1, 1, 0]] * 2)
        got.loss.sum().backward()
        assert logp.grad.tolist() == [[0.0, -1.0, 0.0], [0.0, 1.0, 0.0]]
        assert got.loss[0, 2] == 0 and got.ratio[0, 2] == 1
        assert got.clipped.tolist() == [[True, False, False]] * 2

    def test_a_ratio_that_would_overflow_stays_finite(self):
        got = clipped_surrogate([[0.0]], [[-1000.0]], [-1.0], [[1]])
        assert torch.isfinite(got.loss).all()


class TestKL:
    def test_against_numpy_and_padding(self):
        new, ref = np.array([[-1.0, -2.0, -0.5]]), np.array([[-1.5, -0.1, math.nan]])
        d = ref - new
        got = k3_divergence(new, ref, [[1, 1, 0]])
        np.testing.assert_allclose(got[0, :2].numpy(), (np.exp(d) - d - 1)[0, :2], rtol=1e-12)
        assert got[0, 2] == 0

    def test_its_mean_under_the_policy_is_the_kl(self):
        generator = torch.Generator().manual_seed(1)
        p, q = torch.randn(2, 50, generator=generator, dtype=torch.float64).log_softmax(-1)
        estimate = (p.exp() * k3_divergence(p[None], q[None], torch.ones(1, 50))[0]).sum()
        torch.testing.assert_close(estimate, (p.exp() * (p - q)).sum())


class TestMicroBatches:
    @settings(max_examples=25)
    @given(st.data())
    def test_micro_batches_of_any_split_add_up(self, data):
        seed = data.draw(st.integers(0, 10**6))
        objective = ObjectiveSettings(
            kl_coef=0.1, aggregation=data.draw(st.sampled_from(["token-mean", "sequence-mean"]))
        )
        world_model = WorldModelSettings(
            loss=data.draw(st.sampled_from(["cmae", "mae", "ce"])), rho=0.4
        )
        plan = plan_update(
            world_model,
            torch.rand(8, generator=torch.Generator().manual_seed(seed)).double(),
            torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=8, max_size=8))),
            torch.tensor([0.0, 4.0, 9.0], dtype=torch.float64),
            10.0,
            torch.ones(8),
            torch.arange(8),
        )
        logp, batch = made_up(seed, 8, plan.weights)
        totals = MiniBatchTotals.count(3, [batch])
        cuts = [0, *sorted(data.draw(st.sets(st.integers(1, 7)))), 8]
        order = data.draw(st.permutations(range(8)))

        def loss(rows):
            part = batch.each(lambda values: values[rows])
            return combined_loss(logp[rows], part, totals, objective, world_model)

        def gradient(outputs):
            return torch.autograd.grad(sum(output.loss for output in outputs), logp)[0]

        whole = loss(list(range(8)))
        parts = [loss(order[a:b]) for a, b in pairwise(cuts)]
        torch.testing.assert_close(gradient(parts), gradient([whole]), rtol=1e-9, atol=1e-11)
        merged, direct = merge_metrics(p.metrics for p in parts), merge_metrics([whole.metrics])
        assert merged == pytest.approx(direct, rel=1e-9, abs=1e-12)

    def test_the_loss_is_equation_11_computed_row_by_row(self):
        objective = ObjectiveSettings(kl_coef=0.1)
        world_model = WorldModelSettings(rho=0.3, coef=2.0)
        weights = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.0, 0.05], dtype=torch.float64)
        logp, batch = made_up(11, 6, weights)
        totals = MiniBatchTotals.count(3, [batch])
        got = combined_loss(logp, batch, totals, objective, world_model)

        policy = kl = wm = tokens = measured = clipped = 0.0
        for row, weight in enumerate(weights.tolist()):
            x, old, ref = (v[row].tolist() for v in (logp, batch.logprob, batch.ref_logprob))
            for t in batch.action[row].nonzero().flatten().tolist():
                ratio, advantage = math.exp(x[t] - old[t]), batch.advantage[row, t].item()
                policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
                clipped += not 0.8 < ratio < 1.2
                kl += math.exp(ref[t] - x[t]) - (ref[t] - x[t]) - 1
                tokens += 1
            p = logp[row][batch.observation[row]].exp().tolist()
            mean = sum(1 - x for x in p if x <= 0.3) / max(len(p), 1)
            wm, measured = wm + weight * mean, measured + (weight != 0) * mean
        assert 0 < clipped < tokens
        assert got.policy_loss.item() == pytest.approx((policy + 0.1 * kl) / tokens, rel=1e-9)
        assert got.wm_loss.item() == pytest.approx(3 * 2.0 * wm, rel=1e-9)
        assert got.loss.item() == pytest.approx(got.policy_loss.item() + got.wm_loss.item())
        assert float(got.metrics["wm_loss"]) == pytest.approx(measured / totals.supervised)


class TestVariants:
    def test_off_is_plain_grpo_bit_for_bit(self):
        logp, batch = made_up(7, 6, torch.full((6,), 0.2, dtype=torch.float64))
        totals = MiniBatchTotals.count(1, [batch])
        plain = ObjectiveSettings(log_observations=True)
        off = combined_loss(logp, batch, totals, plain, OFF)
        on = combined_loss(logp, batch, totals, plain, PAW)
        assert off.wm_loss is None and on.wm_loss.item() > 0
        assert torch.equal(off.loss, on.policy_loss)
        assert "wm_loss" not in off.metrics
        assert off.metrics["obs_nll"] == on.metrics["obs_nll"]

    def test_echo_is_the_plain_mean_of_cross_entropies(self):
        # Groups of equal size: Eq. 11 with lambda = 1 and all selected is the mean over rows.
        echo, zeros = WorldModelSettings.preset("echo"), torch.zeros(6).double()
        plan = plan_update(
            echo, zeros, torch.arange(6) % 3, zeros[:3], 10.0, torch.ones(6), torch.arange(6)
        )
        logp, batch = made_up(4, 6, plan.weights)
        totals = MiniBatchTotals.count(1, [batch])
        got = combined_loss(logp, batch, totals, ObjectiveSettings(), echo)
        by_row = [-x[seen].mean() for x, seen in zip(logp, batch.observation, strict=True)]
        torch.testing.assert_close(got.wm_loss, torch.stack(by_row).mean())

    def test_two_transitions_in_a_row_are_two_in_a_mean_over_sequences(self):
        batch = batch_of(torch.tensor([[0, 1, 1, 1]]))
        batch.share = torch.tensor([[0.0, 0.5, 0.5, 1.0]])
        batch.advantage = torch.tensor([[0.0, 1.0, 1.0, -4.0]])
        totals = MiniBatchTotals.count(1, [batch])
        objective = ObjectiveSettings(kl_coef=0.0, aggregation="sequence-mean")
        loss = combined_loss(torch.zeros(1, 4), batch, totals, objective, OFF).loss
        assert totals.sequences == 2 and loss.item() == pytest.approx(1.5)

    def test_an_unselected_row_cannot_spoil_the_loss(self):
        # An impossible token (log-probability -inf) in a row with weight 0.
        logp = torch.tensor([[0.0, -0.5, -1.0], [0.0, -0.5, -math.inf]], requires_grad=True)
        masks = [mask.repeat(2, 1) for mask in ONE_OF_EACH]
        batch = batch_of(*masks, old=logp.detach(), weights=torch.tensor([1.0, 0.0]))
        objective = ObjectiveSettings(kl_coef=0.0)
        totals = MiniBatchTotals.count(1, [batch])
        out = combined_loss(logp, batch, totals, objective, WorldModelSettings.preset("echo"))
        out.loss.backward()
        assert out.loss.item() == 1.0
        assert logp.grad.tolist() == [[0.0, 0.0, -1.0], [0.0, 0.0, 0.0]]

    @pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
    def test_without_the_policy_term_only_the_world_model_learns(self, aggregation):
        logp = torch.tensor([[0.0, -0.5, -1.0]], requires_grad=True)
        batch = batch_of(*ONE_OF_EACH, torch.tensor([3.0]), logp.detach(), torch.tensor([1.0]))
        echo = WorldModelSettings.preset("echo", coef=0.05)
        objective = ObjectiveSettings(
            policy_coef=0.0, kl_coef=0.0, entropy_coef=0.5, aggregation=aggregation,
            log_observations=True,
        )  # fmt: skip
        totals = MiniBatchTotals.count(1, [batch])
        out = combined_loss(logp, batch, totals, objective, echo, torch.tensor([[9.0, 2.0, 9.0]]))
        out.loss.backward()
        assert logp.grad.tolist() == [pytest.approx([0.0, 0.0, -0.05])]
        assert out.policy_loss.item() == -1.0  # the bonus for entropy
        # of one token each, and measured all the same
        one = dict.fromkeys(["ratio_mean", "obs_nll", "wm_loss", "clipped_share"], 1.0)
        assert out.metrics == {**out.metrics, **one, "policy_loss": -3.0, "entropy": 2.0}


class TestMetrics:
    def test_every_metric_has_a_title_and_a_meaning(self):
        assert [m.name for m in METRICS.values() if not m.meaning or not m.title] == []

    def test_by_hand(self):
        logp = torch.tensor([[0.1, 0.5, 0.9, 0.5], [0.5, 0.25, 0.1, 0.1]]).log()
        batch = batch_of(
            torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0]]),
            torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]),
            torch.tensor([1.0, 1.0]),
            torch.full((2, 4), 0.25).log(),
            torch.tensor([0.5, 0.0]),
            logp,
        )
        totals = MiniBatchTotals.count(1, [batch])
        assert totals == MiniBatchTotals(1, 2, 2, 4, 1, 2)
        objective = ObjectiveSettings(log_observations=True)
        world_model = WorldModelSettings(rho=0.5)
        got = merge_metrics([combined_loss(logp, batch, totals, objective, world_model).metrics])
        in_reward = objective.replace(kl_in="reward")
        assert "kl" not in combined_loss(logp, batch, totals, in_reward, world_model).metrics
        assert got == pytest.approx(
            {
                "policy_loss": -(1.2 + 1.0) / 2,
                "kl": 0.0,
                "clip_fraction": 0.5,
                "ratio_mean": 1.5,
                "ratio_max": 2.0,
                "ratio_min": 1.0,
                "obs_nll": -(math.log(0.9) + math.log(0.5) + 2 * math.log(0.1)) / 4,
                "wm_loss": 0.25,
                "wm_term": 0.125,
                "clipped_share": 0.5,
            },
            abs=1e-6,
        )


class TestErrors:
    def test_a_role_on_the_first_token_is_refused(self):
        with pytest.raises(ValueError, match="first token"):
            collate([token_row([1, 2], ((0, 1), (1, 2)))], 0)

    def test_what_the_settings_need_must_be_there(self):
        logp = torch.zeros(1, 3)
        batch = batch_of(*ONE_OF_EACH)
        totals = MiniBatchTotals.count(1, [batch])
        plain = ObjectiveSettings(kl_coef=0.0)
        for name, some, chosen, world_model in (
            ("ref_logprob", batch, ObjectiveSettings(), PAW),
            ("wm_weight", batch, plain, PAW),
            ("entropy", batch, plain.replace(entropy_coef=0.1), OFF),
            ("advantage", replace(batch, advantage=None), plain, OFF),
        ):
            with pytest.raises(ValueError, match=f"no `{name}`, which .* needs"):
                combined_loss(logp, some, totals, chosen, world_model)
