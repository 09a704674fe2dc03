"""OpenRLHF's samples become the micro-batches that the local engine's update would be split into."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from files import load
from openrlhf.models import Actor, get_llm_for_sequence_regression
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from trajectories import made_up

from paw_train.algorithms.critic import Critic, value_places
from paw_train.algorithms.experience import Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.rows import trimmed
from paw_train.rollouts.scoring import collate, row_logprobs
from paw_train.rollouts.tokens import ACTION
from paw_train.settings import load_settings
from paw_train.training.openrlhf.experience_maker import PaWExperienceMaker

one_rank = load("tests/openrlhf/one_rank.py")


def _known(ids: Any) -> Any:
    """A log-probability for each token that hangs on the token alone."""
    return -(ids.float() % 7) / 10


@pytest.mark.parametrize("conversation", [False, True])
@pytest.mark.parametrize("old", ["actor", "rollout"])
def test_samples_become_micro_batches(
    monkeypatch: pytest.MonkeyPatch, conversation: bool, old: str
) -> None:
    settings = load_settings(
        "smoke",
        [
            "engine=openrlhf",
            "algorithm.name=gigpo",
            "optimizer.micro_batch_tokens=30",
            "openrlhf.gpus_per_node=2",
            f"openrlhf.old_logprobs={old}",
        ],
    )

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        assert len(batches) % 2 == 0
        for batch in batches:
            batch.action_log_probs = _known(batch.sequences[:, 1:]) * batch.action_mask
            batch.base_action_log_probs = 2 * batch.action_log_probs
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = _maker(settings)
    # the shortest row may be the last: its scores come padded to the width of its batch
    trajectories = sorted(made_up(conversation), key=lambda t: -len(t.rows[-1].ids))
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in trajectories]
    )
    assert len(experiences) % 2 == 0

    pool = collect(trajectories)
    if old == "actor":
        pool = _rescored(pool)
    wanted = prepare(
        pool, settings.algorithm, settings.objective, settings.world_model, 10.0, None, []
    )
    batches = [experience.labels[0].batch for experience in experiences]
    worth = _worth(batches)
    assert sorted(worth) == list(range(8))
    for number, (advantage, weight) in worth.items():
        assert advantage == pytest.approx(wanted.advantages[number].item())
        assert weight == pytest.approx(wanted.plan.weights[number].item())
    for batch in batches:
        known = _known(batch.ids)[batch.action]
        assert torch.allclose(batch.ref_logprob[batch.action], 2 * known)
        if old == "actor":
            assert torch.allclose(batch.logprob[batch.action], known)
    assert maker.metrics["logprob_gap"] > 0


def _rescored(pool: Any) -> Any:
    """The pool with the actor's log-probabilities in the place of the sampler's."""
    rows = [
        replace(
            row, logprob=[p if r == ACTION else 0.0 for p, r in zip(own, row.role, strict=True)]
        )
        for row in pool.rows
        for own in [_known(torch.tensor(row.ids)).tolist()]
    ]
    return replace(pool, rows=rows)


def _worth(batches: list[Any]) -> dict[int, tuple[float, float]]:
    """By transition, its advantage (of each token the same) and its world-model weight."""
    found = {}
    for batch in batches:
        for number in batch.turn[batch.action].unique().tolist():
            own = batch.turn == number
            (advantage,) = batch.advantage[own & batch.action].unique().tolist()
            found[number] = (advantage, batch.wm_weight[own].sum().item())
    return found


def _maker(settings: Any) -> PaWExperienceMaker:
    maker = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return, maker.update = settings, 10.0, 0
    maker.tokenizer, maker.initial_model_group = word_tokenizer(["red"]), SimpleNamespace()
    return maker


def _parts(
    monkeypatch: pytest.MonkeyPatch, actor: Any, *changes: str, made: Any = made_up
) -> tuple[Any, Any, Any]:
    """The maker, each transition's (advantage, weight), and the pool; the actor scores so."""
    given = ["engine=openrlhf", "world_model.alpha=0.5", "openrlhf.colocate=none", *changes]
    settings = load_settings("smoke", [*given, "openrlhf.gpus_per_node=1"])

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        for batch in batches:
            batch.action_log_probs = actor(batch.sequences)[:, 1:] * batch.action_mask
            batch.base_action_log_probs = batch.action_log_probs
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = _maker(settings)
    experiences = maker.make_experience_batch([OpenRLHFExperience(labels=[t]) for t in made(False)])
    batches = [experience.labels[0].batch for experience in experiences]
    return maker, batches, maker.scored_pool(made(False))[0]


