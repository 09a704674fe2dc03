"""Errors that offer a name offer one that may have been meant."""

from __future__ import annotations

import pytest

from paw_gym.naming import did_you_mean, require_choice, similar


@pytest.mark.parametrize(
    ("typed", "valid", "offered"),
    [
        ("serach", ["answer", "search"], "Did you mean 'search'?"),
        ("top", ["top_entropy", "random"], "Did you mean 'top_entropy'?"),
        ("Boxs", ["tests/Boxes-v0", "tests/Doors-v0"], "Did you mean 'tests/Boxes-v0'?"),
        ("variation", ["numbers", "render_mode"], "Valid: 'numbers', 'render_mode'."),
        ("x", [], "There are none."),
    ],
)
def test_only_similar_names_are_offered(typed: str, valid: list[str], offered: str) -> None:
    assert did_you_mean(typed, valid) == offered


def test_a_long_list_is_shortened() -> None:
    text = did_you_mean("q", [f"name{i}" for i in range(30)])
    assert text.endswith("'name11' and 18 more.")


def test_several_similar_names_are_listed_as_in_a_sentence() -> None:
    names = ["embedded", "rwml_embedded", "wm_sft_embedded"]
    assert did_you_mean("embeded", names) == (
        "Did you mean 'embedded', 'rwml_embedded' or 'wm_sft_embedded'?"
    )
    assert similar("embeded", names) == names and similar("x", names) == []


@pytest.mark.parametrize("value", [None, 3, ["train"]])
def test_what_is_no_name_is_refused_like_an_unknown_one(value: object) -> None:
    with pytest.raises(ValueError, match=r"^Unknown split .*\. Valid: 'train', 'test'\.$"):
        require_choice("split", value, ["train", "test"])
