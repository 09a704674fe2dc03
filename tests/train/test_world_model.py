"""World-model supervision: each equation against numpy, corners of selection and weights."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paw_train.algorithms.paw import (
    action_entropy,
    adaptive_weight,
    clipped_mae,
    select_top_alpha,
    token_weights,
    wm_weights,
)
from paw_train.algorithms.selection import WORLD_MODEL_SELECTIONS, plan_update, rollout_weights
from paw_train.losses.world_model import WORLD_MODEL_LOSSES, predicted_well, token_losses
from paw_train.settings.world_model import WorldModelSettings

fast = settings(max_examples=40, deadline=None)
probabilities = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8)


def one_row(p: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities between two columns of padding that must never be read."""
    logp = torch.tensor([[math.nan, *np.log(p), math.inf]], dtype=torch.float64)
    return logp, torch.tensor([[0] + [1] * len(p) + [0]])


class TestTokenTerms:
    @fast
    @given(probabilities)
    def test_entropy_uses_the_sampled_tokens(self, p):
        q = np.array(p)
        assert action_entropy(*one_row(p)).item() == pytest.approx(
            -(q * np.log(q)).mean(), abs=1e-12
        )

    @fast
    @given(probabilities, st.floats(0.05, 1.0))
    def test_losses_are_the_equations(self, p, rho):
        q = np.array(p)
        below = q <= rho * (1 + 1e-12)
        assert clipped_mae(*one_row(p), rho).item() == pytest.approx(
            (below * (1 - q)).sum() / len(q)
        )
        assert predicted_well(*one_row(p), rho).sum().item() == (~below).sum()
        logp = torch.tensor(q).log()
        for loss, expected in (("cmae", below * (1 - q)), ("mae", 1 - q), ("ce", -np.log(q))):
            found = token_losses(logp, WorldModelSettings(loss=loss, rho=rho))
            assert found.tolist() == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_token_exactly_at_rho_is_kept(self, dtype):
        for rho in np.arange(1, 1000) / 1000:
            logp = torch.tensor([[rho]], dtype=dtype).log()
            assert clipped_mae(logp, [[1]], rho).item() == pytest.approx(1 - rho, abs=1e-5)

    def test_the_clip_is_not_differentiated(self):
        # d/dlogp of -p/4 at the kept token, nothing elsewhere.
        logp, mask = one_row([0.1, 0.5, 0.6, 0.9])
        logp.requires_grad_()
        clipped_mae(logp, mask).sum().backward()
        assert logp.grad.tolist()[0] == pytest.approx([0, -0.1 / 4, 0, 0, 0, 0])

    def test_rows_without_tokens_are_zero_with_zero_gradient(self):
        logp = torch.full((1, 3), -math.inf, requires_grad=True)
        value = clipped_mae(logp, torch.zeros(1, 3))
        value.sum().backward()
        assert value.tolist() == [0.0] and logp.grad.tolist() == [[0.0] * 3]

    def test_no_tokens_certain_and_impossible_ones_have_no_entropy(self):
        assert action_entropy([[-1.0, 0.0], [0.0, -math.inf]], [[0, 0], [1, 1]]).tolist() == [0, 0]

    def test_lists_and_narrow_floats_give_float32(self):
        for narrow in ([[-2.0]], torch.tensor([[-2.0]], dtype=torch.bfloat16)):
            assert clipped_mae(narrow, [[True]]).dtype == torch.float32

    def test_bad_shapes_and_masks_are_named(self):
        with pytest.raises(ValueError, match=r"`mask` must have shape \(1, 2\)"):
            clipped_mae([[-1.0, -1.0]], [[1]])
        with pytest.raises(ValueError, match="`mask` must hold only 0 and 1"):
            clipped_mae([[-1.0, -1.0]], [[1, 0.5]])
        for rho in (0.0, 1.5):
            with pytest.raises(ValueError, match=rf"`rho`.*got {rho}"):
                clipped_mae([[-1.0]], [[1]], rho)


