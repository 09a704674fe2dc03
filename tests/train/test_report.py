"""The report of a run: what it says, that text stays text, and that broken runs still get one."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paw_gym.transition import Episode, Transition, write_jsonl
from paw_train.evaluation.statistics import difference_interval, wilson_interval
from paw_train.metrics import METRICS
from paw_train.reporting.run.data import RunData, load_run
from paw_train.reporting.run.page import write_report
from paw_train.reporting.terminal import summary_lines, summary_table

TYPES = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
HOSTILE = (
    "<script>alert(1)</script><|im_end|>\"'&amp;\x00\x1b[31m\ud800 </pre><img src=x onerror=y>"
)


# --- a run to report on ------------------------------------------------------------------------


def write_run(
    folder: Path, before: int = 42, after: int = 117, n: int = 200, updates: int = 30
) -> Path:
    """Writes every file of a finished run; ``before`` and ``after`` are successes out of ``n``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    config = {
        "name": "embedded",
        "updates": updates,
        "seed": 0,
        "env": {"id": "paw_gym/ALFWorld-v0", "train_split": "train", "template": "compact"},
        "algorithm": {"name": "grpo", "normalize": True},
        "objective": {"kl_coef": 0.0},
        "world_model": {"enabled": True, "loss": "cmae", "coef": 0.1},
        "optimizer": {"lr": 2e-4, "minibatches": 4},
        "evaluation": {"split": "valid_unseen", "selection_split": "valid_seen", "every": 5},
    }
    write_json(folder / "config.json", config)
    write_json(folder / "environment.json", {"python": "3.11", "torch": "2.9", "device": "cpu"})
    write_lines(
        folder / "metrics.jsonl", [update_record(u, updates, rng) for u in range(1, updates + 1)]
    )
    write_lines(folder / "validation.jsonl", [validation(u) for u in range(5, updates + 1, 5)])
    warm = [
        {"step": s, "loss": 3 * math.exp(-s / 90) + 0.5, "action_accuracy": 1 - math.exp(-s / 120)}
        for s in range(10, 301, 10)
    ]
    write_lines(folder / "warmstart.jsonl", [{**w, "seconds": 0.4 * w["step"]} for w in warm])
    write_json(folder / "eval_before.json", result(before, n, 0))
    write_json(folder / "eval_after.json", result(after, n, 1))
    tasks = [f"valid_unseen/{i}" for i in range(4)]
    write_jsonl(folder / "episodes_before.jsonl", [episode(t, False, 5) for t in tasks])
    write_jsonl(folder / "episodes_after.jsonl", [episode(t, True, 4) for t in tasks])
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def configured(run: Path, **changes: Any) -> None:
    config = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", {**config, **changes})


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def update_record(update: int, updates: int, rng: random.Random) -> dict[str, Any]:
    done = (update - 1) / max(1, updates - 1)
    measured = {name: rng.uniform(0.4, 0.6) for name in METRICS}
    success = min(1.0, max(0.0, 0.22 + 0.45 * done + rng.gauss(0, 0.05)))
    more = {"success_rate": success, "own_measurement": 0.0, "time": 1_760_000_000 + 11 * update}
    more |= {"penalty_share": 0.05, "timed_out_episodes": 0}
    return {**measured, **more, "update": update}


def validation(update: int) -> dict[str, Any]:
    return {"update": update, **rate(min(64, 14 + update), 64)}


def rate(wins: int, n: int) -> dict[str, Any]:
    return {"n": n, "success_rate": wins / n, "ci95": list(wilson_interval(wins, n))}


def result(wins: int, n: int, seed: int, panel_hash: str = "a1b2") -> dict[str, Any]:
    flags = [i < wins for i in range(n)]
    random.Random(seed).shuffle(flags)
    by_type = {name: flags[i :: len(TYPES)] for i, name in enumerate(TYPES)}
    return {
        "panel": f"paw_gym/ALFWorld-v0/valid_unseen/{n}",
        "panel_hash": panel_hash,
        "env_id": "paw_gym/ALFWorld-v0",
        "agent": "policy",
        "model": "embedded",
        **rate(wins, n),
        "by_type": {name: rate(sum(part), len(part)) for name, part in by_type.items() if part},
        "fingerprint": "ffee",
        "settings": {"seed": seed},
        "mean_steps": 21.5,
        "invalid_rate": 0.04,
        "mean_reward": 10 * wins / n,
        "errors": 0,
        "seconds": 20.0,
        "successes": flags,
    }


