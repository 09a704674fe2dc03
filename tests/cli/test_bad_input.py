"""Mistakes on the command line: one sentence, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import python
from typer.testing import CliRunner

from paw_train import evaluate, load_recipe
from paw_train.cli.program import app

PARROTS = """
from paw_gym import Outcome, Task, register_text_env

@register_text_env("me/Parrot-v0", tasks=[Task("hello", "Say 'hello'.")])
def parrot(task, rng):
    action = yield Outcome("The parrot looks at you.")
    while action != task.id:
        action = yield Outcome("The parrot waits.")
    yield Outcome("It repeats the word.", reward=1.0, terminated=True, success=True)
"""
UNMADE = """
from paw_gym import Outcome, Task, TaskSet, TextEnv, register_text_env

class Needs(TextEnv):
    def __init__(self, size, colour, max_steps=3, render_mode=None):
        super().__init__(TaskSet.from_tasks([Task("a", "Say a.")]), max_steps, render_mode)
    def _start(self, task): return Outcome("Begin.")
    def _act(self, action): return Outcome("Done.", terminated=True)

class Raises(Needs):
    def __init__(self, max_steps=3, render_mode=None):
        raise RuntimeError("no engine here")

class Forgets(Needs):
    def __init__(self, max_steps=3, render_mode=None):
        self.size = 1

class Adds(Needs):
    def __init__(self, size=1, max_steps=3, render_mode=None):
        super().__init__(size + 1, "red", max_steps, render_mode)

class Breaks(Needs):
    def __init__(self, late=True, max_steps=3, render_mode=None):
        super().__init__(1, "red", max_steps, render_mode)
        self.late = late
    def _start(self, task):
        if not self.late:
            raise RuntimeError("first line\\nsecond line")
        return Outcome("Begin.")
    def _act(self, action): return [][0]
    def reference_solution(self): return ["a"]

class Fails(Breaks):
    def reference_solution(self): return 1 / 0

for kind in (Needs, Raises, Forgets, Adds, Breaks, Fails):
    register_text_env(f"me/{kind.__name__}-v0", kind)
"""
FILES = {
    "parrots.py": PARROTS,
    "unmade.py": UNMADE,
    "unfinished.py": "def (\n",
    "needy.py": "import a_package_that_nobody_has\n",
    "list.yaml": "- 1\n- 2\n",
    "tokens": "# none\n",
    "broken.yaml": "updates: [1\n",
    "twice.yaml": "env: {id: paw_gym/Rules-v0}\nupdates: 1\nenv: {mode: window}\n",
    "binary.yaml": b"updates: 1 # \xff\n",
    "circle.yaml": "base: other.yaml\n",
    "other.yaml": "base: circle.yaml\n",
    "unknown.yaml": "updtes: 3\n",
    "grid.yaml": "recipe: smoke\narms: {}\n",
    "grid-arm.yaml": "recipe: smoke\narms: {a: {updates: -1}}\n",
    "empty.jsonl": "",
    "cut.jsonl": '{"env_id": "paw_gym/ALFWorld-v0", "task_id": "x", "epis',
    "other.jsonl": '{"some": "thing"}\n',
    "binary.jsonl": b"\xff\xfe\x00\x80\n",
    "corpus.jsonl": '{"id": 1, "contents": "a text"}\n',
    "twice.jsonl": '{"id": 1, "contents": "a"}\n{"id": 1, "contents": "b"}\n',
    "fake.parquet": "PAR1 but not really",
    "episodes.txt": "",
    "prices.json": "{",
    "damaged/result.json": '{"panel": "x", ',
    "foreign/result.json": '{"some": "thing"}',
    "deep/result.json": "[" * 100_000,
    "scored/result.json": json.dumps(
        {
            **dict.fromkeys(["panel", "panel_hash", "env_id"], "x"),
            "n": 1,
            "success_rate": 0.5,
            "ci95": [0, 1],
            "agent": "plain",
            "score": 3,
            "runs": "x",
        }
    ),
    "run/config.json": "{",
    "run/checkpoints/keep": "",
    "old/config.json": '{"gone_setting": 1}',
    "old/checkpoints/keep": "",
    "started/config.json": json.dumps({"name": "started", "updates": 3}),
    "emptyfolder/keep": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "here"
    for name, content in FILES.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


@pytest.fixture
def here(folder: Path, own_environments: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Their folder as the current one; nothing in it may change."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PAW_CACHE_DIR", str(folder.parent / "cache"))
    for module in ("parrots", "unmade", "unfinished", "needy"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("PAW_SERVE_TOKEN", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:9/v1")
    before = listing(folder)
    yield folder
    assert listing(folder) == before, "something was left behind"


def listing(folder: Path) -> dict[str, bytes | None]:
    """The content of files; ``None`` for a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


