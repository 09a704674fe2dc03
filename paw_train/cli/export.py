"""``paw export``: recorded episodes as a data set for other tools, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from paw_gym.export.staging import Tally

FORMS = ("datasets", "parquet", "minari", "jsonl")
_USE = {
    "datasets": "datasets.load_dataset({path!r}, split='train')",
    "parquet": "datasets.load_dataset('parquet', data_files={path!r})",
    "minari": "minari.MinariDataset({data!r})",
    "jsonl": "paw_gym.transition.read_jsonl({path!r})",
}


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="The folder of a run or of an evaluation, a [cyan].jsonl[/cyan] or "
            "[cyan].parquet[/cyan] file of episodes, or what an earlier export wrote."
        ),
    ],
    out: Annotated[
        Path, typer.Argument(help="The folder (datasets, minari) or the file to write.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="[cyan]datasets[/cyan]: a folder for Hugging Face's library and hub; "
            "[cyan]parquet[/cyan]: one file; [cyan]minari[/cyan]: a Minari data set; "
            "[cyan]jsonl[/cyan]: an episode a line, also back from the others.",
        ),
    ],
    part: Annotated[
        str,
        typer.Option(
            help="Of a run: [cyan]rollouts[/cyan] (training), [cyan]before[/cyan], "
            "[cyan]after[/cyan] or [cyan]all[/cyan]."
        ),
    ] = "all",
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write recorded episodes as a data set for other tools, or turn one back into episodes."""
    from rich.console import Console

    from paw_gym.export import read_episodes
    from paw_gym.naming import did_you_mean

    if to not in FORMS:
        raise ValueError(f"There is no form {to!r}. {did_you_mean(to, FORMS)}")
    with counting() as progress:
        tally = _write(to, out, read_episodes(source, part), force, progress)
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[green]Wrote[/green] {tally.transitions:,} transitions of {tally.episodes:,} episodes "
        f"({tally.successes:,} successful) to {out}"
    )
    use = _USE[to].format(path=str(out), data=str(out / "data"))
    console.print(f"Use it: {use}", markup=False)


def _write(
    to: str, out: Path, episodes: Iterator[object], force: bool, progress: Callable[[Tally], None]
) -> Tally:
    from typing import cast

    from paw_gym.export.staging import Tally, require_absent, with_clean_texts
    from paw_gym.transition import Episode, write_jsonl, write_parquet

    some = cast("Iterator[Episode]", episodes)
    if to == "datasets":
        from paw_gym.export.hub import write_hub_dataset

        return write_hub_dataset(out, some, force=force, progress=progress)
    if to == "minari":
        from paw_gym.export.minari_form import write_minari

        return write_minari(out, some, force=force, progress=progress)
    require_absent(out, force)
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; --to {to} writes one file.")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {out.parent} to write to.")
    tally = Tally()
    if to == "parquet":
        write_parquet(out, tally.count(with_clean_texts(some), progress))
    else:
        write_jsonl(out, tally.count(some, progress))
    return tally


@contextmanager
def counting() -> Iterator[Callable[[Tally], None]]:
    """A line that counts what has been written, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        line = display.add_task("reading ...", total=None)

        def show(tally: Tally) -> None:
            if tally.episodes % 50 == 1:
                display.update(
                    line,
                    description=f"{tally.episodes:,} episodes, {tally.transitions:,} transitions",
                )

        yield show