def episode(task_id: str, success: bool, steps: int, text: str = "") -> Episode:
    ended = {
        "env_id": "paw_gym/ALFWorld-v0",
        "task_id": task_id,
        "episode_id": f"{task_id}#{success}",
    }
    played = Episode(
        **ended,
        task_type="pick_clean_then_place_in_recep",
        instruction="put a clean apple in fridge." + text,
    )
    seen = "You are in the middle of a room. Around you, you see a fridge 1 and a sinkbasin 1."
    for step in range(steps):
        last = step == steps - 1
        action = ["go to sinkbasin 1", "clean apple 1 with sinkbasin 1", "open fridge 1"][step % 3]
        after = f"You are at step {step}. On the table 2, you see a apple 1 and a knife {step}."
        played.transitions.append(
            Transition(
                **ended,
                step=step,
                prompt=f"task put a clean apple in fridge.\nsaw nothing\nnow {seen}\ncan look\ngo to\nopen"
                + text,
                observation=seen + text,
                response=f"<think>The apple may be dirty, step {step}.</think>\n"
                f"<action>{action}</action>{text}",
                action=action,
                reward=10.0 if last and success else -0.1 if step == 1 else 0.0,
                next_observation=after + text,
                terminated=last and success,
                truncated=last and not success,
                action_is_valid=step != 1,
                info={"success": last and success},
            )
        )
        seen = after
    return played


# --- reading a page --------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that elements close in order; collects text, attributes and element names."""

    VOID = {"meta"}

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


# --- the verdict -----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def test_verdict_when_it_got_better(tmp_path: Path) -> None:
    text = page_of(write_run(tmp_path / "run")).text
    assert (
        "Success on 200 unseen games: 21.0 % [15.9, 27.2] before RL, 58.5 % [51.6, 65.1] after: "
        "+37.5 points; the intervals do not overlap" in text
    )
    assert "The policy got better." in text
    assert (
        "The evaluation after RL is of the last checkpoint, update 30, also the best on the selection "
        "panel (valid_seen): 68.8 % [56.6, 78.8] on 64 tasks." in text
    )


def test_the_report_says_which_checkpoint_it_speaks_of(run: Path) -> None:
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


def test_an_environment_without_splits_shows_none(run: Path) -> None:
    for name in ("eval_before.json", "eval_after.json"):
        result = json.loads((run / name).read_text())
        write_json(run / name, {**result, "panel": "me/Parrot-v0/64"})
    text = page_of(run).text
    assert "the best on the selection panel: " in text and "(valid_seen)" not in text


def test_alarms_stand_in_the_report_and_in_the_summary(run: Path) -> None:
    assert "Alarms" not in page_of(run).text
    rows = [update_record(u, 60, random.Random(u)) for u in range(1, 61)]
    for row in rows[40:]:
        row["success_rate"] = 0.05
    write_lines(run / "metrics.jsonl", rows)
    text = page_of(run).text
    assert "Success has collapsed (since update " in text
    assert "5.0 % over updates 53 to 60; it was " in text
    assert any(
        line.startswith("Alarm: Success has collapsed") for line in summary_lines(load_run(run))
    )


@pytest.mark.parametrize(
    ("before", "after", "change", "sentence"),
    [
        (117, 42, "-37.5 points; the intervals do not overlap", "The policy got worse."),
        (82, 85, "+1.5 points; the intervals overlap", "This panel cannot distinguish the two"),
    ],
)
def test_verdict_when_it_did_not_get_better(
    tmp_path: Path, before: int, after: int, change: str, sentence: str
) -> None:
    text = page_of(write_run(tmp_path / "run", before, after)).text
    assert change in text and sentence in text and "got better" not in text


@pytest.mark.parametrize(
    ("gained", "p_value", "sentence"),
    [
        (16, "< 0.001", "Although they overlap, the policy got better."),
        (4, "= 0.125", "This panel cannot distinguish the two policies."),
    ],
)
def test_pairs_of_tasks_decide_where_the_intervals_overlap(
    run: Path, gained: int, p_value: str, sentence: str
) -> None:
    for when, wins in (("before", 82), ("after", 82 + gained)):  # no task is lost
        flags = [i < wins for i in range(200)]
        write_json(run / f"eval_{when}.json", {**result(wins, 200, 0), "successes": flags})
    text = page_of(run).text
    assert f"+{gained / 2:.1f} points; the intervals overlap" in text
    assert f"{gained} tasks newly solved, 0 lost, exact McNemar p {p_value}" in text
    assert sentence in text


