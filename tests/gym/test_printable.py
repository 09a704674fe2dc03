"""Names and texts of others do nothing where they are shown: in a terminal, and in Markdown."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.text import Text

from paw_gym.printable import markdown_text, one_line, printable, safe_console

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b1m\u202eflip\x7f"


def obeyed(text: str) -> set[str]:
    return {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e"} - {"\n", "\t"}


def test_no_escape_is_left_in_a_text() -> None:
    assert obeyed(printable(ESCAPES)) == set()
    assert one_line(f"a\n{ESCAPES}\r\nb").count("\n") == 0
    assert printable("a\tb\nc") == "a\tb\nc"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_sends_its_own_styles_and_nobody_elses_escapes(terminal: bool) -> None:
    out = io.StringIO()
    system: Any = "standard" if terminal else None
    console = safe_console(file=out, force_terminal=terminal, color_system=system, width=200)
    console.print(Text(ESCAPES, style="bold"))
    console.print(ESCAPES, markup=False)
    text = out.getvalue()
    for foreign in ("\x1b]0", "\x1b[2J", "\x1b[31m", "\x07", "\x9b", "\u202e", "\x7f"):
        assert foreign not in text
    assert ("\x1b[1m" in text) == terminal


def test_markdown_shows_a_name_as_it_is() -> None:
    name = "[click](http://x) ![p](http://y) <b>|</b> `c` *i* _j_ a_b"
    shown = markdown_text(name)
    for live in ("](", " <b", "* ", " _j", " | "):
        assert live not in shown.replace("\\" + live[0], "").replace(live[0] + "\\", ""), live
    assert "a_b" in shown and "http://" not in shown


RESULT: dict[str, Any] = {
    "panel": f"p[red]{ESCAPES}", "panel_hash": "0" * 64, "model": f"m[bold]{ESCAPES}|<img src=x>",
    "agent": "policy", "n": 1, "tasks": 1, "success_rate": 1.0, "ci95": [0.2, 1.0], "complete": True,
    "by_type": {f"t[blink]{ESCAPES}": {"n": 1, "success_rate": 1.0, "ci95": [0.2, 1.0]}},
    "score": {"mean": 1.0, "ci95": [1.0, 1.0]}, "mean_steps": 1.0, "invalid_rate": 0.0, "seconds": 1.0,
    "errors": 1, "first_error": f"boom {ESCAPES}",
}  # fmt: skip


def test_a_result_with_such_names_is_a_table_of_plain_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from paw_train.evaluation.terminal import Display

    display = Display()
    display.say(f"evaluating m[bold]{ESCAPES}")
    display.result(RESULT)
    text = capsys.readouterr().out
    assert obeyed(text) == set()
    for name in ("p[red]", "m[bold]", "t[blink]", "boom"):
        assert name in text


def test_tables_of_results_are_harmless() -> None:
    from paw_train.evaluation.comparison import as_csv, as_markdown

    assert obeyed(as_csv([RESULT])) == set()
    text = as_markdown([RESULT])
    assert obeyed(text) == set()
    assert "\\<img" in text and "\\|" in text
