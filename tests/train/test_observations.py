"""The filter of observations, here and in TRL, and their placebo."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from rows import token_row
from small_policies import exact_policy, word_policy
from trajectories import made_up

from paw_train.algorithms.experience import Prepared, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.conformance.engines.shared import trajectories
from paw_train.conformance.recording import OBJECTIVES, Recording, load
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import piece_tokenizer
from paw_train.rollouts.observation_filter import filtered, leave_out
from paw_train.rollouts.rows import with_placebo
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import CONTEXT, OBSERVATION, TokenRow
from paw_train.settings import (
    AlgorithmSettings,
    ObjectiveSettings,
    OptimizerSettings,
    WorldModelSettings,
)

NOISE = (r"^You [a-z ]+\.", "H+")
PLAIN = ObjectiveSettings(kl_coef=0.0)
ECHOES, RULES = {"filter_echoes": True}, {"filter_patterns": NOISE}
CASES = {
    "echoes": ECHOES, "noise rules": RULES,
    "both, and no warnings": {**ECHOES, **RULES, "filter": "warnings"},
}  # fmt: skip


def settings_of(name: str) -> WorldModelSettings:
    return WorldModelSettings(loss="ce", alpha=1.0, **CASES[name])  # type: ignore[arg-type]


def episodes() -> list[Any]:
    """The recorded episodes with the actions that the environment was given."""
    found = trajectories(load(), OBJECTIVES["world_model"])
    for trajectory in found:
        steps = trajectory.episode.transitions
        steps[:] = [replace(t, action=action_in(t.response)) for t in steps]
    return found


def action_in(response: str) -> str:
    match = re.search("<action>(.*)</action>", response)
    return match[1] if match else ""


def expected_loss(recording: Recording, settings: WorldModelSettings) -> float:
    """Cross-entropy with alpha 1, written out: offsets of the tokenizer, sums in float64."""
    model = recording.model("policy").double()
    groups: dict[int, list[float]] = {}
    returns: dict[int, list[float]] = {}
    for episode in recording.episodes:
        returns.setdefault(episode.group, []).append(episode.total_reward)
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([episode.ids])).logits[0].log_softmax(-1)
        for turn in episode.turns:
            if settings.filter == "warnings" and turn.malformed:
                continue
            kept = tokens_left(recording, turn, settings)
            losses = [-scores[t - 1, episode.ids[t]].item() for t in kept]
            if losses:
                groups.setdefault(episode.group, []).append(sum(losses) / len(losses))
    total = 0.0
    for group, members in groups.items():
        lam = 1 - sum(returns[group]) / len(returns[group]) / 10
        total += lam * sum(members) / len(members) / len(returns)
    return total


def tokens_left(recording: Recording, turn: Any, settings: WorldModelSettings) -> list[int]:
    """Places in the episode of the observation's tokens that no rule covers."""
    text = turn.message[slice(*turn.observation)]
    rules = list(settings.filter_patterns)
    if settings.filter_echoes and action_in(turn.response):
        rules.append(rf"\b{re.escape(action_in(turn.response))}\b")
    gone = {c for rule in rules for m in re.finditer(rule, text) for c in range(*m.span())}
    offsets = recording.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )["offset_mapping"]
    start = turn.observation_tokens[0]
    return [start + k for k, (a, b) in enumerate(offsets) if not gone & set(range(a, b))]


def experience_with(settings: WorldModelSettings) -> Prepared:
    found = leave_out(episodes(), load().tokenizer, settings)
    return prepare(
        collect(found), AlgorithmSettings(normalize=True), PLAIN, settings, max_return=10.0
    )


@pytest.mark.parametrize("name", CASES)
def test_the_term_leaves_out_what_the_rules_cover(name: str) -> None:
    settings = settings_of(name)
    expected = expected_loss(load(), settings)
    unfiltered = expected_loss(load(), WorldModelSettings(loss="ce", alpha=1.0))
    assert abs(expected - unfiltered) > 1e-3
    policy = LocalPolicy(load().model("policy"), load().tokenizer)
    optimizer = OptimizerSettings(lr=0.0, micro_batch_tokens=1500)
    updater = Updater(policy, None, optimizer, PLAIN, settings, 1.0, updates=1)
    found = updater.step(experience_with(settings).rows, update=0, seed=0)["wm_term"]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in CASES if "warnings" not in name])
