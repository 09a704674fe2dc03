"""The same tasks and actions through every interface: do observations, rewards and scores agree?

    python benchmarks/interfaces.py [--data-dir DIR] [--tasks 140] [--steps 30] [--workers 1,2,8]

Actions are recorded once through our own API: every other task is solved by the expert, the rest get
admissible actions that are chosen by a hash. Then each interface gets the same tasks, seeds and actions,
split over 1, 2 and 8 processes, and in every process the entries of all directories come in another order.
At the end the original ALFWorld lists its games twice, in two such orders. Takes under two minutes on two
cores.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paw_gym import AgentInterface, make_agent_env
from paw_gym.adapters.verl_agent import EnvironmentManager, planned_seeds

ENV = "paw_gym/ALFWorld-v0"


@dataclass(frozen=True)
class Job:
    """One episode to run: a task, a seed, and raw responses."""

    task_id: str
    seed: int
    responses: tuple[str, ...]


@dataclass
class Record:
    """What an interface showed of an episode; what it does not show stays ``None``."""

    task_id: str
    observations: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    success: bool | None = None
    score: float | None = None


Run = Callable[[Sequence[Job], Mapping[str, Any]], list[Record]]


# --- the interfaces -------------------------------------------------------------------------------


def our_api(jobs: Sequence[Job], kwargs: Mapping[str, Any]) -> list[Record]:
    """``make_agent_env``."""
    return [_by_agent(make_agent_env(ENV, **kwargs), job) for job in jobs]


def _by_agent(agent: AgentInterface, job: Job) -> Record:
    agent.reset(seed=job.seed, options={"task_id": job.task_id})
    record = Record(job.task_id, [agent.observation])
    for response in job.responses:
        _, reward, _, _, info = agent.step(response)
        record.observations.append(info["transition"].next_observation)
        record.rewards.append(reward)
        record.success, record.score = info["success"], info["score"]
    agent.close()
    return record


def trl_tools(jobs: Sequence[Job], kwargs: Mapping[str, Any]) -> list[Record]:
    """TRL's ``environment_factory``: tools in, text out, the reward as a sum; no score."""
    from paw_gym.adapters.trl import environment_factory

    agent = make_agent_env(ENV, **kwargs)
    read, make = agent.template.read_response, environment_factory(ENV, **kwargs)
    found = []
    for job in jobs:
        tools = make()
        first = tools.reset(task_id=job.task_id, env_seed=job.seed)
        record, total = Record(job.task_id, [_without_menu(first).partition("\n\n")[2]]), 0.0
        for response in job.responses:
            record.observations.append(_without_menu(tools.act(read(response).action)))
            record.rewards.append(tools.get_reward() - total)
            total = tools.get_reward()
        found.append(record)
    return found


def _without_menu(text: str) -> str:
    return text.partition("\nAdmissible actions: ")[0]


def verl_agent(jobs: Sequence[Job], kwargs: Mapping[str, Any]) -> list[Record]:
    """verl-agent's environment manager, all episodes side by side in one process."""
    if not jobs:
        return []
    agent = make_agent_env(ENV, **kwargs)
    penalty = agent.settings.invalid_penalty
    envs = EnvironmentManager(ENV, len(jobs), seed=0, invalid_penalty=penalty, **kwargs)
    observations, infos = envs.reset([{"task_id": job.task_id} for job in jobs])
    found = [Record(j.task_id, [o]) for j, o in zip(jobs, observations["anchor"], strict=True)]
    for step in range(max(len(job.responses) for job in jobs)):
        given = [job.responses[step] if step < len(job.responses) else "" for job in jobs]
        observations, rewards, _, infos = envs.step(given)
        for i, job in enumerate(jobs):
            if step < len(job.responses):
                found[i].observations.append(observations["anchor"][i])
                found[i].rewards.append(float(rewards[i]))
                found[i].success, found[i].score = infos[i]["won"], infos[i]["score"]
    envs.close()
    return found


def openenv(jobs: Sequence[Job], kwargs: Mapping[str, Any]) -> list[Record]:
    """OpenEnv's environment class, as its server calls it."""
    from paw_gym.adapters.openenv import OpenEnvEnvironment, TextAction

    found = []
    for job in jobs:
        env = OpenEnvEnvironment(ENV, **kwargs)
        env.reset(seed=job.seed, task_id=job.task_id)
        record = Record(job.task_id, [env.agent.observation])
        for response in job.responses:
            result = env.step(TextAction(message=response))
            record.observations.append(result.info["transition"]["next_observation"])
            record.rewards.append(float(result.reward or 0.0))
            record.success, record.score = result.info["success"], result.info["score"]
        env.close()
        found.append(record)
    return found


