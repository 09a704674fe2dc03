"""Inspect: every panel as a task, our agents as solvers, our scorer.

    inspect eval paw/alfworld_valid_seen --model openai/gpt-5 --solver paw/react

Importing this module registers them; Inspect does so through the entry point ``paw``. A solver runs the
episode that ``paw eval`` runs, but gets its responses from Inspect's model, so that both measure the same.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
from inspect_ai import Task, task
from inspect_ai._util.registry import registry_add, registry_info
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from paw_gym.internals.validation import reason_of
from paw_gym.transition import Episode
from paw_train.agents import AGENTS, agent_class
from paw_train.agents.metering import MeteredPool
from paw_train.environments import agent_env_maker
from paw_train.evaluation.panels import PANELS
from paw_train.evaluation.program import make_job
from paw_train.evaluation.runner import UNKNOWN_CONTEXT, PanelRun, Plan, environment_seeds
from paw_train.policies.endpoint.answers import finish_text
from paw_train.rollouts.policy import Request, Response, Sampling, spoken

_EPISODE = "episode"
"""key in a sample's store"""
_REASONS = {"max_tokens": "length", "model_length": "length"}
"""OpenAI's names for Inspect's reasons why a response ended; the other names are equal"""
_MESSAGES: dict[str, Callable[..., ChatMessage]] = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


class InspectPolicy:
    """Inspect's model as a policy and as its session; it is called from a thread of an Inspect solver."""

    chat = None
    trainable = False

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.sampling = sampling or Sampling()

    def session(self, sampling: Sampling, growing: bool) -> InspectPolicy:
        return InspectPolicy(sampling)

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``rollouts.policy.Session``; an error from the model ends the sample."""
        return [anyio.from_thread.run(self._answer, request) for request in requests]

    async def _answer(self, request: Request) -> Response:
        if request.tools:
            raise ValueError("agent.action_format=tools: Inspect's models act in tags here.")
        s = self.sampling
        config = GenerateConfig(
            temperature=s.temperature,
            max_tokens=s.max_tokens,
            stop_seqs=list(s.stop) or None,
            top_p=s.top_p if s.top_p < 1 else None,
            top_k=s.top_k or None,
            seed=request.seed % 2**31 if s.temperature > 0 else None,
        )
        messages = [_MESSAGES[m["role"]](content=m["content"]) for m in spoken(request.messages)]
        output = await get_model().generate(messages, config=config)
        reason = _REASONS.get(str(output.stop_reason), output.stop_reason)
        thoughts = [p for p in _parts(output) if p.internal != "think"]  # in a separate field
        thought = "\n".join(part.reasoning for part in thoughts) or None
        tagged = "".join(part.text for part in _parts(output) if part.internal == "think")
        answer = {"text": tagged + output.completion, "finish_reason": reason, "reasoning": thought}
        text, reason = finish_text(answer, s.stop)
        used = output.usage
        usage = (used.input_tokens, used.output_tokens) if used else None
        return Response(text=text, usage=usage, reasoning=thought, finish_reason=reason)


def _parts(output: ModelOutput) -> list[ContentReasoning]:
    """The thoughts that Inspect has extracted from a response's text or from a field."""
    content = output.message.content if output.choices else ""
    return [part for part in content if isinstance(part, ContentReasoning)]


# --- tasks, solvers, scorer ---------------------------------------------------------------------------


def plan_of(panel: str, agent: str, settings: str) -> Plan:
    """The plan that ``paw eval MODEL --panel PANEL --agent AGENT SETTINGS`` makes."""
    plan = make_job("inspect", settings.split(), agent=agent, panel=panel).plan
    if "rollout.max_context_tokens=" in settings:
        return plan
    return replace(plan, rollout=plan.rollout.replace(max_context_tokens=UNKNOWN_CONTEXT))


