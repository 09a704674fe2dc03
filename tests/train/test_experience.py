"""What each algorithm makes of the same trajectories, against computations by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from rows import parts, token_row, transitions
from small_policies import exact_policy
from trajectories import made_up

from paw_gym.internals.registry import Registry
from paw_train.algorithms import gigpo, reinforce_pp, rloo
from paw_train.algorithms.critic import Critic
from paw_train.algorithms.estimator import (
    ADVANTAGES,
    AdvantageEstimator,
    UpdateView,
    estimator,
    require_registered,
)
from paw_train.algorithms.experience import Prepared, Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.rollouts.rows import transition_keys
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import ACTION, CONTEXT, OBSERVATION
from paw_train.settings import (
    AlgorithmSettings,
    CriticSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Settings,
    load_settings,
)
from paw_train.settings.world_model import WorldModelSettings

PLAIN = ObjectiveSettings(kl_coef=0.0)
OFF, PAW = WorldModelSettings.preset("off"), WorldModelSettings()
OWNERS = [0, 1, 1, 1, 2, 2, 3, 3]
GROUPS = [0, 0, 1, 1]
RETURNS = [10.0, 0.0, 0.0, 10.0]
REWARDS = [10.0, 0, 0, 0, 0, 0, 0, 10.0]


def _prepared(trajectories: list[Any], wm: WorldModelSettings = OFF, **algorithm: Any) -> Prepared:
    return prepare(collect(trajectories), AlgorithmSettings(**algorithm), PLAIN, wm, 10.0)


def _advantages(name: str, **settings: Any) -> Any:
    return _prepared(made_up(False), name=name, **{"normalize": True, **settings}).advantages


def _played(rewards: Sequence[float], penalties: Sequence[float]) -> list[Any]:
    """The made-up episodes with other rewards, and a penalty beside each."""
    trajectories = made_up(False)
    given = zip(rewards, penalties, strict=True)
    for trajectory in trajectories:
        steps = trajectory.episode.transitions
        steps[:] = [
            replace(step, reward=reward + own, info={"penalty": own})
            for step, (reward, own) in zip(steps, given, strict=False)
        ]
    return trajectories


def test_episode_algorithms_reach_every_step() -> None:
    assert torch.allclose(_advantages("rloo"), rloo(RETURNS, GROUPS)[OWNERS])
    with_groups = reinforce_pp(RETURNS, GROUPS)[OWNERS]
    assert torch.allclose(_advantages("reinforce_pp"), with_groups)
    without = reinforce_pp(RETURNS)[OWNERS]
    assert torch.allclose(_advantages("reinforce_pp", group_baseline=False), without)


@pytest.mark.parametrize("settings", [{"normalize": True}, {"gamma": 0.5, "normalize": False}])
def test_gigpo_sees_anchors_and_discounts(settings: dict[str, Any]) -> None:
    steps = [0, 0, 1, 2, 0, 1, 0, 1]
    anchors = [f"place {s % 2}" for s in steps]
    expected = gigpo(REWARDS, OWNERS, steps, [GROUPS[o] for o in OWNERS], anchors, **settings)
    assert torch.allclose(_advantages("gigpo", **settings), expected.float())
    assert len(set(expected.tolist())) > 4  # steps of one episode differ


def test_gigpo_refuses_transitions_without_their_observation() -> None:
    trajectories = made_up(False)
    steps = trajectories[1].episode.transitions
    steps[2] = replace(steps[2], observation=None)
    with pytest.raises(ValueError, match="step 2 of episode 'e1' was recorded without one"):
        _prepared(trajectories, name="gigpo")
    _prepared(trajectories, name="grpo")


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_ppo_is_gae_by_hand_with_each_tokens_own_kl(level: str, coef: float) -> None:
    pool = collect(made_up(False))
    counts = pool.lengths.tolist()
    generator = torch.Generator().manual_seed(0)
    values, kl = torch.rand(2, sum(counts), generator=generator)
    starts = [sum(counts[:i]) for i in range(8)]
    gamma, lam = 0.9, 0.7
    algorithm = AlgorithmSettings(name="ppo", level=level, gamma=gamma, lam=lam, normalize=False)
    objective = ObjectiveSettings(kl_coef=coef, kl_in="reward")
    prepared = prepare(pool, algorithm, objective, OFF, 10.0, Signals(values=values, kl=kl))
    width = [1] * 8 if level == "turn" else counts
    targets = pool.at_actions([row.value_target for row in prepared.rows])
    by_token = pool.at_actions([row.advantage for row in prepared.rows])

    def reward(i: int, j: int) -> float:
        own = kl[starts[i] :][: counts[i]] if level == "turn" else kl[starts[i] + j]
        return (REWARDS[i] if j + 1 == width[i] else 0.0) - coef * own.sum().item()

    for episode in range(4):
        cells = [(i, j) for i in range(8) if OWNERS[i] == episode for j in range(width[i])]
        for k, (i, j) in enumerate(cells):
            # lambda-return by its definition: a sum over all later errors
            expected = 0.0
            for n, (a, b) in enumerate(cells[k:]):
                rest = cells[k + n + 1 :]
                after = values[starts[rest[0][0]] + rest[0][1]].item() if rest else 0.0
                delta = reward(a, b) + gamma * after - values[starts[a] + b].item()
                expected += (gamma * lam) ** n * delta
            place = starts[i] + j
            got = prepared.advantages[i if level == "turn" else place]
            assert got.item() == pytest.approx(expected, abs=1e-5)
            assert by_token[place].item() == pytest.approx(expected, abs=1e-5)
            wanted = expected + values[place].item()
            assert targets[place].item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("empty", [0, 4, 7])
@pytest.mark.parametrize("name", ["ppo", "gigpo", "grpo"])
def test_an_empty_response_is_a_turn_without_tokens(name: str, empty: int, level: str) -> None:
    trajectories = made_up(False)
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    parted = [n for n, role in enumerate(rows[empty].role) if role != ACTION]
    for column in (rows[empty].ids, rows[empty].role, rows[empty].turn, rows[empty].logprob):
        column[:] = [column[n] for n in parted]
    pool = collect(trajectories)
    algorithm = AlgorithmSettings(name=name, level=level, gamma=1.0, lam=1.0, normalize=False)
    wm = WorldModelSettings(average="rollout", alpha=1.0)
    signals = Signals(values=torch.zeros(len(pool.turn)))
    prepared = prepare(pool, algorithm, PLAIN, wm, 10.0, signals)
    assert prepared.advantages.isfinite().all() and prepared.plan.weights.isfinite().all()
    found = pool.at_actions([row.advantage for row in prepared.rows])
    if name == "ppo":  # nothing is discounted: each token has the return of its episode
        assert found.tolist() == pool.returns[pool.episode[pool.turn]].tolist()
        targets = pool.at_actions([row.value_target for row in prepared.rows])
        wanted = found if level == "token" else found * (found == targets)
        assert torch.equal(targets, wanted) and targets[0] == found[0]


def test_ppo_whitens_over_the_update_and_weighs_every_episode_as_its_own_group() -> None:
    pool = collect(made_up(True))
    values = torch.zeros(int(pool.lengths.sum()))
    ppo, world_model = AlgorithmSettings(name="ppo"), WorldModelSettings(alpha=1.0)
    experience = prepare(pool, ppo, PLAIN, world_model, 10.0, Signals(values=values))
    assert experience.advantages.mean().abs() < 1e-6
    assert experience.advantages.std() == pytest.approx(1.0, abs=1e-4)  # n - 1, as everywhere
    # lambda is 0 for the two episodes that won and 1 for the others; |G| = 4 groups of one episode
    sizes = [1, 3, 2, 2]
    expected = [(1 - RETURNS[o] / 10) / (4 * sizes[o]) for o in OWNERS]
    assert experience.plan.weights.tolist() == pytest.approx(expected)


def test_kl_in_the_reward_moves_advantages_but_not_lambda() -> None:
    pool = collect(made_up(True))
    kl = torch.rand(int(pool.lengths.sum()), generator=torch.Generator().manual_seed(0))
    objective = ObjectiveSettings(kl_coef=0.5, kl_in="reward")
    experience = prepare(pool, AlgorithmSettings(name="rloo"), objective, PAW, 10.0, Signals(kl=kl))
    returns = [
        RETURNS[e] - 0.5 * kl[torch.tensor(OWNERS)[pool.turn] == e].sum().item() for e in range(4)
    ]
    assert torch.allclose(experience.advantages, rloo(returns, GROUPS)[OWNERS], atol=1e-5)
    assert experience.metrics["lambda_mean"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="kl"):
        prepare(pool, AlgorithmSettings(), objective, PAW, 10.0)


PENALTIES = [0.0, -0.5, 0.0, 0.0, -0.5, -0.5, 0.0, -0.5]
SCORES = [10.0, -0.5, 0.0, 0.0, -0.5, -0.5, 10.0, 9.5]
"""the return of each step's episode without penalties, and the step's own penalty"""


def _penalised(name: str, penalty: str, **settings: Any) -> list[float]:
    given = {"name": name, "penalty": penalty, "normalize": True, **settings}
    found: list[float] = _prepared(_played(REWARDS, PENALTIES), **given).advantages.tolist()
    return found


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
def test_penalties_do_not_scale_up_a_group_in_which_nobody_succeeds(name: str) -> None:
    # the second group: one refused action, and no success
    played = _played([10.0] + [0.0] * 7, [0.0] * 4 + [-0.1] + [0.0] * 3)
    group, batch, plain = (
        _prepared(played, name=name, normalize=n) for n in (True, "batch", False)
    )
    deviation = statistics.stdev([10.0, 0.0, 0.0, 0.0])  # of the returns without penalties
    assert torch.allclose(batch.advantages, plain.advantages / deviation)
    assert batch.advantages[4:].abs().max() <= 0.03 < 0.7 < group.advantages[4:].abs().max()
    lengths = collect(made_up(False)).lengths
    for prepared in (group, batch):
        sizes = prepared.advantages.abs() * lengths
        share = float(sizes[4:].sum() / sizes.sum())
        assert prepared.metrics["penalty_share"] == pytest.approx(share, rel=1e-5)
    assert batch.metrics["penalty_share"] < 0.02 < 0.3 < group.metrics["penalty_share"]


def test_an_update_without_a_success_is_not_divided() -> None:
    found = _prepared(_played([0.0] * 8, [-0.1] + [0.0] * 7))
    assert found.advantages.tolist() == pytest.approx([-0.05] + [0.05] * 3 + [0.0] * 4)
    assert found.metrics["penalty_share"] == pytest.approx(1.0)


def test_a_mean_over_rollouts_is_the_mean_of_the_means_over_their_tokens() -> None:
    rows = _prepared(made_up(True), WorldModelSettings.preset("echo", average="rollout")).rows
    losses = torch.rand(99, generator=torch.Generator().manual_seed(0))
    found, means = 0.0, []
    for row in rows:  # one dialogue an episode
        own = [i for i, role in enumerate(row.role) if role == OBSERVATION]
        found += sum(row.wm_weight[i] * float(losses[i]) for i in own)
        means.append(statistics.fmean(float(losses[i]) for i in own))
    assert found == pytest.approx(statistics.fmean(means), rel=1e-5)


def _of_group(rows: Sequence[int], counted: Sequence[float]) -> tuple[float, float]:
    """Mean and sample deviation of the scores of rows that count for so much each."""
    total = sum(counted)
    mean = sum(c * SCORES[r] for r, c in zip(rows, counted, strict=True)) / total
    squares = sum(c * (SCORES[r] - mean) ** 2 for r, c in zip(rows, counted, strict=True))
    return mean, math.sqrt(squares / (total - 1)) + 1e-6


@pytest.mark.parametrize("statistics", ["step", "episode"])
def test_a_penalty_can_be_charged_to_its_own_step_alone(statistics: str) -> None:
    got = _penalised("grpo", "step", statistics=statistics)
    for rows in (range(4), range(4, 8)):
        lengths = [OWNERS.count(OWNERS[r]) for r in rows]
        # GiGPO's published code: one row a step; here also: one episode as much as another
        counted = [1.0 if statistics == "step" else 1 / n for n in lengths]
        mean, deviation = _of_group(list(rows), counted)
        for row in rows:
            assert got[row] == pytest.approx((SCORES[row] - mean) / deviation, abs=1e-5)
    assert got != pytest.approx(_penalised("grpo", "episode", statistics=statistics))


@pytest.mark.parametrize("statistics", ["step", "episode"])
def test_gigpos_return_to_go_leaves_the_penalties_of_later_steps_out(statistics: str) -> None:
    # the published code discounts the environment's rewards first, and then takes the penalty off
    got = _penalised("gigpo", "step", normalize=False, statistics=statistics)
    alone = _penalised("grpo", "step", normalize=False, statistics=statistics)
    to_go = [10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.5, 10.0]
    owed = [value + own for value, own in zip(to_go, PENALTIES, strict=True)]
    anchors = [0, 0, 1, 0, 0, 1, 0, 1]  # in made_up, by turns
    for row in range(8):
        same = [r for r in range(8) if r // 4 == row // 4 and anchors[r] == anchors[row]]
        mean = sum(owed[r] for r in same) / len(same)
        assert got[row] - alone[row] == pytest.approx(owed[row] - mean, abs=1e-5)


def test_rloo_charges_a_step_beside_its_episodes_advantage() -> None:
    got = _penalised("rloo", "step")
    means = [statistics.fmean(SCORES[r] for r in range(8) if OWNERS[r] == e) for e in range(4)]
    other = [1, 0, 3, 2]
    for row, owner in enumerate(OWNERS):
        assert got[row] == pytest.approx(SCORES[row] - means[other[owner]], abs=1e-5)


@pytest.mark.parametrize("name", ["grpo", "gigpo", "rloo", "reinforce_pp"])
def test_where_nothing_was_invalid_it_does_not_matter_what_a_penalty_counts_for(name: str) -> None:
    assert torch.equal(_advantages(name, penalty="step"), _advantages(name, penalty="episode"))


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("normalize", [True, False])
def test_an_episode_whose_group_failed_is_compared_with_none(name: str, normalize: bool) -> None:
    trajectories = _played(REWARDS, [0.0, -0.5] + [0.0] * 6)
    trajectories[0].episode.error = "the environment broke"
    found = _prepared(trajectories, name=name, penalty="step", normalize=normalize).advantages
    assert found[:3].tolist() == [0.0, 0.0, 0.0] and found[3:].abs().min() > 0


@pytest.mark.parametrize("conversation", [False, True])
def test_the_kl_signal_is_the_log_ratio_of_each_token(conversation: bool) -> None:
    pool = collect(made_up(conversation))
    objective = ObjectiveSettings(kl_coef=0.1, kl_in="reward")
    world_model = WorldModelSettings(entropy="full")
    policy, reference = exact_policy(), exact_policy(seed=1)
    updater = Updater(
        policy, reference, OptimizerSettings(micro_batch_tokens=1), objective, world_model, 1.0, 1
    )
    signals = updater.signals(pool)
    assert signals.kl is not None and signals.entropy is not None
    entropies, ratios = [], []
    for row, places, _ in transitions(pool.rows):
        logits = reference.model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        own = policy.model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        ratios += [row.logprob[t] - logits[t - 1, row.ids[t]].item() for t in places]
        spread = [-(own[t - 1].exp() * own[t - 1]).sum().item() for t in places]
        entropies.append(sum(spread) / len(spread))
    assert signals.kl.tolist() == pytest.approx(ratios, rel=1e-4)
    assert signals.entropy.tolist() == pytest.approx(entropies, rel=1e-4)


# --- rows as the update reads them -----------------------------------------------------------------


@pytest.mark.parametrize("conversation", [False, True])
def test_unsupervised_observations_cost_no_tokens(conversation: bool) -> None:
    def gradient(log: bool) -> tuple[Any, int]:
        objective, wm = PLAIN.replace(log_observations=log), WorldModelSettings(alpha=0.4)
        pool = collect(made_up(conversation))
        rows = prepare(pool, AlgorithmSettings(), objective, wm, 10.0).rows
        settings = OptimizerSettings(lr=0.0, max_grad_norm=1e9)
        updater = Updater(exact_policy(), None, settings, objective, wm, 1.0, 1)
        updater.step(rows, 0, 0)
        flat = torch.cat([p.grad.flatten() for p in updater.parameters])
        return flat, sum(len(row.ids) for row in rows)

    whole, tokens = gradient(True)
    cut, fewer = gradient(False)
    assert torch.allclose(whole, cut, rtol=1e-6, atol=1e-9)
    assert fewer < tokens


@pytest.mark.parametrize("conversation", [False, True])
def test_looking_ahead_weighs_the_later_observations(conversation: bool) -> None:
    pool = collect(made_up(conversation))
    wm = WorldModelSettings(alpha=1.0, adaptive=False, horizon=3)
    prepared = prepare(pool, AlgorithmSettings(), PLAIN, wm, 10.0, ask=[1, 2])
    found = transitions(pool.rows)
    seen = [[row.ids[i] for i in places] for row, _, places in found]
    actions = [[row.ids[i] for i in places] for row, places, _ in found]
    turns = [turn for row in prepared.rows for turn in row.places(ACTION)]
    assert [ids for row in prepared.rows for ids in parts(row, ACTION)] == actions
    if conversation:
        assert [ids for row in prepared.rows for ids in parts(row, OBSERVATION)] == seen
        return
    for turn, row in zip(turns, prepared.rows, strict=True):
        ahead = [i for i in range(turn, min(turn + 3, 8)) if OWNERS[i] == OWNERS[turn]]
        weighed = [i for i, weight in zip(row.ids, row.wm_weight or [], strict=True) if weight]
        assert weighed == [i for number in ahead for i in seen[number]]
        if len(ahead) > 1:
            end = row.places(OBSERVATION)[turn][-1] + 1
            later = [1, 2, *actions[turn + 1]]  # the next turn opens as it would in a dialogue
            assert row.ids[end : end + len(later)] == later
            assert set(row.role[end:]) == {CONTEXT} and set(row.turn[end:]) == {-1}


def test_equal_transitions_share_a_key_and_others_do_not() -> None:
    ids, turns = [1, 2, 3, 4, 5, 6, 7, 8], [((1, 2), (3, 4)), ((5, 6), (7, 8))]
    whole = token_row(ids, *turns)
    same_start = token_row([1, 2, 3, 4, 5, 9, 7, 8], *turns)
    one_step, other_cut = token_row(ids[:4], turns[0]), token_row(ids[:4], ((1, 3), (3, 4)))
    branch = token_row(ids, turns[1])  # what it shares with the whole is its context
    keys = transition_keys([whole, same_start, one_step, other_cut, branch])
    assert keys[0] == keys[2] == keys[4] and keys[1] == keys[6]
    assert len(set(keys)) == 4


@pytest.mark.parametrize("conversation", [True, False])
def test_nothing_is_learned_from_a_complaint_from_further_back_either(conversation: bool) -> None:
    trajectories = made_up(conversation)
    steps = trajectories[1].episode.transitions  # of three
    steps[1] = replace(steps[1], info={**steps[1].info, "malformed": True})
    wm = WorldModelSettings(alpha=1.0, adaptive=False, horizon=3, filter="warnings")
    pool = collect(trajectories)
    seen = [ids for row in pool.rows for ids in parts(row, OBSERVATION)]
    rows = prepare(pool, AlgorithmSettings(), PLAIN, wm, 10.0, ask=[1, 2]).rows
    if conversation:  # transitions 1 to 3 are of one row
        row = rows[1]
        weights = {turn: row.wm_weight[p[0]] for turn, p in row.places(OBSERVATION).items()}
        w, each = 1 / 2 / 3, [len(ids) for ids in seen]
        assert 2 not in weights  # the complaint; its row's first turn reads its own and the last
        assert weights[1] == pytest.approx(w * 1 / 1.25 / each[1])
        assert weights[3] == pytest.approx((w * 0.25 / 1.25 + w) / each[3])
        return
    weighed = [[i for i, w in zip(r.ids, r.wm_weight, strict=True) if w] for r in rows]
    assert weighed[1] == [*seen[1], *seen[3]]  # its own, and the one after the complaint
    assert weighed[2] == [] and weighed[3] == seen[3]


@pytest.mark.parametrize("average", ["transition", "rollout"])
@pytest.mark.parametrize("dedup", ["once", "weighted"])
def test_copies_count_once(dedup: str, average: str) -> None:
    """An update in which every episode of a group occurs twice weighs as the update without."""
    double = [t for pair in zip(made_up(True), made_up(True), strict=True) for t in pair]
    wm = WorldModelSettings(alpha=1.0, adaptive=False, dedup=dedup, average=average)
    plain, doubled = _prepared(made_up(True), wm).plan.weights, _prepared(double, wm)
    keys = transition_keys(collect(double).rows)
    per_original: dict[int, float] = {}
    for key, weight in zip(keys, doubled.plan.weights.tolist(), strict=True):
        per_original[key] = per_original.get(key, 0.0) + weight
    assert list(per_original.values()) == pytest.approx(plain.tolist())
    assert doubled.metrics["unique_share"] == pytest.approx(0.5)
    zeros = sum(w == 0 for w in doubled.plan.weights.tolist())
    assert zeros == (len(plain) if dedup == "once" else 0)


# --- critic, dynamic sampling ----------------------------------------------------------------------


def test_collate_pads_on_the_right_and_scores_what_has_a_role_or_a_weight() -> None:
    short = token_row([5, 6, 7], ((1, 3), (0, 0)), wm_weight=[0.0] * 3)
    long = token_row(range(50, 56), ((2, 3), (3, 4)), wm_weight=[0.0] * 3 + [0.5, 0.0, 0.25])
    batch = collate([short, long], 0)
    assert batch.ids.tolist() == [[5, 6, 7, 0, 0, 0], list(range(50, 56))]
    assert batch.attention_mask.sum(1).tolist() == [3, 6]
    assert batch.turn.tolist() == [[-1, 0, 0, -1, -1, -1], [-1, -1, 0, 0, -1, -1]]
    assert batch.scored[0].tolist() == [False, True, True, False, False, False]
    assert batch.scored[1].tolist() == [False, False, True, True, False, True]
    assert batch.share[0, 1:3].tolist() == [0.5, 0.5]
    assert batch.share[1, 2:4].tolist() == [1.0, 1.0]
    assert batch.logprob[0].tolist() == [0.0, -1.0, -1.0, 0.0, 0.0, 0.0]
    assert batch.advantage is None


@pytest.mark.parametrize("conversation", [False, True])
def test_actions_are_scored_alike_without_observations(conversation: bool) -> None:
    policy = exact_policy()
    pool = collect(made_up(conversation))
    batch = collate(pool.rows, policy.pad_id)
    short = batch.actions_only()
    assert short.ids.shape[1] == 1 + int(batch.action.any(0).nonzero().max()) < batch.ids.shape[1]
    whole = torch.where(batch.action, policy.logprobs(batch, 0.7), 0.0)
    scored = policy.logprobs(short, 0.7)
    assert torch.allclose(scored, whole[:, : scored.shape[1]], atol=1e-12)


@pytest.mark.parametrize("level", ["turn", "token"])
def test_the_critic_learns_returns_without_touching_the_policy(level: str) -> None:
    policy = exact_policy()
    critic = Critic(policy, CriticSettings(lr=3e-3), level, micro_batch_tokens=1)
    pool = collect(made_up(True))
    before = [p.clone() for p in policy.model.parameters()]
    old = pool.at_actions(critic.values(pool.rows))
    assert old.abs().max() == 0  # the head starts at 0
    algorithm = AlgorithmSettings(name="ppo", level=level)
    rows = prepare(pool, algorithm, PLAIN, OFF, 10.0, Signals(values=old)).rows
    losses = [critic.step(rows)["value_loss"] for _ in range(150)]
    assert losses[-1] < 0.05 * losses[0]
    values = [
        values[place].item()
        for values, row in zip(critic.values(pool.rows), pool.rows, strict=True)
        for place in (p[0] for p in row.places(ACTION).values())
    ]
    # an episode's return is 10 from every step of a won one (gamma = 1), else 0
    assert values == pytest.approx([RETURNS[o] for o in OWNERS], abs=2.0)
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))
    slower = Critic(policy, CriticSettings(lr=1e-6), level, micro_batch_tokens=1)
    slower.load_state_dict(critic.state_dict())  # as a run that resumes with another rate
    assert slower.adamw.param_groups[0]["lr"] == 1e-6


def test_critic_gradient_does_not_depend_on_the_cut() -> None:
    def gradient(budget: int) -> Any:
        critic = Critic(exact_policy(), CriticSettings(lr=0.0), "token", budget, max_grad_norm=1e9)
        torch.nn.init.constant_(critic.head.weight, 0.1)
        critic.head.double()
        pool = collect(made_up(False))
        signals = Signals(values=pool.at_actions(critic.values(pool.rows)))
        algorithm = AlgorithmSettings(name="ppo", level="token")
        critic.step(prepare(pool, algorithm, PLAIN, OFF, 10.0, signals).rows)
        return torch.cat([p.grad.flatten() for p in critic.parameters])

    assert torch.allclose(gradient(1), gradient(10**6), rtol=1e-7, atol=1e-10)


# --- what settings name ----------------------------------------------------------------------------


def test_what_an_algorithm_needs_is_asked_for() -> None:
    def ask(name: str) -> None:
        given = {"algorithm": {"name": name}, "rollout": {"group_size": 1}}
        require_registered(Settings.read(given))

    for name in ("ppo", "reinforce_pp"):
        ask(name)
    for name in ("grpo", "gigpo", "rloo"):
        with pytest.raises(ValueError, match=r"group_size is 1.*ppo"):
            ask(name)


Estimators = Registry[AdvantageEstimator]


@pytest.fixture
def estimators(monkeypatch: pytest.MonkeyPatch) -> Estimators:
    """The registry; what a test adds is gone after it."""
    monkeypatch.setattr(ADVANTAGES, "_loaded", dict(ADVANTAGES._loaded))
    return ADVANTAGES


def test_an_estimator_reads_the_update_and_moves_advantages(estimators: Estimators) -> None:
    @estimators.register("late")
    @estimator(default_gamma=0.5)
    def late(update: UpdateView) -> Any:
        assert update.anchors[:2] == ["place 0", "place 0"] and update.critic is None
        return update.returns[update.episode] * update.gamma**update.step

    steps = torch.tensor([0, 0, 1, 2, 0, 1, 0, 1])
    expected = torch.tensor(RETURNS)[OWNERS]
    assert torch.allclose(_advantages("late"), expected * 0.5**steps)
    assert torch.allclose(_advantages("late", gamma=1.0), expected)


def test_an_estimator_with_a_critic_of_its_own(estimators: Estimators) -> None:
    @estimators.register("one_step")
    @estimator(needs_critic=True)
    def one_step(update: UpdateView) -> Any:
        critic = update.critic
        assert critic is not None
        return critic.rewards - critic.values, critic.rewards

    with pytest.raises(ValueError, match="the signal 'values'"):
        _prepared(made_up(False), name="one_step")
    pool, algorithm = collect(made_up(False)), AlgorithmSettings(name="one_step")
    values = torch.full((int(pool.lengths.sum()),), 2.0)
    got = prepare(pool, algorithm, PLAIN, OFF, 10.0, Signals(values=values))
    assert got.advantages.tolist() == [r - 2.0 for r in REWARDS]
    firsts = [row.value_target[p[0]] for row, p, _ in transitions(got.rows)]
    assert firsts == REWARDS


@pytest.mark.parametrize(
    ("value", "needs_critic", "message"),
    [
        (lambda u: u.returns, False, r"shape \(4,\).*each of the 8 transitions"),
        (lambda u: 0.0, False, "returned float"),
        (lambda u: (u.rewards, u.rewards[:, None]), False, "returned value targets"),
        (lambda u: u.rewards, True, "returned no value targets"),
        (lambda u: u.rewards / u.rewards.new_zeros(1), False, "returned NaN or infinity"),
    ],
)
def test_an_estimator_is_held_to_what_it_declares(
    estimators: Estimators, value: Any, needs_critic: bool, message: str
) -> None:
    estimators.add("wrong", estimator(needs_critic=needs_critic)(value))
    pool = collect(made_up(False))
    signals = Signals(values=torch.zeros(int(pool.lengths.sum())))
    with pytest.raises(ValueError, match=message):
        prepare(pool, AlgorithmSettings(name="wrong"), PLAIN, OFF, 10.0, signals)


def test_a_plain_function_does_not_say_what_it_needs(estimators: Estimators) -> None:
    estimators.add("plain", lambda update: update.rewards)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'plain' is a function.*estimator\(\.\.\.\)"):
        require_registered(Settings.read({"algorithm": {"name": "plain"}}))


def test_a_preset_on_the_command_line_wins_over_a_recipe_that_says_enabled() -> None:
    assert not load_settings("smoke", ["world_model.preset=off"]).world_model.enabled
    assert load_settings("alfworld_qwen2.5-7b_grpo", ["world_model.preset=paw"]).world_model.enabled
