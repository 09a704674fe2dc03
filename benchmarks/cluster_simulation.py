"""An update on 1 to 64 GPUs in simulated time: rollouts, environments, training, with and without waiting.

    python benchmarks/cluster_simulation.py                        # the tables of docs/cluster.md
    python benchmarks/cluster_simulation.py --costs FILE --gpus 8 --episodes 256

Synchronous: all GPUs sample an update's episodes, then all train. Asynchronous: some sample while others
train, with weights that are at most ``staleness`` updates old and that are sent when a rollout has ended and
before the next begins (``openrlhf.max_staleness``). Episodes differ in
length, some straggle, some environments are slow; a group's episodes go to one engine together or one by
one to the least loaded. Costs are a file's (``cluster_costs.json``); no GPU is simulated below the level
of a token.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cluster_engine import Costs, Engine, Workers

COSTS = Path(__file__).with_name("cluster_costs.json")


@dataclass(frozen=True)
class Load:
    """The episodes of an update."""

    episodes: int = 128
    group_size: int = 8
    turns: tuple[int, int] = (8, 40)
    """fewest and most of an ordinary episode, all equally likely"""
    prompt: int = 600
    """tokens of the first context"""
    observation: int = 100
    """tokens of new context in each later turn"""
    response: tuple[int, int] = (40, 200)
    """fewest and most tokens of a response"""
    stragglers: float = 0.0
    """share of the episodes that take 50 turns with responses four times as long"""
    slow: float = 0.0
    """share of the turns whose environment takes 2 s"""


@dataclass(frozen=True)
class Cluster:
    """The machines, and how episodes are sent to engines."""

    gpus: int = 8
    dispatch: Literal["group", "episode"] = "episode"
    resident: int | None = None
    """episodes that one engine runs at a time at most; ``None``: no limit"""
    workers: int | None = None
    """processes that step environments, for each engine; ``None``: no limit"""
    sampling: int | None = None
    """GPUs that only sample, while the others train; ``None``: synchronous, all do both"""
    staleness: int = 1
    """updates by which a rollout's weights may be behind (asynchronous)"""

    def __post_init__(self) -> None:
        if self.sampling is not None and not 0 < self.sampling < self.gpus:
            raise ValueError(f"sampling={self.sampling}: 1 to {self.gpus - 1} of the GPUs sample.")

    @property
    def engines(self) -> int:
        """One on each GPU that samples."""
        return self.gpus if self.sampling is None else self.sampling

    @property
    def trainers(self) -> int:
        """GPUs that train."""
        return self.gpus if self.sampling is None else self.gpus - self.sampling


