"""Errors on the command line: a red line for a user's mistake, a traceback for one of ours."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

USER_ERRORS = (ValueError, KeyError, IndexError, OSError, ImportError, SyntaxError)
"""raised with a message that says what to do"""

_EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "tensorboard": "train",
    "wandb": "wandb",
    "openai": "eval",
    "openrlhf": "openrlhf",
    "inspect_ai": "inspect",
    "mcp": "mcp",
    "pyarrow": "parquet",
    "PIL": "export",
    "datasets": "export",
    "trl": "sft",
    "textworld": "alfworld",
    "alfworld": "alfworld",
    "spacy": "webshop",
    "jnius": "lucene",
    "pyserini": "lucene",
    "fastapi": "server",
    "jinja2": "train",
    "uvicorn": "server",
}
"""the optional part of paw-gym that installs a module"""


class CommandGroup(TyperGroup):
    """Commands in which a user's mistake ends with one line instead of a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command; an unknown one is an error that suggests the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            from paw_gym.internals.naming import did_you_mean

            ctx.fail(f"There is no command {name!r}. {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. It exits with 2 after a user's mistake, with 130 after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\nStopped.", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `paw envs | head`; the interpreter must not flush into it again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except Exception as error:
            if ctx.find_root().params.get("debug") or not is_user_error(error):
                raise
            report_error(error)
            raise typer.Exit(2) from None


def is_user_error(error: BaseException) -> bool:
    """True if an error's message is a sentence; a bare ``KeyError: 'x'`` is a defect in our code."""
    if isinstance(error, OSError | ImportError):
        return True
    known = isinstance(error, USER_ERRORS) or type(error).__module__.startswith("gymnasium.")
    return known and " " in message_of(error)


def message_of(error: BaseException) -> str:
    bare = str(error).startswith("No module named")
    if isinstance(error, ModuleNotFoundError) and error.name and bare:
        extra = _EXTRAS.get(error.name.partition(".")[0])
        hint = (
            f'; install it with pip install ".[{extra}]" in your clone of PaW-Gym' if extra else ""
        )
        return f"This needs the package {error.name!r}, which is not installed{hint}."
    text = str(error.args[0]) if type(error) is KeyError and error.args else str(error)
    return " ".join(text.split()) or type(error).__name__


def report_error(error: BaseException) -> None:
    """Prints an error's message in red, to stderr, and the notes that were added to it."""
    from rich.text import Text

    from paw_gym.internals.printable import safe_console

    console = safe_console(stderr=True, soft_wrap=True)
    message = " ".join([message_of(error), *getattr(error, "__notes__", ())])
    console.print(Text.assemble(("Error: ", "bold red"), (message, "red")))
