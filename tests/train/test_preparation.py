"""Before a run starts: another environment's settings, checks, the claim of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Interval
from pydantic import create_model

from paw_train.settings import Settings, load_settings
from paw_train.settings.base import Group, allowed
from paw_train.training.local import train_from_recipe
from paw_train.training.preparation import checked_settings

TINY = ["env.kwargs.num_tasks=6", "updates=0", "evaluation.tasks=0", "evaluation.every=0"]


class TestAnotherEnvironment:
    def test_takes_its_own_defaults_and_says_what_was_left_out(self) -> None:
        said: list[str] = []
        settings = load_settings("embedded", ["env.id=paw_gym/WebShop-v0"], said.append)
        assert settings.env.kwargs == {} and settings.env.train_kwargs == {}
        assert settings.env.invalid_penalty is None
        assert (settings.evaluation.selection_split, settings.evaluation.split) == ("valid", "test")
        assert settings.rollout.max_response_tokens > 14, "the longest command of ALFWorld"
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
        changes = ["env.id=paw_gym/WebShop-v0", "env.kwargs.max_steps=7", "evaluation.split=train",
                   "env.template=generic", "model.scratch.tokenizer=pieces"]  # fmt: skip
        settings = load_settings("embedded", changes)
        assert settings.model.scratch.tokenizer == "pieces"
        assert settings.env.kwargs == {"max_steps": 7}
        assert (settings.evaluation.split, settings.env.template) == ("train", "generic")


class TestAWarmStartOnFewTasks:
    """``paw train embedded env.id=OWN`` must not take what thousands of games are worth."""

    def settings(self, tasks: int, *overrides: str) -> tuple[Settings, list[str]]:
        reported: list[str] = []
        given = ["env.id=paw_gym/ToyText-v0", f"env.kwargs.num_tasks={tasks}", *overrides]
        return checked_settings(load_settings("embedded", given), reported.append), reported

    def test_is_as_long_as_its_tasks_are_many(self) -> None:
        whole = load_settings("embedded").cloning
        steps = round(whole.steps * 4800 / whole.episodes)
        settings, (sentence,) = self.settings(300)
        assert (settings.cloning.episodes, settings.cloning.steps) == (4800, steps)
        assert f"300 training tasks: 4800 expert episodes and {steps} steps" in sentence

    def test_is_long_enough_to_learn_the_form_of_answers(self) -> None:
        settings, _ = self.settings(3)
        assert (settings.cloning.episodes, settings.cloning.steps) == (48, 400)
        again: list[str] = []
        assert checked_settings(settings, again.append) == settings, "a run that continues"
        assert again == []

    def test_is_as_the_user_wants_it(self) -> None:
        settings, reported = self.settings(3, "cloning.steps=700")
        whole = load_settings("embedded").cloning
        assert (settings.cloning.episodes, settings.cloning.steps) == (whole.episodes, 700)
        assert reported == []


class TestTheFolderOfARun:
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            # before the warm start, and in it
            ("rollout.max_context_tokens=30", r"task alone takes \d+ tokens.*max_context_tokens"),
            ("env.kwargs.max_steps=1", "solved none of the tasks"),
        ],
    )
    def test_is_not_left_by_a_start_that_fails(
        self, tmp_path: Path, wrong: str, words: str
    ) -> None:
        where = [f"out={tmp_path}", *TINY, "rollout.max_response_tokens=24"]
        with pytest.raises(ValueError, match=words):
            train_from_recipe("smoke", [*where, wrong], quiet=True)
        assert list(tmp_path.iterdir()) == []

    def test_loses_nothing_until_a_fresh_start_succeeds(self, tmp_path: Path) -> None:
        where = [f"out={tmp_path}", "name=x", *TINY, "cloning.episodes=0"]
        with pytest.raises(ValueError, match="nowhere"):
            train_from_recipe("smoke", [*where, "model.path=nowhere"], quiet=True)
        folder = train_from_recipe("smoke", where, quiet=True)
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(ValueError, match="nowhere"):
            train_from_recipe("smoke", [*where, "model.path=nowhere"], fresh=True, quiet=True)
        assert sorted(path.name for path in folder.iterdir()) == before
        (folder / "of the earlier run").touch()
        train_from_recipe("smoke", [*where, "seed=1"], fresh=True, quiet=True)
        assert sorted(path.name for path in folder.iterdir()) == before
        assert list(tmp_path.iterdir()) == [folder]


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