def skyrl(jobs: Sequence[Job], kwargs: Mapping[str, Any]) -> list[Record]:
    """skyrl-gym's ``BaseTextEnv``."""
    from paw_gym.adapters.skyrl import SkyRLTextEnv

    found = []
    for job in jobs:
        extras = {"task_id": job.task_id, "seed": job.seed}
        env = SkyRLTextEnv(extras=extras, env_id=ENV, **kwargs)
        env.init()
        record = Record(job.task_id, [env.agent.observation])
        for response in job.responses:
            result = env.step(response)
            transition = result["metadata"]["transition"]
            record.observations.append(transition["next_observation"])
            record.rewards.append(float(result["reward"]))
            record.success = transition["info"]["success"]
            record.score = transition["info"]["score"]
        found.append(record)
    return found


def verifiers(jobs: Sequence[Job], kwargs: Mapping[str, Any]) -> list[Record]:
    """verifiers' environment, with prepared replies in the agent's seat."""
    from paw_gym.adapters import verifiers as ours

    found = []
    for job in jobs:
        data = SimpleNamespace(
            env_id=ENV, env_kwargs=dict(kwargs), task_id=job.task_id, seed=job.seed
        )
        agent = _Replies(job.responses)
        run = ours.PawEnv.run(
            SimpleNamespace(), SimpleNamespace(data=data), SimpleNamespace(player=agent)
        )
        asyncio.run(run)
        steps = agent.trace.info["transitions"]
        found.append(
            Record(
                job.task_id,
                [steps[0]["observation"], *(t["next_observation"] for t in steps)],
                [t["reward"] for t in steps],
                bool(agent.trace.metrics["success"]),
                agent.trace.metrics["score"],
            )
        )
    return found


class _Replies:
    """Stands where a model answers in verifiers."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies = list(replies)
        self.trace = SimpleNamespace(info={}, metrics={}, rewards={})
        self.trace.record_reward = self.trace.rewards.__setitem__
        self.trace.record_metric = self.trace.metrics.__setitem__

    @asynccontextmanager
    async def interaction(self, task: Any) -> Any:
        yield self

    async def turn(self, message: str) -> Any:
        if not self.replies:
            return SimpleNamespace(terminated=True, last_reply="")
        return SimpleNamespace(terminated=False, last_reply=self.replies.pop(0))


def gateway(jobs: Sequence[Job], kwargs: Mapping[str, Any], url: str) -> list[Record]:
    """Our gateway over HTTP, by its client."""
    from paw_gym import make_remote

    chosen = {key: value for key, value in kwargs.items() if key != "data_dir"}
    return [_by_agent(AgentInterface(make_remote(url, ENV, **chosen)), job) for job in jobs]


LOCAL: Mapping[str, tuple[Any, str | None]] = {
    "our API": (our_api, None),
    "TRL tools": (trl_tools, None),
    "verl-agent manager": (verl_agent, None),
    "OpenEnv": (openenv, "openenv"),
    "verifiers": (verifiers, "verifiers"),
    "skyrl-gym": (skyrl, "skyrl_gym"),
}
"""interfaces that run in any process, with the package that they need"""
GATEWAY = "gateway"


# --- the comparison -------------------------------------------------------------------------------


def recorded(
    kwargs: Mapping[str, Any], tasks: int, steps: int
) -> tuple[list[Job], list[Record], list[Record]]:
    """Episodes by our own API: what to run, what it leads to, and that as prompts show it."""
    agent = make_agent_env(ENV, **kwargs)
    seeds = planned_seeds(agent.tasks.ids, 0)  # those of verl-agent's manager, for all interfaces
    jobs, shown = [], []
    for number, task_id in enumerate(agent.tasks.ids[:tasks]):
        agent.reset(seed=seeds[task_id], options={"task_id": task_id})
        solved = agent.reference_solution() if number % 2 == 0 else None
        jobs.append(Job(task_id, seeds[task_id], _responses(agent, solved, steps)))
    found = our_api(jobs, kwargs)
    show = agent.text_env.prompt_observation
    for record in found:
        shown.append(Record(record.task_id, list(map(show, record.observations)), record.rewards))
    agent.close()
    return jobs, found, shown


def _responses(agent: AgentInterface, solved: list[str] | None, steps: int) -> tuple[str, ...]:
    """The expert's responses, or admissible actions by a hash, of which the second is malformed."""
    info, given = agent.text_env.last_info, []
    for step in range(steps if solved is None else min(steps, len(solved))):
        given.append(solved[step] if solved is not None else _by_hash(agent, info, step))
        _, _, terminated, truncated, info = agent.step(given[-1])
        if terminated or truncated:
            break
    return tuple(given)


