"""Puts one self-contained page together and writes it."""

from __future__ import annotations

import base64
import hashlib
import shlex
from importlib import resources
from pathlib import Path
from string import Template

from paw_gym.files import write_text
from paw_train.reporting.run.alarms import Alarm
from paw_train.reporting.run.curves import curve_sections
from paw_train.reporting.run.episodes import episode_section
from paw_train.reporting.run.markup import Markup, escape, join, tag
from paw_train.reporting.run.noise import noise_section
from paw_train.reporting.run.run_data import FILES, RunData, load_run
from paw_train.reporting.run.tables import result_table, settings_table, tiles
from paw_train.reporting.run.verdict import judge
from paw_train.reporting.run.world_model import world_model_table


def write_report(run_dir: str | Path) -> Path:
    """Writes ``report.html`` into a run's folder, from whatever files are there.

    The page needs nothing else: no network (its own content policy forbids it), no script to be read.

    Args:
        run_dir: the folder of a run, finished or not.

    Returns:
        The path of the page.

    Raises:
        ValueError: there is no such folder, or nothing in it comes from a run.
    """
    run = load_run(run_dir)
    path = run.folder / "report.html"
    write_text(path, render(run))
    return path


def render(run: RunData) -> str:
    """The page as text."""
    return html_page(run.name, _body(run))


def html_page(title: str, body: Markup) -> str:
    """A complete page around ``body``: the reports' style and script, nothing from elsewhere."""
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=_asset("report.css"),
        script=script,
        body=body,
    )


def _asset(name: str) -> str:
    return (resources.files("paw_train.reporting.run") / "assets" / name).read_text(
        encoding="utf-8"
    )


def _body(run: RunData) -> Markup:
    return join(
        [
            _header(run),
            _alarms(run),
            _notes(run),
            result_table(run),
            world_model_table(run.world_model),
            curve_sections(run),
            noise_section(run.noise),
            episode_section(run),
            _reproduce(run),
        ],
        "\n",
    )


def _header(run: RunData) -> Markup:
    verdict = judge(run)
    return tag(
        "header",
        tag("p", "Training run", class_="kicker"),
        tag("h1", run.name),
        tag(
            "div",
            tag("p", verdict.headline, class_="headline"),
            *(tag("p", sentence) for sentence in verdict.details),
            class_=f"verdict {verdict.tone}",
        ),
        tiles(run),
    )


def _alarms(run: RunData) -> Markup:
    if not run.alarms:
        return Markup()
    items = (
        tag("li", tag("b", alarm.title), f" ({_when(alarm)}): {alarm.text}") for alarm in run.alarms
    )
    return tag("section", tag("h2", "Alarms"), tag("ul", *items), class_="notes alarms")


def _when(alarm: Alarm) -> str:
    return f"since update {alarm.first}" if alarm.ongoing else f"until update {alarm.last}"


def _notes(run: RunData) -> Markup:
    if not run.notes:
        return Markup()
    items = (tag("li", note) for note in run.notes)
    return tag("section", tag("h2", "What is missing"), tag("ul", *items), class_="notes")


def _reproduce(run: RunData) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", tag("code", name), scope="row"),
            tag("td", meaning),
            tag("td", _size(run.folder / name), class_="num"),
        )
        for name, meaning in FILES.items()
        if (run.folder / name).exists()
    ]
    files = tag("table", tag("tbody", *rows), class_="settings")
    return tag(
        "section",
        tag("h2", "Settings, files, and how to do it again"),
        tag("pre", "\n".join(_commands(run)), class_="commands"),
        settings_table(run),
        tag("details", tag("summary", tag("b", "Files of this run")), files),
    )


def _commands(run: RunData) -> list[str]:
    folder = shlex.quote(str(run.folder))
    again = shlex.quote(f"name={run.name}-again")
    recipe = run.config.get("recipe")
    if isinstance(recipe, str) and recipe:
        train = [f"paw train {shlex.quote(recipe)} {again}"]
    elif run.config:
        # JSON is YAML: the resolved settings are a recipe
        train = [f"cp {folder}/config.json again.yaml", f"paw train again.yaml {again}"]
    else:
        train = []
    return [
        *train,
        f"paw report {folder}    # makes this page anew",
        f"paw view {folder}      # more episodes",
    ]


def _size(path: Path) -> str:
    size = path.stat().st_size
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
