"""Record the batch of the conformance suite, and what a trainer is to compute from it.

    python data/make_conformance_batch.py            # the recording and the known-good values
    python data/make_conformance_batch.py --values   # the values again, of the recording that is there

Writes into `paw_train/conformance/recorded/`. A word-level model is trained from scratch on an expert's
episodes of `paw_gym/ToyText-v0` (frozen lakes of 4 x 4, at most seven steps), a little longer for the sampler
than for the reference; the policy is the sampler with noise on its weights, as after some optimiser steps.
Kept are the first three groups whose four episodes differ in their returns and that together hold an
invalid and a malformed response, a truncated episode, and one whose text tokenises differently.
"""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from paw_gym.pool import EnvPool
from paw_train.conformance.equations import solve
from paw_train.conformance.recording import FOLDER, OBJECTIVES, load
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.rollout import TokenRecorder, Trajectory, demonstrations, rollout
from paw_train.rollouts.scoring import row_logprobs
from paw_train.rollouts.tokens import ACTION, OBSERVATION
from paw_train.settings import CloningSettings, RolloutSettings
from paw_train.settings.model import ScratchModelSettings
from paw_train.training.cloning import clone, expert_rows

ENVIRONMENT = "paw_gym/ToyText-v0"
SIZE = ScratchModelSettings(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32)
SETTINGS = RolloutSettings(max_response_tokens=12, temperature=OBJECTIVES["policy"].temperature)
NOISE = 0.02
"""standard deviation of what the policy's weights differ by from the sampler's"""


class Recorder(TokenRecorder):
    """Keeps the message that followed each response, as text."""

    messages: dict[tuple[str, int], tuple[str, tuple[int, int]]] = {}

    def take(self, slot: Any, response: Any, learned: bool = True) -> None:
        episode = slot.episode
        key = episode.episode_id, len(episode.transitions) - 1
        self.messages[key] = slot.prompt, self.pool.env_of(slot).observation_span
        super().take(slot, response, learned)


def pool(groups: int, size: int) -> EnvPool:
    return EnvPool(
        ENVIRONMENT, groups, size, seed=1, mode="conversation", max_steps=7, num_tasks=400
    )


def models(teacher: EnvPool) -> dict[str, Any]:
    """Weights of the reference, the sampler and the policy; and the sampler as a policy."""
    tasks = teacher.tasks.ids[:150]
    texts = ["That is not an action here."]
    for trajectory in demonstrations(teacher, None, tasks, 0.3, np.random.default_rng(0)):
        texts.append(trajectory.episode.instruction)
        for t in trajectory.episode.transitions:
            texts += [t.prompt, t.response, t.next_observation]
    tokenizer = word_tokenizer(texts)
    sampler = LocalPolicy(scratch_model(SIZE, len(tokenizer), 0), tokenizer)
    rows = expert_rows(teacher, sampler.chat, tasks, CloningSettings(noise=0.3), 0)

    def learn(steps: int, rate: float) -> dict[str, torch.Tensor]:
        settings = CloningSettings(
            episodes=1, steps=steps, batch_tokens=2048, lr=3e-3 * rate, matrix_lr=0.02 * rate
        )
        clone(sampler, rows, settings, steps)
        return {k: v.detach().clone() for k, v in sampler.model.named_parameters()}

    learn(300, 1.0)
    reference = learn(60, 0.5)
    sampled = learn(30, 0.5)
    noise = np.random.RandomState(0)
    policy = {
        k: v + NOISE * torch.from_numpy(noise.standard_normal(v.shape)).float()
        for k, v in sampled.items()
    }
    return {
        "weights": {"reference": reference, "sampler": sampled, "policy": policy},
        "sampler": sampler,
    }


def record(sampler: LocalPolicy) -> list[Trajectory]:
    """The chosen episodes, group by group."""
    import paw_train.rollouts.rollout as module

    module.TokenRecorder = Recorder  # type: ignore[misc]
    tasks = pool(1, 1).tasks.ids[150:240]
    trajectories = rollout(sampler, pool(len(tasks), 4), SETTINGS, 7, tasks)
    groups = [trajectories[i : i + 4] for i in range(0, len(trajectories), 4)]
    mixed = [g for g in groups if len({round(t.episode.total_reward, 6) for t in g}) > 2]
    for chosen in combinations(mixed, 3):
        found = [t for group in chosen for t in group]
        if all(suitable(found, sampler)):
            return found
    raise SystemExit("No three groups hold everything that the faults need: change a seed.")


