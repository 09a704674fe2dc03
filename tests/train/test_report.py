"""The report of a run: what it says, that text stays text, and that broken runs get one."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paw_gym.transition import Episode, Transition, write_jsonl
from paw_train.evaluation.statistics import wilson_interval
from paw_train.metrics import METRICS
from paw_train.reporting.run.data import load_run
from paw_train.reporting.run.page import write_report
from paw_train.reporting.terminal import summary_lines, summary_table

TYPES = ("pick_and_place", "pick_clean_then_place_in_recep", "pick_two")
HOSTILE = (
    "<script>alert(1)</script><|im_end|>\"'&amp;\x00\x1b[31m\ud800 </pre><img src=x onerror=y>"
)


def write_run(
    folder: Path, before: int = 42, after: int = 117, n: int = 200, updates: int = 30
) -> Path:
    """Writes the files of a finished run with so many successes of ``n``."""
    folder.mkdir()
    config = {
        "updates": updates,
        "env": {"id": "paw_gym/ALFWorld-v0", "train_split": "train"},
        "algorithm": {"name": "grpo"},
        "world_model": {"loss": "cmae", "coef": 0.1},
        "evaluation": {"split": "valid_unseen", "selection_split": "valid_seen"},
    }
    write_json(folder / "config.json", config)
    write_json(folder / "environment.json", {"python": "3.11"})
    write_lines(
        folder / "metrics.jsonl", [update_record(u, updates) for u in range(1, updates + 1)]
    )
    validated = [{"update": u, **rate(14 + u, 64)} for u in range(5, updates + 1, 5)]
    write_lines(folder / "validation.jsonl", validated)
    warm = [{"step": s, "loss": 3 / s, "seconds": 4.0 * s} for s in (10, 20, 30)]
    write_lines(folder / "warmstart.jsonl", warm)
    for when, wins, steps in (("before", before, 5), ("after", after, 4)):
        write_json(folder / f"eval_{when}.json", result(wins, n))
        played = [episode(f"valid_unseen/{i}", when == "after", steps) for i in range(4)]
        write_jsonl(folder / f"episodes_{when}.jsonl", played)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def configured(run: Path, **changes: Any) -> None:
    config = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", {**config, **changes})


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def update_record(update: int, updates: int) -> dict[str, Any]:
    success = 0.22 + 0.45 * update / updates
    more = {"success_rate": success, "own_measurement": 0.0, "time": 11.0 * update}
    more |= {"penalty_share": 0.05, "update": update}
    return {**dict.fromkeys(METRICS, 0.5), **more}


def rate(wins: int, n: int) -> dict[str, Any]:
    return {"n": n, "success_rate": wins / n, "ci95": list(wilson_interval(wins, n))}


def result(wins: int, n: int) -> dict[str, Any]:
    """The first tasks are solved: those that fewer solve are among those that more solve."""
    flags = [i < wins for i in range(n)]
    by_type = {name: flags[i :: len(TYPES)] for i, name in enumerate(TYPES)}
    return {
        "panel": f"paw_gym/ALFWorld-v0/valid_unseen/{n}",
        "panel_hash": "a1b2",
        "env_id": "paw_gym/ALFWorld-v0",
        **rate(wins, n),
        "by_type": {name: rate(sum(part), len(part)) for name, part in by_type.items() if part},
        "mean_steps": 21.5,
        "errors": 0,
        "successes": flags,
    }


def episode(task_id: str, success: bool, steps: int, text: str = "") -> Episode:
    of = {"env_id": "paw_gym/ALFWorld-v0", "task_id": task_id, "episode_id": f"{task_id}#{success}"}
    played = Episode(**of, instruction="put a clean apple in fridge." + text)
    seen = "You are in the middle of a room."
    for step in range(steps):
        last = step == steps - 1
        action = f"open fridge {step}"
        after = f"You are at step {step}. On the table 2, you see a apple 1 and a knife {step}."
        played.transitions.append(
            Transition(
                **of,
                step=step,
                prompt=f"task\nsaw nothing\nnow {seen}\ncan look\ngo to\nopen" + text,
                observation=seen + text,
                response=f"<think>Step {step}.</think>\n<action>{action}</action>{text}",
                action=action,
                reward=10.0 if last and success else 0.0,
                next_observation=after + text,
                terminated=last and success,
                truncated=last and not success,
                action_is_valid=step != 1,
                info={"success": last and success},
            )
        )
        seen = after
    return played


class Page(HTMLParser):
    """Checks that elements close in order; collects text, attributes and element names."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.charts: dict[str, dict[str, Any]] = {}
        """what the script draws, by title"""
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and data.startswith("["):
            drawn = [chart for section in json.loads(data) for chart in section["charts"]]
            self.charts = {chart["title"]: chart for chart in drawn}
        elif self.open[-1:] not in (["style"], ["script"]):
            self.text += data


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


