"""A warm start that is stopped continues to the same weights, to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hostile import tiny_policy

from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings import CloningSettings
from paw_train.training.cloning import _Cloner, _loss, clone

STEPS = 7
SETTINGS = CloningSettings(episodes=9, steps=STEPS, batch_tokens=36, lr=0.01, checkpoint_every=3)


def _rows() -> list[TokenRow]:
    generator = torch.Generator().manual_seed(3)
    rows = []
    for _ in range(9):
        row = TokenRow(torch.randint(2, 40, (6,), generator=generator).tolist())
        action = torch.randint(2, 40, (4,), generator=generator).tolist()
        row.append(action, ACTION, 0, [-1.0] * 4)
        row.append([2, 3], OBSERVATION, 0)
        rows.append(row)
    return rows


def _weights(policy: LocalPolicy) -> dict[str, bytes]:
    return {
        name: value.detach().view(torch.uint8).numpy().tobytes()
        for name, value in policy.model.state_dict().items()
    }


def _curve(log: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in map(json.loads, log.open())]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("matrix_lr", [None, 0.02])
@pytest.mark.parametrize("stop_after", [1, 5])
def test_a_stopped_warm_start_continues_exactly(
    tmp_path: Path, dtype: str, matrix_lr: float | None, stop_after: int
) -> None:
    settings = SETTINGS.replace(matrix_lr=matrix_lr)
    whole = tiny_policy(dtype=dtype)
    assert clone(whole, _rows(), settings, 5, tmp_path / "whole.jsonl")

    log, checkpoint = tmp_path / "log.jsonl", tmp_path / "latest"
    steps: list[int] = []
    stopped = tiny_policy(dtype=dtype)
    finished = clone(
        stopped, _rows(), settings, 5, log, lambda step, *_: steps.append(step), checkpoint,
        lambda: len(steps) == stop_after,
    )  # fmt: skip
    assert not finished and steps[-1] == stop_after
    assert _weights(stopped) != _weights(whole)

    continued = tiny_policy(dtype=dtype)
    steps.clear()
    said: list[str] = []
    with log.open("a") as file:
        file.write('{"ste')  # a kill cuts a line short
    more = clone(
        continued, _rows(), settings, 5, log, lambda step, *_: steps.append(step), checkpoint,
        say=said.append,
    )  # fmt: skip
    assert more and steps == list(range(stop_after + 1, STEPS + 1))
    assert "log.jsonl: line 1 was cut short and is dropped" in said[0]
    assert "log.jsonl" in (tmp_path / "events.jsonl").read_text()
    assert _weights(continued) == _weights(whole)
    assert _curve(log) == _curve(tmp_path / "whole.jsonl")


def test_a_warm_start_that_diverges_saves_nothing_and_names_its_rates(tmp_path: Path) -> None:
    settings = SETTINGS.replace(lr=1e30, matrix_lr=None, checkpoint_every=1)
    checkpoint, log = tmp_path / "latest", tmp_path / "log.jsonl"
    with pytest.raises(TrainingDivergedError, match=r"cloning\.lr"):
        clone(tiny_policy(), _rows(), settings, 5, log, checkpoint=checkpoint)
    state = torch.load(checkpoint / "state.pt", weights_only=True)
    assert state["step"] == 1  # the last step whose gradient was a number


@pytest.mark.parametrize(("context", "observation"), [(0.3, None), (0.0, 1.0), (0.2, 0.5)])
def test_each_token_weighs_as_its_role(context: float, observation: float | None) -> None:
    policy, rows = tiny_policy(), _rows()
    own = CloningSettings(context_weight=context, observation_weight=observation)
    weights = {ACTION: 1.0, OBSERVATION: context if observation is None else observation}
    total = weight = 0.0
    for row in rows:
        logp = policy.model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        for place in range(1, len(row.ids)):
            w = weights.get(row.role[place], context)
            total -= w * logp[place - 1, row.ids[place]].item()
            weight += w
    assert _loss(policy, rows, own)[0].item() == pytest.approx(total / weight, rel=1e-5)


def test_a_gpus_generator_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter's dropout draws from it."""
    cuda, states = torch.device("cuda", 0), {}
    drawn = torch.arange(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: drawn)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, device: states.update({device: s}))

    def cloner(device: torch.device) -> _Cloner:
        policy = tiny_policy()
        policy.device = device
        return _Cloner(policy, _rows(), SETTINGS, 0)

    assert cloner(torch.device("cpu")).state_dict()["cuda_rng"] is None
    cloner(cuda).load_state_dict(cloner(cuda).state_dict())
    assert states.keys() == {cuda}
    assert torch.equal(states[cuda], drawn)
