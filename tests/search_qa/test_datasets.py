from __future__ import annotations

import gzip
import json
import lzma
import os
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

# name of the file, its content, and the (id, answers) that it holds
PUBLISHED = [
    (
        "nq/NQ-open.dev.jsonl",
        '{"question": "when was the fair", "answer": ["1904", "in 1904"]}\n',
        ("nq_1", ("1904", "in 1904")),
    ),
    (
        "nq/nq-dev.qa.csv",
        "when was the fair\t['1904', \"St. Louis' fair\"]\n",
        ("nq_1", ("1904", "St. Louis' fair")),
    ),
    (
        "triviaqa/wikipedia-dev.json",
        json.dumps(
            {
                "Data": [
                    {
                        "QuestionId": "qw_1",
                        "Question": "Which town?",
                        "Answer": {"Value": "Sel", "Aliases": ["Sel", "Sel (town)"]},
                    }
                ]
            }
        ),
        ("qw_1", ("Sel", "Sel (town)")),
    ),
    (
        "popqa/test.tsv",
        "id\tsubj\tquestion\tpossible_answers\n"
        '42\tSel\tWho?\t"[""Ann"", ""Ann Lee""]"\n',
        ("42", ("Ann", "Ann Lee")),
    ),
    (
        "hotpotqa/hotpot_dev_distractor_v1.json",
        json.dumps(
            [
                {
                    "_id": "5a8b",
                    "question": "Were both?",
                    "answer": "yes",
                    "type": "comparison",
                    "supporting_facts": [["A", 0], ["B", 1], ["A", 2]],
                    "context": [["A", ["x"]]],
                }
            ]
        ),
        ("5a8b", ("yes",)),
    ),
    (
        "musique/musique_ans_v1.0_dev.jsonl",
        json.dumps(
            {
                "id": "2hop__1",
                "question": "Who?",
                "answer": "Ann",
                "answer_aliases": ["Ann Lee"],
                "answerable": True,
                "paragraphs": [
                    {"title": "A", "is_supporting": True},
                    {"title": "B", "is_supporting": False},
                ],
            }
        )
        + '\n{"id": "2hop__2", "question": "?", "answer": "x", "answerable": false}\n',
        ("2hop__1", ("Ann", "Ann Lee")),
    ),
    (
        "bamboogle/Bamboogle Prerelease - Sheet1.csv",
        'Question,Answer\n"Who, then?",Ann\n',
        ("bamboogle_2", ("Ann",)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "expected"), PUBLISHED, ids=[p[0] for p in PUBLISHED])
def test_the_forms_of_the_sources(
    tmp_path: Path, name: str, content: str, expected: tuple[str, tuple[str, ...]]
) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    dataset, split = path.parent.name, "test" if path.stem == "test" else "dev"
    questions = read_questions(question_file(tmp_path, dataset, split))
    assert [(q.id, q.golden_answers) for q in questions] == [expected]
    if dataset == "hotpotqa":
        assert (questions[0].type, questions[0].supporting) == ("comparison", ("A", "B"))
    if dataset == "musique":
        assert questions[0].supporting == ("A",)


def test_other_names_of_answers_of_2wiki(tmp_path: Path) -> None:
    record = {"_id": "w1", "question": "Which country?", "answer": "France", "answer_id": "Q142"}
    (tmp_path / "2wikimultihopqa").mkdir()
    path = tmp_path / "2wikimultihopqa" / "dev.json"
    path.write_text(json.dumps([record]))
    path.with_name("id_aliases.json").write_text(
        json.dumps({"Q_id": "Q142", "aliases": ["French Republic"], "demonyms": ["French"]})
    )
    assert read_questions(path)[0].golden_answers == ("France", "French Republic", "French")


@pytest.mark.parametrize(
    ("given", "golden"),
    [
        ("['a', 'b']", ("a", "b")),  # as pandas writes a list into a table
        ('["a", "b"]', ("a", "b")),
        (["['a', 'b']"], ("a", "b")),
        ([["a", "b"]], ("a", "b")),
        ("[1972, 1973]", ("1972", "1973")),
        (1972.0, ("1972",)),  # whole numbers of a column with gaps
        ([1972, None, 2.5], ("1972", "2.5")),
        ('{"Value": "a", "Aliases": ["b"]}', ("a", "b")),
        ({"value": "a", "aliases": ["b"], "type": "x"}, ("a", "b")),  # TriviaQA on the hub
        ("(foaled February 1, 1999)", ("(foaled February 1, 1999)",)),
        (["[sic]", "a"], ("[sic]", "a")),
        ("[sic]", ("[sic]",)),
        ("['a' 'b']", None),  # NumPy's own print: where an answer ends is a guess
        ("['a', 'b...]", None),
        (float("nan"), None),
        ([float("nan"), "a"], None),
        (True, None),
        ([["a"], ["b"]], None),  # either of them, or both?
        ([{"text": "a"}], None),
        (1e300, None),
    ],
)
def test_answers_that_are_not_plain_texts(
    tmp_path: Path, given: object, golden: tuple[str, ...] | None
) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({"question": "Which?", "golden_answers": given}) + "\n")
    if golden is not None:
        assert read_questions(path)[0].golden_answers == golden
        return
    with pytest.raises(QuestionError, match=r"dev.jsonl, record 1: '(golden_answers|text)' is"):
        read_questions(path)