SETTINGS = {
    "updates=many": "updates: expected int, got 'many'",
    "updtes=3": "Did you mean 'updates'",
    "threads=100000": "threads is in [1, 1024], or null, got 100000",
    "warm_starts=list.yaml": "warm_starts=list.yaml is a file; expected a folder",
    "out=list.yaml": "list.yaml",
    "seed=-3": "seed is in [0, 4294967296), got -3",
    "name=../../evil": "name is the name of one folder",
    'name=""': "name is not empty",
    "engine=locl": "engine: 'locl' is not available. Did you mean 'local'",
    "engine=openrlhf": "engine: openrlhf",
    "rollout.engine=vllm": "rollout.engine=vllm needs vLLM",
    "rollout.group_size=1": "compares the episodes of a group",
    "rollout.temperature=-1": "rollout.temperature is 0 or more",
    "rollout.temperature=0": "training learns from samples",
    "rollout.temperature=.nan": "finite",
    "rollout.group_sze=4": "Did you mean 'rollout.group_size'",
    "rollout=3": "rollout is a group of settings",
    "evaluation.selection_tasks=0": "evaluation.every=0",
    "evaluation.split=valid_unsen": "Did you mean 'valid_unseen'",
    "algorithm.name=gipo": "Did you mean 'gigpo'",
    "algorithm.gamma=1.5": "algorithm.gamma is in [0, 1], or null, got 1.5",
    "world_model.alpha=0": "alpha",
    "world_model.filter_patterns=['(']": "world_model.filter_patterns: '(' is not a regular expression",
    "model.device=gpu": "Unknown device 'gpu'",
    "model.device=cuda": "sees no CUDA device",
    "model.dtype=float16": "model.dtype",
    "model.scratch.tokenizer=bytes": "model.scratch.tokenizer: 'bytes' is not available",
    "model.scratch.pieces=100": "model.scratch.pieces is 512 or more",
    "model.scratch.heads=3": "model.scratch.heads",
    "model.path=no/where": "Use `paw train llm model.path=no/where` (LoRA adapters) or `paw train llm_full",
    "model.lora.rank=4": "model.path",
    "model.revision=v1": "model.path=OWNER/MODEL",
    "env.id=paw_gym/ALFWrld-v0": "Did you mean 'paw_gym/ALFWorld-v0'",
    "env.id=parrots:me/Parot-v0": "Did you mean 'me/Parrot-v0'",
    "env.id=nobody:me/Parrot-v0": "No module named 'nobody'",
    "env.id=needy:me/Parrot-v0": "a_package_that_nobody_has",
    "env.id=unfinished:me/Parrot-v0": "unfinished.py, line 1",
    "env.kwargs.variaton=real": "env.kwargs.variaton: paw_gym/ALFWorld-v0 has no setting 'variaton'. Did",
    "env.train_kwargs.max_step=3": "env.train_kwargs.max_step: ",
    "env.kwargs.split=train": "env.train_split",
    "env.kwargs=5": "env.kwargs: expected dict[str, any], got 5 (int)",
    "env.kwargs.data_dir=nowhere": "nowhere",
    "env.kwargs.token=abc": "holds a secret",
    "justakey": "Expected key=value, got 'justakey'",
}