def test_partial_success_is_compared_too(run: Path) -> None:
    for when, score in (("before", 0.25), ("after", 0.5)):
        runs = [{"seed": 0, "scores": [score, 1.0] * 100}]
        write_json(run / f"eval_{when}.json", {**result(100, 200, 0), "runs": runs})
    text = page_of(run).text
    # half of the tasks gain 0.25, the others nothing: standard error 0.125 / sqrt(200) = 0.0088
    assert "Mean score (partial success counts): 0.625 before, 0.750 after" in text
    low, high = re.search(r"change: \[\+([\d.]+), \+([\d.]+)\]", text).groups()  # type: ignore[union-attr]
    assert float(low) == pytest.approx(0.108, abs=0.003)
    assert float(high) == pytest.approx(0.142, abs=0.003)


def test_rates_decide_where_the_tasks_are_not_listed(run: Path) -> None:
    for when, wins in (("before", 80), ("after", 105)):
        contract = result(wins, 200, 0)
        for key in ("successes", "panel_hash", "mean_steps", "invalid_rate", "errors", "seconds"):
            del contract[key]
        write_json(run / f"eval_{when}.json", contract)
    low, high = difference_interval(
        (0.4, *wilson_interval(80, 200)), (0.525, *wilson_interval(105, 200))
    )
    text = page_of(run).text
    assert "+12.5 points; the intervals overlap" in text
    assert "Although they overlap, the policy got better." in text
    assert f"[{100 * low:+.1f}, {100 * high:+.1f}] points, taking the two rates as indep" in text


def test_different_panels_are_not_compared(run: Path) -> None:
    write_json(run / "eval_after.json", result(117, 200, 1, panel_hash="other"))
    text = page_of(run).text
    assert "used different tasks" in text
    assert "got better" not in text and "do not overlap" not in text


def test_training_tasks_are_not_called_unseen(run: Path) -> None:
    configured(run, evaluation={"split": "train"})
    assert "Success on 200 games:" in page_of(run).text
    write_json(run / "eval_after.json", result(1, 1, 1))
    assert "Success on 1 game:" in page_of(run).text


def test_errors_of_the_environment_are_told(run: Path) -> None:
    write_json(run / "eval_after.json", {**result(117, 200, 1), "errors": 3})
    assert "ended 0 episodes before and 3 after RL; they count as failures" in page_of(run).text


# --- the page ----------------------------------------------------------------------------------------


