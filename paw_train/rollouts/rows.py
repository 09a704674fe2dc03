"""Transitions written as token rows, and rows truncated or extended for an update.

``append_transition`` is the one place that lays a transition out, for rollouts, expert episodes and
recorded episodes alike. ``trimmed``, ``look_ahead`` and ``with_placebo`` are for the
world-model term alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from paw_gym.internals.tool_calls import in_tags
from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.tokens import ACTION, CONTEXT, OBSERVATION, TokenRow


def append_transition(
    row: TokenRow,
    chat: ChatFormat,
    response: list[int],
    logprobs: list[float],
    observation: str,
    turn: int,
    before: str = "",
    after: str | None = None,
) -> None:
    """Appends a response and what the environment answered to a row that ends where the model answers.

    Args:
        row: is changed in place.
        response: ids, as sampled.
        logprobs: of each of them, in nats.
        observation: o_{t+1} as prompts show it.
        turn: number of the transition; -1: it is context, nothing is learned from it.
        before: what precedes the observation in the next message of a dialogue.
        after: what follows it there, before the model is asked again; ``None``: the row ends with the
            observation.
    """
    action, observed = (ACTION, OBSERVATION) if turn >= 0 else (CONTEXT, CONTEXT)
    row.append(response, action, turn, logprobs)
    row.append([*chat.closing(response), *chat.content(before)])
    row.append(chat.content(observation), observed, turn)
    if after is not None:
        row.append([*chat.content(after), *chat.ask])


def recorded_row(
    chat: ChatFormat,
    episode: Episode,
    step: int,
    show: Callable[[str], str],
    template: PromptTemplate,
    limit: int | None = None,
) -> TokenRow:
    """A transition of a record as training read it: context, response, next observation.

    The response is tokenised from its text, since records keep no ids; its log-probabilities are 0.

    Args:
        step: number of the transition.
        show: an observation as prompts show it (``TextEnv.prompt_observation``).
        template: the usual one; the episode's own prompts tell if it was played with another.
        limit: most tokens of a prompt (``RolloutSettings.max_prompt_tokens``).
    """
    episode = in_tags(episode)  # responses are recorded in tags
    transition = episode.transitions[step]
    row = TokenRow(chat.context(episode.messages(step), episode.instruction, limit))
    response = chat.content(transition.response)
    before = _before(episode, step, show, template)
    shown = show(transition.next_observation)
    append_transition(row, chat, response, [0.0] * len(response), shown, 0, before)
    return row


def _before(
    episode: Episode, step: int, show: Callable[[str], str], template: PromptTemplate
) -> str:
    """The text before the observation in the message that followed a transition."""
    if episode.context_mode == "window":
        return ""

    def usual(number: int) -> tuple[str, str]:
        """The message that follows a transition: up to the observation, and from there on."""
        shown = show(episode.transitions[number].next_observation)
        turn = (episode.instruction, shown, None, number + 1)  # records lack the admissible actions
        message, start = template.render_turn(*turn), template.turn_span(*turn)[0]
        return message[:start], message[start:]

    def prompted(number: int) -> str:
        """The text before an observation in its prompt, from the usual template or another."""
        prompt = episode.transitions[number + 1].prompt
        before, rest = usual(number)
        if prompt.endswith(rest):  # if actions, which records lack, are listed before it, not after
            return prompt.removesuffix(rest)
        shown = show(episode.transitions[number].next_observation)
        as_usual = prompt.startswith(before + shown) or shown not in prompt
        return before if as_usual else prompt[: prompt.index(shown)]

    if step + 1 < len(episode.transitions):
        return prompted(step)
    # the message after the last transition was never shown: the one before it tells the template
    ahead = template.turn.partition("{observation}")[0]
    if not step or "{admissible_actions}" in ahead or "{actions}" in ahead:
        return usual(step)[0]
    told = prompted(step - 1)
    return usual(step)[0] if told == usual(step - 1)[0] else told


def look_ahead(
    row: TokenRow, later: Sequence[TokenRow], ask: Sequence[int], weights: Sequence[float]
) -> TokenRow:
    """A transition's row, continued by the responses and observations that really followed.

    The context stays `h_t`. What is appended is context that carries world-model weights alone.

    Args:
        later: the rows of the transitions that followed, one each.
        ask: ids between an observation and the response that follows it.
        weights: of each token of the observations of ``later``.
    """
    assert row.wm_weight is not None
    longer = row.cut(len(row.ids))
    for other, weight in zip(later, weights, strict=True):
        used = [place for place, turn in enumerate(other.turn) if turn >= 0]
        if not used:
            break
        start, end = used[0], used[-1] + 1
        longer.append([*ask, *other.ids[start:end]])
        seen = [weight if role == OBSERVATION else 0.0 for role in other.role[start:end]]
        longer.wm_weight[start - end :] = seen  # type: ignore[index]
    return longer


def trimmed(row: TokenRow, keep_observations: bool = False) -> TokenRow:
    """The row up to its last token in use.

    Observations without a world-model weight become context, so that no logits are made for them, unless
    ``keep_observations``: their likelihood is measured.
    """
    weights = row.wm_weight or [0.0] * len(row.ids)
    role = list(row.role)
    for places in () if keep_observations else row.places(OBSERVATION).values():
        for place in places:
            if not weights[place]:
                role[place] = CONTEXT
    used = (t for t in reversed(range(len(role))) if role[t] != CONTEXT or weights[t])
    return replace(row, role=role).cut(next(used, len(role) - 1) + 1)


def with_placebo(rows: Sequence[TokenRow], seed: int) -> list[TokenRow]:
    """Rows with ``placebo_ids``: each observation is another transition's with as many supervised tokens.

    They say nothing about the actions before them: a gain that remains comes from regularisation or from more
    tokens, not from what observations say. Rows with equally many such tokens take their observations from
    one another in a random circle, so none keeps its own. A row without a partner keeps its own, and loses
    its weight.

    Raises:
        ValueError: actions follow an observation in a row: replacing it would change what they answer.
    """
    alike: dict[int, list[int]] = {}
    places = [[t for t, weight in enumerate(row.wm_weight or ()) if weight] for row in rows]
    for number, own in enumerate(places):
        if own and ACTION in rows[number].role[own[0] :]:
            raise ValueError(
                "world_model.placebo needs rows of one transition each, whose observation comes last: use "
                "env.mode=window."
            )
        alike.setdefault(len(own), []).append(number)
    rng = np.random.default_rng(seed)
    found = [replace(row, placebo_ids=row.ids) for row in rows]
    for count, numbers in alike.items():
        circle = rng.permutation(numbers).tolist()
        for taker, giver in zip(circle, [*circle[1:], circle[0]], strict=True):
            ids = list(rows[taker].ids)
            for there, here in zip(places[taker], places[giver], strict=True):
                ids[there] = rows[giver].ids[here]
            found[taker] = replace(found[taker], placebo_ids=ids)
            if count and len(circle) == 1:
                found[taker] = replace(found[taker], wm_weight=[0.0] * len(ids))
    return found


def transition_keys(rows: Sequence[TokenRow]) -> list[int]:
    """A number for each transition of the rows; equal numbers: equal `(h_t, a_t, o_{t+1})` in tokens."""
    keys = []
    for row in rows:
        ends = {turn: place + 1 for place, turn in enumerate(row.turn) if turn >= 0}
        actions = row.places(ACTION)
        running, done = 0, 0
        for turn, end in ends.items():
            # one pass over a dialogue
            for token in row.ids[done:end]:
                running = hash((running, token))
            keys.append(hash((running, *actions.get(turn, ()))))
            done = end
    return keys
