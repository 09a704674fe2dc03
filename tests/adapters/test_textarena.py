"""Games of TextArena for one player as ours."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("textarena", reason="textarena is not installed")

from paw_gym import check_text_env
from paw_gym.adapters.textarena import FromTextArena
from paw_gym.contract.subject import JUNK

OFFLINE = [
    *("2048", "Bandit", "Blackjack", "Countdown", "Crosswords", "Cryptarithm", "FifteenPuzzle"),
    *("FrozenLake", "GuessTheNumber", "LightsOut", "LogicPuzzle", "Mastermind", "Minesweeper"),
    *("PegJump", "Secretary", "Set", "Slitherlink", "Sudoku", "ThreeCardMonte", "TowerOfHanoi"),
]
"""and RushHour and Sokoban, which take long to make a puzzle"""
TEXTS = (*JUNK[:5], "up", "1 2", "[0]", "accept")
HANOI = ["A C", "[A B]", "C B", "A C", "B A", "B C", "A C"]


@pytest.mark.parametrize("game", OFFLINE)
def test_any_text_is_an_action_and_episodes_are_their_seed_and_actions(game: str) -> None:
    env, twin = (FromTextArena(f"{game}-v0", split="test", num_tasks=2) for _ in range(2))
    for number, junk in enumerate(TEXTS):
        first, info = env.reset(seed=number)
        outside = random.getstate()
        answers = [env.step(junk)[:4]]
        assert random.getstate() == outside
        assert info["instruction"] and first and info["admissible_actions"] is None
        random.seed(number)
        assert twin.reset(seed=number)[0] == first
        assert [twin.step(junk)[:4]] == answers


def test_a_game_is_won() -> None:
    env = FromTextArena("TowerOfHanoi-v0")
    observation, info = env.reset(seed=0)
    assert "Tower" in info["instruction"] and observation.startswith("Current Board")
    for action in HANOI:
        observation, reward, terminated, _, info = env.step(action)
        assert info["action_is_valid"]
    assert terminated and info["success"] and reward == info["score"] == 1.0


def test_a_move_that_is_refused_is_invalid() -> None:
    env = FromTextArena("TowerOfHanoi-v0")
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step("C A")
    assert "invalid move" in observation and not info["action_is_valid"] and not terminated
    assert env.step("A C")[4]["action_is_valid"]


class Slide(FromTextArena):
    """2048 draws a tile at every move."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("2048-v0-ultra-easy", **kwargs)


def test_it_keeps_the_contract() -> None:
    report = check_text_env(Slide, tasks=2, time_limit=None, num_tasks=3, max_steps=30)
    failed = {result.name for result in report.results if result.status == "failed"}
    assert failed == {"reference_solver"}, "no solver comes with the games"


def test_a_game_of_chance_is_restored_exactly() -> None:
    env = Slide()
    env.reset(seed=0)
    moves = ["left", "up", "right", "down"] * 3
    env.step("up")
    state = env.save_state()
    expected = [env.step(move)[0] for move in moves]
    env.restore_state(state)
    random.seed(5)
    assert [env.step(move)[0] for move in moves] == expected


def test_splits_have_no_seed_in_common() -> None:
    seeds = [{t.data for t in Slide(split=s, num_tasks=20).tasks} for s in ("train", "test")]
    assert not set.intersection(*seeds)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("TowerOfHanoy-v0", "Did you mean 'TowerOfHanoi-v0'"),
        ("TicTacToe-v0", "TicTacToe-v0 cannot be played here by one player"),
        ("GuessWho-v0", "GuessWho-v0 cannot be played here by one player: OpenRouter API key"),
    ],
)
def test_what_cannot_be_played_says_why(
    game: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ValueError, match=message):
        FromTextArena(game)


def test_a_game_that_lacks_its_words_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(ValueError, match=r"word lists .*python -m nltk.downloader words"):
        FromTextArena("Hangman-v0")
