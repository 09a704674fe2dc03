"""The stages before policy RL, in a run's folder: collect transitions, then learn the world model.

Everything that is finished is in a file, written whole: ``world_model/transitions.jsonl`` (the start
policy's transitions), ``world_model/held_out.jsonl``, ``world_model/chosen.json`` (which transitions are
learned from), ``checkpoints/world_model-latest`` (in between) and ``checkpoints/world_model`` (the start of
policy RL). Called again after a kill, a stage continues from there. Early experience has a first stage of its
own (``world_model/early_experience.jsonl``), and imitation as a third one, which the trainer hands in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paw_gym.internals.files import append_jsonl, write_json, write_text
from paw_gym.pool import EnvPool
from paw_gym.transition import Episode, read_jsonl, write_jsonl
from paw_gym.wrappers import AgentInterface
from paw_train.environments import agent_env_maker, has_solver, make_pool, training_env
from paw_train.evaluation import world_model
from paw_train.evaluation.terminal import Display
from paw_train.evaluation.world_model import Embedder, make_embedder
from paw_train.policies.checkpoints import cut_logs, find_checkpoint
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import demonstrations, rollout
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import Settings
from paw_train.settings.run import shared_transitions
from paw_train.world_model_learning.early_experience import (
    ExpertExperience,
    early_experience,
    read_experience,
    write_experience,
)
from paw_train.world_model_learning.learners import RWMLLearner, SFTLearner
from paw_train.world_model_learning.predicting import (
    Example,
    Similarity,
    balanced,
    examples_of,
    kept,
    predict,
    solved_shares,
    unique,
)

METRICS_FILE = "world_model.jsonl"
"""in a run's folder: one line per update of the second stage"""
_COLLECT, _FILTER, _HELD_OUT, _BALANCE, _TASKS, _PROPOSALS = range(10, 16)
"""parts of the seeds of these, so that they differ"""


