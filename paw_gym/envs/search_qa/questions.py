"""A question with its golden answers, whatever form it was published in."""

from __future__ import annotations

import json
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
    answers = list(dict.fromkeys(a for a in map(str, _answers(record)) if a.strip()))
    if not answers:
        raise QuestionError(
            "there is no answer: none of 'golden_answers', 'answer', 'Answer', 'answers', "
            "'possible_answers' holds one"
        )
    question_id = _first(record, ("id", "_id", "QuestionId", "example_id"))
    return Question(
        str(fallback_id if question_id is None else question_id),
        text.strip(),
        tuple(answers),
        str(record.get("type") or ""),
        tuple(_supporting(record)),
    )


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _answers(record: Mapping[str, Any]) -> list[Any]:
    found = _first(
        record,
        ("golden_answers", "answer", "Answer", "answers", "possible_answers", "reader_answer"),
    )
    if isinstance(found, Mapping):  # TriviaQA
        return _of_trivia(found)
    if isinstance(found, str) and found.lstrip().startswith("[") and "possible_answers" in record:
        try:
            found = json.loads(found)
        except json.JSONDecodeError as error:
            raise QuestionError(f"'possible_answers' is no JSON list ({error})") from error
    listed = [] if found is None else list(found) if isinstance(found, list | tuple) else [found]
    aliases = record.get("answer_aliases")
    return [*listed, *(aliases if isinstance(aliases, list) else [])]


def _of_trivia(answer: Mapping[str, Any]) -> list[Any]:
    aliases, human = answer.get("Aliases") or [], answer.get("HumanAnswers") or []
    return [answer.get("Value") or "", *aliases, *human]


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
    return list(dict.fromkeys(map(str, titles)))
