"""Which tokens of the next observations a world model of ALFWorld knows, and which pull at it.

Every model predicts the same recorded observations, each token given the true ones before it. Tokens
are grouped by what makes them predictable: the first word of an answer (whether the action was
carried out), what lies in a place, location numbers (both are dice of the game's generator), and
the words in between. ``pull`` is a kind's share of clipped MAE's gradient in the logits,
``p (1 - p) / |o|`` over the tokens with ``p <= rho`` (Eq. 7-8).

    python benchmarks/observation_tokens.py runs/embedded_wm/grpo-seed0 runs/embedded_wm/grpo+paw-seed0 \\
        --episodes runs/embedded_wm/grpo-seed0/rollouts/000000.jsonl

Made for word tokens (``model.scratch.tokenizer=words``, as in the project's grids): one token a word.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch

from paw_gym.transition import read_jsonl
from paw_gym.wrappers import make_agent_env
from paw_train.evaluation.program import run_of, weights_of
from paw_train.evaluation.world_model import Prediction, predictions, token_logprobs
from paw_train.policies.local.policy import LocalPolicy
from paw_train.settings.foreign import recorded_id

KINDS = ("refused", "carried out", "object", "number", "location", "other")
"""of tokens: first word of "Nothing happens.", first word of any other answer, ..."""


@dataclass
class Kind:
    """Measurements of the tokens of one kind, a value each."""

    nll: list[float] = field(default_factory=list)
    pull: list[float] = field(default_factory=list)
    """0 where clipped"""
    p: list[float] = field(default_factory=list)


def kinds_of(words: list[str]) -> list[str]:
    """Of each word of an observation."""
    found, listing = [], False
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        listing = listing or word == "see"
        if place == 0:
            found.append("refused" if word == "Nothing" else "carried out")
        elif before == "loc":
            found.append("location")
        elif listing and before in ("a", "an"):
            found.append("object")
        elif listing and word.isdigit():
            found.append("number")
        else:
            found.append("other")
    return found


def measure(policy: LocalPolicy, wanted: list[Prediction], rho: float) -> dict[str, Kind]:
    """All tokens by kind."""
    found: dict[str, Kind] = defaultdict(Kind)
    for one, (_, logprobs) in zip(wanted, token_logprobs(policy, wanted), strict=True):
        (step,) = one.row.steps
        ids = one.row.ids[slice(*step.observation)]
        words = [policy.tokenizer.decode([token]).strip() for token in ids]
        for kind, logprob in zip(kinds_of(words), logprobs.tolist(), strict=True):
            mine, p = found[kind], math.exp(logprob)
            mine.p.append(p)
            mine.nll.append(-logprob)
            mine.pull.append(p * (1 - p) / len(ids) if p <= rho else 0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="runs, or folders with weights")
    parser.add_argument("--episodes", type=Path, required=True, help="recorded episodes (JSONL)")
    parser.add_argument("--limit", type=int, default=20, help="episodes to take")
    parser.add_argument("--rho", type=float, default=0.2)
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    episodes = list(read_jsonl(given.episodes))[: given.limit]
    first = episodes[0]
    probe = make_agent_env(
        recorded_id(first.env_id, "The record"), template="compact", mode=first.context_mode
    )
    print("median p | NLL in nats | share of the pull, by kind of token\n")
    for path in given.models:
        policy = LocalPolicy.load(weights_of(path, run_of(path)))
        shown = probe.text_env.prompt_observation
        wanted = predictions(episodes, policy.chat, shown, probe.template)
        found = measure(policy, wanted, given.rho)
        tokens = sum(len(kind.p) for kind in found.values())
        pull = sum(map(sum, (kind.pull for kind in found.values()))) or 1.0
        nll = sum(map(sum, (kind.nll for kind in found.values()))) / tokens
        left = sum(p <= given.rho for kind in found.values() for p in kind.p) / tokens
        print(f"{path}: {tokens} tokens, NLL {nll:.3f}, p <= {given.rho:g}: {left:.1%}")
        for name in KINDS:
            if kind := found.get(name):
                print(
                    f"  {name:12s} {len(kind.p):6d}  p {statistics.median(kind.p):.3f}  "
                    f"NLL {statistics.mean(kind.nll):6.2f}  pull {sum(kind.pull) / pull:4.0%}"
                )
    probe.close()


if __name__ == "__main__":
    main()