VERDICTS = (
    "The policy got better.",
    "The policy got worse.",
    "Although they overlap, the policy got better.",
    "This panel cannot distinguish the two policies.",
)


@pytest.mark.parametrize(
    ("before", "after", "headline", "pairs", "verdict"),
    [
        (42, 117, "+37.5 points; the intervals do not overlap", "75 tasks newly solved, 0 lost", 0),
        (117, 42, "-37.5 points; the intervals do not overlap", "0 tasks newly solved, 75 lost", 1),
        (82, 98, "+8.0 points; the intervals overlap", "0 lost, exact McNemar p < 0.001", 2),
        (82, 86, "+2.0 points; the intervals overlap", "0 lost, exact McNemar p = 0.125", 3),
    ],
)
def test_pairs_of_tasks_decide_where_the_intervals_overlap(
    tmp_path: Path, before: int, after: int, headline: str, pairs: str, verdict: int
) -> None:
    text = page_of(write_run(tmp_path / "run", before, after)).text
    assert headline in text and pairs in text
    assert [said in text for said in VERDICTS] == [i == verdict for i in range(4)]


def test_the_report_says_which_checkpoint_it_speaks_of(run: Path) -> None:
    assert (
        "The evaluation after RL is of the last checkpoint, update 30, also the best on the selection "
        "panel (valid_seen): 68.8 % [56.6, 78.8] on 64 tasks." in page_of(run).text
    )
    rows = [{"update": u, **rate(wins, 64)} for u, wins in ((10, 40), (20, 40), (30, 22))]
    write_lines(run / "validation.jsonl", rows)
    assert (
        "The evaluation after RL is of the checkpoint of update 20, the best on the selection panel "
        "(valid_seen): 62.5 % [50.3, 73.3] on 64 tasks. The last checkpoint, update 30, has 34.4 % "
        "[23.9, 46.6] on 64 tasks there." in page_of(run).text
    )
    write_lines(run / "validation.jsonl", rows[:1])
    assert "The last checkpoint, update 30, was not validated." in page_of(run).text
    (run / "validation.jsonl").unlink()
    assert "The evaluation after RL is of the last checkpoint, update 30." in page_of(run).text
    write_lines(run / "validation.jsonl", rows)
    for name in ("eval_before.json", "eval_after.json"):  # it has no splits
        write_json(run / name, {**result(42, 200), "panel": "me/Parrot-v0/64"})
    text = page_of(run).text
    assert "the best on the selection panel: " in text and "(valid_seen)" not in text


def test_alarms_stand_in_the_report_and_in_the_summary(run: Path) -> None:
    assert "Alarms" not in page_of(run).text
    rows = [update_record(u, 60) for u in range(1, 61)]
    for row in rows[40:]:
        row["success_rate"] = 0.05
    write_lines(run / "metrics.jsonl", rows)
    text = page_of(run).text
    assert "Success has collapsed (since update " in text
    assert "5.0 % over updates 53 to 60; it was " in text
    assert "Alarm: Success has collapsed" in " ".join(summary_lines(load_run(run)))


def test_partial_success_is_compared_too(run: Path) -> None:
    for when, score in (("before", 0.25), ("after", 0.5)):
        runs = [{"seed": 0, "scores": [score, 1.0] * 100}]
        write_json(run / f"eval_{when}.json", {**result(100, 200), "runs": runs})
    text = page_of(run).text
    # half of the tasks gain 0.25, the others nothing: standard error 0.125 / sqrt(200) = 0.0088
    assert "Mean score (partial success counts): 0.625 before, 0.750 after" in text
    low, high = re.search(r"change: \[\+([\d.]+), \+([\d.]+)\]", text).groups()
    assert float(low) == pytest.approx(0.108, abs=0.003)
    assert float(high) == pytest.approx(0.142, abs=0.003)


