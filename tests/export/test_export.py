"""Recorded episodes go to other tools' formats, are read by those tools, and come back equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from episodes import episodes, hostile_texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import said
from typer.testing import Result

from paw_gym import Episode
from paw_gym.export import read_episodes
from paw_gym.export.exporters import with_clean_texts
from paw_gym.export.hub import write_hub_dataset
from paw_gym.export.sft import write_sft
from paw_gym.transition import read_jsonl

pytest.importorskip("pyarrow", reason='pip install ".[export]"')
Paw = Callable[..., Result]

HOSTILE = st.lists(episodes(hostile_texts, fewest=1), min_size=1, max_size=2)


@given(some=HOSTILE)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_every_text_comes_back(
    some: list[Episode], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Equal but for lone surrogates in the texts, which UTF-8 has no form for."""
    out = tmp_path_factory.mktemp("hostile") / "hostile"
    write_hub_dataset(out, some)
    assert list(read_episodes(out)) == list(with_clean_texts(some))


@pytest.mark.skipif(find_spec("datasets") is None, reason='pip install ".[export]"')
class TestHub:
    def test_datasets_loads_both_forms_and_it_comes_back(
        self, paw: Paw, run: Path, played: list[Episode]
    ) -> None:
        from datasets import load_dataset

        answer = paw("export", "run", "games", "--to", "datasets", "--part", "rollouts")
        assert answer.exit_code == 0, answer.output
        data = load_dataset("games", split="train", cache_dir="cache")
        steps = [t for e in played[:3] for t in e.transitions]
        assert data["prompt"][:] == [t.prompt for t in steps]
        assert data["reward"][:] == [t.reward for t in steps]
        assert [json.loads(i) for i in data["info"]] == [t.info for t in steps]
        assert list(read_episodes("games")) == played[:3]
        assert paw("export", "games", "back.jsonl", "--to", "jsonl").exit_code == 0
        assert list(read_jsonl("back.jsonl")) == played[:3]

        assert paw("export", "run", "all.parquet", "--to", "parquet").exit_code == 0
        told = {"data_files": "all.parquet", "split": "train", "cache_dir": "cache"}
        assert len(load_dataset("parquet", **told)) == sum(len(e.transitions) for e in played)

    @pytest.mark.parametrize("name", ["a: b", "@run", "[x", "null", "\U0001f600"])
    @pytest.mark.parametrize("write", [write_hub_dataset, write_sft])
    def test_any_name_makes_a_readable_card_and_an_id_is_no_markdown(
        self, write: Callable[..., object], played: list[Episode], tmp_path: Path, name: str
    ) -> None:
        write(tmp_path / name, [replace(played[0], env_id="`\n# [x](http://x) <b>")])
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert yaml.safe_load(card.split("---\n")[1])["pretty_name"] == name
        assert "\\` # \\[x\\](http:\\//x) \\<b\\>" in card


class TestFailures:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("export run x --to parkett", "Did you mean 'parquet'"),
            ("export run run --to datasets", "run exists already"),
            ("export run run --to datasets --force", "one with a data/train-00000.parquet only"),
            ("export run no/where.jsonl --to jsonl", "no folder no"),
            ("export run/config.json x --to jsonl", "expected .jsonl or .parquet"),
            ("export run/rollouts/000002.parquet run --to jsonl --force", "is a folder"),
            ("export run x --to jsonl --tokenizer model", "--tokenizer MODEL go together"),
            ("export empty x --to datasets", "empty holds no episodes"),
            ("export half x --to datasets", "000001.jsonl, line 2: not an episode"),
            (
                "sft-data run x --part before",
                "No example of the kind 'policy' in 1 episode, 0 of them successful",
            ),
            ("sft-data run run --force", "one with a policy.jsonl only"),
            ("sft-data ALFWorld x", "paw sft-data ENV OUT --expert"),
            ("sft-data ALFWorld x --expert --kw engin=native", "Did you mean 'engine'"),
        ],
    )
    def test_are_told_and_leave_nothing(
        self, paw: Paw, run: Path, tmp_path: Path, line: str, message: str
    ) -> None:
        (tmp_path / "empty").mkdir()
        half = tmp_path / "half" / "rollouts" / "000001.jsonl"
        half.parent.mkdir(parents=True)
        whole = (run / "rollouts" / "000001.jsonl").read_text()
        half.write_text(whole + whole[: len(whole) // 2])
        before = sorted(tmp_path.rglob("*"))
        answer = paw(*line.split())
        assert answer.exit_code == 2, answer.output
        assert message in " ".join(answer.output.split())
        assert sorted(tmp_path.rglob("*")) == before

    def test_force_replaces(self, paw: Paw, run: Path, played: list[Episode]) -> None:
        for part in ("after", "before"):
            answer = paw("export", "run", "[d]", "--to", "datasets", "--part", part, "--force")
            assert answer.exit_code == 0 and "to [d]\n" in answer.stdout
        assert list(read_episodes("[d]")) == played[3:4]


MEASURE = """
import resource, sys
from pathlib import Path
from paw_gym import Episode, Transition
from paw_gym.export.hub import write_hub_dataset
from paw_gym.export.sft import write_sft
from paw_gym.transition import read_jsonl, write_jsonl

def episodes(count):
    for n in range(count):
        yield Episode("e", "t", f"t#{n}", transitions=[
            Transition("e", "t", f"t#{n}", i, f"{n} {i} " * 250, "o", "r", "a", 0.0, "o" * 300, i == 9,
                       False, True, {"success": True}) for i in range(10)])

out = Path(sys.argv[1], sys.argv[2])
out.mkdir()
write_jsonl(out / "e.jsonl", episodes(int(sys.argv[2])))
write_hub_dataset(out / "d", read_jsonl(out / "e.jsonl"))
write_sft(out / "s", read_jsonl(out / "e.jsonl"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_episodes(tmp_path: Path) -> None:
    """12,000 transitions more are 40 MB of text; holding them would take more than that."""

    small, large = (int(said("-c", MEASURE, tmp_path, str(count))) for count in (300, 1500))
    assert large - small < 20_000, f"{small} kB, then {large} kB"
