"""What an environment's own code raised, in one line."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium

from paw_gym.validation import EnvDefinitionError

_HERE = Path(__file__).parent
_OURS = [_HERE, _HERE.with_name("paw_train"), Path(gymnasium.__file__).parent]
"""folders of code that an environment's author has not written"""
_STANDARD = Path(sysconfig.get_path("stdlib"))
_LONGEST = 500


class EnvironmentRaisedError(ValueError):
    """Code of an environment's author raised an exception; the message says which, and where."""


@contextmanager
def naming_authors_line(what: str) -> Iterator[None]:
    """Raises ``EnvironmentRaisedError`` for what an author's own code raises; our code speaks for itself.

    Args:
        what: was under way (``reset``), for the message.
    """
    try:
        yield
    except (EnvDefinitionError, NotImplementedError):
        raise
    except Exception as error:
        if _place(error) is None:
            raise
        text = f"{what}: the environment raised {with_place(error)}."
        raise EnvironmentRaisedError(text) from error


def with_place(error: BaseException) -> str:
    """An exception, with the line of the environment's own code that it comes from, if it does."""
    text, place = f"{type(error).__name__}: {error}", _place(error)
    return f"{text} ({place[0].name}, line {place[1]})" if place else text


def _place(error: BaseException) -> tuple[Path, int | None] | None:
    """The innermost line of the environment's own code that an exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(Path(f.filename), f.lineno) for f in frames if not f.filename.startswith("<")]
    written = [(path, number) for path, number in lines if _is_the_environments(path)]
    return written[-1] if written else None


def _is_the_environments(path: Path) -> bool:
    standard = path.is_relative_to(_STANDARD) and not {"site-packages", "dist-packages"} & {
        *path.parts
    }
    return not standard and not any(path.is_relative_to(folder) for folder in _OURS)


def reason_of(error: str) -> str:
    """An episode's error in one line: of a traceback its exception, with all lines of the message."""
    lines = error.splitlines()
    frames = [i for i, line in enumerate(lines) if line.lstrip().startswith('File "')]
    rest = lines[frames[-1] + 1 :] if frames else lines
    while frames and rest and rest[0].startswith(" "):  # the source of the last frame
        rest = rest[1:]
    reason = " ".join(" ".join(rest).split()) or "unknown"
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
