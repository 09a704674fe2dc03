"""``paw export``: episodes as data for other tools, and back. ``paw sft-data``: examples to fine-tune on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from paw_train.cli.shared import (
    DATA,
    EnvSettings,
    Force,
    Imports,
    environment_of,
    import_modules,
    progress_bars,
)

if TYPE_CHECKING:
    from paw_gym.export.exporters import Exporter
    from paw_gym.transition import Episode

app = typer.Typer()


@app.command("export", rich_help_panel=DATA)
def export(
    source: Annotated[
        str,
        typer.Argument(
            help="The folder of a run or of an evaluation, a [cyan].jsonl[/cyan] or "
            "[cyan].parquet[/cyan] file of episodes, or what an earlier export wrote."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The folder (datasets) or the file to write.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="[cyan]datasets[/cyan]: a folder for Hugging Face's library and hub; "
            "[cyan]parquet[/cyan]: one file; "
            "[cyan]tokens[/cyan]: token ids with the role of each token, for --tokenizer; "
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
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Of --to tokens: the folder or hub name of a model with a chat template.",
        ),
    ] = None,
    world_model_coeff: Annotated[
        float,
        typer.Option(help="Of --to tokens: coefficient of the world-model term in each line."),
    ] = 1.0,
    modules: Imports = None,
    force: Force = False,
) -> None:
    """Write recorded episodes as a data set for other tools, or turn one back into episodes."""
    from paw_gym.export import read_episodes
    from paw_gym.export.exporters import EXPORTERS
    from paw_gym.internals.naming import did_you_mean
    from paw_gym.internals.printable import counted, safe_console

    if to not in (forms := [*EXPORTERS, "tokens"]):
        raise ValueError(f"There is no form {to!r}. {did_you_mean(to, forms)}")
    if (to == "tokens") != (tokenizer is not None):
        raise ValueError("--to tokens and --tokenizer MODEL go together: ids are of one tokenizer.")
    if modules and to != "tokens":
        raise ValueError("--import belongs to --to tokens: nothing else needs the environment.")
    import_modules(modules)
    exporter = _of_tokens(tokenizer, world_model_coeff) if tokenizer else EXPORTERS[to]
    with progress_bars() as show:
        episodes = _some(read_episodes(source, part), source)
        tally = exporter.write(
            out, episodes, force=force, progress=lambda t: show("episodes", t.episodes, None)
        )
    console = safe_console(highlight=False, soft_wrap=True)
    console.print(
        f"[green]Wrote[/green] {counted(tally.transitions, 'transition')} of "
        f"{counted(tally.episodes, 'episode')} "
        f"({tally.successes:,} successful) to {escape(str(out))}"
    )
    console.print(f"Use it: {exporter.use.format(path=str(out))}", markup=False)


def _of_tokens(model: str, coefficient: float) -> Exporter:
    from paw_gym.export.exporters import Exporter
    from paw_train.policies.local.loading import find_model, load_tokenizer
    from paw_train.rollouts.token_export import write_tokens

    tokenizer = load_tokenizer(find_model(model).name)
    write = partial(write_tokens, tokenizer=tokenizer, coefficient=coefficient)
    return Exporter(write, "datasets.load_dataset('json', data_files={path!r}, split='train')")


def _some(episodes: Iterator[Episode], source: str) -> Iterator[Episode]:
    """The episodes; having none at all is an error."""
    first = next(episodes, None)
    if first is None:
        raise ValueError(f"{source} holds no episode: there is nothing to write.")
    return chain([first], episodes)


@app.command("sft-data", rich_help_panel=DATA)
def sft_data(
    source: Annotated[
        str,
        typer.Argument(
            help="What [cyan]paw export[/cyan] reads: a run, a file of episodes, an exported data "
            "set; with [cyan]--expert[/cyan] an environment."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    expert: Annotated[
        bool, typer.Option("--expert", help="SOURCE is an environment; its own expert acts.")
    ] = False,
    episodes: Annotated[int, typer.Option(min=1, help="Of --expert: how many.")] = 100,
    seed: Annotated[int, typer.Option(help="Of --expert: seeds the tasks and the rollouts.")] = 0,
    split: Annotated[str, typer.Option(help="Of --expert: the split of the tasks.")] = "train",
    mode: Annotated[
        str, typer.Option(help="Of --expert: [cyan]window[/cyan] or [cyan]conversation[/cyan].")
    ] = "window",
    kw: EnvSettings = None,
    only: Annotated[
        str | None,
        typer.Option(help="[cyan]policy[/cyan] (demonstrations) or [cyan]world_model[/cyan]."),
    ] = None,
    failures: Annotated[
        bool, typer.Option("--failures", help="Include demonstrations from unsuccessful episodes.")
    ] = False,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Write identical examples only once.")
    ] = False,
    part: Annotated[
        str, typer.Option(help="Of a run: [cyan]rollouts[/cyan], before, after or all.")
    ] = "all",
    force: Force = False,
) -> None:
    """Write demonstrations and world-model pairs that TRL's SFTTrainer takes as they are."""
    from paw_gym.export import read_episodes
    from paw_gym.export.sft import write_sft
    from paw_gym.internals.printable import counted, safe_console

    recorded = (
        _expert(source, episodes, seed, split, mode, kw) if expert else read_episodes(source, part)
    )
    with progress_bars() as show:
        tally, rows = write_sft(
            out,
            recorded,
            only=only,
            failures=failures,
            dedup=dedup,
            force=force,
            progress=lambda t: show("episodes", t.episodes, None),
        )
    console = safe_console(highlight=False, soft_wrap=True)
    console.print(f"{counted(tally.episodes, 'episode')}, {tally.successes:,} of them successful")
    for kind, count in rows.items():
        file = escape(f"{out / kind}.jsonl")
        console.print(f"[green]Wrote[/green] {counted(count, 'example')} to {file}")
        use = f"train_dataset=load_dataset({str(out)!r}, {kind!r}, split='train')"
        console.print(f"  Use it: SFTTrainer(MODEL, {use})", markup=False)


def _expert(
    env: str, episodes: int, seed: int, split: str, mode: str, kw: list[str] | None
) -> Iterator[Episode]:
    from paw_gym.export import expert_episodes
    from paw_gym.internals.constructors import has_splits

    env_id, settings = environment_of(env, kw)
    splits = {"split": split} if has_splits(env_id, settings) else {}
    agent: dict[str, Any] = {"mode": mode, **splits, **settings}
    return expert_episodes(env_id, episodes, seed, **agent)
