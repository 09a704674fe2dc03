"""Advantages against independent numpy computations, closed forms and invariances."""

import difflib

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paw_train.algorithms import gae, gigpo, grpo, reinforce_pp, rloo
from paw_train.algorithms.gigpo import cluster_anchors, is_similar
from paw_train.algorithms.group_statistics import EPS

fast = settings(max_examples=40, deadline=None)
returns_and_groups = st.lists(
    st.tuples(st.floats(-10, 10, width=32), st.integers(0, 4)), min_size=1, max_size=24
)


def reference_standardize(values: np.ndarray, keys: list, divide: bool = True) -> np.ndarray:
    """The plain reading of the definition: loop over groups, numpy's mean and std."""
    out = np.zeros(len(values))
    for key in set(keys):
        rows = [i for i, k in enumerate(keys) if k == key]
        if len(rows) == 1:
            continue
        x = values[rows]
        out[rows] = (x - x.mean()) / ((x.std(ddof=1) + EPS) if divide else 1.0)
    return out


def reference_gigpo(rewards, episodes, steps, groups, anchors, gamma, omega, divide=True):
    size = len(rewards)
    to_go, total = np.zeros(size), np.zeros(size)
    for i in range(size):
        mates = [j for j in range(size) if episodes[j] == episodes[i]]
        total[i] = sum(rewards[j] for j in mates)
        to_go[i] = sum(
            gamma ** (steps[j] - steps[i]) * rewards[j] for j in mates if steps[j] >= steps[i]
        )
    firsts = [episodes.index(e) for e in dict.fromkeys(episodes)]
    per_episode = reference_standardize(total[firsts], [groups[i] for i in firsts], divide)
    of_episode = dict(zip([episodes[i] for i in firsts], per_episode, strict=True))
    step_part = reference_standardize(to_go, list(zip(groups, anchors, strict=True)), divide)
    return np.array([of_episode[e] for e in episodes]) + omega * step_part


@st.composite
def rollouts(draw):
    """Shuffled steps of a few groups of episodes, with few distinct anchor states."""
    rows = []
    for episode in range(draw(st.integers(1, 6))):
        group = draw(st.integers(0, 2))
        for step in range(draw(st.integers(1, 4))):
            reward = draw(st.sampled_from([0.0, -0.1, 1.0, 10.0]))
            rows.append(
                (reward, episode, step, group, draw(st.sampled_from(["hall", "desk", "bed"])))
            )
    rows = draw(st.permutations(rows))
    return [list(column) for column in zip(*rows, strict=True)]


class TestGRPO:
    def test_eps_is_added_to_the_deviation_not_under_its_root(self):
        tiny = torch.tensor([0.0, 2e-6], dtype=torch.float64)
        deviation = 2e-6 / 2**0.5
        assert grpo(tiny, [0, 0])[1].item() == pytest.approx(1e-6 / (deviation + 1e-6), rel=1e-9)

    @fast
    @given(returns_and_groups, st.booleans())
    def test_equals_the_plain_loop(self, rows, normalize):
        returns, groups = (list(column) for column in zip(*rows, strict=True))
        got = grpo(torch.tensor(returns, dtype=torch.float64), torch.tensor(groups), normalize)
        expected = reference_standardize(np.array(returns), groups, normalize)
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6, rtol=1e-6)

    @fast
    @given(st.floats(-1e3, 1e3), st.integers(1, 9))
    @example(0.1, 3)  # in float64 (0.1 + 0.1 + 0.1) / 3 is not 0.1
    def test_equal_returns_give_exactly_zero(self, value, size):
        returns = torch.full((size,), value, dtype=torch.float64)
        assert grpo(returns, [7] * size).tolist() == [0.0] * size

    def test_keeps_dtype_and_accepts_numpy(self):
        assert grpo(torch.tensor([1.0, 2.0], dtype=torch.float64), [0, 0]).dtype == torch.float64
        assert grpo(np.array([1, 2]), np.array([0, 0])).dtype == torch.float32
        assert grpo([], []).shape == (0,)

    def test_errors_name_the_argument(self):
        with pytest.raises(ValueError, match=r"`group_ids` must have 2 entries.*got 1"):
            grpo([1.0, 2.0], [0])
        with pytest.raises(ValueError, match=r"`returns` must be finite.*\[1\] is nan"):
            grpo([1.0, float("nan")], [0, 0])


class TestRLOO:
    @fast
    @given(returns_and_groups)
    def test_equals_the_plain_loop(self, rows):
        expected = []
        for i, (value, group) in enumerate(rows):
            others = [v for j, (v, g) in enumerate(rows) if g == group and j != i]
            expected.append(value - np.mean(others) if others else 0.0)
        got = rloo(torch.tensor([r for r, _ in rows], dtype=torch.float64), [g for _, g in rows])
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-9)


class TestReinforcePP:
    def test_standardises_over_the_batch_across_groups(self):
        returns = np.array([1.0, 4.0, 0.0, 7.0])
        expected = (returns - 3.0) / (returns.std(ddof=1) + EPS)
        np.testing.assert_allclose(reinforce_pp(returns).numpy(), expected, rtol=1e-9)

    def test_with_groups_their_mean_goes_first(self):
        centred = np.array([-1.5, 1.5, -3.5, 3.5])
        got = reinforce_pp([1.0, 4.0, 0.0, 7.0], ["a", "a", "b", "b"])
        np.testing.assert_allclose(got.numpy(), centred / (centred.std(ddof=1) + EPS), rtol=1e-6)


