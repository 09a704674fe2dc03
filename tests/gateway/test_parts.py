"""The gateway's parts by themselves: what is offered, the generator's state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="the extra server is not installed")

from env_servers.gateway.gateway import Limits
from env_servers.gateway.settings import NotOfferedError, Offer, offer_of, tokens_of
from paw_gym.remote.protocol import generator_text, set_generator


@given(st.integers(0, 2**64), st.integers(0, 5))
def test_a_generator_goes_on_from_its_text(seed: int, odd: int) -> None:
    here = np.random.default_rng(seed)
    here.integers(10, size=odd, dtype=np.uint32)  # leaves half of a draw behind
    there = np.random.default_rng(1)
    text = generator_text(here)
    assert text is not None
    set_generator(there, text)
    assert generator_text(there) == text
    for kind in (np.uint32, np.uint64, np.uint8):
        assert here.integers(200, size=5, dtype=kind).tolist() == (
            there.integers(200, size=5, dtype=kind).tolist()
        )


def test_other_generators_have_no_text() -> None:
    other = np.random.Generator(np.random.MT19937(1))
    assert generator_text(other) is None
    with pytest.raises(ValueError, match="MT19937"):
        set_generator(other, "0" * 73)
    with pytest.raises(ValueError, match="73"):
        set_generator(np.random.default_rng(1), "0" * 72)


def test_an_offer_says_what_it_holds() -> None:
    offer = Offer(frozenset({"me/A-v0", "me/B-v0"}), fixed={"me/A-v0": {"data_dir": "/data"}})
    assert offer.settings("me/A-v0", {"split": "test"}) == {"split": "test", "data_dir": "/data"}
    assert offer.settings("me/B-v0", {"max_steps": 5, "show_attributes": True})
    for kwargs in (
        {"data_dir": "/etc"},
        {"split": "../train"},
        {"split": "/etc/passwd"},
        {"split": ".hidden"},
        {"split": ""},
        {"split": "a\n"},
        {"max_steps": 10**6},
        {"max_steps": 2.5},
        {"max_steps": True},
        {"top_k": 1e300},
        {"top_k": float("nan")},
    ):
        with pytest.raises(NotOfferedError):
            offer.settings("me/B-v0", kwargs)
    with pytest.raises(NotOfferedError, match="me/A-v0"):
        offer.settings("me/A-v1", {})
    with pytest.raises(ValueError, match="cannot be served"):
        Offer(frozenset({"paw_gym/Remote-v0"}))
    with pytest.raises(ValueError, match="not served"):
        Offer(frozenset({"me/A-v0"}), fixed={"me/B-v0": {}})


def test_options_become_an_offer_and_tokens(tmp_path: Path) -> None:
    def parse(pairs: object) -> dict[str, str]:
        return dict(pair.split("=") for pair in pairs)  # type: ignore[attr-defined]

    full = {"A": "me/A-v0"}.__getitem__
    offer = offer_of(["A"], ["mood"], ["A:data_dir=/data", "A:x=1"], full, parse)
    assert offer.env_ids == {"me/A-v0"} and "mood" in offer.kwargs and "split" in offer.kwargs
    assert offer.fixed == {"me/A-v0": {"data_dir": "/data", "x": "1"}}
    with pytest.raises(ValueError, match="ENV:KEY=VALUE"):
        offer_of(["A"], [], ["data_dir=/data"], full, parse)
    assert "paw_gym/Remote-v0" not in offer_of([], [], [], full, parse).env_ids
    tokens = tmp_path / "tokens"
    tokens.write_text("# mine\n one \n\ntwo\n")
    assert tokens_of("zero", tokens) == ["zero", "one", "two"]
    tokens.write_text("# none\n")
    with pytest.raises(ValueError, match="no token"):
        tokens_of(None, tokens)


def test_limits_must_make_sense() -> None:
    with pytest.raises(ValueError, match="workers"):
        Limits(workers=0)
    with pytest.raises(ValueError, match="step_seconds"):
        Limits(step_seconds=-1)