def _by_hash(agent: AgentInterface, info: Mapping[str, Any], step: int) -> str:
    listed = info["admissible_actions"]
    digest = hashlib.sha256(f"{info['task_id']}/{step}".encode()).digest()
    action = str(listed[int.from_bytes(digest[:4], "big") % len(listed)])
    return "no tags" if step == 1 else agent.response_for(action)


def differences(found: Sequence[Record], wanted: Sequence[Record]) -> list[str]:
    """What differs, one line for each value; empty: nothing."""
    by_task = {record.task_id: record for record in found}
    lines = [] if len(by_task) == len(wanted) else [f"{len(by_task)} of {len(wanted)} episodes"]
    for record in wanted:
        other = by_task.get(record.task_id)
        if other is None:
            continue
        for name in ("observations", "rewards"):
            one, two = getattr(record, name), getattr(other, name)
            unequal = [i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b]
            unequal += [min(len(one), len(two))] if len(one) != len(two) else []
            lines += [f"{record.task_id}: {name} differ at step {i}" for i in unequal]
        for name in ("success", "score"):
            one, two = getattr(record, name), getattr(other, name)
            if None not in (one, two) and one != two:
                lines.append(f"{record.task_id}: {name} {two}, expected {one}")
    return lines


def in_processes(
    run: Run, jobs: Sequence[Job], kwargs: Mapping[str, Any], count: int
) -> list[Record]:
    """Runs the jobs in processes of their own, each with directories in another order."""
    context = multiprocessing.get_context("fork")
    shards = [(run, jobs[i::count], kwargs, 17 * count + i) for i in range(count)]
    with context.Pool(min(count, 8)) as pool:
        return [record for part in pool.map(_shard, shards, chunksize=1) for record in part]


def _shard(work: tuple[Run, Sequence[Job], Mapping[str, Any], int]) -> list[Record]:
    run, jobs, kwargs, order = work
    with shuffled_directories(order):
        return run(jobs, kwargs)


@contextmanager
def shuffled_directories(order: int) -> Iterator[None]:
    """Directories list their entries in an order by this seed."""
    before = os.scandir, os.listdir
    shuffle_directories(order)
    try:
        yield
    finally:
        os.scandir, os.listdir = before


def shuffle_directories(order: int) -> None:
    """Makes ``os`` list directories in an order by this seed, in this process from now on."""
    scandir, listdir = os.scandir, os.listdir

    class Entries(list):
        """What ``os.scandir`` returns: an iterator and a context manager."""

        def __next__(self):
            if not self:
                raise StopIteration
            return self.pop()

        def __iter__(self):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.clear()

        def close(self):
            self.clear()

    def shuffled(path):
        names = sorted(map(str, listdir(path)))
        random.Random(f"{order}/{os.path.basename(str(path))}").shuffle(names)
        return names

    def shuffled_scandir(path="."):
        with scandir(path) as entries:
            by_name = {str(entry.name): entry for entry in entries}
        return Entries(by_name[name] for name in reversed(shuffled(path)))

    os.scandir, os.listdir = shuffled_scandir, lambda path=".": shuffled(path)


