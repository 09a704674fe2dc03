"""How a model's reply is read: what is thought, what is answer, where the answer ends, which tool is called.

Every client of a server and every policy in this process reads by these rules, so a reply means the same
wherever it comes from. A thought is never an instruction: no action, no stop text and no tool call
in it counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""fields of a thought that servers give apart from the content (vLLM, DeepSeek; OpenRouter; Ollama)"""
FINISHED = {
    "length": "length", "max_tokens": "length", "model_length": "length",
    "model_context_window_exceeded": "length", "max_output_tokens": "length",
    "content_filter": "content_filter", "content-filter": "content_filter", "safety": "content_filter",
    "recitation": "content_filter", "prohibited_content": "content_filter", "refusal": "content_filter",
    "tool_calls": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "error": "error",
}  # fmt: skip
"""servers' words for the ends of a reply that is cut, filtered, a call or broken; every other word, and none,
is one that the model has ended itself"""
_SPACE = re.compile(r"\s*")
_FENCE = re.compile(r"\s*```\w*\s*(.*?)\s*```\s*", re.DOTALL)
_WRITTEN_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_XML_CALL = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class MalformedAnswer(Exception):
    """A reply of status 200 that is not an answer: incomplete, or an error page of a proxy."""


class ReportedError(MalformedAnswer):
    """A reply of status 200 that says that the request has failed."""


# --- thoughts -----------------------------------------------------------------------------------------


class Thoughts(NamedTuple):
    """The thoughts in a text."""

    spans: list[tuple[int, int]]
    """[start, end) of each, in order, with its marks and the white space behind it"""
    unclosed: bool
    """the last one does not end"""


@cache
def _marks(tag: str) -> re.Pattern[str]:
    """The beginnings (group ``opens``) and ends of thoughts: tags of DeepSeek, Qwen and others; Mistral's
    ``[THINK]``; Kimi's; all channels of gpt-oss but ``final``, even without their control tokens."""
    names = rf"(?:think|thinking|thought|seed:think|{re.escape(tag)})"
    return re.compile(
        rf"(?P<opens><{names}>|\[THINK\]|◁think▷|<\|channel\|>(?!\s*final\b)[^<]*"
        r"(?:<\|constrain\|>[^<]*)?<\|message\|>|\Aanalysis(?=.*?\wassistantfinal))"
        rf"|</{names}>|\[/THINK\]|◁/think▷|(?P<all><\|channel\|>\s*final\b[^<]*<\|message\|>"
        r"|(?<=\S)assistantfinal)",
        re.DOTALL,
    )


def thoughts(
    text: str, opened: bool = False, tag: str | None = None, sampling: bool = False
) -> Thoughts:
    """Finds the thoughts of a response.

    Everything before an end without a beginning is thought: the chat template has opened it. A beginning
    without an end is part of the thought around it (``<think>I write <think>, then act.</think>``),
    unless no end follows at all: then the thought is not closed.

    Args:
        opened: the chat template ends inside a thought, in which the text then begins.
        tag: a further tag that is a thought (``PromptTemplate.think_tag``).
        sampling: the text goes on, so that the end of any thought may still come.
    """
    begun = [0] if opened else []
    edge: int | None = 0 if opened else None  # after the last beginning
    found: list[tuple[int, int]] = []
    for mark in _marks(tag or "think").finditer(text):
        if mark["opens"]:
            # a model repeats the beginning that its template wrote
            if edge is None or text[edge : mark.start()].strip():
                begun.append(mark.start())
            edge = mark.end()
            continue
        start = begun[0] if begun and mark["all"] else begun.pop() if begun else 0
        if mark["all"]:
            begun.clear()
        edge = None
        while found and found[-1][0] >= start:
            found.pop()
        found.append((start, mark.end()))
    last = found[-1][1] if found else 0
    open_from = begun if sampling else [at for at in begun if at >= last]
    if begun and begun[0] < last and not sampling:
        found = [span for span in found if span[1] <= begun[0]] + [(begun[0], last)]
    if open_from:
        found = [span for span in found if span[1] <= open_from[0]]
    spans = [(start, _SPACE.match(text, end).end()) for start, end in found]  # type: ignore[union-attr]
    if open_from:
        spans.append((open_from[0], len(text)))
    return Thoughts(spans, bool(open_from))


def answers(text: str, found: Thoughts) -> Iterator[tuple[int, int]]:
    """[start, end) of the parts of a text that are not thought."""
    begin = 0
    for start, end in [*found.spans, (len(text), len(text))]:
        if start > begin:
            yield begin, start
        begin = end


def split_thought(text: str, tag: str | None = None) -> tuple[str | None, str]:
    """(the thoughts of a response without their marks, or ``None``; the rest of it)."""
    found = thoughts(text, tag=tag)
    inside = [_marks(tag or "think").sub("", text[start:end]) for start, end in found.spans]
    rest = "".join(text[start:end] for start, end in answers(text, found))
    return ("\n".join(part.strip() for part in inside) if inside else None), rest


