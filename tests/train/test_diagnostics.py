"""The noise-gradient diagnostic: against autograd, against training's own rows, and on a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_policies import SMALL, said_in, word_policy

from paw_gym.transition import write_jsonl
from paw_train.evaluation import make_pool
from paw_train.evaluation.world_model_program import write_noise_gradient
from paw_train.losses import noise_gradients as d
from paw_train.policies.local.checkpoint import save_checkpoint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.reporting.run.page import write_report
from paw_train.rollouts.rollout import demonstrations
from paw_train.rollouts.tokens import OBSERVATION, TokenRow
from paw_train.settings import EnvSettings, load_settings

# --- shares ---------------------------------------------------------------------------------------


def test_magnitudes_are_the_derivatives_by_the_targets_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 7, generator=generator, dtype=torch.float64) * 2
    targets = torch.randint(7, (40,), generator=generator)
    noisy = (torch.arange(40) % 3 == 0).numpy()
    shares = {}
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
    found = d.gradient_shares(p, noisy, 0.2)
    assert (found.ce, found.mae, found.cmae) == pytest.approx(
        (shares["ce"], shares["mae"], shares["cmae"]), rel=1e-12
    )
    assert (found.tokens, found.noisy_tokens) == (40, 14)


@pytest.mark.parametrize(
    ("p", "noisy"), [([0.5], [True, False]), ([1.5], [True]), ([float("nan")], [True])]
)
def test_impossible_probabilities_are_refused(p: list[float], noisy: list[bool]) -> None:
    with pytest.raises(ValueError):
        d.gradient_shares(p, noisy)


# --- labels ---------------------------------------------------------------------------------------


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
def test_webshop_noise_is_identifiers_and_brands(text: str, noisy: list[str]) -> None:
    assert [text[a:b] for a, b in d.webshop_noise(text)] == noisy


def test_every_piece_of_a_noisy_word_is_noisy() -> None:
    # "buy COOFANDY now", the brand in three pieces; a span that only touches does not overlap
    offsets = [(0, 3), (3, 7), (7, 9), (9, 12), (12, 16), (0, 0)]
    assert d.noisy_tokens(offsets, [(4, 12)]) == [False, True, True, True, False, False]


def test_a_rule_is_the_environments_own_or_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert d.labeller_for("paw_gym/WebShop-v0") is d.webshop_noise
    assert d.labeller_for("paw_gym/ALFWorld-v0") is None
    assert d.labeller_for("x", "paw_train.losses.noise_gradients:webshop_noise") is d.webshop_noise
    assert d.labeller_for("x", "paw_gym/WebShop-v0") is d.webshop_noise
    for name in ("paw_gym/WebShop", "paw_train.losses.noise_gradients:nothing", "no_module:at_all"):
        with pytest.raises(ValueError, match=name):
            d.labeller_for("x", name)


# --- a run ----------------------------------------------------------------------------------------

Run = tuple[Path, LocalPolicy, TokenRow]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run's folder with its policy and one expert's game, and the row that training would read."""
    env = EnvSettings(template="compact", mode="conversation")
    pool = make_pool(env, "train", 1, 1, 0)
    task = pool.tasks.ids[:1]
    episode = demonstrations(pool, None, task)[0].episode
    policy = word_policy([episode.instruction, *said_in([episode])], **SMALL)
    (row,) = demonstrations(pool, policy.chat, task)[0].rows
    pool.close()
    settings = load_settings("smoke").to_dict()
    settings["env"] |= {"mode": env.mode, "template": env.template, "kwargs": {}}
    folder = tmp_path / "run"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_checkpoint(folder / "checkpoints" / "latest", policy, {"update": 0})
    write_jsonl(folder / "rollouts" / "000000.jsonl", [episode])
    return folder, policy, row


def test_a_run_is_scored_by_its_checkpoint_and_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, policy, row = run
    (tmp_path / "my_rules.py").write_text(
        "import re\ndef numbers(text):\n    return [m.span() for m in re.finditer(r'[0-9]+', text)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = json.loads(write_noise_gradient(folder, "my_rules:numbers").read_text())
    assert found["checkpoint"] == "latest" and found["rule"] == "my_rules:numbers"
    # the same by hand: one forward pass over the game, and each token's own text
    with torch.no_grad():
        logits = policy.model(torch.tensor([row.ids])).logits[0].double()
    p, noisy = [], []
    for place in (i for places in row.places(OBSERVATION).values() for i in places):
        p.append(float(torch.softmax(logits[place - 1], -1)[row.ids[place]]))
        noisy.append(policy.tokenizer.decode([row.ids[place]]).strip().isdecimal())
    assert found["tokens"] == len(p) and found["noisy_tokens"] == sum(noisy) > 0
    ce = 1 - np.asarray(p)
    assert found["ce"] == pytest.approx(ce[noisy].sum() / ce.sum(), abs=1e-5)
    mae = ce * p
    assert found["mae"] == pytest.approx(mae[noisy].sum() / mae.sum(), abs=1e-5)
    assert "my_rules:numbers" in write_report(folder).read_text()


def test_what_is_missing_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        write_noise_gradient(tmp_path)
    folder, *_ = run
    found = json.loads(write_noise_gradient(folder).read_text())
    assert found["note"] == "no noisy tokens defined" and "ce" not in found
    assert "No noisy tokens defined" in write_report(folder).read_text()
    (folder / "rollouts" / "000000.jsonl").unlink()
    with pytest.raises(ValueError, match="no recorded episodes"):
        write_noise_gradient(folder, "paw_gym/WebShop-v0")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ValueError, match="has no checkpoint"):
        write_noise_gradient(folder, "paw_gym/WebShop-v0")
