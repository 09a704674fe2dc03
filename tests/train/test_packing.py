"""A dialogue and its branches in one row are scored, and learned from, as each of them alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paw_train.policies.local.attention import NAME  # noqa: E402
from paw_train.policies.local.attention_blocks import attention_blocks  # noqa: E402
from paw_train.policies.local.policy import LocalPolicy  # noqa: E402
from paw_train.policies.local.scratch import scratch_model, word_tokenizer  # noqa: E402
from paw_train.rollouts.packing import packed  # noqa: E402
from paw_train.rollouts.tokens import Branch, StepSpans, TokenRow, collate  # noqa: E402
from paw_train.settings.scratch import ScratchModelSettings  # noqa: E402


@pytest.fixture(scope="module")
def policy() -> LocalPolicy:
    tokenizer = word_tokenizer(["red green blue one two three"])
    small = ScratchModelSettings(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32)
    return LocalPolicy(scratch_model(small, len(tokenizer), 0).double(), tokenizer)


def dialogues(seed: int) -> tuple[list[TokenRow], list[int | None]]:
    """Three dialogues, with branches, some of which branch again."""
    rng = random.Random(seed)
    rows: list[TokenRow] = []
    parents: list[int | None] = []
    for number in range(9):
        parent = None if number < 3 else rng.randrange(number)
        shared = tokens(rng, 4)
        if parent is not None:
            start = rng.choice(rows[parent].steps).action[0]
            shared = rows[parent].ids[:start]
        row = TokenRow(shared)
        for _ in range(rng.randrange(1, 4)):
            action = row.extend(tokens(rng, 2))
            row.extend(tokens(rng, 1))
            step = StepSpans(action, row.extend(tokens(rng, 3)), [-1.0, -1.0])
            step.index = sum(len(r.steps) for r in rows) + len(row.steps)
            row.steps.append(step)
            row.extend(tokens(rng, 2))
        rows.append(row)
        parents.append(parent)
    return rows, parents


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(5, 10) for _ in range(count)]


def scores(policy: LocalPolicy, rows: list[TokenRow]) -> dict[int, Any]:
    batch = collate(rows, policy.pad_id)
    found = policy.logprobs(batch, 0.8)
    return {int(i): found[s][batch.used()[s]] for s, i in enumerate(batch.index)}


@pytest.mark.parametrize("seed", range(3))
def test_scores_and_gradients_are_those_of_the_rows_alone(policy: LocalPolicy, seed: int) -> None:
    assert policy.can_join
    rows, parents = dialogues(seed)
    # as training truncates them: after the last token in use
    short = [TokenRow(row.ids[: row.steps[-1].observation[1]], row.steps) for row in rows]
    one = packed(short, rows, parents, limit=10**6)
    assert len(one) == 3
    assert sum(len(row.ids) for row in one) < sum(len(row.ids) for row in short)

    def learned(some: list[TokenRow]) -> tuple[dict[int, Any], Any]:
        policy.model.zero_grad()
        found = scores(policy, some)
        sum(values.sum() * (1 + i) for i, values in found.items()).backward()
        return found, torch.cat([p.grad.flatten() for p in policy.model.parameters()])

    (apart, gradient), (together, same) = learned(short), learned(one)
    assert apart.keys() == together.keys()
    assert all(torch.allclose(apart[i], together[i], atol=1e-5) for i in apart)
    assert torch.allclose(gradient, same, rtol=1e-4, atol=1e-4)


def test_actions_alone_are_scored_alike(policy: LocalPolicy) -> None:
    rows, parents = dialogues(5)
    batch = collate(packed(rows, rows, parents, 10**6), policy.pad_id)
    whole = torch.where(batch.action_mask, policy.logprobs(batch), 0.0)
    assert torch.allclose(policy.logprobs(batch.actions_only()), whole, atol=1e-5)


def test_branches_that_do_not_fit_stay_rows_of_their_own(policy: LocalPolicy) -> None:
    rows, parents = dialogues(1)
    longest = max(len(row.ids) for row in rows)
    some = packed(rows, rows, parents, longest + 8)
    assert 3 < len(some) <= len(rows)
    assert max(len(row.ids) for row in some) <= longest + 8
    apart, together = scores(policy, rows), scores(policy, some)
    assert all(torch.allclose(apart[i], together[i], atol=1e-5) for i in apart)
    assert packed(rows, rows, parents, 0) == rows, "nothing fits: the rows as they were"


def test_many_short_branches_of_a_long_dialogue_keep_no_more_keys_than_a_full_row(
    policy: LocalPolicy,
) -> None:
    """Each part keeps its own copy of what it attends to."""
    shared = tokens(random.Random(0), 50)
    rows = [
        TokenRow([*shared, 6, n], [StepSpans((50, 51), (51, 52), [-1.0], index=n)])
        for n in range(12)
    ]
    some = packed(rows, rows, [None, *[0] * 11], limit=100)
    keys = [
        sum(b.span[1] - b.span[0] + sum(e - s for s, e in b.shared) for b in row.branches)
        for row in some
    ]
    assert len(some) == 2 and max(len(row.ids) for row in some) < 100
    assert all(52 + extra <= 4 * 100 for extra in keys)
    apart, together = scores(policy, rows), scores(policy, some)
    assert all(torch.allclose(apart[i], together[i], atol=1e-5) for i in apart)


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_joined_are_scored_and_learned_from_as_padded_ones(
    policy: LocalPolicy, seed: int
) -> None:
    rows, _ = dialogues(seed)
    found = []
    for can_join in (False, True):
        batch = collate(rows, policy.pad_id, can_join)
        assert (batch.branches is not None) == can_join
        policy.model.zero_grad()
        scores = policy.logprobs(batch)
        scores[batch.used()].sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
        found.append((scores.detach(), gradient))
    (padded, gradient), (joined, same) = found
    assert torch.allclose(padded, joined, atol=1e-5)
    assert torch.allclose(gradient, same, rtol=1e-4, atol=1e-4)


def test_rows_of_about_one_length_are_not_joined(policy: LocalPolicy) -> None:
    rows = [
        TokenRow(tokens(random.Random(i), 40 - i), [StepSpans((1, 3), (3, 5), [0.0, 0.0])])
        for i in range(3)
    ]
    assert collate(rows, policy.pad_id, can_join=True).input_ids.shape == (3, 40)


def test_whole_logits_of_joined_rows_are_those_of_each(policy: LocalPolicy) -> None:
    rows, _ = dialogues(4)
    batch = collate(rows, policy.pad_id, can_join=True)
    together = policy.whole_logits(batch)[0]
    alone = [policy.whole_logits(collate([row], policy.pad_id))[0] for row in rows]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)


def test_only_the_attention_that_knows_branches_packs(policy: LocalPolicy) -> None:
    policy.model.set_attn_implementation("eager")
    try:
        assert not policy.can_join
    finally:
        policy.model.set_attn_implementation(NAME)


def test_parts_of_one_row_cost_their_own_pairs_not_the_square_of_the_row() -> None:
    followed = [(0, 200)]
    parts = [Branch((0, 300), [])]
    parts += [Branch((300 + 50 * i, 350 + 50 * i), followed) for i in range(40)]
    found = attention_blocks(parts, torch.device("cpu"))
    pairs = sum(b.queries.numel() * b.keys.shape[1] for b in found.blocks)
    assert pairs == 300 * 300 + 40 * 50 * 250, "no padding among parts of one size"
    assert len(found.blocks) == 2
    assert len(found.places) == 2300
