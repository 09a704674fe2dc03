"""Policy x pool -> episodes, as records to read and as token rows to learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from paw_gym.pool import EnvPool, Slot
from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface
from paw_train.chat import ChatFormat
from paw_train.policies.decoding import BatchDecoder, Response, Sampling
from paw_train.policies.local import LocalPolicy
from paw_train.tokens import StepSpans, TokenRow


@dataclass(frozen=True)
class RolloutSettings:
    """How experience is collected."""

    groups: int = 16
    """tasks an update"""
    group_size: int = 8
    """episodes of each task"""
    temperature: float = 1.0
    """of sampling; log-probabilities are those of the tempered distribution"""
    max_response_tokens: int = 512
    """longest response"""
    max_context_tokens: int = 4096
    """longest context; a longer window-mode prompt loses its beginning, a longer dialogue ends"""


@dataclass(slots=True)
class Trajectory:
    """One episode with its token rows."""

    episode: Episode
    rows: list[TokenRow] = field(default_factory=list)


Progress = Callable[[int, int], None]


def rollout(
    policy: LocalPolicy,
    pool: EnvPool,
    settings: RolloutSettings,
    generator: torch.Generator,
    task_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
    keep_tokens: bool = True,
) -> list[Trajectory]:
    """Plays one batch of episodes to their ends.

    Args:
        policy: answers.
        pool: the environments; its agent interface decides the context mode.
        settings: sampling and limits.
        generator: CPU generator that all tokens are drawn from.
        task_ids: one task a group; ``None``: the pool draws them.
        progress: called with (running, all) episodes after each step.
        keep_tokens: whether rows are wanted (training) or not (evaluation).

    Returns:
        A trajectory for each episode, in the pool's order; failed ones have ``episode.error``.
    """
    pool.reset(task_ids)
    trajectories = [Trajectory(episode) for episode in pool.episodes]
    player = _Player(policy, pool, settings, generator)
    while pool.active:
        slots = list(pool.active)
        responses = player.answer(slots)
        pool.step([response.text for response in responses])
        for slot, response in zip(slots, responses, strict=True):
            player.recorder.take(slot, response)
        player.end_overlong()
        if progress:
            progress(len(pool.active), len(trajectories))
    if keep_tokens:
        _hand_over(trajectories, player.recorder.rows)
    return trajectories


def demonstrations(
    pool: EnvPool,
    chat: ChatFormat | None,
    task_ids: Sequence[str],
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[Trajectory]:
    """Episodes of the environments' own expert.

    Args:
        pool: the environments.
        chat: writes token rows; ``None``: records only.
        task_ids: the tasks.
        noise: share of steps at which something else is done instead (a random admissible action,
            or one that is not). The expert then shows how to go on; the slip itself is no example
            and gets no span in its row.
        rng: of the noise.
    """
    pool.reset(task_ids)
    trajectories = [Trajectory(episode) for episode in pool.episodes]
    recorder = TokenRecorder(chat, pool) if chat else None
    experts = {slot.index: pool.env_of(slot).text_env.expert() for slot in pool.active}
    while pool.active:
        slots = list(pool.active)
        actions = {slot.index: experts[slot.index]() for slot in slots}
        slips = {slot.index: _slip(slot, noise, rng) for slot in slots}
        texts = [
            pool.env_of(slot).response_for(slips[slot.index] or actions[slot.index])
            for slot in slots
        ]
        if recorder:
            recorder.contexts(slots)
        pool.step(texts)
        if recorder:
            for slot, text in zip(slots, texts, strict=True):
                ids = recorder.chat.content(text)
                spans = recorder.take(slot, Response(ids, [0.0] * len(ids), text))
                if spans and slips[slot.index]:
                    recorder.rows[slot.episode.episode_id][-1].steps.remove(spans)
    if recorder:
        _hand_over(trajectories, recorder.rows)
    return trajectories


def _slip(slot: Slot, noise: float, rng: np.random.Generator | None) -> str | None:
    """Now and then an action that the expert would not take."""
    if rng is None or rng.random() >= noise:
        return None
    if slot.episode.transitions and rng.random() < 0.3:
        return slot.episode.transitions[-1].action
    actions = slot.info["admissible_actions"] or []
    return str(actions[int(rng.integers(len(actions)))]) if actions else None


def _hand_over(trajectories: Sequence[Trajectory], rows: Mapping[str, list[TokenRow]]) -> None:
    for trajectory in trajectories:
        trajectory.rows = rows.get(trajectory.episode.episode_id, [])


class TokenRecorder:
    """Writes the running episodes of a pool as token rows."""

    def __init__(self, chat: ChatFormat, pool: EnvPool) -> None:
        self.chat, self.pool = chat, pool
        self.rows: dict[str, list[TokenRow]] = {}

    def contexts(self, slots: Sequence[Slot], limit: int | None = None) -> list[list[int]]:
        """The ids that each slot's next response follows; a window-mode prompt opens a new row."""
        for slot in slots:
            rows = self.rows.setdefault(slot.episode.episode_id, [])
            if slot.episode.context_mode == "window" or not rows:
                ids = self.chat.first(slot.prompt)
                rows.append(TokenRow(ids[-limit:] if limit else ids))
        return [self.rows[slot.episode.episode_id][-1].ids for slot in slots]

    def take(self, slot: Slot, response: Response) -> StepSpans | None:
        """Appends a response and what the environment answered to the slot's row."""
        row = self.rows[slot.episode.episode_id][-1]
        action = row.extend(response.ids)
        if slot.episode.error is not None:
            return None
        env = self.pool.env_of(slot)
        row.extend(self.chat.closing(response.ids))
        if slot.episode.context_mode == "window":
            shown = env.text_env.prompt_observation(slot.episode.transitions[-1].next_observation)
            observation = row.extend(self.chat.content(shown))
        else:
            observation = self._message(row, env, slot.prompt)
        row.steps.append(StepSpans(action, observation, response.logprobs))
        return row.steps[-1]

    def _message(self, row: TokenRow, env: AgentInterface, message: str) -> tuple[int, int]:
        """Appends the next message of a dialogue; returns the span of the observation inside it."""
        start, end = env.observation_span
        row.extend(self.chat.content(message[:start]))
        observation = row.extend(self.chat.content(message[start:end]))
        row.extend(self.chat.content(message[end:]))
        row.extend(self.chat.ask)
        return observation


