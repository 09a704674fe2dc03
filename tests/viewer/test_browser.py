"""The viewer in a real browser: mouse, keys, addresses, colours; nothing refused, nothing broken."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paw_gym.transition import Episode, Transition, read_jsonl, write_jsonl
from paw_train.reporting.run.page import write_report

from .made_evaluation import EXAMPLE, REFLECTION, write_evaluation

_TOKENS = """[...document.querySelectorAll(".turn-card")].map((card) =>
    [...card.querySelectorAll(".observation .tok")].map((tok) => [
        tok.textContent, tok.style.getPropertyValue("--p"), getComputedStyle(tok).backgroundColor,
        tok.className]))"""

_DRAWN = """[...document.querySelectorAll("figure")].every((figure) => !figure.clientWidth ||
    figure.querySelector("svg").getAttribute("width") === String(figure.clientWidth))"""
"""charts are as wide as there is room for"""


def _selected(pages: Any) -> str:
    return str(pages.run("document.querySelector('.row[aria-selected=true] .r1')?.textContent"))


def _counts(pages: Any, text: str) -> None:
    """Waits until the list has this many: rows and their number come after the address changes."""
    pages.wait_for(f"document.querySelector('.count')?.textContent === '{text}'")


def _param(pages: Any, name: str) -> str | None:
    found = re.search(rf"[?&]{name}=([^&]*)", pages.address())
    return found.group(1) if found else None


def _color(text: str) -> list[float]:
    """Red, green, blue, strength of a computed ``color(srgb r g b / a)``."""
    numbers = [float(n) for n in re.findall(r"-?[\d.]+(?:e-?\d+)?", text.partition("(")[2])]
    return numbers if len(numbers) == 4 else [*numbers, 1.0]


@pytest.mark.slow
def test_token_colours_are_the_probabilities_in_the_file(
    real_run: Path, view: Any, pages: Any
) -> None:
    address = view(real_run)
    records = [
        json.loads(x) for x in (real_run / "tokens" / "000003.jsonl").read_text().splitlines()
    ]
    hues = {}
    for theme in ("light", "dark"):
        pages.theme(theme)
        for number, record in enumerate(records):
            pages.open(f"{address}/#/smoke/episodes?ep=000003.{number}")
            pages.is_there(f".detail[data-key='000003.{number}'] .tok")
            cards = pages.run(_TOKENS)
            assert len(cards) == len(record["steps"])
            for card, step in zip(cards, record["steps"], strict=True):
                part = step["observation"]
                assert [text for text, *_ in card] == part["tokens"]
                for (_, shown, colour, name), logprob, clip in zip(
                    card, part["logprobs"], part["clipped"], strict=True
                ):
                    p = math.exp(logprob)
                    assert float(shown) == pytest.approx(p, rel=1e-12)
                    *hue, strength = _color(colour)
                    assert strength == pytest.approx(0.8 * (1 - p), abs=1e-3)
                    hues.setdefault(theme, hue)
                    assert hue == pytest.approx(hues[theme], abs=2e-2) or strength < 0.02
                    assert ("clip" in name.split()) == (clip == "1") == (p > 0.2)
    assert hues["light"] != hues["dark"]
    assert pages.problems() == []


@pytest.mark.slow
def test_a_real_run_from_curves_to_a_turn(real_run: Path, view: Any, pages: Any) -> None:
    pages.open(view(real_run))
    pages.is_there("figure[data-metric=obs_nll] polyline")
    assert pages.address().startswith("#/smoke/curves")  # the only run opens by itself
    pages.wait_for("document.querySelector('.cards').textContent.includes('4 / 4')")
    pages.key("3")
    pages.wait_for("document.querySelectorAll('.row.episode').length > 5")
    before, after = (
        list(read_jsonl(real_run / f"episodes_{w}.jsonl")) for w in ("before", "after")
    )
    _counts(pages, f"{16 + len(before) + len(after)} episodes")
    pages.is_there(".detail[data-key='before.0'] .turn-card")  # a list opens with its first row
    assert pages.text(".episode-head h1") == before[0].instruction
    pages.key("s")  # the same task before and after, side by side
    pages.wait_for("document.querySelectorAll('.side thead th').length === 3")
    pages.key("3")
    pages.click("select[data-filter=phase]")
    pages.run("(() => { const s = document.querySelector('select[data-filter=phase]'); "
              "s.value = 'training'; s.dispatchEvent(new Event('change')) })()")  # fmt: skip
    _counts(pages, "16 episodes")
    pages.key("j", 2)
    pages.is_there(".detail[data-key='000001.1'] .tok")
    record = json.loads((real_run / "tokens" / "000001.jsonl").read_text().splitlines()[1])
    marks = pages.run(
        "[...document.querySelectorAll('.turn-card')].map(c => c.classList.contains('selected'))"
    )
    assert marks == [step["selected"] for step in record["steps"]]
    assert f"λ {record['lambda']:g}" in pages.text(".meta")
    pages.key("a")  # admissible actions on demand
    pages.wait_for("document.querySelectorAll('.admissible[open] li').length > 0")
    first = ".turn-card[data-step='0'] .admissible li"
    assert pages.texts(first) == record["steps"][0]["admissible"]
    pages.key("w")  # without the world model: the plain observation
    pages.wait_for("document.querySelector('.observation .tok') === null")
    episode = list(read_jsonl(real_run / "rollouts" / "000001.jsonl"))[1]
    assert pages.texts(".observation") == [t.next_observation for t in episode.transitions]
    assert pages.problems() == []


def test_a_brush_chooses_updates_everywhere(small_run: Path, view: Any, pages: Any) -> None:
    address = view(small_run)
    pages.open(f"{address}/#/small/curves")
    pages.is_there("figure[data-metric=success_rate] polyline")
    last = json.loads((small_run / "metrics.jsonl").read_text().splitlines()[-1])["update"]
    kept = "document.querySelector('.kept').textContent.includes('{} episodes')"
    pages.wait_for(kept.format(8 * last))  # all is there: nothing moves any more
    pages.drag(".overview", 0.25, 0.75)
    pages.is_there(".chosen")
    first, end = map(int, (_param(pages, "u") or "").split("-"))
    assert first == pytest.approx(0.25 * last, abs=1) and end == pytest.approx(0.75 * last, abs=1)
    count = 8 * (end - first + 1)
    pages.wait_for(kept.format(count))
    pages.key("3")
    _counts(pages, f"{count} episodes")
    assert set(pages.texts(".row .origin")) <= {f"u{u}" for u in range(first, end + 1)}
    pages.key("x")
    _counts(pages, f"{8 * last} episodes")
    pages.back()
    _counts(pages, f"{count} episodes")
    assert pages.problems() == []


def test_the_keyboard_and_the_address(small_run: Path, view: Any, pages: Any) -> None:
    address = view(small_run)
    pages.open(f"{address}/#/small/turns")
    pages.wait_for("location.hash.includes('turn=0')")  # a list opens with its first row
    pages.key("j", 2)
    pages.key("k")
    pages.wait_for("location.hash.includes('turn=1')")
    pages.is_there(".turn-card[data-step='1'][aria-current]")
    pages.key("ArrowDown")
    pages.is_there(".turn-card[data-step='2'][aria-current]")
    pages.key("n")
    pages.is_there(".turn-card[data-step='3'][aria-current]")
    pages.wait_for(  # the list goes along
        "document.querySelector('.row[aria-selected=true] .r1')?.textContent.endsWith('u1 · 4')"
    )
    pages.key("/")
    assert pages.run("document.activeElement.id") == "search"
    pages.type("desk 2")
    pages.wait_for("location.hash.includes('q=desk+2')")
    pages.key("Enter")
    found = [
        (not e.success, t.refused)
        for path in (small_run / "rollouts").glob("*.jsonl")
        for e in read_jsonl(path)
        for t in e.transitions
        if "desk 2" in f"{t.response}\n{t.action}\n{t.next_observation}".lower()
    ]
    _counts(pages, f"{len(found)} turns")
    pages.click("[data-filter=outcome][data-value=failed]")
    _counts(pages, f"{sum(failed for failed, _ in found)} turns")
    pages.click("[data-filter=invalid]")
    count = f"{sum(failed and refused for failed, refused in found)} turns"
    _counts(pages, count)
    pages.key("g")
    pages.wait_for("location.hash.includes('ep=')")
    pages.is_there(".turn-card[aria-current]")
    pages.is_there(".row[aria-selected=true]")
    row, hash_ = _selected(pages), pages.address()
    assert {"outcome=failed", "invalid=1"} <= set(hash_.partition("?")[2].split("&"))
    pages.open("about:blank")
    pages.open(f"{address}/{hash_}")  # the address holds everything
    _counts(pages, count)
    pages.is_there(".turn-card[aria-current]")
    pages.is_there(".row[aria-selected=true]")
    assert _selected(pages) == row
    pages.key("?")
    pages.wait_for("document.querySelector('dialog').open")
    pages.key("Escape")
    pages.wait_for("!document.querySelector('dialog').open")
    pages.key("t")
    dark = pages.run("getComputedStyle(document.body).backgroundColor")
    pages.key("t")
    assert pages.run("getComputedStyle(document.body).backgroundColor") != dark
    pages.key("2")
    pages.is_there(".side")
    assert pages.problems() == []


def test_hostile_text_stays_text(view: Any, pages: Any, tmp_path: Path) -> None:
    bad = '<script>window.owned=1</script><img src=x onerror="window.owned=1">\u202e\x00\x1b[31m<|im_end|>'
    run = tmp_path / '<b>"run" &amp; 100%'
    for name in ("rollouts", "tokens"):
        (run / name).mkdir(parents=True)
    step = Transition("e", bad, bad, 0, bad, bad, f"<think>{bad}</think><action>{bad}</action>{bad}", bad,
                      -1.0, bad, False, True, False, {"problem": bad, "success": False})  # fmt: skip
    episode = Episode("e", bad, bad, bad, bad, 0, "window", [step], None)
    write_jsonl(run / "rollouts" / "000001.jsonl", [episode, episode])
    part = {"tokens": [bad, "\ud800"], "logprobs": [-1.0, -0.1], "clipped": "01"}
    record = {"episode_id": bad, "world_model": True, "loss": "cmae", "rho": 0.2, "lambda": 1.0,
              "steps": [{"step": 0, "entropy": 0.1, "advantage": 1, "selected": True, "weight": 1,
                         "admissible": [bad], "observation": part, "response": part}]}  # fmt: skip
    (run / "tokens" / "000001.jsonl").write_text(json.dumps(record) + "\n")
    (run / "config.json").write_text(
        json.dumps({"name": bad, "updates": 1, "algorithm": {"name": bad}})
    )
    (run / "metrics.jsonl").write_text(json.dumps({"update": 1, bad: 1.0}) + "\n")
    address, marks = view(tmp_path), {"curves": "figure", "groups": ".side", "turns": ".row.turn"}
    for tab in ("curves", "groups", "episodes", "turns"):
        name = "%3Cb%3E%22run%22%20%26amp%3B%20100%25"
        pages.open(f"{address}/#/{name}/{tab}?ep=000001.0&turn=0&resp=1")
        pages.is_there(marks.get(tab, ".turn-card .tok"))
        if tab == "episodes":
            pages.key("o"), pages.key("a")
            pages.wait_for("document.querySelectorAll('.admissible li, .prompt pre').length === 2")
        assert pages.texts("img[src=x], script:not([src]), main b b") == []
        assert "<script>" in pages.run("document.querySelector('main').textContent")
        assert pages.run("window.owned") is None
    assert "\u202e" not in pages.run("document.querySelector('main').textContent")
    assert pages.problems() == []


def test_a_page_follows_the_run(small_run: Path, view: Any, pages: Any, tmp_path: Path) -> None:
    run = tmp_path / "small"
    shutil.copytree(small_run, run, ignore=shutil.ignore_patterns("0000[0-9][1-9].jsonl"))
    lines = (small_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0])
    address = view(run)
    pages.open(f"{address}/#/small/episodes?sort=newest")
    before = sum(1 for path in (run / "rollouts").iterdir() for _ in read_jsonl(path))
    _counts(pages, f"{before} episodes")
    pages.click("input[data-filter=entropy]")
    pages.type("0.5")
    for name in ("tokens", "rollouts"):
        shutil.copy(small_run / name / "000013.jsonl", run / name / "new")
        os.replace(run / name / "new", run / name / "000013.jsonl")
    _counts(pages, f"{before + 8} episodes")
    assert pages.run("document.activeElement.value") == "0.5"  # half a filter is not taken away
    pages.run("document.activeElement.blur()")
    pages.key("1")
    pages.wait_for("document.querySelector('.card')?.textContent.startsWith('Updates1 ')")
    (run / "metrics.jsonl").write_text("".join(lines[:9]))
    pages.wait_for("document.querySelector('figure[data-metric=reward_mean] polyline')"
                   "?.getAttribute('points').split(' ').length === 9")  # fmt: skip
    assert pages.problems() == []


def _fits(pages: Any) -> None:
    """Nothing sticks out to the right, neither on a telephone nor in either theme."""
    for width, theme in ((420, "dark"), (1280, "light")):
        pages.size(width, 900)
        pages.theme(theme)
        pages.wait_for(_DRAWN)
        assert pages.run("document.documentElement.scrollWidth <= innerWidth")


def test_an_evaluation_has_a_page_of_its_own(tmp_path: Path, view: Any, pages: Any) -> None:
    pages.open(view(write_evaluation(tmp_path / "eval-x")))
    pages.is_there(".types tbody tr")
    assert pages.address().startswith("#/eval-x/result")
    text = pages.text("main")
    for wanted in ("openai:small-model", "reflexion", "33.3 %", "$0.0421", "25.0 %", "12.5 s"):
        assert wanted in text
    assert "The rates are of 3 of 4 tasks. 1 episode failed with an error." in text
    assert "world model" not in text.lower() and " RL" not in text
    assert pages.texts("[role=tab]") == ["Result", "Groups", "Episodes", "Turns"]
    _fits(pages)
    pages.click(".kept a[href*='outcome=solved']")
    pages.is_there(".row.episode")
    pages.key("j")
    pages.is_there(".agent-notes li")
    assert REFLECTION in pages.text(".agent-notes")
    pages.key("m")
    pages.is_there("details.sent[open] .message")
    sent = pages.texts(".message pre")
    assert EXAMPLE in sent[0] and REFLECTION in sent[0]
    pages.key("x")
    pages.wait_for("document.querySelectorAll('.row.episode').length === 4")
    pages.key("G")
    pages.is_there(".error-text")
    badge = "document.querySelector('.meta .badge.error')"
    assert (
        pages.run(f"{badge}.getBoundingClientRect().height") < 30
    )  # not the box of the error's text
    assert pages.problems() == []


def test_runs_over_one_another(small_run: Path, tmp_path: Path, view: Any, pages: Any) -> None:
    for name, seed in (("one", 3), ("two", 20)):
        shutil.copytree(small_run, tmp_path / "runs" / name)
        config = tmp_path / "runs" / name / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "seed": seed}))
    pages.open(view(tmp_path / "runs"))
    pages.wait_for("document.querySelectorAll('.runs tbody tr').length === 2")
    names = "[...document.querySelectorAll('td[data-column=name] a')].map(e => e.textContent)"
    pages.click("th[data-column=seed] button")  # numbers begin with the largest
    pages.wait_for(f"{names}.join() === 'two,one'")
    pages.click("th[data-column=seed] button")
    pages.wait_for(f"{names}.join() === 'one,two'")
    for number in (1, 2):
        pages.click(f".runs tbody tr:nth-child({number}) input")
    pages.click(".chip.go")
    pages.is_there(".overlay .differences")
    chart = "figure[data-metric=success_rate]"
    pages.wait_for(f"document.querySelectorAll('{chart} .line').length === 2")
    labels = pages.run(
        "[...document.querySelectorAll('figure[data-metric]')].map(f => [f.dataset.metric, "
        "[...f.querySelectorAll('.tick[text-anchor=end]')].map(t => t.textContent)])"
    )
    assert labels and [name for name, ticks in labels if len(set(ticks)) < len(ticks)] == []
    colours = pages.run(
        f"[...document.querySelectorAll('{chart} .line')].map(e => getComputedStyle(e).stroke)"
    )
    legend = pages.run(
        "[...document.querySelectorAll('.legend-runs .swatch')]"
        ".map(e => getComputedStyle(e).backgroundColor)"
    )
    assert colours == legend and len(set(colours)) == 2
    assert pages.texts(".differences tbody tr > *") == ["seed", "3", "20"]
    line = f"document.querySelector('{chart} .line').getAttribute('points')"
    pages.wait_for(_DRAWN)
    before = pages.run(line)
    pages.run("(() => { const s = document.querySelector('.smoothing input'); s.value = 3; "
              "s.dispatchEvent(new Event('input')) })()")  # fmt: skip
    pages.wait_for("location.hash.includes('sm=9')")
    pages.wait_for(f"{line} !== {json.dumps(before)}")
    # what was measured stays behind the mean of it
    assert pages.run(f"document.querySelector('{chart} .raw').getAttribute('points')") == before
    assert pages.text(".smoothing output") == "mean of 9 updates"
    _fits(pages)
    pages.click(".legend-runs .remove")
    pages.wait_for("document.querySelectorAll('.legend-runs .swatch').length === 1")
    assert pages.problems() == []


def test_a_report_draws_its_charts_without_a_server(
    small_run: Path, tmp_path: Path, pages: Any
) -> None:
    run = tmp_path / "small"
    shutil.copytree(small_run, run, ignore=shutil.ignore_patterns("rollouts", "tokens"))
    rows = (run / "metrics.jsonl").read_text().splitlines()
    pages.open(f"file://{write_report(run)}")
    chart = "figure[data-metric=success_rate]"
    pages.is_there(f"{chart} .line")
    _fits(pages)
    measured = 100 * json.loads(rows[-1])["success_rate"]
    assert pages.text(f"{chart} output") == f"last {measured:.1f} %"  # not the smoothed line's
    pages.drag(f"{chart} .chart", 0.6, 0.6)  # the values there
    assert pages.text(f"{chart} output").startswith("update ")
    pages.drag(f"{chart} .chart", 0.5, 0.9)  # a part of the updates, in all charts of the section
    points = (
        "document.querySelector('figure[data-metric=reward_mean] .line').getAttribute('points')"
    )
    pages.wait_for(f"{points}.split(' ').length < {len(rows)} * 0.6")
    assert pages.problems() == []