def test_rates_decide_where_the_tasks_are_not_listed(run: Path) -> None:
    for when, wins in (("before", 80), ("after", 105)):
        contract = result(wins, 200)
        for key in ("successes", "panel_hash", "mean_steps", "errors"):
            del contract[key]
        write_json(run / f"eval_{when}.json", contract)
    # Newcombe's method 10 on 80 and 105 of 200
    text = page_of(run).text
    assert "+12.5 points; the intervals overlap" in text and VERDICTS[2] in text
    assert "[+2.7, +21.9] points, taking the two rates as independent" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"panel_hash": "other"}, "used different tasks"),
        ({"errors": 3}, "ended 0 episodes before and 3 after RL; they count as failures"),
        (rate(1, 1), "Success on 1 unseen task:"),
    ],
)
def test_what_is_odd_in_an_evaluation_is_told(run: Path, changes: Any, sentence: str) -> None:
    write_json(run / "eval_after.json", {**result(117, 200), **changes})
    text = page_of(run).text
    assert sentence in text
    assert (VERDICTS[0] in text) == ("errors" in changes)


def test_page_is_self_contained_and_shows_what_was_measured(run: Path) -> None:
    source = write_report(run).read_text(encoding="utf-8")
    page = Page(source)
    outside = source.replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert "://" not in outside and "@import" not in source and "url(" not in source
    assert not {"link", "img", "iframe", "object"} & set(page.names)
    assert not {"src", "href", "onclick", "onload"} & {name for name, _ in page.attributes}
    assert "prefers-color-scheme: dark" in source and "@media print" in source
    assert "default-src 'none'" in source
    for title in ("World-model loss", "Observation NLL", "Gradient norms", "Cloning loss"):
        assert title in page.charts
    (success,) = page.charts["Success"]["series"]
    assert len(success["values"]) == 30 and success["values"][-1] == 0.67
    assert success["checks"][-1]["ci95"] == pytest.approx((0.566, 0.788), abs=5e-4)
    assert "30 steps, 2 min 0 s" in page.text
    assert "own_measurement" in page.charts  # one that the catalogue knows nothing about
    assert "world_model.coef" in page.text and "GRPO + WM (cmae × 0.1)" in page.text
    assert "What is missing" not in page.text
    assert "not solved, 5 steps" in page.text and "solved in 4 steps" in page.text
    assert "step budget used up" in page.text and "reward +10" in page.text
    assert "On the table 2, you see a apple 1 and a knife 3." in page.text  # o_T
    assert page.text.count("invalid") >= 8  # one invalid step in each of eight episodes
    assert {"think", "act", "tag"} <= {value for name, value in page.attributes if name == "class"}
    assert "⋯ 3 lines as before ⋯" in page.text


def test_text_of_a_run_stays_text(run: Path) -> None:
    failed = episode("task" + HOSTILE, False, 2, HOSTILE)
    failed.error = "Traceback" + HOSTILE
    write_jsonl(run / "episodes_after.jsonl", [failed])
    configured(run, name=HOSTILE, **{HOSTILE: HOSTILE})
    write_lines(run / "metrics.jsonl", [{**update_record(1, 1), HOSTILE: 1.0}])
    page = page_of(run)
    assert page.names.count("script") == 2 and "img" not in page.names
    assert HOSTILE in page.charts
    assert "onerror" not in {name for name, _ in page.attributes}
    assert "<script>alert(1)</script><|im_end|>" in page.text
    assert "\u241b[31m" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", page.text)


def test_long_texts_are_cut_and_counted(run: Path) -> None:
    write_jsonl(run / "episodes_after.jsonl", [episode("long", False, 2, "x" * 100_000)])
    path = write_report(run)
    assert path.stat().st_size < 700_000
    assert re.search(r"9\d,\d{3} more characters", path.read_text())


