"""The questions of the seven benchmarks, and of any other file in the same forms."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, Any

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


def parse_question(record: Mapping[str, Any], fallback_id: str) -> Question | None:
    """A question from a record of any of the published forms.

    It understands the keys of FlashRAG's JSON lines (``question``, ``golden_answers``), NQ-open
    (``answer`` as a list), TriviaQA (``Question``, ``Answer`` with ``Aliases``), PopQA
    (``possible_answers``), HotpotQA and 2WikiMultihopQA (``_id``, ``answer``, ``supporting_facts``),
    MuSiQue (``answer_aliases``, ``paragraphs``) and Bamboogle (``Question``, ``Answer``).
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
    """A text, or a number as people write it: tables turn 1972 into 1972.0."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and abs(value) < 2**53:  # above, not every whole number is a float
        return str(int(value) if value.is_integer() else value)
    raise QuestionError(f"{field!r} is {value!r:.60}; expected text")


def texts(record: Mapping[str, Any], field: str) -> list[str]:
    """The texts of a field: one, a list of them, or a list that was written as text; null gives none."""
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

_ALIASES = "id_aliases.json"
"""beside the questions of 2WikiMultihopQA: other names of their answers"""
_PACKINGS = ("", ".gz", ".zst", ".xz")
_SUFFIXES = (".parquet", *(s + p for s in (".jsonl", ".json", ".tsv", ".csv") for p in _PACKINGS))
_PUBLISHED = {
    "nq": ("NQ-open.{split}.jsonl", "nq-{split}.qa.csv", "nq-{split}.csv"),
    "triviaqa": (
        "wikipedia-{split}.json",
        "unfiltered-web-{split}.json",
        "web-{split}.json",
        "trivia-{split}.qa.csv",
    ),
    "popqa": ("popQA.tsv", "PopQA.tsv"),
    "hotpotqa": (
        "hotpot_{split}_distractor_v1.json",
        "hotpot_{split}_fullwiki_v1.json",
        "hotpot_{split}_v1.1.json",
    ),
    "musique": ("musique_ans_v1.0_{split}.jsonl",),
    "bamboogle": ("Bamboogle Prerelease - Sheet1.csv", "bamboogle.csv"),
}
"""names that the sources give their files"""


def dataset_names(dataset: str | Sequence[str]) -> tuple[str, ...]:
    """The data sets that a name stands for: itself, ``a+b``, a list, ``train_mix`` or ``all``.

    >>> dataset_names("train_mix"), dataset_names("nq+popqa")
    (('nq', 'hotpotqa'), ('nq', 'popqa'))
    """
    if not isinstance(dataset, str):
        return tuple(dataset)
    return MIXES.get(dataset) or tuple(dataset.split("+"))


def question_file(data_dir: Path, dataset: str, split: str) -> Path:
    """The file of a split: ``<dataset>/<split>.jsonl``, ``<dataset>_<split>.jsonl``, or as published.

    The split ``eval`` is each benchmark's own: ``test`` or ``dev``.
    """
    if not data_dir.is_dir():
        raise FileNotFoundError(
            f"There is no folder {data_dir}. data_dir is the folder that holds "
            "<dataset>/<split>.jsonl and corpus.jsonl."
        )
    chosen = [split]
    if split == EVAL:
        chosen = ["test", "dev"] if dataset in _TESTED else ["dev", "test"]
    for one in chosen:
        for path in _places(data_dir, dataset, one):
            if path.is_file():
                return path
    raise FileNotFoundError(_nothing_there(data_dir, dataset, split))


def _places(data_dir: Path, dataset: str, split: str) -> list[Path]:
    """The places of a split's file, the likeliest first."""
    folder = data_dir / dataset
    named = [folder / f"{split}{suffix}" for suffix in _SUFFIXES]
    named += [data_dir / f"{dataset}_{split}{suffix}" for suffix in _SUFFIXES]
    for form in _PUBLISHED.get(dataset, ()):
        for packing in _PACKINGS:
            name = form.format(split=split) + packing
            named += [folder / name, data_dir / name]
    return named


