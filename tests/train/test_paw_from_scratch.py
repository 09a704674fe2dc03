"""The single-file example computes what the library computes."""

from __future__ import annotations

import ast
import copy
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from files import load

PATH = Path(__file__).resolve().parents[2] / "examples" / "paw_from_scratch.py"


@pytest.fixture(scope="module")
def example() -> Any:
    return load("examples/paw_from_scratch.py")


@pytest.fixture(scope="module")
def played(example: Any) -> Any:
    """A rollout of a small policy that cloned a few episodes, with returns that differ."""
    random.seed(0)
    torch.manual_seed(0)
    size = {"hidden": 32, "heads": 2, "layers": 2, "max_steps": 5, "group_size": 4}
    s = example.Settings(**size, cloning_steps=30, context_weight=1.0)
    words = {name: i for i, name in enumerate(["<pad>", "<unk>", "<user>", "<agent>", "</action>"])}
    shown = example.run(example.make_pool(s, "train", 12, 1), words, s)
    model = example.Transformer(s, len(words))
    example.clone(model, shown, s)
    pool = example.make_pool(s, "train", 3, s.group_size, s.max_steps)
    rows = example.run(pool, words, s, model)
    for number, episode in enumerate(pool.episodes):
        last = episode.transitions[-1]
        episode.transitions[-1] = replace(last, reward=last.reward + 10.0 * (number % 3 == 0))
    returns = [episode.total_reward for episode in pool.episodes]
    made = {"s": s, "model": model, "rows": rows, "episodes": pool.episodes, "returns": returns}
    return SimpleNamespace(**made, batch=example.collate(rows))


@pytest.fixture
def moved(played: Any) -> Any:
    """The policy some optimiser steps later, in double precision: its ratios are not 1."""
    model = copy.deepcopy(played.model).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)
    return model


def test_it_is_one_file_that_needs_torch_and_paw_gym_alone() -> None:
    text = PATH.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "paw_gym"}


def test_cached_sampling_gives_the_log_probabilities_of_one_pass(example: Any, played: Any) -> None:
    batch = played.batch
    with torch.no_grad():
        logprobs = example.token_logprobs(played.model, batch.ids)
    assert batch.action.any(1).all()
    torch.testing.assert_close(
        logprobs[batch.action], batch.old_logprobs[batch.action], rtol=0, atol=1e-4
    )


def test_loss_and_gradient_are_those_of_the_library(example: Any, played: Any, moved: Any) -> None:
    batch = played.batch
    logprobs = example.token_logprobs(moved, batch.ids)
    likely = logprobs.detach()[batch.observation].exp().quantile(0.7).item()
    s = replace(played.s, rho=likely)  # some tokens are clipped, some not
    advantages, weights = example.plan(batch, played.returns, s)
    policy, wm = example.losses(logprobs, batch, advantages, weights, s)

    output = _library(played, moved, s)
    # the cases that the formulas tell apart all occur
    ratio = (logprobs - batch.old_logprobs).exp()[batch.action]
    assert 0 < ((ratio - 1).abs() > s.clip).double().mean() < 1
    assert 0 < (logprobs[batch.observation].exp() > s.rho).double().mean() < 1
    assert 0 < (weights > 0).double().mean() < 1
    assert advantages.unique().numel() > 2
    for ours, theirs in ((policy, output.policy_loss), (s.wm_coef * wm, output.wm_loss)):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        for weight in moved.parameters():
            (found,) = torch.autograd.grad(ours, weight, retain_graph=True)
            (expected,) = torch.autograd.grad(theirs, weight, retain_graph=True)
            largest = expected.abs().max().item()
            assert largest > 0
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * largest)


def test_minibatches_average_to_the_whole(example: Any, played: Any, moved: Any) -> None:
    s, batch = played.s, played.batch
    advantages, weights = example.plan(batch, played.returns, s)
    logprobs = example.token_logprobs(moved, batch.ids).detach()
    whole = torch.stack(example.losses(logprobs, batch, advantages, weights, s))
    halves = []
    for part in torch.arange(len(played.rows)).chunk(2):
        some = example.Batch(*(x[part] for x in batch))
        policy, wm = example.losses(logprobs[part], some, advantages[part], weights, s)
        halves.append(torch.stack([policy, 2 * wm]))
    torch.testing.assert_close(torch.stack(halves).mean(0), whole)


def _library(played: Any, model: Any, s: Any) -> Any:
    """The ``LossOutput`` of the library for the same rollout and the same logits."""
    from paw_train.algorithms.experience import prepare
    from paw_train.algorithms.pool import collect
    from paw_train.losses.batch import MiniBatchTotals
    from paw_train.losses.lm_head_logprobs import linear_scores
    from paw_train.losses.objective import combined_loss
    from paw_train.rollouts.rollout import Trajectory
    from paw_train.rollouts.scoring import batch_logprobs, collate
    from paw_train.rollouts.tokens import TokenRow
    from paw_train.settings import AlgorithmSettings, ObjectiveSettings
    from paw_train.settings.world_model import WorldModelSettings

    rows = []
    for row in played.rows:  # the same numbers a token; only those with a role have a turn here
        ids, role, logprob, turn = map(list, zip(*row, strict=True))
        turn = [t if r else -1 for t, r in zip(turn, role, strict=True)]
        rows.append(TokenRow(ids, role, turn, logprob))
    episodes = zip(played.episodes, rows, strict=True)
    pool = collect([Trajectory(episode, [row]) for episode, row in episodes])
    wm = WorldModelSettings(alpha=s.alpha, rho=s.rho, coef=s.wm_coef)
    objective = ObjectiveSettings(clip_low=s.clip, clip_high=s.clip, kl_coef=0.0)
    algorithm = AlgorithmSettings(name="grpo", normalize=True, weighting="episode")
    experience = prepare(pool, algorithm, objective, wm, s.max_return)
    batch = collate(experience.rows, pad_id=0)

    def score(ids: Any, tokens: Any, temperature: Any, entropies: int) -> Any:
        logits = model(ids).flatten(0, 1)[tokens - 1]
        return linear_scores(logits, None, None, ids.flatten()[tokens], temperature, entropies)

    logprobs, _ = batch_logprobs(score, batch, 1.0, entropy=False)
    return combined_loss(logprobs, batch, MiniBatchTotals.count(1, [batch]), objective, wm)
