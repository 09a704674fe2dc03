"""What of ALFWorld's next observations can be known, and how far world models are from it.

An observer that knows the generator (``paw_gym.envs.alfworld.oracle``) gives each token of recorded
observations its true probability, given all that was seen before. Models give the same tokens theirs. The
difference is what a model could still learn; what a world-model loss reads is compared with it.

    paw eval RUN env.kwargs.variation=modified evaluation.tasks=100 --out PLAYED
    python benchmarks/observation_floor.py RUN RUN ... --episodes PLAYED/episodes.jsonl --out floor.json
    python benchmarks/observation_floor.py --out floor.json --figure floor.svg    # those of the file

Models are named after their runs; those that differ in ``-seedN`` alone are shown as one arm.

Episodes have to be of modified rooms (``variation='modified'``). Tokens after the first one of a stretch
that did not follow from the history count as certain.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from paw_gym.envs.alfworld.native.engine import NOTHING_HAPPENS
from paw_gym.envs.alfworld.oracle.observer import Chance
from paw_gym.envs.alfworld.oracle.recorded import recorded_chances, tokens_of
from paw_gym.files import write_json
from paw_gym.transition import read_jsonl
from paw_gym.wrappers import make_agent_env
from paw_train.evaluation.program import run_of, weights_of
from paw_train.evaluation.statistics import ratio_interval
from paw_train.evaluation.world_model import Prediction, predictions, token_logprobs
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.observation_filter import text_of_tokens

CERTAIN, REFUSED, CARRIED_OUT = "certain", "refused", "carried out"
GROUPS = {
    "an action was refused": (REFUSED,),
    "it was carried out": (CARRIED_OUT,),
    "what lies there, first seen": ("empty", "object", "number", "more", "last", "closed"),
    "numbers of places": ("location", "facing"),
    "what follows from the history": (CERTAIN,),
}
"""kinds of tokens, by what they tell"""
COLORS = ("#ff725c", "#efb118", "#4269d0", "#97bbf5", "#9498a0")
RHO, ALPHA = 0.2, 0.75
"""of PaW as published: clipped MAE's threshold, and the share of transitions that entropy selects"""
Floats = NDArray[np.float64]


def true_probabilities(
    ids: Sequence[int], chances: Sequence[Chance], tokenizer: Any
) -> tuple[list[float], list[str]]:
    """Of each token, and what it tells."""
    _, ends = text_of_tokens(ids, tokenizer)
    p, what = [1.0] * len(ids), [CERTAIN] * len(ids)
    for chance, (at, _) in zip(chances, tokens_of(chances, ends), strict=True):
        p[at] *= chance.p
        what[at] = chance.what
    return p, what


class Tokens:
    """All tokens of all observations, side by side: what is true, and what a model holds of them."""

    def __init__(
        self, policy: LocalPolicy, wanted: list[Prediction], chances: list[list[Chance]]
    ) -> None:
        self.episode, self.transition, self.what, true = [], [], [], []
        for number, (one, open_to) in enumerate(zip(wanted, chances, strict=True)):
            ids = one.row.ids[slice(*one.row.steps[0].observation)]
            p, what = true_probabilities(ids, open_to, policy.tokenizer)
            # the first word tells whether the action was refused, also where that could be known
            if one.text.startswith(NOTHING_HAPPENS):
                what = [REFUSED] * len(what)
            elif what[0] == CERTAIN:
                what[0] = CARRIED_OUT
            true += p
            self.what += what
            self.episode += [one.episode] * len(ids)
            self.transition += [number] * len(ids)
        self.true = np.log(np.array(true))
        scored = token_logprobs(policy, wanted)
        observed = [observation for _, observation in scored]
        # of the policy's action (Eq. 4, sampled)
        self.entropy = np.array([-action.mean() for action, _ in scored])
        self.model = np.concatenate(observed)
        self.first = np.array([0, *np.cumsum([len(one) for one in observed])[:-1]])
        self.lengths = np.array([len(one) for one in observed])
        self.refused = np.array([one.text.startswith(NOTHING_HAPPENS) for one in wanted])

    @property
    def excess(self) -> Floats:
        """[tokens] nats above the floor; its mean is the divergence from the truth."""
        return self.true - self.model