def test_a_stale_batch_is_selected_by_the_policy_that_sampled_and_weighed_against_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker, batches, scored = _parts(monkeypatch, _known, "openrlhf.max_staleness=1")
    pool = collect(made_up(False))  # with the log-probabilities at sampling
    s = maker.run
    wanted = prepare(pool, s.algorithm, s.objective, s.world_model, 10.0)
    assert 0 < (wanted.plan.weights > 0).sum() < 8
    old = pool.at_actions([_known(torch.tensor(row.ids)) for row in pool.rows])
    assert torch.allclose(scored.logprob, old)
    ratios = (old - pool.logprob).exp()
    importance = pool.at_actions([row.importance for row in scored.rows])
    assert torch.allclose(importance, ratios.clamp(max=2.0))
    for batch in batches:
        for number in batch.turn[batch.action].unique().tolist():
            own = batch.turn == number
            expected = wanted.advantages[number] * importance[pool.turn == number]
            assert torch.allclose(batch.advantage[own & batch.action], expected)
            weight = batch.wm_weight[own].sum().item()  # no ratio belongs here
            assert weight == pytest.approx(wanted.plan.weights[number].item())
    # by the actor's arithmetic another set would be selected: the test can tell them apart
    other = prepare(_rescored(pool), s.algorithm, s.objective, s.world_model, 10.0)
    assert not torch.equal(other.plan.weights > 0, wanted.plan.weights > 0)
    assert maker.metrics["importance_capped"] == pytest.approx((ratios >= 2).float().mean().item())
    assert maker.metrics["importance_mean"] == pytest.approx(importance.mean().item())


