"""One update: weights, schedule, and gradients however rows are cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rows import transitions
from small_policies import exact_policy
from trajectories import made_up

from paw_train.algorithms import grpo
from paw_train.algorithms.critic import Critic
from paw_train.algorithms.experience import Prepared, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater, averaged, schedule_share, update_seed
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.rollouts.tokens import ACTION, OBSERVATION
from paw_train.settings import (
    AlgorithmSettings,
    CriticSettings,
    ObjectiveSettings,
    OptimizerSettings,
)
from paw_train.settings.world_model import WorldModelSettings

PAW, PLAIN = WorldModelSettings(), ObjectiveSettings(kl_coef=0.0)
STILL = OptimizerSettings(lr=0.0, max_grad_norm=1e9)
"""gradients are measured, and nothing moves"""


def _prepared(conversation: bool, wm: WorldModelSettings = PAW, **algorithm: Any) -> Prepared:
    pool = collect(made_up(conversation))
    return prepare(pool, AlgorithmSettings(**algorithm), PLAIN, wm, 10.0)


def _updater(
    optimizer: OptimizerSettings = STILL, wm: WorldModelSettings = PAW, **more: Any
) -> Updater:
    return Updater(exact_policy(), None, optimizer, PLAIN, wm, 1.0, 9, **more)


def _gradient(updater: Updater) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in updater.parameters if p.grad is not None])


@pytest.mark.parametrize("conversation", [False, True])
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("off", {}),
        ("paw", {}),
        ("echo", {}),
        ("paw", {"horizon": 3, "discount": 0.7}),
        ("paw", {"dedup": "weighted", "entropy": "full"}),
    ],
)
def test_micro_batches_add_up_to_the_whole(conversation: bool, preset: str, changes: Any) -> None:
    wm = WorldModelSettings.preset(preset, **changes)
    objective = ObjectiveSettings(kl_coef=0.01, entropy_coef=0.02, log_observations=True)
    found = []
    for budget in (10**6, 1):
        settings = STILL.replace(micro_batch_tokens=budget)
        updater = Updater(exact_policy(), exact_policy(1), settings, objective, wm, 1.0, 1)
        pool = collect(made_up(conversation))
        signals, ask = updater.signals(pool), updater.policy.chat.ask
        rows = prepare(pool, AlgorithmSettings(), objective, wm, 10.0, signals, ask).rows
        metrics = updater.step(rows, 0, 0)
        found.append((_gradient(updater), metrics))
    (whole, metrics), (cut, cut_metrics) = found
    assert whole.abs().max() > 0
    assert torch.allclose(whole, cut, rtol=1e-7, atol=1e-10)
    assert all(map(math.isfinite, metrics.values()))
    for name, value in metrics.items():
        assert cut_metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("some", [True, False])
def test_rows_without_a_gradient_are_measured_only(monkeypatch: Any, some: bool) -> None:
    wm = WorldModelSettings.preset("paw", alpha=0.25) if some else WorldModelSettings.preset("off")
    rows = _prepared(False, wm).rows
    for row in rows[:: 2 if some else 1]:
        row.advantage = [0.0] * len(row.ids)
    found = []
    for parts in (Updater._by_gradient, lambda self, rows: (rows, [])):
        monkeypatch.setattr(Updater, "_by_gradient", parts)
        updater = _updater(wm=wm)
        metrics = updater.step(rows, 0, 0)
        found.append((_gradient(updater), metrics, len(updater._by_gradient(rows)[1])))
    (gradient, metrics, measured), (whole, all_metrics, none) = found
    assert 0 == none < measured < len(rows) and (whole.abs().max() > 0) == some
    assert gradient.shape == whole.shape
    assert torch.allclose(gradient, whole, rtol=1e-7, atol=1e-10)
    assert metrics == pytest.approx(all_metrics, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize(("conversation", "steps"), [(True, 2), (False, 4)])
def test_a_minibatch_counts_dialogues_in_conversation_mode_and_responses_in_window_mode(
    conversation: bool, steps: int
) -> None:
    # 4 episodes with 8 turns; Search-R1 (arXiv 2503.09516): 512 episodes by 256 are two steps
    updater = _updater(OptimizerSettings(minibatch_size=2))
    taken = []
    step = updater.optimizers[0].step
    updater.optimizers[0].step = lambda: taken.append(step())
    updater.step(_prepared(conversation).rows, 0, 0)
    assert len(taken) == steps


def test_minibatches_of_unequal_size_average_to_equation_11() -> None:
    """Mini-batches of one dialogue have 1, 3, 2 and 2 turns."""
    wm = WorldModelSettings(loss="ce", alpha=1.0)
    objective = ObjectiveSettings(policy_coef=0.0, kl_coef=0.0)
    gradients = []
    for count in (1, 4):
        settings = STILL.replace(minibatches=count)
        updater = Updater(exact_policy(), None, settings, objective, wm, 1.0, 1)
        found: list[Any] = []
        updater.optimizers[0].step = lambda u=updater, f=found: f.append(_gradient(u))
        updater.step(_prepared(True, wm).rows, 0, 0)
        assert len(found) == count
        gradients.append(torch.stack(found).mean(0))
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(*gradients, rtol=1e-9, atol=1e-12)


def test_weights_and_advantages_follow_the_definitions() -> None:
    trajectories = made_up(conversation=False)
    wm = WorldModelSettings(alpha=0.5)
    experience = prepare(collect(trajectories), AlgorithmSettings(normalize=True), PLAIN, wm, 10.0)
    found = transitions([row for t in trajectories for row in t.rows])
    sampled = [torch.tensor([row.logprob[i] for i in places]) for row, places, _ in found]
    entropy = [-(logprobs.exp() * logprobs).mean().item() for logprobs in sampled]
    chosen = set(sorted(range(8), key=lambda i: (-entropy[i], i))[:4])
    groups = [0] * 4 + [1] * 4
    for i in range(8):
        size = len([j for j in chosen if groups[j] == groups[i]])
        expected = 0.5 / (2 * size) if i in chosen else 0.0  # lambda = 1 - 5 / 10 in both groups
        assert experience.plan.weights[i].item() == pytest.approx(expected)
    per_episode = grpo([10.0, 0.0, 0.0, 10.0], [0, 0, 1, 1])
    owners = [0, 1, 1, 1, 2, 2, 3, 3]
    assert torch.allclose(experience.advantages, per_episode[owners].float())
    # and beside each token that they weigh
    for row in experience.rows:
        for turn, places in row.places(ACTION).items():
            worth = [experience.advantages[turn].item()] * len(places)
            assert [row.advantage[i] for i in places] == pytest.approx(worth)
        for turn, places in row.places(OBSERVATION).items():
            share = experience.plan.weights[turn].item() / len(places)
            assert [row.wm_weight[i] for i in places] == pytest.approx([share] * len(places))


def test_failed_episodes_are_left_out_and_all_failed_is_an_error() -> None:
    trajectories = made_up(conversation=True)
    trajectories[1].episode.error = "Traceback: boom"
    experience = prepare(collect(trajectories), AlgorithmSettings(), PLAIN, PAW, 10.0)
    assert len(experience.advantages) == 5
    for t in trajectories:
        t.episode.error = "Traceback: boom"
    with pytest.raises(ValueError, match="boom"):
        prepare(collect(trajectories), AlgorithmSettings(), PLAIN, PAW, 10.0)


def test_a_run_that_keeps_skipping_is_stopped_and_a_good_step_forgives() -> None:
    good, bad = _prepared(True).rows, _prepared(True).rows
    bad[0].advantage = [math.inf if role == ACTION else 0.0 for role in bad[0].role]
    updater = _updater(OptimizerSettings())
    updater.guarded_step.require_good()  # before its first step too
    for update, rows in enumerate([bad, good, bad, bad, bad]):
        before = [p.clone() for p in updater.policy.model.parameters()]
        metrics = updater.step(rows, update, 0)
        same = all(map(torch.equal, updater.policy.model.parameters(), before))
        assert same == (metrics["skipped"] == 1.0) == (rows is bad)
        assert all(map(math.isfinite, metrics.values()))
    with pytest.raises(TrainingDivergedError, match=r"4 optimizer steps in a row.*optimizer\.lr"):
        updater.step(bad, 5, 0)


def test_a_critic_that_diverges_stops_the_run_and_leaves_no_infinity() -> None:
    policy = exact_policy()
    policy.model.float()
    algorithm = AlgorithmSettings(name="ppo", critic=CriticSettings(lr=1e30))
    critic = Critic(policy, algorithm.critic, algorithm.level, 10**6)
    updater = Updater(policy, None, OptimizerSettings(), PLAIN, PAW, 1.0, 9, critic)
    with pytest.raises(TrainingDivergedError, match=r"algorithm\.critic\.lr"):
        for update in range(6):
            pool = collect(made_up(True))
            rows = prepare(pool, algorithm, PLAIN, PAW, 10.0, updater.signals(pool)).rows
            assert all(map(math.isfinite, updater.step(rows, update, 0).values()))
    assert critic.guarded_step.skipped == 4


def test_muon_steps_matrices_and_continues_from_its_state() -> None:
    off = WorldModelSettings.preset("off")
    settings = OptimizerSettings(lr=1e-3, matrix_lr=1e-2, minibatches=2)
    rows = _prepared(True, off).rows
    whole, first, second = (_updater(settings, off) for _ in range(3))
    before = {n: p.detach().clone() for n, p in whole.policy.model.named_parameters()}
    whole.step(rows, 0, 0)
    for name, weight in whole.policy.model.named_parameters():
        moved = (weight.detach() - before[name]).double()
        if "layers." in name and weight.ndim == 2:  # two steps, each by about the rate
            height, width = weight.shape
            most = 1e-2 * max(1.0, height / width) ** 0.5
            assert 0.5 * most < float(torch.linalg.matrix_norm(moved, 2)) < 2.6 * most, name
    first.step(rows, 0, 0)
    second.policy.model.load_state_dict(first.policy.model.state_dict())
    second.load_state_dict(first.state_dict())
    for one in (whole, second):
        one.step(rows, 1, 1)
    pairs = zip(whole.policy.model.parameters(), second.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_learning_rate_schedules() -> None:
    def rates(**settings: Any) -> list[float]:
        chosen = OptimizerSettings(lr=1.0).replace(**settings)
        return [schedule_share(chosen, i, 10) for i in range(10)]

    assert rates() == [1.0] * 10
    assert rates(schedule="linear", warmup_updates=4)[7] == pytest.approx(0.5)
    assert rates(schedule="cosine")[::5] == pytest.approx([1.0, 0.5])
    assert rates(warmup_updates=4) == [0.25, 0.5, 0.75] + [1.0] * 7
    seeds = {update_seed(run, update) for run in range(9) for update in range(9)}
    assert len(seeds) == 81 and 2**62 < max(seeds) < 2**63  # as many as a generator takes
    assert averaged([{"a": 1.0}, {"a": 3.0, "b": math.inf}]) == {"a": 2.0}


def test_episode_weighting_gives_every_episode_the_same_weight() -> None:
    by_token, by_episode = _prepared(True), _prepared(True, weighting="episode")
    weights = by_episode.advantages / by_token.advantages
    lengths = collect(made_up(True)).lengths
    mass = weights * lengths
    owners = torch.tensor([0, 1, 1, 1, 2, 2, 3, 3])
    per_episode = torch.zeros(4).index_add_(0, owners, mass)
    assert torch.allclose(per_episode, per_episode.mean().expand(4))
    assert mass.sum() == pytest.approx(lengths.sum().item(), rel=1e-5)
