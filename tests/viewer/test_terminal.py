"""`paw view --terminal`: what is typed leads through runs, curves, lists and episodes."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from paw_gym.transition import read_jsonl, write_jsonl
from paw_train.viewer.screens import sparkline, visible
from paw_train.viewer.terminal import TerminalViewer


def look(root: Path, cache: Path, *lines: str, width: int = 160, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    console = Console(file=file, width=width, highlight=False)
    TerminalViewer(root, console, cache).look(iter(lines))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_a_curve_in_one_line() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0] * 10 + [1.0] * 10, 4) == "▁▁██"
    assert sparkline([1, None, 3], 3, plain=True) == "_ #"
    assert sparkline([], 5) == sparkline([None], 5) == ""
    assert len(set(sparkline([2.0, 2.0], 5))) == 1


def test_control_characters_never_reach_the_terminal() -> None:
    assert visible("a\x1b[31mb\r\u202e\x9b\tc\n") == "a␛[31mb␍\ufffd\ufffd\tc\n"


def test_from_the_runs_to_a_turn(small_run: Path, tmp_path: Path, made: Any) -> None:
    root = tmp_path / "runs"
    made.write_evaluation(root / "eval-x")
    (root / "trained").symlink_to(small_run)
    text = look(root, tmp_path / "c", "2", "g", "1", "n", "b", "e", "/egg", "b", "b")
    assert re.search(r"1 +eval-x +33\.3 % +reflexion +– +ALFWorld-v0 +small-model|openai", text)
    assert re.search(r"2 +trained .* grpo +\d+ / \d+ +ALFWorld-v0", text)
    assert re.search(r"success_rate +[▁-█]{5,} +\d", text)
    assert re.search(r"groups: 1 to 20 of \d+", text)
    first, second, *_ = read_jsonl(small_run / "rollouts" / "000001.jsonl")
    for episode in (first, second):  # n: the next of the group
        assert f"> {episode.transitions[0].action}" in text
        assert episode.transitions[0].next_observation.split("\n")[0][:40] in text
    assert re.search(r'episodes with "egg": \d+ to \d+ of \d+', text)
    assert text.count("eval-x") == 2  # b, b: the runs again


def test_an_evaluation_with_what_was_sent(tmp_path: Path, made: Any) -> None:
    folder = made.write_evaluation(tmp_path / "eval-x")
    text = look(folder, tmp_path / "c", "e", "1", "f", "n", "n")
    assert "agent reflexion, model openai:small-model, panel alfworld/valid_seen" in text
    assert "cost $ 0.0421, invalid 12.5 %, truncated 25.0 %" in text
    assert re.search(r"cool +2 +50\.0 %", text)
    assert f"reflection 1: {made.REFLECTION}" in text
    assert made.EXAMPLE in text.split("as sent:", 1)[1] and "(1 messages as before)" in text
    assert made.EXAMPLE not in look(folder, tmp_path / "c", "e", "1")
    assert "answer cut off" in text


def test_what_cannot_be_done_is_said(small_run: Path, tmp_path: Path) -> None:
    text = look(small_run, tmp_path / "c", "7", "zzz", "f", "n", "g", "99999", "0", "p", "q", "g")
    assert "Numbers open the rows of a list" in text
    assert "'zzz' is no command here" in text and "'f' is no command here" in text
    assert "n and p move in a list or between episodes." in text
    assert text.count("There are ") == 2 and "That is the end of the list." in text
    assert text.count("groups: 1 to") == 1  # q left


def test_hostile_text_and_a_plain_terminal(small_run: Path, tmp_path: Path, made: Any) -> None:
    folder = made.write_evaluation(tmp_path / "eval-x", model="\x1b]0;owned\x07[bold]m[/bold]")
    episodes = list(read_jsonl(folder / "episodes.jsonl"))
    episodes[0].instruction = "\x1b[2J[red]gone"
    write_jsonl(folder / "episodes.jsonl", episodes)
    text = look(folder, tmp_path / "c", "e", "1")
    assert "\x1b" not in text and "\x07" not in text
    assert "[bold]m[/bold]" in text and "[red]gone" in text
    assert look(small_run, tmp_path / "c", encoding="ascii", width=80).isascii()


def test_the_command_reads_lines_and_needs_no_server(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paw_train.cli.program import app

    monkeypatch.setitem(sys.modules, "fastapi", None)
    done = CliRunner().invoke(app, ["view", str(small_run), "--terminal"], input="g\nq\n")
    assert done.exit_code == 0, done.output
    assert "groups: 1 to" in done.output
