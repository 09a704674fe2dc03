"""The same actions on ten panels and more, over every way that there is to us: nothing differs.

``pytest tests/adapters/test_ways.py -s`` prints a line for each way that is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from servers import RunningServer, in_thread

from paw_gym.wrappers import AgentInterface
from paw_train.environments import agent_env_maker, is_split
from paw_train.evaluation.fingerprint import _fixed_action
from paw_train.evaluation.program import make_job
from paw_train.evaluation.runner import environment_seeds

SETTINGS = ["evaluation.tasks=3", "env.kwargs.max_steps=16"]
GENERATED = (
    "alfworld/procedural", "webshop/generated", "search_qa/synthetic", "sokoban/test", "sudoku/4x4",
    "2048/test", "rules/test", "toy_text/frozen_lake", "toy_text/frozen_lake_slippery", "toy_text/taxi",
    "toy_text/blackjack",
)  # fmt: skip
NEEDING = {"tau2/mock": "tau2", "babyai/go_to_local": "minigrid"}


PANELS = [*GENERATED, *(panel for panel, package in NEEDING.items() if find_spec(package))]
LONG = ("2048/test",)
"""worlds whose expert takes thousands of steps"""


@dataclass
class Job:
    """An episode to play, and what it is like in process."""

    task_id: str
    seed: int
    actions: list[str]
    lines: list[Any]
    """the first observation, then (observation, reward, over, success, score) of each step"""


@dataclass
class World:
    """A panel's episodes, and how its environment is made."""

    panel: str
    env_id: str
    kwargs: dict[str, Any]
    make: Callable[[], AgentInterface]
    jobs: list[Job]


def line(observation: str, reward: Any, over: bool, told: Any) -> list[Any]:
    return [observation, float(reward or 0.0), over, bool(told["success"]), float(told["score"])]


def scripted(panel: str) -> World:
    """Plays in process: every other episode by the solver, the rest by fixed actions and a wrong one."""
    plan = make_job("random", SETTINGS, panel=panel).plan
    split = {"split": plan.split} if is_split(plan.env) else {}
    make = agent_env_maker(plan.env, plan.split)
    env, jobs = make().text_env, []
    seeds = environment_seeds(plan.panel, plan.panel_seed)
    for number, (task_id, seed) in enumerate(seeds.items()):
        first, info = env.reset(seed=seed, options={"task_id": task_id})
        solved = number % 2 == 0 and panel not in LONG
        solution = iter(env.reference_solution() if solved else ())
        job, over = Job(task_id, seed, [], [first]), False
        while not over:
            step = len(job.actions)
            own = "no such action" if step == 1 and not solved else _fixed_action(env, info, step)
            job.actions.append(next(solution, own))
            observation, reward, terminated, truncated, info = env.step(job.actions[-1])
            over = terminated or truncated
            job.lines.append(line(observation, reward, over, info))
        jobs.append(job)
    env.close()
    return World(panel, plan.env.id, {**plan.env.kwargs, **split}, make, jobs)


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [scripted(panel) for panel in PANELS]


def count(way: str, worlds: list[World], play: Callable[[World, Job], list[Any]]) -> None:
    """Plays everything, prints a line, and fails with what differs."""
    found = []
    for world in worlds:
        for job in world.jobs:
            pairs = zip(job.lines, play(world, job), strict=True)
            found += [(world.panel, job.task_id, a, b) for a, b in pairs if a != b]
    jobs = [job for world in worlds for job in world.jobs]
    steps = sum(len(job.actions) for job in jobs)
    print(
        f"\n{way}: {len(worlds)} panels, {len(jobs)} episodes, {steps} steps, {len(found)} differ"
    )
    assert not found, found[:3]


