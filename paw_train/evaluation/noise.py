"""The noise-gradient diagnostic of a run: recorded transitions, scored by one of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paw_gym.internals.files import write_json
from paw_gym.transition import read_jsonl
from paw_train.evaluation import agent_env_maker
from paw_train.evaluation.recorded import recorded_settings
from paw_train.losses.noise_gradients import CharSpan, gradient_shares, labeller_for, noisy_tokens
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.scoring import row_logprobs
from paw_train.rollouts.tokens import OBSERVATION, TokenRow
from paw_train.settings import overridden
from paw_train.settings.run import read_recorded

FILE = "noise_gradient.json"
_OF_THE_RUN = (
    "env", "rollout.max_prompt_tokens", "optimizer.micro_batch_tokens", "world_model.rho",
)  # fmt: skip
"""settings that are taken from the run"""


def write_noise_gradient(
    run_dir: str | Path,
    rule: str | None = None,
    transitions: int = 100,
    seed: int = 0,
    overrides: Sequence[str] = (),
) -> Path:
    """Scores recorded transitions of a run by its best checkpoint and writes ``noise_gradient.json``.

    Args:
        rule: which text is noise: ``module:function``; ``None``: the environment's own rule. If it
            has none, the file notes that, and has no shares.
        transitions: how many are sampled from the recorded ones; the paper took 100.

    Raises:
        ValueError: no such run or rule, no checkpoint, or nothing recorded.
    """
    run = Path(run_dir)
    file = run / "config.json"
    if not file.exists():
        raise ValueError(f"{run} holds no training run: it has no config.json.")
    recorded = recorded_settings(read_recorded(file), str(file), overrides, _OF_THE_RUN)
    settings = overridden(recorded, overrides, "The run")
    label = labeller_for(settings.only_env.id, rule)
    head: dict[str, Any] = {"env_id": settings.only_env.id, "rule": rule or settings.only_env.id}
    target = run / FILE
    if label is None:
        write_json(target, {**head, "rule": None, "note": "no noisy tokens defined"})
        return target
    found = [
        (n, at) for n in ("best", "latest") if (at := find_checkpoint(run / "checkpoints" / n))
    ]
    if not found:
        raise ValueError(f"The run {run} has no checkpoint.")
    name, saved = found[0]
    # training's own; if there are none, those of the evaluations
    files = sorted((run / "rollouts").glob("*.jsonl")) or sorted(run.glob("episodes_*.jsonl"))
    steps = [
        (episode, step)
        for file in files
        for episode in read_jsonl(file)
        for step, t in enumerate(episode.transitions)
        if t.next_observation
    ]
    if not steps:
        raise ValueError(f"The run {run} has no recorded episodes: rollouts/ and episodes_*.jsonl.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = LocalPolicy.load(saved / "model", device, adapter=settings.model.lora)
    env = agent_env_maker(settings.only_env, settings.only_env.train_split)()
    rows, labels = [], []
    show, limit = env.text_env.prompt_observation, settings.rollout.max_prompt_tokens
    order = np.random.default_rng(seed).permutation(len(steps))[:transitions]
    for episode, step in [steps[int(i)] for i in sorted(order)]:
        shown = show(episode.transitions[step].next_observation)
        if policy.chat.content(shown):
            rows.append(recorded_row(policy.chat, episode, step, show, env.template, limit))
            labels.append(noisy_tokens(_offsets(policy.chat, shown), label(shown)))
    env.close()
    p = observation_probabilities(policy, rows, settings.optimizer.micro_batch_tokens)
    rho = settings.world_model.rho
    shares = gradient_shares(np.concatenate(p), np.concatenate(labels), rho)
    measured = {"checkpoint": name, "transitions": len(rows), "rho": rho, **asdict(shares)}
    write_json(target, {**head, **measured, "token_share": shares.token_share})
    return target


def _offsets(chat: ChatFormat, text: str) -> list[CharSpan]:
    """The characters of each token of a text, tokenised as ``ChatFormat.content`` does."""
    encoded = chat.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    return [(int(a), int(b)) for a, b in encoded["offset_mapping"]]


def observation_probabilities(
    policy: LocalPolicy, rows: Sequence[TokenRow], token_budget: int
) -> list[np.ndarray]:
    """For each row [T] the probability in (0, 1] of each next-observation token."""
    scores = row_logprobs(policy, rows, token_budget)
    seen = (
        values[[role == OBSERVATION for role in row.role]]
        for row, values in zip(rows, scores, strict=True)
    )
    return [values.double().exp().clamp(max=1.0).numpy() for values in seen]
