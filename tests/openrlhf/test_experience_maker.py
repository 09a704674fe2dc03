"""OpenRLHF's samples become the micro-batches that the local engine's update would be split into."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from openrlhf.models import Actor, get_llm_for_sequence_regression
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from small_policies import word_policy
from trajectories import made_up

from paw_train.algorithms.critic import Critic, value_places
from paw_train.algorithms.experience import Prepared, Signals, prepare
from paw_train.algorithms.pool import Pool, collect
from paw_train.policies.local.scratch import word_tokenizer
from paw_train.rollouts.rows import trimmed
from paw_train.rollouts.scoring import collate, row_logprobs
from paw_train.settings import Settings, load_settings
from paw_train.training.openrlhf.experience_maker import PaWExperienceMaker

EPISODES = ((0, 3, 0.0), (1, 2, 0.0), (1, 2, 10.0), (0, 1, 10.0))
"""the shortest row is the last: its scores come padded to the width of its batch"""
Scored = Callable[[Any], torch.Tensor]


def _settings(*changes: str) -> Settings:
    given = ["engine=openrlhf", "world_model.alpha=0.5", "optimizer.micro_batch_tokens=30"]
    return load_settings("smoke", [*given, "openrlhf.gpus_per_node=2", *changes])


def _known(ids: torch.Tensor) -> torch.Tensor:
    """A log-probability for each token that hangs on the token alone."""
    return -(ids.float() % 7) / 10


def _by_token(batch: Any) -> torch.Tensor:
    return _known(batch.sequences[:, 1:]) * batch.action_mask


def _made(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    conversation: bool = False,
    actor: Scored = _by_token,
    critic: Scored | None = None,
) -> tuple[PaWExperienceMaker, list[Any]]:
    """The maker, and its micro-batches; OpenRLHF's models score so."""

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        assert len(batches) % 2 == 0
        for batch in batches:
            batch.action_log_probs = actor(batch)
            batch.base_action_log_probs = 2 * batch.action_log_probs
            batch.values = None if critic is None else critic(batch)
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return, maker.update = settings, 10.0, 4
    maker.tokenizer, maker.initial_model_group = word_tokenizer(["red"]), SimpleNamespace()
    samples = [OpenRLHFExperience(labels=[t]) for t in made_up(conversation, EPISODES)]
    experiences = maker.make_experience_batch(samples)
    assert len(experiences) % 2 == 0
    assert {int(experience.info["update"][0]) for experience in experiences} == {4}
    return maker, [experience.labels[0].batch for experience in experiences]


def _turns(batches: list[Any]) -> Iterator[tuple[int, Any, torch.Tensor]]:
    """Each transition, its micro-batch, and where in it; all are in some."""
    seen = set()
    for batch in batches:
        for number in batch.turn[batch.action].unique().tolist():
            seen.add(number)
            yield number, batch, batch.turn == number
    assert seen == set(range(8))


def _pool(conversation: bool = False) -> Pool:
    return collect(made_up(conversation, EPISODES))


def _with(pool: Pool, logprobs: torch.Tensor) -> Pool:
    """The pool with other log-probabilities in the place of the sampler's."""
    pairs = zip(pool.rows, pool.by_row(logprobs), strict=True)
    return replace(pool, rows=[replace(row, logprob=own) for row, own in pairs])


def _by_ids(pool: Pool) -> torch.Tensor:
    return pool.at_actions([_known(torch.tensor(row.ids)) for row in pool.rows])


def _prepared(pool: Pool, s: Settings, signals: Signals | None = None) -> Prepared:
    return prepare(pool, s.algorithm, s.objective, s.world_model, 10.0, signals, [])


CASES = [
    ("grpo", False, "actor"),
    ("grpo", True, "actor"),
    ("gigpo", False, "actor"),
    ("gigpo", True, "rollout"),
    ("rloo", False, "rollout"),
    ("reinforce_pp", True, "actor"),
]


@pytest.mark.parametrize(("algorithm", "conversation", "old"), CASES)
def test_what_openrlhfs_actor_scores_is_worth_what_the_local_engine_finds(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, conversation: bool, old: str
) -> None:
    """By the forward passes of either engine, in float32."""
    changes = (f"algorithm.name={algorithm}", f"openrlhf.old_logprobs={old}")
    settings = _settings("rollout.temperature=0.8", *changes)
    policy = word_policy(["red"])
    actor = Actor(policy.model, temperature=0.8)
    actor.packing_samples = False

    def scored(batch: Any) -> Any:
        return actor(batch.sequences, batch.action_mask, attention_mask=batch.attention_mask)

    maker, batches = _made(monkeypatch, settings, conversation, scored)
    pool = _pool(conversation)
    read = [trimmed(row) for row in pool.rows]
    known = pool.at_actions(row_logprobs(policy, read, 10**6, 0.8))
    expected = known if old == "actor" else pool.logprob
    wanted = _prepared(_with(pool, expected), settings)
    advantages, weights = torch.zeros(8), torch.zeros(8)
    for number, batch, own in _turns(batches):
        places = batch.action & own
        assert torch.allclose(batch.logprob[places], expected[pool.turn == number], atol=1e-5)
        reference = 2 * known[pool.turn == number]
        assert torch.allclose(batch.ref_logprob[places], reference, atol=1e-5)
        [advantages[number]] = batch.advantage[places].unique()
        weights[number] = batch.wm_weight[own].sum()
    assert torch.allclose(advantages, wanted.advantages, atol=1e-5)
    assert torch.allclose(weights, wanted.plan.weights.float(), atol=1e-5)
    assert 0 < int((weights != 0).sum()) < 8
    threshold = pytest.approx(wanted.metrics["entropy_threshold"], rel=1e-5)
    assert maker.metrics["entropy_threshold"] == threshold
    assert maker.metrics["logprob_gap"] > 0


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("conversation", [False, True])
def test_openrlhfs_critic_teaches_what_the_local_engines_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conversation: bool, level: str
) -> None:
    """By the forward passes of either critic, in float32."""
    settings = _settings("algorithm.name=ppo", f"algorithm.level={level}", "algorithm.lam=0.9")
    policy = word_policy(["red"])
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

    def valued(batch: Any) -> Any:
        return critic(batch.sequences, batch.action_mask, batch.attention_mask)

    _, batches = _made(monkeypatch, settings, conversation, critic=valued)
    pool = _pool(conversation)
    signals = Signals(values=pool.at_actions(local.values(pool.rows)))
    assert signals.values is not None and signals.values.abs().max() > 0.1
    expected = collate(_prepared(_with(pool, _by_ids(pool)), settings, signals).rows, 0)
    for number, batch, _ in _turns(batches):
        own, other = (x.action & (x.turn == number) for x in (batch, expected))
        places = [value_places(x, level) for x in (batch, expected)]
        assert torch.equal(places[0][own], places[1][other])
        assert torch.allclose(batch.advantage[own], expected.advantage[other], atol=1e-5)
        ours = batch.value_target[own & places[0]]
        assert torch.allclose(ours, expected.value_target[other & places[1]], atol=1e-5)
