"""The agent that takes the admissible action the model holds most likely."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hostile
import pytest
import torch
from scripted import ScriptedPolicy
from servers import serve

from paw_gym import Outcome, Task, register_text_env
from paw_train.agents import make_agent
from paw_train.agents.likelihood import Choice
from paw_train.agents.metering import MeteredPolicy
from paw_train.policies.endpoint.policy import EndpointPolicy
from paw_train.policies.endpoint.transport import EndpointError
from paw_train.rollouts.policy import ScoreRequest
from paw_train.settings import EnvSettings
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import RolloutSettings

from .conftest import Table

TOKENIZER = hostile.byte_tokenizer()


POLICY = hostile.tiny_policy(8192, sharp=True)


def played(
    policy: Any, env: EnvSettings, split: str = "", count: int = 2, limit: int = 4096, **given: Any
) -> list[Any]:
    rollout = RolloutSettings(max_context_tokens=limit, max_response_tokens=16)
    done = Table("likelihood", policy, env, split, count, rollout, **given).play().values()
    assert all(e.error is None for e in done)
    return list(done)


def by_position(ids: list[int]) -> list[float]:
    with torch.no_grad():
        logits = POLICY.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logits[i - 1, ids[i]]) for i in range(1, len(ids))]


def by_hand(prompt_ids: list[int], action: str) -> float:
    ids = POLICY.chat.content(action)
    return sum(by_position([*prompt_ids, *ids])[-len(ids) :]) / len(ids)


@pytest.mark.parametrize("env_id", ["paw_gym/ALFWorld-v0", "paw_gym/WebShop-v0"])
@pytest.mark.parametrize("prompt", ["environment", "bare"])
def test_no_action_is_ever_invalid(env_id: str, prompt: str) -> None:
    env = EnvSettings(id=env_id, kwargs={"max_steps": 5})
    for episode in played(POLICY, env, "train", prompt=prompt):
        assert episode.transitions
        for t in episode.transitions:
            assert t.action_is_valid
            assert t.action in t.info["agent"]["scores"]


def test_the_choice_is_that_of_whole_forward_passes() -> None:
    env = EnvSettings(id="test/Doors-v0")
    for episode in played(POLICY, env, count=4):
        for t in episode.transitions:
            context = [*POLICY.chat.first(t.prompt), *POLICY.chat.content("<action>")]
            scores = t.info["agent"]["scores"]
            for action, score in scores.items():
                assert score == pytest.approx(by_hand(context, action), abs=1e-3)
            assert t.action == max(scores, key=lambda name: scores[name])


@pytest.fixture
def corridor() -> EnvSettings:
    """Four steps to and fro, whatever is done."""

    def walk(task: Task, rng: Any) -> Any:
        said = "nothing"
        while True:
            said = yield Outcome(f"You did {said}.", admissible_actions=["left", "right", "look"])

    register_text_env("test/Corridor-v0", walk, tasks=[Task(c, "Walk.") for c in "ab"], max_steps=4)
    return EnvSettings(id="test/Corridor-v0", mode="conversation")


def test_in_a_conversation_the_whole_dialogue_is_the_context(corridor: EnvSettings) -> None:
    chat = POLICY.chat
    for episode in played(POLICY, corridor):
        assert len(episode.transitions) == 4
        ids: list[int] = []
        for t in episode.transitions:
            ids = chat.first(t.prompt) if not ids else [*ids, *chat.content(t.prompt), *chat.ask]
            context = [*ids, *chat.content("<action>")]
            for action, score in t.info["agent"]["scores"].items():
                assert score == pytest.approx(by_hand(context, action), abs=1e-3)
            ids = [*context, *chat.content(t.action), *chat.content("</action>"), *chat.bridge]


def test_a_dialogue_beyond_the_limit_forgets_and_goes_on(corridor: EnvSettings) -> None:
    for episode in played(POLICY, corridor, limit=500):
        notes = [t.info["agent"] for t in episode.transitions]
        assert notes[-1]["forgotten_turns"] > 0
        assert all(len(n["scores"]) == 3 for n in notes)


def test_of_equals_the_first_listed_wins() -> None:
    def twins(task: Task, rng: Any) -> Any:
        yield Outcome("A hall.", admissible_actions=["b", "a", "b", "a"])
        yield Outcome("The end.", 0.0, True, admissible_actions=[])

    register_text_env("test/Twins-v0", twins, tasks=[Task("t", "Say something.")])
    env = EnvSettings(id="test/Twins-v0")
    for given in ({}, {"normalise": "none"}, {"normalise": "characters"}):
        (first,), (again,) = (played(POLICY, env, count=1, **given) for _ in "12")
        assert first.to_dict() == again.to_dict()
        assert set(first.transitions[0].info["agent"]["scores"]) == {"a", "b"}
    even = Choice("b", [1]).score([-1.00001], "tokens"), Choice("a", [2]).score([-1.0], "tokens")
    assert even[0] == even[1]  # rounding of the arithmetic decides nothing


def test_normalisation_divides_by_what_it_says() -> None:
    choice = Choice("four", [1, 2])
    assert choice.score([-1.0, -3.0], "tokens") == -2.0
    assert choice.score([-1.0, -3.0], "characters") == -1.0
    assert choice.score([-1.0, -3.0], "none") == -4.0


def test_an_environment_without_listed_actions_is_refused() -> None:
    env = EnvSettings(id="paw_gym/SearchQA-v0", kwargs={"num_passages": 300})
    with pytest.raises(ValueError, match="SearchQA-v0 lists none"):
        played(POLICY, env, "dev")


def test_a_policy_that_cannot_score_is_refused() -> None:
    with pytest.raises(ValueError, match="no log-probabilities"):
        make_agent("likelihood", MeteredPolicy(ScriptedPolicy(lambda _: "")))


@contextmanager
def echoing(form: str, tmp_path: Path) -> Iterator[tuple[EndpointPolicy, list[dict[str, Any]]]]:
    """The policy of a completions server that echoes those of the small model, and what it is asked.

    Args:
        form: ``echo`` (OpenAI's), ``prompt_logprobs`` (vLLM's), or ``none``.
        tmp_path: where the tokenizer is put.
    """
    bodies: list[dict[str, Any]] = []

    def answer(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        bodies.append(body)
        choices = []
        for index, ids in enumerate(body["prompt"]):
            choice: dict[str, Any] = {"index": index, "text": "x", "finish_reason": "length"}
            if form == "echo":
                choice["logprobs"] = {"token_logprobs": [None, *by_position(ids), -0.5]}
            elif form == "prompt_logprobs":
                pairs = zip(ids[1:], by_position(ids), strict=True)
                likely = {"7": {"logprob": -9.0}}
                choice[form] = [None, *(likely | {str(i): {"logprob": v}} for i, v in pairs)]
            choices.append(choice)
        usage = {"prompt_tokens": sum(map(len, body["prompt"])), "completion_tokens": len(choices)}
        return 200, {"choices": choices[::-1], "usage": usage}

    TOKENIZER.save_pretrained(tmp_path)
    with serve(answer) as address:
        settings = EndpointSettings(
            url=f"{address}/v1", api="completions", tokenizer=str(tmp_path), cache=None
        )
        with closing(EndpointPolicy("small", settings)) as policy:
            yield policy, bodies


REQUEST = ScoreRequest("e", [20, 21, 22], [[8, 9], [10], [8, 9, 11]])


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
def test_an_endpoint_that_echoes_prompts_scores_as_the_model_does(
    form: str, tmp_path: Path
) -> None:
    with echoing(form, tmp_path) as (policy, bodies):
        (found,) = policy.scoring(False).score([REQUEST])
    (wanted,) = POLICY.scoring(False).score([REQUEST])
    for a, b in zip(found.logprobs, wanted.logprobs, strict=True):
        assert a == pytest.approx(b, abs=1e-3)
    assert found.usage == (15, 3)
    (body,) = bodies
    assert body["prompt"][2] == [20, 21, 22, 8, 9, 11]


def test_an_endpoint_that_echoes_nothing_is_refused(tmp_path: Path) -> None:
    with (
        echoing("none", tmp_path) as (policy, _),
        pytest.raises(EndpointError, match="log-probabilities of a prompt's tokens"),
    ):
        policy.scoring(False).score([REQUEST])


def test_a_chat_endpoint_is_refused_at_once() -> None:
    settings = EndpointSettings(url="http://127.0.0.1:9/v1", cache=None)
    with (
        closing(EndpointPolicy("m", settings)) as policy,
        pytest.raises(ValueError, match=r"endpoint\.api=completions"),
    ):
        make_agent("likelihood", MeteredPolicy(policy))