@contextmanager
def served(kwargs: Mapping[str, Any], workers: int, folder: Path) -> Iterator[str]:
    """A gateway with so many workers, which see directories in an order of their own."""
    source = f"import os, random\n\n{inspect.getsource(shuffle_directories)}"
    call = f"\n\nshuffle_directories({100 + workers})\n"
    (folder / "sitecustomize.py").write_text(source + call)  # every Python runs it when it starts
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "paw_train.cli", "serve", "gateway", "--env", ENV]
    command += ["--port", str(port), "--workers", str(workers)]
    if "data_dir" in kwargs:
        command += ["--set", f"{ENV}:data_dir={kwargs['data_dir']}"]
    log = (folder / "gateway.log").open("w")
    server = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log
    )
    try:
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if server.poll() is not None:
                raise RuntimeError((folder / "gateway.log").read_text())
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        log.close()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def compare(
    kwargs: Mapping[str, Any],
    tasks: int,
    steps: int,
    workers: Sequence[int],
    skip: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A row for each interface and number of processes.

    Args:
        kwargs: of the environment.
        tasks: at most so many, in their order.
        steps: most steps of an episode.
        workers: numbers of processes.
        skip: names of interfaces.

    Returns:
        by row ``interface``, ``workers``, ``episodes``, ``steps``, ``differences`` (lines), or ``not_run``.
    """
    with multiprocessing.get_context("fork").Pool(1) as pool:  # nothing of it stays in this process
        jobs, wanted, shown = pool.apply(recorded, (kwargs, tasks, steps))
    total = sum(len(job.responses) for job in jobs)
    rows: list[dict[str, Any]] = []
    for name, (run, package) in LOCAL.items():
        if name in skip:
            continue
        if package and importlib.util.find_spec(package) is None:
            rows.append({"interface": name, "not_run": f"{package} is not installed"})
            continue
        if package:  # imported once, before the processes
            importlib.import_module(f"paw_gym.adapters.{run.__name__}")
        expected = shown if run is trl_tools else wanted
        for count in workers:
            found = differences(in_processes(run, jobs, kwargs, count), expected)
            rows.append(_row(name, count, jobs, total, found))
    if GATEWAY not in skip and importlib.util.find_spec("fastapi") is None:
        rows.append({"interface": GATEWAY, "not_run": "fastapi is not installed"})
    elif GATEWAY not in skip:
        for count in workers:
            with (
                tempfile.TemporaryDirectory() as folder,
                served(kwargs, count, Path(folder)) as url,
            ):
                found = in_processes(partial(gateway, url=url), jobs, kwargs, min(count, 2))
            rows.append(_row(GATEWAY, count, jobs, total, differences(found, wanted)))
    return rows


def _row(
    name: str, workers: int, jobs: Sequence[Job], steps: int, found: list[str]
) -> dict[str, Any]:
    return {
        "interface": name, "workers": workers, "episodes": len(jobs), "steps": steps, "differences": found
    }  # fmt: skip


def original_order(data_dir: Path, split: str = "valid_seen") -> dict[str, Any]:
    """The original's list of games under two orders of directories; ``not_run`` without its package."""
    here = str(Path(__file__).resolve().parent)  # its alfworld.py is not the package
    sys.path[:] = [place for place in sys.path if place != here]
    try:
        with redirect_stdout(sys.stderr):
            from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv
    except ImportError as error:
        return {"not_run": f"the original cannot be imported ({error})"}
    where = str(data_dir / split)
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
        "dataset": {"eval_id_data_path": where, "num_eval_games": -1},
    }
    lists = []
    for order in (1, 2):
        with shuffled_directories(order), redirect_stdout(sys.stderr):
            lists.append(AlfredTWEnv(config, train_eval="eval_in_distribution").game_files)
    one, two = lists
    moved = sum(a != b for a, b in zip(one, two, strict=True))
    return {"games": len(one), "moved": moved, "same_set": set(one) == set(two)}


def data_folder(given: str | None, folder: Path) -> Path | None:
    """The folder of ALFWorld's games: as given, or unpacked from the shared archive beside the clone."""
    if given:
        return Path(given)
    import tarfile

    root = Path(__file__).resolve().parents[1]
    shared = Path(os.environ.get("PAW_SHARED_DATA", root.parent / "shared" / "data"))
    archives = sorted((shared / "alfworld").glob("*.tar.xz"))
    if not archives:
        return None
    with tarfile.open(archives[0]) as archive:
        members = [m for m in archive.getmembers() if "valid_seen" in m.name]
        archive.extractall(folder, members, filter="data")
    return next(p.parent for p in folder.rglob("valid_seen") if p.is_dir())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data-dir", help="ALFWorld's games; else the shared archive, or procedural"
    )
    parser.add_argument("--tasks", type=int, default=140)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workers", default="1,2,8")
    parser.add_argument("--skip", action="append", default=[], help="an interface to leave out")
    parser.add_argument("--json", help="write the rows to this file too")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        data = data_folder(options.data_dir, Path(scratch))
        kwargs: dict[str, Any] = {"split": "valid_seen"}
        kwargs |= {} if data is None else {"data_dir": str(data)}
        workers = [int(n) for n in options.workers.split(",")]
        rows = compare(kwargs, options.tasks, options.steps, workers, options.skip)
        print(f"valid_seen of {'ALFWorld' if data else 'procedural games'}\n")
        print(
            "| interface | workers | episodes | steps | differences |\n| --- | ---: | ---: | ---: | ---: |"
        )
        for row in rows:
            if "not_run" in row:
                print(f"| {row['interface']} | not run: {row['not_run']} | | | |")
                continue
            count = len(row["differences"])
            cells = (row["interface"], row["workers"], row["episodes"], row["steps"], count)
            print(f"| {' | '.join(map(str, cells))} |")
        for row in rows:
            for line in row.get("differences", [])[:3]:
                print(f"{row['interface']}, {row['workers']} workers: {line}")
        if data is not None:
            print(
                f"\nThe original under two orders of directories: {json.dumps(original_order(data))}"
            )
    print(f"{time.perf_counter() - started:.0f} s")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    if any(row.get("differences") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
