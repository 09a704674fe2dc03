"""OpenRLHF's samples become the micro-batches that the local engine's update would be split into."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from openrlhf.models import Actor, get_llm_for_sequence_regression  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402

from paw_train.algorithms.critic import Critic  # noqa: E402
from paw_train.algorithms.experience import Signals, collect, prepare  # noqa: E402
from paw_train.policies.local.policy import LocalPolicy  # noqa: E402
from paw_train.policies.local.scratch import scratch_model, word_tokenizer  # noqa: E402
from paw_train.rollouts.tokens import collate  # noqa: E402
from paw_train.settings import load_settings  # noqa: E402
from paw_train.training.openrlhf.experience_maker import PaWExperienceMaker  # noqa: E402


def _known(ids: Any) -> Any:
    """A log-probability for each token that hangs on the token alone."""
    return -(ids.float() % 7) / 10


@pytest.mark.parametrize("conversation", [False, True])
@pytest.mark.parametrize("old", ["actor", "rollout"])
def test_samples_become_micro_batches(
    made_up: Any, monkeypatch: pytest.MonkeyPatch, conversation: bool, old: str
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
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in made_up(conversation)]
    )
    assert len(experiences) % 2 == 0

    pool = collect(made_up(conversation))
    if old == "actor":
        for row in pool.rows:
            for step in row.steps:
                step.logprobs = _known(torch.tensor(row.ids[slice(*step.action)])).tolist()
    wanted = prepare(
        pool, settings.algorithm, settings.objective, settings.world_model, 10.0, None, []
    )
    expected = sorted(
        (wanted.advantages[i].item(), wanted.wm_weights[i].item()) for i in range(len(pool.steps))
    )
    found, seen = [], 0
    for experience in experiences:
        [part] = experience.labels
        for row, known in zip(part.experience.rows, part.ref_logprobs, strict=True):
            for step in row.steps:
                if step.action[0] == step.action[1]:
                    continue
                seen += 1
                e = part.experience
                found.append((e.advantages[step.index].item(), e.wm_weights[step.index].item()))
                ids = torch.tensor(row.ids[slice(*step.action)])
                assert torch.allclose(known[slice(*step.action)], 2 * _known(ids))
                if old == "actor":
                    assert step.logprobs == pytest.approx(_known(ids).tolist())
    assert seen == len(pool.steps) == 8
    assert torch.allclose(torch.tensor(sorted(found)), torch.tensor(expected))
    assert maker.metrics["logprob_gap"] > 0


def _maker(settings: Any) -> PaWExperienceMaker:
    maker = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return, maker.update = settings, 10.0, 0
    maker.tokenizer, maker.initial_model_group = word_tokenizer(["red"]), SimpleNamespace()
    return maker


def _parts(made_up: Any, monkeypatch: pytest.MonkeyPatch, actor: Any, *changes: str) -> Any:
    """The maker, and each transition's (advantage, weight, step), by its tokens; the actor scores so."""
    given = ["engine=openrlhf", "world_model.alpha=0.5", "openrlhf.colocate=none", *changes]
    settings = load_settings("smoke", [*given, "openrlhf.gpus_per_node=1"])

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        for batch in batches:
            batch.action_log_probs = actor(batch.sequences)[:, 1:] * batch.action_mask
            batch.base_action_log_probs = batch.action_log_probs
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = _maker(settings)
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in made_up(False)]
    )
    found = {}
    for experience in experiences:
        e = experience.labels[0].experience
        for row in e.rows:
            for step in row.steps:
                worth = e.advantages[step.index].item(), e.wm_weights[step.index].item()
                found[tuple(row.ids[: step.action[1]])] = (*worth, step)
    return maker, found


