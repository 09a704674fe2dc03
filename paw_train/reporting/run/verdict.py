"""The verdict on a run in plain language, with the intervals and tests behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paw_gym.internals.printable import counted
from paw_train.evaluation.statistics import difference_interval, mcnemar_exact, paired_interval
from paw_train.metrics import number
from paw_train.reporting.run.alarms import GAP, recent_success
from paw_train.reporting.run.data import EvalResult, Rate, Record, RunData

_BOOTSTRAP_SEED = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A headline, sentences that explain it, and its tone for the colour."""

    headline: str
    details: tuple[str, ...]
    tone: str
    """``better``, ``worse``, ``open`` (undecided) or ``missing``"""


def verdict_of(run: RunData) -> Verdict:
    """The verdict on before against after: better, worse, undecided or missing; ``note`` comes first."""
    verdict, note = _verdict(run), run.setting("note")
    return replace(verdict, details=(note, *verdict.details)) if note else verdict


def _verdict(run: RunData) -> Verdict:
    if run.before is None and run.after is None:
        return Verdict("No evaluation is there yet", _latest_validation(run), "missing")
    if run.before is None or run.after is None:
        result, when = (run.after, "after") if run.before is None else (run.before, "before")
        assert result is not None
        missing = "before" if when == "after" else "after"
        return Verdict(
            f"Success on {_tasks(run, result)}: {result.overall} {when} RL",
            (
                f"There is no evaluation {missing} RL to compare with.",
                *(checkpoint_sentence(run) if when == "after" else _latest_validation(run)),
            ),
            "missing",
        )
    return _compare(run, run.before, run.after)


def _compare(run: RunData, before: EvalResult, after: EvalResult) -> Verdict:
    a, b = before.overall, after.overall
    change = f"{points(b.rate - a.rate)} points"
    headline = f"Success on {_tasks(run, after)}: {a} before RL, {b} after: {change}"
    if not same_panel(before, after):
        return Verdict(
            headline,
            (
                "The two evaluations used different tasks, so the change is no evidence about training.",
            ),
            "open",
        )
    more = (*_scores(before, after), *_errors(before, after), *checkpoint_sentence(run))
    training = recent_success(run.metrics)
    trained = "" if training is None else f"{100 * training:.1f} % of the training tasks"
    if a.rate == b.rate == 0:
        none = "None of the" if b.n > 1 else "The"
        never = "was" if b.n > 1 else "was not"
        headline = f"{none} {_tasks(run, after)} {never} solved, before RL or after"
        return Verdict(
            f"{headline}; training solves {trained}" if trained else headline, more, "worse"
        )
    overlap = a.low <= b.high and b.low <= a.high
    tone, sentence = _decide(before, after, overlap)
    joint = "the intervals overlap" if overlap else "the intervals do not overlap"
    # with several environments, their shares in training differ from those in the panel
    if training is not None and training - b.rate >= GAP and b.high < training and not run.mixed:
        joint += f"; far below training, which solves {trained}"
    return Verdict(f"{headline}; {joint}", (sentence, *more), tone)


def _decide(before: EvalResult, after: EvalResult, overlap: bool) -> tuple[str, str]:
    low, high, p_value, how = _difference(before, after)
    interval = f"95 % interval of the change: [{points(low)}, {points(high)}] points, {how}."
    word = "better" if after.overall.rate > before.overall.rate else "worse"
    if not overlap:
        return word, f"The policy got {word}. The {interval}"
    # if few tasks differ, the bootstrap is too narrow: the exact test has to agree
    if (low > 0 or high < 0) and (p_value is None or p_value < 0.05):
        return word, f"Although they overlap, the policy got {word}. The {interval}"
    return "open", f"This panel cannot distinguish the two policies. The {interval}"


def _difference(before: EvalResult, after: EvalResult) -> tuple[float, float, float | None, str]:
    """(low, high, p, method): from pairs of tasks if both results list them, otherwise from the rates."""
    first, second = before.successes, after.successes
    if first is not None and second is not None and len(first) == len(second):
        changes = [b - a for a, b in zip(first, second, strict=True)]
        improved, lost = changes.count(1), changes.count(-1)
        p = mcnemar_exact(improved, lost)
        how = (
            f"task by task ({counted(improved, 'task')} newly solved, {lost} lost, exact McNemar p "
            f"{_p(p)})"
        )
        return *paired_interval(first, second, _BOOTSTRAP_SEED), p, how
    low, high = difference_interval(before.overall.triple, after.overall.triple)
    return low, high, None, "taking the two rates as independent (Newcombe)"


