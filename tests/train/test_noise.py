"""The share of the world model's gradient on noise: against autograd, the paper's rule, and in eval-wm."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from paw_gym.pool import EnvPool
from paw_train.environments import agent_env_maker
from paw_train.evaluation import noise, world_model
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import demonstrations
from paw_train.rollouts.tokens import OBSERVATION
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings


def test_magnitudes_are_the_derivatives_by_the_targets_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 7, generator=generator, dtype=torch.float64) * 2
    targets = torch.randint(7, (40,), generator=generator)
    noisy = (torch.arange(40) % 3 == 0).numpy()
    shares = {"tokens": 14 / 40}
    p = torch.softmax(logits, -1)[torch.arange(40), targets].numpy()
    for name in ("ce", "mae", "cmae"):
        leaf = logits.clone().requires_grad_()
        chosen = torch.softmax(leaf, -1)[torch.arange(40), targets]
        loss = -chosen.log() if name == "ce" else 1 - chosen
        if name == "cmae":
            loss = loss * (chosen.detach() <= 0.2)
        loss.sum().backward()
        assert leaf.grad is not None
        size = leaf.grad[torch.arange(40), targets].abs().numpy()
        shares[name] = size[noisy].sum() / size.sum()
    assert noise.gradient_shares(p, noisy, 0.2) == pytest.approx(shares, rel=1e-12)
    assert noise.gradient_shares(np.ones(2), np.ones(2, bool), 0.2)["ce"] == 0


@pytest.mark.parametrize(
    ("text", "noisy"),
    [
        ("B09KP78G37 [SEP] Women Shoes", ["B09KP78G37"]),
        ("Back to Search [SEP] Page 1 (Total results: 50)", []),
        ("COOFANDY Shirt by NIKE2000, USB, XXL", ["COOFANDY", "NIKE2000"]),
        ("b09kp78g37 xB09KP78G37 B09KP78G3", []),
        ("BREATHABLE B09KP78G378", ["BREATHABLE"]),
    ],
)
def test_noise_of_webshop_is_identifiers_and_brands(text: str, noisy: list[str]) -> None:
    assert [text[a:b] for a, b in noise.webshop_noise(text)] == noisy


def test_eval_wm_measures_an_environment_with_a_rule(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers(text: str) -> list[tuple[int, int]]:
        return [m.span() for m in re.finditer("[0-9]+", text)]

    monkeypatch.setitem(noise.NOISE, "paw_gym/ALFWorld-v0", numbers)
    env = EnvSettings(template="compact", history_length=0, kwargs={"num_tasks": 30})
    pool = EnvPool(agent_env_maker(env, "valid_seen"), 1)
    (played,) = demonstrations(pool, policy.chat, pool.tasks.ids[:1])
    pool.close()
    found = world_model.measure(policy, [played.episode], env, "valid_seen", RolloutSettings())
    # the same by hand: a forward pass a row, and each token's own text
    p, noisy = [], []
    for row in played.rows:
        with torch.no_grad():
            logits = policy.model(torch.tensor([row.ids])).logits[0].double()
        for place in (i for places in row.places(OBSERVATION).values() for i in places):
            p.append(float(logits[place - 1].softmax(-1)[row.ids[place]]))
            noisy.append(policy.tokenizer.decode([row.ids[place]]).strip().isdecimal())
    assert 0 < sum(noisy) < len(noisy) == found["tokens"]
    shares = noise.gradient_shares(np.array(p), np.array(noisy), 0.2)
    assert found["noise_share"] == pytest.approx(shares, abs=1e-5)