class TestGiGPO:
    @fast
    @given(rollouts(), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
    def test_equals_the_plain_loop(self, columns, normalize, omega):
        got = gigpo(
            torch.tensor(columns[0], dtype=torch.float64), *columns[1:], 0.95, omega, normalize
        )
        expected = reference_gigpo(*columns, 0.95, omega, normalize)
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)

    @fast
    @given(rollouts())
    def test_similarity_of_one_is_equality(self, columns):
        torch.testing.assert_close(gigpo(*columns, similarity=1.0), gigpo(*columns))

    def test_the_only_episode_of_a_group_is_not_compared_with_itself(self):
        # also where one of its steps was charged
        alone = gigpo([0.5, 1.0], [0, 0], [0, 1], [0, 0], ["a", "b"], penalties=[-0.5, 0.0])
        assert alone.tolist() == [0.0, 0.0]

    def test_episode_numbers_may_restart_in_each_group(self):
        unique = gigpo([1, 5, 2, 3], [0, 1, 2, 3], [0] * 4, [0, 0, 1, 1], ["s"] * 4)
        again = gigpo([1, 5, 2, 3], [0, 1, 0, 1], [0] * 4, [0, 0, 1, 1], ["s"] * 4)
        torch.testing.assert_close(again, unique)

    def test_similar_states_share_a_group(self):
        pages = [f"Page {i}: " + "the Nile is a river in Africa. " * 9 for i in (1, 2)]
        call = ([1.0, 5.0], [0, 1], [0, 0], [0, 0])
        exact = gigpo(*call, pages, omega=1.0)
        similar = gigpo(*call, pages, omega=1.0, similarity=0.9)
        assert similar.tolist() == pytest.approx([2 * a for a in exact.tolist()])
        assert gigpo(*call, [pages[0], "Nothing found"], similarity=0.9).tolist() == exact.tolist()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"step_index": [0, 0]}, "rows 0 and 1 are both step 0 of one episode"),
            ({"anchors": ["a"]}, "`anchors` must have 2 entries"),
            ({"episode_ids": [0, 0, 0]}, "`episode_ids` must have 2 entries.*got 3"),
            ({"step_index": [0]}, "`step_index` must have 2 entries"),
            ({"gamma": 1.5}, r"`gamma` must be in \[0, 1\]"),
            ({"similarity": 0.0}, "`similarity` must be"),
            ({"similarity": 1.5}, "`similarity` must be"),
            ({"penalties": [0.0]}, "`penalties` must have 2 entries"),
        ],
    )
    def test_errors_name_the_argument(self, change, message):
        good = {"step_rewards": [0.0, 1.0], "episode_ids": [0, 0], "step_index": [0, 1]}
        with pytest.raises(ValueError, match=message):
            gigpo(**(good | {"group_ids": [0, 0], "anchors": ["a", "b"]} | change))


class TestAnchors:
    @fast
    @given(st.text("abc ", max_size=30), st.text("abc ", max_size=30), st.floats(0.05, 1.0))
    @example("ab", "abc", 0.8)
    def test_short_cuts_never_change_the_ratio_test(self, text, other, threshold):
        ratio = difflib.SequenceMatcher(None, text, other, autojunk=False).ratio()
        assert is_similar(text, other, threshold) == (ratio >= threshold)

    def test_long_pages_that_differ_by_a_character_are_similar(self):
        page = "the quick brown fox jumps over the lazy dog. " * 20
        assert difflib.SequenceMatcher(None, "x" + page, page).ratio() < 0.9  # difflib's autojunk
        assert is_similar("x" + page, page, 0.9)
        # GiGPO's published code leaves the heuristic on, and so tells the two apart
        assert not is_similar("x" + page, page, 0.9, autojunk=True)
        assert cluster_anchors(["x" + page, page], 0.9, autojunk=True) == [0, 1]
        assert cluster_anchors(["x" + page, page], 0.9) == [0, 0]


class TestGAE:
    rewards, values = [0.0, 1.0, 2.0], [0.5, 0.25, 1.0]

    def test_a_truncated_episode_is_bootstrapped_at_its_end_only(self):
        plain, _ = gae(self.rewards, self.values, [0, 1, 1], gamma=0.5, lam=0.0)
        cut, _ = gae(self.rewards, self.values, [0, 1, 1], gamma=0.5, lam=0.0, bootstrap=[99, 4, 0])
        assert (cut - plain).tolist() == pytest.approx([0.0, 2.0, 0.0])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"dones": [0, 1, 0]}, "`dones` must be 1 on the last row"),
            ({"bootstrap": [0.0]}, "`bootstrap` must have 3 entries, got 1"),
            ({"gamma": 1.5}, "`gamma` must be in"),
            ({"lam": -0.1}, "`lam` must be in"),
        ],
    )
    def test_errors_name_the_argument(self, change, message):
        with pytest.raises(ValueError, match=message):
            gae(**({"rewards": self.rewards, "values": self.values, "dones": [0, 1, 1]} | change))