@dataclass
class WorldModelStages:
    """The stages of one run.

    Args:
        policy: the start policy; learning changes it in place.
        imitate: trains the policy on the expert's responses, and on the given rows; False if it was asked
            to stop before the end.
    """

    settings: Settings
    folder: Path
    policy: LocalPolicy
    display: Display
    stopping: Callable[[], bool]
    imitate: Callable[[list[TokenRow]], bool]

    def __post_init__(self) -> None:
        self.own = self.settings.world_model_learning
        self.place = self.folder / "world_model"

    # --- top to bottom ----------------------------------------------------------------------------

    def learn(self) -> bool:
        """Runs both stages, or the missing part of them; False if interrupted before their end.

        Afterwards the policy is the start of policy RL.
        """
        done = find_checkpoint(self.folder / "checkpoints" / "world_model")
        if done is not None:
            load_checkpoint(done, self.policy)
            return True
        self.measure("start")
        if self.own.method == "off":
            return True
        experience = self._experience() if self.own.from_expert else []
        if self.own.from_expert:
            episodes = [e for one in experience for e in (one.episode, *one.branches())]
        else:
            split = self.settings.only_env.train_split
            episodes = self._played("transitions.jsonl", split, self.own.episodes, _COLLECT)
        finished = self._learn(self._choose(episodes))
        if finished and self.own.from_expert:
            finished = self.imitate(self._imitated(experience))
        if finished:
            self.measure("learned")
            save_checkpoint(self.folder / "checkpoints" / "world_model", self.policy, {"update": 0})
        return finished

    def measure(self, when: str) -> None:
        """Measures the policy's world model on the held-out transitions, once: ``world_model/<when>.json``.

        As ``paw eval-wm --episodes RUN/world_model/held_out.jsonl --encoder ...`` does.
        """
        s, path = self.settings, self.place / f"{when}.json"
        if not self.own.held_out_episodes or path.exists():
            return
        episodes = self._held_out(self.own.held_out_episodes)
        encoder = None if self.own.method == "off" else self.own.encoder
        name = "start.json" if encoder is None else "start_with_similarity.json"
        shared = self._shared(name) if when == "start" else None
        if shared is not None and shared.exists():
            found = json.loads(shared.read_text(encoding="utf-8"))
            write_json(path, found | {"model": s.name})
            return
        started = time.perf_counter()
        embed = None if encoder is None else self._embedder
        given = (s.only_env, s.evaluation.split, s.rollout, embed, self.display)
        result = world_model.measure(self.policy, episodes, *given)
        seconds = time.perf_counter() - started
        result |= {"when": when, "model": s.name, "encoder": encoder, "seconds": seconds}
        write_json(path, result)
        if shared is not None:
            shared.parent.mkdir(parents=True, exist_ok=True)
            write_json(shared, result, shared=True)
        entries = (f"{name} {value}" for name, value in world_model.table_row(result).items())
        self.display.say(f"World model ({when}): {', '.join(entries)}")

    def _held_out(self, count: int) -> list[Episode]:
        """Episodes of the evaluation split: the expert's, perturbed, or without an expert the start policy's.

        The expert's are the same in all runs that are compared, whatever their seeds.
        """
        env, split = self.settings.only_env, self.settings.evaluation.split
        path = self.place / "held_out.jsonl"
        if path.exists() or not has_solver(env, split):
            return self._played("held_out.jsonl", split, count, _HELD_OUT)
        pool = make_pool(env, split, count, 1, _HELD_OUT)
        rng = np.random.default_rng(_HELD_OUT)
        tasks = _sampled_tasks(pool, count, rng)
        trajectories = demonstrations(pool, None, tasks, noise=0.5, rng=rng, slips="misplaced")
        pool.close()
        self.place.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, [t.episode for t in trajectories if t.episode.error is None])
        return list(read_jsonl(path))

    # --- stage 1 -----------------------------------------------------------------------------------

    def _played(self, name: str, split: str, count: int, purpose: int) -> list[Episode]:
        """Episodes of the start policy, from the file if they are already there."""
        path, shared = self.place / name, self._shared(name)
        if path.exists():
            return list(read_jsonl(path))
        self.place.mkdir(parents=True, exist_ok=True)
        if shared is not None and shared.exists():
            write_text(path, shared.read_text(encoding="utf-8"))
            return list(read_jsonl(path))
        numbers = np.random.SeedSequence([self.settings.seed, purpose]).generate_state(2)
        env = training_env(self.settings.only_env)
        pool = make_pool(env, split, count, 1, int(numbers[0]))
        generator = torch.Generator().manual_seed(int(numbers[1]))
        given = (self.policy, pool, self.settings.rollout, generator)
        with self.display.task(f"collecting {name.removesuffix('.jsonl')}", count) as advance:
            trajectories = rollout(
                *given, progress=lambda run, all_: advance(all_ - run), keep_tokens=False
            )
        pool.close()
        episodes = [t.episode for t in trajectories if t.episode.error is None]
        if not episodes:
            raise ValueError(
                "Every episode failed in its environment; the first traceback:\n"
                f"{trajectories[0].episode.error}"
            )
        write_jsonl(path, episodes)
        if shared is not None:
            shared.parent.mkdir(parents=True, exist_ok=True)
            write_text(shared, path.read_text(encoding="utf-8"), shared=True)
        return episodes

    def _shared(self, name: str) -> Path | None:
        """The place of a file that runs with one start policy share."""
        folder = shared_transitions(self.settings)
        return None if folder is None else folder / name

    def _experience(self) -> list[ExpertExperience]:
        """The expert's episodes and what else could have been done, from the file if it exists already."""
        path = self.place / "early_experience.jsonl"
        if path.exists():
            return read_experience(path)
        # as in the warm start: training's limit of steps does not apply to the expert
        env, count, seed = self.settings.only_env, self.own.episodes, self.settings.seed
        pool_seed = int(np.random.SeedSequence([seed, _TASKS]).generate_state(1)[0])
        pool = make_pool(env, env.train_split, 1, 1, pool_seed)
        ids = _sampled_tasks(pool, count, np.random.default_rng([seed, _TASKS]))
        with self._env() as other, self.display.task("early experience", count) as advance:
            rng = np.random.default_rng([seed, _PROPOSALS])
            found = early_experience(pool, other, ids, self.own.early.alternatives, rng, advance)
        pool.close()
        tried = sum(len(row) for one in found for row in one.alternatives)
        if not tried:
            raise ValueError(
                f"Early experience found nothing: of {count} tasks the expert solved {len(found)}, and in "
                "none of their states was another action tried."
            )
        self.place.mkdir(parents=True, exist_ok=True)
        write_experience(path, found)
        states = sum(len(one.alternatives) for one in found)
        self.display.say(
            f"{tried} other actions tried in {states} states of {len(found)} episodes."
        )
        return found

    def _imitated(self, experience: Sequence[ExpertExperience]) -> list[TokenRow]:
        """The expert's episodes of the experience for imitation, if there was no warm start."""
        if self.settings.cloning.episodes:
            return []
        with self._env() as env:
            shown, limit = env.text_env.prompt_observation, self.settings.rollout.max_prompt_tokens
            return [
                recorded_row(self.policy.chat, one.episode, step, shown, env.template, limit)
                for one in experience
                for step in range(len(one.episode.transitions))
            ]

    @contextmanager
    def _env(self) -> Iterator[AgentInterface]:
        """An environment of the training split."""
        env = agent_env_maker(self.settings.only_env, self.settings.only_env.train_split)()
        try:
            yield env
        finally:
            env.close()

    # --- stage 2 -----------------------------------------------------------------------------------

    def _choose(self, episodes: Sequence[Episode]) -> list[Example]:
        """The transitions to learn from; called while the policy is still the start policy."""
        with self._env() as probe:
            shown = probe.text_env.prompt_observation
            limit = self.settings.rollout.max_prompt_tokens
            found = examples_of(episodes, self.policy.chat, shown, probe.template, limit)
        if not found:
            raise ValueError("The collected episodes hold no observation to learn to predict.")
        different = unique(found)
        path = self.place / "chosen.json"
        if path.exists():
            chosen = json.loads(path.read_text(encoding="utf-8"))["chosen"]
            return [different[i] for i in chosen]
        record: dict[str, Any] = {
            "episodes": len(episodes),
            "transitions": len(found),
            "different": len(different),
        }
        numbers = list(range(len(different)))
        if self.own.easy_samples:
            numbers, more = self._hard(different)
            record |= more
        if self.own.max_share < 1:
            rng = np.random.default_rng([self.settings.seed, _BALANCE])
            even = balanced([different[i].text for i in numbers], self.own.max_share, rng)
            numbers = [i for i, wanted in zip(numbers, even, strict=True) if wanted]
        write_json(path, {**record, "kept": len(numbers), "chosen": numbers})
        self.display.say(
            f"{len(numbers)} of {len(found)} transitions to learn from "
            f"({len(different)} different ones)."
        )
        return [different[i] for i in numbers]

    def _hard(self, examples: Sequence[Example]) -> tuple[list[int], dict[str, Any]]:
        """(numbers of the examples to keep, what is recorded of them)"""
        own, batch = self.own, self.settings.evaluation.batch
        numbers = np.random.SeedSequence([self.settings.seed, _FILTER]).generate_state(2)
        given = (own.easy_samples, own.rwml.max_tokens, int(numbers[0]), batch)
        with self.display.task("finding easy transitions", len(examples)) as advance:
            guesses = predict(self.policy, examples, *given, advance)
        shares = solved_shares(guesses, examples, self._similarity())
        keep = kept(shares, np.random.default_rng(int(numbers[1])))
        if not keep.any():
            raise ValueError(
                "The start policy predicts every collected transition within "
                f"world_model_learning.rwml.threshold={own.rwml.threshold}, and none of these easy ones "
                "was kept: there is nothing left to learn. Lower the threshold."
            )
        record = {"easy": int((shares >= 1).sum()), "solved_mean": float(shares.mean())}
        return [int(i) for i in np.flatnonzero(keep)], record

    def _learn(self, examples: Sequence[Example]) -> bool:
        """The updates that are left; False if it was interrupted before the last."""
        learner: SFTLearner | RWMLLearner
        if self.own.method == "rwml":
            learner = RWMLLearner(self.policy, examples, self._similarity(), self.settings)
        else:
            learner = SFTLearner(self.policy, examples, self.settings)
        try:
            return self._updated(learner)
        finally:
            learner.updater.weights.close()  # releases the policy for the next stage

    def _updated(self, learner: SFTLearner | RWMLLearner) -> bool:
        latest = self.folder / "checkpoints" / "world_model-latest"
        log = self.folder / METRICS_FILE
        saved = find_checkpoint(latest)
        start = 0
        if saved is not None:
            state = load_checkpoint(saved, self.policy)
            learner.updater.load_state_dict(state["optimizer"])
            start = int(state["update"])
            self.display.say(f"Learning the world model continues after update {start}.")
        cut_logs(self.folder, [METRICS_FILE], start, self.display.say)
        total, every = self.own.updates, self.settings.checkpoint_every
        with self.display.task(f"learning the world model ({self.own.method})", total) as advance:
            for update in range(start, total):
                metrics = learner.update(update)
                append_jsonl(log, {"update": update + 1, **metrics, "time": time.time()})
                advance(update + 1, _note(metrics))
                stop = self.stopping()
                if update + 1 == total:
                    learner.updater.guarded_step.require_good()
                due = stop or update + 1 == total or (update + 1) % every == 0
                if due and learner.updater.guarded_step.skipped == 0:
                    state = {"update": update + 1, "optimizer": learner.updater.state_dict()}
                    save_checkpoint(latest, self.policy, state)
                if stop:
                    return False
        return True

    @cached_property
    def _embedder(self) -> Embedder:
        return make_embedder(self.own.encoder)

    def _similarity(self) -> Similarity:
        return Similarity(self._embedder, self.own.rwml.threshold)


def _sampled_tasks(pool: EnvPool, count: int, rng: np.random.Generator) -> list[str]:
    """Tasks of the pool, one of them twice only if there are too few."""
    ids = pool.tasks.ids
    return [ids[int(i)] for i in rng.choice(len(ids), count, replace=count > len(ids))]


def _note(metrics: dict[str, Any]) -> str:
    shown = ("right_share", "similarity", "nll_per_token")
    return ", ".join(f"{name} {metrics[name]:.3f}" for name in shown if name in metrics)
