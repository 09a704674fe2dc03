from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from paw_gym.envs.search_qa.questions import (
    BENCHMARKS,
    QuestionError,
    benchmark_tasks,
    dataset_names,
    question_file,
    read_questions,
)
from paw_gym.registration import make_text_env

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Makes a file with its folder."""

    def written(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    return written


# a record, and the id, answers and supporting titles that it holds
PUBLISHED = {
    "nq": (
        {"question": "when was the fair", "answer": ["1904", "in 1904"]},
        ("nq_1", ("1904", "in 1904"), ()),
    ),
    "triviaqa": (
        {
            "QuestionId": "qw_1",
            "Question": "?",
            "Answer": {"Value": "Sel", "Aliases": ["Sel (town)"]},
        },
        ("qw_1", ("Sel", "Sel (town)"), ()),
    ),
    "popqa": (
        {"id": 42, "subj": "Sel", "question": "Who?", "possible_answers": '["Ann", "Ann Lee"]'},
        ("42", ("Ann", "Ann Lee"), ()),
    ),
    "hotpotqa": (
        {"_id": "5a8b", "question": "Were both?", "answer": "yes", "type": "comparison"}
        | {"supporting_facts": [["A", 0], ["B", 1], ["A", 2]], "context": [["A", ["x"]]]},
        ("5a8b", ("yes",), ("A", "B")),
    ),
    "musique": (
        {"id": "2hop__1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Ann Lee"]}
        | {"paragraphs": [{"title": "A", "is_supporting": True}, {"title": "B"}]},
        ("2hop__1", ("Ann", "Ann Lee"), ("A",)),
    ),
    "bamboogle": ({"Question": "Who, then?", "Answer": "Ann"}, ("bamboogle_1", ("Ann",), ())),
}


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_the_keys_of_the_sources(tmp_path: Path, write: Write, dataset: str) -> None:
    record, expected = PUBLISHED[dataset]
    unanswerable = {"id": "2", "question": "?", "answer": "x", "answerable": False}
    write(f"{dataset}/dev.jsonl", f"{json.dumps(record)}\n\n{json.dumps(unanswerable)}\n")
    [question] = read_questions(question_file(tmp_path, dataset, "dev"))
    assert (question.id, question.golden_answers, question.supporting) == expected
    assert question.type == ("comparison" if dataset == "hotpotqa" else "")


@pytest.mark.parametrize(
    ("given", "golden"),
    [
        ('["a", "b"]', ("a", "b")),
        (0, ("0",)),
        ([1972, None, "x"], ("1972", "x")),
        ({"value": "a", "aliases": ["b"], "type": "x"}, ("a", "b")),  # TriviaQA on the hub
        ({"Value": "a", "Aliases": None}, ("a",)),
        ("[sic]", ("[sic]",)),
        ("['a', 'b']", None),  # as pandas writes a list into a table
        (["['a', 'b']"], None),
        ('["a", "b...]', None),
        (1972.5, None),
        (float("nan"), None),
        (True, None),
        ([["a"], ["b"]], None),  # either of them, or both?
        ([{"text": "a"}], None),
        (1e300, None),
    ],
)
def test_answers_that_are_not_plain_texts(
    write: Write, given: object, golden: tuple[str, ...] | None
) -> None:
    path = write("dev.jsonl", json.dumps({"question": "Which?", "golden_answers": given}))
    if golden is not None:
        assert read_questions(path)[0].golden_answers == golden
        return
    with pytest.raises(QuestionError, match=r"dev.jsonl, record 1: '(golden_answers|text)' is"):
        read_questions(path)


@pytest.mark.parametrize("packing", ["gz", "parquet"])
def test_packed_files_are_read(tmp_path: Path, packing: str) -> None:
    answers = {"golden_answers": ["A", "Ä"], "supporting_titles": ["T"]}
    rows = [{"id": str(n), "question": f"Who is {n}?", **answers} for n in (1, 2)]
    (tmp_path / "nq").mkdir()
    if packing == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        write_table(pa.Table.from_pylist(rows), tmp_path / "nq" / "dev.parquet")
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "nq" / "dev.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    path = question_file(tmp_path, "nq", "dev")
    found = [(q.id, q.golden_answers, q.supporting) for q in read_questions(path)]
    assert found == [(number, ("A", "Ä"), ("T",)) for number in ("1", "2")]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(QuestionError, match=f"{path.name} is cut off or damaged"):
        read_questions(path)


def test_a_mix_keeps_the_seven_benchmarks_apart(shared_data: Path) -> None:
    at = {"dataset": "all", "data_dir": shared_data / "qa", "split": "dev"}
    tasks = make_text_env("paw_gym/SearchQA-v0", **at).unwrapped.tasks
    assert Counter(task.type for task in tasks) == dict.fromkeys(BENCHMARKS, 125)
    assert all(task.data.question and task.data.golden_answers for task in tasks)
    assert dataset_names("train_mix") == ("nq", "hotpotqa")
    assert tasks["musique/dev/" + tasks[700].data.id].type == "musique"


def test_each_benchmark_has_its_own_split_to_evaluate(tmp_path: Path) -> None:
    for name in ("nq_test", "nq_dev", "musique_test", "musique_dev", "popqa_dev"):
        (tmp_path / f"{name}.jsonl").touch()
    found = [question_file(tmp_path, d, "eval").stem for d in ("nq", "musique", "popqa")]
    assert found == ["nq_test", "musique_dev", "popqa_dev"]
    assert question_file(tmp_path, "nq", "dev").stem == "nq_dev"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"question": "a", "answer": "b"}\n{oops\n', "line 2: not valid JSON"),
        ('{"question": "a"}', "record 1: there is no answer"),
        ('{"question": " ", "answer": "b"}', "record 1: there is no 'question'"),
        ("[1]\n", "record 1: a question is an object, got list"),
        ("\n", "holds no question"),
        ('{"question": "a", "answer_aliases": NaN}', "1: 'answer_aliases' is nan"),
        ('{"question": "a", "answer": "b", "id": NaN}', "record 1: 'id' is nan"),
        ('{"question": "a", "answer": "b", "type": NaN}', "record 1: 'type' is nan"),
        (
            '{"question": "a", "answer": "b", "supporting_facts": [{"title": "x"}]}',
            "record 1: a field is of none of the published forms",
        ),
    ],
)
def test_malformed_files_are_named(write: Write, content: str, says: str) -> None:
    path = write("dev.jsonl", content)
    with pytest.raises(QuestionError, match=says):
        read_questions(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "dev.jsonl"
    latin.write_bytes('{"question": "café?", "answer": "b"}'.encode("latin-1"))
    with pytest.raises(QuestionError, match=r"dev\.jsonl is not text in UTF-8"):
        read_questions(latin)


def test_what_is_missing_is_told(tmp_path: Path, write: Write) -> None:
    write("hotpotqa/dev.jsonl", '{"id": "1", "question": "a", "answer": "b"}')
    for dataset, split, says in (
        ("hotpotqa", "devv", "no split 'devv'. Did you mean 'dev'.* Expected .*<split>.jsonl"),
        ("hotpot", "dev", "no data set 'hotpot'. Did you mean 'hotpotqa'"),
    ):
        with pytest.raises(FileNotFoundError, match=says):
            benchmark_tasks((dataset,), split, tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        benchmark_tasks(("hotpotqa",), "dev", tmp_path / "none")
    env = make_text_env("paw_gym/SearchQA-v0", dataset="hotpotqa", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no corpus\.jsonl"):
        env.reset(seed=0)


def test_a_changed_file_is_read_anew(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one", "two"):
        for text in ("old", "new"):
            question = f"{text} in {place}?"
            content = json.dumps({"id": "1", "question": question, "answer": "b"})
            path = write(f"{place}/nq/dev.jsonl", content)
            monkeypatch.chdir(tmp_path / place)  # the same relative path, another file
            assert benchmark_tasks(("nq",), "dev", Path())[0].instruction == question
            os.utime(path, ns=(1, 1))
    tasks = benchmark_tasks(("nq",), "dev", Path())
    assert benchmark_tasks(("nq",), "dev", Path()) is tasks
