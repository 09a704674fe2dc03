"""OpenRLHF's samples become the passes that the local engine's update would be cut into."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from openrlhf.trainer.ppo_utils.experience import Experience as Carrier  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402

from paw_train.config import load_settings  # noqa: E402
from paw_train.engines.openrlhf.experience_maker import PaWExperienceMaker  # noqa: E402
from paw_train.experience import collect, prepare  # noqa: E402
from paw_train.policies.scratch import word_tokenizer  # noqa: E402


def _known(ids: Any) -> Any:
    """A log-probability for each token that hangs on the token alone."""
    return -(ids.float() % 7) / 10


@pytest.mark.parametrize("conversation", [False, True])
@pytest.mark.parametrize("old", ["actor", "rollout"])
def test_samples_become_passes(
    made_up: Any, monkeypatch: pytest.MonkeyPatch, conversation: bool, old: str
) -> None:
    settings = load_settings(
        "smoke",
        [
            "engine=openrlhf",
            "algorithm.name=gigpo",
            "optimizer.micro_batch_tokens=30",
            "openrlhf.gpus_per_node=2",
            f"openrlhf.old_logprobs={old}",
        ],
    )

    def scored(self: Any, batches: list[Any]) -> list[Any]:
        assert len(batches) % 2 == 0
        for batch in batches:
            batch.action_log_probs = _known(batch.sequences[:, 1:]) * batch.action_mask
            batch.base_action_log_probs = 2 * batch.action_log_probs
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", scored)
    maker = PaWExperienceMaker.__new__(PaWExperienceMaker)
    maker.run, maker.max_return, maker.update = settings, 10.0, 0
    maker.tokenizer, maker.initial_model_group = word_tokenizer(["red"]), SimpleNamespace()
    carriers = maker.make_experience_batch([Carrier(labels=[t]) for t in made_up(conversation)])
    assert len(carriers) % 2 == 0

    pool = collect(made_up(conversation))
    if old == "actor":
        for row in pool.rows:
            for step in row.steps:
                step.logprobs = _known(torch.tensor(row.ids[slice(*step.action)])).tolist()
    wanted = prepare(pool, settings.algorithm, settings.objective, 10.0, None, [])
    expected = sorted(
        (wanted.advantages[i].item(), wanted.wm_weights[i].item()) for i in range(len(pool.steps))
    )
    found, seen = [], 0
    for carrier in carriers:
        [part] = carrier.labels
        for row, known in zip(part.experience.rows, part.ref_logprobs, strict=True):
            for step in row.steps:
                if step.action[0] == step.action[1]:
                    continue
                seen += 1
                e = part.experience
                found.append((e.advantages[step.index].item(), e.wm_weights[step.index].item()))
                ids = torch.tensor(row.ids[slice(*step.action)])
                assert torch.allclose(known[slice(*step.action)], 2 * _known(ids))
                if old == "actor":
                    assert step.logprobs == pytest.approx(_known(ids).tolist())
    assert seen == len(pool.steps) == 8
    assert torch.allclose(torch.tensor(sorted(found)), torch.tensor(expected))
    assert maker.metrics["logprob_gap"] > 0
