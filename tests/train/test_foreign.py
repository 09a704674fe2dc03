"""A file from somebody else imports, opens and asks nothing, and gets no secret."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint

from paw_gym.internals.constructors import creator_of
from paw_gym.registration import text_env_ids
from paw_gym.transition import Episode, Transition, write_jsonl
from paw_train.cli import main
from paw_train.evaluation import program
from paw_train.evaluation.recorded import located, recorded_env, recorded_settings
from paw_train.settings import Settings
from paw_train.settings.base import groups_of
from paw_train.settings.env import recorded_id
from paw_train.settings.run import read_recorded

ALFWORLD = "paw_gym/ALFWorld-v0"
ATTACKS = (
    *("https://a.example/x", "file:///etc/passwd", "//host/share", "\\\\host\\share"),
    *("/etc/passwd", "../up", "~/.ssh", "..", "a/b", "notes.txt", " /etc/passwd"),
    *("env:HOME", " env:HOME", "evil:me/X-v0", "package.evil:function"),
)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: ``evil.py`` in it leaves the file ``ran`` when it is imported."""
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield tmp_path
    sys.modules.pop("evil", None)


def run_of(folder: Path, **env: Any) -> Path:
    """A run's folder, as far as a command reads it before it loads a model."""
    (folder / "checkpoints" / "best").mkdir(parents=True)
    (folder / "checkpoints" / "best" / "state.pt").touch()
    settings = json.loads(json.dumps(Settings().to_dict()))
    settings["env"] |= env
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def episode(env_id: str) -> Episode:
    """One step of an environment of that id."""
    said = "<action>x</action>"
    step = Transition(env_id, "t", "e", 0, "", "before", said, "x", 0.0, "after", True, False, True)
    return Episode(env_id, "t", "e", transitions=[step])


def paw(*arguments: object) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as end:
        main(list(map(str, arguments)))
    return int(end.value.code or 0)


@pytest.mark.parametrize("env_id", ["evil:me/X-v0", f"evil:{ALFWORLD}"])
@pytest.mark.parametrize(
    "command", ["eval run --limit 1", "eval-wm run", "eval-wm plain --episodes e.jsonl"]
)
def test_no_module_that_a_file_names_is_imported(
    command: str, env_id: str, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(stranger / "run", id=env_id)
    run_of(stranger / "plain")
    for name in ("e.jsonl", "episodes_after.jsonl"):
        write_jsonl(stranger / name, [episode(env_id)])
    code, said = paw(*command.split()), " ".join(capsys.readouterr().err.split())
    assert not (stranger / "ran").exists()
    if ALFWORLD not in env_id:  # else it is here under that id
        assert code == 2 and "add --import evil" in said


def test_nor_for_an_export_of_tokens(stranger: Path) -> None:
    pytest.importorskip("transformers")
    from paw_train.policies.local.scratch import word_tokenizer
    from paw_train.rollouts.token_export import write_tokens

    sys.path.append(str(stranger))
    with pytest.raises(ValueError, match="--import evil"):
        write_tokens(stranger / "out", [episode("evil:me/X-v0")], word_tokenizer(["a b"]))
    assert not (stranger / "ran").exists()


def test_the_current_folder_is_no_place_to_import_from_unless_a_module_is_named(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paw("envs") == 0
    with pytest.raises(ImportError):
        __import__("evil")
    paw("eval", run_of(stranger / "run", id="evil:me/X-v0"), "--import", "evil")
    assert (stranger / "ran").exists()
    assert "not registered" in capsys.readouterr().err  # it was imported, and registers nothing


def test_no_address_is_asked_and_no_variable_sent(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    with FakeEndpoint() as server:
        remote = {"url": server.url, "remote_id": ALFWORLD, "token": "env:HF_TOKEN"}
        assert paw("eval", run_of(stranger / "run", id="paw_gym/Remote-v0", kwargs=remote)) == 2
        assert (server.seen, server.asked_models) == (0, 0)
    error = " ".join(capsys.readouterr().err.split())
    assert "env.kwargs.url=... env.kwargs.token=..." in error
    assert "hunter2" not in error


def test_the_owner_is_told_what_to_add_and_it_is_enough() -> None:
    data = {"env": {"id": f"mine:{ALFWORLD}", "kwargs": {"data_dir": "/my/games", "max_steps": 9}}}
    with pytest.raises(ValueError, match=r"give it yourself: env\.kwargs\.data_dir=/my/games$"):
        recorded_settings(data, "run", (), ("env",))
    given = ["env.kwargs.data_dir=/my/games"]
    found = recorded_settings(data, "run", given, ("env",))
    assert found == {"env": {"id": ALFWORLD, "kwargs": {"max_steps": 9}}}
    mixed = {"env": [{"id": ALFWORLD, "name": "a", **data["env"]}, {"id": "evil:me/X-v0"}]}
    chosen = recorded_settings(mixed, "run", ["env=a", *given], ("env",))
    assert chosen["env"][0]["kwargs"] == {"max_steps": 9}
    with pytest.raises(ValueError, match="add --import MODULE"):
        recorded_id("me/Unknown-v0", "run")


def test_null_of_a_setting_that_is_gone_does_not_stop_a_run_from_being_measured(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"rollout": {"top_k": 0, "episode_seconds": null}}')
    assert read_recorded(config) == {"rollout": {"top_k": 0}}


def test_a_downloaded_data_set_is_nobodys_to_name() -> None:
    from paw_gym.data import default_folder

    kwargs = {"data_dir": str(default_folder("alfworld"))}
    assert recorded_env({"id": ALFWORLD, "kwargs": kwargs}, "run").kwargs == kwargs


@pytest.mark.parametrize(
    "name", [f"{group}.{n}".lstrip(".") for group, c in groups_of(Settings) for n in c.model_fields]
)
def test_no_setting_locates_anything(name: str) -> None:
    """A new field needs no entry here: whatever a command takes from a run is looked at."""
    defaults = json.dumps(Settings().to_dict())
    for attack in ATTACKS:
        for value in (attack, [attack], {"x": {attack: 1}}):
            data: Any = json.loads(defaults)
            *groups, last = name.split(".")
            place = data
            for group in groups:
                place = place.setdefault(group, {})
            place[last] = value
            try:
                kept = recorded_settings(data, "run", (), program._OF_THE_RUN)
            except ValueError:
                continue
            assert attack not in json.dumps(kept).replace("\\\\", "\\"), (name, value)


@pytest.mark.parametrize("env_id", text_env_ids())
def test_no_argument_of_an_environment_locates_anything(env_id: str) -> None:
    creator: Any = creator_of(env_id)
    for name, parameter in inspect.signature(creator).parameters.items():
        for attack in (*ATTACKS, *(["word"] if "Path" in str(parameter.annotation) else [])):
            with pytest.raises(ValueError, match="because a file names it"):
                recorded_env({"id": env_id, "kwargs": {name: attack}}, "run")


def test_ordinary_values_locate_nothing() -> None:
    for value in ("bm25", "synthetic", "GoToLocal", "cuda:0", "take {o} from {r}", "0.5", ALFWORLD):
        assert located("retriever", value) is None, value
    goals = [{"asin": "B0", "instruction_text": "a red/blue shirt, see http://x"}]
    assert recorded_env({"kwargs": {"goals": goals}}, "run").kwargs == {"goals": goals}