COMMANDS = {
    "train smok": "Did you mean 'smoke'",
    "train nowhere.yaml": "There is no recipe file 'nowhere.yaml'",
    "train list.yaml": "list.yaml holds a list",
    "train broken.yaml": "broken.yaml is not valid YAML",
    "train twice.yaml": "the key env stands twice",
    "train circle.yaml": "each other's base: circle -> other -> circle",
    "train unknown.yaml": "Did you mean 'updates'",
    "train smoke rollout.lr=1": "Did you mean 'cloning.lr', 'algorithm.critic.lr' or 'optimizer.lr'",
    "train smoke rollout.seed=1": "Did you mean 'seed' or 'evaluation.seed'",
    "train smoke out=. name=started": "started holds a run with other settings",
    "train smoke --plan": "model.path is null",
    "train smoke algorithm.name=ppo algorithm.penalty=step": "algorithm.penalty is step, but ppo",
    "train smoke algorithm.name=ppo algorithm.dynamic_sampling=2 rollout.group_size=1": "there are no groups",
    "train alfworld_qwen2.5-7b_grpo openrlhf.gpu=h10 engine=openrlhf --plan": "Did you mean 'h100'",
    "train llm_full model.path=Qwen/Qwen2.5-7B-Instrukt --plan": "Did you mean 'Qwen/Qwen2.5-7B-Instruct'",
    "train many_worlds env=sokobam": "Did you mean 'sokoban'",
    "train smoke world_model.preset=off world_model.enabled=true": "give world_model.enabled=false as well",
    "train smoke world_model.placebo=true env.mode=conversation": "in a dialogue would change what later",
    "train smoke world_model.enabled=false objective.policy_coef=0": "so nothing is learned",
    "train embedded rollout.engine=vllm": "or model.scratch.architecture=llama",
    "eval nowhere": "There is no model folder 'nowhere': give",
    "eval ./startd": "(did you mean 'started'?)",
    "eval runs/nothing": "There is no model folder 'runs/nothing': give",
    "eval expert evaluation.tasks=0": "evaluation.tasks is 1 or more",
    "eval expert --agent plain": "is an agent itself",
    "eval expert model.revision=v1": "model.revision: the agent 'expert' asks no model",
    "eval react endpoint.url=http://localhost:9/v1": "paw eval MODEL --agent react",
    "eval damaged": "holds an evaluation (result.json) and no model",
    "eval expert --agent recat": "Did you mean 'react'",
    "eval expert --panel alfworld/procedral": "Did you mean 'alfworld/procedural'",
    "eval openai:x --panel sudoku/4x4,alfworld/procedral": "Did you mean 'alfworld/procedural'",
    "eval openai:x --agent search_r1 agent.action_format=tools": "form of that agent's own",
    "eval openai:x --agent search_r1": "paw_gym/SearchQA-v0",
    "eval openai:x --agent react agent.example=1": (
        "Unknown setting 'agent.example'. Did you mean 'agent.examples'"
    ),
    "eval openai:x --agent reflexion agent.trials=0": "agent.trials is 1 or more, got 0",
    "eval openai:x --agent self_consistency evaluation.temperature=0": "set evaluation.temperature=0.7",
    "eval openai:x agent.action_format=tools env.template=compact": "{ask}",
    "eval openai:x agent.action_format=toools": "'toools'",
    "eval expert --panel alfworld/procedural env.id=paw_gym/WebShop-v0": "the panel is of paw_gym/ALFW",
    "eval expert --panel search_qa/nq": "needs real data: give its folder as env.kwargs.data_dir=DIR",
    "eval expert env.kwargs.split=train": "evaluation.split",
    "eval expert env.id=parrots:me/Parrot-v0": "me/Parrot-v0 has no expert",
    "eval random env.id=parrots:me/Parrot-v0 evaluation.split=x": "me/Parrot-v0 has no splits",
    "check my_lab/Quest-v0": "registers is MODULE:my_lab/Quest-v0",
    "eval expert endpoint.url=http://x": "behind openai:MODEL",
    "eval openai:": "names no model",
    "eval run": "config.json",
    "eval old": "has no checkpoint yet",
    "eval expert --out started": "started is the folder of a run or of a model",
    "eval-wm expert": "'expert' is an agent without a model",
    "eval-wm openai:gpt": "gives no probabilities of given tokens; a world model is measured on weights",
    "eval-wm nowhere --source exprt": "Did you mean 'expert'",
    "eval-wm nowhere --episodes nowhere.jsonl": "nowhere.jsonl",
    "compare embeded_wm": "Did you mean 'embedded_wm'",
    "compare smoke": "is a recipe, not a grid",
    "compare broken.yaml": "broken.yaml",
    "compare grid.yaml": "arms",
    "compare grid-arm.yaml": "Arm 'a': updates is 0 or more",
    "compare embedded_wm --seeds 0": "asks for no runs",
    "compare embedded_wm --import nowhere.json --show": "nowhere.json",
    "conformance --engine locl": "expected one of local, openrlhf, or module:Class",
    "conformance --engine json:JSONDecoder": "is not a trainer",
    "conformance --fault penalty": "penalty_lost",
    "table nowhere": "nowhere",
    "table damaged": "damaged/result.json",
    "table foreign": "There is no result",
    "compare-results foreign foreign": "lacks env_id, n, panel, panel_hash, runs",
    "report nowhere": "There is no run folder 'nowhere'",
    "report emptyfolder": "expected at least one of config.json",
    "view nowhere": "no folder 'nowhere'",
    "view emptyfolder": "'emptyfolder' holds no run",
    "play Boxs": "There is no text environment 'Boxs'",
    "play ALFWorld --task x": "There is no task 'x'",
    "check unmade:me/Needs-v0": "missing 2 required positional arguments: 'size' and 'colour'",
    "check unmade:me/Raises-v0": "RuntimeError: no engine here (unmade.py, line 12)",
    "replay foreign": "is no result of `paw eval`",
    "replay empty.jsonl --panel emptyfolder": "emptyfolder holds no panel: `paw panel export` writes one",
    "table deep": "deep/result.json is no result",
    "table scored": "scored/result.json is not a whole result of `paw eval`",
    "compare-results scored scored": "scored or scored is not a whole result of `paw eval`",
    "eval random agent.samples=3": "agent.samples: 'random' has no settings; --agent names another",
    "check unmade:me/Forgets-v0": "does not call super().__init__(tasks, max_steps, render_mode)",
    "check unmade:me/Adds-v0 --kw size=many": "cannot be made with size: TypeError: can only concatenate",
    "play unmade:me/Breaks-v0 --kw late=false": "reset: the environment raised RuntimeError: first line "
    "second line (unmade.py, line 28)",
    "sft-data unmade:me/Breaks-v0 out --expert": "Task 'a': the environment raised IndexError: list index",
    "eval expert env.id=unmade:me/Fails-v0": "The expert: the environment raised ZeroDivisionError",
    "check ./parrots.py:me/Parrot-v0": "'./parrots.py' is not the name of a Python module",
    "eval expert agent=5": "agent=5: expected settings of the agent",
    "eval openai:x endpoint.url=http://localhost:9/v1 endpoint.cache=.": "is no cache of answers",
    "eval openai:x endpoint.url=http://localhost:9/v1 endpoint.cache=null endpoint.retries=0": "Is the "
    "server running",
    "eval . model.revision=v1": "model.revision=v1 is of a model on the hub",
    "eval random env.kwargs.data_dir=5": "cannot be made with data_dir, split: TypeError: expected str",
    "check SearchQA --kw corpus=corpus.jsonl": "dataset='synthetic' writes the passages",
    "check ALFWorld --kw 3": "Expected key=value, got '3'",
    "check ALFWorld --only infokeys": "Did you mean 'info_keys'",
    "data download alfwrld": "Did you mean 'alfworld'",
    "data download alfworld --mirror x --from-folder .": "either --mirror or --from-folder",
    "data download alfworld --from-folder nowhere": "nowhere",
    "data verify alfworld": "paw data download alfworld",
    "data verify alfworld --dest emptyfolder": "was not made by `paw data download`",
    "index build bm52 corpus.jsonl index": "Did you mean 'bm25'",
    "index build bm25 nowhere.jsonl index": "There is no corpus file nowhere.jsonl",
    "index build bm25 empty.jsonl index": "empty.jsonl holds no passage",
    "index build bm25 twice.jsonl index": "twice.jsonl: lines 1 and 2 have the same id",
    "serve retriever": "corpus",
    "serve retriever --corpus corpus.jsonl --index nowhere": "nowhere",
    "serve retriever --corpus corpus.jsonl --threads 0": "threads",
    "serve retriever --corpus corpus.jsonl --host 0.0.0.0 --no-token": "so a token is needed",
    "serve webshop --token mine --no-token": "Give either --token or --no-token",
    "serve gateway --token mine --no-token": "Give either --token or --no-token",
    "serve webshop --token schlüssel": "beyond ASCII",
    "serve webshop --token ' '": "token is empty",
    "serve webshop --port -1": "port is between 0 and 65535",
    "serve webshop --port 65536": "port is between 0 and 65535",
    "serve webshop --data-dir nowhere": "nowhere",
    "serve webshop --prices prices.json": "prices is not valid JSON",
    "serve webshop --num-products 0": "num_products",
    "serve gateway --tokens-file nowhere": "nowhere",
    "serve gateway --tokens-file tokens": "tokens holds no token",
    "serve gateway --private-key nowhere.pem": "no PEM file nowhere.pem",
    "serve gateway --set data_dir=/data": "Expected ENV:KEY=VALUE",
    "serve gateway --workers 0": "workers must be positive",
    "serve gateway --step-seconds -1": "step_seconds must be positive",
    "serve gateway --import nobody": "nobody",
    "export nowhere out --to jsonl": "There is no nowhere",
    "export episodes.txt out.jsonl --to jsonl": "not a file of episodes by its name",
    "export empty.jsonl out --to json": "There is no form 'json'",
    "export empty.jsonl out --to ids": "Valid: 'datasets', 'jsonl', 'parquet', 'tokens'",
    "export other.jsonl out.jsonl --to jsonl": "other.jsonl, line 1",
    "export binary.jsonl out.jsonl --to jsonl": "binary.jsonl, line 1",
    "export fake.parquet out.jsonl --to jsonl": "fake.parquet",
    "sft-data cut.jsonl out": "cut.jsonl, line 1",
    "sft-data cut.jsonl out --only polcy": "Unknown kind of example 'polcy'. Did you mean 'policy'",
    "sft-data empty.jsonl out": "No example of the kind 'policy' in 0 episodes",
    "pley ALFWorld": "Did you mean 'play'",
    "new-env 9lives": "begin with a letter",
    "new-env ../evil": "cannot name a package",
    "new-env mäze": "ASCII letters",
    "new-env paw-gym": "already a Python module 'paw_gym'",
    "new-env import": "a word of Python's own",
    "new-env emptyfolder": "nothing is overwritten",
    "new-env x-y --into nowhere": "There is no folder nowhere",
    "train binary.yaml": "Recipe binary.yaml is not valid YAML",
}