def auroc(label: NDArray[np.bool_], score: Floats) -> float | None:
    """Probability that a score is higher where the label is true (ties count half); ``None``: unknown."""
    positive = int(label.sum())
    negative = len(label) - positive
    if not positive or not negative:
        return None
    ranks = rankdata(score)[label].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def measure(tokens: Tokens) -> dict[str, Any]:
    """Floor, excess by what a token tells, and what the losses read."""
    kinds = {}
    what = np.array(tokens.what)
    for kind in sorted(set(tokens.what)):
        mine = what == kind
        kinds[kind] = {
            "tokens": int(mine.sum()),
            "floor": float(-tokens.true[mine].mean()),
            "nll": float(-tokens.model[mine].mean()),
        }
    first = np.exp(tokens.model[tokens.first])
    says_refused = np.where(tokens.refused, first, 1 - first)
    return {
        "tokens": len(tokens.what),
        "transitions": len(tokens.lengths),
        "floor": _by_episode(tokens, -tokens.true),
        "nll": _by_episode(tokens, -tokens.model),
        "excess": _by_episode(tokens, tokens.excess),
        "certain": float((tokens.true == 0).mean()),
        "kinds": kinds,
        "refusals_auroc": auroc(tokens.refused, says_refused),
        "reads": reads(tokens),
    }


def reads(tokens: Tokens) -> dict[str, dict[str, float | None]]:
    """What each rule reads, against the tokens whose true probability is more than twice the model's."""
    learnable = tokens.excess > math.log(2)
    p = np.exp(tokens.model)
    length = tokens.lengths[tokens.transition]
    threshold = np.quantile(tokens.entropy, 1 - ALPHA)
    selected = (tokens.entropy >= threshold)[tokens.transition]
    rules = {
        "cross-entropy": (np.ones(len(p), dtype=bool), 1 - p),
        "clipped MAE": (p <= RHO, np.where(p <= RHO, p * (1 - p) / length, 0.0)),
        "entropy selection": (selected, tokens.entropy[tokens.transition]),
    }
    found = {}
    for name, (kept, pull) in rules.items():
        found[name] = {
            "kept": float(kept.mean()),
            "precision": float(learnable[kept].mean()) if kept.any() else None,
            "recall": float(kept[learnable].mean()) if learnable.any() else None,
            "auroc": auroc(learnable, pull),
            "pull_on_learnable": float(pull[learnable].sum() / pull.sum()) if pull.any() else None,
        }
    return {"learnable": {"kept": float(learnable.mean())}, **found}


def _by_episode(tokens: Tokens, values: Floats) -> dict[str, Any]:
    episodes = np.array(tokens.episode)
    sums = np.bincount(episodes, values)
    counts = np.bincount(episodes)
    there = counts > 0
    low, high = ratio_interval(sums[there].tolist(), counts[there].tolist(), 0)
    return {"mean": float(values.mean()), "ci95": [low, high]}