def stop_end(
    text: str, stops: Sequence[str], opened: bool = False, sampling: bool = False
) -> int | None:
    """The end of the first stop text outside a thought, in characters; ``None``: there is none."""
    if not any(stop in text for stop in stops):
        return None
    found = thoughts(text, opened, sampling=sampling)
    for start, end in answers(text, found):
        ends = [at + len(s) for s in stops if (at := text.find(s, start, end)) >= 0]
        if ends:
            return min(ends)
    return None


def truncate(text: str, stops: Sequence[str], opened: bool = False) -> str:
    """A response up to and including its stop text, as environments read it; the missing mark is added if it
    does not leave the thought that its chat template opened."""
    end = stop_end(text, stops, opened)
    inside = opened and end is None and thoughts(text, opened).unclosed
    return f"<think>{text}" if inside and not thoughts(text).unclosed else text[:end]


# --- replies of servers -------------------------------------------------------------------------------


def read_chat(reply: Any) -> dict[str, Any]:
    """The answer in a reply of ``/chat/completions``: see ``read_message``, and its ``finish_reason``."""
    choice, reason = read_choice(reply)
    return {**read_message(choice), "finish_reason": reason}


def read_choice(reply: Any) -> tuple[Mapping[str, Any], str | None]:
    """The first choice of a reply, and why it ended.

    Returns:
        (choice, one of ``length``, ``content_filter``, ``tool_calls``, ``stop``; ``None``: it does not say)
    """
    choice = None
    if isinstance(reply, Mapping):
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        error = choice.get("error") if isinstance(choice, Mapping) else reply.get("error")
        if error:
            raise ReportedError(f"the server reports in its reply: {str(error)[:200]}")
    if not isinstance(choice, Mapping):
        raise MalformedAnswer(f"there is no answer in the reply {str(reply)[:200]!r}")
    reason = choice.get("finish_reason")
    if reason is None:
        return choice, None
    named = FINISHED.get(str(reason).lower(), "stop")
    if named == "error":
        raise ReportedError(f"the server ended its reply with finish_reason {reason!r}")
    return choice, named