def test_gateway(worlds: list[World]) -> None:
    pytest.importorskip("fastapi", reason="the extra `server`")
    from paw_gym.remote import make_remote

    def play(url: str, world: World, job: Job) -> list[Any]:
        env = make_remote(url, world.env_id, **world.kwargs)
        lines: list[Any] = [env.reset(seed=job.seed, options={"task_id": job.task_id})[0]]
        for action in job.actions:
            observation, reward, terminated, truncated, info = env.step(action)
            lines.append(line(observation, reward, terminated or truncated, info))
        env.close()
        return lines

    asked = {name for world in worlds for name in world.kwargs}
    allowed = [word for name in sorted(asked) for word in ("--allow", name)]
    server = RunningServer("gateway", "--workers", "1", *allowed)
    try:
        count("gateway", worlds, partial(play, server.url))
    finally:
        server.kill()


def test_mcp(worlds: list[World]) -> None:
    pytest.importorskip("mcp.server.mcpserver", reason="the extra `mcp`, 2 or newer")
    pytest.importorskip("fastapi", reason="the extra `server`")
    import anyio
    from mcp.client import Client

    from env_servers.mcp import create_server

    async def episode(world: World, job: Job) -> list[Any]:
        async with Client(create_server(world.env_id, world.kwargs)) as client:

            async def call(tool: str, **arguments: Any) -> Any:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result.content
                return result.structured_content

            begun = await call("reset", task_id=job.task_id, seed=job.seed)
            lines = [begun["observation"]]
            for action, known in zip(job.actions, job.lines[1:], strict=True):
                told = await call("step", session=begun["session"], action=action)
                over = told["terminated"] or told["truncated"]
                assert over == ("score" in told) == ("success" in told)
                hidden = {"success": known[3], "score": known[4]}  # told at the end alone
                lines.append(line(told["observation"], told["reward"], over, {**hidden, **told}))
        return lines

    count("MCP", worlds, lambda world, job: anyio.run(episode, world, job))


def test_openenv(worlds: list[World]) -> None:
    pytest.importorskip("openenv.core", reason="openenv, in an environment of its own")
    from openenv.core.generic_client import GenericEnvClient

    from paw_gym.adapters.openenv import create_openenv_app

    def play(world: World, job: Job) -> list[Any]:
        app = create_openenv_app(world.env_id, bare=True, **world.kwargs)
        with in_thread(app) as url, GenericEnvClient(base_url=url).sync() as client:
            result = client.reset(seed=job.seed, task_id=job.task_id)
            lines = [result.observation["text"]]
            for action in job.actions:
                result = client.step({"message": action})
                told = result.observation
                lines.append(line(told["text"], result.reward, result.done, told["info"]))
        return lines

    count("OpenEnv", worlds, play)


def test_inspect(worlds: list[World], tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="the extra `inspect`, in an environment of its own")
    from inspect_ai import eval as inspect_eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from paw_gym.transition import Episode
    from paw_train.integrations.inspect import task_name

    def episodes(world: World) -> dict[str, Episode]:
        said = [world.make().response_for(action) for job in world.jobs for action in job.actions]
        outputs = [ModelOutput.from_content("mockllm", text) for text in said]
        for output in outputs:
            output.usage = ModelUsage()  # else a tokenizer is downloaded
        [log] = inspect_eval(
            f"paw/{task_name(world.panel)}",
            get_model("mockllm/model", custom_outputs=outputs),
            task_args={"agent": "policy", "settings": " ".join(SETTINGS)},
            max_samples=1,  # in their order
            display="none",
            log_dir=str(tmp_path),
        )
        assert log.status == "success", log.error
        found = {}
        for sample in log.samples or []:
            found[str(sample.id)] = e = Episode.from_dict(sample.store["episode"])
            value = {"success": e.success, "score": e.score, "reward": e.total_reward}
            assert (sample.scores or {})["outcome"].value == value
        return found

    played = {world.panel: episodes(world) for world in worlds}

    def play(world: World, job: Job) -> list[Any]:
        steps = played[world.panel][job.task_id].transitions
        lines = [
            line(t.next_observation, t.info["env_reward"], t.terminated or t.truncated, t.info)
            for t in steps
        ]
        return [steps[0].observation, *lines]

    count("Inspect", worlds, play)
