"""The ``paw`` program, as it is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from files import archives, unpinned
from programs import said
from typer.testing import CliRunner, Result

from paw_gym.data import load_manifest
from paw_gym.registration import register_text_env
from paw_gym.transition import read_jsonl
from paw_train.cli.program import app


@pytest.fixture
def paw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, box_env: Any) -> Callable[..., Result]:
    """``paw("check", "Boxes")`` in an empty folder, with the box environment registered."""
    register_text_env("tests/Boxes-v0", box_env, description="a ball in a box")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))

    def run(*args: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(app, list(args), input=typed)

    return run


Paw = Callable[..., Result]


def flat(text: str) -> str:
    """Without the breaks and frames of a narrow terminal."""
    return " ".join(text.replace("│", " ").split())


class TestErrors:
    def test_debug_shows_the_traceback(self, paw: Paw) -> None:
        done = paw("--debug", "check", "Boxs")
        assert isinstance(done.exception, ValueError)

    def test_a_defect_of_ours_is_not_dressed_up(
        self, paw: Paw, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken() -> list[str]:
            raise KeyError("x")

        monkeypatch.setattr("paw_gym.registration.text_env_ids", broken)
        assert isinstance(paw("envs").exception, KeyError)

    def test_an_ambiguous_name_is_asked_back(self, paw: Paw, box_env: Any) -> None:
        register_text_env("others/Boxes-v0", box_env)
        done = paw("check", "boxes")
        assert "'boxes' could be others/Boxes-v0 or tests/Boxes-v0" in done.stderr

    def test_help_is_cheap(self) -> None:
        """Help must not wait for what only the commands need."""
        code = (
            "import sys\nfrom paw_train.cli.program import app\n"
            "try: app(['--help'])\nexcept SystemExit: pass\n"
            "print(sorted({'torch', 'numpy', 'gymnasium', 'pyarrow', 'transformers'} & set(sys.modules)))"
        )
        shown = said("-c", code)
        assert shown.splitlines()[-1] == "[]" and "play" in shown

    def test_a_broken_environment_fails_with_the_reason(self, paw: Paw) -> None:
        args = ["check", "tests/Boxes-v0", "--kw", "defect=no solver", "--only", "reference_solver"]
        done = paw(*args, "--only", "task_ids")
        assert done.exit_code == 1 and "Traceback" not in done.output
        assert "✗ reference_solver" in done.output and "1 failed, 1 passed." in done.output
        assert "tests/Boxes-v0 has no reference solver" in flat(done.output)
        assert "Traceback" in paw(*args, "--trace").output


class TestPlay:
    def play(self, paw: Paw, *lines: str, record: str = "e.jsonl") -> Result:
        typed = "".join(f"{line}\n" for line in lines)
        args = ["play", "boxes", "--task", "boxes/3", "--seed", "0", "--record", record]
        done = paw(*args, typed=typed)
        assert done.exit_code == 0, done.output
        return done

    def episodes(self, record: str = "e.jsonl") -> list[Any]:
        return list(read_jsonl(record))

    def test_numbers_words_and_commands_are_read(self, paw: Paw) -> None:
        typed = ("0", "99", "1", "look", ":hnt", ":help", "[bold]x[/nope]", "2")
        done = self.play(paw, *typed)
        (episode,) = self.episodes()
        actions = [t.action for t in episode.transitions]
        assert actions == ["open box 1", "look", "[bold]x[/nope]", "open box 2"]
        for text in (
            "Find the ball in one of 3 boxes.",
            "There is no action 99: they go from 1 to 4.",
            "You look around.",
            "There is no command ':hnt'. Did you mean ':hint'?",
            "start this task again",
            "[bold]x[/nope]",
            "step 4 of 20",
            "Recorded 1 episode in e.jsonl",
        ):
            assert text in done.output

    def test_hints_lead_to_success(self, paw: Paw) -> None:
        first = self.play(paw, ":hint", record="a.jsonl")
        box = first.output.partition("Try: ")[2].splitlines()[0]
        done = self.play(paw, box, ":hint", "take ball", "look", ":hint")
        assert "Try: take ball" in done.output
        assert "Success" in done.output
        assert "2 actions, reward 1, score 1" in done.output
        assert "The episode is over: :next, :again or :quit." in done.output
        assert self.episodes()[0].success

    def test_again_and_next_start_episodes(self, paw: Paw) -> None:
        done = self.play(
            paw, "look", ":again", "1", ":next boxes/5", "1", ":next boxes/55", "2", ":quit", "3"
        )
        played = [(e.task_id, len(e.transitions)) for e in self.episodes()]
        assert played == [("boxes/3", 1), ("boxes/3", 1), ("boxes/5", 2)]
        assert "Did you mean 'boxes/5'" in done.output
        assert "Recorded 3 episodes" in done.output

    def test_the_budget_ends_the_game_and_the_record_goes_below_runs(self, paw: Paw) -> None:
        done = paw("play", "boxes", "--kw", "max_steps=2", typed="look\nlook\n")
        assert "Out of steps" in done.output
        (path,) = Path("runs/play").glob("Boxes-v0-*.jsonl")
        assert str(path) in done.output
        assert self.episodes(str(path))[0].transitions[-1].truncated

    def test_a_narrow_terminal_shows_everything(
        self, paw: Paw, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "30")
        done = self.play(paw, "1")
        assert max(map(len, done.output.splitlines()[1:-1])) <= 30
        assert "Find the ball in one of 3 boxes." in flat(done.output)
        assert "4 look" in done.output


class TestNewEnv:
    def test_it_is_written_whole_or_not_at_all(
        self, paw: Paw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = OSError(28, "No space left on device")
        write = Mock(side_effect=[DEFAULT, DEFAULT, full], wraps=Path.write_text)
        monkeypatch.setattr(Path, "write_text", lambda *args, **kwargs: write(*args, **kwargs))
        done = paw("new-env", "my-maze")
        assert done.exit_code == 2 and "No space left on device" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_another_folder_can_be_named(self, paw: Paw, tmp_path: Path) -> None:
        (tmp_path / "[there]").mkdir()
        done = paw("new-env", "my-maze", "--into", "[there]")
        assert done.exit_code == 0 and "Wrote [there]/my-maze\n" in done.stdout
        assert (tmp_path / "[there]" / "my-maze" / "my_maze" / "env.py").is_file()


def test_what_was_downloaded_can_be_played_and_verified(
    paw: Paw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "[/cache]"))
    archives(tmp_path / "usb")
    download = ["data", "download", "alfworld", "--from-folder", "usb"]
    refused = paw(*download)
    assert refused.exit_code == 2 and "wrong checksum" in refused.stderr
    made = unpinned(load_manifest("alfworld"))
    monkeypatch.setattr("paw_gym.data.load_manifest", lambda name: made)
    done = paw(*download)
    folder = tmp_path / "[/cache]" / "data" / "alfworld"
    assert done.exit_code == 0, done.output
    assert f"Done: 6 files in {folder}" in done.stdout
    assert "No checksum is known" in done.stdout
    assert f'data_dir="{folder}"' in done.stdout
    checked = paw("check", "alfworld", "--kw", f"data_dir={folder}", "--tasks", "1")
    assert checked.exit_code == 0, checked.output
    assert f"Already here: {folder}" in paw(*download).stdout
    assert f"the recorded checksums: {folder}" in paw("data", "verify", "alfworld").stdout
    monkeypatch.setenv("COLUMNS", "300")
    assert "/[/cache]" in paw("data", "list").stdout
    monkeypatch.setenv("HOME", str(folder.parent))
    there = "--dest=~/alfworld"  # which shells leave as it is
    assert f"Already here: {folder}" in paw(*download, there).stdout
    assert str(folder) in paw("data", "verify", "alfworld", there).stdout
    other = paw("data", "verify", "webshop", there)
    assert other.exit_code == 2 and "holds the data set 'alfworld', not" in other.stderr
    (next(folder.rglob("game.tw-pddl"))).write_text("{}")
    broken = paw("data", "verify", "alfworld", "--quick")
    assert broken.exit_code == 1 and f"1 file differs in {folder};" in broken.stdout