def read_message(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a chat's choice.

    Returns:
        ``text``, and if there are any, ``reasoning`` (with ``reasoning_field``, if it had one),
        ``refusal`` and ``tool_calls`` (``name``, ``arguments`` as JSON text, ``id``); ``unclosed`` if a
        longer text could show that the reasoning goes on. A thought in tags ``<think>...</think>`` stays in
        the text: prompts ask for it.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise MalformedAnswer(f"there is no message in the choice {str(choice)[:200]!r}")
    text, thought = _content(message.get("content"))
    field = next((name for name in THOUGHT_FIELDS if message.get(name)), None)
    told = [] if field is None else ["".join(_content(message[field]))]
    told += [thought] if thought else []
    unclosed = False
    first = next(iter(thoughts(text).spans), None)
    begins = first is not None and not text[: first[0]].strip()
    if first is not None and begins and not text.lstrip().startswith("<think>"):
        # the template opened it, or it is in marks that no prompt asks for
        inside, _ = split_thought(text[: first[1]])
        unclosed = thoughts(text, sampling=True).unclosed
        told, text = [*told, inside or ""], text[first[1] :]
    found: dict[str, Any] = {"text": text} | ({"unclosed": True} if unclosed else {})
    if told:
        found["reasoning"] = "\n".join(told)
    if field is not None:
        found["reasoning_field"] = field
    if message.get("refusal"):
        found["refusal"] = sendable(message["refusal"])
    calls = list(message.get("tool_calls") or [])
    if message.get("function_call"):  # before there were tools
        calls.append({"function": message["function_call"]})
    if calls:
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _content(content: Any) -> tuple[str, str]:
    """(text, thought) of a message's content: a text, or a list of parts."""
    if content is None or isinstance(content, str):
        return sendable(content), ""
    text, thought = "", ""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            text += sendable(part)
            continue
        if not isinstance(part, Mapping):
            raise MalformedAnswer(f"its content is no text but {str(content)[:100]!r}")
        kind = part.get("type", "text")
        if kind in ("thinking", "reasoning"):
            thought += "".join(_content(part.get("thinking", part.get("text"))))
        elif kind in ("text", "output_text"):
            text += sendable(part.get("text"))
    return text, thought


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise MalformedAnswer(f"a tool call is {str(call)[:100]!r}")
    found = {
        "name": sendable(function.get("name")),
        "arguments": _as_text(function.get("arguments")),
    }
    return found | ({"id": call["id"]} if isinstance(call.get("id"), str) else {})


def _as_text(arguments: Any) -> str:
    return sendable(arguments) if isinstance(arguments, str | None) else json.dumps(arguments)


def sendable(text: Any) -> str:
    """Text without lone surrogates: JSON may carry them, but they could not be sent back."""
    return str(text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- tool calls ---------------------------------------------------------------------------------------


def written_calls(text: str) -> list[dict[str, Any]]:
    """Tool calls that a model wrote into its answer (``<tool_call>``, with JSON or XML in it)."""
    calls = []
    for written in _WRITTEN_CALL.findall(split_thought(text)[1]):
        xml = _XML_CALL.search(written)
        if xml is not None:
            arguments: Any = dict(_XML_ARGUMENT.findall(xml[2]))
            calls.append({"name": xml[1], "arguments": json.dumps(arguments)})
            continue
        call = _json(written)
        call = call if isinstance(call, Mapping) else {}
        arguments = call.get("arguments", call.get("parameters"))
        calls.append({"name": str(call.get("name", "")), "arguments": _as_text(arguments)})
    return calls


def tool_name(name: str) -> str:
    """The name of a called tool without what servers put around it (``functions.act:0``)."""
    return name.rpartition(".")[2].partition(":")[0].strip()


def tool_arguments(arguments: str) -> Any:
    """The arguments of a tool call: a mapping, or the text of a value without a name; ``None``: unreadable.
    They are JSON text, perhaps in a fence, with line breaks in its strings, or JSON in JSON."""
    fenced = _FENCE.fullmatch(arguments)
    value: Any = fenced[1] if fenced else arguments
    for _ in range(3):
        if not isinstance(value, str):
            break
        read = _json(value)
        if read is None:
            return None if value.strip()[:1] in ("", "{", "[", '"') else value
        value = read
    return value


def tool_argument(arguments: str, name: str) -> str | None:
    """The value of a tool's only argument, or ``None`` if it is unclear."""
    value = tool_arguments(arguments)
    if isinstance(value, Mapping):
        value = value.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _json(text: str) -> Any:
    """The value of a JSON text with control characters in strings; ``None``: it is not JSON."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


BLANK = "[...]"
"""stands in an admissible action, such as WebShop's ``search[...]``, for words of the agent's own"""
_BRACKETS = re.compile(r"[\[\]\s]+")


def fill_blank(action: str, words: str) -> str:
    """An action with its blank filled; line breaks and brackets of the words become spaces.

    >>> fill_blank("search[...]", "a red [cotton] shirt")
    'search[a red cotton shirt]'
    """
    return action.replace(BLANK, f"[{_BRACKETS.sub(' ', words).strip()}]")


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A response's action, or why there is none."""

    action: str
    """the tagged action, stripped; empty when there is none"""
    problem: str | None = None
    """why the response is malformed, or ``None``"""


def parse_response(
    response: str,
    action_tag: str = "action",
    think_tag: str | None = "think",
    own_tags: Sequence[str] = (),
) -> ParsedResponse:
    """Extracts the action from ``<think>...</think><action>...</action>``.

    The first complete action block outside all thoughts counts (see ``thoughts``); an
    empty one is no action. A response without the reasoning block still has an action, and a problem; in
    a thought that does not end there is no action.

    Args:
        think_tag: tag that must be there as well, or ``None`` if the template asks for none.
        own_tags: tags that belong to the environment's actions (``search``, ``answer``). If there are
            any, the action is the first complete block of one of them, its tags included, and
            ``action_tag`` plays no part.
    """
    found = thoughts(response, tag=think_tag)
    tags = own_tags or (action_tag,)
    parts = (_first_block(response, *part, tags) for part in answers(response, found))
    block = next((block for block in parts if block is not None), None)
    if block is None:
        if found.unclosed:
            return ParsedResponse("", "the thought does not end")
        names = " or ".join(f"<{tag}>...</{tag}>" for tag in tags)
        return ParsedResponse("", f"no {names} block")
    opened, inside, tag = block
    problem = None
    if think_tag is not None and not any(end <= opened for _, end in found.spans):
        problem = f"no <{think_tag}>...</{think_tag}> block"
    if not inside:
        problem = f"the <{tag}> block is empty"
    return ParsedResponse(f"<{tag}>{inside}</{tag}>" if own_tags else inside, problem)


def _first_block(
    text: str, start: int, end: int, tags: Sequence[str]
) -> tuple[int, str, str] | None:
    """The first complete block of a part of a text: where it begins, what is in it, its tag."""
    blocks = []
    for tag in tags:
        opened = text.find(f"<{tag}>", start, end)
        closed = text.find(f"</{tag}>", opened, end) if opened >= 0 else -1
        if closed >= 0:
            blocks.append((opened, text[opened + len(tag) + 2 : closed].strip(), tag))
    return min(blocks, default=None)