class TestSelection:
    @fast
    @given(
        st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=40),
        st.floats(0.01, 1.0),
    )
    def test_keeps_the_best_with_ties_to_the_lower_index(self, entropy, alpha):
        selected = select_top_alpha(entropy, alpha).tolist()
        ranked = sorted(range(len(entropy)), key=lambda i: (-entropy[i], i))
        kept = ranked[: sum(selected)]
        assert sorted(kept) == [i for i, s in enumerate(selected) if s]
        assert abs(sum(selected) - alpha * len(entropy)) < 1

    @pytest.mark.parametrize(
        ("size", "alpha", "kept"),
        [(4, 0.75, 3), (1, 0.01, 1), (100, 0.07, 7), (100, 0.0701, 8), (9, 1.0, 9), (0, 0.5, 0)],
    )
    def test_keeps_the_ceiling(self, size, alpha, kept):
        assert select_top_alpha(torch.rand(size), alpha).sum().item() == kept

    @pytest.mark.parametrize("alpha", [0.0, -0.5, 1.01, math.nan])
    def test_alpha_outside_is_an_error(self, alpha):
        with pytest.raises(ValueError, match="`alpha`"):
            select_top_alpha([0.1], alpha)

    def test_an_entropy_that_is_no_number_is_an_error(self):
        with pytest.raises(ValueError, match=r"`entropy` must be finite, but entry \[1\] is nan"):
            select_top_alpha([0.1, math.nan], 0.5)


class TestGroupWeights:
    def test_is_linear_and_not_clamped(self):
        got = adaptive_weight([0.0, 2.5, 10.0, -1.0], 10)
        assert got.tolist() == pytest.approx([1.0, 0.75, 0.0, 1.1])
        assert adaptive_weight([0.5, 2.5], [1.0, 10.0]).tolist() == [0.5, 0.75]

    def test_a_mean_above_the_maximum_warns(self):
        with pytest.warns(RuntimeWarning, match="12 exceeds max_return=10") as told:
            assert adaptive_weight([12.0], 10.0).item() == pytest.approx(-0.2)
        assert told[0].filename == __file__  # whose mean it is

    @pytest.mark.parametrize("maximum", [0.0, -1.0, math.inf, math.nan])
    def test_the_maximum_must_be_positive(self, maximum):
        with pytest.raises(ValueError, match=r"`max_return`.*above 0"):
            adaptive_weight([0.0], maximum)

    @fast
    @given(st.data())
    def test_the_weighted_sum_is_equation_11(self, data):
        groups = data.draw(st.integers(1, 4))
        size = data.draw(st.integers(1, 12))
        ids = data.draw(st.lists(st.integers(0, groups - 1), min_size=size, max_size=size))
        selected = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
        losses = data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))
        lambdas = data.draw(st.lists(st.floats(0, 1.5), min_size=groups, max_size=groups))
        expected = 0.0
        for group in range(groups):
            chosen = [x for x, g, s in zip(losses, ids, selected, strict=True) if g == group and s]
            expected += lambdas[group] * np.mean(chosen) / groups if chosen else 0.0
        weights = wm_weights(selected, ids, torch.tensor(lambdas, dtype=torch.float64))
        assert float(weights @ torch.tensor(losses, dtype=torch.float64)) == pytest.approx(expected)

    @fast
    @given(st.data())
    def test_tokens_weigh_the_discounted_mean_of_the_observations_ahead(self, data):
        size = data.draw(st.integers(1, 8))
        episode = sorted(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)))
        lengths = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
        weights = data.draw(st.lists(st.floats(0, 2), min_size=size, max_size=size))
        horizon = data.draw(st.integers(1, 4))
        given_ = torch.tensor(weights).double(), torch.tensor(lengths), torch.tensor(episode)
        got = token_weights(*given_, horizon, 0.5)
        assert got.shape == (size, horizon)
        for i in range(size):
            ahead = [
                (j, 0.5**j) for j in range(horizon)
                if i + j < size and episode[i + j] == episode[i] and lengths[i + j]
            ]  # fmt: skip
            mass = sum(discount for _, discount in ahead)
            wanted = [0.0] * horizon
            for j, discount in ahead:
                wanted[j] = weights[i] * discount / mass / lengths[i + j]
            assert got[i].tolist() == pytest.approx(wanted)

    @pytest.mark.parametrize("ids", [[0, 2], [-1, 0]])
    def test_group_numbers_out_of_range_are_an_error(self, ids):
        with pytest.raises(ValueError, match=r"`group_ids` must be in 0\.\.1"):
            wm_weights([True, True], ids, [1.0, 1.0])