def test_a_stale_batch_is_selected_by_the_policy_that_sampled_and_weighed_against_it(
    made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, found = _parts(made_up, monkeypatch, _known, "openrlhf.max_staleness=1")
    pool = collect(made_up(False))  # with the log-probabilities at sampling
    s = maker.run
    wanted = prepare(pool, s.algorithm, s.objective, s.world_model, 10.0)
    assert 0 < (wanted.wm_weights > 0).sum() < len(pool.steps)
    ratios = []
    for row in pool.rows:
        [step] = row.steps
        advantage, weight, own = found[tuple(row.ids[: step.action[1]])]
        assert advantage == pytest.approx(wanted.advantages[step.index].item())
        assert weight == pytest.approx(wanted.wm_weights[step.index].item())
        old = _known(torch.tensor(row.ids[slice(*step.action)])).tolist()
        assert own.logprobs == pytest.approx(old)
        untruncated = [math.exp(p - q) for p, q in zip(old, step.logprobs, strict=True)]
        assert own.importance == pytest.approx([min(ratio, 2.0) for ratio in untruncated])
        ratios += untruncated
    # by the actor's arithmetic another set would be selected: the test can tell them apart
    for row in pool.rows:
        for step in row.steps:
            step.logprobs = _known(torch.tensor(row.ids[slice(*step.action)])).tolist()
    other = prepare(pool, s.algorithm, s.objective, s.world_model, 10.0)
    assert not torch.equal(other.wm_weights > 0, wanted.wm_weights > 0)
    assert maker.metrics["importance_capped"] == pytest.approx(
        sum(ratio >= 2.0 for ratio in ratios) / len(ratios)
    )
    assert maker.metrics["importance_mean"] == pytest.approx(
        sum(min(ratio, 2.0) for ratio in ratios) / len(ratios)
    )


def test_a_batch_by_the_policy_that_learns_is_worth_what_it_is_in_turns(
    made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staleness 0: the actor gives the tokens the log-probabilities that they were sampled with."""

    def trajectories(conversation: bool) -> list[Any]:
        made = made_up(conversation)
        for row in (row for t in made for row in t.rows):
            for step in row.steps:
                step.logprobs = _known(torch.tensor(row.ids[slice(*step.action)])).tolist()
        return made

    turns, expected = _parts(trajectories, monkeypatch, _known)
    beside, found = _parts(trajectories, monkeypatch, _known, "openrlhf.max_staleness=1")
    assert found.keys() == expected.keys()
    for key, (advantage, weight, step) in expected.items():
        assert found[key][:2] == (advantage, weight)
        assert found[key][2].logprobs == step.logprobs
        assert found[key][2].importance == [1.0] * len(step.logprobs)
        assert not step.importance
    assert "importance_mean" not in turns.metrics
    assert beside.metrics["importance_capped"] == 0


def test_vllms_own_log_probabilities_are_the_importance_ratio_already(
    made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("openrlhf.max_staleness=1", "openrlhf.old_logprobs=rollout")
    _, found = _parts(made_up, monkeypatch, _known, *changes)
    for row in (row for t in made_up(False) for row in t.rows):
        [step] = row.steps
        own = found[tuple(row.ids[: step.action[1]])][2]
        assert own.logprobs == step.logprobs
        assert own.importance == []


@pytest.mark.parametrize("algorithm", ["grpo", "gigpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize("conversation", [False, True])
def test_what_openrlhfs_actor_scores_is_worth_what_the_local_engine_finds(
    made_up: Any,
    one_rank: Any,
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
    maker = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return, maker.update = settings, 10.0, 0
    maker.tokenizer, maker.initial_model_group = policy.tokenizer, SimpleNamespace()
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in made_up(conversation)]
    )

    pool = collect(made_up(conversation))
    with torch.no_grad():
        batch = collate(pool.rows, 0).actions_only()
        logprobs = policy.logprobs(batch, 0.8)
    for own, mask, index in zip(logprobs, batch.action_mask, batch.index.tolist(), strict=True):
        pool.steps[index].logprobs = own[mask].tolist()
    wanted = prepare(
        pool, settings.algorithm, settings.objective, settings.world_model, 10.0, None, []
    )
    by_ids = {
        tuple(row.ids[slice(*step.action)]): step.index for row in pool.rows for step in row.steps
    }
    found = {}
    for experience in experiences:
        e = experience.labels[0].experience
        for row in e.rows:
            for step in row.steps:
                index = by_ids[tuple(row.ids[slice(*step.action)])]
                found[index] = (e.advantages[step.index].item(), e.wm_weights[step.index].item())
                assert step.logprobs == pytest.approx(pool.steps[index].logprobs, abs=1e-5)
    assert len(found) == len(pool.steps) == 8
    advantages, weights = (torch.tensor(v) for v in zip(*map(found.get, range(8)), strict=True))
    assert torch.allclose(advantages, wanted.advantages, atol=1e-5)
    assert torch.allclose(weights, wanted.wm_weights, atol=1e-5)
    assert 0 < int((weights != 0).sum()) < 8
    assert wanted.metrics["entropy_threshold"] == pytest.approx(
        maker.metrics["entropy_threshold"], rel=1e-5
    )


@pytest.mark.parametrize("level", ["turn", "token"])
@pytest.mark.parametrize("conversation", [False, True])
def test_openrlhfs_critic_teaches_what_the_local_engines_would(
    made_up: Any,
    one_rank: Any,
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
    maker = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return, maker.update = settings, 10.0, 4
    maker.tokenizer, maker.initial_model_group = policy.tokenizer, SimpleNamespace()
    experiences = maker.make_experience_batch(
        [OpenRLHFExperience(labels=[t]) for t in made_up(conversation)]
    )

    pool = collect(made_up(conversation))
    signals = Signals(values=local.values(pool.rows, len(pool.steps)))
    assert signals.values is not None and signals.values.abs().max() > 0.1
    for row in pool.rows:
        for step in row.steps:
            step.logprobs = _known(torch.tensor(row.ids[slice(*step.action)])).tolist()
    wanted = prepare(
        pool, settings.algorithm, settings.objective, settings.world_model, 10.0, signals, []
    )
    assert wanted.value_targets is not None and wanted.old_values is not None
    by_ids = {
        tuple(row.ids[slice(*step.action)]): step.index for row in pool.rows for step in row.steps
    }
    count = 8 if level == "turn" else sum(len(step.logprobs) for step in pool.steps)
    seen = set()
    for experience in experiences:
        assert int(experience.info["update"][0]) == 4
        e = experience.labels[0].experience
        assert experience.labels[0].values == count
        for row in e.rows:
            for step in row.steps:
                index = by_ids[tuple(row.ids[slice(*step.action)])]
                seen.add(index)
                for name in ("advantages", "value_targets", "old_values"):
                    ours, theirs = getattr(e, name)[step.index], getattr(wanted, name)[index]
                    assert torch.allclose(ours.float(), theirs.float(), atol=1e-5), name
    assert seen == set(range(8))
