"""Policy x pool -> episodes, as records to read and as token rows to learn from."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from paw_gym.pool import EnvPool, Slot
from paw_gym.transition import Episode
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Policy, Request, Response, response_seed
from paw_train.rollouts.rows import append_transition
from paw_train.rollouts.tokens import ACTION, TokenRow
from paw_train.settings.rollout import RolloutSettings

if TYPE_CHECKING:  # endpoints are evaluated where torch is not installed
    import torch

_FEWEST_SHARED = 16
"""running episodes that processes share"""
_AGAIN = 0.6
"""probability that a demonstrator's slip is followed by another: errors come in streaks"""


@dataclass(slots=True)
class Trajectory:
    """One episode with its token rows."""

    episode: Episode
    rows: list[TokenRow] = field(default_factory=list)
    offered: list[Sequence[str] | None] = field(default_factory=list)
    """the actions that the environment listed as admissible before each response, if it lists any"""
    environment: str = ""
    """the name of its environment, in a run with several"""


Progress = Callable[[int, int], None]


def rollout(
    policy: Policy,
    pool: EnvPool,
    settings: RolloutSettings,
    generator: torch.Generator | int,
    task_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
    keep_tokens: bool = True,
) -> list[Trajectory]:
    """Runs one batch of episodes until each of them ends.

    Each response has a seed of its own, made from one number of the generator, the episode's name
    and the turn. So equal seeds give equal episodes, and an episode depends on neither its
    neighbours nor their number (up to the rounding of the model's arithmetic in other batch shapes).

    Args:
        pool: the environments; its agent interface decides the context mode.
        generator: CPU generator, from which one seed is sampled; or that seed.
        task_ids: one task per group; ``None``: the pool samples them.
        progress: called with (running, all) episodes after each step.
        keep_tokens: whether rows are wanted (training) or not (evaluation).

    Returns:
        A trajectory for each episode, in the pool's order; failed ones have ``episode.error``.

    Raises:
        ValueError: rows are wanted, but the policy gives none, or samples a truncated distribution.
    """
    if keep_tokens:
        if not policy.trainable:
            raise ValueError(
                f"{type(policy).__name__} gives text without token ids and log-probabilities, so it can "
                "be evaluated but not trained. Train a model that runs here (model.path=FOLDER) and "
                "evaluate others with `paw eval`."
            )
        require_whole_distribution(settings)
    seed = _sampling_seed(generator)
    pool.reset(task_ids)
    shares = _shares(policy, pool)
    if len(shares) <= 1:
        return _play(policy, pool, settings, seed, progress, keep_tokens)
    from paw_train.forks import side_by_side

    def shown(running: int, whole: int) -> None:
        if progress:
            progress(min(whole, running * len(shares)), whole)

    def play(share: list[Slot]) -> list[Trajectory]:
        pool.active = list(share)
        found = _play(policy, pool, settings, seed, shown, keep_tokens)
        return [found[slot.index] for slot in share]

    trajectories = [Trajectory(episode) for episode in pool.episodes]
    played = side_by_side([partial(play, share) for share in shares])
    for share, found in zip(shares, played, strict=True):
        for slot, trajectory in zip(share, found, strict=True):
            trajectories[slot.index] = trajectory
            pool.episodes[slot.index] = trajectory.episode
    return trajectories


def _shares(policy: Policy, pool: EnvPool) -> list[list[Slot]]:
    """The running episodes, group by group, for each process that plays some of them."""
    slots = pool.active
    if len(slots) < _FEWEST_SHARED or not pool.env_of(slots[0]).text_env.forkable:
        return [slots]
    count = getattr(policy, "processes", 1)
    shares = [[slot for slot in slots if slot.group % count == n] for n in range(count)]
    return [share for share in shares if share]