@dataclass(frozen=True)
class Episode:
    """What an episode will take, known to the simulator alone."""

    group: int
    update: int
    responses: tuple[int, ...]
    """tokens of each"""
    environment: tuple[float, ...]
    """seconds of each turn"""

    def context(self, load: Load) -> int:
        """Tokens in all."""
        return (
            load.prompt + sum(self.responses) + load.observation * max(0, len(self.responses) - 1)
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a number of updates."""

    seconds: float
    """of a mean update, without the first where there are several"""
    sampling: float
    """share of the engines' time, from the first to the last update, in which they had episodes"""
    used: float
    """share of all GPUs' time in which they sampled or trained"""
    idle_engines: int
    """that never had an episode"""
    generated: float
    """tokens"""
    staleness: int
    """largest number of updates by which weights were behind"""


def episodes_of(load: Load, costs: Costs, update: int, seed: int) -> list[Episode]:
    """The episodes of an update."""
    rng = random.Random(f"{seed}/{update}")
    made = []
    for number in range(load.episodes):
        straggles = rng.random() < load.stragglers
        turns = 50 if straggles else rng.randint(*load.turns)
        factor = 4 if straggles else 1
        made.append(
            Episode(
                number // load.group_size,
                update,
                tuple(factor * rng.randint(*load.response) for _ in range(turns)),
                tuple(2.0 if rng.random() < load.slow else costs.turn for _ in range(turns)),
            )
        )
    return made


class Simulation:
    """Updates one after another, or overlapping.

    Args:
        cluster: its GPUs.
        load: of each update.
        costs: in seconds.
        seed: of the episodes.
    """

    def __init__(self, cluster: Cluster, load: Load, costs: Costs, seed: int = 0) -> None:
        self.cluster, self.load, self.costs, self.seed = cluster, load, costs, seed
        self.engines = [Engine(costs) for _ in range(cluster.engines)]
        limit = cluster.workers
        self.workers = [Workers(limit) for _ in range(cluster.engines)]
        self.now = 0.0
        self.behind = 0
        """largest staleness of an episode"""
        self.trained: list[float] = []
        """end of each update"""
        self.training = 0.0
        """seconds of training"""
        self._used: set[int] = set()
        self._episodes: list[Episode] = []
        self._queue: deque[int] = deque()
        self._turn: list[int] = []
        self._place: list[int] = []
        self._left: list[int] = []
        self._released = 0
        self._trainer_free = 0.0
        self._events: list[tuple[float, int, int, int]] = []
        self._versions: Counter[tuple[int, int]] = Counter()

    def run(self, updates: int) -> Outcome:
        """Simulates so many updates."""
        sequential = self.cluster.sampling is None
        ahead = 0 if sequential else self.cluster.staleness
        while len(self.trained) < updates:
            while self._released < updates and self._may_begin(ahead):
                self._release()
            self._dispatch()
            if not self._step():
                # every released episode has ended: only the trainer can go on
                self.now = min(t for t in self.trained if t > self.now)
            self._train()
        return self._outcome(updates)

    # --- sampling ---------------------------------------------------------------------------------

    def _published(self) -> int:
        """Updates whose weights the engines have."""
        return sum(end <= self.now for end in self.trained)

    def _may_begin(self, ahead: int) -> bool:
        """Whether the next rollout may: weights are sent between rollouts only, so none is under way."""
        return self._released <= self._published() + ahead and not any(self._left)

    def _release(self) -> None:
        """Makes the next update's episodes available."""
        made = episodes_of(self.load, self.costs, self._released, self.seed)
        self._queue.extend(range(len(self._episodes), len(self._episodes) + len(made)))
        self._episodes += made
        self._turn += [0] * len(made)
        self._place += [-1] * len(made)
        self._left.append(len(made))
        self._released += 1

    def _dispatch(self) -> None:
        """Sends waiting episodes to engines, for as long as there is room."""
        while self._queue:
            together = self._next_group() if self.cluster.dispatch == "group" else 1
            engine = min(range(len(self.engines)), key=lambda e: len(self.engines[e].resident))
            room, held = self.cluster.resident, len(self.engines[engine].resident)
            if room is not None and held and held + together > room:
                return
            for _ in range(together):
                self._send(self._queue.popleft(), engine)

    def _next_group(self) -> int:
        """Episodes at the front of the queue that are of one group."""
        first = self._episodes[self._queue[0]]
        key = (first.update, first.group)
        found = 0
        for number in self._queue:
            episode = self._episodes[number]
            if (episode.update, episode.group) != key:
                break
            found += 1
        return found

    def _send(self, number: int, engine: int) -> None:
        episode, chosen = self._episodes[number], self.engines[engine]
        self.behind = max(self.behind, episode.update - self._published())
        self._place[number] = engine
        self._used.add(engine)
        chosen.advance(self.now)
        chosen.resident.add(number)
        key = episode.update * self.load.episodes + episode.group
        # a group's first prompt is the same, and an engine keeps what it has read
        context = 0 if key in chosen.groups else self.load.prompt
        chosen.groups.add(key)
        chosen.start(number, context, episode.responses[0])
        self._changed(0, engine)

    def _step(self) -> bool:
        """Goes to the next event, unless weights are published before; False: nothing is under way."""
        while self._events and not self._holds(self._events[0]):
            heapq.heappop(self._events)
        if not self._events:
            return False
        end, kind, i, _ = self._events[0]
        waiting = [t for t in self.trained if self.now < t < end]
        if waiting:
            self.now = min(waiting)
            return True
        self.now = end
        if kind == 0:
            self.engines[i].advance(end)
            self._answered(self.engines[i].take_ended(), i)
        else:
            self._stepped(self.workers[i].take_ended(), i)
        self._changed(0, i)
        self._changed(1, i)
        return True

    def _changed(self, kind: int, place: int) -> None:
        """Notes when an engine (0) or its workers (1) have their next event, as things are now."""
        holder = (self.engines, self.workers)[kind][place]
        self._versions[kind, place] += 1
        end = holder.next_end()
        if end is not None:
            heapq.heappush(self._events, (end, kind, place, self._versions[kind, place]))

    def _holds(self, event: tuple[float, int, int, int]) -> bool:
        """Whether nothing has changed there since the event was noted."""
        return self._versions[event[1], event[2]] == event[3]

    def _answered(self, number: int, engine: int) -> None:
        seconds = self._episodes[number].environment[self._turn[number]]
        self.workers[engine].step(number, self.now, seconds)

    def _stepped(self, number: int, engine: int) -> None:
        episode, chosen = self._episodes[number], self.engines[engine]
        self._turn[number] += 1
        chosen.advance(self.now)
        if self._turn[number] == len(episode.responses):
            chosen.resident.discard(number)
            self._left[episode.update] -= 1
            return
        chosen.start(number, self.load.observation, episode.responses[self._turn[number]])

    # --- training ---------------------------------------------------------------------------------

    def _train(self) -> None:
        """Trains on the next update once all its episodes have ended."""
        update = len(self.trained)
        if update >= self._released or self._left[update]:
            return
        mine = [e for e in self._episodes if e.update == update]
        tokens = sum(episode.context(self.load) for episode in mine)
        seconds = tokens * self.costs.train / self.cluster.trainers + self.costs.update
        self._trainer_free = max(self.now, self._trainer_free) + seconds
        self.training += seconds
        self.trained.append(self._trainer_free)
        if self.cluster.sampling is None:
            self.now = self._trainer_free
            for engine in self.engines:
                engine.advance(self.now)

    def _outcome(self, updates: int) -> Outcome:
        end = self.trained[-1]
        first = self.trained[0] if updates > 1 else 0.0
        busy = sum(engine.busy for engine in self.engines)
        sampled = end - self.training if self.cluster.sampling is None else end
        return Outcome(
            (end - first) / max(1, updates - 1),
            busy / (sampled * len(self.engines)),
            (busy + self.training * self.cluster.trainers) / (end * self.cluster.gpus),
            len(self.engines) - len(self._used),
            sum(engine.served for engine in self.engines),
            self.behind,
        )


# --- the tables -----------------------------------------------------------------------------------


def load_costs(path: Path) -> Costs:
    """Costs from a JSON file.

    Raises:
        ValueError: a cost is missing, unknown or negative.
    """
    given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    given.pop("about", None)
    try:
        return Costs(**given)
    except TypeError as error:
        raise ValueError(
            f"{path}: expected the numbers {[*Costs.__annotations__]}: {error}"
        ) from error


def scale_table(costs: Costs, load: Load, gpus: Sequence[int], updates: int) -> Iterator[str]:
    """Rows by GPUs: groups and episodes dispatched, and sampling beside training."""
    yield "| GPUs | whole groups: s an update, GPUs in use | episodes | asynchronous |\n"
    yield "| ---: | --- | --- | --- |\n"
    for count in gpus:
        cells = [
            _cell(Cluster(count, dispatch=by), load, costs, updates) for by in ("group", "episode")
        ]  # type: ignore[arg-type]
        cells.append(_cell(best_split(count, load, costs, updates), load, costs, updates))
        yield f"| {count} | {' | '.join(cells)} |\n"


def best_split(gpus: int, load: Load, costs: Costs, updates: int) -> Cluster | None:
    """The asynchronous cluster, of those with 2/8 to 6/8 of the GPUs sampling, that is fastest."""
    splits = sorted({max(1, min(gpus - 1, gpus * part // 8)) for part in range(2, 7)})
    found = [Cluster(gpus, sampling=count, staleness=1) for count in splits if gpus > 1]
    return min(found, key=lambda c: Simulation(c, load, costs).run(updates).seconds, default=None)


def load_table(costs: Costs, loads: dict[str, Load], gpus: int, updates: int) -> Iterator[str]:
    """Rows by what the episodes are like, on a number of GPUs."""
    yield "| load | whole groups | episodes | episodes, 16 environment workers an engine | asynchronous |\n"
    yield "| --- | --- | --- | --- | --- |\n"
    for name, load in loads.items():
        clusters = [
            Cluster(gpus, "group"),
            Cluster(gpus),
            Cluster(gpus, workers=16),
            best_split(gpus, load, costs, updates),
        ]
        cells = [_cell(cluster, load, costs, updates) for cluster in clusters]
        yield f"| {name} | {' | '.join(cells)} |\n"


def _cell(cluster: Cluster | None, load: Load, costs: Costs, updates: int) -> str:
    if cluster is None:
        return ""
    found = Simulation(cluster, load, costs).run(updates)
    split = f", {cluster.sampling} sample" if cluster.sampling is not None else ""
    idle = f", {found.idle_engines} idle" if found.idle_engines else ""
    return f"{found.seconds:.0f} s, {found.used:.0%}{idle}{split}"


def loads(base: Load) -> dict[str, Load]:
    """Variations of a load."""
    return {
        "as above": base,
        "5 % of the episodes straggle": replace(base, stragglers=0.05),
        "10 % of the turns take 2 s": replace(base, slow=0.1),
        "both": replace(base, stragglers=0.05, slow=0.1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", type=Path, default=COSTS, help="JSON file")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--episodes", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument(
        "--updates", type=int, default=4, help="simulated; the first is not counted"
    )
    args = parser.parse_args(argv)
    costs = load_costs(args.costs)
    for episodes in args.episodes:
        print(f"\n{episodes} episodes an update, groups of 8\n")
        print("".join(scale_table(costs, Load(episodes), args.gpus, args.updates)), end="")
    most, largest = max(args.gpus), max(args.episodes)
    print(f"\n{most} GPUs, {largest} episodes an update\n")
    print("".join(load_table(costs, loads(Load(largest)), most, args.updates)), end="")


if __name__ == "__main__":
    main()
