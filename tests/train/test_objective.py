"""The loss of a micro-batch: closed forms, and gradients through a real (tiny) language model."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import token_row
from torch import Tensor

from paw_train.algorithms.paw import wm_weights
from paw_train.algorithms.selection import plan_update
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import (
    ObjectiveSettings,
    clipped_surrogate,
    combined_loss,
    k3_divergence,
    merge_metrics,
    truncated_importance,
)
from paw_train.rollouts.scoring import collate
from paw_train.settings import Settings
from paw_train.settings.world_model import WorldModelSettings

VOCABULARY = 23
OFF, PAW = WorldModelSettings.preset("off"), WorldModelSettings()


def random_logits(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def batch_of(
    action: Tensor,
    observation: Tensor | None = None,
    advantages: Tensor | None = None,
    old: Tensor | None = None,
    weights: Tensor | None = None,
    ref: Tensor | None = None,
) -> Batch:
    """A batch with one transition a row, from masks, and advantages and weights [B] of the transitions."""
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


class TestSurrogate:
    def test_by_hand(self):
        # ratios 1, 1.5, 0.5 with a positive and a negative advantage
        ratios = torch.tensor([[1.0, 1.5, 0.5]]).repeat(2, 1)
        ones = torch.ones(2, 3)
        got = clipped_surrogate(ratios.log(), 0 * ones, [2.0, -2.0], ones, clip_high=0.3)
        assert got.loss[0].tolist() == pytest.approx([-2.0, -2.6, -1.0])
        assert got.loss[1].tolist() == pytest.approx([2.0, 3.0, 1.6])
        assert got.clipped.tolist() == [[False, True, False], [False, False, True]]

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0)), min_size=1, max_size=5),
        st.floats(-3, 3),
    )
    def test_against_numpy(self, pairs, advantage):
        new, old = (np.array(column) for column in zip(*pairs, strict=True))
        r = np.exp(new - old)
        expected = -np.minimum(r * advantage, np.clip(r, 0.8, 1.28) * advantage)
        got = clipped_surrogate(
            new[None], old[None], np.array([advantage]), np.ones((1, len(r))), 0.2, 0.28
        )
        np.testing.assert_allclose(got.loss[0].numpy(), expected, atol=1e-9)

    def test_a_clipped_token_has_no_gradient_and_padding_none_either(self):
        logp = torch.tensor([[math.log(2.0), 0.0, 5.0]], requires_grad=True)
        old = torch.tensor([[0.0, 0.0, math.nan]])
        got = clipped_surrogate(logp, old, [1.0], [[1, 1, 0]])
        got.loss.sum().backward()
        assert logp.grad.tolist() == [[0.0, -1.0, 0.0]]
        assert got.loss[0, 2] == 0 and got.ratio[0, 2] == 1 and not got.clipped[0, 1:].any()

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
        p, q = random_logits(50, seed=1).log_softmax(-1), random_logits(50, seed=2).log_softmax(-1)
        estimate = (p.exp() * k3_divergence(p[None], q[None], torch.ones(1, 50))[0]).sum()
        torch.testing.assert_close(estimate, (p.exp() * (p - q)).sum())


# -- a tiny language model and an update ---------------------------------------------------------


@dataclass
class Row:
    """One transition: prompt + action + observation as token ids, and what the update knows."""

    prompt: list[int]
    action: list[int]
    observation: list[int]
    advantage: float
    group: int
    drift: float
    """how far old and reference log-probabilities are from the model's own"""


@dataclass
class Padded:
    ids: Tensor
    attention: Tensor
    action: Tensor
    observation: Tensor


@pytest.fixture(scope="module")
def model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        attn_implementation="sdpa",  # eager: NaN in float64 under left padding
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).double().eval()


def make_rows(seed: int, count: int, groups: int = 3) -> list[Row]:
    rng = np.random.default_rng(seed)

    def words(low: int, high: int) -> list[int]:
        return rng.integers(3, VOCABULARY, rng.integers(low, high)).tolist()

    return [
        Row(
            words(2, 6),
            words(1, 5),
            words(0, 6),
            rng.normal(),
            int(rng.integers(groups)),
            rng.normal(),
        )
        for _ in range(count)
    ]