def test_trl_leaves_out_the_same(name: str) -> None:
    pytest.importorskip("trl", reason="the extra `sft`")
    from paw_train.integrations.trl import columns, weigh_tokens, world_model_term

    settings = settings_of(name)
    found = leave_out(episodes(), load().tokenizer, settings)
    given = [columns(trajectory) for trajectory in found]
    ids = [torch.tensor(column["completion_ids"]) for column in given]
    turns = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(column["turns"]) for column in given], batch_first=True
    )

    model, logps = load().model("policy"), torch.zeros(turns.shape)
    for b, column in enumerate(given):
        whole = torch.tensor([column["prompt_ids"] + column["completion_ids"]])
        with torch.no_grad():
            scores = model(input_ids=whole).logits[0, :-1].log_softmax(-1)
        known = scores.gather(-1, whole[0, 1:, None]).flatten()
        logps[b, : len(ids[b])] = known[len(column["prompt_ids"]) - 1 :]
    weights, _ = weigh_tokens(
        turns,
        logps,
        torch.tensor([column["reward"] for column in given]),
        torch.arange(12) // 4,
        settings,
        10.0,
    )
    term = world_model_term(logps, weights, settings)
    assert float(term) == pytest.approx(expected_loss(load(), settings), rel=1e-4)


def test_an_observation_without_a_token_left_is_not_supervised() -> None:
    settings = WorldModelSettings(loss="ce", alpha=1.0, filter_patterns=(r"(?s).*go down.*",))
    experience = experience_with(settings)
    steps = [t for trajectory in episodes() for t in trajectory.episode.transitions]
    gone = torch.tensor(["go down" in t.next_observation for t in steps])
    assert gone.any() and not gone.all()
    assert torch.equal(experience.plan.weights == 0, gone)
    left = {turn for row in experience.rows for turn in row.places(OBSERVATION)}
    assert left == set((~gone).nonzero().flatten().tolist())


def test_what_is_left_out_keeps_its_turn_and_the_callers_rows_stay() -> None:
    given = episodes()
    before = [list(row.role) for t in given for row in t.rows]
    found = leave_out(given, load().tokenizer, WorldModelSettings(filter_patterns=NOISE))
    assert [row.role for t in given for row in t.rows] == before
    (row,), (own,) = found[0].rows, given[0].rows
    assert row.turn == own.turn and row.role != own.role
    for role, was in zip(row.role, own.role, strict=True):
        assert role == was or (role, was) == (CONTEXT, OBSERVATION)


def test_echoes_are_whole_words() -> None:
    tokenizer, settings = load().tokenizer, WorldModelSettings(filter_echoes=True)
    ids = tokenizer("You go down. FF down", add_special_tokens=False)["input_ids"]
    found = filtered(ids, "down", tokenizer, settings)
    assert [tokenizer.decode(ids[number]) for number in found] == [" down", " down"]
    assert filtered(ids, "dow", tokenizer, settings) == []
    assert filtered(ids, " ", tokenizer, settings) == []


def test_a_character_of_several_tokens_is_left_out_whole() -> None:
    tokenizer = piece_tokenizer(["It is warm."], 512)
    ids = tokenizer("It is 20 \u00b0C warm.", add_special_tokens=False)["input_ids"]
    settings = WorldModelSettings(filter_patterns=(r"\d+ \u00b0C",))
    found = filtered(ids, "", tokenizer, settings)
    assert tokenizer.decode([ids[number] for number in found]).strip() == "20 \u00b0C"
    empty = WorldModelSettings(filter_patterns=(r"x*", r"$", r"(\d\d:\d\d)?"))
    assert filtered(ids, "", tokenizer, empty) == []


def _row(number: int, observed: list[int]) -> TokenRow:
    ids = [1, 2, 3, 4, 2, *observed]
    row = token_row(ids, ((2, 4), (5, len(ids))), advantage=[0.0] * len(ids))
    return replace(row, wm_weight=[0.0] * 5 + [0.1] * len(observed))


