"""The questions of the seven benchmarks, and of any other file in the same form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paw_gym.core import Task, TaskSet
from paw_gym.internals.files import DAMAGED, file_version, open_text, require_data
from paw_gym.internals.naming import did_you_mean


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a benchmark."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    type: str = ""
    """the benchmark's own class of questions (``bridge``, ``2-hop``), if it has one"""
    supporting: tuple[str, ...] = ()
    """titles of the passages that support the answer, if they are known; a part of tasks' fingerprints"""


class QuestionError(ValueError):
    """A record is not a question; the message states why."""


_ANSWERS = ("golden_answers", "answer", "Answer", "answers", "possible_answers", "reader_answer")
_IDS = ("id", "_id", "QuestionId", "question_id", "example_id")


def parse_question(record: Mapping[str, Any], fallback_id: str) -> Question | None:
    """A question from a record; ``None`` if it is marked as one without an answer.

    It understands the keys of FlashRAG (``question``, ``golden_answers``) and those that the seven
    benchmarks have at their sources, such as HotpotQA's ``supporting_facts`` and MuSiQue's ``paragraphs``.
    """

    def first(keys: Sequence[str]) -> str | None:
        return next((key for key in keys if record.get(key) is not None), None)

    if not isinstance(record, Mapping):
        raise QuestionError(f"a question is an object, got {type(record).__name__}")
    if record.get("answerable") is False:
        return None
    text = record.get(first(("question", "Question", "query")) or "")
    if not isinstance(text, str) or not text.strip():
        raise QuestionError("there is no 'question'")
    field, id_field = first(_ANSWERS) or "answer", first(_IDS)
    if isinstance(found := record.get(field), Mapping):  # TriviaQA
        answer = {key.lower(): value for key, value in found.items()}
        answers = [t for key in ("value", "aliases", "humananswers") for t in texts(answer, key)]
    else:
        answers = [*texts(record, field), *texts(record, "answer_aliases")]
    answers = [answer for answer in answers if answer.strip()]
    if not answers:
        names = ", ".join(map(repr, _ANSWERS[:-1]))
        raise QuestionError(f"there is no answer: none of {names} holds one")
    return Question(
        fallback_id if id_field is None else _text(record[id_field], "id"),
        text.strip(),
        tuple(dict.fromkeys(answers)),
        "" if record.get("type") is None else _text(record["type"], "type"),
        tuple(dict.fromkeys(_text(t, "supporting titles") for t in _supporting(record))),
    )


def texts(record: Mapping[str, Any], field: str) -> list[str]:
    """The texts of a field: one, a list of them, or JSON of a list; null gives none."""
    value = record.get(field)
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    listed = value if isinstance(value, list) else [value]
    return [_text(one, field) for one in listed if one is not None]


def _text(value: Any, field: str) -> str:
    # a list that Python printed is not an answer
    if isinstance(value, str) and value.lstrip()[:2] not in ("['", '["', "{'", '{"'):
        return value
    if type(value) is int:
        return str(value)
    raise QuestionError(f"{field!r} is {value!r:.60}; expected text, or a JSON list of texts")


def _supporting(record: Mapping[str, Any]) -> list[Any]:
    if isinstance(record.get("supporting_titles"), list):
        return list(record["supporting_titles"])
    if isinstance(record.get("supporting_facts"), Mapping):  # as the hub has HotpotQA
        return list(record["supporting_facts"].get("title", []))
    if isinstance(record.get("supporting_facts"), list):
        return [fact[0] for fact in record["supporting_facts"]]
    if isinstance(record.get("paragraphs"), list):  # MuSiQue
        return [p["title"] for p in record["paragraphs"] if p.get("is_supporting")]
    return []


BENCHMARKS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
IN_DOMAIN = ("nq", "hotpotqa")
"""training data in Search-R1 and PaW; the other benchmarks are out of domain"""
DOMAINS: Mapping[str, tuple[str, ...]] = {
    "in_domain": IN_DOMAIN,
    "out_of_domain": tuple(name for name in BENCHMARKS if name not in IN_DOMAIN),
    "average": BENCHMARKS,
}
"""the means that papers report, each data set counting once"""
MIXES = {"train_mix": IN_DOMAIN, "all": BENCHMARKS}
"""names that stand for several benchmarks"""

