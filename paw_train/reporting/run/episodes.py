"""Episodes as conversations to read: what is new in each prompt, the answer, what came of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from paw_gym.transition import Episode, Transition
from paw_train.reporting.run.markup import Markup, escape, join, tag
from paw_train.reporting.run.run_data import RunData
from paw_train.reporting.run.scales import number_text

MAX_CHARACTERS = 6000
"""longest text shown in one place; the rest is counted"""

_BLOCK = re.compile(
    r"<(think|action|search|information|answer|tool_call|tool_response)>(.*?)</\1>", re.DOTALL
)
_SPECIAL = re.compile(r"<\|[^<>|\s]{1,40}\|>")


def episode_section(run: RunData) -> Markup:
    """The episodes of a run, those of the same task next to each other; empty without any."""
    tasks: dict[str, list[tuple[str, Episode]]] = {}
    for when, episodes in (("before", run.episodes_before), ("after", run.episodes_after)):
        for episode in episodes:
            tasks.setdefault(episode.task_id, []).append((when, episode))
    if not tasks:
        return Markup()
    return tag(
        "section",
        tag("h2", "Episodes to read"),
        tag(
            "p",
            "Episodes of the panel that the run kept, the same task before and after RL side by side. "
            "A prompt opens to what is new in it.",
            class_="muted",
        ),
        *(_task(task_id, played) for task_id, played in tasks.items()),
    )


def _task(task_id: str, played: Sequence[tuple[str, Episode]]) -> Markup:
    first = played[0][1]
    outcomes = join(
        (tag("span", f"{when}: {_outcome(e)}", class_=f"badge {_tone(e)}") for when, e in played),
        " ",
    )
    title = first.instruction or task_id
    summary = tag("summary", tag("b", _clipped(title, 300)), " ", outcomes)
    about = tag("p", tag("code", task_id), f" · {first.task_type}", class_="muted")
    columns = tag("div", *(_episode(when, e) for when, e in played), class_="pair")
    return tag("details", summary, about, columns, class_="task")


def _outcome(episode: Episode) -> str:
    steps = len(episode.transitions)
    plural = "" if steps == 1 else "s"
    if episode.error is not None:
        return f"environment failed after {steps} step{plural}"
    if episode.success:
        return f"solved in {steps} step{plural}"
    if not episode.finished:
        return f"unfinished, {steps} step{plural}"
    return f"not solved, {steps} step{plural}"


def _tone(episode: Episode) -> str:
    return "good" if episode.success and episode.error is None else "bad"


def _episode(when: str, episode: Episode) -> Markup:
    head = tag(
        "h3",
        f"{when.capitalize()} RL ",
        tag("span", _outcome(episode), class_=f"badge {_tone(episode)}"),
        tag("span", f" return {number_text(episode.total_reward)}", class_="muted"),
    )
    steps = []
    earlier = ""
    for transition in episode.transitions:
        steps.append(_step(transition, earlier))
        earlier = transition.prompt
    error = None
    if episode.error is not None:
        error = tag("pre", _clipped(episode.error), class_="error")
    return tag("article", head, _opening(episode), *steps, error, class_=f"episode {when}")


def _opening(episode: Episode) -> Markup | None:
    if not episode.transitions:
        return tag("p", "No step was taken.", class_="muted")
    observation = episode.transitions[0].observation
    if not observation:
        return None
    return tag("pre", _clipped(observation), class_="observation")


def _step(transition: Transition, earlier_prompt: str) -> Markup:
    marks = []
    if not transition.action_is_valid:
        marks.append(tag("span", "invalid", class_="badge bad"))
    if transition.reward:
        tone = "good" if transition.reward > 0 else "bad"
        marks.append(tag("span", f"reward {transition.reward:+g}", class_=f"badge {tone}"))
    if transition.terminated or transition.truncated:
        ended = "ended" if transition.terminated else "step budget used up"
        marks.append(tag("span", ended, class_="badge"))
    return tag(
        "div",
        tag(
            "p", tag("b", f"Step {transition.step + 1}"), " ", join(marks, " "), class_="step-head"
        ),
        _prompt(transition.prompt, earlier_prompt),
        tag("pre", _response(transition.response), class_="response"),
        tag("pre", _clipped(transition.next_observation), class_="observation"),
        class_="step",
    )


def _prompt(prompt: str, earlier: str) -> Markup:
    """The prompt's new lines; runs of lines that the prompt before had as well are counted."""
    lines, old = prompt.splitlines(), earlier.splitlines()
    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    parts: list[Markup] = []
    fresh = 0
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind == "equal" and end - start > 2:
            parts.append(tag("i", f"⋯ {end - start} lines as before ⋯"))
        elif kind == "equal":
            parts.append(tag("i", _clipped("\n".join(lines[start:end]))))
        elif end > start:
            parts.append(_clipped("\n".join(lines[start:end])))
            fresh += end - start
    size = f"{len(prompt)} characters"
    label = f"prompt: {size}, {fresh} of {len(lines)} lines new" if earlier else f"prompt: {size}"
    return tag("details", tag("summary", label), tag("pre", join(parts, "\n")), class_="prompt")


def _response(text: str) -> Markup:
    """The raw answer, every character of it, with its tagged blocks marked."""
    shown, hidden = text[:MAX_CHARACTERS], len(text) - MAX_CHARACTERS
    if not text:
        return tag("span", "(empty response)", class_="muted")
    parts: list[Markup] = []
    position = 0
    for match in _BLOCK.finditer(shown):
        parts.append(_plain(shown[position : match.start()]))
        name = match.group(1)
        kind = "think" if name == "think" else "act"
        parts += [
            tag("span", f"<{name}>", class_="tag"),
            tag("span", _plain(match.group(2)), class_=kind),
            tag("span", f"</{name}>", class_="tag"),
        ]
        position = match.end()
    parts.append(_plain(shown[position:]))
    return join([*parts, _more(hidden)])


def _plain(text: str) -> Markup:
    """Text with special tokens dimmed."""
    parts: list[Markup] = []
    position = 0
    for match in _SPECIAL.finditer(text):
        parts.append(escape(text[position : match.start()]))
        parts.append(tag("span", match.group(), class_="tag"))
        position = match.end()
    return join([*parts, text[position:]])


def _clipped(text: str, limit: int = MAX_CHARACTERS) -> Markup:
    return join([text[:limit], _more(len(text) - limit)])


def _more(hidden: int) -> Markup:
    if hidden <= 0:
        return Markup()
    return tag("span", f" … {hidden:,} more characters", class_="muted")