def pad(rows: list[Row], left: bool) -> Padded:
    sequences = [r.prompt + r.action + r.observation for r in rows]
    width = max(len(s) for s in sequences)
    tensors = torch.zeros(4, len(rows), width, dtype=torch.long)
    for i, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
        start = width - len(sequence) if left else 0
        middle = start + len(row.prompt)
        end = middle + len(row.action)
        tensors[0, i, start : start + len(sequence)] = torch.tensor(sequence)
        tensors[1, i, start : start + len(sequence)] = 1
        tensors[2, i, middle:end] = 1
        tensors[3, i, end : start + len(sequence)] = 1
    return Padded(*tensors)


def model_logprobs(model, padded: Padded) -> Tensor:
    positions = (padded.attention.cumsum(-1) - 1).clamp(min=0)
    logits = model(padded.ids, attention_mask=padded.attention, position_ids=positions).logits
    predicted = logits[:, :-1].log_softmax(-1).gather(-1, padded.ids[:, 1:, None]).squeeze(-1)
    return F.pad(predicted, (1, 0)) * (padded.action + padded.observation)


def micro_batch(rows, weights, left, logp=None) -> Batch:
    padded = pad(rows, left)
    logp = torch.zeros(padded.ids.shape).double() if logp is None else logp.detach()
    drift = torch.tensor([row.drift for row in rows], dtype=torch.float64)[:, None]
    return batch_of(
        padded.action,
        padded.observation,
        torch.tensor([row.advantage for row in rows], dtype=torch.float64),
        logp + 0.3 * drift,
        weights,
        logp - 0.5 * drift,
    )


def micro_loss(model, rows, weights, totals, objective, world_model, left):
    logp = model_logprobs(model, pad(rows, left))
    batch = micro_batch(rows, weights, left, logp)
    return combined_loss(logp, batch, totals, objective, world_model)


def totals_of(rows, weights, minibatches=1) -> MiniBatchTotals:
    return MiniBatchTotals.count(minibatches, [micro_batch(rows, weights, left=False)])