def _nothing_there(data_dir: Path, dataset: str, split: str) -> str:
    folder = data_dir / dataset
    if folder.is_dir():
        files = {p.name: next(filter(p.name.endswith, _SUFFIXES), None) for p in folder.iterdir()}
        splits = sorted({name.removesuffix(s) for name, s in files.items() if s} - {"corpus"})
        return f"{folder} has no split {split!r}. {did_you_mean(split, splits)}"
    here = sorted(p.name for p in data_dir.iterdir() if p.is_dir())
    return (
        f"{data_dir} has no data set {dataset!r}. {did_you_mean(dataset, here)} "
        "Expected <dataset>/<split>.jsonl, or the file as its source publishes it."
    )


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in any published form (see ``parse_question``)."""
    try:
        return _questions_in(path)
    except QuestionError:
        raise
    except csv.Error as error:
        raise QuestionError(f"{path} cannot be read as a table ({error}).") from error
    except UnicodeDecodeError as error:
        raise QuestionError(f"{path} is not text in UTF-8 ({error}): convert it.") from error
    except DAMAGED as error:
        raise QuestionError(
            str(error) if str(path) in str(error) else f"{path} is cut off or damaged ({error})."
        ) from error


def _questions_in(path: Path) -> list[Question]:
    aliases = _wiki_aliases(path.with_name(_ALIASES))
    questions = []
    for number, record in _records(path):
        try:
            question = parse_question(record, f"{path.parent.name}_{number}")
        except QuestionError as error:
            raise QuestionError(f"{path}, record {number}: {error}.") from error
        if question is not None:
            more = aliases.get(str(record.get("answer_id")), ())
            answers = tuple(dict.fromkeys((*question.golden_answers, *more)))
            questions.append(replace(question, golden_answers=answers))
    if not questions:
        raise QuestionError(f"{path} holds no question.")
    return questions


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Numbered records; lines count from 1."""
    if require_data(path).startswith(b"PAR1"):
        yield from enumerate(_rows(path), start=1)
        return
    with open_text(path) as file:
        name = path.name.lower()
        for packing in _PACKINGS[1:]:
            name = name.removesuffix(packing)
        if name.endswith(".jsonl"):
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _json_value(line, path, number)
        elif name.endswith(".json"):
            data = _json_value(file.read(), path, 1, whole=True)
            listed = data.get("Data", data.get("data")) if isinstance(data, Mapping) else data
            if not isinstance(listed, list):
                raise QuestionError(f"{path} holds neither a list nor an object with 'Data'.")
            yield from enumerate(listed, start=1)
        else:
            yield from _table(file, path)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _json_value(text: str, path: Path, number: int, whole: bool = False) -> Any:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = str(path) if whole else f"{path}, line {number}"
        raise QuestionError(f"{where}: not valid JSON ({error}).") from error
    if not whole and not isinstance(value, Mapping):
        raise QuestionError(f"{path}, line {number}: expected an object.")
    return value


def _table(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    first = file.readline()
    rows = csv.reader(chain([first], file), delimiter="\t" if "\t" in first else ",")
    header = next(rows, [])
    if {name.lower() for name in header} & {"question"}:
        for number, row in enumerate(rows, start=2):
            if not _is_blank(row):
                yield number, dict(zip(header, row, strict=False))
        return
    for number, row in enumerate([header, *rows], start=1):  # DPR: question, list of answers
        if _is_blank(row):
            continue
        if len(row) != 2 or not row[1].startswith("["):
            raise QuestionError(
                f"{path}, line {number}: expected a header with 'question', or a question and a "
                "list of answers."
            )
        yield number, {"question": row[0], "golden_answers": row[1]}


def _is_blank(row: Sequence[str]) -> bool:
    """True if a row is an empty line, or one of empty cells, as spreadsheets leave at the end."""
    return not any(cell.strip() for cell in row)


def _wiki_aliases(path: Path) -> Mapping[str, tuple[str, ...]]:
    """2WikiMultihopQA keeps other names of its answers in a file of their own."""
    if not path.is_file():
        return {}
    found = {}
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                entry = _json_value(line, path, number)
                try:
                    names = [name for key in ("aliases", "demonyms") for name in texts(entry, key)]
                except QuestionError as error:
                    raise QuestionError(f"{path}, line {number}: {error}.") from error
                found[str(entry.get("Q_id"))] = tuple(names)
    return found


def benchmark_tasks(datasets: tuple[str, ...], split: str, data_dir: Path) -> TaskSet:
    """The questions of one or several data sets as tasks; the type of a task is its data set.

    They are read once per process, and again if a file has changed.
    """
    files = tuple(question_file(data_dir, dataset, split) for dataset in datasets)
    read = [*files, *(path.with_name(_ALIASES) for path in files)]
    versions = tuple(file_version(path) for path in read if path.is_file())
    return _tasks(datasets, split, files, versions)


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
