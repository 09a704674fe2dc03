"""A question with its golden answers, whatever form it was published in."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a benchmark."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    type: str = ""
    """the benchmark's own class of questions (``bridge``, ``2-hop``), where it has one"""
    supporting: tuple[str, ...] = ()
    """titles of the passages that support the answer, where they are known"""


class QuestionError(ValueError):
    """A record is no question; the message states why."""


def parse_question(record: Mapping[str, Any], fallback_id: str) -> Question | None:
    """A question from a record of any of the published forms.

    Understood are the keys of FlashRAG's JSON lines (``question``, ``golden_answers``), NQ-open
    (``answer`` as a list), TriviaQA (``Question``, ``Answer`` with ``Aliases``), PopQA
    (``possible_answers``), HotpotQA and 2WikiMultihopQA (``_id``, ``answer``, ``supporting_facts``),
    MuSiQue (``answer_aliases``, ``paragraphs``) and Bamboogle (``Question``, ``Answer``).

    Args:
        record: the record.
        fallback_id: its id where it has none.

    Returns:
        The question; ``None`` for one that the benchmark marks as not answerable.

    Raises:
        QuestionError: there is no question, or no answer, or a field is of another form.
    """
    if not isinstance(record, Mapping):
        raise QuestionError(f"a question is an object, got {type(record).__name__}")
    try:
        return _parsed(record, fallback_id)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise QuestionError(
            f"a field is of none of the published forms ({type(error).__name__}: {error})"
        ) from error


def _parsed(record: Mapping[str, Any], fallback_id: str) -> Question | None:
    if record.get("answerable") is False:
        return None
    text = _first(record, ("question", "Question", "query"))
    if not isinstance(text, str) or not text.strip():
        raise QuestionError("there is no 'question'")
    answers = list(dict.fromkeys(a for a in _answers(record) if a.strip()))
    if not answers:
        raise QuestionError(
            "there is no answer: none of 'golden_answers', 'answer', 'Answer', 'answers', "
            "'possible_answers' holds one"
        )
    kind, question_id = (
        record.get("type"),
        _first(record, ("id", "_id", "QuestionId", "question_id", "example_id")),
    )
    return Question(
        fallback_id if question_id is None else _text(question_id, "id"),
        text.strip(),
        tuple(answers),
        "" if kind is None else _text(kind, "type"),
        tuple(_supporting(record)),
    )


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _text(value: Any, field: str) -> str:
    """A text, or a number as one would write it: tables turn 1972 into 1972.0."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and abs(value) < 2**53:  # above, not every whole number is a float
        return str(int(value) if value.is_integer() else value)
    raise QuestionError(f"{field!r} is {value!r:.60}; expected text")


def texts(record: Mapping[str, Any], field: str) -> list[str]:
    """The texts of a field: one, a list of them, or a list that was written as text; null is none.

    Raises:
        QuestionError: it holds another thing, such as lists or NaN; names the field.
    """
    value = record.get(field)
    if isinstance(value, str):
        value = _unpacked(value, field)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = _unpacked(value[0], field) if isinstance(value[0], str) else value[0]
    listed = value if isinstance(value, list) else [value]
    return [_text(one, field) for one in listed if one is not None]


def _unpacked(text: str, field: str) -> Any:
    """The list or object that a text holds (JSON, or as Python prints it), or the text itself."""
    plain = text.strip()
    if (plain[:1], plain[-1:]) not in (("[", "]"), ("{", "}")):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(plain)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        # Python reads NumPy's ['a' 'b'], which has no comma, as one text
        joins = parse is ast.literal_eval and re.search(r"""['"]\s+['"]""", plain)
        if isinstance(value, list | dict) and not joins:
            return value
    if plain[1:2] in "'\"":
        raise QuestionError(f"{field!r} is neither text nor a whole list: {plain!r:.60}")
    return text


def _answers(record: Mapping[str, Any]) -> list[str]:
    names = (
        "golden_answers", "answer", "Answer", "answers", "possible_answers", "reader_answer"
    )  # fmt: skip
    field = next((name for name in names if record.get(name) is not None), "answer")
    found = record.get(field)
    if isinstance(found, str):
        found = _unpacked(found, field)
    if isinstance(found, Mapping):  # TriviaQA; its keys begin with small letters on the hub
        answer = {key.lower(): value for key, value in found.items()}
        return [t for key in ("value", "aliases", "humananswers") for t in texts(answer, key)]
    return [*texts(record, field), *texts(record, "answer_aliases")]


def _supporting(record: Mapping[str, Any]) -> list[str]:
    if isinstance(record.get("supporting_titles"), list):
        titles = record["supporting_titles"]
    elif isinstance(record.get("supporting_facts"), Mapping):  # as the hub has HotpotQA
        titles = record["supporting_facts"].get("title", [])
    elif isinstance(record.get("supporting_facts"), list):
        titles = [fact[0] for fact in record["supporting_facts"]]
    elif isinstance(record.get("paragraphs"), list):  # MuSiQue
        titles = [p["title"] for p in record["paragraphs"] if p.get("is_supporting")]
    else:
        titles = []
    return list(dict.fromkeys(_text(title, "supporting titles") for title in titles))
