"""Each agent does what it is named after, in every environment."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import hostile
import pytest
from scripted import ScriptedPolicy

from paw_gym import Outcome, Task, register_text_env
from paw_gym.prompts import PromptTemplate
from paw_train.agents import AGENTS, make_agent
from paw_train.agents.dialogue import Dialogue
from paw_train.agents.metering import episode_of
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings


def act(action: str, thought: str = "hm") -> str:
    return f"<think>{thought}</think><action>{action}</action>"


def goal(request: Request) -> str:
    """The door that the task names, read from the agent's own task: the last one that is named."""
    text = " ".join(m["content"] for m in request.messages if m["role"] == "user")
    return re.findall(r"Open door (\d)", text)[-1]


def solves(request: Request) -> str:
    return act(f"open door {goal(request)}")


def looks_around(request: Request) -> str:
    text = request.messages[-1]["content"]
    if "<search>" in text or "<information>" in text or "<search>" in str(request.messages[0]):
        return "<think>hm</think><search>who</search>"
    clicks = re.findall(r"click\[[^\]]+\]", text)
    return act(clicks[request.seed % len(clicks)] if clicks else "look")


EVERYWHERE = sorted(set(AGENTS) - {"search_r1"})
"""agents that suit every environment"""


SEARCH = EnvSettings(id="paw_gym/SearchQA-v0", kwargs={"num_passages": 300, "max_steps": 7})
LIMIT = RolloutSettings(max_context_tokens=2600, max_response_tokens=16)
FORMS = {
    "paw_gym/ALFWorld-v0": ("train", {"max_steps": 4}),
    "paw_gym/SearchQA-v0": ("dev", {"num_passages": 300}),
    "paw_gym/WebShop-v0": ("train", {"max_steps": 4}),
}


def check_plays(
    table: Any, env_id: str, split: str, kwargs: dict[str, Any], name: str, **settings: Any
) -> None:
    env = EnvSettings(id=env_id, kwargs=kwargs)
    needs_policy = AGENTS[name].needs_policy
    answers = looks_around if needs_policy else None
    played = table(name, answers, env, split, 2, **settings).play()
    for episode in played.values():
        assert episode.error is None
        assert episode.finished
        if needs_policy:
            assert any(t.action for t in episode.transitions), episode.transitions[0].response


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("env_id", FORMS)
def test_every_agent_plays_every_form(table: Any, env_id: str, name: str) -> None:
    check_plays(table, env_id, *FORMS[env_id], name)


def test_every_environment_is_played(table: Any, own_env: tuple[str, dict[str, Any]]) -> None:
    env_id, kwargs = own_env
    split, kwargs = FORMS.get(env_id, ("train", {**kwargs, "max_steps": 6}))
    check_plays(table, env_id, split, kwargs, "react", examples=0)


