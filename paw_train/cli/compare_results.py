"""``paw compare-results``: two results on the same tasks."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def compare_results(
    first: Annotated[
        str, typer.Argument(help="A result of [cyan]paw eval[/cyan]: its folder or file.")
    ],
    second: Annotated[str, typer.Argument(help="Another result, on the same panel.")],
) -> None:
    """Compare two results task by task; refuse results that are not comparable, with the reason."""
    from paw_gym.internals.printable import safe_console
    from paw_train.evaluation.comparison import compare, load_result

    results = load_result(first), load_result(second)
    found = compare(*results)
    console = safe_console(highlight=False, soft_wrap=True)
    console.print(_table(results, found))
    low, high = found.ci95
    console.print(
        f"Second - first: {100 * found.difference:+.1f} points, 95 % interval {100 * low:+.1f} to "
        f"{100 * high:+.1f}, p = {found.p_value:.3g} ({found.test}); of {found.n} tasks "
        f"{found.improved} better, {found.worsened} worse."
    )
    if found.score_difference is not None:
        value, low, high = found.score_difference
        console.print(f"Score: {value:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}.")
    for note in found.notes:
        console.print(f"Note: {note}.", markup=False)


def _table(results: tuple[Any, Any], found: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    first, second = results
    table = Table(title=Text(str(first["panel"])))
    for name in ("task type", "first", "second", "difference"):
        table.add_column(name, justify="left" if name == "task type" else "right")
    for kind, difference in found.by_type.items():
        rates = [r["by_type"][kind]["success_rate"] for r in results]
        table.add_row(
            Text(kind), *(f"{100 * rate:.1f} %" for rate in rates), f"{100 * difference:+.1f}"
        )
    table.add_row(
        "all", *(f"{100 * rate:.1f} %" for rate in found.rates), f"{100 * found.difference:+.1f}"
    )
    names = (
        f"{which}: {r['agent']} {r['model']} x {len(r['runs'])} seed(s)"
        for which, r in (("first", first), ("second", second))
    )
    table.caption = Text(" | ".join(names))
    return table