def test_observations_go_round_among_those_of_equal_length() -> None:
    rows = [_row(i, [10 + i, 20 + i, 30 + i][: 2 + i % 2]) for i in range(12)]
    rows.append(_row(12, [5, 6, 7, 8]))
    found = with_placebo(rows, seed=3)
    for before, after in zip(rows, found, strict=True):
        assert after.ids == before.ids and after.placebo_ids is not None
        assert after.placebo_ids[:5] == before.ids[:5]
    for size in (2, 3):
        own = [(r.ids[5:], r.placebo_ids[5:]) for r in found if len(r.ids) == 5 + size]  # type: ignore[index]
        assert all(true != other for true, other in own)
        assert Counter(tuple(a) for a, _ in own) == Counter(tuple(b) for _, b in own)
    # nobody else has an observation as long: it keeps it, and nothing is learned from it
    assert found[12].placebo_ids == rows[12].ids and not any(found[12].wm_weight or ())
    assert [r.placebo_ids for r in with_placebo(rows, 3)] == [r.placebo_ids for r in found]
    assert [r.placebo_ids for r in with_placebo(rows, 4)] != [r.placebo_ids for r in found]


def test_dialogues_are_refused() -> None:
    rows = prepare(
        collect(made_up(True)), AlgorithmSettings(), PLAIN, WorldModelSettings(alpha=1.0), 10.0
    ).rows
    with pytest.raises(ValueError, match="env.mode=window"):
        with_placebo(rows, 0)


@pytest.mark.parametrize("budget", [1, 10**6])
@pytest.mark.parametrize("loss", ["ce", "cmae"])
def test_the_gradient_is_the_policys_and_the_placebos_at_the_true_terms_norm(
    loss: str, budget: int
) -> None:
    wm = WorldModelSettings(loss=loss, alpha=1.0, coef=3.0, placebo=True)
    policy = exact_policy()
    rows = prepare(collect(made_up(False)), AlgorithmSettings(), PLAIN, wm, 10.0).rows
    rows = with_placebo(rows, 1)
    assert any(row.placebo_ids != row.ids for row in rows)
    parameters = list(policy.model.parameters())

    def gradient(ids: str, which: str) -> Any:
        batch = collate([replace(row, ids=getattr(row, ids)) for row in rows], policy.pad_id)
        logprobs = policy.logprobs(batch)
        if which == "policy":
            ratio = (logprobs - logprobs.detach()).exp()  # the first step: nothing is clipped
            terms = -(ratio * batch.advantage)[batch.action].sum() / batch.action.sum()
        else:
            probability = logprobs.exp()
            each = -logprobs if loss == "ce" else (1 - probability) * (probability <= 0.2)
            terms = 3.0 * (each * batch.wm_weight)[batch.observation].sum()
        found = torch.autograd.grad(terms, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in found])

    true, other = gradient("ids", "wm"), gradient("placebo_ids", "wm")
    assert torch.nn.functional.cosine_similarity(true, other, dim=0) < 0.999
    expected = gradient("ids", "policy") + other * (true.norm() / other.norm())
    # ratios are to the rows' own log-probabilities
    logprob = policy.logprobs(collate(rows, policy.pad_id)).detach()
    for row, own in zip(rows, logprob, strict=True):
        row.logprob = own[: len(row.ids)].tolist()
    optimizer = OptimizerSettings(
        lr=0.0, micro_batch_tokens=budget, max_grad_norm=1e9, measure_gradients=False
    )
    updater = Updater(policy, None, optimizer, PLAIN, wm, 1.0, 1)
    metrics = updater.step(rows, 0, 0)
    found = torch.cat([p.grad.flatten() for p in parameters])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert metrics["grad_norm_wm"] == pytest.approx(float(other.norm()), rel=1e-5)


def test_with_bfloat16_weights_the_placebo_is_in_its_own_step() -> None:
    wm = WorldModelSettings(loss="ce", alpha=1.0, placebo=True)
    policy = word_policy(["red green blue"])
    policy.model.bfloat16()
    alone = PLAIN.replace(policy_coef=0.0)
    rows = with_placebo(
        prepare(collect(made_up(False)), AlgorithmSettings(), alone, wm, 10.0).rows, 1
    )
    optimizer = OptimizerSettings(lr=0.0, max_grad_norm=1e9)
    metrics = Updater(policy, None, optimizer, alone, wm, 1.0, 1).step(rows, 0, 0)
    # without the policy's term, this is the true term's norm; the other is the placebo's own
    assert metrics["grad_norm"] == pytest.approx(metrics["grad_norm_wm"], rel=0.2)
