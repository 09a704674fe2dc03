"""Shared by commands: arguments, an environment's name and settings, and how errors end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

ENVIRONMENTS, TRAINING, DATA = "Environments", "Training", "Episodes as data"
"""headings of the commands in ``paw --help``"""

EnvName = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="A registered id, or its name alone ([cyan]ALFWorld[/cyan]), or "
        "[cyan]module:id[/cyan] to import a module first.",
    ),
]
EnvSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--kw", "-k", metavar="KEY=VALUE", help="Setting of the environment; may be repeated."
    ),
]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings that differ, such as [cyan]evaluation.tasks=50[/cyan], or where data lies: "
        "[cyan]env.kwargs.data_dir=DIR[/cyan].",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, installed or a file of this folder; it registers the environment.",
    ),
]


def import_modules(names: Sequence[str] | None) -> None:
    """Imports the modules that ``--import`` names."""
    from paw_gym.internals.constructors import import_named

    for name in names or []:
        import_named(name)


def full_env_id(name: str) -> str:
    """The id that a name means: itself, or one that ends in it, whatever the case; imports ``module:id``."""
    from paw_gym.internals.constructors import registered_id
    from paw_gym.registration import text_env_ids, text_env_spec

    if ":" in name:
        registered_id(name)
        return name
    ids = text_env_ids()
    if name in ids:
        return name

    def short_names(env_id: str) -> set[str]:
        tail = env_id.lower().rpartition("/")[2]
        return {env_id.lower(), tail, tail.rpartition("-v")[0] or tail}

    found: list[str] = [i for i in ids if name.lower() in short_names(i)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} could be {' or '.join(found)}: give the full id.")
    text_env_spec(name)  # for an unknown id it says which may have been meant
    return name


def parse_settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """``key=value`` pairs as a dictionary; values are read as YAML (numbers, true, null, lists)."""
    import yaml

    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, sign, value = pair.partition("=")
        if not sign or not key.isidentifier():
            raise ValueError(f"Expected key=value, got {pair!r} (for example --kw split=train).")
        try:
            settings[key] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError, ValueError):  # an impossible date is a ValueError
            settings[key] = value
    return settings


def environment_of(name: str, pairs: Sequence[str] | None) -> tuple[str, dict[str, Any]]:
    """The id of an environment and the settings for it, from the command line."""
    from paw_gym.internals.constructors import check_arguments

    env_id, settings = full_env_id(name), parse_settings(pairs)
    check_arguments(env_id, settings)
    return env_id, settings


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each name, added at its first report: the value is a function of (name, done, total)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from paw_gym.internals.printable import safe_console

    console = safe_console(stderr=True)
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), TaskProgressColumn(show_speed=True))
    bars: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = display.add_task(name, total=total)
            display.update(bars[name], completed=done, total=total)

        yield show


# --- errors: a red line for a user's mistake, a traceback for one of ours ------------------------

USER_ERRORS = (ValueError, KeyError, IndexError, OSError, ImportError, SyntaxError)
"""raised with a message that says what to do"""

_EXTRAS = {
    "train": ("torch", "transformers", "tokenizers", "peft", "scipy", "tensorboard", "jinja2"),
    "eval": ("openai",),
    "parquet": ("pyarrow",),
    "export": ("PIL", "datasets"),
    "sft": ("trl",),
    "alfworld": ("textworld", "alfworld"),
    "webshop": ("spacy",),
    "lucene": ("jnius", "pyserini"),
    "server": ("fastapi", "uvicorn"),
    "inspect": ("inspect_ai",),
    **{name: (name,) for name in ("wandb", "openrlhf", "mcp")},
}
"""the modules that an optional part of paw-gym installs"""


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
        except KeyboardInterrupt as stopped:  # with a command's advice, if it gives one
            typer.echo(f"\nStopped. {stopped}".rstrip(), err=True)
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
        module = error.name.partition(".")[0]
        extra = next((extra for extra, found in _EXTRAS.items() if module in found), "")
        hint = extra and f'; install it with pip install ".[{extra}]" in your clone of PaW-Gym'
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