@pytest.mark.parametrize("field", ["answer_aliases", "id", "type"])
def test_other_fields_hold_texts_too(tmp_path: Path, field: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({"question": "Which?", "answer": "a", field: float("nan")}))
    with pytest.raises(QuestionError, match=f"dev.jsonl, record 1: '{field}' is nan"):
        read_questions(path)


@pytest.mark.parametrize("packing", ["gz", "xz", "zst", "parquet"])
def test_packed_files_are_read(tmp_path: Path, packing: str) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [
        {"id": str(n), "question": f"Who is {n}?", "golden_answers": ["A", "Ä"]} for n in (1, 2)
    ]
    text = "\ufeff" + "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "nq").mkdir()
    if packing == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "nq" / "dev.parquet")
    elif packing == "zst":
        with pa.output_stream(str(tmp_path / "nq/dev.jsonl.zst"), compression="zstd") as file:
            file.write(text.encode())
    else:
        pack = {"gz": gzip, "xz": lzma}[packing].compress
        (tmp_path / "nq" / f"dev.jsonl.{packing}").write_bytes(pack(text.encode()))
    path = question_file(tmp_path, "nq", "dev")
    assert [(q.id, q.golden_answers) for q in read_questions(path)] == [
        ("1", ("A", "Ä")),
        ("2", ("A", "Ä")),
    ]
    with pytest.raises(FileNotFoundError, match="Did you mean 'dev'|dev"):
        question_file(tmp_path, "nq", "dv")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(QuestionError, match=f"{path.name} is cut off or damaged"):
        read_questions(path)


@pytest.mark.parametrize("dataset", BENCHMARKS)
def test_the_seven_benchmarks(shared_data: Path, dataset: str) -> None:
    questions = read_questions(shared_data / "qa" / dataset / "dev.jsonl")
    assert len(questions) == len({q.id for q in questions}) == 125
    assert all(q.question and q.golden_answers for q in questions)


def test_a_mix_keeps_apart_what_it_mixes(shared_data: Path) -> None:
    env = make_text_env(
        "paw_gym/SearchQA-v0", dataset="all", data_dir=shared_data / "qa", split="dev"
    )
    tasks = env.unwrapped.tasks
    assert len(tasks) == 875
    assert {tasks[i].type for i in range(0, 875, 125)} == set(BENCHMARKS)
    assert dataset_names("train_mix") == ("nq", "hotpotqa")
    assert tasks["musique/dev/" + tasks[700].data.id].type == "musique"