def test_page_is_self_contained(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run"))
    source = path.read_text(encoding="utf-8")
    page = Page(source)
    assert path.name == "report.html" and len(source) < 600_000
    assert "://" not in source and "@import" not in source and "url(" not in source
    assert not {"link", "img", "iframe", "object"} & set(page.names)
    assert not {"src", "href", "onclick", "onload"} & {name for name, _ in page.attributes}
    assert "prefers-color-scheme: dark" in source and "@media print" in source
    assert (
        "default-src 'none'" in dict(page.attributes)["content"] or "default-src 'none'" in source
    )


def test_page_shows_what_was_measured(tmp_path: Path) -> None:
    text = page_of(write_run(tmp_path / "run")).text
    for title in ("Success", "Reward", "World-model loss", "Clipped share", "KL", "Entropy"):
        assert title in text
    for title in ("Observation NLL", "Gradient norms", "Seconds per update", "Cloning loss"):
        assert title in text
    assert "update 30\ntraining rollouts: " in text
    low, high = (100 * end for end in wilson_interval(44, 64))
    assert f"validation (64 tasks): 68.8 % [{low:.1f} %, {high:.1f} %]" in text
    assert "own_measurement" in text  # one that the catalogue knows nothing about
    assert "world_model.coef" in text and "GRPO + WM (cmae × 0.1)" in text
    assert "What is missing" not in text and "Not measured" not in text


def test_text_of_a_run_stays_text(run: Path) -> None:
    failed = episode("task" + HOSTILE, False, 2, HOSTILE)
    failed.error = "Traceback" + HOSTILE
    write_jsonl(run / "episodes_after.jsonl", [failed])
    configured(run, name=HOSTILE, **{HOSTILE: HOSTILE})
    page = page_of(run)
    assert page.names.count("script") == 1 and "img" not in page.names
    assert "onerror" not in {name for name, _ in page.attributes}
    assert "<script>alert(1)</script><|im_end|>" in page.text
    assert "\u241b[31m" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", page.text)


def test_episodes_read_as_conversations(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    assert "not solved, 5 steps" in page.text and "solved in 4 steps" in page.text
    assert "step budget used up" in page.text and "reward +10" in page.text
    assert "On the table 2, you see a apple 1 and a knife 3." in page.text  # o_T
    assert page.text.count("invalid") >= 8  # one invalid step in each of eight episodes
    classes = [value for name, value in page.attributes if name == "class"]
    assert {"think", "act", "tag"} <= set(classes)
    assert "⋯ 3 lines as before ⋯" in page.text


def test_long_texts_are_cut_and_counted(run: Path) -> None:
    write_jsonl(run / "episodes_after.jsonl", [episode("long", False, 2, "x" * 100_000)])
    path = write_report(run)
    assert path.stat().st_size < 700_000
    assert re.search(r"9\d,\d{3} more characters", path.read_text())


# --- runs with something missing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing",
    [
        ("config.json",),
        ("metrics.jsonl", "validation.jsonl"),
        ("eval_before.json",),
        ("eval_after.json", "episodes_after.jsonl"),
        ("eval_before.json", "eval_after.json"),
        ("episodes_before.jsonl", "episodes_after.jsonl"),
        ("environment.json", "warmstart.jsonl"),
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
    configured(run, updates=40)
    (run / "eval_after.json").unlink()
    text = page_of(run).text
    assert "12 of 40 updates are recorded: the run is still going, or it was stopped." in text
    assert "Success on 200 unseen games: 21.0 % [15.9, 27.2] before RL" in text
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
    assert "metrics.jsonl: 1 line is damaged" in text
    assert "episodes_before.jsonl: read up to a damaged line" in text
    assert "eval_after.json is left out: expected n >= 1 and success_rate in [0, 1]" in text
    assert "warmstart.jsonl: 1 line is damaged" in text


def test_a_resumed_run_counts_its_last_record_of_an_update(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", updates=3)
    again = {"update": 2, "success_rate": 0.123}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    text = page_of(run).text
    assert "update 2\ntraining rollouts: 12.3 %" in text
    assert "of 3" not in text.split("RL time")[0].split("updates")[-1]


def test_null_and_not_a_number_leave_gaps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", updates=6)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record["wm_loss"] = None
        del record["grad_norm_wm"]
    records[2]["kl"] = math.nan
    records[3]["kl"] = "text"
    write_lines(run / "metrics.jsonl", records)
    text = page_of(run).text
    assert "World-model loss" not in text
    assert "Not measured in this run: grad_norm_wm, wm_loss." in text
    assert "nan" not in text.lower()


# --- picture and summary -----------------------------------------------------------------------------


def test_summary_has_a_row_for_each_task_type(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run"))
    assert summary_lines(run)[0].startswith("Success on 200 unseen games: 21.0 % [15.9, 27.2]")
    label, count, before, _, change = summary_cells(run)[0]
    assert (label, count, before, change) == ("all", "200", "21.0 % [15.9, 27.2]", "+37.5")
    assert [row[0] for row in summary_cells(run)[1:]] == list(TYPES)


@pytest.mark.parametrize(
    ("before", "after", "training", "headline"),
    [
        (
            0,
            0,
            1.0,
            "None of the 40 unseen games was solved, before RL or after; training solves 100.0 %",
        ),
        (
            8,
            12,
            0.98,
            "30.0 % [18.1, 45.4] after: +10.0 points; the intervals overlap; far below training",
        ),
        (8, 12, 0.5, "30.0 % [18.1, 45.4] after: +10.0 points; the intervals overlap."),
    ],
)
def test_headline_tells_what_does_not_carry_over(
    tmp_path: Path, before: int, after: int, training: float, headline: str
) -> None:
    run = write_run(tmp_path / "run", before, after, 40)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    write_lines(run / "metrics.jsonl", [{**row, "success_rate": training} for row in metrics])
    assert headline in summary_lines(load_run(run))[0]


def test_a_runs_note_stands_below_the_headline(run: Path) -> None:
    configured(run, note="A plumbing test: not a result.")
    assert summary_lines(load_run(run))[1] == "A plumbing test: not a result."
    assert "<p>A plumbing test: not a result.</p>" in write_report(run).read_text()


def summary_cells(run: RunData) -> list[tuple[str, ...]]:
    """The texts of the summary's table, by row."""
    columns = [[str(cell) for cell in column.cells] for column in summary_table(run).columns]
    return list(zip(*columns, strict=True))
