"""Refusals of a context for its length: how servers word them, and the limit that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_CODES = frozenset({
    "context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded",
    "request_too_large", "tokens_limit_reached",
})  # fmt: skip
"""codes and types of OpenAI and its followers, llama.cpp, Z.ai, Anthropic, GitHub"""
_OTHER_STATUS = frozenset({401, 402, 403, 404, 407})
"""statuses of refusals that are never about length, whatever their text says"""
_CONTEXT = re.compile(
    r"context.?(length|window|size|limit)|n_ctx|max_(model|seq)_len|max_num_tokens"
    r"|(range of |maximum )?input length|prompt length|token limit|too many (input |prompt )?tokens"
    r"|reduce the length|request too large"
    r"|\b(prompt|inputs?|messages|sequence|conversation)\b[^.]{0,40}(too (long|large)|超长)"
    r"|\b(prompt|inputs?|tokens?)\b[^.]{0,80}(exceed|longer than)[^.]{0,60}(max|limit|length|tokens)"
    r"|\b(inputs?|tokens)\b[^.]{0,60}must (be <=|have less than)"
)
_RATE = re.compile(r"per (minute|hour|day)|rate.?limit|quota|too many requests")
_RESPONSE = re.compile(r"maximum output for|max tokens must be|maximum tokens you requested")
"""texts on the length of responses"""

_NUMBER = r"(?<![\w.-])(\d[\d,]{2,})(?:\.0)?(?!\w)"
_COMPARED = re.compile(
    rf"\d{{3,}}(?: tokens?)?\s*>=?\s*{_NUMBER}|<=\s*{_NUMBER}|\[\d+,\s*{_NUMBER}\]"
    rf"|\d{{3,}}\s*/\s*{_NUMBER}|exceeds {_NUMBER}"
)
"""``210000 tokens > 200000``, ``must be <= 4096``, ``[1, 30720]``, ``5000/4096``"""
_WORD = (
    r"(?:context.?(?:length|window|size|limit)|n_ctx|max(?:imum)?(?!_tokens|_new|_completion)"
    r"|limit|at most|up to|less than|(?:not|cannot) exceed|only)(?![a-z])"
)
"""words of a limit"""
_AFTER = re.compile(rf"(?=(?P<word>{_WORD})(?P<gap>\D{{0,40}}?){_NUMBER})")
_BEFORE = re.compile(rf"(?={_NUMBER}(?P<gap>[\s(-]*(?:tokens?)?[\s)-]*){_WORD})")
_OF_OTHERS = re.compile(
    r"[.;]\s|too large"
    r"|(?<![a-z])(by|requested|given|received|resulted|contains?|however|but|has|have|you|sent|got"
    r"|keep|exceed(s|ed)?|current|code|status)(?![a-z])"
)
"""between a limit's word and a number, it says that the number is another one: the request's own length"""


def is_overflow(error: Exception) -> bool:
    """Whether a server refused a context for its length."""
    status = getattr(error, "status_code", None)
    if status in _OTHER_STATUS:
        return False
    if status == 413 or any(str(getattr(error, key, "")) in _CODES for key in ("code", "type")):
        return True
    text = error_text(error)
    if "request too large" in text:  # for any minute of the account: no wait would help
        return True
    if status == 429 or _RATE.search(text) or _RESPONSE.search(text):
        return False
    return bool(_CONTEXT.search(text))


def overflow_limit(error: Exception) -> int | None:
    """The context limit that such a refusal names, in tokens: of several numbers the limit's."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("n_ctx"), int):  # llama.cpp's
        return int(body["n_ctx"])
    text = error_text(error).replace("exceeds limit (2013)", "")  # the error's number, of MiniMax
    compared = _COMPARED.search(text)
    if compared is not None:
        return _int(next(group for group in compared.groups() if group))
    found = min(_beside(text), default=None)
    return None if found is None else found[1]


def _beside(text: str) -> Iterator[tuple[int, int]]:
    """(characters to the nearest word of a limit, the number) of each number that may be the limit."""
    for pattern in (_AFTER, _BEFORE):
        for match in pattern.finditer(text):
            if not _OF_OTHERS.search(match["gap"]):
                number = next(g for g in match.groups() if g and re.fullmatch(r"\d[\d,]*", g))
                yield len(match["gap"]), _int(number)


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def error_text(error: Exception) -> str:
    """What a server said in an error, in lower case, without the client's own words."""
    return str(getattr(error, "body", None) or error).lower()
