"""Training with Search QA: the tokens that carry the loss, and ZeroSearch's curriculum."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import said_in, word_policy

from paw_gym.retrieval import simulated
from paw_gym.retrieval.simulated import Curriculum
from paw_train.algorithms.experience import Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.evaluation import make_pool
from paw_train.losses.batch import MiniBatchTotals
from paw_train.losses.objective import combined_loss
from paw_train.policies.local.policy import LocalPolicy
from paw_train.reporting.terminal import RunDisplay
from paw_train.rollouts.rollout import demonstrations
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
    kwargs = {"num_passages": 300, "top_k": 2}
    env = EnvSettings(id="paw_gym/SearchQA-v0", kwargs=kwargs, mode=mode, history_length=None)
    return make_pool(env, "train", 3, group_size, 0)


def _gradients(policy: LocalPolicy, settings: Settings) -> Iterator[tuple[list[str], set[int]]]:
    """For each row of one update, its tokens, and those that the loss moves; the KL is on.

    Three groups of two episodes with searches; one of each group fails in the end.
    """
    envs = _pool(settings.env.mode, group_size=2)
    played = demonstrations(envs, policy.chat, envs.tasks.ids[:3])
    for trajectory in played[::2]:
        steps = trajectory.episode.transitions
        steps[-1] = dataclasses.replace(steps[-1], reward=0.0)
    objective = settings.objective.replace(kl_coef=0.1, kl_in="loss")
    pool = collect(played)
    values = torch.rand(len(pool.turn), generator=torch.Generator().manual_seed(0))
    wm, signals = settings.world_model, Signals(values=values)
    rows = prepare(pool, settings.algorithm, objective, wm, 1.0, signals, policy.chat.ask).rows
    batch = collate(rows, policy.pad_id)
    with torch.no_grad():
        logprobs = policy.logprobs(batch, 1.0)
    logprobs.requires_grad_()
    batch.ref_logprob = logprobs.detach() - 0.5
    totals = MiniBatchTotals.count(1, [batch])
    loss = combined_loss(logprobs, batch, totals, objective, wm).policy_loss
    (gradient,) = torch.autograd.grad(loss, logprobs)
    for row, moved in zip(rows, gradient, strict=True):
        yield [policy.chat.raw([i]) for i in row.ids], set(moved.nonzero().flatten().tolist())


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
    for tokens, carrying in _gradients(policy, settings):
        assert carrying <= _places(tokens, SAID)
        assert not carrying & _places(tokens, FOUND)
        assert carrying  # and what the agent said does carry it
        searched += "<information>\nDoc 1" in "".join(tokens)
    assert searched >= 3


@pytest.mark.slow
def test_zerosearch_grows_noisier_and_resumes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []  # progress told, query, and whether the answer is noisy
    write = simulated._script

    def spy(query: str, context: Any, count: int, noisy: bool) -> list[str]:
        written.append((context.progress, query, noisy))
        return write(query, context, count, noisy)

    monkeypatch.setattr(simulated, "_script", spy)

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
    assert None not in {told for told, _, _ in whole}
    # some twenty queries an update: no order among the later ones
    assert shares[0] == 0 < min(shares[1:])

    written.clear()
    first = run("stopped")
    first.interrupted = True  # as if asked to stop during the first update
    first.execute()
    assert {told for told, _, _ in written} == {0.0}
    run("stopped").execute()
    assert written == whole
