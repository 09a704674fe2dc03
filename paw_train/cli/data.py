"""``paw data``: list, download and verify data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.errors import CommandGroup

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="List, download and verify data sets."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set of [cyan]paw data list[/cyan].")
]
Dest = Annotated[
    Path | None,
    typer.Option(help="Data folder; default: in $PAW_CACHE_DIR or the user's cache folder."),
]


@app.command("list")
def list_() -> None:
    """List the data sets, and the folders of those that are here."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from paw_gym.data import dataset_names, default_folder, load_manifest

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("data set", "what it is", "licence", "here"):
        table.add_column(header, style="bold" if header == "data set" else "", overflow="fold")
    for name in dataset_names():
        manifest, folder = load_manifest(name), default_folder(name)
        here = str(folder) if folder.is_dir() else "[dim]no[/dim]"
        table.add_row(
            name, f"{manifest.title}\n[dim]{manifest.homepage}[/dim]", manifest.licence, here
        )
    Console().print(table)


@app.command()
def download(
    name: Name,
    dest: Dest = None,
    mirror: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Download the files from this base address instead."),
    ] = None,
    from_folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Take the files from this folder instead of the network."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="Keep the archives beside the data folder.")
    ] = False,
) -> None:
    """Download a data set. An interrupted download continues where it stopped."""
    from rich.console import Console
    from rich.progress import TaskProgressColumn

    from paw_gym.data import default_folder, download_dataset, load_manifest, read_receipt
    from paw_train.cli.progress import progress_bars

    if mirror is not None and from_folder is not None:
        raise ValueError("Give either --mirror or --from-folder, not both.")
    manifest = load_manifest(name)
    console = Console(highlight=False, soft_wrap=True)
    before = read_receipt(dest or default_folder(name))
    with progress_bars(TaskProgressColumn()) as progress:
        folder = download_dataset(
            manifest,
            dest,
            mirror=mirror,
            from_folder=from_folder,
            force=force,
            keep_archives=keep_archives,
            progress=progress,
        )
    receipt = read_receipt(folder) or {"archives": [], "files": {}}
    if before is not None and not force:
        console.print(f"[green]Already here:[/green] {folder} (--force downloads it again)")
    else:
        console.print(f"[green]Done:[/green] {len(receipt['files']):,} files in {folder}")
        unknown = [a["name"] for a in receipt["archives"] if not a["sha256_was_known"]]
        if unknown:
            console.print(
                f"[yellow]No checksum is known for {', '.join(unknown)}[/yellow]: what came is "
                "recorded, and `paw data verify` and later downloads are held to it."
            )
    if manifest.use:
        console.print(f"Use it: {manifest.use.format(folder=folder)}", markup=False)


@app.command()
def verify(
    name: Name,
    dest: Dest = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only.")] = False,
) -> None:
    """Compare a data set on disk with its receipt; exit code 1 if something changed."""
    from rich.console import Console
    from rich.progress import TaskProgressColumn

    from paw_gym.data import default_folder, load_manifest, read_receipt, verify_dataset
    from paw_train.cli.progress import progress_bars

    folder = dest or default_folder(load_manifest(name).name)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no {folder}: `paw data download {name}` downloads it; --dest names another folder."
        )
    with progress_bars(TaskProgressColumn()) as progress:
        problems = verify_dataset(folder, quick=quick, progress=progress)
    console = Console(highlight=False, soft_wrap=True)
    for problem in problems[:20]:
        console.print(problem, style="red", markup=False)
    if problems:
        console.print(
            f"[bold red]{len(problems)} files differ[/bold red] in {folder}; "
            f"`paw data download {name} --force` downloads them again."
        )
        raise typer.Exit(1)
    count = len((read_receipt(folder) or {"files": {}})["files"])
    what = "sizes" if quick else "checksums"
    console.print(f"[green]All {count:,} files have the recorded {what}[/green]: {folder}")
