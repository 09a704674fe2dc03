"""Ground truth of credit assignment: how well advantage estimators recover the true advantage of a step.

A fixed policy is run on procedural ALFWorld. At sampled steps the environment goes back to the state before
the step and to the state after it, and many continuations of each give V, Q and A = Q - V with errors.
Estimators then get the same step in resampled updates; the table shows correlation with the truth, bias,
variance and sign errors, and what an update of each costs in sampled tokens.

    python benchmarks/credit.py runs/embedded --out credit                  # 500 steps, 200 continuations
    python benchmarks/credit.py runs/embedded --out credit --tasks 2 --targets 2 --continuations 8

It can be stopped at any moment: the same command goes on after the last finished task. With all tasks
done it only computes the table again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from credit_estimates import Measured, Steps, Target, methods, summary

from paw_gym.files import append_jsonl, write_json, write_text
from paw_gym.pool import EnvPool, Slot, Snapshot
from paw_gym.transition import Transition
from paw_train.algorithms.critic import Critic
from paw_train.algorithms.experience import Pool, collect
from paw_train.environments import make_pool, training_env
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import EpisodeRunner, Trajectory, rollout
from paw_train.settings import CriticSettings, Settings
from paw_train.settings.foreign import recorded_settings
from paw_train.settings.run import read_recorded

FUTURES = 64
"""continuations of a step that are kept in full: as many replicates of it there can be"""


def main() -> None:
    options = _options()
    settings = Settings.read(
        recorded_settings(
            read_recorded(options.run / "config.json"),
            str(options.run),
            (),
            tuple(Settings.model_fields),
        )
    )
    options.out.mkdir(parents=True, exist_ok=True)
    _same_measurement(options)
    measured = [_measured(line) for line in _lines(options.out / "tasks.jsonl")]
    if len(measured) < options.tasks:
        measurement = Measurement(options, settings)
        for number in range(len(measured), options.tasks):
            found = measurement.task(number)
            append_jsonl(options.out / "tasks.jsonl", asdict(found))
            measured.append(found)
            print(f"task {number + 1} of {options.tasks}", flush=True)
    wanted = methods(options.group_sizes, options.branches)
    rows = [summary(measured, method, FUTURES, options.seed) for method in wanted]
    write_json(options.out / "result.json", {"methods": rows, **_recorded(options)})
    write_text(options.out / "table.md", table(rows))
    print(table(rows))


class Measurement:
    """Samples episodes and continuations of a run's policy.

    Args:
        options: of the command line.
        settings: of the run.
    """

    def __init__(self, options: argparse.Namespace, settings: Settings) -> None:
        self.options, self.settings = options, settings
        checkpoint = find_checkpoint(options.run / "checkpoints" / options.checkpoint)
        if checkpoint is None:
            raise SystemExit(
                f"{options.run} has no checkpoint {options.checkpoint!r}; expected one of "
                "warm, latest, best (--checkpoint)."
            )
        self.policy = LocalPolicy.load(checkpoint / "model")
        env = training_env(settings.env)
        self.pool = make_pool(env, env.train_split, 1, options.episodes, options.seed)
        order = np.random.default_rng([options.seed, 1]).permutation(len(self.pool.tasks))
        self.task_ids = [self.pool.tasks.ids[int(i)] for i in order]
        self.critic = self._critic(env)

    def _critic(self, env: Any) -> Critic:
        """GAE's critic: fitted to returns of other tasks' episodes, once for the measurement."""
        o, budget = self.options, self.settings.optimizer.micro_batch_tokens
        critic = Critic(self.policy, CriticSettings(lr=o.critic_lr), "turn", budget)
        path = o.out / "critic.pt"
        if path.exists():
            critic.load_state_dict(torch.load(path, weights_only=True))
            return critic
        pool = make_pool(env, env.train_split, o.critic_episodes, 1, o.seed + 1)
        tasks = self.task_ids[o.tasks :][: o.critic_episodes] or self.task_ids[: o.critic_episodes]
        found = collect(rollout(self.policy, pool, self.settings.rollout, o.seed, tasks))
        targets, old = _returns_to_go(found), critic.values(found.rows, len(found.steps))
        rng = np.random.default_rng([o.seed, 2])
        for _ in range(o.critic_steps):
            picked = rng.choice(len(found.rows), min(64, len(found.rows)), replace=False)
            critic.step([found.rows[i] for i in picked], targets, old)
        torch.save(critic.state_dict(), path)
        return critic

    def task(self, number: int) -> Measured:
        """Episodes of one task, and continuations of some of their steps."""
        run = _TaskRun(self.pool, self.policy, self.settings, self.options.seed + number)
        run.start(self.task_ids[number])
        rng = np.random.default_rng([self.options.seed, 3, number])
        steps = [(e, t) for e, states in enumerate(run.snapshots) for t in range(len(states))]
        picked = rng.choice(len(steps), min(self.options.targets, len(steps)), replace=False)
        branches: dict[tuple[int, int, str], list[int]] = {}
        for episode, step in (steps[int(i)] for i in sorted(picked)):
            for name, at in (("state", step), ("next", step + 1)):
                if at < len(run.snapshots[episode]):
                    made = run.continuations(episode, at, self.options.continuations)
                    branches[episode, step, name] = made
        return self._records(
            run.runner.finished(), branches, [steps[int(i)] for i in sorted(picked)]
        )

    def _records(
        self,
        trajectories: Sequence[Trajectory],
        branches: dict[tuple[int, int, str], list[int]],
        targets: Sequence[tuple[int, int]],
    ) -> Measured:
        # values are read of whole episodes: those of the group, and the continuations that are kept in full
        whole = {
            i for (_, _, name), made in branches.items() if name == "next" for i in made[:FUTURES]
        }
        whole |= set(range(self.options.episodes))
        values = _values(self.critic, [trajectories[i] for i in sorted(whole)])
        steps = [_steps(t, values if i in whole else None) for i, t in enumerate(trajectories)]
        found = []
        for episode, step in targets:
            own = trajectories[episode].episode.transitions
            before = [steps[i] for i in branches[episode, step, "state"]]
            # the last step of an episode leads nowhere: its Q is its reward
            after = [steps[i] for i in branches.get((episode, step, "next"), [])]
            after = after or [Steps([], [], [], 0)] * self.options.continuations
            found.append(
                Target(
                    episode,
                    step,
                    [sum(s.rewards) for s in before],
                    [own[step].reward + sum(s.rewards) for s in after],
                    after[:FUTURES],
                    float(np.mean([s.tokens for s in before])),
                )
            )
        return Measured(steps[: self.options.episodes], found)


class _TaskRun:
    """Episodes of one task, with every state that they passed."""

    def __init__(self, pool: EnvPool, policy: LocalPolicy, settings: Settings, seed: int) -> None:
        self.pool = pool
        self.runner = EpisodeRunner(policy, pool, settings.rollout, seed)
        self.snapshots: list[list[Snapshot]] = [[] for _ in range(pool.group_size)]

    def start(self, task_id: str) -> None:
        self.pool.reset([task_id])
        self.runner.run(before_response=self._keep)

    def _keep(self, slot: Slot) -> None:
        self.snapshots[slot.index].append(self.pool.snapshot(slot))

    def continuations(self, episode: int, step: int, count: int) -> list[int]:
        """Samples continuations of a state; the numbers of their trajectories."""
        state, first = self.snapshots[episode][step], len(self.runner.trajectories)
        self.runner.fork(state, count)
        self.runner.run()
        return list(range(first, first + count))


def _values(critic: Critic, trajectories: Sequence[Trajectory]) -> dict[tuple[str, int], float]:
    """The critic's value before each step, by (episode, step)."""
    pool = collect(trajectories)
    values = critic.values(pool.rows, len(pool.steps))[:, 0].tolist()
    return {(t.episode_id, t.step): v for t, v in zip(pool.transitions, values, strict=True)}


