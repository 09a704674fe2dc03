"""Records of an update to look at: episodes, and what their tokens were worth.

``rollouts/NNNNNN.jsonl`` holds the episodes; ``tokens/NNNNNN.jsonl``, one line an episode, what
training knew of them: probabilities under the policy that the update started from, entropies,
advantages, and what the world model selected. Nothing here samples a random number or moves a weight,
so a run with and without it computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paw_gym.internals.files import json_text, write_text
from paw_gym.transition import write_jsonl
from paw_train.algorithms.experience import Prepared
from paw_train.algorithms.pool import Pool
from paw_train.losses.world_model import predicted_well
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.scoring import row_logprobs
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings import Settings

ROLLOUTS, TOKENS = "rollouts", "tokens"
"""folders of a run"""


def record(
    folder: Path,
    update: int,
    kept: Sequence[Trajectory],
    pool: Pool,
    prepared: Prepared,
    policy: LocalPolicy,
    settings: Settings,
) -> None:
    """Writes the kept episodes of an update and their tokens.

    Args:
        pool: what the update learns from; a kept episode that is not in it has no tokens written.
        prepared: made from the pool, before any optimiser step, as is the policy.
    """
    name = f"{update:06d}.jsonl"
    records = token_records(kept, pool, prepared, policy, settings)
    lines = [json_text({"update": update, **r}, separators=(",", ":")) + "\n" for r in records]
    (folder / TOKENS).mkdir(exist_ok=True)
    write_text(folder / TOKENS / name, "".join(lines))
    (folder / ROLLOUTS).mkdir(exist_ok=True)
    # last: whoever follows the run finds the tokens beside the episodes
    write_jsonl(folder / ROLLOUTS / name, [t.episode for t in kept])


def token_records(
    kept: Sequence[Trajectory],
    pool: Pool,
    prepared: Prepared,
    policy: LocalPolicy,
    settings: Settings,
) -> list[dict[str, Any]]:
    """One record an episode, of JSON values; see ``docs/viewer.md`` for the fields."""
    # of the rows as they were rolled out: what a filter leaves out of the loss is shown all the same
    starts = {
        id(t.episode): int(first) for t, first in zip(pool.episodes, pool.starts, strict=True)
    }
    inside = [t for t in kept if id(t.episode) in starts]
    rows = [row for t in inside for row in t.rows]
    budget, wm = settings.optimizer.micro_batch_tokens, settings.world_model
    scores = iter(row_logprobs(policy, rows, budget, settings.rollout.temperature))
    of_steps = _Steps(pool, prepared, TokenTexts(policy.chat), wm.rho)
    records = []
    for t in inside:
        first = starts[id(t.episode)]
        scored = zip(t.rows, scores, strict=False)
        records.append(
            {
                "episode_id": t.episode.episode_id,
                "group": t.episode.group,
                "world_model": wm.enabled,
                "loss": wm.loss,
                "rho": wm.rho,
                "temperature": settings.rollout.temperature,
                "lambda": _short(float(prepared.plan.lambdas[prepared.wm_groups[first]])),
                "steps": [s for row, known in scored for s in of_steps(t, row, known, first)],
            }
        )
    return records


@dataclass
class _Steps:
    """Records of the steps of episodes."""

    pool: Pool
    prepared: Prepared
    texts: TokenTexts
    rho: float

    def __call__(
        self, trajectory: Trajectory, row: TokenRow, logprobs: Tensor, first: int
    ) -> Iterator[dict[str, Any]]:
        plan, offered = self.prepared.plan, trajectory.offered
        observations = row.places(OBSERVATION)
        for turn, places in row.places(ACTION).items():
            number, seen = first + turn, observations.get(turn, [])
            own = logprobs[list(seen)]
            clipped = predicted_well(own[None], torch.ones(1, len(own)), self.rho)[0].tolist()
            yield {
                "step": turn,
                "entropy": _short(float(self.prepared.entropy[number])),
                "advantage": self._advantage(number),
                "selected": bool(plan.selected[number]),
                "weight": _short(float(plan.weights[number])),
                "admissible": offered[turn] if turn < len(offered) else None,
                "response": self._tokens(row, logprobs, places),
                "observation": {
                    **self._tokens(row, logprobs, seen),
                    "clipped": "".join("1" if flag else "0" for flag in clipped),
                },
            }

    def _advantage(self, number: int) -> float | list[float]:
        advantages, turn = self.prepared.advantages, self.pool.turn
        if advantages.shape == turn.shape and len(advantages) != len(self.prepared.entropy):
            return [*map(_short, advantages[turn == number].tolist())]  # of each token
        return _short(float(advantages[number]))

    def _tokens(self, row: TokenRow, logprobs: Tensor, places: Sequence[int]) -> dict[str, Any]:
        return {
            "tokens": self.texts([row.ids[place] for place in places]),
            "logprobs": [*map(_short, logprobs[list(places)].tolist())],
        }


class TokenTexts:
    """Token ids as pieces of text that together are the text of all of them.

    Bytes of one character that are split over tokens go to the last of these.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._text: Callable[[tuple[int, ...]], str] = cache(lambda ids: chat.raw(list(ids)))

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """[T] the piece of each token; ``""`` where its bytes are shown with a later one."""
        pieces: list[str] = []
        ids = tuple(ids)
        # `ids[context:done]` is decoded with and without the next token: a token's text can depend
        # on its neighbour (a space before a word), not on what is further off
        context = done = 0
        for end in range(1, len(ids) + 1):
            before, after = self._text(ids[context:done]), self._text(ids[context:end])
            if after.endswith("\ufffd") and end < len(ids):
                pieces.append("")
                continue
            pieces.append(after[len(before) :])
            context, done = done, end
        return pieces


def _short(value: float) -> float:
    """The shortest decimal that is the same float32."""
    return float(str(np.float32(value)))
