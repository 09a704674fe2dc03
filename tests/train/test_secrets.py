"""No secret gets into what a run or an evaluation writes or prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from fork import Fork
from forked import Forked

from paw_gym import register_text_env
from paw_train.environments import agent_env_maker
from paw_train.settings import load_settings
from paw_train.settings.env import refuse_secrets, with_secrets


@pytest.mark.parametrize(
    "override",
    [
        "env.kwargs.token=hunter2",
        "env.kwargs.api_key=hunter2",
        "env.kwargs={user: {settings: {API_KEY: hunter2}}}",
        "env.train_kwargs.db_password=hunter2",
        "env.kwargs.server=http://me:hunter2@example.org/shop",
    ],
)
def test_a_secret_is_refused_and_not_repeated(override: str) -> None:
    with pytest.raises(ValueError, match=r"=env:NAME") as error:
        load_settings("smoke", [override])
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "values",
    [
        {"token": None},
        {"token": "env:MINE"},
        {"tokenizer": "x", "max_tokens": 3, "token_limit_field": "max_tokens", "keyboard": "a"},
        {"server": "http://127.0.0.1:3000/a@b:c"},
    ],
)
def test_what_is_no_secret_passes(values: dict[str, object]) -> None:
    refuse_secrets(values, "env.kwargs")


class LockedEnv(Fork):
    """Opens to those who have the token."""

    def __init__(self, token: str = "", max_steps: int = 3, render_mode: str | None = None) -> None:
        if token != "hunter2":
            raise PermissionError("wrong token")
        super().__init__(1, max_steps, render_mode)


def test_the_environment_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    register_text_env("tests/Locked-v0", LockedEnv, replace=True)
    settings = load_settings("smoke", ["env.id=tests/Locked-v0", "env.kwargs={token: env:MINE}"])
    monkeypatch.setenv("MINE", "hunter2")
    assert agent_env_maker(settings.env, "train")().tasks.ids == ["a", "b"]
    monkeypatch.delenv("MINE")
    with pytest.raises(ValueError, match="no environment variable 'MINE'"):
        agent_env_maker(settings.env, "train")()
    monkeypatch.setenv("MINE", "x")
    assert with_secrets({"a": {"token": "env:MINE"}, "b": 1}) == {"a": {"token": "x"}, "b": 1}


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from test_secrets import LockedEnv
from paw_gym import register_text_env
register_text_env("tests/Locked-v0", LockedEnv, replace=True)
from paw_train.cli import main
for line in {lines!r}:
    try:
        main(line)
    except SystemExit as end:
        print("exit code", end.code, flush=True)
"""


@pytest.mark.slow
def test_a_run_and_an_evaluation_do_not_write_it(tmp_path: Path) -> None:
    """Files and output of a training run, its evaluation, its report and an error are searched."""
    lines = [
        ["train", "smoke", "env.id=tests/Locked-v0", "env.kwargs={token: env:MINE}", "updates=1"],
        ["eval", "runs/smoke", "evaluation.tasks=1", "env.kwargs.token=env:MINE"],
        ["report", "runs/smoke"],
        # nobody answers there
        ["eval", "openai:m", "endpoint.url=http://127.0.0.1:9/v1", "endpoint.retries=0",
         "evaluation.tasks=1", "endpoint.cache=null"],
    ]  # fmt: skip
    program = PROGRAM.format(tests=str(Path(__file__).parent), lines=lines)
    said = Forked(program, folder=tmp_path, MINE="hunter2", OPENAI_API_KEY="hunter2").wait().output
    assert said.count("exit code 0") >= 3, said
    assert "The run is in" in said
    assert "hunter2" not in said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "config.json" and b"env:MINE" in path.read_bytes() for path in files)
    assert any(path.name == "result.json" for path in files)
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
