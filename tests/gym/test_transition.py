"""Records come back from files as they were."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from episodes import episodes
from hypothesis import given
from hypothesis import strategies as st

from paw_gym import Episode, Transition
from paw_gym.transition import read_jsonl, read_parquet, write_jsonl, write_parquet

FORMS = {"jsonl": (write_jsonl, read_jsonl), "parquet": (write_parquet, read_parquet)}


def transition(step: int = 0, **changes: Any) -> Transition:
    texts = (f"p{step}", f"o{step}", f"r{step}", "a")
    return replace(
        Transition("e", "t", "t#1", step, *texts, 0.5, "o", False, False, True), **changes
    )


@pytest.mark.parametrize("form", FORMS)
@given(some=st.lists(episodes(), max_size=4))
def test_episodes_come_back_equal(
    form: str, some: list[Episode], tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, read = FORMS[form]
    path = tmp_path_factory.mktemp("records") / f"episodes.{form}"
    write(path, some)
    assert list(read(path)) == some


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"info": {"a": [{"b": {1, 2}}]}}, r"info\['a'\]\[0\]\['b'\] holds a set"),
        ({"info": {"a": {1: "x"}}}, "the key 1 is a int"),
        ({"info": {"a": math.nan}}, "is nan, which JSON has no number for"),
        ({"reward": math.inf}, "reward is inf"),
    ],
)
def test_what_would_not_come_back_is_refused_and_the_old_file_stays(
    form: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write, read = FORMS[form]
    path = tmp_path / f"e.{form}"
    good = Episode("e", "t", "1", transitions=[transition()])
    write(path, [good])
    with pytest.raises(TypeError, match=message):
        write(path, [good, Episode("e", "t", "2", transitions=[transition(**changes)])])
    assert list(read(path)) == [good]
    assert list(tmp_path.iterdir()) == [path], "nothing half-written stays behind"


def test_appending_leaves_a_line_alone_that_a_kill_has_cut_off(tmp_path: Path) -> None:
    path, whole = tmp_path / "e.jsonl", Episode("e", "t", "1", transitions=[transition()])
    write_jsonl(path, [whole], append=True)
    line = path.read_bytes()
    path.write_bytes(line + line[:40])
    write_jsonl(path, [whole], append=True)
    assert path.read_bytes().splitlines(keepends=True) == [line, line[:40] + b"\n", line]


@pytest.mark.parametrize("form", FORMS)
def test_episodes_are_written_as_they_come(form: str, tmp_path: Path) -> None:
    """The writer asks for an episode only when those before it are on their way to the file.

    There are more rows than a Parquet batch holds, and episodes that lie across two of them.
    """
    write, read = FORMS[form]
    path = tmp_path / f"e.{form}"
    sizes, given = [], []

    def many() -> Iterator[Episode]:
        for n in range(30):
            part = path.with_name(path.name + ".part")
            sizes.append(part.stat().st_size if part.exists() else 0)
            steps = [transition(i, prompt=f"{n} {i} " * 20) for i in range(200)]
            given.append(Episode("e", "t", f"t#{n}", transitions=steps))
            yield given[-1]

    write(path, many())
    assert 0 < sizes[len(sizes) // 2] < sizes[-1] < path.stat().st_size
    assert list(read(path)) == given


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"step": [1]}), path)
    with pytest.raises(ValueError, match="not a file of episodes: it lacks the column 'env_id'"):
        list(read_parquet(path))


def test_a_parquet_file_has_a_column_for_each_field_with_its_type(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_parquet(tmp_path / "e", [Episode("e", "t", "1", transitions=[transition()])])
    columns = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "e")}
    of_steps = [f.name for f in fields(Transition)]
    of_episodes = [f"episode_{f.name}" for f in fields(Episode) if f.name != "transitions"]
    assert list(columns) == [*of_steps, "episode_number", *of_episodes]
    assert " ".join(of_steps) == (
        "env_id task_id episode_id step prompt observation response action reward "
        "next_observation terminated truncated action_is_valid info parent"
    )
    kinds = ("step", "reward", "terminated", "observation", "info", "episode_group")
    assert [columns[name] for name in kinds] == [
        "int64", "double", "bool", "large_string", "large_string", "int64"
    ]  # fmt: skip


def test_an_episode_sums_up_its_steps() -> None:
    last = transition(2, terminated=True, info={"success": True, "score": 0.75})
    episode = Episode("e", "t", "1", transitions=[transition(0), transition(1), last])
    assert (episode.total_reward, episode.success, episode.score) == (1.5, True, 0.75)
    assert episode.finished and not replace(episode, transitions=[transition(0)]).finished
    empty = Episode("e", "t", "1")
    assert (empty.total_reward, empty.success, empty.score, empty.finished) == (0, False, 0, False)


def test_messages_are_the_prompt_or_the_dialogue_so_far() -> None:
    steps = [transition(0), transition(1)]
    window = Episode("e", "t", "1", transitions=steps)
    assert window.messages(1) == [{"role": "user", "content": "p1"}]
    talk = replace(window, context_mode="conversation")
    found = [(m["role"], m["content"]) for m in talk.messages(1)]
    assert found == [("user", "p0"), ("assistant", "r0"), ("user", "p1")]
    assert talk.messages(-1) == talk.messages(1)
    with pytest.raises(IndexError):
        talk.messages(2)


@pytest.mark.parametrize(
    ("field", "value"), [("terminated", "false"), ("reward", "1.0"), ("reward", True), ("info", [])]
)
def test_fields_of_another_type_are_named(tmp_path: Path, field: str, value: object) -> None:
    record = Episode("e", "t", "x", transitions=[transition()]).to_dict()
    record["transitions"][0][field] = value
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"episodes.jsonl, line 1: .*{field} is"):
        list(read_jsonl(path))
