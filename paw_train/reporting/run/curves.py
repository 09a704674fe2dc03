"""Which measurements a report plots, how, and what each one means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paw_train.reporting.run.charts import ChartStyle, Series, line_chart, smoothing_window
from paw_train.reporting.run.markup import Markup, join, tag
from paw_train.reporting.run.results import Rate, number
from paw_train.reporting.run.run_data import Record, RunData


@dataclass(frozen=True, slots=True)
class Curve:
    """One chart: the keys of ``metrics.jsonl`` it shows, with their labels."""

    title: str
    note: str
    keys: tuple[tuple[str, str], ...]
    share: bool = False
    full: bool = False
    log: bool = False
    smooth: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one heading."""

    title: str
    curves: tuple[Curve, ...]


_SUCCESS = Curve(
    "Success",
    "share of episodes solved; bars: 95 % interval",
    (("success_rate", "training rollouts"),),
    share=True,
    full=True,
)
SECTIONS = (
    Section(
        "Success and reward",
        (
            _SUCCESS,
            Curve("Reward", "mean return of an episode in training", (("reward_mean", "reward"),)),
        ),
    ),
    Section(
        "World model",
        (
            Curve(
                "World-model loss",
                "mean over the supervised observations (Eq. 8 for CMAE)",
                (("wm_loss", "WM loss"),),
            ),
            Curve(
                "Adaptive weight λ",
                "1 − mean return / R_max, mean over groups (Eq. 10)",
                (("lambda_mean", "λ"),),
            ),
            Curve(
                "Clipped share",
                "observation tokens predicted with p > ρ, which are left out (Eq. 7)",
                (("clipped_share", "clipped"),),
                share=True,
            ),
            Curve(
                "Observation NLL",
                "nats a token of the next observation, logged without PaW too",
                (("obs_nll", "NLL"),),
            ),
            Curve(
                "Selected share",
                "transitions with world-model supervision (α)",
                (("selected_share", "selected"),),
                share=True,
                smooth=False,
            ),
            Curve(
                "Action entropy at selection",
                "of the update's transitions, and the lowest selected (Eq. 4)",
                (("entropy_threshold", "threshold"), ("entropy_mean", "mean")),
            ),
        ),
    ),
    Section(
        "Policy",
        (
            Curve("KL", "to the policy that RL started from", (("kl", "KL"),)),
            Curve("Entropy", "of the action tokens, nats", (("entropy", "entropy"),)),
            Curve("Policy loss", "clipped surrogate", (("policy_loss", "policy loss"),)),
            Curve(
                "Clip fraction",
                "action tokens whose ratio was clipped",
                (("clip_fraction", "clipped"),),
                share=True,
            ),
            Curve(
                "Gradient norms",
                "before clipping: whole, policy term, world-model term",
                (
                    ("grad_norm", "whole"),
                    ("grad_norm_policy", "policy"),
                    ("grad_norm_wm", "world model"),
                ),
                log=True,
            ),
            Curve(
                "Probability ratio",
                "of the action tokens, policy now to policy that sampled",
                (("ratio_max", "highest"), ("ratio_mean", "mean"), ("ratio_min", "lowest")),
                log=True,
            ),
            Curve("Learning rate", "", (("lr", "lr"),), smooth=False),
        ),
    ),
    Section(
        "Episodes and time",
        (
            Curve("Episode length", "steps", (("steps_mean", "steps"),)),
            Curve(
                "Invalid responses",
                "share of steps: no tags, or not accepted",
                (("invalid_rate", "invalid"),),
                share=True,
            ),
            Curve(
                "Seconds an update",
                "",
                (("seconds_rollout", "rollout"), ("seconds_train", "training")),
            ),
            Curve("Tokens an update", "", (("tokens", "tokens"),)),
        ),
    ),
)
_WARM_START = Section(
    "Warm start",
    (
        Curve("Cloning loss", "next-token loss on the expert's episodes", (("loss", "loss"),)),
        Curve(
            "Action accuracy",
            "tokens of the expert's responses predicted right",
            (("action_accuracy", "accuracy"),),
            share=True,
        ),
    ),
)
_WORLD_MODEL_LEARNING = Section(
    "World-model learning before RL",
    (
        Curve(
            "Right predictions",
            "of the sampled ones: within the threshold, and word for word",
            (("right_share", "right"), ("exact_share", "exact")),
            share=True,
        ),
        Curve(
            "Similarity",
            "cosine of sampled prediction and realised observation",
            (("similarity", "cosine"),),
        ),
        Curve(
            "Informative groups",
            "transitions whose predictions differ in reward",
            (("informative_share", "informative"),),
            share=True,
        ),
        Curve(
            "Complete and different",
            "predictions that end by themselves; different texts among them",
            (("complete_share", "complete"), ("different_share", "different")),
            share=True,
        ),
        Curve(
            "Observation NLL",
            "nats a token of the observations learned from (WM-SFT)",
            (("nll_per_token", "NLL"),),
        ),
        Curve("KL", "to the start policy", (("kl", "KL"),)),
    ),
)
_KNOWN = {key for s in SECTIONS for c in s.curves for key, _ in c.keys}
_NOT_PLOTTED = {"update", "time", "validation"}
_MAX_OTHERS = 24


