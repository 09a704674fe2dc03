"""One policy for several worlds against a policy for each, at equal tokens.

For each seed the recipe ``many_worlds`` is trained, and then each of its worlds alone
(``paw train many_worlds env=NAME``). All have the same warm start in tokens (steps of one size) and as many
updates. A world alone gets as many groups an update as give the mixed run's tokens: its first update, with
the recipe's groups, is run once to know what a group costs there. Tokens are the positions of an update's
rows (``tokens`` in ``metrics.jsonl``), and what they came to stands in the table.

    python benchmarks/many_worlds.py many                                # three seeds
    python benchmarks/many_worlds.py many --seeds 1 --cells cells.json   # adds a seed to those of a file
    python benchmarks/many_worlds.py many --seeds --cells cells.json     # the table alone

It can be stopped at any moment: the same command goes on where it was, and a run that is in the file of the
cells is not needed any more, so a seed can be continued elsewhere with that file alone. Every run takes one
thread, so commands with different seeds, and a file each, can run beside each other in one folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paw_gym.files import write_json
from paw_train.evaluation.statistics import mean_interval
from paw_train.reporting.run.run_data import load_run
from paw_train.settings.recipes import load_settings

PAW = Path(sysconfig.get_path("scripts")) / "paw"
RECIPE = "many_worlds"
MIXED = "mixed"
_FIXED = ("evaluation.every=0", "keep_episodes=1")
Cell = dict[str, Any]


def main() -> None:
    options = _options()
    recipe = load_settings(RECIPE, [*_FIXED, *options.set])
    worlds = [member.name for member in recipe.members]
    cells = _read(options.cells) if options.cells else []
    for seed in options.seeds:
        for arm in (MIXED, *worlds):
            if _find(cells, seed, arm) is None:
                cells.append(_train(options, cells, seed, arm, recipe.rollout.groups))
            if options.cells:
                write_json(options.cells, sorted(cells, key=lambda c: (c["seed"], c["arm"])))
    print(table(cells, worlds))


def _find(cells: Sequence[Cell], seed: int, arm: str) -> Cell | None:
    return next((cell for cell in cells if (cell["seed"], cell["arm"]) == (seed, arm)), None)


def _train(
    options: argparse.Namespace, cells: Sequence[Cell], seed: int, arm: str, groups: int
) -> Cell:
    """The cell of a run; a world alone gets the tokens of the seed's mixed run, which has a cell."""
    alone: list[str] = []
    mixed = _find(cells, seed, MIXED)
    if mixed is not None:
        alone = [f"env={arm}"]
        pilot = _run(options, seed, f"{arm}-pilot", [*alone, "updates=1"])
        wanted = mixed["tokens"] / mixed["updates"]
        groups = max(2, round(groups * wanted / _column(pilot, "tokens")[0]))
        alone.append(f"rollout.groups={groups}")
    return _cell(_run(options, seed, arm, alone), seed, arm, groups)


def _run(options: argparse.Namespace, seed: int, name: str, settings: Sequence[str]) -> Path:
    """The folder of a run, which is trained unless it is finished."""
    folder = Path(options.out) / f"seed{seed}-{name}"
    fixed = [f"out={options.out}", f"name={folder.name}", f"seed={seed}", "threads=1"]
    fixed.append(f"warm_starts={options.out}/warm-starts")
    if not (folder / "eval_after.json").exists():
        print(f"{folder.name}: {' '.join(settings)}", flush=True)
        command = [PAW, "train", RECIPE, *fixed, *_FIXED, *options.set, *settings]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def _cell(folder: Path, seed: int, arm: str, groups: int) -> Cell:
    """What the table needs of a run."""
    return {
        "seed": seed,
        "arm": arm,
        "groups": groups,
        "updates": len(_column(folder, "tokens")),
        "tokens": sum(_column(folder, "tokens")),
        "sampled_tokens": sum(_column(folder, "sampled_tokens")),
        "before": _panels(folder / "eval_before.json", arm),
        "after": _panels(folder / "eval_after.json", arm),
    }


def _panels(path: Path, arm: str) -> dict[str, dict[str, float]]:
    """Success and score by world."""
    result = json.loads(path.read_text(encoding="utf-8"))
    found = result.get("by_environment", {arm: result})
    return {
        name: {"n": r["n"], "success": r["success_rate"], "score": r["score"]["mean"]}
        for name, r in found.items()
    }


def _column(folder: Path, name: str) -> list[float]:
    return [line[name] for line in load_run(folder).metrics]


def table(cells: Sequence[Cell], worlds: Sequence[str]) -> str:
    """Means by world over the seeds that are complete, as Markdown; differences are paired by seed.

    A world whose score is not its success (points for a part of the task) has a row for each.
    """
    by_seed: dict[int, dict[str, Cell]] = {}
    for cell in cells:
        by_seed.setdefault(cell["seed"], {})[cell["arm"]] = cell
    complete = [arms for arms in by_seed.values() if {MIXED, *worlds} <= arms.keys()]
    lines = [
        "1 seed" if len(complete) == 1 else f"{len(complete)} seeds",
        "",
        "| world | mixed: before | after | alone: before | after | mixed - alone | tokens alone / mixed |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for world in worlds if complete else []:
        pairs = [(arms[MIXED], arms[world]) for arms in complete]
        lines += [_row(world, measure, pairs) for measure in _measures(world, pairs)]
    return "\n".join(lines)


def _measures(world: str, pairs: Sequence[tuple[Cell, Cell]]) -> list[str]:
    panels = [cell[when][world] for pair in pairs for cell in pair for when in ("before", "after")]
    partial = any(abs(panel["score"] - panel["success"]) > 1e-9 for panel in panels)
    return ["success", "score"] if partial else ["success"]


def _row(world: str, measure: str, pairs: Sequence[tuple[Cell, Cell]]) -> str:
    def rate(cell: Cell, when: str) -> float:
        return 100 * float(cell[when][world][measure])

    def mean(which: int, when: str) -> str:
        return f"{statistics.fmean(rate(pair[which], when) for pair in pairs):.1f}"

    shown = [mean(which, when) for which in (0, 1) for when in ("before", "after")]
    gap = _difference([rate(mixed, "after") - rate(alone, "after") for mixed, alone in pairs])
    ratio = statistics.fmean(alone["tokens"] / mixed["tokens"] for mixed, alone in pairs)
    return f"| {world}, {measure} | {' | '.join(shown)} | {gap} | {ratio:.2f} |"


def _difference(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:+.1f}"
    low, high = mean_interval(values)
    return f"{statistics.fmean(values):+.1f} ({low:+.1f} to {high:+.1f})"


def _read(path: Path) -> list[Cell]:
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--cells", type=Path, help="file of the finished runs, read and written")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of all runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