def by_arm(models: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The models of all seeds of an arm: ``grpo-seed0`` and ``grpo-seed1`` are of ``grpo``."""
    found: dict[str, list[Any]] = {}
    for name, model in models.items():
        found.setdefault(re.sub(r"-seed\d+", "", name), []).append(model)
    return found


def part(model: Mapping[str, Any], kinds: Sequence[str], measured: str) -> float:
    """Nats per token of all tokens, that tokens of these kinds contribute."""
    there = [model["kinds"][kind] for kind in kinds if kind in model["kinds"]]
    return float(sum(kind["tokens"] * kind[measured] for kind in there) / model["tokens"])


def table(models: Mapping[str, Any]) -> str:
    """Means over the seeds of each arm, as Markdown."""
    lines = [
        f"| model | seeds | NLL | above the floor | {' | '.join(GROUPS)} | AUROC of refusals |",
        "| --- " + "| ---: " * (len(GROUPS) + 4) + "|",
    ]
    for arm, seeds in by_arm(models).items():
        gaps = [
            _mean([part(m, kinds, "nll") - part(m, kinds, "floor") for m in seeds])
            for kinds in GROUPS.values()
        ]
        means = [_mean([m[name]["mean"] for m in seeds]) for name in ("nll", "excess")]
        figures = [f"{value:.3f}" for value in (*means, *gaps)]
        told = _mean([m["refusals_auroc"] for m in seeds])
        lines.append(f"| {arm} | {len(seeds)} | {' | '.join(figures)} | {told:.2f} |")
    return "\n".join([*lines, "", *_rules(models)])


def _rules(models: Mapping[str, Any]) -> list[str]:
    """What each rule reads: means over the seeds of each arm."""
    lines = [
        "| model | can be learned | rule | reads | of it can be learned | of that it reads | AUROC |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for arm, seeds in by_arm(models).items():
        for rule in [name for name in seeds[0]["reads"] if name != "learnable"]:
            found = [
                f"{100 * _mean([m['reads'][rule][name] for m in seeds]):.0f} %"
                for name in ("kept", "precision", "recall")
            ]
            share = 100 * _mean([m["reads"]["learnable"]["kept"] for m in seeds])
            ranked = _mean([m["reads"][rule]["auroc"] for m in seeds])
            lines.append(f"| {arm} | {share:.0f} % | {rule} | {' | '.join(found)} | {ranked:.2f} |")
    return lines


def _mean(values: Sequence[float | None]) -> float:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else math.nan


def figure(models: Mapping[str, Any], path: Path) -> None:
    """Stacked bars: the floor, and each arm's mean likelihood, by what a token tells."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(
        {"svg.hashsalt": "paw", "font.family": "sans-serif", "svg.fonttype": "none"}
    )
    arms = by_arm(models)
    rows = [("floor: nobody can know", [next(iter(models.values()))], "floor")]
    rows += [(arm, seeds, "nll") for arm, seeds in arms.items()]
    drawn = Figure(figsize=(8.4, 1.4 + 0.42 * len(rows)), layout="constrained", facecolor="white")
    chart = drawn.subplots()
    for y, (_, seeds, measured) in enumerate(rows):
        left = 0.0
        for color, (name, kinds) in zip(COLORS, GROUPS.items(), strict=True):
            width = float(np.mean([part(m, kinds, measured) for m in seeds]))
            chart.barh(y, width, left=left, color=color, height=0.7, label="" if y else name)
            left += width
        chart.text(left + 0.006, y, f"{left:.2f}", va="center", fontsize=9)
    chart.set_yticks(range(len(rows)), [name for name, *_ in rows])
    chart.invert_yaxis()
    chart.set_xlabel("negative log-likelihood of the next observations, nats per token")
    chart.spines[["top", "right"]].set_visible(False)
    chart.margins(x=0.08)
    drawn.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    drawn.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, help="runs, or folders with weights")
    parser.add_argument("--episodes", type=Path, help="recorded episodes (JSONL)")
    parser.add_argument("--transitions", type=int, default=2000, help="how many to take, about")
    parser.add_argument("--out", type=Path, required=True, help="results, kept and added to (JSON)")
    parser.add_argument("--figure", type=Path, help="draw the results (SVG)")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    results = json.loads(given.out.read_text()) if given.out.exists() else {"models": {}}
    if given.models:
        episodes, count = [], 0
        for episode in read_jsonl(given.episodes):
            if count >= given.transitions:
                break
            episodes.append(episode)
            count += len(episode.transitions)
        chances = [line for episode in episodes for line in recorded_chances(episode)]
        probe = make_agent_env(
            episodes[0].env_id, template="compact", mode=episodes[0].context_mode
        )
        shown = probe.text_env.prompt_observation
        for path in given.models:
            policy = LocalPolicy.load(weights_of(path, run_of(path)))
            wanted = predictions(episodes, policy.chat, shown, probe.template)
            results["models"][_name(path)] = measure(Tokens(policy, wanted, chances))
            write_json(given.out, results)
            print(_line(_name(path), results["models"][_name(path)]), flush=True)
        probe.close()
    if results["models"]:
        print(table(results["models"]))
    if given.figure:
        figure(results["models"], given.figure)


def _name(path: Path) -> str:
    run = run_of(path)
    if run is None or path == run:
        return path.name
    return f"{run.name} {path.parent.name}"


def _line(name: str, model: Mapping[str, Any]) -> str:
    low, high = model["excess"]["ci95"]
    return (
        f"{name}: {model['tokens']} tokens, {model['certain']:.1%} certain; "
        f"floor {model['floor']['mean']:.3f}, NLL {model['nll']['mean']:.3f}, "
        f"excess {model['excess']['mean']:.3f} ({low:.3f} to {high:.3f}); "
        f"AUROC of refusals {model['refusals_auroc']}"
    )


if __name__ == "__main__":
    main()
