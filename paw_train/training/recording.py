"""Records of an update to look at: episodes, and what their tokens were worth.

``rollouts/NNNNNN.jsonl`` holds the episodes; ``tokens/NNNNNN.jsonl``, one line an episode, what
training knew of them: probabilities under the policy that the update started from, entropies,
advantages, and what the world model selected. Nothing here samples a random number or moves a weight,
so a run with and without it computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    budget = settings.optimizer.micro_batch_tokens
    scores = iter(row_logprobs(policy, rows, budget, settings.rollout.temperature))
    texts = TokenTexts(policy.chat)
    return [
        _episode(t, starts[id(t.episode)], pool, prepared, scores, texts, settings) for t in inside
    ]


def _episode(
    trajectory: Trajectory,
    first: int,
    pool: Pool,
    prepared: Prepared,
    scores: Iterator[Tensor],
    texts: TokenTexts,
    settings: Settings,
) -> dict[str, Any]:
    world_model = settings.world_model
    steps = []
    for row, known in zip(trajectory.rows, scores, strict=False):
        actions, observations = row.places(ACTION), row.places(OBSERVATION)
        steps += [
            {
                "step": turn,
                **_worth(first + turn, pool, prepared),
                "admissible": trajectory.offered[turn] if turn < len(trajectory.offered) else None,
                "response": _tokens(row, known, actions[turn], texts),
                "observation": _observation(
                    row, known, observations.get(turn, []), texts, world_model.rho
                ),
            }
            for turn in actions
        ]
    return {
        "episode_id": trajectory.episode.episode_id,
        "group": trajectory.episode.group,
        "world_model": world_model.enabled,
        "loss": world_model.loss,
        "rho": world_model.rho,
        "temperature": settings.rollout.temperature,
        "lambda": _short(float(prepared.plan.lambdas[prepared.wm_groups[first]])),
        "steps": steps,
    }


def _worth(number: int, pool: Pool, prepared: Prepared) -> dict[str, Any]:
    advantages = prepared.advantages
    by_token = advantages.shape == pool.turn.shape and len(advantages) != len(prepared.entropy)
    return {
        "entropy": _short(float(prepared.entropy[number])),
        "advantage": _numbers(advantages[pool.turn == number])
        if by_token
        else _short(float(advantages[number])),
        "selected": bool(prepared.plan.selected[number]),
        "weight": _short(float(prepared.plan.weights[number])),
    }


def _tokens(
    row: TokenRow, logprobs: Tensor, places: Sequence[int], texts: TokenTexts
) -> dict[str, Any]:
    return {
        "tokens": texts([row.ids[place] for place in places]),
        "logprobs": _numbers(logprobs[list(places)]),
    }


def _observation(
    row: TokenRow, logprobs: Tensor, places: Sequence[int], texts: TokenTexts, rho: float
) -> dict[str, Any]:
    own = logprobs[list(places)]
    well = predicted_well(own[None], torch.ones(1, len(own)), rho)[0]
    clipped = "".join("1" if flag else "0" for flag in well.tolist())
    return {**_tokens(row, logprobs, places, texts), "clipped": clipped}


class TokenTexts:
    """Token ids as pieces of text that together are the text of all of them.

    Bytes of one character that are split over tokens go to the last of these.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """[T] the piece of each token; ``""`` where its bytes are shown with a later one."""
        pieces: list[str] = []
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

    def _text(self, ids: Sequence[int]) -> str:
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = self._chat.raw(list(ids))
        return self._known[key]


def _numbers(values: Tensor) -> list[float]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float:
    """The shortest decimal that is the same float32."""
    return float(str(np.float32(value)))
