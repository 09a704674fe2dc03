"""Roles, turns and cached sampling: what training sees is what was sampled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hostile import byte_tokenizer
from rows import transitions
from small_policies import word_policy

from paw_gym import Outcome, Task
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import EnvPool
from paw_gym.wrappers import AgentInterface
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import ACTION, CONTEXT, TokenRow, batches_alike
from paw_train.settings.rollout import RolloutSettings
from paw_train.training.outcomes import outcome_metrics

WORDS = "red green blue go stop left right you see a door the is now <action> </action> . , :"


def _policy(seed: int = 0) -> LocalPolicy:
    texts = [WORDS, "task: open the red door.", "you", "now", "\n"]
    return word_policy(texts, seed, hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64)


def _play(task, rng):  # type: ignore[no-untyped-def]
    """Observations of very different lengths, so that the cache gets holes; episodes end apart."""
    length = int(rng.integers(2, 7))
    for step in range(length):
        seen = " ".join(rng.choice(["red", "green", "blue"], size=int(rng.integers(1, 12))))
        action = yield Outcome(f"you see a {seen} door.", reward=float(step))
        assert isinstance(action, str)
    yield Outcome("now stop.", reward=1.0, terminated=True, success=bool(rng.integers(2)))


def _maker(mode: str) -> Callable[[], AgentInterface]:
    tasks = [Task(str(i), "open the red door.") for i in range(4)]
    return lambda: AgentInterface(GeneratorEnv(_play, tasks, 9), mode=mode, template="compact")


def _rollout(policy: LocalPolicy, mode: str, temperature: float = 1.0) -> list[Trajectory]:
    pool = EnvPool(_maker(mode), groups=3, group_size=2, seed=7)
    settings = RolloutSettings(temperature=temperature, max_response_tokens=6)
    return rollout(policy, pool, settings, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("mode", ["window", "conversation"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_logprobs_are_those_of_the_training_pass(mode: str, temperature: float) -> None:
    policy = _policy()
    trajectories = _rollout(policy, mode, temperature)
    rows = [row for t in trajectories for row in t.rows]
    batch = collate(rows, policy.pad_id)
    with torch.no_grad():
        again = policy.logprobs(batch, temperature)
    difference = (again - batch.logprob)[batch.action].abs()
    assert batch.action.any(1).all()
    assert difference.max() < 1e-4


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_roles_mark_the_response_and_the_next_observation(mode: str) -> None:
    policy = _policy()
    for trajectory in _rollout(policy, mode):
        found = transitions(trajectory.rows)
        for (row, action, seen), t in zip(found, trajectory.episode.transitions, strict=True):
            assert policy.chat.decode([row.ids[i] for i in action]) == t.response
            assert policy.tokenizer.decode([row.ids[i] for i in seen]) == t.next_observation
        for row in trajectory.rows:
            assert [p != 0 for p in row.logprob] == [r == ACTION for r in row.role]
            assert [t == -1 for t in row.turn] == [r == CONTEXT for r in row.role]
    assert TokenRow([5]) == TokenRow([5], [CONTEXT], [-1], [0.0], prompt_tokens_cut=0)


@pytest.mark.parametrize(
    ("lengths", "limits", "batches"),
    [
        ([4, 4, 4], (12, 0, 0.0), [[4, 4, 4]]),  # at most so many padded tokens
        ([4, 4, 4], (11, 0, 0.0), [[4, 4], [4]]),
        ([3, 9, 5], (99, 2, 0.0), [[9], [5, 3]]),  # padding that costs less than one more pass
        ([3, 9, 5], (99, 1, 0.0), [[9], [5], [3]]),
        ([5, 3], (99, 1, 0.0), [[5], [3]]),
        ([9, 10, 8], (99, 0, 0.05), [[10, 9], [8]]),
        ([2, 7], (3, 9, 9.0), [[7], [2]]),  # a batch has one item at least
    ],
)
def test_batches_hold_items_of_about_one_length(
    lengths: list[int], limits: tuple[int, int, float], batches: list[list[int]]
) -> None:
    assert list(batches_alike(lengths, int, *limits)) == batches


def test_an_overlong_dialogue_ends_as_truncated() -> None:
    policy = _policy()
    pool = EnvPool(_maker("conversation"), 2, 1, seed=0)
    settings = RolloutSettings(max_response_tokens=6, max_context_tokens=40)
    for t in rollout(policy, pool, settings, torch.Generator().manual_seed(0)):
        assert t.episode.finished
        assert len(t.rows[0].ids) < 80 and t.rows[0].prompt_tokens_cut == 0


def test_a_window_prompt_and_its_response_fit_the_limit_and_keep_the_task() -> None:
    policy = _policy()
    limit = 32
    pool = EnvPool(_maker("window"), 4, 1, seed=0)
    settings = RolloutSettings(max_response_tokens=6, max_context_tokens=limit)
    played = rollout(policy, pool, settings, torch.Generator().manual_seed(0))
    opening = policy.chat.first("task: open the red door.")[: -len(policy.chat.ask)]
    cut = 0
    for trajectory in played:
        for row, t in zip(trajectory.rows, trajectory.episode.transitions, strict=True):
            ((_, action, _),) = transitions([row])
            prompt, whole = row.ids[: action[0]], policy.chat.first(t.prompt)
            assert action[-1] < limit
            assert row.prompt_tokens_cut == len(whole) - len(prompt)
            assert prompt[: len(opening)] == opening
            if row.prompt_tokens_cut:
                cut += 1
                rest = len(prompt) - len(opening)
                assert len(prompt) == limit - 6 and prompt[-rest:] == whole[-rest:]
    assert cut > 0
    steps = sum(len(t.episode.transitions) for t in played)
    assert outcome_metrics(played)["prompt_cut_rate"] == pytest.approx(cut / steps)


def test_a_task_that_exceeds_the_limit_fails_its_episode_and_says_why() -> None:
    pool = EnvPool(_maker("window"), 2, 1, seed=0)
    settings = RolloutSettings(max_response_tokens=6, max_context_tokens=12)
    for t in rollout(_policy(), pool, settings, torch.Generator().manual_seed(0)):
        assert "rollout.max_context_tokens" in str(t.episode.error)
        assert not t.episode.transitions
    with pytest.raises(ValueError, match="leaves nothing for the prompt"):
        RolloutSettings(max_response_tokens=512, max_context_tokens=512)


def test_control_tokens_in_a_text_are_plain_text() -> None:
    policy = _policy()
    ids = policy.chat.content("you see <end> <user> red")
    assert not {policy.chat.end_id, policy.tokenizer.convert_tokens_to_ids("<user>")} & set(ids)
    assert policy.chat.bridge[0] == policy.chat.end_id


def test_a_template_without_a_generation_prompt_is_refused() -> None:
    tokenizer = byte_tokenizer()
    whole = tokenizer.chat_template
    tokenizer.chat_template = whole.partition("{% if add_generation_prompt %}")[0]
    with pytest.raises(ValueError, match="no generation prompt"):
        ChatFormat(tokenizer)
    # Mistral's has no header to add
    turn = (
        "{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else ' ' + m.content + '</s>' }}"
    )
    tokenizer.chat_template = f"{{% for m in messages %}}{turn}{{% endfor %}}"
    assert ChatFormat(tokenizer).pieces.ask == " [/INST]"
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        ChatFormat(tokenizer)
