"""What a rollout asks of a GPU: kernels a token step and a turn, and no question to the host on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import claimed_device
import hostile
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from paw_train.policies.local import decoder
from paw_train.policies.local.decoder import BatchDecoder, LoopedSteps
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.sampling import uniforms
from paw_train.policies.local.token_loop import EVERY, TokenLoop
from paw_train.rollouts.policy import Sampling

TOKENIZER = hostile.byte_tokenizer()
NO_KERNEL = ("empty", "view", "unbind", "detach")


class Launches(TorchDispatchMode):
    """Counts operations that compute or copy something: about one kernel each."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.count += not (func.is_view or name.startswith(NO_KERNEL) or name == "_unsafe_view")
        return func(*args, **(kwargs or {}))


def _model(layers: int) -> Any:
    """A Llama whose size does not matter: kernels are counted, not timed."""
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=36, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, intermediate_size=48, max_position_embeddings=1024,
    )  # fmt: skip
    torch.manual_seed(0)
    return LocalPolicy(LlamaForCausalLM(config), TOKENIZER).model.eval()


@contextmanager
def _begun(model: Any, rows: int) -> Iterator[tuple[BatchDecoder, LoopedSteps]]:
    """Responses of some rows with contexts of unequal lengths, of which the first token is sampled."""
    held = BatchDecoder(model, rows, 2**16, fixed=True)
    contexts = {row: [7 + row % 11] * (5 + row) for row in range(rows)}
    yield held, held.sample(contexts, Sampling(1.0, 32), uniforms(range(rows), 32))
    decoder._fixed.clear()


@pytest.mark.parametrize(
    ("layers", "most"), [(3, 160), (4, 200), (30, 1250)], ids=["0.7M", "3.2M", "SmolLM2"]
)
def test_a_token_step_is_few_launches_however_many_rows(layers: int, most: int) -> None:
    counts = []
    for rows in (4, 16):
        with _begun(_model(layers), rows) as (_, steps), Launches() as launches:
            steps.advance(list(range(rows)))
        # besides the steps: where rows go on, and what is brought to the host
        counts.append(launches.count / EVERY)
    assert counts[0] == counts[1] <= most


def test_new_tokens_of_all_rows_are_one_pass() -> None:
    """Turns of unequal lengths: launches depend on the layers alone."""
    counts = []
    for rows in (4, 16):
        with _begun(_model(3), rows) as (held, _):
            news = {row: [9] * (3 + 5 * (row % 4)) for row in range(rows)}
            with Launches() as launches:
                held.feed(news)
            counts.append(launches.count)
    assert counts[0] == counts[1] <= 180


def test_a_token_step_asks_the_host_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question in between could not be captured in a graph."""
    once, asked = TokenLoop._once, []

    def watched(self: TokenLoop, *arguments: Any) -> None:
        before = gpu.syncs.copy()
        once(self, *arguments)
        asked.append(gpu.syncs - before)

    monkeypatch.setattr(TokenLoop, "_once", watched)
    with claimed_device.ClaimedGpu() as gpu:
        model = _model(2).to("cuda")
        with _begun(model, 4) as (_, steps):
            steps.advance([0, 1, 2, 3])
            steps.advance([0, 2])
    assert len(asked) == 2 * EVERY
    assert not any(asked)
    assert not gpu.faults
    assert gpu.syncs  # the tokens themselves, and those are seen