_MOST_WASTE = 0.3
"""share of holes in the cache beyond which it is packed: a copy, against attention over nothing"""


class _Player:
    """Answers for the running episodes of a pool; keeps a dialogue's cache from turn to turn."""

    def __init__(
        self,
        policy: LocalPolicy,
        pool: EnvPool,
        settings: RolloutSettings,
        generator: torch.Generator,
    ) -> None:
        self.policy, self.pool, self.settings, self.generator = policy, pool, settings, generator
        self.recorder = TokenRecorder(policy.chat, pool)
        self._fed: dict[str, int] = {}
        self._decoder: BatchDecoder | None = None
        self._seats: list[str] = []
        tag = pool.env_of(pool.active[0]).template.action_tag if pool.active else "action"
        self._sampling = Sampling(
            settings.temperature, settings.max_response_tokens, (f"</{tag}>",)
        )

    def answer(self, slots: Sequence[Slot]) -> list[Response]:
        """A response for each slot, its context being extended first."""
        contexts = self.recorder.contexts(slots, self.settings.max_context_tokens)
        if slots[0].episode.context_mode == "window":
            decoder = self.policy.dialogue(len(slots))
            return self.policy.respond(decoder, contexts, self._sampling, self.generator)
        names = [slot.episode.episode_id for slot in slots]
        decoder = self._seat(names)
        news = [ids[self._fed.get(name, 0) :] for name, ids in zip(names, contexts, strict=True)]
        responses = self.policy.respond(decoder, news, self._sampling, self.generator)
        for name, ids, response in zip(names, contexts, responses, strict=True):
            # the last sampled token is in the row but not in the cache yet
            self._fed[name] = len(ids) + len(response.ids) - 1
        return responses

    def _seat(self, names: list[str]) -> BatchDecoder:
        """The decoder with exactly these dialogues in it, in this order."""
        if self._decoder is None:
            self._decoder = self.policy.dialogue(len(names))
        elif names != self._seats or self._decoder.waste() > _MOST_WASTE:
            place = {name: i for i, name in enumerate(self._seats)}
            self._decoder.keep([place[name] for name in names])
        self._seats = names
        return self._decoder

    def end_overlong(self) -> None:
        """Ends the dialogues that the next response could carry beyond the context limit."""
        limit = self.settings.max_context_tokens - self.settings.max_response_tokens
        for slot in list(self.pool.active):
            rows = self.recorder.rows[slot.episode.episode_id]
            if slot.episode.context_mode == "conversation" and len(rows[0].ids) > limit:
                last = slot.episode.transitions[-1]
                slot.episode.transitions[-1] = replace(last, truncated=True)
                self.pool.active.remove(slot)
