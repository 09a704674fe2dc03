"""What of ALFWorld's next observations can be known, and how far world models are from it.

An observer that knows the generator (``paw_gym.envs.alfworld.oracle``) gives each token of recorded
observations its true probability, given all that was seen before. Models give the same tokens theirs. The
difference is what a model could still learn; what a world-model loss reads is compared with it.

    paw eval RUN env.kwargs.variation=modified evaluation.tasks=100 --out PLAYED
    python benchmarks/observation_floor.py RUN RUN ... --episodes PLAYED/episodes.jsonl --out floor.json
    python benchmarks/observation_floor.py --figure floor.svg --out floor.json

Episodes have to be of modified rooms (``variation='modified'``). Tokens after the first one of a stretch
that did not follow from the history count as certain.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from paw_gym.envs.alfworld.env import procedural_tasks
from paw_gym.envs.alfworld.native.engine import NOTHING_HAPPENS
from paw_gym.envs.alfworld.oracle.observer import Chance, Observer
from paw_gym.files import write_json
from paw_gym.transition import Episode, read_jsonl
from paw_gym.wrappers import make_agent_env
from paw_train.evaluation.program import run_of, weights_of
from paw_train.evaluation.statistics import ratio_interval
from paw_train.evaluation.world_model import Prediction, predictions
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.observation_filter import text_of_tokens
from paw_train.rollouts.tokens import collate, micro_batches

CERTAIN, REFUSED, CARRIED_OUT = "certain", "refused", "carried out"
RHO, ALPHA = 0.2, 0.75
"""of PaW as published: clipped MAE's threshold, and the share of transitions that entropy selects"""
Floats = NDArray[np.float64]


def chances_of(episode: Episode, variation: str) -> list[list[Chance]]:
    """What did not follow from the history, of each transition's observation."""
    _, split, _, *sizes, _ = episode.task_id.split("/")
    size = int(sizes[0]) if sizes else None
    tasks = procedural_tasks(split, "put", variation, None, size)
    observer = Observer.of_game(tasks[episode.task_id].data)
    found = []
    for t in episode.transitions:
        text, chances = observer.step(t.action)
        if text != t.next_observation:
            raise ValueError(
                f"Step {t.step} of {episode.episode_id} was answered {t.next_observation!r}, the game says "
                f"{text!r}: it was recorded with another variation than {variation!r}."
            )
        found.append(chances)
    return found


def true_probabilities(
    ids: Sequence[int], chances: Sequence[Chance], tokenizer: Any
) -> tuple[list[float], list[str]]:
    """Of each token, and what it tells."""
    _, ends = text_of_tokens(ids, tokenizer)
    p, what = [1.0] * len(ids), [CERTAIN] * len(ids)
    for chance in chances:
        spans = enumerate(pairwise([0, *ends]))
        at = next(k for k, (a, b) in spans if a < chance.end and chance.start < b)
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
        observed, self.entropy = log_probabilities(policy, wanted)
        self.model = np.concatenate(observed)
        self.first = np.array([0, *np.cumsum([len(one) for one in observed])[:-1]])
        self.lengths = np.array([len(one) for one in observed])
        self.refused = np.array([one.text.startswith(NOTHING_HAPPENS) for one in wanted])

    @property
    def excess(self) -> Floats:
        """[tokens] nats above the floor; its mean is the divergence from the truth."""
        return self.true - self.model


@torch.no_grad()
def log_probabilities(policy: LocalPolicy, wanted: list[Prediction]) -> tuple[list[Floats], Floats]:
    """Of the tokens of each observation; and the action entropy of each transition (Eq. 4, sampled)."""
    policy.model.eval()
    found: list[Floats] = [np.zeros(0)] * len(wanted)
    entropy = np.zeros(len(wanted))
    for number, one in enumerate(wanted):
        one.row.steps[0].index = number
    for rows in micro_batches([one.row for one in wanted], 8192):
        batch = collate(rows, policy.pad_id)
        logprobs = policy.logprobs(batch).double()
        for line, index in enumerate(batch.index.tolist()):
            found[index] = logprobs[line][batch.observation_mask[line]].numpy()
            entropy[index] = -float(logprobs[line][batch.action_mask[line]].mean())
    return found, entropy


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
        "ECHO's filter": (
            ~tokens.refused[tokens.transition],
            (~tokens.refused[tokens.transition]).astype(float),
        ),
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


def figure(results: Mapping[str, Any], path: Path) -> None:
    """Stacked bars: of each model the floor and what is above it, by what a token tells."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "floor", "svg.fonttype": "none", "font.size": 9})
    models = results["models"]
    groups = {
        "an action was refused": (REFUSED,),
        "it was carried out": (CARRIED_OUT,),
        "what lies there, first seen": ("empty", "object", "number", "more", "last", "closed"),
        "numbers of places": ("location", "facing"),
        "all that follows from the history": (CERTAIN,),
    }
    figure, axes = plt.subplots(figsize=(7.2, 0.5 + 0.42 * (len(models) + 1)))
    colors = ["#d95f02", "#7570b3", "#1b9e77", "#4c78a8", "#999999"]
    rows = [("can be known by nobody (floor)", None), *models.items()]
    for y, (_, model) in enumerate(rows):
        left = 0.0
        kinds = next(iter(models.values()))["kinds"] if model is None else model["kinds"]
        total = sum(kind["tokens"] for kind in kinds.values())
        for color, (name, members) in zip(colors, groups.items(), strict=True):
            there = [kinds[m] for m in members if m in kinds]
            measured = "floor" if model is None else "nll"
            width = sum(kind["tokens"] * kind[measured] for kind in there) / total
            axes.barh(y, width, left=left, color=color, height=0.7,
                      label=name if y == 0 else None)  # fmt: skip
            left += width
        axes.text(left + 0.005, y, f"{left:.3f}", va="center")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("negative log-likelihood of the next observations, nats per token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.08)
    axes.legend(ncols=3, frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.35))
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, help="runs, or folders with weights")
    parser.add_argument("--episodes", type=Path, help="recorded episodes (JSONL)")
    parser.add_argument("--transitions", type=int, default=2000, help="how many to take, about")
    parser.add_argument("--variation", default="modified", help="of the episodes' environment")
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
        chances = [line for episode in episodes for line in chances_of(episode, given.variation)]
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
    if given.figure:
        figure(results, given.figure)


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
