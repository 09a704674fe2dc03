"""However a reply is formed, and whoever reads it: one thought, one answer, one action."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("openai")

import fork
from hostile import byte_tokenizer
from scripted import ScriptedPolicy

from paw_gym import PromptTemplate, make_agent_env
from paw_gym.internals.replies import read_chat, split_thought
from paw_gym.pool import EnvPool
from paw_train.agents import AGENTS, make_agent
from paw_train.agents.action_form import ActionForm
from paw_train.agents.metering import MeteredPolicy
from paw_train.policies.endpoint.policy import EndpointPolicy
from paw_train.policies.local.session import respond
from paw_train.policies.vllm import VLLMPolicy, VLLMSession
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling, complete
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import RolloutSettings

R, L = "<action>right</action>", "<action>left</action>"
FORM = ActionForm(PromptTemplate.load("generic"))
Responses = dict[str, dict[str, Response]]
"""by form, and by who reads it"""


@dataclass(frozen=True)
class Form:
    """What a model writes."""

    text: str
    opened: bool = False
    """its chat template begins the thought"""
    action: str = "right"
    thought: bool = True
    """there is one, so that a prompt that asks for it is content"""
    only: str = ""
    """the one kind of reader that can meet it, or tell"""


def channels(*pairs: tuple[str, str]) -> str:
    return "<|end|><|start|>assistant".join(f"<|channel|>{c}<|message|>{t}" for c, t in pairs)


FORMS = {
    "plain": Form(f"<think>hm</think>{R}"),
    "on lines": Form(f"<think>\nhm\n</think>\n\n{R}\n"),
    "spaces in the action": Form("<think>hm</think><action> right\n</action>"),
    "prose behind": Form(f"<think>hm</think>{R} and then some"),
    "prose between": Form(f"<think>hm</think>So I go: {R}"),
    "two actions": Form(f"<think>hm</think>{R}{L}"),
    "two turns": Form(f"<think>hm</think>{R}\n<think>next</think>{L}"),
    "empty thought": Form(f"<think></think>{R}"),
    "any characters": Form(f"<think>é 💡 < > </ </act\u0000</think>{R}"),
    "no thought": Form(R, thought=False),
    "prose first": Form(f"I go right. {R}", thought=False),
    "a thought behind": Form(f"{R}<think>hm {L}</think>", thought=False),
    "quoted": Form(f"<think>Not {L} but right.</think>{R}"),
    "quoted twice": Form(f"<think>{L} or {L}?</think>\n{R}"),
    "opening quoted": Form(f"<think>In <action> tags.</think>{R}"),
    "closing quoted": Form(f"<think>Ends with </action>.</think>{R}"),
    "whole form quoted": Form(f"<think>So: <think>...</think>{L}. Fine.</think>\n<think>hm</think>{R}"),
    "whole form quoted once": Form(f"<think>So: <think>...</think>{L}. Fine.</think>{R}"),
    "whole form quoted twice": Form(
        f"<think>a <think>b <think>c</think>{L}</think>{L}</think>{R}"
    ),
    "thought quoted": Form(f"<think>I write <think> first.</think>{R}"),
    "begun twice": Form(f"<think>\n<think>hm {L}</think>{R}"),
    "two thoughts": Form(f"<think>a {L}</think>\n<think>b {L}</think>{R}"),
    "capital letters": Form(f"<think>hm</think>{R.upper()}", action=""),
    "opened": Form(f"hm</think>{R}", opened=True),
    "opened, on lines": Form(f"hm\n</think>\n\n{R}", opened=True),
    "opened, quoted": Form(f"Not {L}.\n</think>\n{R}", opened=True),
    "opened, begun again": Form(f"<think>hm {L}</think>{R}", opened=True),
    "opened, thought of its own": Form(f"a {L}</think>\n<think>b</think>{R}", opened=True),
    "opened, form quoted": Form(f"So: <think>...</think>{L}.\n</think>{R}", opened=True),
    "opened, thought quoted": Form(f"I write <think> first {L}.</think>{R}", opened=True),
    "opened, never closed": Form(f"Perhaps {L}. Or", opened=True, action="", only="opened"),
    "opened, nothing said": Form("</think>", opened=True, action=""),
    "never closed": Form(f"<think>Perhaps {L}. Or", action=""),
    "the second never closed": Form(f"<think>a</think><think>b {L}", action=""),
    "Magistral, quoted": Form(f"[THINK]Not {L}.[/THINK]\n{R}"),
    "Magistral, both": Form(f"[THINK]In <think>..</think>{L}.[/THINK]<think>hm</think>{R}"),
    "Magistral, never closed": Form(f"[THINK]Perhaps {L}", action=""),
    "Magistral, opened": Form(f"Not {L}.[/THINK]{R}", opened=True),
    "thinking": Form(f"<thinking>Not {L}.</thinking>{R}"),
    "Seed": Form(f"<seed:think>Not {L}.</seed:think>{R}"),
    "Kimi": Form(f"◁think▷Not {L}.◁/think▷{R}"),
    "gpt-oss, quoted": Form(channels(("analysis", f"Not {L}."), ("final", R))),
    "gpt-oss, two": Form(channels(("analysis", L), ("commentary", L), ("final", R))),
    "gpt-oss, never final": Form(channels(("analysis", f"Perhaps {L}")), action=""),
    "gpt-oss, dropped tokens": Form(f"analysisNot {L}.assistantfinal{R}", only="server"),
    "prose": Form("I would rather talk.", action=""),
    "nothing": Form("", action=""),
    "empty action": Form("<think>hm</think><action> </action>", action=""),
}  # fmt: skip
"""of each form what it is to be read as"""
WRITINGS: dict[str, tuple[tuple[str, ...], Callable[[str], str]]] = {
    "tags": (("</action>",), lambda text: text),
    "searches": (("</search>", "</answer>"), lambda text: text.replace("action>", "search>")),
}
"""ways to write actions: the stop texts, and a form's text in this way"""


