"""A made-up training run of any size, in the files that a real one leaves, for measuring the viewer.

Episodes look like ALFWorld's: an instruction, admissible actions, observations; now and then an
invalid action. Every observation comes with token probabilities.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paw_gym.transition import Episode, Transition, write_jsonl

TYPES = {
    "pick_and_place_simple": "put a {} in the {}.",
    "pick_clean_then_place_in_recep": "clean some {} and put it in the {}.",
    "pick_cool_then_place_in_recep": "cool some {} and put it in the {}.",
    "look_at_obj_in_light": "look at the {} under the {}.",
}
_THINGS = ("mug", "egg", "apple", "pen", "book", "plate", "towel", "knife", "bowl", "candle")
_PLACES = ("fridge", "desk", "shelf", "drawer", "cabinet", "countertop", "sinkbasin", "microwave")
_TOKEN = re.compile(r"\s*\w+|\s*[^\w\s]|\s+$")


def write_run(folder: Path, transitions: int, groups: int = 4, group_size: int = 8) -> int:
    """Writes a run of at least so many transitions, whose last update is whole; returns how many it has."""
    rng = random.Random(0)
    for name in ("rollouts", "tokens"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    done = update = 0  # the first update is 1
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        while done < transitions:
            update += 1
            made = list(_update(update, groups, group_size, rng))
            episodes = [episode for episode, _ in made]
            write_jsonl(folder / "rollouts" / f"{update:06d}.jsonl", episodes)
            lines = "".join(json.dumps(record) + "\n" for _, record in made)
            (folder / "tokens" / f"{update:06d}.jsonl").write_text(lines, encoding="utf-8")
            metrics.write(json.dumps(_metrics(update, episodes, rng)) + "\n")
            done += sum(len(e.transitions) for e in episodes)
    settings = {
        "name": folder.name,
        "seed": 0,
        "updates": update,
        "env": {"id": "paw_gym/ALFWorld-v0"},
        "algorithm": {"name": "grpo"},
        "world_model": {"enabled": True, "loss": "cmae", "alpha": 0.75, "rho": 0.2},
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return done


def _update(
    update: int, groups: int, group_size: int, rng: random.Random
) -> Iterator[tuple[Episode, dict[str, Any]]]:
    for group in range(groups):
        task_type, words = rng.choice(list(TYPES.items()))
        thing, place = rng.choice(_THINGS), rng.choice(_PLACES)
        task = f"procedural/train/{task_type}/{rng.randrange(10_000):05d}"
        skill = min(0.9, 0.2 + update / 150)
        played = [
            _episode(f"{task}#{update:x}-{n}", task, task_type, words.format(thing, place), group,
                     thing, skill, rng)
            for n in range(group_size)
        ]  # fmt: skip
        mean = sum(e.total_reward for e in played) / group_size
        std = math.sqrt(sum((e.total_reward - mean) ** 2 for e in played) / group_size) or 1.0
        for episode in played:
            advantage = (episode.total_reward - mean) / std
            yield episode, _record(update, episode, advantage, 1 - mean / 10, rng)


def _episode(
    name: str,
    task: str,
    task_type: str,
    instruction: str,
    group: int,
    thing: str,
    skill: float,
    rng: random.Random,
) -> Episode:
    episode = Episode("paw_gym/ALFWorld-v0", task, name, task_type, instruction, group, "window")
    solved = rng.random() < skill
    steps = rng.randrange(6, 20)
    seen = "You are in the middle of a room. Looking quickly around you, you see a fridge 1."
    history: list[str] = []
    for step in range(steps):
        last = step + 1 == steps
        place = f"{rng.choice(_PLACES)} {rng.randrange(1, 5)}"
        valid = rng.random() > 0.15
        action = f"go to {place}" if rng.random() < 0.6 else f"take {thing} 1 from {place}"
        answer = f"On the {place}, you see a {rng.choice(_THINGS)} {rng.randrange(1, 4)}, and a {thing} 1."
        if not valid:
            answer = "Nothing happens."
        prompt = f"Your task is to: {instruction}\n{chr(10).join(history[-4:])}\nNow: {seen}"
        thought = f"I should look for the {thing} near the {place}."
        episode.transitions.append(
            Transition(
                episode.env_id, task, name, step, prompt, seen,
                f"<think>{thought}</think><action>{action}</action>", action,
                (10.0 if solved and last else 0.0) - (0.0 if valid else 0.1),
                answer, solved and last, last and not solved, valid,
                {"success": solved and last, "score": float(solved and last),
                 "problem": None if valid else "the environment did not accept the action"},
            )
        )  # fmt: skip
        history.append(f"> {action}")
        seen = answer
    return episode


def _record(
    update: int, episode: Episode, advantage: float, lam: float, rng: random.Random
) -> dict[str, Any]:
    steps = []
    for t in episode.transitions:
        pieces = _TOKEN.findall(t.next_observation)
        # small at first, near 1 later, and now and then a surprise
        p = [min(0.9999, max(1e-6, rng.betavariate(1 + update / 40, 0.7))) for _ in pieces]
        steps.append(
            {
                "step": t.step,
                "entropy": round(rng.expovariate(12), 5),
                "advantage": round(advantage, 5),
                "selected": rng.random() < 0.75,
                "weight": round(lam / 100, 6),
                "admissible": [f"go to {place} 1" for place in _PLACES] + ["inventory", "look"],
                "response": {"tokens": [], "logprobs": []},
                "observation": {
                    "tokens": pieces,
                    "logprobs": [round(math.log(value), 5) for value in p],
                    "clipped": "".join("01"[value > 0.2] for value in p),
                },
            }
        )
    return {
        "update": update, "episode_id": episode.episode_id, "group": episode.group,
        "world_model": True,
        "loss": "cmae", "rho": 0.2, "temperature": 1.0, "lambda": round(lam, 5), "steps": steps,
    }  # fmt: skip


def _metrics(update: int, episodes: list[Episode], rng: random.Random) -> dict[str, Any]:
    steps = [t for e in episodes for t in e.transitions]
    nll = 0.6 * math.exp(-update / 60) + 0.1 + rng.gauss(0, 0.01)
    return {
        "update": update,
        "reward_mean": sum(e.total_reward for e in episodes) / len(episodes),
        "success_rate": sum(e.success for e in episodes) / len(episodes),
        "steps_mean": len(steps) / len(episodes),
        "invalid_rate": sum(not t.action_is_valid for t in steps) / len(steps),
        "policy_loss": rng.gauss(0, 0.02), "kl": abs(rng.gauss(0.002, 0.001)) * update,
        "clip_fraction": abs(rng.gauss(0.01, 0.004)), "obs_nll": nll, "wm_loss": nll / 3,
        "clipped_share": min(0.99, 0.5 + update / 300), "selected_share": 0.75,
        "lambda_mean": 1 - sum(e.total_reward for e in episodes) / len(episodes) / 10,
        "entropy_mean": 0.08 + rng.gauss(0, 0.004), "grad_norm": abs(rng.gauss(0.2, 0.05)),
        "lr": 1e-4, "seconds_rollout": 20.0, "seconds_train": 15.0, "time": 1.7e9 + 35 * update,
    }  # fmt: skip