class TestPlan:
    entropy = torch.tensor([0.3, 0.1, 0.2, 0.0])

    def plan(self, settings, lengths=(1, 1, 1, 1), malformed=(0, 0, 0, 0)):
        groups, returns = torch.tensor([0, 0, 1, 1]), torch.tensor([5.0, 10.0])
        more = torch.tensor(lengths), groups, torch.tensor(malformed).bool()
        return plan_update(settings, self.entropy, groups, returns, 10.0, *more)

    def test_the_filter_leaves_out_what_follows_a_malformed_response(self):
        settings = WorldModelSettings(filter="warnings", alpha=0.5)
        plan = self.plan(settings, malformed=[1, 0, 0, 0])
        # of the three that are left the top half are two: the share is of what can be selected
        assert plan.selected.tolist() == [False, True, True, False]

    def test_a_selection_of_ones_own_chooses_among_candidates(self, monkeypatch):
        monkeypatch.setattr(WORLD_MODEL_SELECTIONS, "_loaded", {})

        @WORLD_MODEL_SELECTIONS.register("short")
        def short(candidates, settings):
            assert candidates.group.tolist() == [0, 1, 1]
            return candidates.lengths <= settings.alpha * 10

        settings = WorldModelSettings(selection="short", filter="warnings", alpha=0.5)
        plan = self.plan(settings, lengths=[3, 22, 5, 5], malformed=[1, 0, 0, 0])
        assert plan.selected.tolist() == [False, False, True, True]

    @pytest.mark.parametrize("wrong", [[True], torch.ones(3), torch.ones(4)])
    def test_a_selection_that_returns_no_booleans_is_named(self, monkeypatch, wrong):
        monkeypatch.setattr(WORLD_MODEL_SELECTIONS, "_loaded", {"mine": lambda c, s: wrong})
        with pytest.raises(ValueError, match=r"selection 'mine' .*4 candidates"):
            self.plan(WorldModelSettings(selection="mine"))

    def test_composes_selection_weight_and_group(self):
        plan = self.plan(WorldModelSettings())
        assert plan.selected.tolist() == [True, True, True, False]
        assert plan.lambdas.tolist() == [0.5, 0.0]
        assert plan.weights.tolist() == pytest.approx([0.125, 0.125, 0, 0])
        metrics = plan.metrics(self.entropy)
        assert metrics["selected_share"] == 0.75
        assert metrics["entropy_threshold"] == pytest.approx(0.1)
        assert metrics["lambda_mean"] == 0.25

    def test_off_selects_nothing(self):
        plan = self.plan(WorldModelSettings.preset("off"))
        assert not plan.selected.any() and plan.weights.tolist() == [0.0] * 4
        metrics = plan.metrics(self.entropy)
        assert (metrics["entropy_threshold"], metrics["entropy_mean"]) == (0.0, pytest.approx(0.15))

    def test_a_mean_over_rollouts_leaves_out_empty_ones(self):
        # two of three episodes have something to supervise, one of them a copy
        call = torch.tensor([2, 1, 0, 3]), torch.tensor([0, 1, 2, 2])
        factors = torch.tensor([1.0, 3.0, 1.0, 0.0])
        assert rollout_weights(factors, *call).tolist() == [0.5, 1.5, 0.0, 0.0]
        got = rollout_weights(factors, *call, torch.tensor([1.0, 0.5, 1.0, 1.0]))
        assert got.tolist() == pytest.approx([1 / 1.5, 0.5 * 3 / 1.5, 0.0, 0.0])
        assert rollout_weights(torch.zeros(4), *call).tolist() == [0.0] * 4


class TestLossesByName:
    def test_one_loss_for_all_tokens_is_an_error(self, monkeypatch):
        monkeypatch.setattr(WORLD_MODEL_LOSSES, "_loaded", {"mine": lambda p, s: p.mean()})
        with pytest.raises(ValueError, match=r"'mine' returned Tensor of shape \(\).*each token"):
            token_losses(torch.zeros(2), WorldModelSettings(loss="mine"))


class TestSettings:
    def test_defaults_are_the_paper(self):
        paper = {"enabled": True, "loss": "cmae", "alpha": 0.75, "rho": 0.2, "adaptive": True}
        found = WorldModelSettings(**paper, coef=1.0, entropy="sampled")
        assert found == WorldModelSettings() == WorldModelSettings.preset("paw")

    def test_echo_is_plain_cross_entropy_on_everything(self):
        echo = WorldModelSettings.preset("echo", coef=0.1)
        expected = WorldModelSettings(loss="ce", alpha=1.0, adaptive=False, coef=0.1)
        assert echo == expected