def _scores(before: EvalResult, after: EvalResult) -> tuple[str, ...]:
    first, second = before.scores, after.scores
    if first is None or second is None or len(first) != len(second):
        return ()
    if {*first, *second} <= {0.0, 1.0}:
        return ()
    low, high = paired_interval(first, second, _BOOTSTRAP_SEED)
    means = [sum(scores) / len(scores) for scores in (first, second)]
    return (
        f"Mean score (partial success counts): {means[0]:.3f} before, {means[1]:.3f} after; 95 % "
        f"interval of the change: [{low:+.3f}, {high:+.3f}], task by task.",
    )


def _p(value: float | None) -> str:
    if value is None:
        return "not defined"
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _errors(before: EvalResult, after: EvalResult) -> tuple[str, ...]:
    if not before.errors and not after.errors:
        return ()
    return (
        f"An error of the environment ended {counted(before.errors, 'episode')} before and "
        f"{after.errors} after RL; they count as failures.",
    )


def selected_by(env: Any) -> str:
    """The measure on the selection panel by which a run's checkpoints are chosen, given its ``env``."""
    own = isinstance(env, Mapping) and env.get("reward") == "environment"
    return "score" if own else "success_rate"


def checkpoint_sentence(run: RunData) -> tuple[str, ...]:
    """The checkpoint that was evaluated after RL, compared with the last one on the selection panel."""
    done = number(run.metrics[-1].get("update")) if run.metrics else None
    by = selected_by(run.config.get("env"))
    # update 0 is the start, which is not a candidate
    rated = [r for r in run.validation if r.get("update") and number(r.get(by)) is not None]
    opening = "The evaluation after RL is of"
    if not rated:
        return () if done is None else (f"{opening} the last checkpoint, update {done:.0f}.",)
    # of equal ones the later, which training keeps
    best, last = max(rated, key=lambda r: (r[by], r["update"])), rated[-1]
    split = None if run.mixed else run.setting("evaluation.selection_split")
    result = run.after or run.before
    # the panel of an environment without splits names no split
    named = result is None or str(run.setting("evaluation.split")) in result.panel
    panel = "the selection panel" + (f" ({split})" if split and named else "")
    found = f"the best on {panel}: {_validated(best, by)}."
    if done not in (None, last["update"]):
        last_one = f"The last checkpoint, update {done:.0f}, was not validated."
    elif last is not best:
        last_one = (
            f"The last checkpoint, update {last['update']}, has {_validated(last, by)} there."
        )
    else:
        return (f"{opening} the last checkpoint, update {last['update']}, also {found}",)
    return (f"{opening} the checkpoint of update {best['update']}, {found} {last_one}",)


def _validated(record: Record, by: str) -> str:
    if by == "score":
        return f"a mean score of {record[by]:.3f}"
    rate = Rate.found(record)
    return f"{rate} on {counted(rate.n, 'task')}" if rate else f"{100 * record[by]:.1f} %"


def _latest_validation(run: RunData) -> tuple[str, ...]:
    for record in reversed(run.validation):
        if rate := Rate.found(record):
            found = f"{rate} on {counted(rate.n, 'task')}"
            return (f"Latest validation, after update {record['update']}: {found}.",)
    return ()


def _tasks(run: RunData, result: EvalResult) -> str:
    split = run.setting("evaluation.split")
    if run.mixed:
        kinds = counted(len(result.by_type), "environment")
        return f"{counted(result.overall.n, 'task')} of {kinds}"
    if split is None:
        unseen = any(word in result.panel.lower() for word in ("valid", "test", "dev"))
    else:
        # a panel that names no split was sampled from all tasks, including those of training
        unseen = split != run.setting("env.train_split") and str(split) in result.panel
    return counted(result.overall.n, "unseen task" if unseen else "task")


def same_panel(before: EvalResult, after: EvalResult) -> bool:
    """True if both results are on the same tasks, by their hashes."""
    return before.panel_hash == after.panel_hash and before.overall.n == after.overall.n


def points(difference: float) -> str:
    """A difference of fractions in percentage points, signed: ``+37.5``."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
