from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import python

from paw_gym.envs.tau2.domains import load_domain
from paw_gym.envs.tau2.tables import SharedTable, copy_database, database_hash
from paw_gym.envs.tau2.users import CLOSING, user_script

Make = Callable[..., Any]


class Row:
    """As much of a pydantic model as a table needs."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def model_dump(self) -> dict[str, Any]:
        return {"items": self.items}


DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["add", "set", "delete", "get", "values", "items", "pop", "default"]),
        st.sampled_from("abcx"),
        st.integers(0, 3),
    ),
    max_size=12,
)


def do(table: dict[str, Any], deed: str, key: str, value: int) -> None:
    if deed == "add" and key in table:
        table[key].items.append(value)
    elif deed == "set":
        table[key] = Row([value])
    elif deed == "delete" and key in table:
        del table[key]
    elif deed == "get" and table.get(key) is not None:
        table.get(key).items.append(value)
    elif deed == "values":
        for row in table.values():
            row.items.append(value)
    elif deed == "items":
        for name, row in table.items():
            row.items += [value] * (name == key)
    elif deed == "pop":
        table.pop(key, None)
    elif deed == "default":
        table.setdefault(key, Row([9])).items.append(value)


def plain(table: dict[str, Any]) -> dict[str, list[int]]:
    return {key: dict.__getitem__(table, key).items for key in dict.keys(table)}


@given(DEEDS)
def test_a_shared_table_is_a_deep_copy_to_whoever_uses_it(deeds: Any) -> None:
    original = {key: Row([i]) for i, key in enumerate("abc")}
    before = plain(original)
    expected, table = copy.deepcopy(original), SharedTable(original)
    for deed in deeds:
        do(expected, *deed)
        do(table, *deed)
    assert plain(table) == plain(expected)
    assert plain(original) == before
    changed = {
        k for k in before.keys() | plain(table).keys() if before.get(k) != plain(table).get(k)
    }
    assert set(table.changes()) == changed


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_the_database_that_worlds_share_stays_as_it_is(make: Make, domain: str) -> None:
    """Tools that the package declares as reading see its rows themselves."""
    from tau2.utils import get_dict_hash

    shared = load_domain(domain).new_world.args[0].tools.db  # type: ignore[attr-defined]
    before = get_dict_hash(shared.model_dump())
    env = make(domain)
    for task_id in env.tasks.ids[:12]:
        env.reset(options={"task_id": task_id})
        for action in env.reference_solution():
            env.step(action)
    assert get_dict_hash(shared.model_dump()) == before


def test_equal_databases_and_no_others_share_a_hash(make: Make) -> None:
    """Against the package's own hash, over the states that gold actions of several tasks lead to."""
    from tau2.utils import get_dict_hash

    env = make("airline")
    ours, theirs = [], []
    for task_id in ("airline/2", "airline/5", "airline/7", "airline/8", "airline/9", "airline/2"):
        env.reset(options={"task_id": task_id})
        for action in env.reference_solution()[:-1]:
            env.step(action)
        database = env._present_world().tools.db
        ours.append(database_hash(database))
        theirs.append(get_dict_hash(database.model_dump()))
    for i in range(len(ours)):
        for j in range(i):
            assert (ours[i] == ours[j]) == (theirs[i] == theirs[j])
    assert 1 < len(set(ours)) < len(ours)


def test_a_copied_database_is_the_packages_own(make: Make) -> None:
    from tau2.domains.retail.environment import get_environment
    from tau2.utils import get_dict_hash

    fresh = get_environment().tools.db
    assert get_dict_hash(copy_database(fresh).model_dump()) == get_dict_hash(fresh.model_dump())


class TestScriptedUser:
    def test_it_tells_the_pieces_in_order_then_waits_then_leaves(self, make: Make) -> None:
        env = make("airline")
        script = user_script(env.tasks["airline/1"].data)
        said = [env.reset(options={"task_id": "airline/1"})[0]]
        over = False
        while not over:
            observation, _, over, _, _ = env.step("I see.")
            said.append(observation)
        assert said[: len(script)] == [f"User: {piece}" for piece in script]
        assert script[-1].endswith(CLOSING)
        assert len(said) == len(script) + 3 and "ended the conversation" in said[-1]

    def test_it_stays_while_things_are_done(self, make: Make) -> None:
        env = make("mock")
        env.reset(options={"task_id": "mock/update_task_1"})
        for _ in range(6):
            assert not env.step(json.dumps({"name": "get_users", "arguments": {}}))[2]
            assert not env.step("One more moment.")[2]
        assert env.step("Done.")[2]

    def test_it_does_what_a_message_names_and_reports(self, make: Make) -> None:
        env = make("telecom")
        env.reset(options={"task_index": 0})
        observation, *_ = env.step("Please look: check_status_bar. Is there a signal?")
        assert observation.startswith("User: I did that. check_status_bar: Status Bar: ")
        mode = 'Please set_network_mode_preference {"mode": "2g_only"}, then check_network_mode_preference'
        assert "2g_only" in env.step(mode)[0]
        # its own calls are not the agent's to see, and its script goes on
        assert env.step("And now?")[0] == f"User: {user_script(env.task.data)[1]}"
        assert [m["role"] for m in env.state["messages"] if "calls" in m] == ["user"] * 3

    def test_it_leaves_when_it_was_transferred(self, make: Make) -> None:
        env = make("mock")
        env.reset(options={"task_id": "mock/impossible_task_1"})
        env.step(json.dumps({"name": "transfer_to_human_agents", "arguments": {"summary": "x"}}))
        _, reward, over, _, info = env.step("You are being transferred.")
        assert over and reward == 1.0 and info["ended_by"] == "transfer"


NO_NETWORK = """
import socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("the network was asked")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
import gymnasium, paw_gym
assert "tau2" not in sys.modules and "loguru" not in sys.modules
env = gymnasium.make("paw_gym/Tau2-v0", domain="retail", split="test").unwrapped
env.reset(seed=1)
for action in env.reference_solution():
    answer = env.step(action)
assert answer[1] == 1.0 and answer[2]
assert not {"litellm", "openai", "langfuse", "redis"} & set(sys.modules), "a model's client"
"""


def test_import_and_play_ask_no_network_and_say_nothing(tau2: Any, tmp_path: Path) -> None:
    answer = python("-c", NO_NETWORK, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "" == answer.stdout