def refused(args: list[str]) -> str:
    """What is said; one line, or the usage and one line."""
    done = CliRunner().invoke(app, args)
    said = done.stderr
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert "Traceback" not in done.output
    if not said.startswith("Usage: "):
        assert said.startswith("Error: "), said
        assert said.count("\n") == 1, said
    return " ".join(said.replace("│", " ").split())


@pytest.mark.parametrize(("override", "message"), SETTINGS.items(), ids=SETTINGS)
def test_a_setting_that_will_not_do(here: Path, override: str, message: str) -> None:
    assert message in refused(["train", "smoke", override])


@pytest.mark.parametrize(("command", "message"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_that_will_not_do(here: Path, command: str, message: str) -> None:
    assert message in refused(shlex.split(command))


@pytest.mark.parametrize(
    "command", ["view run", "serve webshop", "serve retriever", "serve gateway"]
)
def test_a_port_in_use(here: Path, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused([*shlex.split(command), "--port", str(port)])
    assert f"Port {port} of 127.0.0.1 cannot be listened on: Address already in use" in said


def test_the_same_in_a_process_of_its_own(here: Path) -> None:
    for command, message in (
        ("train smoke updates=-1", "updates is 0 or more, got -1"),
        (f"eval random agent.x={'x' * 300}", "agent.x: 'random' has no settings"),
        ("eval expert env.id=parrots:me/Parot-v0", "Did you mean 'me/Parrot-v0'"),
    ):
        done = python("-m", "paw_train.cli", *command.split(), PYTHONDONTWRITEBYTECODE="1")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert message in done.stderr and done.stderr.count("\n") == 1


def test_what_to_do_next_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paw_train.train", lambda settings, **_: tmp_path)
    line = f"Next: open {tmp_path / 'report.html'}; `paw eval {tmp_path}"
    stopped = CliRunner().invoke(app, ["train", "many_worlds"])
    assert "The run is in" in stopped.output and "Next" not in stopped.output, "it has no report"
    assert stopped.exit_code == 130
    (tmp_path / "report.html").touch()
    (tmp_path / "eval_after.json").touch()
    assert f"{line} env=alfworld`" in CliRunner().invoke(app, ["train", "many_worlds"]).output
    finished = CliRunner().invoke(app, ["train", "smoke"])
    assert finished.exit_code == 0 and f"{line}`" in finished.output
    adapter = CliRunner().invoke(app, ["train", "llm", f"model.path={tmp_path}"])
    assert f"{line} model.lora.base={tmp_path}`" in adapter.output


def test_settings_of_a_recipe_are_texts() -> None:
    for call in (load_recipe, evaluate):
        with pytest.raises(ValueError, match=r"argument 'key=value', got \['seed=1'\]"):
            call("smoke", ["seed=1"])  # type: ignore[arg-type]