def _steps(trajectory: Trajectory, values: dict[tuple[str, int], float] | None) -> Steps:
    """A trajectory's own steps; without values where there are none."""
    if trajectory.episode.error is not None:
        raise RuntimeError(f"An episode failed:\n{trajectory.episode.error}")
    own = trajectory.own
    return Steps(
        [t.reward for t in own],
        [_fingerprint(t) for t in own],
        [values[t.episode_id, t.step] for t in own] if values is not None else [],
        sum(len(step.logprobs) for row in trajectory.rows for step in row.steps),
    )


def _fingerprint(t: Transition) -> str:
    return hashlib.blake2b((t.observation or "").encode(), digest_size=6).hexdigest()


def _returns_to_go(pool: Pool) -> torch.Tensor:
    """[N, 1] undiscounted."""
    to_go, running = [0.0] * len(pool.steps), 0.0
    for i in reversed(range(len(to_go))):
        last = i + 1 == len(to_go) or pool.episode[i + 1] != pool.episode[i]
        running = float(pool.rewards[i]) + (0.0 if last else running)
        to_go[i] = running
    return torch.tensor(to_go)[:, None]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The result as Markdown."""
    lines = [
        "| method | tokens a task | tokens a step | correlation | bias | variance | sign errors |",
        "| --- | ---: | ---: | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [
            _interval(row[name]) for name in ("correlation", "bias", "variance", "sign_errors")
        ]
        costs = f"{row['group_tokens']:,.0f} | {row['tokens']:.1f}"
        lines.append(f"| {row['method']} | {costs} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _interval(found: Sequence[float | None]) -> str:
    value, low, high = found
    if value is None:
        return "undefined"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _measured(line: dict[str, Any]) -> Measured:
    targets = [
        Target(**{**t, "futures": [Steps(**f) for f in t["futures"]]}) for t in line["targets"]
    ]
    return Measured([Steps(**e) for e in line["episodes"]], targets)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _recorded(options: argparse.Namespace) -> dict[str, Any]:
    """What the samples depend on."""
    names = ("checkpoint", "episodes", "targets", "continuations", "seed", "critic_episodes")
    return {"run": str(options.run), **{name: getattr(options, name) for name in names}}


def _same_measurement(options: argparse.Namespace) -> None:
    """Refuses a folder that holds a measurement with other options."""
    path, wanted = options.out / "settings.json", _recorded(options)
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != wanted:
        raise SystemExit(
            f"{options.out} holds a measurement with other options; give another --out."
        )
    write_json(path, wanted)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a training run, whose policy is measured")
    parser.add_argument("--out", type=Path, required=True, help="folder of the measurement")
    parser.add_argument("--checkpoint", default="warm", help="warm, latest or best")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=32, help="of each task")
    parser.add_argument("--targets", type=int, default=5, help="steps of each task")
    parser.add_argument("--continuations", type=int, default=200, help="of each state")
    parser.add_argument("--critic-episodes", type=int, default=256)
    parser.add_argument("--critic-steps", type=int, default=200)
    parser.add_argument("--critic-lr", type=float, default=3e-4)
    parser.add_argument("--group-sizes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--branches", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