def test_the_expert_wins_and_chance_does_not(table: Any) -> None:
    assert all(e.success for e in table("expert", None, count=8).play().values())
    chance = table("random", None, count=8)
    first = chance.play()
    assert 0 < sum(e.success for e in first.values()) < 8
    actions = Counter(t.action for e in first.values() for t in e.transitions)
    assert len(actions) > 2
    assert all(t.action_is_valid for e in first.values() for t in e.transitions)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_an_episode_depends_on_its_task_and_seed_alone(table: Any, name: str) -> None:
    def drawn(request: Request) -> str:
        return act(["look", f"open door {request.seed % 3 + 1}"][request.seed // 3 % 2])

    needs_policy = AGENTS[name].needs_policy
    answers = drawn if needs_policy else None
    together = table(name, answers).play()
    alone = table(name, answers)
    for task_id in reversed(alone.task_ids):
        (episode,) = alone.play([task_id]).values()
        wanted = together[task_id].to_dict()
        assert {**episode.to_dict(), "group": 0} == {**wanted, "group": 0}


@pytest.mark.parametrize("name", [n for n in EVERYWHERE if AGENTS[n].needs_policy])
def test_a_request_without_an_answer_fails_its_episode_alone(table: Any, name: str) -> None:
    def answers(request: Request) -> str | Exception:
        return TimeoutError("no answer") if goal(request) == "2" else solves(request)

    settings = {"examples": 0} if name.startswith("re") else {}
    played = table(name, answers, count=6, **settings).play()
    failed = {task_id for task_id, e in played.items() if e.error is not None}
    assert failed == {"plain/1", "plain/4"}
    assert all("no answer" in str(played[i].error) for i in failed)
    assert all(played[i].success for i in set(played) - failed)


def test_plain_asks_for_the_action_alone_and_cot_for_reasoning(table: Any) -> None:
    ask = PromptTemplate.load("generic").ask
    for name, thought in (("plain", ""), ("cot", "<think>hm</think>")):
        players = table(name, lambda r, t=thought: f"{t}<action>open door {goal(r)}</action>")
        for episode in players.play().values():
            (first,) = episode.transitions
            assert episode.success and first.action_is_valid
            assert (ask in first.prompt) == ("<think>" in first.prompt) == (name == "cot")


@pytest.mark.parametrize("name", ["cot", "react", "reflexion", "self_consistency"])
def test_agents_that_reason_refuse_a_prompt_that_does_not_ask_for_it(name: str) -> None:
    template = PromptTemplate.load("generic").without_reasoning()
    agent = make_agent(name, object(), settings={})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="asks for no reasoning"):
        agent.interface(template)


class TestSelfConsistency:
    def play(self, table: Any, said: list[Any]) -> Any:
        def answers(request: Request) -> str | Exception:
            return said[int(request.episode.rpartition("/")[2])]

        players = table("self_consistency", answers, count=1, samples=len(said))
        (episode,) = players.play().values()
        return episode

    def test_most_votes_win(self, table: Any) -> None:
        doors = [2, 1, 3, 1, 2, 1]
        episode = self.play(table, [act(f"open door {n}", str(i)) for i, n in enumerate(doors)])
        (step,) = episode.transitions
        assert step.response == act("open door 1", "1")  # the first that named it
        votes = {"open door 2": 2, "open door 1": 3, "open door 3": 1}
        assert (step.action, step.info["agent"]["votes"]) == ("open door 1", votes)

    def test_what_the_environment_refuses_has_no_vote(self, table: Any) -> None:
        episode = self.play(table, [act("fly"), act("fly"), "mumble", act("open door 1")])
        assert episode.transitions[0].action == "open door 1"
        assert episode.transitions[0].info["agent"]["votes"] == {"open door 1": 1}

    def test_an_answer_that_does_not_come_is_no_abstention(self, table: Any) -> None:
        episode = self.play(table, [act("look"), TimeoutError("gone"), act("look")])
        assert (episode.error, episode.transitions) == ("gone", [])

    def test_the_answers_of_a_step_have_seeds_of_their_own(self, table: Any) -> None:
        players = table("self_consistency", solves, count=2, samples=4)
        players.play()
        seeds = [request.seed for request in players.policy.requests]
        assert len(seeds) == len(set(seeds)) == 8


class TestBestOfN:
    def test_the_highest_score_is_chosen(self, table: Any) -> None:
        doors = iter([2, 3, 1, 1])
        players = table("best_of_n", lambda request: act(f"open door {next(doors)}"), n=4)
        (episode,) = players.play(["plain/1"]).values()  # door 2
        assert episode.success
        info = episode.transitions[-1].info["agent"]
        assert (info["scores"], info["chosen"]) == ([1.0, 0.25, 0.5, 0.5], 0)

    def test_one_that_fails_fails_the_task(self, table: Any) -> None:
        """Else the best of three would pass for the best of four, as the endpoint pleases."""
        said = iter([act("open door 3"), TimeoutError("gone"), act("open door 2"), act("look")])
        players = table("best_of_n", lambda request: next(said, act("open door 1")), n=4)
        (episode,) = players.play(["plain/1"]).values()
        assert episode.error == "gone"


class TestReact:
    def test_the_dialogue_keeps_the_agents_own_thoughts(self, table: Any) -> None:
        def answers(request: Request) -> str:
            turns = sum(m["role"] == "assistant" for m in request.messages)
            return act("look", f"thought {turns}") if turns < 3 else solves(request)

        players = table("react", answers, count=2)
        for episode in players.play().values():
            assert episode.success
            assert episode.context_mode == "conversation"
            assert episode.transitions[1].info["agent"]["thought"] == "thought 1"
        last = players.policy.requests[-1].messages
        assert [m["content"] for m in last if m["role"] == "assistant"] == [
            act("look", f"thought {i}") for i in range(3)
        ]
        assert "Nothing moves." in last[-1]["content"]

    def test_examples_are_solved_episodes_of_other_tasks(self, table: Any) -> None:
        players = table("react", solves, count=5, examples=2)
        episode = players.play()["plain/0"]
        preface = episode.transitions[0].info["agent"]["preface"]
        sent = players.policy.requests[0].messages[0]["content"]
        assert sent == f"{preface}\n{episode.transitions[0].prompt}"
        assert len(players.agent.examples) == 2
        for example in players.agent.examples:
            instruction = re.search(r"Task: (.*)", example)[1]  # type: ignore[index]
            door = re.search(r"\d", instruction)[0]  # type: ignore[index]
            answers = re.findall(r"<think>(.+?)</think><action>(.+?)</action>", example)
            assert [action for _, action in answers] == ["look", f"open door {door}"]
            assert answers[0][0].startswith(f"My task: {instruction} ")
            assert example in preface

    def test_an_example_never_shows_a_task_that_counts(self, table: Any) -> None:
        players = table("react", solves, count=7, examples=3)
        assert len(players.agent.examples) == 1  # one task is left
        with pytest.raises(ValueError, match="No example"):
            table("react", solves, count=8)

    def test_where_no_episode_fits_its_beginning_is_shown(self, table: Any) -> None:
        one = table("react", solves, count=1, examples=1).agent.examples[0]
        room = len(one) // 4 - 1
        (cut,) = table("react", solves, count=1, examples=1, example_tokens=room).agent.examples
        shown, end = cut.rsplit("\n", 1)
        assert one.startswith(shown) and end == "(and so on)"
        assert "<action>" in shown and len(cut) <= 4 * room

    def test_a_long_dialogue_forgets_its_oldest_turns(self, table: Any) -> None:
        said = act("look", "many words " * 80)
        rollout = RolloutSettings(max_context_tokens=1000, max_response_tokens=100)
        players = table("react", lambda _: said, count=1, examples=0, rollout=rollout)
        (episode,) = players.play().values()
        assert len(episode.transitions) == 6
        # the policy counts a word as a token, and says so in its usage
        asked = players.policy.requests
        sizes = [sum(len(m["content"].split()) for m in r.messages) for r in asked]
        assert 800 < max(sizes) <= 1.02 * 900
        last = asked[-1].messages
        forgotten = episode.transitions[-1].info["agent"]["forgotten_turns"]
        assert forgotten > 0
        assert f"[The first {forgotten} step(s)" in last[0]["content"]
        assert episode.instruction in last[0]["content"]
        assert [m["role"] for m in last] == ["user", "assistant"] * (len(last) // 2) + ["user"]


class TestReflexion:
    def learns(self, request: Request) -> str:
        """Opens the first door, unless its notes say another."""
        text = request.messages[-1]["content"]
        if "write a note to yourself" in text:
            return f"Next time\n open number {goal(request)}."
        first = request.messages[0]["content"]
        told = re.findall(r"open number (\d)", first)
        return act(f"open door {told[-1] if told else 1}")

    def test_notes_lead_the_next_trial(self, table: Any) -> None:
        players = table("reflexion", self.learns, count=3, examples=0)
        played = players.play()
        assert all(e.success for e in played.values())
        notes = {i: e.transitions[-1].info["agent"] for i, e in played.items()}
        for task_id, trial, noted in (("0", 1, []), ("1", 2, ["Next time open number 2."])):
            found = notes[f"plain/{task_id}"]
            assert (found["trial"], found["reflections"]) == (trial, noted)
        asked = [r.messages for r in players.policy.requests if r.episode.endswith("/reflect")]
        assert len(asked) == 2
        assert "A wall." in asked[0][0]["content"]
        assert "You: <think>hm</think><action>open door 1</action>" in asked[0][0]["content"]

    def test_the_last_trial_counts_and_memory_is_bounded(self, table: Any) -> None:
        notes = (f"note number {i}" for i in range(1, 99))

        def never(request: Request) -> str:
            asked = "write a note to yourself" in request.messages[-1]["content"]
            return next(notes) if asked else act("open door 3")

        players = table("reflexion", never, trials=4, memory=2, examples=0)
        (episode,) = players.play(["plain/0"]).values()
        assert not episode.success
        info = episode.transitions[-1].info["agent"]
        assert info["trial"] == 4
        assert info["reflections"] == [f"note number {i}" for i in (1, 2, 3)]
        assert "note number 1" not in info["preface"]
        assert "- note number 2\n- note number 3" in info["preface"]

    def test_a_note_that_does_not_come_fails_the_episode_alone(self, table: Any) -> None:
        def answers(request: Request) -> str | Exception:
            if "write a note" in request.messages[-1]["content"] and goal(request) == "2":
                return TimeoutError("no answer")
            return self.learns(request)

        played = table("reflexion", answers, count=3, examples=0).play()
        assert [e.error for e in played.values()].count("no answer") == 1
        assert played["plain/2"].success


class TestSearchR1:
    def test_it_searches_and_answers_in_at_most_four_turns(self, table: Any) -> None:
        players = table("search_r1", lambda _: "<search>who</search>", SEARCH, "dev", 1)
        (episode,) = players.play().values()
        assert len(episode.transitions) == 4
        assert episode.transitions[-1].truncated
        assert "<information>" in players.policy.requests[1].messages[-1]["content"]

    def test_neither_search_nor_answer_is_refused_and_tried_again(self, table: Any) -> None:
        said = iter(["<think>hm</think> Lisbon", "<think>hm</think><answer>Lisbon</answer>"])
        players = table("search_r1", lambda _: next(said), SEARCH, "dev", 1)
        (episode,) = players.play().values()
        assert [t.action_is_valid for t in episode.transitions] == [False, True]
        assert "no valid action" in players.policy.requests[1].messages[-1]["content"]


@pytest.mark.parametrize("own", ["", "/2", "/reflect", "-again", ":1/2"])
def test_what_an_agent_appends_to_an_episode_s_name_is_not_part_of_it(own: str) -> None:
    assert episode_of(f"room/1#b/2#00000abc-12{own}") == "room/1#b/2#00000abc-12"


def test_an_agent_that_asks_needs_a_model() -> None:
    with pytest.raises(ValueError, match="needs a model"):
        make_agent("react", None)


def test_what_is_registered_has_to_be_an_agent_of_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = type("Other", (AGENTS["random"],), {"name": "other"})
    for registered, message in ((other, "registered as 'mine', but its `name`"),
                                (print, "not a subclass of paw_train.agents.Agent")):  # fmt: skip
        monkeypatch.setattr(AGENTS, "_loaded", {"mine": registered})
        with pytest.raises(ValueError, match=message):
            make_agent("mine", None)


def test_a_long_dialogue_forgets_whole_turns_from_the_start() -> None:
    chat = ChatFormat(hostile.byte_tokenizer())

    def made(with_chat: Any) -> Dialogue:
        talk = Dialogue(with_chat, "The task.")
        for i in range(6):
            text = f"answer {i} " * 6
            talk.add_response(Response(chat.content(text), [], text))
            talk.add_message(f"observation {i} " * 4)
        return talk

    for with_chat, limit in ((chat, 500), (None, 125)):
        talk = made(with_chat)
        whole = [dict(m) for m in talk.messages]
        assert talk.tokens > limit
        talk.fit(limit)
        assert talk.tokens <= limit
        assert talk.messages[0]["content"].startswith("The task.\n[The first ")
        assert talk.messages[1:] == whole[1 + 2 * talk.forgotten :]
        if with_chat:
            assert talk.ids == chat.dialogue(talk.messages)
    tiny = made(None)
    tiny.add_response(Response(text="answer 6"))
    tiny.add_message("observation 6 " * 40)
    tiny.fit(60)  # the first message stays, and of the newest what fits
    (message,) = tiny.messages
    assert message["content"].startswith("The task.\n[The oldest part")
    assert message["content"].endswith("observation 6 ")
    assert tiny.tokens <= 60 and tiny.notes["cut_characters"] > 0


def sent(policy: Any) -> list[int]:
    """Lengths of the requests to a policy, in tokens."""
    dialogues = [r.ids or policy.chat.dialogue(r.messages) for r in policy.requests]
    return [len(ids) for ids in dialogues]


def counting(answers: Any) -> ScriptedPolicy:
    policy = ScriptedPolicy(answers)
    policy.chat = ChatFormat(hostile.byte_tokenizer())
    return policy


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_task_that_the_context_cannot_hold_fails_alone(table: Any, name: str) -> None:
    def walk(task: Task, rng: Any) -> Any:
        yield Outcome("A hall.", admissible_actions=["go", "look"])
        yield Outcome("A room.", admissible_actions=["go"])
        yield Outcome("The end.", 1.0, True, True, admissible_actions=[])

    words = {"fine": "Go.", "long": "Go. " * 800, "d": "Go.", "e": "Go."}
    tasks = [Task(i, text) for i, text in words.items()]
    register_text_env("test/Walk-v0", walk, tasks=tasks, solve=lambda *_: ["go", "go"])
    env = EnvSettings(id="test/Walk-v0")
    policy: Any = counting(lambda _: act("go"))
    if not AGENTS[name].needs_policy:
        policy = None
    played = table(name, policy, env, "", 3, LIMIT).play()
    failed = {i: str(e.error) for i, e in played.items() if e.error is not None}
    if policy is None:
        assert not failed
        return
    assert "max_context_tokens" in failed.pop("long")
    assert not failed
    assert all(played[i].success for i in played if i != "long")
    assert max(sent(policy)) <= LIMIT.max_prompt_tokens


def test_a_reflection_and_a_search_keep_to_the_limit(table: Any) -> None:
    said = act("look", "many words " * 60)
    policy = counting(lambda r: "note" if "write a note" in str(r.messages) else said)
    (episode,) = table("reflexion", policy, count=1, examples=0, rollout=LIMIT).play().values()
    assert episode.transitions[-1].info["agent"]["reflections"] == ["note", "note"]
    assert max(sent(policy)) <= LIMIT.max_prompt_tokens
    tight = LIMIT.replace(max_context_tokens=1600)
    policy = counting(lambda r: f"<search>{r.messages[0]['content'][-60:]}</search>")
    search = EnvSettings(id="paw_gym/SearchQA-v0", kwargs={"num_passages": 300})
    (episode,) = table("search_r1", policy, search, "dev", 1, tight).play().values()
    assert episode.transitions[-1].info["agent"]["ended"] == "context full"
    assert max(sent(policy)) <= tight.max_prompt_tokens
