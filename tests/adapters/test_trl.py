"""Our environments as TRL's ``environment_factory`` uses them; needs no TRL."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from paw_gym import Outcome, Task, make_agent_env, register_text_env
from paw_gym.adapters.trl import OVER, environment_factory, task_rows

ENV = "paw_gym/ALFWorld-v0"


def test_an_episode_by_tools_is_the_same_episode() -> None:
    agent = make_agent_env(ENV, split="valid_seen")
    task_id = agent.tasks.ids[2]
    _, info = agent.reset(seed=4, options={"task_id": task_id})
    tools = environment_factory(ENV, split="valid_seen")()
    shown = tools.reset(task_id=task_id, env_seed=4, prompt=[], other="column")
    assert (
        info["instruction"] in shown
        and agent.text_env.prompt_observation(agent.observation) in shown
    )
    total = 0.0
    responses = agent.reference_solution()
    for response in responses:
        action = agent.template.read_response(response).action
        _, reward, _, _, info = agent.step(response)
        total += reward
        assert info["transition"].next_observation in tools.act(action)
    assert tools.get_reward() == total > 0
    assert tools.act("look") == OVER and tools.get_reward() == total
    tools.reset(task_id=task_id, env_seed=4)
    assert tools.get_reward() == 0.0


def test_the_only_tool_is_the_action() -> None:
    instance = environment_factory(ENV)()
    methods = [name for name, _ in inspect.getmembers(type(instance), inspect.isfunction)]
    public = {name for name in methods if not name.startswith("_")}
    assert public == {"reset", "act", "get_reward"}
    chat = pytest.importorskip("transformers.utils.chat_template_utils", reason="the extra `train`")
    schema = chat.get_json_schema(instance.act)["function"]
    assert schema["parameters"]["required"] == ["action"]


def test_rows_name_their_tasks() -> None:
    rows = task_rows(ENV, "text", tasks=3, seed=7, split="valid_seen")
    assert len({row["task_id"] for row in rows}) == 3
    assert all(row["prompt"][-1]["content"] == row["task_id"] for row in rows)
    hidden = task_rows(ENV, "tools", tasks=[rows[1]["task_id"]], split="valid_seen")
    assert hidden[0]["prompt"] == [{"role": "user", "content": ""}]
    with pytest.raises(ValueError, match="has no task 'nowhere'"):
        task_rows(ENV, "text", tasks=["nowhere"])
    with pytest.raises(ValueError, match="'tools' or 'text'"):
        task_rows(ENV, "speech")
    for none in (-1, 0):
        with pytest.raises(ValueError, match=f"`tasks` is {none}; expected 1 or more"):
            task_rows(ENV, "text", tasks=none)


def test_what_a_data_set_and_a_model_may_hand_over() -> None:
    """Nulls for a column that a row lacks, integers of NumPy, an action that is a number."""
    tools = [environment_factory(ENV)() for _ in range(3)]
    assert len({one.reset(task_id=None, env_seed=None) for one in tools}) == 1
    row: dict[str, Any] = {"env_seed": np.int64(0)}
    assert tools[0].reset(**row) == tools[1].reset(env_seed=0)
    searching = environment_factory("paw_gym/SearchQA-v0")()
    searching.reset()
    assert "no valid action" in searching.act(3)


def test_an_environment_that_raises_has_no_reward(own_environments: None) -> None:
    """TRL gives the model what a tool raises; only the reward can end the run."""

    def broken(task: Task, rng: Any) -> Any:
        yield Outcome("Fine so far.")
        raise ZeroDivisionError("in the world")

    register_text_env("tests/BrokenTool-v0", broken, tasks=[Task("one", "Go.")])
    tools = environment_factory("tests/BrokenTool-v0")()
    tools.reset(task_id="one")
    with pytest.raises(ZeroDivisionError):
        tools.act("go")
    with pytest.raises(RuntimeError, match="BrokenTool-v0 failed on task 'one'"):
        tools.get_reward()
    tools.reset(task_id="one")
    assert tools.get_reward() == 0.0
