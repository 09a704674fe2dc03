"""What training makes of Search QA: which tokens carry which loss, and ZeroSearch's curriculum."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import said_in, word_policy

from paw_gym.retrieval.simulated import Curriculum, ScriptWriter
from paw_train.algorithms.experience import Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.evaluation import make_pool
from paw_train.losses.batch import MiniBatchTotals
from paw_train.losses.objective import combined_loss
from paw_train.policies.local.policy import LocalPolicy
from paw_train.reporting.terminal import RunDisplay
from paw_train.rollouts.rollout import Trajectory, demonstrations
from paw_train.rollouts.scoring import collate
from paw_train.settings import EnvSettings, Settings, load_settings
from paw_train.training.local import Run, claim_folder


@pytest.fixture(scope="module")
def policy() -> LocalPolicy:
    """A small policy whose tokenizer knows the language of the made-up encyclopedia."""
    pool = _pool("conversation")
    played = demonstrations(pool, None, pool.tasks.ids[:60])
    return word_policy(said_in(trajectory.episode for trajectory in played))


def _pool(mode: str, group_size: int = 1) -> Any:
    env = EnvSettings(
        id="paw_gym/SearchQA-v0",
        kwargs={"num_passages": 300, "top_k": 2},
        mode=mode,
        history_length=None,
    )
    return make_pool(env, "train", 3, group_size, 0)


def _episodes(policy: LocalPolicy, mode: str) -> list[Trajectory]:
    """Three groups of two episodes with searches; one of each group fails in the end."""
    pool = _pool(mode, group_size=2)
    played = demonstrations(pool, policy.chat, pool.tasks.ids[:3])
    for trajectory in played[::2]:
        steps = trajectory.episode.transitions
        steps[-1] = dataclasses.replace(steps[-1], reward=0.0)
    return played


def _gradients(policy: LocalPolicy, settings: Settings) -> list[tuple[list[str], Any, Any]]:
    """For each row of one update: its tokens as text, and by token the gradient of each loss.

    The gradient is that with respect to the token's log-probability; the KL is switched on.
    """
    objective = settings.objective.replace(kl_coef=0.1, kl_in="loss")
    pool = collect(_episodes(policy, settings.env.mode))
    values = torch.rand(len(pool.turn), generator=torch.Generator().manual_seed(0))
    experience = prepare(
        pool,
        settings.algorithm,
        objective,
        settings.world_model,
        1.0,
        Signals(values=values),
        policy.chat.ask,
    )
    batch = collate(experience.rows, policy.pad_id)
    with torch.no_grad():
        logprobs = policy.logprobs(batch, 1.0)
    logprobs.requires_grad_()
    batch.ref_logprob = logprobs.detach() - 0.5
    totals = MiniBatchTotals.count(1, [batch])
    output = combined_loss(logprobs, batch, totals, objective, settings.world_model)
    found = []
    for loss in (output.policy_loss, output.wm_loss):
        by_token = torch.zeros(batch.ids.shape)
        if loss is not None:
            (grad,) = torch.autograd.grad(loss, logprobs, retain_graph=True)
            by_token = grad.abs()
        found.append(by_token)
    texts = [[policy.chat.raw([i]) for i in row.ids] for row in experience.rows]
    return list(zip(texts, *found, strict=True))


def _places(tokens: list[str], pattern: str) -> set[int]:
    """Tokens that lie inside what a pattern finds in a row's text."""
    text, owner = "".join(tokens), [i for i, token in enumerate(tokens) for _ in token]
    return {owner[k] for m in re.finditer(pattern, text, re.DOTALL) for k in range(*m.span(1))}


FOUND = r"(<information>\nDoc 1.*?</information>)"
SAID = r"<agent>(.*?(?:<end>|$))"


@pytest.mark.parametrize("method", ["search-r1", "grpo", "gigpo", "zerosearch", "grpo_paw"])
@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_retrieved_tokens_carry_no_policy_loss(policy: LocalPolicy, method: str, mode: str) -> None:
    """Search-R1's retrieved-token masking, found again in the text of a real batch."""
    settings = load_settings(
        f"search_qa_qwen2.5-3b_{method}", [f"env.mode={mode}", "objective.entropy_coef=0"]
    )
    searched = 0
    for tokens, policy_gradient, _ in _gradients(policy, settings):
        carrying = set(policy_gradient.nonzero().flatten().tolist())
        assert carrying <= _places(tokens, SAID)
        assert not carrying & _places(tokens, FOUND)
        assert carrying  # and what the agent said does carry it
        searched += "<information>\nDoc 1" in "".join(tokens)
    assert searched >= 3


def test_the_world_models_loss_on_information_is_a_switch_of_its_own(policy: LocalPolicy) -> None:
    def settings(*overrides: str) -> Settings:
        return load_settings(
            "search_qa_qwen2.5-3b_search-r1",
            ["algorithm.name=grpo", "rollout.group_size=2", "algorithm.level=turn",
             "objective.entropy_coef=0", *overrides],
        )  # fmt: skip

    off = _gradients(policy, settings("world_model.enabled=false"))
    on = _gradients(policy, settings("world_model.enabled=true", "world_model.alpha=1.0"))
    learnt = 0
    for (tokens, before, nothing), (same, after, world_model) in zip(off, on, strict=True):
        own = len(tokens)  # what nothing is learnt of is cut off: the last observation
        assert tokens == same[:own]
        assert torch.equal(before[:own], after[:own])  # the policy's loss stays what it was
        assert not after[own:].any() and not nothing.any()
        carrying = set(world_model.nonzero().flatten().tolist())
        assert not carrying & _places(tokens, SAID)
        learnt += len(carrying & _places(tokens, FOUND))
    assert learnt > 50


Write = tuple[float | None, str, bool]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Write]:
    """(progress told, query, noisy?) of each search that a script answers."""
    seen: list[Write] = []
    write = ScriptWriter.write

    def spy(self: Any, query: str, context: Any, count: int, noisy: bool) -> list[str]:
        seen.append((context.progress, query, noisy))
        return write(self, query, context, count, noisy)

    monkeypatch.setattr(ScriptWriter, "write", spy)
    return seen


@pytest.mark.slow
def test_zerosearch_grows_noisier_update_by_update_and_resumes_there(
    tmp_path: Path, written: list[Write]
) -> None:
    def run(name: str) -> Run:
        settings = load_settings(
            "search_qa_tiny_zerosearch",
            [f"out={tmp_path}", f"name={name}", f"warm_starts={tmp_path / 'warm'}",
             "evaluation.tasks=0", "checkpoint_every=1", "env.kwargs.num_questions=200"],
        )  # fmt: skip
        folder = tmp_path / name
        claim_folder(folder, settings)
        return Run(settings, folder, RunDisplay(quiet=True))

    run("whole").execute()
    whole = written.copy()
    curriculum = Curriculum(0.0, 1.0, 4.0)
    shares = []
    for progress in (0.0, 1 / 3, 2 / 3):
        kinds = [noisy for told, _, noisy in whole if told == progress]
        assert len(kinds) > 20
        shares.append(sum(kinds) / len(kinds))
        assert shares[-1] == pytest.approx(curriculum.noise(progress), abs=0.25)
    assert len([w for w in whole if w[0] is None]) == 0
    # some twenty queries an update: no order among the later ones
    assert shares[0] == 0 < min(shares[1:])

    written.clear()
    first = run("stopped")
    first.interrupted = True  # as if asked to stop during the first update
    first.execute()
    assert {told for told, _, _ in written} == {0.0}
    run("stopped").execute()
    assert written == whole