class Server:
    """Answers an endpoint's requests with a form, in the server's own way."""

    def __init__(self, form: Form, way: str, right: str) -> None:
        self.form, self.way, self.right = form, way, right
        self.asked = 0

    async def post(self, path: str, body: dict[str, Any], cast_to: Any) -> Any:
        self.asked += 1
        text, choice = self.form.text, {"index": 0, "finish_reason": "stop"}
        stop = body.get("stop", [])
        message: dict[str, Any] = {"role": "assistant"}
        if self.way == "reasoning":
            thought = (
                split_thought(text.rpartition(self.right)[0])[0] if self.form.thought else None
            )
            if thought:
                message["reasoning_content"], text = thought, text[text.rfind(self.right) :]
        ends = [(text.find(s), s) for s in stop if s in text]
        if self.way in ("stop", "stop named") and ends:
            text = text[: min(ends)[0]]
            if self.way == "stop named":
                choice["stop_reason"] = min(ends)[1]
        parts = [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]
        message["content"] = parts if self.way == "parts" else text
        return {"choices": [choice | {"message": message}]}


class Reader:
    """Everything that reads replies in which actions are written in one way, made once."""

    def __init__(self, writing: str) -> None:
        stops, self.written = WRITINGS[writing]
        self.sampling = Sampling(0.0, 2000, stops)
        settings = EndpointSettings(url="http://127.0.0.1:9/v1", cache=None, retries=0)
        self.chats, self.policy = {}, EndpointPolicy("m", settings)
        for opened in (False, True):
            tokenizer = byte_tokenizer()
            if opened:
                ask = "<|im_start|>assistant\n"
                assert ask in tokenizer.chat_template
                tokenizer.chat_template = tokenizer.chat_template.replace(ask, f"{ask}<think>\n")
            self.chats[opened] = ChatFormat(tokenizer)

    def endpoint(self, form: Form, way: str) -> Response:
        policy = self.policy
        policy.fallbacks = type(policy.fallbacks)()
        policy._thoughts_seen = False
        policy._client = SimpleNamespace(post=Server(form, way, self.written(R)).post)
        (response,) = complete(policy, [[{"role": "user", "content": "?"}]], self.sampling)
        return response

    def _script(self, form: Form) -> list[int]:
        chat = self.chats[form.opened]
        return [*chat.content(form.text), chat.end_id]

    def local(self, form: Form) -> Response:
        chat, script = self.chats[form.opened], self._script(form)
        size = len(chat.tokenizer)

        class Decoder:
            said = iter(script)

            def feed(self, chunks: Any) -> Any:
                return torch.nn.functional.one_hot(torch.tensor([next(self.said)]), size) * 50.0

        (response,) = respond(Decoder(), {0: [1]}, chat, self.sampling, [0])
        return response

    def vllm(self, form: Form) -> Response:
        chat, script = self.chats[form.opened], self._script(form)

        def generate(prompts: Any, parameters: Any, use_tqdm: bool) -> Any:
            """Stops at any stop text of its own request, thought or not."""
            (prompt,), (given,) = prompts, parameters
            done = len(prompt["prompt_token_ids"]) - len(context)
            ids: list[int] = []
            while not ids or not (
                ids[-1] in given.stop_token_ids or any(s in chat.raw(ids) for s in given.stop)
            ):
                ids.append(script[done + len(ids)])
            logprobs = [{i: SimpleNamespace(logprob=0.0)} for i in ids]
            output = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason="stop")
            return [SimpleNamespace(outputs=[output])]

        context = chat.first("?")
        policy = VLLMPolicy.__new__(VLLMPolicy)
        policy.chat, policy.context_tokens = chat, 10_000
        policy.engine = SimpleNamespace(generate=generate)
        (response,) = VLLMSession(policy, self.sampling).respond([Request("e", 0, (), context)])
        assert len(response.ids) == len(response.logprobs)
        return response


WAYS = ("content", "parts", "reasoning", "stop", "stop named")