def curve_sections(run: RunData) -> Markup:
    """All charts that the run has data for, and a line naming the measurements it lacks."""
    parts = [_section(section, run.metrics, "update", 1, run) for section in SECTIONS]
    parts.append(_section(_others(run.metrics), run.metrics, "update", 1, run))
    learning = run.world_model_learning
    parts.append(_section(_WORLD_MODEL_LEARNING, learning, "update", 1, run))
    parts.append(_section(_WARM_START, run.warmstart, "step", 0, run))
    missing = sorted(key for key in _KNOWN if not _has(run.metrics, key))
    if run.metrics and missing:
        names = join((tag("code", key) for key in missing), ", ")
        parts.append(tag("p", "Not measured in this run: ", names, ".", class_="muted"))
    return join(parts)


def success_series(run: RunData) -> list[Series]:
    """Success in training rollouts and on the selection panel, by number of finished updates."""
    series = [
        Series("training rollouts", _points(run.metrics, "success_rate", "update", 1), 1, (), True)
    ]
    rates: list[tuple[float, Rate]] = []
    for record in run.validation:
        try:
            rates.append((float(record["update"]), Rate.from_dict(record)))
        except ValueError:
            continue
    if rates:
        points = [(x, rate.rate) for x, rate in rates]
        intervals = [(x, rate.low, rate.high) for x, rate in rates]
        label = f"validation ({rates[-1][1].n} tasks)"
        series.append(Series(label, points, 2, intervals))
    return [s for s in series if s.values]


def _others(records: Sequence[Record]) -> Section:
    """Measurements that this report knows nothing about, plotted all the same."""
    keys = sorted({key for r in records for key in r} - _KNOWN - _NOT_PLOTTED)
    plotted = [key for key in keys if _has(records, key)][:_MAX_OTHERS]
    return Section("Other measurements", tuple(Curve(k, "", ((k, k),)) for k in plotted))


def _section(
    section: Section, records: Sequence[Record], x_key: str, shift: int, run: RunData
) -> Markup:
    drawn: list[tuple[Curve, list[Series]]] = []
    for curve in section.curves:
        if curve is _SUCCESS:
            series = success_series(run)
        else:
            series = [
                Series(label, _points(records, key, x_key, shift), i, (), curve.smooth)
                for i, (key, label) in enumerate(curve.keys, 1)
                if _has(records, key)
            ]
        if series:
            drawn.append((curve, series))
    if not drawn:
        return Markup()
    wide = len(drawn) in (1, 2, 4)
    figures = [_figure(curve, series, x_key, wide) for curve, series in drawn]
    longest = max((len(s.points) for _, ss in drawn for s in ss if s.smooth), default=0)
    window = smoothing_window(longest)
    explained = f"Thin lines: each {x_key}; thick lines: mean of {window} neighbours."
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", explained, class_="muted") if window > 1 else None,
        tag("div", *figures, class_="charts wide" if wide else "charts"),
    )


def _figure(curve: Curve, series: Sequence[Series], x_label: str, wide: bool) -> Markup:
    style = ChartStyle(
        width=440 if wide else 380,
        height=226 if wide else 208,
        share=curve.share,
        full=curve.full,
        log=curve.log,
        x_label=x_label,
    )
    legend = tag("span", *(_key(s) for s in series), class_="legend") if len(series) > 1 else None
    caption = tag(
        "figcaption",
        tag("b", curve.title),
        tag("span", curve.note, class_="muted") if curve.note else None,
        legend,
    )
    readout = tag("p", class_="readout", aria_live="polite")
    return tag("figure", caption, line_chart(series, curve.title, style), readout)


def _key(series: Series) -> Markup:
    return tag("span", tag("i", class_=f"swatch c{series.colour}"), series.label)


def _has(records: Sequence[Record], key: str) -> bool:
    return any(number(record.get(key)) is not None for record in records)


def _points(
    records: Sequence[Record], key: str, x_key: str, shift: int
) -> list[tuple[float, float | None]]:
    """(x, y) of every record; ``shift`` 1 turns the index of an update into how many are finished."""
    return [(float(r[x_key]) + shift, number(r.get(key))) for r in records]
