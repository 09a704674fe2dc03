"""Transitions written as token rows, and rows truncated or extended for an update.

``append_transition`` is the one place that lays a transition out, for rollouts, expert episodes and
recorded episodes alike.

``trimmed`` and ``look_ahead`` are for the world-model term alone. A transition whose next observation
is not supervised need not carry its tokens through the forward pass; one that is supervised several
steps ahead carries the actions and observations that really followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paw_gym.internals.tool_calls import in_tags
from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.tokens import Span, StepSpans, TokenRow


def append_transition(
    row: TokenRow,
    chat: ChatFormat,
    response: list[int],
    logprobs: list[float],
    observation: str,
    before: str = "",
    after: str | None = None,
) -> StepSpans:
    """Appends a response and what the environment answered to a row that ends where the model answers.

    Args:
        row: is changed in place.
        chat: the model's format.
        response: ids, as sampled.
        logprobs: of each of them, in nats.
        observation: o_{t+1} as prompts show it.
        before: what precedes it in the next message of a dialogue.
        after: what follows it there, before the model is asked again; ``None``: the row ends with the
            observation.

    Returns:
        The transition's spans, which the row has now.
    """
    action = row.extend(response)
    row.extend(chat.closing(response))
    row.extend(chat.content(before))
    step = StepSpans(action, row.extend(chat.content(observation)), logprobs)
    row.steps.append(step)
    if after is not None:
        row.extend(chat.content(after))
        row.extend(chat.ask)
    return step


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
        chat: the model's format.
        episode: the record.
        step: number of the transition.
        show: an observation as prompts show it (``TextEnv.prompt_observation``).
        template: the usual one; the episode's own prompts tell where it was played with another.
        limit: most tokens of a prompt (``RolloutSettings.max_prompt_tokens``).

    Returns:
        A row with one transition.
    """
    episode = in_tags(episode)  # responses are recorded in tags
    transition = episode.transitions[step]
    row = TokenRow(chat.context(episode.messages(step), episode.instruction, limit))
    response = chat.content(transition.response)
    before = _before(episode, step, show, template)
    shown = show(transition.next_observation)
    append_transition(row, chat, response, [0.0] * len(response), shown, before)
    return row


def _before(
    episode: Episode, step: int, show: Callable[[str], str], template: PromptTemplate
) -> str:
    """The text before the observation in the message that followed a transition."""
    if episode.context_mode == "window":
        return ""
    if step + 1 < len(episode.transitions):
        return _as_prompted(episode, step, show, template)
    # nobody was shown the message after the last transition: the one before it tells the template
    usual = _as_usual(episode, step, show, template)[0]
    ahead = template.turn.partition("{observation}")[0]
    if not step or "{admissible_actions}" in ahead or "{actions}" in ahead:
        return usual
    told = _as_prompted(episode, step - 1, show, template)
    return usual if told == _as_usual(episode, step - 1, show, template)[0] else told


def _as_prompted(
    episode: Episode, step: int, show: Callable[[str], str], template: PromptTemplate
) -> str:
    """The text before an observation in the prompt that followed it, of the usual template or another."""
    prompt = episode.transitions[step + 1].prompt
    before, rest = _as_usual(episode, step, show, template)
    if prompt.endswith(rest):  # where actions, which records lack, are listed before it, not behind
        return prompt.removesuffix(rest)
    shown = show(episode.transitions[step].next_observation)
    usual = prompt.startswith(before + shown) or shown not in prompt
    return before if usual else prompt[: prompt.index(shown)]


def _as_usual(
    episode: Episode, step: int, show: Callable[[str], str], template: PromptTemplate
) -> tuple[str, str]:
    """The message that follows a transition, in front of the observation, and from there on."""
    shown = show(episode.transitions[step].next_observation)
    turn = (episode.instruction, shown, None, step + 1)  # records lack the admissible actions
    message, start = template.render_turn(*turn), template.turn_span(*turn)[0]
    return message[:start], message[start:]


def look_ahead(
    rows: Sequence[TokenRow],
    horizon: int,
    ask: Sequence[int],
    unread: Callable[[StepSpans], bool] = lambda step: False,
) -> list[TokenRow]:
    """An episode's rows with the spans of `o_{t+2}` to `o_{t+horizon}` beside each `o_{t+1}`.

    In a conversation those tokens are in the row anyway. In window mode, where a row is one
    transition, the later responses and observations are appended to it: the context stays `h_t`.

    Args:
        rows: of one episode, in order; not changed.
        horizon: observations to supervise for each action; 1 gives the rows as they are.
        ask: ids between an observation and the response that follows it.
        unread: whether nothing is learned from what followed a step, from earlier ones either.
    """
    if horizon == 1:
        return list(rows)
    if len(rows) == 1:
        return [_within(rows[0], horizon, unread)]
    return [_appended(rows[i : i + horizon], ask, unread) for i in range(len(rows))]


def _left_out(step: StepSpans, unread: Callable[[StepSpans], bool]) -> list[Span]:
    return [step.observation] if unread(step) else step.left_out


def _within(row: TokenRow, horizon: int, unread: Callable[[StepSpans], bool]) -> TokenRow:
    observations = [step.observation for step in row.steps]
    gone = [span for step in row.steps for span in _left_out(step, unread)]
    steps = [
        replace(step, later=observations[i + 1 : i + horizon], left_out=gone)
        for i, step in enumerate(row.steps)
    ]
    return TokenRow(row.ids, steps)


def _appended(
    rows: Sequence[TokenRow], ask: Sequence[int], unread: Callable[[StepSpans], bool]
) -> TokenRow:
    """The first row, continued by what the others hold from their response on."""
    first = rows[0]
    if not first.steps:
        return first
    longer = TokenRow(list(first.ids))
    later: list[Span] = []
    gone = list(first.steps[0].left_out)
    for row in rows[1:]:
        if not row.steps:
            break  # the environment failed here
        step = row.steps[0]
        longer.extend(ask)
        shift = len(longer.ids) - step.action[0]
        longer.extend(row.ids[step.action[0] : step.observation[1]])
        later.append((step.observation[0] + shift, step.observation[1] + shift))
        gone += [(start + shift, end + shift) for start, end in _left_out(step, unread)]
    longer.steps = [replace(first.steps[0], later=later, left_out=gone)]
    return longer


def trimmed(row: TokenRow, supervised: Sequence[bool]) -> TokenRow:
    """The row without the observations that are not supervised, truncated after the last token in use.

    Args:
        row: not changed.
        supervised: for each of its steps, whether the world-model term reads what follows it.
    """
    steps = [
        step if wanted else replace(step, observation=(step.action[1],) * 2, later=[])
        for step, wanted in zip(row.steps, supervised, strict=True)
    ]
    end = max((span[1] for step in steps for span in step.spans), default=len(row.ids))
    return TokenRow(row.ids[:end], steps)


def transition_keys(rows: Sequence[TokenRow]) -> list[int]:
    """A number for each transition of the rows; equal numbers: equal `(h_t, a_t, o_{t+1})` in tokens."""
    keys = []
    for row in rows:
        running, done = 0, 0
        for step in row.steps:
            end = step.observation[1]
            # one pass over a dialogue, token by token: a branch holds what it shares in one piece
            for token in row.ids[done:end]:
                running = hash((running, token))
            keys.append(hash((running, *step.action)))
            done = end
    return keys