def read(reader: Reader, form: Form) -> dict[str, Response]:
    """The form's responses by who reads it."""
    form = replace(form, text=reader.written(form.text))
    found = {way: reader.endpoint(form, way) for way in WAYS}
    found |= {"local": reader.local(form), "vllm": reader.vllm(form)}
    if form.only == "opened":  # a chat's client does not know its template
        found = {way: r for way, r in found.items() if way not in WAYS}
    elif form.only == "server":  # in this process no token is dropped
        found = {way: r for way, r in found.items() if way in ("content", "parts", "reasoning")}
    return found


@pytest.fixture(scope="module")
def every() -> Iterator[Callable[[str], Responses]]:
    """All forms with actions written in one way, as all readers read them."""

    @cache
    def responses(writing: str) -> Responses:
        reader = Reader(writing)
        return {name: read(reader, form) for name, form in FORMS.items()}

    with fork.registered(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
        yield responses


@pytest.mark.parametrize("name", FORMS)
def test_every_reader_finds_the_same_action(name: str, every: Callable[[str], Responses]) -> None:
    form = FORMS[name]
    valid = bool(form.thought and form.action)
    for way, response in every("tags")[name].items():
        assert response.error is None
        parsed = FORM.template.read_response(FORM.read(response))
        assert parsed.action == form.action, (way, response)
        assert (parsed.problem is None) == valid, (way, parsed)
    if not form.only:  # else its text alone does not show what it is
        env = make_agent_env(fork.ENV)
        env.reset(seed=0)
        transition = env.step(form.text)[4]["transition"]
        assert (transition.action, transition.action_is_valid) == (form.action, valid)


PLAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "policy": ("tags", {}), "plain": ("tags", {}), "cot": ("tags", {}), "react": ("tags", {"examples": 0}),
    "self_consistency": ("tags", {"samples": 2}), "best_of_n": ("tags", {"n": 2}),
    "reflexion": ("tags", {"examples": 0, "trials": 1}), "search_r1": ("searches", {}),
}  # fmt: skip
"""of each agent that reads replies, how its model writes actions, and its settings"""


def test_no_agent_that_reads_replies_is_missing() -> None:
    assert set(PLAYERS) == {n for n, a in AGENTS.items() if a.needs_policy}


@pytest.mark.parametrize("agent", PLAYERS)
def test_every_agent_takes_that_action(agent: str, every: Callable[[str], Responses]) -> None:
    writing, settings = PLAYERS[agent]
    for name, found in every(writing).items():
        action = FORMS[name].action
        if writing == "searches" and (action or name == "empty action"):
            action = f"<search>{action}</search>"
        different = {(r.text, r.reasoning): r for r in found.values()}
        for response in different.values():
            probe = make_agent_env(
                fork.ENV, template="search" if writing == "searches" else "generic"
            )
            policy = MeteredPolicy(ScriptedPolicy(lambda _, given=response: replace(given)))
            made = make_agent(agent, policy, None, settings)
            interface = made.interface(probe.template)
            policy.form = ActionForm(interface.get("template", probe.template))
            pool = EnvPool(fork.ENV, 1, made.group_size, max_steps=1, **interface)
            done: list[Any] = []
            made.run(pool, ["a"], 0, done.append)
            pool.close()
            (episode,) = done
            assert episode.error is None, (name, episode.error)
            assert episode.transitions[0].action == action, (name, response)


@pytest.mark.parametrize("stop", [True, False])
def test_an_answer_that_was_cut_off_is_called_so_without_stop_texts_too(
    stop: bool, every: Callable[[str], Responses]
) -> None:
    cut = Response(text="<think>I wonder", finish_reason="length")
    policy = MeteredPolicy(ScriptedPolicy(lambda _: replace(cut)))
    made = make_agent("plain", policy, RolloutSettings(stop_at_tags=stop))
    done: list[Any] = []
    interface = made.interface(make_agent_env(fork.ENV, template="generic").template)
    policy.form = ActionForm(interface["template"])
    pool = EnvPool(fork.ENV, 1, made.group_size, max_steps=1, **interface)
    made.run(pool, ["a"], 0, done.append)
    pool.close()
    (call,) = policy.take_calls(done[0].episode_id)
    assert (call.acts, call.problem) == (True, "truncated")


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": "a"}, "a", None),
        ({}, "", None),
        ({"content": ["a", "b"]}, "ab", None),
        ({"content": {"type": "text", "text": "a"}}, "a", None),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                      {"type": "text", "text": "a"}]}, "a", "hm"),
        ({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "image"}]}, "", "hm"),
        ({"content": "a", "reasoning_content": "hm"}, "a", "hm"),
        ({"content": "a", "reasoning": [{"type": "text", "text": "hm"}]}, "a", "hm"),
        ({"content": "hm</think>a"}, "a", "hm"),
        ({"content": "hm</think>a", "reasoning": "so"}, "a", "so\nhm"),
        ({"content": "<think>hm</think>a"}, "<think>hm</think>a", None),
        ({"content": "[THINK]hm"}, "", "hm"),
        ({"content": "\ud800"}, "\ufffd", None),
    ],
)  # fmt: skip
def test_the_text_and_the_thought_of_a_message(message: Any, text: str, reasoning: Any) -> None:
    answer = read_chat({"choices": [{"message": message}]})
    assert (answer["text"], answer.get("reasoning")) == (text, reasoning)