def suitable(found: list[Trajectory], sampler: LocalPolicy) -> list[bool]:
    steps = [t for trajectory in found for t in trajectory.episode.transitions]
    means = [
        round(sum(t.episode.total_reward for t in found[i : i + 4]), 3) for i in range(0, 12, 4)
    ]
    retokenised = sum(
        sampler.chat.content(t.response) not in (ids, ids[:-1])
        for trajectory in found
        for row in trajectory.rows
        for turn, t in enumerate(trajectory.episode.transitions)
        for ids in [[row.ids[place] for place in row.places(ACTION)[turn]]]
    )
    return [
        len(set(means)) == 3,
        any(t.info["malformed"] for t in steps),
        any(not t.action_is_valid for t in steps),
        any(t.truncated for t in steps),
        retokenised > 0,
        len({len(trajectory.episode.transitions) for trajectory in found}) > 2,
    ]


def described(found: list[Trajectory], sampler: LocalPolicy) -> list[dict[str, Any]]:
    """The episodes as the recording holds them."""
    rows = [row for trajectory in found for row in trajectory.rows]
    at_one = row_logprobs(sampler, rows, 10**6, 1.0)
    as_sampled = row_logprobs(sampler, rows, 10**6, SETTINGS.temperature)
    episodes, number = [], 0
    for place, trajectory in enumerate(found):
        (row,) = trajectory.rows
        turns = []
        actions, observations = row.places(ACTION), row.places(OBSERVATION)
        for turn, t in enumerate(trajectory.episode.transitions):
            action, seen = (
                (places[turn][0], places[turn][-1] + 1) for places in (actions, observations)
            )
            logprobs = row.logprob[slice(*action)]
            assert np.allclose(as_sampled[place][slice(*action)], logprobs, atol=1e-4)
            message, span = Recorder.messages[t.episode_id, t.step]
            turns.append(
                {
                    "number": number,
                    "prompt": t.prompt,
                    "response": t.response,
                    "response_ids": row.ids[slice(*action)],
                    "logprobs": {
                        "policy": [round(v, 7) for v in logprobs],
                        "world_model": [
                            round(v, 7) for v in at_one[place][slice(*action)].tolist()
                        ],
                    },
                    "message": message,
                    "observation": span,
                    "action_tokens": action,
                    "observation_tokens": seen,
                    "reward": t.reward,
                    "penalty": 0.0 if t.action_is_valid else -0.1,
                    "malformed": t.info["malformed"],
                    "terminated": t.terminated,
                    "truncated": t.truncated,
                    "success": t.info["success"],
                }
            )
            number += 1
        episodes.append(
            {
                "task": trajectory.episode.task_id,
                "instruction": trajectory.episode.instruction,
                "group": place // 4,
                "ids": row.ids[: seen[1]],
                "turns": turns,
            }
        )
    return episodes


def write_recording() -> None:
    made = models(pool(1, 1))
    found = record(made["sampler"])
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "model").mkdir(parents=True)
    made["sampler"].model.config.save_pretrained(FOLDER / "model")
    made["sampler"].tokenizer.save_pretrained(FOLDER / "model")
    weights = made["weights"]
    tensors = {f"{name}.{k}": v.contiguous() for name in weights for k, v in weights[name].items()}
    save_file(tensors, FOLDER / "weights.safetensors")
    lines = ",\n".join(json.dumps(episode) for episode in described(found, made["sampler"]))
    batch = f'{{"environment": {json.dumps(ENVIRONMENT)}, "episodes": [\n{lines}\n]}}\n'
    (FOLDER / "batch.json").write_text(batch, encoding="utf-8")


def write_values() -> None:
    load.cache_clear()
    values = {}
    for name, objective in OBJECTIVES.items():
        found = solve(load(), objective)
        values[name] = {
            "advantages": found.advantages.tolist(),
            "world_model_weights": found.world_model_weights.tolist(),
            "policy_loss": found.policy_loss,
            "world_model_loss": found.world_model_loss,
        }
        gradients = {k: v.float().contiguous() for k, v in found.gradients.items()}
        save_file(gradients, FOLDER / f"gradients_{name}.safetensors")
        print(name, found.policy_loss, found.world_model_loss)
    path = Path(FOLDER / "known_good.json")
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--values", action="store_true", help="leave the recording as it is")
    torch.set_num_threads(1)
    if not parser.parse_args().values:
        write_recording()
    write_values()
