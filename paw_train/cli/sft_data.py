"""``paw sft-data``: chat-format examples for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paw_train.cli.arguments import EnvSettings

if TYPE_CHECKING:
    from paw_gym.transition import Episode


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
    force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
) -> None:
    """Write demonstrations and world-model pairs that TRL's SFTTrainer takes as they are."""
    from paw_gym.export import read_episodes
    from paw_gym.export.sft import KINDS, write_sft
    from paw_gym.internals.naming import did_you_mean
    from paw_gym.internals.printable import safe_console
    from paw_train.cli.export import counting

    if only is not None and only not in KINDS:
        raise ValueError(f"--only {only!r} is not a kind of example. {did_you_mean(only, KINDS)}")
    recorded = (
        _expert(source, episodes, seed, split, mode, kw) if expert else read_episodes(source, part)
    )
    with counting() as progress:
        summary = write_sft(
            out,
            recorded,
            kinds=KINDS if only is None else (only,),
            failures=failures,
            dedup=dedup,
            force=force,
            progress=progress,
        )
    console = safe_console(highlight=False, soft_wrap=True)
    tally = summary.tally
    console.print(f"{tally.episodes:,} episodes, {tally.successes:,} of them successful")
    for kind, count in summary.rows.items():
        console.print(f"[green]Wrote[/green] {count:,} examples to {out / kind}.jsonl")
        console.print(
            f"  Use it: SFTTrainer(MODEL, train_dataset="
            f"load_dataset({str(out)!r}, {kind!r}, split='train'))",
            markup=False,
        )


def _expert(
    env: str, episodes: int, seed: int, split: str, mode: str, kw: list[str] | None
) -> Iterator[Episode]:
    from paw_gym.export.expert import expert_episodes
    from paw_gym.internals.constructors import has_splits
    from paw_train.cli.arguments import environment_of

    env_id, settings = environment_of(env, kw)
    splits = {"split": split} if has_splits(env_id, settings) else {}
    agent: dict[str, Any] = {"mode": mode, **splits, **settings}
    return expert_episodes(env_id, episodes, seed, **agent)