def gradient(model, losses) -> Tensor:
    model.zero_grad(set_to_none=True)
    for loss in losses:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class TestMicroBatches:
    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def test_gradients_of_any_split_add_up(self, model, data):
        seed = data.draw(st.integers(0, 10**6))
        rows = make_rows(seed, 8)
        objective = ObjectiveSettings(
            kl_coef=0.1, aggregation=data.draw(st.sampled_from(["token-mean", "sequence-mean"]))
        )
        world_model = WorldModelSettings(
            loss=data.draw(st.sampled_from(["cmae", "mae", "ce"])), rho=0.4
        )
        plan = plan_update(
            world_model,
            random_logits(8, seed=seed).exp(),
            [row.group for row in rows],
            torch.tensor([0.0, 4.0, 9.0], dtype=torch.float64),
            10.0,
        )
        totals = totals_of(rows, plan.weights, minibatches=3)
        cuts = [0, *sorted(data.draw(st.sets(st.integers(1, 7)))), 8]
        order = data.draw(st.permutations(range(8)))
        sides = data.draw(st.lists(st.booleans(), min_size=8, max_size=8))

        def loss(some, left):
            own, weights = [rows[i] for i in some], plan.weights[list(some)]
            return micro_loss(model, own, weights, totals, objective, world_model, left)

        whole = loss(range(8), False)
        expected = gradient(model, [whole.loss])
        parts = [loss(order[a:b], left) for a, b, left in zip(cuts, cuts[1:], sides, strict=False)]
        torch.testing.assert_close(
            gradient(model, [p.loss for p in parts]), expected, rtol=1e-9, atol=1e-11
        )
        merged, direct = merge_metrics(p.metrics for p in parts), merge_metrics([whole.metrics])
        assert merged == pytest.approx(direct, rel=1e-9, abs=1e-12)

    def test_mini_batches_average_to_the_update(self, model):
        rows, cuts = make_rows(5, 12), (0, 1, 6, 12)  # of unequal size: dialogues differ in turns
        selected, groups = [i % 4 != 0 for i in range(12)], [row.group for row in rows]
        weights = wm_weights(selected, groups, torch.tensor([0.5, 1.0, 0.7]).double())

        def loss(a, b, minibatches):
            totals = totals_of(rows[a:b], weights[a:b], minibatches=minibatches)
            own = (rows[a:b], weights[a:b], totals, ObjectiveSettings(), PAW)
            return micro_loss(model, *own, left=True).wm_loss

        pieces = [loss(a, b, 3) for a, b in pairwise(cuts)]
        torch.testing.assert_close(torch.stack(pieces).mean(), loss(0, 12, 1))

    def test_the_loss_is_equation_11_computed_row_by_row(self, model):
        rows = make_rows(11, 6)
        objective = ObjectiveSettings(kl_coef=0.1)
        world_model = WorldModelSettings(rho=0.3, coef=2.0)
        weights = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.0, 0.05], dtype=torch.float64)
        got = micro_loss(
            model, rows, weights, totals_of(rows, weights, 3), objective, world_model, left=True
        )

        policy = kl = wm = tokens = measured = 0.0
        for row, weight in zip(rows, weights.tolist(), strict=True):
            ids = torch.tensor([row.prompt + row.action + row.observation])
            logp = model(ids).logits.log_softmax(-1)[0].detach().numpy()
            start, end = len(row.prompt), len(row.prompt) + len(row.action)
            ratio = math.exp(-0.3 * row.drift)
            term = -min(ratio * row.advantage, min(max(ratio, 0.8), 1.2) * row.advantage)
            policy += term * len(row.action)
            gap = -0.5 * row.drift
            kl += (math.exp(gap) - gap - 1) * len(row.action)
            tokens += end - start
            p = [math.exp(logp[t - 1, ids[0, t]]) for t in range(end, ids.shape[1])]
            wm += weight * sum(1 - x for x in p if x <= 0.3) / max(len(p), 1)
            measured += (weight != 0) * sum(1 - x for x in p if x <= 0.3) / max(len(p), 1)
        assert got.policy_loss.item() == pytest.approx((policy + 0.1 * kl) / tokens, rel=1e-9)
        assert got.wm_loss.item() == pytest.approx(3 * 2.0 * wm, rel=1e-9)
        assert got.loss.item() == pytest.approx(got.policy_loss.item() + got.wm_loss.item())
        assert float(got.metrics["wm_loss"]) == pytest.approx(measured / sum(weights != 0).item())

    @pytest.mark.parametrize("left", [False, True])
    def test_appended_observations_leave_the_policy_term_alone(self, model, left):
        rows = make_rows(3, 6)
        bare = [replace(row, observation=[]) for row in rows]
        logps, gradients = [], []
        for some in (rows, bare):
            padded = pad(some, left)
            logps.append(model_logprobs(model, padded)[padded.action.bool()])
            got = micro_loss(
                model, some, None, totals_of(some, None), ObjectiveSettings(), OFF, left
            )
            gradients.append(gradient(model, [got.loss]))
        torch.testing.assert_close(*logps, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


class TestVariants:
    def test_off_is_plain_grpo_bit_for_bit(self, model):
        rows = make_rows(7, 6)
        weights = torch.full((6,), 0.2, dtype=torch.float64)
        totals = totals_of(rows, weights)
        plain = ObjectiveSettings(log_observations=True)
        off = micro_loss(model, rows, weights, totals, plain, OFF, left=False)
        on = micro_loss(model, rows, weights, totals, plain, PAW, left=False)
        assert off.wm_loss is None and on.wm_loss.item() > 0
        assert torch.equal(off.loss, on.policy_loss)
        assert "wm_loss" not in off.metrics
        assert off.metrics["obs_nll"] == on.metrics["obs_nll"]

        padded = pad(rows, left=False)
        logp = model_logprobs(model, padded)
        mask, drift = padded.action, torch.tensor([[r.drift] for r in rows], dtype=torch.float64)
        advantage = torch.tensor([[r.advantage] for r in rows], dtype=torch.float64)
        ratio = (-0.3 * drift).exp().expand_as(logp)
        surrogate = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        kl = (-0.5 * drift).exp() + 0.5 * drift - 1
        expected = ((surrogate + 0.01 * kl) * mask).sum() / mask.sum()
        torch.testing.assert_close(off.loss, expected)

    def test_echo_is_the_plain_mean_of_cross_entropies(self, model):
        # Groups of equal size: Eq. 11 with lambda = 1 and all selected is the mean over rows.
        rows = [replace(row, group=i % 3) for i, row in enumerate(make_rows(13, 6))]
        rows = [replace(row, observation=row.observation or [4]) for row in rows]
        echo = WorldModelSettings.preset("echo")
        plan = plan_update(
            echo, torch.zeros(6).double(), [r.group for r in rows], torch.zeros(3).double(), 10.0
        )
        objective = ObjectiveSettings()
        got = micro_loss(
            model, rows, plan.weights, totals_of(rows, plan.weights), objective, echo, left=False
        )
        per_row = []
        for row in rows:
            ids = torch.tensor([row.prompt + row.action + row.observation])
            start = len(row.prompt) + len(row.action)
            per_row.append(F.cross_entropy(model(ids).logits[0, start - 1 : -1], ids[0, start:]))
        torch.testing.assert_close(got.wm_loss, torch.stack(per_row).mean())

    def test_two_transitions_in_a_row_are_two_in_a_mean_over_sequences(self):
        batch = batch_of(torch.tensor([[0, 1, 1, 1]]))
        batch.share = torch.tensor([[0.0, 0.5, 0.5, 1.0]])
        batch.advantage = torch.tensor([[0.0, 1.0, 1.0, -4.0]])
        totals = MiniBatchTotals.count(1, [batch])
        objective = ObjectiveSettings(kl_coef=0.0, aggregation="sequence-mean")
        loss = combined_loss(torch.zeros(1, 4), batch, totals, objective, OFF).loss
        assert totals.sequences == 2 and loss.item() == pytest.approx(1.5)

    @pytest.mark.parametrize("preset", ["paw", "echo"])
    def test_observations_take_no_importance_ratio(self, preset):
        # Whatever the policy that sampled the actions was like, the world-model term is the same;
        # the policy term is not.
        def gradients(old: Tensor, importance: float) -> tuple[Tensor, Tensor]:
            logp = torch.tensor([[0.0, -1.0, -2.0], [0.0, -1.05, -3.0]], requires_grad=True)
            action, seen = torch.tensor([[0, 1, 0]] * 2), torch.tensor([[0, 0, 1]] * 2)
            advantages = importance * torch.tensor([1.0, -1.0])
            batch = batch_of(action, seen, advantages, old, torch.ones(2))
            totals = MiniBatchTotals.count(1, [batch])
            objective = ObjectiveSettings(kl_coef=0.0)
            got = combined_loss(logp, batch, totals, objective, WorldModelSettings.preset(preset))
            parts = [
                torch.autograd.grad(loss, logp, retain_graph=True)[0]
                for loss in (got.policy_loss, got.wm_loss)
            ]
            return parts[0], parts[1]

        old = torch.full((2, 3), -1.0)
        now = gradients(old, 1.0)
        for stale in (gradients(old + 0.1, 1.0), gradients(old, 1.7)):
            assert torch.equal(now[1], stale[1])
            assert not torch.equal(now[0], stale[0])
        assert now[1][:, 2].abs().min() > 0
        assert now[1][:, :2].abs().max() == 0

    def test_an_unselected_row_cannot_spoil_the_loss(self):
        # An impossible token (log-probability -inf) in a row with weight 0.
        logp = torch.tensor([[0.0, -0.5, -1.0], [0.0, -0.5, -math.inf]], requires_grad=True)
        action, seen = torch.tensor([[0, 1, 0]] * 2), torch.tensor([[0, 0, 1]] * 2)
        batch = batch_of(action, seen, old=logp.detach(), weights=torch.tensor([1.0, 0.0]))
        objective = ObjectiveSettings(kl_coef=0.0)
        world_model = WorldModelSettings.preset("echo")
        totals = MiniBatchTotals.count(1, [batch])
        out = combined_loss(logp, batch, totals, objective, world_model)
        out.loss.backward()
        assert out.loss.item() == 1.0
        assert logp.grad.tolist() == [[0.0, 0.0, -1.0], [0.0, 0.0, 0.0]]

    @pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
    def test_without_the_policy_term_only_the_world_model_learns(self, aggregation):
        logp = torch.tensor([[0.0, -0.5, -1.0]], requires_grad=True)
        action, seen = torch.tensor([[0, 1, 0]]), torch.tensor([[0, 0, 1]])
        batch = batch_of(action, seen, torch.tensor([3.0]), logp.detach(), torch.tensor([1.0]))
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
        with pytest.raises(ValueError, match="nothing is learned"):
            Settings.read({"objective": {"policy_coef": 0}, "world_model": {"enabled": False}})


class TestImportance:
    """Tokens that an older policy sampled: the decoupled objective with truncated importance weights."""

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.tuples(*[st.floats(-4, 0)] * 3), min_size=1, max_size=6),
        st.floats(-3, 3),
        st.floats(1, 3),
    )
    def test_loss_and_gradient_against_numpy(self, tokens, advantage, cap):
        new, old, sampled = (np.array([0.0, *column]) for column in zip(*tokens, strict=True))
        mask = torch.ones(1, len(new))
        mask[:, 0] = 0
        weights = truncated_importance(old[None], sampled[None], mask, cap)
        logp = torch.tensor(new[None], requires_grad=True)
        batch = batch_of(
            mask, None, torch.tensor([advantage], dtype=torch.float64), torch.tensor(old[None])
        )
        batch.advantage = batch.advantage * weights
        totals = MiniBatchTotals.count(1, [batch])
        out = combined_loss(logp, batch, totals, ObjectiveSettings(kl_coef=0.0), OFF)
        out.loss.backward()
        # token by token: - min(p/q, cap) min(r A, clip(r) A), r = pi/p, p the old policy, q the sampling one
        losses, slopes = [], []
        for x, p, q in tokens:
            weight, r = min(math.exp(p - q), cap), math.exp(x - p)
            losses.append(-weight * min(r * advantage, min(max(r, 0.8), 1.2) * advantage))
            held = (advantage > 0 and r > 1.2) or (advantage < 0 and r < 0.8)
            slopes.append(0.0 if held else -weight * r * advantage)
        assert out.loss.item() == pytest.approx(np.mean(losses), rel=1e-9, abs=1e-12)
        found = logp.grad[0, 1:].tolist()
        edge = [min(abs(math.exp(x - p) - c) for c in (0.8, 1.2)) < 1e-9 for x, p, _ in tokens]
        for slope, wanted, ambiguous in zip(found, slopes, edge, strict=True):
            assert ambiguous or slope == pytest.approx(wanted / len(tokens), rel=1e-9, abs=1e-12)

    def test_padding_weighs_1_and_the_cap_holds_whatever_the_gap(self):
        got = truncated_importance(
            [[0.0, -1.0, -2.0, math.nan]], [[-900.0, -1.0, -1.0, 0.0]], [[1, 1, 1, 0]], 2.0
        )
        assert got[0].tolist() == pytest.approx([2.0, 1.0, math.exp(-1), 1.0])
        assert truncated_importance([[0.0]], [[-1.0]], [[1]], 1.0).tolist() == [[1.0]]
        with pytest.raises(ValueError, match="1 or more"):
            truncated_importance([[0.0]], [[0.0]], [[1]], 0.5)


