"""The agent that takes the admissible action the model holds most likely."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
import torch
from scripted import ScriptedPolicy
from servers import serve

from paw_gym import Outcome, Task, register_text_env
from paw_gym.pool import EnvPool
from paw_train.agents import make_agent
from paw_train.agents.examples import ExampleSource
from paw_train.agents.likelihood import Choice
from paw_train.agents.metering import MeteredPolicy
from paw_train.evaluation import agent_env_maker
from paw_train.policies.endpoint.policy import EndpointPolicy
from paw_train.policies.endpoint.transport import EndpointError
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import ScoreRequest
from paw_train.settings import EnvSettings
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import RolloutSettings

TOKENIZER = hostile.byte_tokenizer()


POLICY = hostile.tiny_policy(8192, sharp=True)


def played(
    policy: Any, env: EnvSettings, split: str = "", count: int = 2, limit: int = 4096, **given: Any
) -> list[Any]:
    """The agent's episodes on the first tasks of an environment."""
    agent = make_agent(
        "likelihood",
        policy,
        RolloutSettings(max_context_tokens=limit, max_response_tokens=16),
        given,
    )
    probe = agent_env_maker(env, split)()
    ids = list(probe.tasks.ids[:count])
    make_env = agent_env_maker(env, split, agent.interface(probe.template))
    agent.prepare(ExampleSource(make_env, ids))
    done: list[Any] = []
    pool = EnvPool(make_env, count, seeds=dict.fromkeys(ids, 0))
    agent.run(pool, ids, 0, done.append)
    assert all(e.error is None for e in done), done[0].error
    return sorted(done, key=lambda e: e.task_id)


def by_hand(policy: LocalPolicy, prompt_ids: list[int], action: str) -> float:
    """An action's mean log-probability, by one whole forward pass."""
    ids = policy.chat.content(action)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt_ids, *ids]])).logits[0]
    rows = logits.log_softmax(-1)[len(prompt_ids) - 1 : -1]
    return sum(float(row[i]) for row, i in zip(rows, ids, strict=True)) / len(ids)


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
                assert score == pytest.approx(by_hand(POLICY, context, action), abs=1e-3)
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
                assert score == pytest.approx(by_hand(POLICY, context, action), abs=1e-3)
            ids = [*context, *chat.content(t.action), *chat.content("</action>"), *chat.bridge]


def test_a_dialogue_beyond_the_limit_forgets_and_goes_on(corridor: EnvSettings) -> None:
    for episode in played(POLICY, corridor, limit=500):
        notes = [t.info["agent"] for t in episode.transitions]
        assert notes[-1]["forgotten_turns"] > 0
        assert all(len(n["scores"]) == 3 for n in notes)


@pytest.fixture
def twins() -> str:
    """An environment whose actions come in pairs that are the same tokens; the first one wins."""

    def play(task: Task, rng: Any) -> Any:
        said = yield Outcome("A hall.", admissible_actions=["b", "a", "b", "a"])
        yield Outcome("The end.", 0.0, True, said == "b", admissible_actions=[])

    register_text_env("test/Twins-v0", play, tasks=[Task("t", "Say something.")])
    return "test/Twins-v0"


def test_of_equals_the_first_listed_wins(twins: str) -> None:
    for given in ({}, {"normalise": "none"}, {"normalise": "characters"}):
        (first,), (again,) = (played(POLICY, EnvSettings(id=twins), count=1, **given) for _ in "12")
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


# --- endpoints ---------------------------------------------------------------------------------------


class Echoing:
    """A completions server that echoes the small model's log-probabilities of prompts.

    Args:
        form: ``echo`` (OpenAI's), ``prompt_logprobs`` (vLLM's), or ``none``.
    """

    def __init__(self, form: str) -> None:
        self.form, self.bodies = form, list[dict[str, Any]]()
        self.url = ""

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.bodies.append(body)
        return 200, self.answer(body)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for index, ids in enumerate(body["prompt"]):
            with torch.no_grad():
                logits = POLICY.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            own = [None, *(float(logits[i - 1, ids[i]]) for i in range(1, len(ids)))]
            choice: dict[str, Any] = {"index": index, "text": "x", "finish_reason": "length"}
            if self.form == "echo":
                choice["logprobs"] = {"token_logprobs": [*own, -0.5]}
            elif self.form == "prompt_logprobs":
                choice["prompt_logprobs"] = [
                    v and {"7": {"logprob": -9.0}, str(i): {"logprob": v}}
                    for v, i in zip(own, ids, strict=True)
                ]
            choices.append(choice)
        usage = {"prompt_tokens": sum(map(len, body["prompt"])), "completion_tokens": len(choices)}
        return {"choices": choices[::-1], "usage": usage}


@pytest.fixture
def echoing(request: Any) -> Iterator[Echoing]:
    server = Echoing(request.param)
    with serve(server) as address:
        server.url = f"{address}/v1"
        yield server


def endpoint(server: Echoing, tmp_path: Path) -> EndpointPolicy:
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    settings = EndpointSettings(
        url=server.url, api="completions", tokenizer=str(tmp_path / "tokenizer"), cache=None
    )
    return EndpointPolicy("small", settings)


REQUEST = ScoreRequest("e", [20, 21, 22], [[8, 9], [10], [8, 9, 11]])


@pytest.mark.parametrize("echoing", ["echo", "prompt_logprobs"], indirect=True)
def test_an_endpoint_that_echoes_prompts_scores_as_the_model_does(
    echoing: Echoing, tmp_path: Path
) -> None:
    policy = endpoint(echoing, tmp_path)
    (found,) = policy.scoring(False).score([REQUEST])
    (wanted,) = POLICY.scoring(False).score([REQUEST])
    for a, b in zip(found.logprobs, wanted.logprobs, strict=True):
        assert a == pytest.approx(b, abs=1e-3)
    assert found.usage == (15, 3)
    (body,) = echoing.bodies
    assert body["prompt"][2] == [20, 21, 22, 8, 9, 11]
    policy.close()


@pytest.mark.parametrize("echoing", ["none"], indirect=True)
def test_an_endpoint_that_echoes_nothing_is_refused(echoing: Echoing, tmp_path: Path) -> None:
    policy = endpoint(echoing, tmp_path)
    with pytest.raises(EndpointError, match="log-probabilities of a prompt's tokens"):
        policy.scoring(False).score([REQUEST])
    policy.close()


def test_a_chat_endpoint_is_refused_at_once() -> None:
    policy = EndpointPolicy("m", EndpointSettings(url="http://127.0.0.1:9/v1", cache=None))
    with pytest.raises(ValueError, match=r"endpoint\.api=completions"):
        make_agent("likelihood", MeteredPolicy(policy))
    policy.close()