def _task_of(panel: str) -> Callable[..., Task]:
    """The task of a panel; its ``settings`` are those of ``paw eval``, with spaces between."""

    def make(agent: str = "plain", settings: str = "") -> Task:
        plan = plan_of(panel, agent, settings)
        env = agent_env_maker(plan.env, plan.split)()
        about = {"panel": panel, "settings": settings}
        samples = [
            Sample(id=t.id, input=t.instruction, metadata={**about, "task_type": t.type})
            for t in map(env.tasks.__getitem__, plan.panel.task_ids)
        ]
        env.close()
        dataset = MemoryDataset(samples, name=plan.panel.name)
        kept = {"panel_hash": plan.panel.hash, "panel_note": plan.panel.note}
        return Task(dataset, solver=_solver_of(agent)(), scorer=outcome(), metadata=kept)

    return make


def _solver_of(agent: str) -> Callable[[], Solver]:
    """The agent of that name of ``paw eval``."""

    def make() -> Solver:
        plays: dict[tuple[str, str], Callable[[str, int], Episode]] = {}
        lock = threading.Lock()

        def play(about: Mapping[str, Any], task_id: str, epoch: int) -> Episode:
            key = (about["panel"], about["settings"])
            with lock:  # examples are written once
                plays[key] = plays.get(key) or _player(plan_of(key[0], agent, key[1]))
            return plays[key](task_id, epoch)

        async def solve(state: TaskState, generate: Generate) -> TaskState:
            sample = (state.metadata, str(state.sample_id), state.epoch)
            episode = await anyio.to_thread.run_sync(play, *sample)
            if episode.error is not None:
                raise RuntimeError(reason_of(episode.error))
            state.store.set(_EPISODE, episode.to_dict())
            state.messages = _dialogue(episode)
            last = [t.response for t in episode.transitions[-1:]]
            state.output = ModelOutput.from_content(str(state.model), "".join(last))
            return state

        return solve

    return solver(name=agent)(make)  # type: ignore[no-any-return]


def _player(plan: Plan) -> Callable[[str, int], Episode]:
    """A function that runs the episode of a task in an epoch; each epoch has a seed."""
    run = PanelRun(plan, InspectPolicy())

    def play(task_id: str, epoch: int) -> Episode:
        seed, found = plan.seeds[0] + epoch - 1, list[Episode]()
        pool = MeteredPool(
            run.meter, False, lambda _: None, run.make_env, 1, run.agent.group_size,
            seed=seed, seeds=environment_seeds(plan.panel, seed),
        )  # fmt: skip
        try:
            run.agent.run(pool, [task_id], seed, found.append)
        finally:
            pool.close()
        return found[0]

    return play


@scorer(metrics={"success": [mean(), stderr()], "score": [mean()], "reward": [mean()]})
def outcome() -> Scorer:
    """Success, score and return of the episode, as ``paw eval`` reports them."""

    async def score(state: TaskState, target: Target) -> Score:
        return _score(Episode.from_dict(state.store.get(_EPISODE)))

    return score


def _score(episode: Episode) -> Score:
    success, score, reward = float(episode.success), episode.score, episode.total_reward
    value = {"success": success, "score": score, "reward": reward}
    return Score(value=value, metadata={"steps": len(episode.transitions)})


def _dialogue(episode: Episode) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    for t in episode.transitions:
        messages.append(ChatMessageUser(content=t.prompt or ""))
        messages.append(ChatMessageAssistant(content=t.response))
    last = [t.next_observation for t in episode.transitions[-1:]]
    return [*messages, *(ChatMessageUser(content=text) for text in last)]


def _offer(made: Any, name: str) -> None:
    """Registers under ``paw/NAME``: Inspect would use our import package's name if it is installed."""
    registry_add(made, registry_info(made).model_copy(update={"name": f"paw/{name}"}))


def task_name(panel: str) -> str:
    """The name of a panel's task, whichever part of the panel is meant."""
    return re.split(r"\[| \(", panel)[0].replace("/", "_")


for _panel in PANELS:
    _offer(task(name=task_name(_panel))(_task_of(_panel)), task_name(_panel))
for _agent in AGENTS:
    if agent_class(_agent).needs_policy:
        _offer(_solver_of(_agent), _agent)
