"""Evaluations that resume, panels that are what they were, comparisons that refuse."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import load
from programs import said
from scripted import ScriptedPolicy
from trajectories import made_up

from paw_gym import Outcome, Task, make_agent_env, register_text_env
from paw_gym.envs.alfworld.games import find_root
from paw_gym.internals.locks import only_process
from paw_gym.retrieval import Hit, RetrieverError
from paw_gym.retrieval.bm25 import BM25Retriever
from paw_gym.retrieval.simulated import SimulatedRetriever
from paw_gym.transition import Episode
from paw_train.agents.metering import exchanges
from paw_train.environments import agent_env_maker
from paw_train.evaluation import PANELS, PanelRun, Plan, evaluate_from_args, make_panel
from paw_train.evaluation.comparison import compare, load_result, reasons_against
from paw_train.evaluation.fingerprint import behaviour_hash, public
from paw_train.evaluation.panels import Panel, panel_title
from paw_train.evaluation.runner import environment_seeds
from paw_train.evaluation.summary import summarise
from paw_train.evaluation.terminal import result_lines
from paw_train.rollouts.policy import Request
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings

LEADERBOARD = load("scripts/leaderboard.py")
ENV = EnvSettings(kwargs={"max_steps": 3, "num_tasks": 40})


class Scripted(ScriptedPolicy):
    """Takes an action that the prompt lists, drawn by the request's seed.

    Args:
        stop_after: interrupts as Ctrl-C does once so many answers were given.
    """

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__(self._drawn)
        self.stop_after, self.given = stop_after, 0

    def _drawn(self, request: Request) -> str:
        if self.given == self.stop_after:
            raise KeyboardInterrupt
        self.given += 1
        prompt = request.messages[-1]["content"]
        actions = re.findall(r"^(?:go to|open|take) .*$", prompt, re.MULTILINE) or ["look"]
        return f"<think>hm</think><action>{actions[request.seed % len(actions)]}</action>"


def make_plan(
    env: EnvSettings = ENV, size: int = 6, seeds: Sequence[int] = (1, 2), **more: Any
) -> Plan:
    probe = agent_env_maker(env, "valid_seen")()
    panel = make_panel(probe.tasks, "some", size, 5)
    return Plan(env, "valid_seen", panel, 5, RolloutSettings(), tuple(seeds), **more)


def played(agent: str, out: Path, *settings: str, panel: str | None = None) -> dict[str, Any]:
    """The result of an evaluation as ``paw eval`` makes it."""
    return load_result(evaluate_from_args(agent, settings, str(out), panel=panel))


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("agent", ["policy", "react", "best_of_n"])
def test_an_evaluation_that_was_cut_ends_as_one_that_was_not(tmp_path: Path, agent: str) -> None:
    plan = make_plan(agent=agent, batch=2)
    whole, episodes = PanelRun(plan, Scripted(), "m").evaluate()
    log = tmp_path / "episodes.jsonl.part"
    given = []
    calls = whole["model_calls"]
    for stop in (calls // 3, calls // 4, 1, None):
        policy = Scripted(stop)
        try:
            result, again = PanelRun(plan, policy, "m").evaluate(log)
        except KeyboardInterrupt:
            with log.open("a") as file:
                file.write('{"seed": 1, "episo')  # and a line that a kill cut short
        given.append(policy.given)
    assert timeless(result) == timeless(whole)
    assert [e.to_dict() for e in again] == [e.to_dict() for e in episodes]
    assert given[-1] < calls  # what was finished was not played again
    policy = Scripted(1)  # killed before the result was written: the log has everything
    assert timeless(PanelRun(plan, policy, "m").evaluate(log)[0]) == timeless(whole)
    assert policy.given == 0


def test_another_evaluation_does_not_take_over_the_episodes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plan = make_plan(seeds=(1,))
    with pytest.raises(KeyboardInterrupt):
        PanelRun(dataclasses.replace(plan, batch=1), Scripted(10), "m").evaluate(log)
    assert len(log.read_text().splitlines()) > 1
    hotter = dataclasses.replace(plan, rollout=RolloutSettings(temperature=0.5))
    policy = Scripted()
    result, _ = PanelRun(hotter, policy, "m").evaluate(log)
    assert policy.given == result["model_calls"]
    keys = {
        PanelRun(changed, Scripted(), model).key
        for changed, model in [
            (plan, "m"), (plan, "n"), (hotter, "m"),
            (dataclasses.replace(plan, agent="cot"), "m"),
            (dataclasses.replace(plan, env=ENV.replace(history_length=0)), "m"),
        ]
    }  # fmt: skip
    assert len(keys) == 5
    more = dataclasses.replace(plan, seeds=(1, 2), batch=3)
    assert PanelRun(more, Scripted(), "m").key in keys


def test_two_processes_do_not_evaluate_into_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = ["env.kwargs.num_tasks=2", "env.kwargs.max_steps=2", "evaluation.tasks=1"]
    with only_process(out):  # which a second taker in this process cannot have either
        with pytest.raises(ValueError, match=r"Another process is working in .*out\..*--out"):
            played("random", out, *settings)
        assert list(out.iterdir()) == []
    assert played("random", out, *settings)["n"] == 1


def test_an_episode_without_its_search_engine_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def search(self: BM25Retriever, queries: Sequence[str], *more: Any) -> list[list[Hit]]:
        asked.extend(queries)
        if len(asked) == 1:
            raise RetrieverError("the server is gone")
        return [[] for _ in queries]

    found = functools.partial(played, "expert", tmp_path, panel="search_qa/synthetic")
    monkeypatch.setattr(BM25Retriever, "search", search)
    result = found("evaluation.tasks=3")
    assert (result["n"], result["errors"], result["complete"]) == (2, 1, False)
    assert "did not answer: the server is gone" in result["first_error"]
    assert found("evaluation.tasks=3")["complete"], "the same command plays it again"


def test_the_summary_is_what_the_episodes_say() -> None:
    env = ENV.replace(kwargs={"max_steps": 40})
    plan = make_plan(env, size=8, seeds=(1, 2, 3), agent="random")
    result, episodes = PanelRun(plan, None).evaluate()
    table = np.array([e.success for e in episodes]).reshape(3, 8)
    assert result["n"] == 8
    assert result["success_rate"] == pytest.approx(table.mean())
    assert [r["successes"] for r in result["runs"]] == ["".join(map(str, row)) for row in table * 1]
    assert result["mean_steps"] == pytest.approx(np.mean([len(e.transitions) for e in episodes]))
    low, high = result["ci95"]
    assert 0 <= low <= result["success_rate"] <= high <= 1
    assert sum(part["n"] for part in result["by_type"].values()) == 8
    assert "successes" not in result
    assert [e.task_id for e in episodes] == list(plan.panel.task_ids) * 3


def test_what_an_expert_gives_up_is_unsolved(own_environments: None, tmp_path: Path) -> None:
    def doors(task: Task, rng: Any) -> Iterator[Outcome]:
        yield Outcome("Two doors.")
        yield Outcome("One more.")
        yield Outcome("Out.", reward=1.0, terminated=True, success=True)

    plans = {"stuck": [], "half": ["open"]}
    register_text_env(
        "test/GivingUp-v0",
        doors,
        tasks=[Task(name, "Get out.") for name in ("a", "stuck", "b", "half")],
        solve=lambda task, rng: plans.get(task.id, ["open", "open"]),
    )
    settings = ["env.id=test/GivingUp-v0", "evaluation.tasks=4"]
    result = played("expert", tmp_path, *settings)
    assert (result["n"], result["success_rate"], result["complete"]) == (4, 0.5, True)
    assert result["errors"] == 0
    assert sorted(result["runs"][0]["successes"]) == ["0", "0", "1", "1"]
    # an environment without splits has none in its result
    assert (result["environment"]["split"], result["panel"]) == (None, "test/GivingUp-v0/4")
    page = LEADERBOARD.page([LEADERBOARD.published(result)])
    assert "4 tasks of `test/GivingUp-v0`; " in page
    # an agent finds words where nothing is listed
    assert played("random", tmp_path / "random", *settings)["success_rate"] == 1.0


def test_calls_that_no_action_came_of_are_counted_and_recorded(own_environments: None) -> None:
    def hall(task: Task, rng: Any) -> Iterator[Outcome]:
        while True:
            yield Outcome("A hall.")
            if task.id == "other":
                yield Outcome("Out.", 1.0, True, True)

    def answers(request: Request) -> str | Exception:
        asked.append(request.episode[:5])
        if asked.count(request.episode[:5]) == {"early": 3, "late/": 6}.get(asked[-1]):
            return TimeoutError("gone")
        return f"<think></think><action>look {len(asked)}</action>"

    asked: list[str] = []
    register_text_env(
        "test/Hall-v0", hall, tasks=[Task(i, "Go.") for i in ("early", "late/", "other")]
    )
    env = EnvSettings(id="test/Hall-v0")
    panel = make_panel(agent_env_maker(env, "")().tasks, "some", 3, 5)
    votes = {"samples": 3}
    plan = Plan(env, "", panel, 5, RolloutSettings(), (1,), "self_consistency", votes)
    result, episodes = PanelRun(plan, ScriptedPolicy(answers), "m").evaluate()
    early, late, _ = sorted(episodes, key=lambda e: e.task_id)
    assert (early.error, early.transitions) == ("gone", [])
    assert late.error == "gone"
    assert [e.step for e in exchanges(late)] == [0] * 5
    assert late.transitions[0].info["agent"]["spent"]["calls"] == 5
    assert result["model_calls"] == 10


def test_an_environment_that_fails_in_a_task_costs_that_task(
    own_environments: None, tmp_path: Path
) -> None:
    def hall(task: Task, rng: Any) -> Iterator[Outcome]:
        yield Outcome("A hall.", admissible_actions=["go"])
        if task.id == "raises":
            raise ZeroDivisionError("as told")
        yield Outcome("The end.", 1.0, True, True, admissible_actions=[])

    tasks = [Task(name, "Go.") for name in ("a", "b", "c", "raises")]
    register_text_env("test/Hall-v0", hall, tasks=tasks)
    settings = "env.id=test/Hall-v0 evaluation.tasks=4"
    result = played("random", tmp_path, *settings.split())
    assert (result["n"], result["success_rate"]) == (3, 1.0)
    assert result["failed_tasks"] == ["raises"]
    told = " ".join(result_lines(result))
    assert "Failed: raises" in told and "as told" in told
    assert behaviour_hash(make_agent_env("test/Hall-v0").text_env, ["raises"])


def test_the_seed_of_a_run_decides_its_environments_seeds() -> None:
    panel = Panel("p", ("a", "b"), "")
    one, two = environment_seeds(panel, 1), environment_seeds(panel, 2)
    assert one == {"a": 1016164991, "b": 1099128569}  # in every version: results are compared
    assert not {*one.values()} & {*two.values()}


class TestPanels:
    def test_a_panel_is_the_same_in_every_process(self, tmp_path: Path) -> None:
        """Pinned hashes come from other processes, which had other hash seeds and caches."""
        code = (
            "from paw_train.evaluation import PANELS, agent_env_maker, make_panel\n"
            "from paw_train.settings import EnvSettings\n"
            "for name, s in PANELS.items():\n"
            "    if s.hash:\n"
            "        env = EnvSettings(id=s.env_id, kwargs=dict(s.kwargs))\n"
            "        tasks = agent_env_maker(env, s.split)().tasks\n"
            "        print(name, make_panel(tasks, 'x', s.size or len(tasks), s.seed).hash[:16])\n"
        )
        printed = said("-c", code, PYTHONHASHSEED="1", PAW_CACHE_DIR=str(tmp_path))
        pinned = {name: spec.hash for name, spec in PANELS.items() if spec.hash}
        assert {"alfworld/procedural", "webshop/generated", "search_qa/synthetic"} <= set(pinned)
        assert dict(line.split() for line in printed.splitlines()) == pinned

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(n, marks=pytest.mark.original if n.startswith("textworld/") else ())
            for n, s in PANELS.items()
            if s.dataset is None and "tau2" not in n
        ],
    )
    def test_panels_without_data_can_be_played(self, name: str, tmp_path: Path) -> None:
        if name.startswith("textworld/"):
            pytest.importorskip("textworld", reason="make test-original")
        result = played("random", tmp_path, "evaluation.tasks=1", panel=name)
        assert result["panel"] == f"{name}[1]"
        assert result["environment"]["behaviour"]

    def test_a_panel_in_another_environment_is_not_that_panel(self, tmp_path: Path) -> None:
        def play(*changes: str) -> dict[str, Any]:
            given = ["evaluation.tasks=3", *changes]
            return played("random", tmp_path / str(changes), *given, panel="alfworld/procedural")

        small, other = play(), play("env.kwargs.max_steps=2")
        assert small["panel"] == "alfworld/procedural[3]"
        assert other["panel"] == "alfworld/procedural[3] (changed)"
        assert play("env.kwargs.variation=null")["panel"] == small["panel"]
        assert "other environment settings" in reasons_against(small, other)[0]

    def test_a_part_of_the_data_is_not_the_panel(self, alfworld_data: Path, tmp_path: Path) -> None:
        for task in sorted((find_root(alfworld_data) / "valid_seen").glob("pick_clean*"))[:2]:
            shutil.copytree(task, tmp_path / "data" / "valid_seen" / task.name)
        settings = [f"env.kwargs.data_dir={tmp_path / 'data'}", "env.kwargs.max_steps=2"]
        result = played("random", tmp_path / "part", *settings, panel="alfworld/valid_seen")
        count = result["tasks"]
        assert count < 27 and result["panel"] == f"alfworld/valid_seen[{count}] (changed)"
        note = result["panel_note"]
        assert f"{count} are here, 140 were published" in note
        assert f"pick_clean_then_place_in_recep {count} of 27, " in note
        assert "look_at_obj_in_light 0 of 13, " in note
        assert note in result_lines(result)

    def test_the_published_games_are_the_panel(self, alfworld_data: Path, tmp_path: Path) -> None:
        env = EnvSettings(kwargs={"data_dir": str(alfworld_data)})
        tasks = agent_env_maker(env, "valid_seen")().tasks
        spec = PANELS["alfworld/valid_seen"]
        assert spec.difference(tasks) is None
        other = [*tasks.ids[1:], tasks.ids[0] + "x"]  # as many, one of them another
        part = tasks.ids[1:]
        for ids, title in ((tasks.ids, ""), (other, " (changed)"), (part, "[139] (changed)")):
            found = panel_title("alfworld/valid_seen", env, "valid_seen", len(ids), spec.seed, ids)
            assert found == f"alfworld/valid_seen{title}"
        settings = [f"env.kwargs.data_dir={alfworld_data}", "evaluation.tasks=4"]
        result = played("expert", tmp_path, *settings, panel="alfworld/valid_seen")
        assert result["success_rate"] == 1.0
        assert str(alfworld_data) not in json.dumps(result["environment"])

    def test_real_products_and_questions(self, shared_data: Path, tmp_path: Path) -> None:
        def play(panel: str, **places: str) -> dict[str, Any]:
            given = [f"env.kwargs.{name}={shared_data / place}" for name, place in places.items()]
            return played("random", tmp_path / panel, *given, "evaluation.tasks=2", panel=panel)

        shop = play("webshop/test500_synthetic", data_dir="webshop")
        assert (shop["panel"], shop["panel_note"]) == ("webshop/test500_synthetic[2]", None)
        asked = play("search_qa/nq", data_dir="qa", corpus="qa/wiki_sample/corpus.jsonl")
        assert asked["panel"] == "search_qa/nq[2] (changed)"
        assert "125 are here, 3,610 were published (nq 125 of 3,610)" in asked["panel_note"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """``results(agent, *settings)``: a result of a few procedural games."""

    @functools.cache
    def make(agent: str, *settings: str) -> dict[str, Any]:
        return played(agent, tmp_path_factory.mktemp(agent), "evaluation.tasks=12", *settings)

    return make


Results = Callable[..., dict[str, Any]]


class TestComparison:
    def test_what_can_be_compared_is(self, results: Results) -> None:
        random, expert = results("random"), results("expert")
        found = compare(random, expert)
        assert (found.n, found.improved, found.worsened) == (12, 12, 0)
        assert found.difference == 1.0
        assert found.ci95[0] < 1.0  # twelve tasks are not all tasks
        assert found.p_value == pytest.approx(2 / 2**12)
        assert compare(expert, random).difference == -1.0
        assert compare(expert, expert).p_value == 1.0
        assert "the second uses privileged information: rules" in found.notes

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            (["evaluation.tasks=11"], "other tasks: panel"),
            (["evaluation.seed=7"], "other tasks"),
            (["env.kwargs.max_steps=20"], "max_steps=50 and max_steps=20"),
            (["env.id=paw_gym/SearchQA-v0", "evaluation.split=dev"], "other environments"),
        ],
    )
    def test_what_differs_is_refused(
        self, results: Results, settings: list[str], reason: str
    ) -> None:
        first, second = results("random"), results("random", *settings)
        with pytest.raises(ValueError, match="cannot be compared") as caught:
            compare(first, second)
        assert reason in str(caught.value)

    def test_an_environment_that_answers_otherwise_is_refused(self, results: Results) -> None:
        first = results("random")
        second = {**first, "environment": {**first["environment"], "behaviour": "0" * 64}}
        (reason,) = reasons_against(first, second)
        assert "answers otherwise" in reason
        assert (
            "3 episodes of the second failed" in reasons_against(first, {**first, "errors": 3})[0]
        )
        (reason,) = reasons_against(first, {**first, "environment": None})
        assert "the second has no record" in reason


class TestFingerprint:
    def test_behaviour_is_what_the_environment_answers(self) -> None:
        def hashed(**kwargs: Any) -> str | None:
            env = agent_env_maker(EnvSettings(kwargs=kwargs), "valid_seen")().text_env
            return behaviour_hash(env, env.tasks.ids[:6])

        assert hashed() == hashed(max_steps=30)  # the walk is shorter than both
        assert len({hashed(), hashed(grammar="move"), hashed(max_steps=3)}) == 3

    def test_searches_that_a_model_writes_have_no_hash(self) -> None:
        asked: list[str] = []

        class Simulated(SimulatedRetriever):
            def write(self, query: str, *rest: Any) -> list[str]:
                asked.append(query)
                return super().write(query, *rest)

        retriever = Simulated(writer="script")
        env = make_agent_env("paw_gym/SearchQA-v0", retriever=retriever).text_env
        assert behaviour_hash(env, env.tasks.ids[:2]) is None
        assert asked == []  # each would be a request to the endpoint
        plain = make_agent_env("paw_gym/SearchQA-v0").text_env
        assert behaviour_hash(plain, plain.tasks.ids[:2]) is not None

    def test_nothing_of_this_machine_is_told(self) -> None:
        told = public({"a": "/home/me/data", "b": ["http://10.0.0.1:8000/v1", Path("/x/y"), "nq"]})
        assert told == {"a": "data", "b": ["http", "y", "nq"]}


class TestLeaderboard:
    def test_the_page_is_in_sync_with_the_published_results(self) -> None:
        results = [load_result(path) for path in sorted(LEADERBOARD.RESULTS.glob("*.json"))]
        assert LEADERBOARD.PAGE.read_text() == LEADERBOARD.page(results)

    def test_what_cannot_be_compared_shares_no_table(self, results: Results) -> None:
        places = {"settings": {"secret": "/home/me"}, "commit": "/home/me"}
        other = results("random", "env.kwargs.max_steps=20")
        given = [{**r, **places} for r in (results("random"), results("expert"), other)]
        copies = [LEADERBOARD.published(result) for result in given]
        assert "/home" not in json.dumps(copies)
        assert len({LEADERBOARD.file_name(copy) for copy in copies}) == 3
        tables = LEADERBOARD.page(copies).split("\n## ")[1:]
        assert sorted(t.count("| expert") for t in tables) == [0, 1]
        assert [t.index("| expert") < t.index("| random") for t in tables if "| expert" in t] == [
            True
        ]

    def test_a_result_with_failures_is_not_published(self, results: Results) -> None:
        with pytest.raises(ValueError, match="Some tasks"):
            LEADERBOARD.published({**results("random"), "errors": 2})


@pytest.mark.parametrize(
    ("scores", "inside"),
    [
        ([[0.0, 0.0, 0.0, 0.4], [0.0, 0.0, 0.0, 0.0]], True),
        ([[1.0, 1.0, 1.0, 0.6], [1.0, 1.0, 1.0, 1.0]], True),
        ([[-0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]], False),
    ],
)
def test_the_interval_of_scores_stays_in_range(scores: list[list[float]], inside: bool) -> None:
    def episode(score: float) -> Episode:
        (played,) = made_up(False, [(0, 1, 0.0)])
        steps = played.episode.transitions
        steps[0] = dataclasses.replace(steps[0], info={"score": score})
        return played.episode

    runs = {seed: [episode(score) for score in row] for seed, row in enumerate(scores)}
    panel = Panel("p", ("0", "1", "2", "3"), "")
    score = summarise(runs, panel, make_agent_env("paw_gym/ALFWorld-v0"))["score"]
    low, high = score["ci95"]
    assert low <= score["mean"] <= high
    assert (low >= 0 and high <= 1) == inside
    if inside:
        assert low == 0 or high == 1, "widened for two seeds, and then clipped"
