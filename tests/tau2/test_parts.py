"""Tables, databases, the scripted user and the panels."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import play
from programs import python

from paw_gym.envs.tau2.domains import SharedTable, database_hash, load_domain
from paw_gym.envs.tau2.users import CLOSING, user_script

Make = Callable[..., Any]


class Row:
    """As much of a pydantic model as a table needs."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def model_dump(self) -> dict[str, Any]:
        return {"items": self.items}


def each(rows: Iterable[Row], value: int) -> None:
    for row in rows:
        row.items.append(value)


DEEDS: dict[str, Callable[[Any, str, int], object]] = {
    "add": lambda table, key, value: each([table[key]] if key in table else [], value),
    "set": lambda table, key, value: table.__setitem__(key, Row([value])),
    "update": lambda table, key, value: table.update({key: Row([value])}),
    "delete": lambda table, key, value: key in table and table.__delitem__(key),
    "get": lambda table, key, value: each(filter(None, [table.get(key)]), value),
    "values": lambda table, key, value: each(table.values(), value),
    "items": lambda table, key, value: each([r for k, r in table.items() if k == key], value),
    "pop": lambda table, key, value: table.pop(key, None),
    "default": lambda table, key, value: each([table.setdefault(key, Row([9]))], value),
    "last": lambda table, key, value: each([table.popitem()[1]] if table else [], value),
    "clear": lambda table, key, value: table.clear(),
    "merge": lambda table, key, value: table.__ior__({key: Row([value])}),
    "copy": lambda table, key, value: each(table.copy().values(), value),
    "union": lambda table, key, value: each((table | {"y": Row([9])}).values(), value),
}
CHOSEN = st.tuples(st.sampled_from(sorted(DEEDS)), st.sampled_from("abcx"), st.integers(0, 3))


def plain(table: dict[str, Any]) -> dict[str, list[int]]:
    return {key: dict.__getitem__(table, key).items for key in dict.keys(table)}


@given(st.lists(CHOSEN, max_size=12))
def test_a_shared_table_is_a_deep_copy_to_whoever_uses_it(deeds: Any) -> None:
    original = {key: Row([i]) for i, key in enumerate("abc")}
    before = plain(original)
    expected, table = copy.deepcopy(original), SharedTable(original)
    for deed, key, value in deeds:
        DEEDS[deed](expected, key, value)
        DEEDS[deed](table, key, value)
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
        play(env, env.reference_solution())
    assert get_dict_hash(shared.model_dump()) == before


def test_equal_databases_and_no_others_share_a_hash(make: Make) -> None:
    """Against the package's own hash, over states that gold actions lead to."""
    from tau2.utils import get_dict_hash

    env = make("airline")
    ours, theirs = [], []
    for task_id in ("airline/2", "airline/5", "airline/7", "airline/8", "airline/9", "airline/2"):
        env.reset(options={"task_id": task_id})
        play(env, env.reference_solution()[:-1])
        database = env._present_world().tools.db
        ours.append(database_hash(database))
        theirs.append(get_dict_hash(database.model_dump()))
    for i in range(len(ours)):
        for j in range(i):
            assert (ours[i] == ours[j]) == (theirs[i] == theirs[j])
    assert 1 < len(set(ours)) < len(ours)


def test_the_script_is_told_in_order_before_it_leaves(make: Make) -> None:
    env = make("airline")
    script = user_script(env.tasks["airline/1"].data)
    said = [env.reset(options={"task_id": "airline/1"})[0]]
    said += [answer[0] for answer in play(env, lambda: "I see.")]
    assert said[: len(script)] == [f"User: {piece}" for piece in script]
    assert script[-1].endswith(CLOSING)
    assert len(said) == len(script) + 3 and "ended the conversation" in said[-1]


def test_the_scripted_user_does_what_a_message_names(make: Make) -> None:
    env = make("telecom")
    env.reset(options={"task_index": 0})
    observation, *_ = env.step("Please look: check_status_bar. Is there a signal?")
    assert observation.startswith("User: I did that. check_status_bar: Status Bar: ")
    mode = (
        'Please set_network_mode_preference {"mode": "2g_only"}, then check_network_mode_preference'
    )
    assert "2g_only" in env.step(mode)[0]
    # its own calls are not the agent's to see, and its script goes on
    assert env.step("And now?")[0] == f"User: {user_script(env.task.data)[1]}"
    assert [m["role"] for m in env.state["messages"] if "calls" in m] == ["user"] * 3


def test_the_scripted_user_leaves_when_transferred(make: Make) -> None:
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


SIZES = {
    "tau2/airline": 50, "tau2/retail": 114, "tau2/telecom": 114, "tau2/mock": 9,
    "tau2/airline_test": 20, "tau2/retail_test": 40, "tau2/telecom_test": 40,
}  # fmt: skip


def test_the_panels_are_the_packages_splits(tau2: Any) -> None:
    from paw_train.environments import agent_env_maker
    from paw_train.evaluation import PANELS, make_panel
    from paw_train.settings import EnvSettings

    assert {name for name in PANELS if name.startswith("tau2/")} == set(SIZES)
    hashes = set()
    for name, size in SIZES.items():
        spec = PANELS[name]
        tasks = agent_env_maker(
            EnvSettings(id=spec.env_id, kwargs=dict(spec.kwargs)), spec.split
        )().tasks
        assert len(tasks) == size
        hashes.add(make_panel(tasks, name, spec.size or size, spec.seed).hash)
    assert len(hashes) == len(SIZES)