def test_a_batch_by_the_policy_that_learns_is_worth_what_it_is_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Staleness 0: the actor gives the tokens the log-probabilities that they were sampled with."""

    def trajectories(conversation: bool) -> list[Any]:
        made = made_up(conversation)
        for row in (row for t in made for row in t.rows):
            known = _known(torch.tensor(row.ids)).tolist()
            row.logprob = [p if r == ACTION else 0.0 for p, r in zip(known, row.role, strict=True)]
        return made

    turns, expected, _ = _parts(monkeypatch, _known, made=trajectories)
    changes = "openrlhf.max_staleness=1"
    beside, found, pool = _parts(monkeypatch, _known, changes, made=trajectories)
    assert _worth(found) == _worth(expected)
    assert pool.at_actions([row.importance for row in pool.rows]).tolist() == [1.0] * len(pool.turn)
    assert "importance_mean" not in turns.metrics
    assert beside.metrics["importance_capped"] == 0


def test_vllms_own_log_probabilities_are_the_importance_ratio_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = ("openrlhf.max_staleness=1", "openrlhf.old_logprobs=rollout")
    _, _, scored = _parts(monkeypatch, _known, *changes)
    assert torch.equal(scored.logprob, collect(made_up(False)).logprob)
    assert all(row.importance is None for row in scored.rows)


@pytest.mark.parametrize("algorithm", ["grpo", "gigpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize("conversation", [False, True])
def test_what_openrlhfs_actor_scores_is_worth_what_the_local_engine_finds(
    monkeypatch: pytest.MonkeyPatch,
    conversation: bool,
    algorithm: str,
) -> None:
    """Advantages, selected set and weights, from the forward passes of either engine (float32)."""
    settings = load_settings(
        "smoke",
        [
            "engine=openrlhf",
            f"algorithm.name={algorithm}",
            "world_model.alpha=0.5",
            "rollout.temperature=0.8",
            "optimizer.minibatches=1",
            "optimizer.micro_batch_tokens=30",
            "openrlhf.gpus_per_node=1",
        ],
    )
    policy = LocalPolicy(scratch_model(one_rank.SMALL, 64, 0), word_tokenizer(["red"]))
    actor = Actor(policy.model, temperature=0.8)
    actor.packing_samples = False

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        for batch in batches:
            batch.action_log_probs = actor(
                batch.sequences, batch.action_mask, attention_mask=batch.attention_mask
            )
            batch.base_action_log_probs = batch.action_log_probs
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = _maker(settings)
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in made_up(conversation)]
    )

    pool = collect(made_up(conversation))
    known = row_logprobs(policy, [trimmed(row) for row in pool.rows], 10**6, 0.8)
    pool = replace(
        pool,
        rows=[
            replace(row, logprob=own.tolist() + [0.0] * (len(row.ids) - len(own)))
            for row, own in zip(pool.rows, known, strict=True)
        ],
    )
    wanted = prepare(
        pool, settings.algorithm, settings.objective, settings.world_model, 10.0, None, []
    )
    batches = [experience.labels[0].batch for experience in experiences]
    for batch in batches:
        for number in batch.turn[batch.action].unique().tolist():
            own = batch.logprob[batch.action & (batch.turn == number)]
            assert torch.allclose(own, pool.logprob[pool.turn == number], atol=1e-5)
    found = _worth(batches)
    advantages, weights = (torch.tensor(v) for v in zip(*map(found.get, range(8)), strict=True))
    assert torch.allclose(advantages, wanted.advantages, atol=1e-5)
    assert torch.allclose(weights, wanted.plan.weights.float(), atol=1e-5)
    assert 0 < int((weights != 0).sum()) < 8
    assert wanted.metrics["entropy_threshold"] == pytest.approx(
        maker.metrics["entropy_threshold"], rel=1e-5
    )


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("conversation", [False, True])
def test_openrlhfs_critic_teaches_what_the_local_engines_would(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    conversation: bool,
    level: str,
) -> None:
    """Advantages, value targets and old values, from the forward passes of either critic (float32)."""
    settings = load_settings(
        "smoke",
        [
            "engine=openrlhf",
            "algorithm.name=ppo",
            f"algorithm.level={level}",
            "algorithm.lam=0.9",
            "optimizer.minibatches=1",
            "optimizer.micro_batch_tokens=30",
            "openrlhf.gpus_per_node=1",
        ],
    )
    policy = LocalPolicy(scratch_model(one_rank.SMALL, 64, 0), word_tokenizer(["red"]))
    policy.save(tmp_path)
    local = Critic(policy, settings.algorithm.critic, level, 10**6)
    torch.nn.init.normal_(local.head.weight, generator=torch.Generator().manual_seed(5))
    monkeypatch.setattr(
        "openrlhf.utils.utils.convert_to_torch_dtype", lambda name: getattr(torch, name)
    )
    critic = get_llm_for_sequence_regression(
        str(tmp_path), "critic", param_dtype="float32", attn_implementation="sdpa"
    )
    critic.score.weight.data.copy_(local.head.weight.detach())
    critic.eval()

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        for batch in batches:
            batch.action_log_probs = _known(batch.sequences[:, 1:]) * batch.action_mask
            batch.base_action_log_probs = batch.action_log_probs
            batch.values = critic(batch.sequences, batch.action_mask, batch.attention_mask)
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = _maker(settings)
    maker.update = 4
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in made_up(conversation)]
    )

    pool = collect(made_up(conversation))
    signals = Signals(values=pool.at_actions(local.values(pool.rows)))
    assert signals.values is not None and signals.values.abs().max() > 0.1
    wanted = prepare(
        _rescored(pool),
        settings.algorithm,
        settings.objective,
        settings.world_model,
        10.0,
        signals,
        [],
    )
    expected = collate(wanted.rows, 0)
    seen = set()
    for experience in experiences:
        assert int(experience.info["update"][0]) == 4
        batch = experience.labels[0].batch
        for number in batch.turn[batch.action].unique().tolist():
            seen.add(number)
            own, other = (x.action & (x.turn == number) for x in (batch, expected))
            places = [value_places(x, level) for x in (batch, expected)]
            assert torch.equal(places[0][own], places[1][other])
            assert torch.allclose(batch.advantage[own], expected.advantage[other], atol=1e-5)
            for name in ("value_target",):
                ours = getattr(batch, name)[own & places[0]]
                theirs = getattr(expected, name)[other & places[1]]
                assert torch.allclose(ours, theirs, atol=1e-5), name
    assert seen == set(range(8))