@pytest.mark.parametrize(
    "missing",
    [
        ("config.json", "environment.json", "warmstart.jsonl"),
        ("metrics.jsonl", "validation.jsonl"),
        ("eval_before.json",),
        ("eval_before.json", "eval_after.json", "episodes_before.jsonl", "episodes_after.jsonl"),
    ],
    ids=lambda names: "+".join(names),
)
def test_missing_files_are_named(run: Path, missing: tuple[str, ...]) -> None:
    for name in missing:
        (run / name).unlink()
    text = page_of(run).text
    optional = {"environment.json", "warmstart.jsonl", "validation.jsonl"}
    for name in set(missing) - optional:
        assert name in text.split("What is missing")[1]
    assert summary_lines(load_run(run))


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", updates=12)
    configured(run, updates=40, evaluation={"split": "train"})
    (run / "eval_after.json").unlink()
    text = page_of(run).text
    assert "12 of 40 updates are recorded: the run is still going, or it was stopped." in text
    assert "Success on 200 tasks: 21.0 % [15.9, 27.2] before RL" in text  # not of unseen ones
    assert "There is no evaluation after RL to compare with." in text
    assert "Latest validation, after update 10: 37.5 %" in text


def test_an_evaluation_is_no_training_run(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {})
    with pytest.raises(ValueError, match="holds an evaluation.* `paw view"):
        write_report(tmp_path)


def test_damaged_lines_are_left_out_and_told(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"update": 31, "reward_me')
    with (run / "episodes_before.jsonl").open("a") as file:
        file.write("{}\n")
    (run / "eval_after.json").write_text('{"n": 200, "success_rate": 58.5}')
    (run / "warmstart.jsonl").write_bytes(b'\xff\xfe{"step": 1}\n')
    text = page_of(run).text
    assert "metrics.jsonl: 1 damaged line left out" in text
    assert "episodes_before.jsonl: read up to a damaged line" in text
    assert "eval_after.json is left out: expected n >= 1 and success_rate in [0, 1]" in text
    assert "warmstart.jsonl: 1 damaged line left out" in text


def test_the_last_record_counts_and_no_number_leaves_a_gap(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", updates=3)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record, kl in zip(records, (0.1, math.nan, "text"), strict=True):
        record |= {"wm_loss": None, "kl": kl}
    again = {**records[1], "success_rate": 0.123}
    write_lines(run / "metrics.jsonl", [*records, again])
    page = page_of(run)
    assert page.charts["Success"]["series"][0]["values"] == [0.37, 0.123, 0.67]
    assert " of 3" not in page.text and "nan" not in page.text.lower()
    assert "World-model loss" not in page.charts
    assert page.charts["KL"]["series"][0]["values"] == [0.1, None, None]


def test_summary_has_a_note_and_a_row_for_each_task_type(run: Path) -> None:
    configured(run, note="A plumbing test: not a result.")
    data = load_run(run)
    headline, note, *_ = summary_lines(data)
    assert headline.startswith(
        "Success on 200 unseen tasks: 21.0 % [15.9, 27.2] before RL, 58.5 % [51.6, 65.1] after: +37.5"
    )
    assert note == "A plumbing test: not a result."
    assert f"<p>{note}</p>" in write_report(run).read_text()
    columns = [[str(cell) for cell in column.cells] for column in summary_table(data).columns]
    (label, count, before, _, change), *rest = zip(*columns, strict=True)
    assert (label, count, before, change) == ("all", "200", "21.0 [15.9, 27.2]", "+37.5")
    assert [row[0] for row in rest] == list(TYPES)
    console = Console(width=80, record=True, file=StringIO())
    console.print(summary_table(data))
    printed = console.export_text()
    assert all(name in printed for name in TYPES), "a terminal of 80 columns shows whole names"


@pytest.mark.parametrize(
    ("before", "after", "training", "headline"),
    [
        (0, 0, 1.0, "None of the 40 unseen tasks was solved, before RL or after; training solves"),
        (8, 12, 0.98, "after: +10.0 points; the intervals overlap; far below training, which"),
        (8, 12, 0.5, "30.0 % [18.1, 45.4] after: +10.0 points; the intervals overlap."),
    ],
)
def test_headline_tells_what_does_not_carry_over(
    tmp_path: Path, before: int, after: int, training: float, headline: str
) -> None:
    run = write_run(tmp_path / "run", before, after, 40)
    write_lines(run / "metrics.jsonl", [{"update": 1, "success_rate": training}])
    assert headline in summary_lines(load_run(run))[0]