EVAL = "eval"
"""split that stands for the one that papers report: ``test`` if its answers are public, else ``dev``"""
_TESTED = ("nq", "triviaqa", "popqa", "bamboogle")
"""benchmarks whose test answers are public"""

_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.xz")


def dataset_names(dataset: str | Sequence[str]) -> tuple[str, ...]:
    """The data sets that a name stands for: itself, ``a+b``, a list, ``train_mix`` or ``all``.

    >>> dataset_names("train_mix"), dataset_names("nq+popqa")
    (('nq', 'hotpotqa'), ('nq', 'popqa'))
    """
    if not isinstance(dataset, str):
        return tuple(dataset)
    return MIXES.get(dataset) or tuple(dataset.split("+"))


def question_file(data_dir: Path, dataset: str, split: str) -> Path:
    """The file of a split: ``<dataset>/<split>.jsonl`` or ``<dataset>_<split>.jsonl``, packed, or as Parquet.
    The split ``eval`` is each benchmark's own: ``test`` or ``dev``."""
    if not data_dir.is_dir():
        raise FileNotFoundError(
            f"There is no folder {data_dir}. data_dir is the folder that holds "
            "<dataset>/<split>.jsonl and corpus.jsonl."
        )
    chosen = [split]
    if split == EVAL:
        chosen = ["test", "dev"] if dataset in _TESTED else ["dev", "test"]
    for one in chosen:
        for start in (data_dir / dataset / one, data_dir / f"{dataset}_{one}"):
            for suffix in _SUFFIXES:
                path = start.with_name(start.name + suffix)
                if path.is_file():
                    return path
    raise FileNotFoundError(_nothing_there(data_dir, dataset, split))


def _nothing_there(data_dir: Path, dataset: str, split: str) -> str:
    folder = data_dir / dataset
    if folder.is_dir():
        files = {p.name: next(filter(p.name.endswith, _SUFFIXES), None) for p in folder.iterdir()}
        splits = sorted({name.removesuffix(s) for name, s in files.items() if s} - {"corpus"})
        reason = f"{folder} has no split {split!r}. {did_you_mean(split, splits)}"
    else:
        here = sorted(p.name for p in data_dir.iterdir() if p.is_dir())
        reason = f"{data_dir} has no data set {dataset!r}. {did_you_mean(dataset, here)}"
    return f"{reason} Expected <dataset>/<split>.jsonl, or .parquet."


def read_questions(path: Path) -> list[Question]:
    """The questions of a file of JSON lines, packed or not, or of a Parquet file (see ``parse_question``)."""
    questions = []
    try:
        for number, record in _records(path):
            question = parse_question(record, f"{path.parent.name}_{number}")
            if question is not None:
                questions.append(question)
    except QuestionError as error:
        raise QuestionError(f"{path}, record {number}: {error}.") from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise QuestionError(
            f"{path}, record {number}: a field is of none of the published forms ({error!r})."
        ) from error
    except UnicodeDecodeError as error:
        raise QuestionError(f"{path} is not text in UTF-8 ({error}): convert it.") from error
    except DAMAGED as error:
        raise QuestionError(
            str(error) if str(path) in str(error) else f"{path} is cut off or damaged ({error})."
        ) from error
    if not questions:
        raise QuestionError(f"{path} holds no question.")
    return questions


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered records, from 1."""
    if require_data(path).startswith(b"PAR1"):
        import pyarrow.parquet as pq

        batches = pq.ParquetFile(path).iter_batches()
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
        return
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip():
                    yield number, json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: not valid JSON ({error}).") from error


def benchmark_tasks(datasets: tuple[str, ...], split: str, data_dir: Path) -> TaskSet:
    """The questions of one or several data sets as tasks, typed by data set; read once per process, and again
    if a file has changed."""
    files = tuple(question_file(data_dir, dataset, split) for dataset in datasets)
    return _tasks(datasets, split, files, tuple(map(file_version, files)))


@lru_cache(maxsize=16)
def _tasks(
    datasets: tuple[str, ...], split: str, files: tuple[Path, ...], versions: tuple[str, ...]
) -> TaskSet:
    tasks = []
    for dataset, path in zip(datasets, files, strict=True):
        for question in read_questions(path):
            name = f"{dataset}/{split}/{question.id}"
            tasks.append(Task(name, question.question, dataset, question))
    return TaskSet.from_tasks(tasks, split)