def _play(
    policy: Policy,
    pool: EnvPool,
    settings: RolloutSettings,
    seed: int,
    progress: Progress | None,
    keep_tokens: bool,
) -> list[Trajectory]:
    """Goes on with the running episodes until each of them ends; gives all of the pool's."""
    trajectories = [Trajectory(episode) for episode in pool.episodes]
    if not pool.active:
        return trajectories
    recorder = TokenRecorder(policy.chat, pool) if policy.chat else None
    first = pool.env_of(pool.active[0])
    sampling = settings.sampling(first.template.closing_tags)
    session = policy.session(sampling, growing=first.mode == "conversation")
    while pool.active:
        if recorder:
            recorder.open(settings.max_prompt_tokens)
        if not pool.active:
            break
        for slot in pool.active:
            trajectories[slot.index].offered.append(slot.info["admissible_actions"])
        requests = _requests(pool.active, recorder, seed)
        answered = _without_failed(pool, session.respond(requests))
        pool.step([response.text for _, response in answered])
        if recorder:
            for slot, response in answered:
                recorder.take(slot, response)
            _end_overlong(pool, recorder, settings)
        if progress:
            progress(len(pool.active), len(trajectories))
    if keep_tokens and recorder:
        _hand_over(trajectories, recorder.rows)
    return trajectories


def sampled_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Tokens of all responses."""
    return sum(row.role.count(ACTION) for t in trajectories for row in t.rows)


def _sampling_seed(generator: torch.Generator | int) -> int:
    """The seed of a rollout: the number given, or one that a CPU generator samples."""
    if isinstance(generator, int):
        return generator
    import torch

    return int(torch.randint(2**62, (), generator=generator))


def require_whole_distribution(settings: RolloutSettings) -> None:
    """Raises ``ValueError`` for sampling that training cannot account for."""
    if settings.sampling(()).truncated:
        raise ValueError(
            f"rollout.top_p={settings.top_p}, top_k={settings.top_k}: training needs samples of the policy's "
            "whole distribution, or its importance ratios are wrong. Leave them at 1 and 0."
        )


def _requests(slots: Sequence[Slot], recorder: TokenRecorder | None, base: int) -> list[Request]:
    """The requests of the running episodes."""
    requests = []
    for slot in slots:
        ids = recorder.context(slot) if recorder else None
        name, turn = slot.episode.episode_id, len(slot.episode.transitions)
        growing = slot.episode.context_mode == "conversation"
        messages = slot.info["messages"] if growing else [{"role": "user", "content": slot.prompt}]
        requests.append(Request(name, response_seed(base, name, turn), messages, ids))
    return requests


def _without_failed(pool: EnvPool, responses: Sequence[Response]) -> list[tuple[Slot, Response]]:
    """The running episodes with their responses; one without a response fails and leaves the pool."""
    answered = []
    for slot, response in zip(list(pool.active), responses, strict=True):
        if response.error is None:
            answered.append((slot, response))
        else:
            pool.fail(slot, response.error)
    return answered


def _end_overlong(pool: EnvPool, recorder: TokenRecorder, settings: RolloutSettings) -> None:
    """Ends the dialogues that the next response could carry beyond the context limit."""
    for slot in list(pool.active):
        length = len(recorder.context(slot))
        growing = slot.episode.context_mode == "conversation"
        if growing and length > settings.max_prompt_tokens:
            pool.truncate(slot, context_full=True)


def demonstrations(
    pool: EnvPool,
    chat: ChatFormat | None,
    task_ids: Sequence[str],
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
    slips: str = "random",
    each_step: Callable[[Slot], None] | None = None,
) -> list[Trajectory]:
    """Episodes of the environments' own expert.

    Args:
        chat: writes token rows; ``None``: records only.
        noise: share of steps at which something else is done instead (a random admissible action,
            or the last one again). The expert then shows how to recover; the perturbed action itself
            is not an example, and is context in its row.
        slips: ``random``, as above; ``misplaced``, half of those that do not repeat the last action are what
            another episode's expert does at that moment, mostly refused here; ``imitated``, the same, in
            streaks, and they are examples as well.
        each_step: called with each running episode before each of its actions.
    """
    pool.reset(task_ids)
    trajectories = [Trajectory(episode) for episode in pool.episodes]
    recorder = TokenRecorder(chat, pool) if chat else None
    experts = {slot.index: pool.env_of(slot).text_env.expert() for slot in pool.active}
    imitated, perturbed = slips == "imitated", dict[int, str | None]()
    again = max(noise, _AGAIN) if imitated else noise  # after a slip; `first` keeps the share
    first = noise if again == noise else noise * (1 - again) / (1 - noise)
    while pool.active:
        actions = _expert_actions(pool, experts)
        slots = list(pool.active)
        if not slots:
            break
        for slot in slots if each_step else ():
            each_step(slot)  # type: ignore[misc]
        foreign = [] if slips == "random" else list(actions.values())
        perturbed = {
            s.index: _perturbed_action(
                pool, s, again if perturbed.get(s.index) else first, rng, foreign
            )
            for s in slots
        }
        texts = [
            pool.env_of(slot).response_for(perturbed[slot.index] or actions[slot.index])
            for slot in slots
        ]
        if recorder:
            recorder.open()
        pool.step(texts)
        if recorder:
            for slot, text in zip(slots, texts, strict=True):
                ids = recorder.chat.content(text)
                response = Response(ids, [0.0] * len(ids), text)
                recorder.take(slot, response, learned=imitated or not perturbed[slot.index])
    if recorder:
        _hand_over(trajectories, recorder.rows)
    return trajectories


def _expert_actions(pool: EnvPool, experts: Mapping[int, Callable[[], str]]) -> dict[int, str]:
    """The experts' next actions; an episode whose expert has none fails and leaves the pool."""
    actions: dict[int, str] = {}
    for slot in list(pool.active):
        try:
            actions[slot.index] = experts[slot.index]()
        except StopIteration:
            pool.fail(slot, "The expert has no further action, and the episode is not over.")
        except Exception:  # whatever an expert raises fails its own episode only
            pool.fail(slot, traceback.format_exc())
    return actions


