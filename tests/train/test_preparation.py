"""What happens before a run starts: another environment's settings, checks, and the claim of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest

pytest.importorskip("torch")

from annotated_types import Ge, Gt, Interval
from pydantic import create_model

from paw_train.settings import Settings, load_settings
from paw_train.settings.base import Group
from paw_train.settings.ranges import allowed
from paw_train.training.local import train_from_recipe

TINY = ["env.kwargs.num_tasks=6", "updates=0", "evaluation.tasks=0", "evaluation.every=0"]


class TestAnotherEnvironment:
    def test_takes_its_own_defaults_and_says_what_was_left_out(self) -> None:
        said: list[str] = []
        settings = load_settings("embedded", ["env.id=paw_gym/WebShop-v0"], said.append)
        assert settings.env.kwargs == {} and settings.env.train_kwargs == {}
        assert settings.env.invalid_penalty is None
        assert (settings.evaluation.selection_split, settings.evaluation.split) == ("valid", "test")
        assert settings.rollout.max_response_tokens > 11, "the longest command of ALFWorld"
        assert settings.env.mode == "conversation", "no matter of the environment"
        (sentence,) = said
        assert "env.kwargs.variation" in sentence and "env.train_kwargs.max_steps" in sentence

    def test_a_small_model_gets_the_environments_small_template(self) -> None:
        small = load_settings("embedded", ["env.id=paw_gym/SearchQA-v0"])
        assert (small.env.template, small.env.history_length) == ("search_compact", None)
        large = load_settings("embedded", ["env.id=paw_gym/SearchQA-v0", "model.path=x"])
        assert large.env.template is None
        assert large.rollout.max_response_tokens == Settings().rollout.max_response_tokens

    def test_what_the_user_sets_stays(self) -> None:
        changes = ["env.kwargs.max_steps=7", "evaluation.split=train", "env.template=generic"]
        settings = load_settings("embedded", ["env.id=paw_gym/WebShop-v0", *changes])
        assert settings.env.kwargs == {"max_steps": 7}
        assert (settings.evaluation.split, settings.env.template) == ("train", "generic")

    def test_the_recipes_own_environment_changes_nothing(self) -> None:
        said: list[str] = []
        given = load_settings("embedded", ["env.id=paw_gym/ALFWorld-v0"], said.append)
        assert given == load_settings("embedded")
        assert said == []

    def test_one_that_there_is_not_is_named(self) -> None:
        with pytest.raises(ValueError, match="Did you mean 'paw_gym/WebShop-v0'"):
            load_settings("embedded", ["env.id=paw_gym/WebShp-v0"])


class TestTheFolderOfARun:
    def test_a_start_that_fails_does_not_block_the_corrected_one(self, tmp_path: Path) -> None:
        where = [f"out={tmp_path}", "name=x", *TINY, "cloning.episodes=0"]
        for wrong in ("model.path=nowhere", "model.device=gpu", "env.kwargs.variation=rael"):
            with pytest.raises(ValueError):
                train_from_recipe("smoke", [*where, wrong], quiet=True)
            assert list(tmp_path.iterdir()) == []
        assert train_from_recipe("smoke", where, quiet=True) == tmp_path / "x"

    def test_nor_does_one_that_fails_before_it_leaves_anything(self, tmp_path: Path) -> None:
        where = [f"out={tmp_path}", "name=x", *TINY]
        with pytest.raises(ValueError, match="solved none of the tasks"):
            train_from_recipe("smoke", [*where, "env.kwargs.max_steps=1"], quiet=True)
        assert list(tmp_path.iterdir()) == []

    def test_starting_over_deletes_nothing_until_it_starts(self, tmp_path: Path) -> None:
        where = [f"out={tmp_path}", "name=x", *TINY, "cloning.episodes=0"]
        folder = train_from_recipe("smoke", where, quiet=True)
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(ValueError, match="nowhere"):
            train_from_recipe("smoke", [*where, "model.path=nowhere"], fresh=True, quiet=True)
        assert sorted(path.name for path in folder.iterdir()) == before
        (folder / "of the earlier run").touch()
        train_from_recipe("smoke", [*where, "seed=1"], fresh=True, quiet=True)
        assert sorted(path.name for path in folder.iterdir()) == before
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("kind", "fine", "wrong", "words"),
    [
        (Annotated[int, Ge(1)], 1, 0, "1 or more"),
        (Annotated[int, Ge(1)] | None, None, 0, "1 or more, or null"),
        (Annotated[float, Gt(0)], 0.1, 0.0, "above 0"),
        (Annotated[float, Interval(gt=0, le=1)], 1.0, 0.0, "in (0, 1]"),
        (Annotated[float, Interval(ge=0, lt=1)], 0.0, 1.0, "in [0, 1)"),
        (float, -5.0, float("nan"), ""),
        (Literal["a", "b"], "a", "c", ""),
    ],
)
def test_a_declared_range_is_checked_and_told(
    kind: object, fine: object, wrong: object, words: str
) -> None:
    cls = create_model("Some", __base__=Group, y=(kind, fine))
    assert cls.read({"y": fine}).model_dump() == {"y": fine}
    with pytest.raises(ValueError, match=r"x\.y") as error:
        cls.read({"y": wrong}, "x")
    assert words in str(error.value)
    assert allowed(kind) == words