def test_each_benchmark_has_a_split_of_its_own_to_evaluate(tmp_path: Path) -> None:
    for name in ("nq_test", "nq_dev", "musique_test", "musique_dev", "popqa_dev"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "x"}))
    found = [question_file(tmp_path, d, "eval").stem for d in ("nq", "musique", "popqa")]
    assert found == ["nq_test", "musique_dev", "popqa_dev"]
    assert question_file(tmp_path, "nq", "dev").stem == "nq_dev"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("dev.jsonl", '{"question": "a", "answer": "b"}\n{oops\n', "line 2: not valid JSON"),
        ("dev.jsonl", '{"question": "a"}\n', "record 1: there is no answer"),
        ("dev.jsonl", '{"question": " ", "answer": "b"}\n', "record 1: there is no 'question'"),
        ("dev.jsonl", "[1]\n", "line 1: expected an object"),
        ("dev.jsonl", "\n", "holds no question"),
        ("dev.json", '{"rows": []}', "neither a list nor an object with 'Data'"),
        ("dev.csv", "when\tthen\tagain\n", "line 1: expected a header"),
        ("dev.json", '["a"]', "record 1: a question is an object, got str"),
        (
            "dev.jsonl",
            '{"question": "a", "answer": "b", "supporting_facts": [{"title": "x"}]}\n',
            "record 1: a field is of none of the published forms",
        ),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / "nq" / name
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(QuestionError, match=says):
        read_questions(question_file(tmp_path, "nq", "dev"))


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "hotpotqa"
    folder.mkdir()
    (folder / "dev.jsonl").write_text('{"id": "1", "question": "a", "answer": "b"}\n')
    with pytest.raises(FileNotFoundError, match="no split 'devv'. Did you mean 'dev'"):
        benchmark_tasks(("hotpotqa",), "devv", tmp_path)
    with pytest.raises(FileNotFoundError, match="no data set 'hotpot'. Did you mean 'hotpotqa'"):
        benchmark_tasks(("hotpot",), "dev", tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        benchmark_tasks(("hotpotqa",), "dev", tmp_path / "none")
    with pytest.raises(ValueError, match="needs data_dir"):
        make_text_env("paw_gym/SearchQA-v0", dataset="hotpotqa")
    env = make_text_env("paw_gym/SearchQA-v0", dataset="hotpotqa", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no corpus\.jsonl"):
        env.reset(seed=0)


def test_a_changed_file_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("one", "two"):
        path = tmp_path / place / "nq" / "dev.jsonl"
        path.parent.mkdir(parents=True)
        for text in ("old", "new"):
            question = f"{text} in {place}?"
            path.write_text(json.dumps({"id": "1", "question": question, "answer": "b"}))
            monkeypatch.chdir(tmp_path / place)  # the same relative path, another file
            assert benchmark_tasks(("nq",), "dev", Path())[0].instruction == question
            os.utime(path, ns=(1, 1))
    tasks = benchmark_tasks(("nq",), "dev", Path())
    assert benchmark_tasks(("nq",), "dev", Path()) is tasks


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dev.csv", "question,answer\nwhat?,honey\n\n"),
        ("dev.csv", "question,answer\nwhat?,honey\n,\n"),
        ("dev.tsv", "what?\t['honey']\n\n"),
        ("dev.jsonl", '{"question": "what?", "answer": {"Value": "honey", "Aliases": null}}'),
    ],
)
def test_blank_rows_and_empty_fields_are_left_out(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    [question] = read_questions(tmp_path / name)
    assert (question.question, question.golden_answers) == ("what?", ("honey",))


def test_an_answer_may_be_the_number_zero(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"question": "how many?", "answer": 0}')
    assert read_questions(tmp_path / "dev.jsonl")[0].golden_answers == ("0",)


def test_files_that_are_no_text_or_no_table_are_named(tmp_path: Path) -> None:
    latin, table = tmp_path / "dev.jsonl", tmp_path / "dev.csv"
    latin.write_bytes('{"question": "café?", "answer": "b"}'.encode("latin-1"))
    with pytest.raises(QuestionError, match=r"dev\.jsonl is not text in UTF-8"):
        read_questions(latin)
    table.write_text(f"question,answer\nwhat?,{'x' * 200_000}\n")
    with pytest.raises(QuestionError, match=r"dev\.csv cannot be read as a table"):
        read_questions(table)
    (tmp_path / "id_aliases.json").write_text("{oops\n")
    latin.write_text('{"question": "a", "answer": "b"}')
    with pytest.raises(QuestionError, match=r"id_aliases\.json, line 1: not valid JSON"):
        read_questions(latin)