def _perturbed_action(
    pool: EnvPool,
    slot: Slot,
    probability: float,
    rng: np.random.Generator | None,
    foreign: Sequence[str],
) -> str | None:
    """With this probability, an action in place of the expert's."""
    if rng is None or rng.random() >= probability:
        return None
    if slot.episode.transitions and rng.random() < 0.3:
        return slot.episode.transitions[-1].action
    if foreign and rng.random() < 0.5:
        return foreign[int(rng.integers(len(foreign)))]
    actions = pool.env_of(slot).text_env.list_actions() or []
    return str(actions[int(rng.integers(len(actions)))]) if actions else None


def _hand_over(trajectories: Sequence[Trajectory], rows: Mapping[str, list[TokenRow]]) -> None:
    for trajectory in trajectories:
        trajectory.rows = rows.get(trajectory.episode.episode_id, [])


class TokenRecorder:
    """Writes the running episodes of a pool as token rows."""

    def __init__(self, chat: ChatFormat, pool: EnvPool) -> None:
        self.chat, self.pool = chat, pool
        self.rows: dict[str, list[TokenRow]] = {}

    def open(self, limit: int | None = None) -> None:
        """Opens the rows of the running episodes' next responses: one per window-mode prompt.

        An episode whose task alone exceeds ``limit`` (tokens of a prompt) fails and leaves the pool.
        """
        for slot in list(self.pool.active):
            rows = self.rows.setdefault(slot.episode.episode_id, [])
            if slot.episode.context_mode == "conversation" and rows:
                continue
            task = slot.episode.instruction
            try:
                ids, truncated = self.chat.first_within(slot.prompt, task, limit)
            except ValueError as error:
                self.pool.fail(slot, str(error))
                continue
            rows.append(TokenRow(ids, prompt_tokens_cut=truncated))

    def context(self, slot: Slot) -> list[int]:
        """The ids that the slot's next response follows."""
        return self.rows[slot.episode.episode_id][-1].ids

    def take(self, slot: Slot, response: Response, learned: bool = True) -> None:
        """Appends a response and what the environment answered to the slot's row.

        It is an action to learn from, or if not ``learned``, context.
        """
        episode, env = slot.episode, self.pool.env_of(slot)
        row = self.rows[episode.episode_id][-1]
        if episode.error is not None:
            row.append(response.ids)
            return
        turn = len(episode.transitions) - 1 if learned else -1
        sampled = (row, self.chat, response.ids, response.logprobs)
        if episode.context_mode == "window":
            shown = env.text_env.prompt_observation(episode.transitions[-1].next_observation)
            append_transition(*sampled, shown, turn)
            return
        message, (start, end) = slot.prompt, env.observation_span
        append_transition(
            *sampled, message[start:end], turn, before=message[:start], after=message[end:]
        )
