"""Every environment of this package keeps the contract, with its own tasks and with real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from paw_gym import check_text_env
from paw_gym.registration import text_env_spec


def test_it_keeps_the_contract(own_env: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = own_env
    check_text_env(env_id, tasks=4, seed=1, time_limit=None, **kwargs).raise_for_failures()
    assert text_env_spec(env_id).description


def test_a_split_is_one_name(own_env: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = own_env
    with pytest.raises(ValueError, match=r"Unknown .*split \['train'\]"):
        gym.make(env_id, disable_env_checker=True, **{**kwargs, "split": ["train"]})


@pytest.mark.parametrize("split", ["train", "valid_seen"])
def test_alfworld_keeps_it_on_real_games(split: str, alfworld_data: Path) -> None:
    check_text_env(
        "paw_gym/ALFWorld-v0", tasks=6, seed=2, split=split, data_dir=alfworld_data, time_limit=None
    ).raise_for_failures()


def test_alfworld_keeps_it_with_the_newer_grammar() -> None:
    check_text_env(
        "paw_gym/ALFWorld-v0", split="valid_unseen", grammar="move", time_limit=None
    ).raise_for_failures()