class TestMetrics:
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
        batch = batch_of(torch.tensor([[0, 1, 0]]), torch.tensor([[0, 0, 1]]))
        totals = MiniBatchTotals.count(1, [batch])
        plain = ObjectiveSettings(kl_coef=0.0)
        with pytest.raises(ValueError, match="needs `ref_logprob`"):
            combined_loss(logp, batch, totals, ObjectiveSettings(), PAW)
        with pytest.raises(ValueError, match="needs `wm_weight`"):
            combined_loss(logp, batch, totals, plain, PAW)
        with pytest.raises(ValueError, match="needs the action tokens' `entropy`"):
            combined_loss(logp, batch, totals, plain.replace(entropy_coef=0.1), OFF)
        with pytest.raises(ValueError, match="no `advantage`"):
            combined_loss(logp, replace(batch, advantage=None), totals, plain, OFF)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"clip_low": 1.0}, "objective.clip_low is "),
            ({"clip_high": -0.1}, "objective.clip_high is "),
            ({"kl_coef": math.nan}, "objective.kl_coef is "),
            ({"kl_in": "losss"}, "objective.kl_in: .* Did you mean 'loss'"),
        ],
    )
    def test_settings_out_of_range(self, change, message):
        with pytest.raises(ValueError, match=message):
            ObjectiveSettings.read(change, "objective")
